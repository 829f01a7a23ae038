"""Instructions made from edits: a reader that knows only the instruction and the document makes the edit."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data_prep.build import OracleConfig, build_oracles, content_settings
from data_prep.formatter_pairs import _tidy
from data_prep.instructions import describe, synthesize
from data_prep.oracle import LineMatcher
from data_prep.prepared import read_split
from data_prep.rows import read_rows, write_rows

COMMITS = Path(os.environ.get("CAD_DATA_DIR", ""), "commits")
ROOT = Path(__file__).resolve().parents[1]

# --- a reader that knows only the instruction and the document -------------------------------------------------------

BLOCK = re.compile(r"(?ms)\n^(`{3,})\n(.*?)\n\1$")
QUOTE = re.compile(r'"([^"\n]*)"|(`+)(?!`)(.*?)(?<!`)\2(?!`)')
WHAT = r"(a blank line|\d+ blank lines|the line <\d+>|this line|these lines)"
ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth".split()


class Reader:
    def __init__(self, instruction: str, before: str) -> None:
        self.texts: list[str] = []

        def block(match: re.Match) -> str:
            self.texts.append(match[2])
            return f" <{len(self.texts) - 1}>"

        def quote(match: re.Match) -> str:
            self.texts.append(match[1] if match[2] is None else match[3] if len(match[2]) == 1 else match[3][1:-1])
            return f"<{len(self.texts) - 1}>"

        plain = QUOTE.sub(quote, BLOCK.sub(block, instruction))
        sentences = plain.split("\n")
        if len(sentences) > 1:
            assert sentences.pop(0).endswith(":"), plain
            assert [s.split(". ")[0] for s in sentences] == [str(i + 1) for i in range(len(sentences))], plain
            sentences = [sentence.split(". ", 1)[1] for sentence in sentences]
        self.crlf = 0 < before.count("\r\n") == before.count("\n")
        text = before.replace("\r\n", "\n") if self.crlf else before
        self.lines = text.removesuffix("\n").split("\n") if text else []
        self.final_newline = text.endswith("\n")
        self.edits: list[tuple[int, int, list[str]]] = []
        for sentence in sentences:
            self.sentence(sentence)
        for start, stop, new in sorted(self.edits, key=lambda edit: edit[:2], reverse=True):
            self.lines[start:stop] = new
        after = "\n".join(self.lines) + "\n" * self.final_newline
        self.after = after.replace("\n", "\r\n") if self.crlf else after

    def text(self, mark: str) -> str:
        return self.texts[int(mark.strip("<>"))]

    def name(self, phrase: str) -> int:
        """The index of the one line that the phrase names."""
        stripped = [line.strip() for line in self.lines]
        if m := re.fullmatch(r"the (\w+) blank line(?: after (.*))?", phrase):
            start = self.name(m[2]) + 1 if m[2] else 0
            index = start + self.rank(m[1])
            assert not any(stripped[start : index + 1]) and index < len(stripped), phrase
            return index
        m = re.fullmatch(r"the (?:(\w+) )?line (that starts with )?(<\d+>)(?: after (the line <\d+>))?", phrase)
        assert m, f"no reading of {phrase!r}"
        ordinal, starts, mark, landmark = m.groups()
        quoted = self.text(mark)
        same = [i for i, line in enumerate(stripped) if (line.startswith(quoted) if starts else line == quoted)]
        if landmark:
            assert ordinal == "first"
            return next(i for i in same if i > self.name(landmark))
        if ordinal:
            return same[self.rank(ordinal)]
        assert len(same) == 1, f"{quoted!r} is in lines {same}"
        return same[0]

    def rank(self, ordinal: str) -> int:
        return ORDINALS.index(ordinal) if ordinal in ORDINALS else int(re.match(r"\d+", ordinal)[0]) - 1

    def span(self, phrase: str) -> tuple[int, int]:
        if m := re.fullmatch(r"everything from (.*) through (.*)", phrase):
            return self.name(m[1]), self.name(m[2]) + 1
        if m := re.fullmatch(r"(.*) and the (?:(\d+) lines|line) after it", phrase):
            start = self.name(m[1])
            return start, start + int(m[2] or 1) + 1
        return self.name(phrase), self.name(phrase) + 1

    def place(self, phrase: str) -> tuple[int, str]:
        """Where to insert, and the indentation that a quoted line gets there."""
        if m := re.fullmatch("(?:at )?the (start|end) of the document", phrase):
            return (0 if m[1] == "start" else len(self.lines)), ""
        side, name = phrase.split(" ", 1)
        index = self.name(name)
        return index + {"after": 1, "before": 0}[side], self.indent(index)

    def indent(self, index: int) -> str:
        line = self.lines[index]
        return line[: len(line) - len(line.lstrip())] if line.strip() else ""

    def new(self, what: str, block: str | None, indent: str) -> list[str]:
        if m := re.fullmatch(r"(?:a|(\d+)) blank lines?", what):
            return [""] * int(m[1] or 1)
        if what.startswith("the line <"):
            return [indent + self.text(what.removeprefix("the line "))]
        lines = block.split("\n")
        assert (what == "this line") == (len(lines) == 1)
        return lines

    def sentence(self, sentence: str) -> None:
        block = None
        if m := re.fullmatch(r"(.*): (<\d+>)", sentence):
            body, block = m[1], self.text(m[2])
        else:
            assert sentence.endswith("."), sentence
            body = sentence[:-1]

        def match(pattern: str) -> tuple | None:
            found = re.fullmatch(pattern, body[0].upper() + body[1:])
            return found and (found.groups() or (body,))

        def everywhere(change) -> None:
            assert not self.edits
            self.lines = [change(line) for line in self.lines]

        def within(index: int, old: str, new: str) -> None:
            assert self.lines[index].count(old) == 1, f"{old!r} is not once in {self.lines[index]!r}"
            self.edits.append((index, index + 1, [self.lines[index].replace(old, new)]))

        if match(r"Leave the document as it is|Change nothing"):
            return
        if match(r"Delete everything|Empty the document"):
            self.lines, self.final_newline = [], False
        elif m := match(r"(?:Convert the line ends to|Use) (LF|CRLF)(?: line ends throughout)?"):
            for i in range(len(self.lines) - (not self.final_newline)):
                self.lines[i] = self.lines[i].removesuffix("\r")
            self.crlf = m[0] == "CRLF"
        elif match(r"End the document with a newline|Add the missing final newline"):
            self.final_newline = True
        elif match(r"Remove the final newline|Remove the newline at the end of the document|Put no newline at the end"):
            self.final_newline = False
        elif match(r"Remove trailing whitespace|Strip whitespace at line ends"):
            everywhere(trimmed)
        elif m := match(r"(?:Remove the trailing whitespace|Strip the whitespace at the end) of (.*)"):
            start, stop = self.span(m[0])
            self.edits.append((start, stop, [trimmed(line) for line in self.lines[start:stop]]))
        elif m := match(rf"Change the whitespace at the end of (.*), to get {WHAT}"):
            self.edits.append((*self.span(m[0]), self.new(m[1], block, "")))
        elif m := match(r"(?:Indent with|Replace tabs in the indentation:) (\d) spaces for each tab"):
            everywhere(lambda line: re.sub(r"^\t+", lambda tabs: tabs[0].replace("\t", " " * int(m[0])), line))
        elif m := match(r"Rename (?:every )?(<\d+>) to (<\d+>)(?: throughout)?"):
            old, new = map(self.text, m)
            everywhere(lambda line: re.sub(rf"\b{old}\b", new, line))
        elif m := match(r"(?:Remove every (<\d+>)|Delete (<\d+>) everywhere)"):
            everywhere(lambda line: line.replace(self.text(m[0] or m[1]), ""))
        elif m := match(r"(?:Replace every (<\d+>) with (<\d+>)|Change (<\d+>) to (<\d+>) everywhere)"):
            old, new = (self.text(mark) for mark in m if mark)
            everywhere(lambda line: line.replace(old, new))
        elif m := match(r"(Indent|Unindent|Move) (.*?)(?: to the (right|left))? by (\d+) (space|tab)s?"):
            more = "Indent" in (m[0], {"right": "Indent"}.get(m[2]))
            by = {"space": " ", "tab": "\t"}[m[4]] * int(m[3])
            start, stop = self.span(m[1])
            for i in range(start, stop):
                line = self.lines[i]
                assert more or not line or line.startswith(by)
                self.lines[i] = line and (by + line if more else line.removeprefix(by))
        elif m := match(r"Move (.*) to (?:right )?((?:after|before|the start|the end) .*)"):
            start, stop = self.span(m[0])
            at, _ = self.place(m[1])
            self.edits += [(start, stop, []), (at, at, self.lines[start:stop])]
        elif m := match(rf"(?:The document is empty\. )?Write {WHAT}"):
            self.edits.append((0, 0, self.new(m[0], block, "")))
            self.final_newline = True
        elif m := match(rf"(?:Insert|Add) {WHAT} (.*)"):
            at, indent = self.place(m[1])
            self.edits.append((at, at, self.new(m[0], block, indent)))
        elif m := match(rf"((?:After|Before|At) .*), (?:insert|add) {WHAT}"):
            at, indent = self.place(m[0][0].lower() + m[0][1:])
            self.edits.append((at, at, self.new(m[1], block, indent)))
        elif m := match(r"In (.*), change (<\d+>) to (<\d+>)"):
            within(self.name(m[0]), self.text(m[1]), self.text(m[2]))
        elif m := match(r"Change (<\d+>) to (<\d+>) in (.*)"):
            within(self.name(m[2]), self.text(m[0]), self.text(m[1]))
        elif m := match(r"Change (<\d+>) to (<\d+>)"):
            (index,) = (i for i, line in enumerate(self.lines) if self.text(m[0]) in line)
            within(index, self.text(m[0]), self.text(m[1]))
        elif m := match(r"In (.*), remove (<\d+>)"):
            within(self.name(m[0]), self.text(m[1]), "")
        elif m := match(r"Remove (<\d+>) from (.*)"):
            within(self.name(m[1]), self.text(m[0]), "")
        elif m := match(rf"Replace (.*) with {WHAT}") or match(rf"Change (.*) to {WHAT}"):
            start, stop = self.span(m[0])
            self.edits.append((start, stop, self.new(m[1], block, self.indent(start))))
        elif m := match(r"(?:Delete|Remove) (.*)"):
            self.edits.append((*self.span(m[0]), []))
        else:
            raise AssertionError(f"no reading of {sentence!r}")


def trimmed(line: str) -> str:
    return re.sub(r"[ \t]+(?=\r?\Z)", "", line)


def follow(instruction: str, before: str) -> str:
    return Reader(instruction, before).after


def senseless(instruction: str) -> list[str]:
    """The steps that replace one line by a quote of the same, or a blank one by a blank one."""
    line = r"the (?:\w+ )?(line .+?|blank line)(?: after (?:(?! and the ).)*)?"
    step = rf"(?m)(?:Replace|Change) {line} (?:with|to) \w+ \1\.$"
    return [found[0] for found in re.finditer(step, instruction)]


# --- every pair ------------------------------------------------------------------------------------------------------

CODE = [
    "", "", "  ", "a", "  a", "    a", "\ta", "a b", "x = a(b, b)", "def f(a):", "    return a + b", 'say "hi"',
    "it's `t`",
    'both `x` and "y"', "```", "  ```py", "}", "end ", "é = 'ü'", "the line \"a\" after it.",
    "1. Delete everything.",     "word " * 40, "word " * 40 + "end", "n" * 300, "\x0c", "\u2028 b",
]  # fmt: skip
LINES = st.lists(st.sampled_from(CODE) | st.text(alphabet='ab "`\t\r\u2028é.', max_size=6), max_size=14)


@st.composite
def documents(draw) -> tuple[str, str]:
    """A document and an edit of it: some runs of lines replaced, by others, by its own, or indented."""
    lines = draw(LINES)
    new = list(lines)
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(new)))
        stop = draw(st.integers(start, min(start + 3, len(new))))
        run = new[start:stop]
        new[start:stop] = draw(
            st.sampled_from([[line and "  " + line for line in run], [line[2:] for line in run], run * 2, []])
            | st.lists(st.sampled_from([*CODE, *lines]), max_size=3)
        )
    newline = st.sampled_from(["\n", "\n", "\n", "\r\n"])
    texts = []
    end = draw(newline)
    for doc in (lines, new):
        end = end if draw(st.integers(0, 9)) else draw(newline)
        texts.append(end.join(doc) + end * draw(st.integers(0, 9)).__bool__())
    return texts[0], texts[1]


@settings(max_examples=600, deadline=None)
@given(pair=documents(), seed=st.text(max_size=3))
@example(pair=("\n\r\n  ", "\n\r"), seed="")
@example(pair=("\r", "\r\r\n"), seed="")
def test_an_exact_instruction_makes_the_edit(pair, seed):
    before, after = pair
    made = synthesize(before, after, seed)
    assert not senseless(made.text), made.text
    if made.exact:
        assert follow(made.text, before) == after, made.text


@settings(max_examples=200, deadline=None)
@given(before=st.text(alphabet=st.characters()), after=st.text(alphabet=st.characters()), seed=st.text())
@example(before="1," * 100_000, after="1," * 99_999 + "2,", seed="")
@example(before="x\n" * 30_000, after="y\n" * 30_000, seed="")
@example(before="\ud800", after="\ud800\n", seed="\udfff")
@example(before="\r\n\n", after="\n\n", seed="")
def test_every_pair_gets_a_bounded_instruction_the_same_each_time(before, after, seed):
    made = synthesize(before, after, seed)
    assert made == synthesize(before, after, seed)
    assert made.text == describe(before, after, seed)
    assert made.text.strip() and len(made.text) < 12_000
    if made.exact:
        assert follow(made.text, before) == after, made.text


@settings(max_examples=300, deadline=None)
@given(pair=documents())
def test_a_crlf_document_has_no_carriage_returns_in_its_instruction(pair):
    before, after = (text.replace("\r", "").replace("\n", "\r\n") for text in pair)
    made = synthesize(before, after, "id")
    assert "\r" not in made.text
    if made.exact:
        assert follow(made.text, before) == after, made.text


# --- what is recognised ----------------------------------------------------------------------------------------------

DOC = """import os

def load(path):
    text = read(path)
    return text

def save(path):
    text = 1
    return text
"""

CASES = [
    ("rename", DOC, DOC.replace("path", "file"), r'"path" to "file"'),
    ("replace_all", DOC, DOC.replace("(path", "(*path"), r'"\(path" .* "\(\*path"|every'),
    ("replace", DOC, DOC.replace("import os", "import sys"), r'"os" to "sys"|"import sys"'),
    ("replace", DOC, DOC.replace("read(path)", "read(path, 'r')"), "."),
    ("replace", DOC, DOC[:-5] + "None\n", r'first line "return text" after the line "def save'),
    ("insert", DOC, DOC.replace("import os\n", "import os\nimport re\n"), '"import re"'),
    ("insert", DOC, "# Copyright\n" + DOC, '"# Copyright"'),
    ("insert", DOC, DOC.replace("    text = 1\n", "    text = 1\n    text += 1\n    log(text)\n"), "\n```\n    text"),
    ("delete", DOC, DOC.replace("    text = 1\n", ""), r'(Delete|Remove) the line "text = 1"\.'),
    ("delete", DOC, DOC.replace("    text = read(path)\n    return text\n", ""), "read"),
    ("move", "a\nb\nc\nd\n", "a\nc\nb\nd\n", "Move"),
    ("indent", DOC, DOC.replace("    text = 1\n    return", "      text = 1\n      return"), "2 spaces"),
    ("indent", "x\n\ta\n\n\tb\n", "x\na\n\nb\n", "1 tab"),
    ("trailing_whitespace", "a  \nb\t\nc\n", "a\nb\nc\n", "whitespace"),
    ("trailing_whitespace", "a  \r\nb \nc\n", "a\r\nb\nc\n", "whitespace"),
    ("trailing_whitespace", "a\nb  \r\nc\n \n", "a\nb\r\nc\n \n", 'whitespace.*"b"'),
    ("whitespace", "a\nb\n\n", "a  \nb  \n\n", "whitespace.*\na  \nb  \n"),
    ("tabs", "a\n\tb\n\t\tc\n", "a\n    b\n        c\n", "4 spaces"),
    ("line_ends", "a\r\nb\r\n", "a\nb\n", "LF"),
    ("line_ends", "a\nb\n", "a\r\nb\r\n", "CRLF"),
    ("line_ends", "a\nb\r\n", "a\nb\n", "LF"),
    ("final_newline", "a\nb", "a\nb\n", "newline"),
    ("final_newline", "a\nb\n", "a\nb", "newline"),
    ("write", "", "a\n", '"a"'),
    ("clear", "a\n", "", "."),
    ("none", "a\n", "a\n", "."),
    ("several", DOC, DOC.replace("import os", "import sys").replace("text = 1", "text = 2"), "\n1. .*\n2. "),
    ("replace", "Der Käse ist gut.\nEnde.\n", "Der Käse ist alt.\nEnde.\n", '"gut|"Der Käse ist alt'),
    ("replace", 'print("a", `b`)\nx\n', 'print("a", `c`)\nx\n', "`"),
]


@pytest.mark.parametrize(("kind", "before", "after", "pattern"), CASES)
def test_an_edit_is_called_what_it_is_in_every_phrasing(kind, before, after, pattern):
    for seed in range(12):
        made = synthesize(before, after, str(seed))
        assert (made.kind, made.exact) == (kind, True), made
        assert re.search(pattern, made.text, re.DOTALL), made.text
        assert follow(made.text, before) == after, made.text


@pytest.mark.parametrize(
    ("before", "after", "exact"),
    [
        ("a  \nb\n\n", "a\nb\n", True),
        ("a  \nb\t\nc\n\n", "a\nb\nc\n", True),
        ("a\n  \nb\nc\n", "a\n\nb\n", True),
        ("a\nb\nc\nd\n", "a\nb \nc\n", True),
        ("a\nb\r\nc\nd\n", "a\nb\nc\n", False),
        ("a\nb\x0c\nc\nd\n", "a\nb\nc\n", False),
        ("a\nb  \r\nc\nd  \n", "a\nb\r\nc\nd  ", True),
    ],
)
def test_no_line_is_replaced_by_what_reads_the_same(before, after, exact):
    for seed in range(12):
        made = synthesize(before, after, str(seed))
        assert made.exact == exact
        assert "whitespace" in made.text and not senseless(made.text), made.text


def test_whitespace_at_line_ends_is_what_the_formatter_corpus_means_by_it():
    before = "a  \r\nb  \nc\n"
    made = synthesize(before, _tidy(before), "id")
    assert made.kind == "trailing_whitespace" and made.exact and follow(made.text, before) == _tidy(before)
    kept = synthesize(before, "a  \r\nb\nc\n", "id")
    assert kept.exact and follow(kept.text, before) == "a  \r\nb\nc\n"


def test_a_seed_chooses_among_several_phrasings():
    for kind, before, after, _ in CASES:
        texts = {describe(before, after, str(seed)) for seed in range(40)}
        assert len(texts) >= (1 if kind == "move" else 2), texts


def test_a_long_edit_is_cut_short_and_says_so():
    lines = [f"line {i}" for i in range(400)]
    rewritten = "\n".join("".join(reversed(line)) if i % 20 == 3 else line for i, line in enumerate(lines)) + "\n"
    made = synthesize("\n".join(lines) + "\n", rewritten, "a")
    assert not made.exact and "more changes further down" in made.text and made.text.count("\n") == 8
    made = synthesize("top\n", "top\n" + "\n".join(lines) + "\n", "a")
    assert not made.exact and "400 lines, beginning with" in made.text and len(made.text) < 200


def test_a_long_reformatting_is_named_as_such():
    before = "\n".join(f"x{i}=f( {i} )" for i in range(200)) + "\n"
    made = synthesize(before, "\n".join(f"x{i} = f({i})" for i in range(200)) + "\n", "a")
    assert (made.kind, made.exact) == ("whitespace", False)


def test_another_process_writes_the_same_text():
    program = (
        "import sys, json; from data_prep.instructions import describe; print(json.dumps(describe(*sys.argv[1:])))"
    )
    for hash_seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        after = DOC.replace("text = 1", "text = 2").replace("import os", "import sys")
        run = subprocess.run([sys.executable, "-c", program, DOC, after, "7"], env=env, capture_output=True, check=True)
        assert json.loads(run.stdout) == describe(DOC, after, "7")


# --- real edits ------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not COMMITS.is_dir(), reason="CAD_DATA_DIR has no commits")
def test_most_real_edits_get_an_instruction_that_determines_them():
    single = Counter()
    every = Counter()
    for path in sorted(COMMITS.glob("*.jsonl")):
        for row in read_rows(path):
            before, after = row["before"], row["after"]
            made = synthesize(before, after, row["commit"])
            hunks = [op for op in LineMatcher(before.split("\n"), after.split("\n")).get_opcodes() if op[0] != "equal"]
            assert not senseless(made.text), made.text
            if made.exact:
                assert follow(made.text, before) == after, made.text
            every[made.exact] += 1
            if len(hunks) == 1:
                single[made.exact] += 1
    assert single[True] / single.total() > 0.98, single
    assert every[True] / every.total() > 0.9, every


# --- rows of a user without instruction ------------------------------------------------------------------------------

ROWS = [
    {"before": "a\nb\n", "after": "a\nc\n"},
    {"before": "a\nb\n", "after": "a\nd\n", "instruction": " \n"},
    {"before": "a\nb\n", "after": "a\ne\n", "instruction": None},
    {"before": "a\nb\n", "after": "a\nf\n", "instruction": "As I say."},
    {"before": "a\nb\n", "after": "a\nc\n"},  # again
    {"before": "same\n", "after": "same\n"},
    {"before": "a\nb\n"},
    {"before": "a\nb\n", "after": "g", "instruction": 3},
    {"before": "top\n", "after": "top\n" + "\n".join(map(str, range(900))) + "\n"},
]


def build(tmp_path: Path, name: str, **choice) -> tuple[dict, list]:
    source = tmp_path / "edits.jsonl"
    write_rows(source, ROWS)
    out = tmp_path / name
    config = OracleConfig(corpora=["jsonl"], jsonl=[str(source)], out=str(out), heldout=0.0, **choice)
    return build_oracles(config)["corpora"]["jsonl"], read_split(out, ["jsonl"], "train")


def test_rows_without_instruction_get_one_and_are_counted(tmp_path):
    entry, rows = build(tmp_path, "made", synthesize_instructions=True)
    assert (entry["instructions_made"], entry["instructions_inexact"]) == (4, 1)
    assert entry["rejected"] == {"duplicate": 1, "no_op": 1, "missing_field": 1, "not_text": 1}
    made = [row for row in rows if "instruction_made" in row.meta]
    assert [row.meta["instruction_made"] for row in made] == [True, True, True, False]
    for row in made[:3]:
        assert follow(row.instruction, row.before) == row.after
    assert [row.instruction for row in rows if row not in made] == ["As I say."]
    again, same_rows = build(tmp_path, "again", synthesize_instructions=True)
    assert (again, same_rows) == (entry, rows)


def test_without_the_setting_they_are_refused_and_nothing_changes(tmp_path):
    entry, rows = build(tmp_path, "plain")
    assert entry["rejected"]["missing_field"] == 5 and "instructions_made" not in entry
    assert all("instruction_made" not in row.meta for row in rows)
    assert "synthesize_instructions" not in content_settings(OracleConfig())
    assert content_settings(OracleConfig(synthesize_instructions=True))["synthesize_instructions"] is True
