"""Tests of data_prep/pyfix.py: each pair is one small bug in a real function, and the corpus is reproducible."""

import ast
import difflib
import io
import json
import os
import random
import re
import subprocess
import sys
import sysconfig
import tokenize
from collections import Counter
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from data_prep import pyfix
from data_prep.bugs import BugReport
from data_prep.pyfix import KINDS, PyFixConfig, generate

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def pairs():
    return generate(PyFixConfig(cases=300), seed=0)


@cache
def candidates():
    """The real functions, found once for the tests that only need some."""
    return pyfix._candidates(PyFixConfig(), BugReport())


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A function that makes these files the standard library."""
    real = sysconfig.get_paths()

    def write(files):
        for name, source in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(source if isinstance(source, bytes) else source.encode())
        monkeypatch.setattr(sysconfig, "get_paths", lambda: {**real, "stdlib": str(tmp_path)})

    return write


def function(text):
    (node,) = ast.parse(text).body
    assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    return node


def changes(before, after):
    matcher = difflib.SequenceMatcher(None, before.split("\n"), after.split("\n"), autojunk=False)
    return [code for code in matcher.get_opcodes() if code[0] != "equal"]


def code_tokens(text):
    """The tokens without comments, strings and layout."""
    left_out = (tokenize.COMMENT, tokenize.STRING, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    return [t.string for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type not in left_out]


def assert_one_bug(before, after):
    assert before != after
    assert ast.dump(function(before)) != ast.dump(function(after))
    assert function(before).name == function(after).name
    assert code_tokens(before) != code_tokens(after)
    assert len(changes(before, after)) == 1
    for text in (before, after):
        assert text.endswith("\n")
        assert text.split("\n")[-2].strip()


def broken(text, kind):
    """Every document that this kind can make of ``text``."""
    source = pyfix._Source(text, function(text))
    return [source.apply(edits) for edits in KINDS[kind][0](source)]


# The real corpus


def test_each_pair_is_one_bug_in_one_run_of_lines(pairs):
    assert len(pairs) == 300
    for pair in pairs:
        assert_one_bug(pair.before, pair.after)


def test_after_is_the_function_as_its_file_has_it(pairs):
    root = Path(sysconfig.get_paths()["stdlib"])
    for pair in pairs[:100]:
        path = root.joinpath(*pair.meta["module"].split("."))
        source = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")
        lines, fixed, found = source.split("\n"), function(pair.after), []
        for node in ast.walk(ast.parse(source)):
            if type(node) is type(fixed) and node.name == fixed.name:
                first = min([node.lineno] + [decorator.lineno for decorator in node.decorator_list])
                text = "".join(line[node.col_offset :] + "\n" for line in lines[first - 1 : node.end_lineno])
                if text == pair.after:
                    found.append(ast.dump(node))
        assert ast.dump(fixed) in found


def test_no_two_pairs_share_a_text_and_groups_are_by_function(pairs):
    assert len({pair.before for pair in pairs} | {pair.after for pair in pairs}) == 2 * len(pairs)
    assert len({pair.id for pair in pairs}) == len(pairs)
    assert len({pair.group for pair in pairs}) > 0.95 * len(pairs)


def test_all_kinds_occur_and_none_dominates(pairs):
    uses = Counter(pair.meta["kind"] for pair in pairs)
    assert set(uses) == set(KINDS)
    assert max(uses.values()) <= 0.4 * len(pairs)
    assert min(uses.values()) >= 0.05 * len(pairs)


def test_fields_of_a_pair(pairs):
    assert [pair.id for pair in pairs[:2]] == ["pyfix/0000", "pyfix/0001"]
    for pair in pairs:
        name = pair.meta["function"].rpartition(".")[2]
        assert pair.corpus == "pyfix"
        assert pair.instruction == f"Fix bugs in {name}."
        assert function(pair.after).name == name
        assert set(pair.meta) == {"kind", "module", "function", "python"}
        assert json.loads(json.dumps(asdict(pair))) == asdict(pair)
        assert not re.search(r"\b(test|tests|idlelib|lib2to3|turtledemo)\b", pair.meta["module"])


def test_line_limits_hold():
    for pair in generate(PyFixConfig(cases=60, min_lines=7, max_lines=9, max_docstring_lines=1), seed=3):
        node = function(pair.after)
        assert 7 <= node.end_lineno - node.body[0].lineno + 1 <= 9
        assert "\n" not in (ast.get_docstring(node, clean=False) or "")


def test_same_seed_same_bytes_in_another_process_and_fewer_cases_are_the_first_of_more(pairs):
    script = (
        "import json, dataclasses\n"
        "from data_prep.pyfix import PyFixConfig, generate\n"
        "print(json.dumps([dataclasses.asdict(p) for p in generate(PyFixConfig(cases=80), 0)]))"
    )
    out = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert json.loads(out) == [asdict(pair) for pair in pairs[:80]]


def test_another_seed_gives_other_functions(monkeypatch):
    known = candidates()
    monkeypatch.setattr(pyfix, "_candidates", lambda config, report: list(known))
    first, second = (generate(PyFixConfig(cases=50), seed) for seed in (1, 2))
    assert len({pair.after for pair in first} & {pair.after for pair in second}) < 25


def test_describe_names_the_kind_and_changes_nothing_else(monkeypatch, pairs):
    known = candidates()
    monkeypatch.setattr(pyfix, "_candidates", lambda config, report: list(known))
    described = generate(PyFixConfig(cases=60, describe=True), seed=0)
    for pair, plain in zip(described, pairs, strict=False):
        assert (pair.before, pair.after, pair.group, pair.meta) == (plain.before, plain.after, plain.group, plain.meta)
        assert pair.instruction == plain.instruction.removesuffix(".") + f": {KINDS[pair.meta['kind']][1]}."


@settings(max_examples=150, deadline=None)
@given(number=st.integers(0, 10**6), kind=st.sampled_from(sorted(KINDS)), seed=st.integers(0, 2**32))
def test_every_kind_on_any_function_gives_one_bug_or_nothing(number, kind, seed):
    text = candidates()[number % len(candidates())].text
    source = pyfix._Source(text, function(text))
    before = pyfix._broken(source, kind, ast.dump(ast.parse(text)), {text}, random.Random(seed), Counter())
    if before is not None:
        assert_one_bug(before, text)
        assert abs(len(before.split("\n")) - len(text.split("\n"))) == (kind == "dropped")


# The bug kinds, on small functions

BODY = "def f(self, a, b, c):\n    {}\n    return a\n"


@pytest.mark.parametrize(
    ("kind", "line", "expected"),
    [
        ("operator", "x = (a) + (b)", {"x = (a) - (b)"}),
        ("operator", "x = a // b", {"x = a / b", "x = a * b"}),
        ("operator", "x -= a", {"x += a"}),
        ("operator", "x = a and b or c", {"x = a or b or c", "x = a and b and c"}),
        ("operator", "x = 'é' + a", set()),
        ("operator", "x = '%s' % a", set()),
        ("operator", "x = ['é', a*b]", {"x = ['é', a/b]", "x = ['é', a+b]"}),
        ("operator", "x = f'{a + b}'", set()),
        ("comparison", "x = a  not  in b", {"x = a  in b"}),
        ("comparison", "x = a is b", {"x = a is not b"}),
        ("comparison", "x = 1 < a <= b", {"x = 1 <= a <= b", "x = 1 > a <= b", "x = 1 < a < b", "x = 1 < a >= b"}),
        ("off_by_one", "x = a[1]", {"x = a[0]", "x = a[2]"}),
        ("off_by_one", "x = a[-1]", {"x = a[-2]"}),
        ("off_by_one", "x = 0", {"x = 1"}),
        ("off_by_one", "x = 0x10, True, 1.0", set()),
        ("off_by_one", "x = a[b:]", {"x = a[b+1:]", "x = a[b-1:]"}),
        ("off_by_one", "x = range(b)", {"x = range(b + 1)", "x = range(b - 1)"}),
        ("variable", "pass", {"return b", "return c"}),
        ("variable", "x = a.y", {"x = b.y", "x = c.y", "return b", "return c", "return x"}),
        ("variable", "x = lambda b: b", {"return b", "return c", "return x"}),
        ("variable", "x = a", {"x = b", "x = c", "return b", "return c"}),
        ("dropped", "x = a", {"return a", "x = a"}),
        ("dropped", "x = a; y = b", {"x = a; y = b"}),
        ("dropped", "import a", {"import a"}),
        ("swapped", "x = g(a, é.b, *c)", {"x = g(é.b, a, *c)"}),
        ("swapped", "x = max(a, b)", set()),
        ("swapped", "x = a.replace('-', '_')", set()),
        ("swapped", "x = g(a['x'], a['y'])", set()),
        ("swapped", "x = g(f'{a}', 'b')", set()),
        ("negated", "x = b if not (a) else c", {"x = b if (a) else c"}),
        ("negated", "x = b if a else c", {"x = b if not a else c"}),
        ("negated", "x = b if a or c else c", {"x = b if not (a or c) else c"}),
        ("negated", "x = b if a < c else c", set()),
        ("constant", "x = True", {"x = False"}),
        ("constant", "x = a or ''", {"x = a or None"}),
        ("constant", "x = ''.join(a)", set()),
        ("constant", "x: None = 'é', False", {"x: None = 'é', True"}),
        ("method", "x = a.é.startswith(b)", {"x = a.é.endswith(b)"}),
        ("method", "x = min(a, b)", {"x = max(a, b)"}),
    ],
)  # fmt: skip
def test_places_of_a_kind(kind, line, expected):
    text = BODY.format(line)
    found = set()
    for before in broken(text, kind):
        old, new = text.split("\n"), before.split("\n")
        if kind == "dropped":  # named by the lines that are left of the body
            found.add(" ".join(own.strip() for own in new[1:-1]))
        else:
            found.update(own.strip() for own, was in zip(new, old, strict=True) if own != was)
    assert found == expected


@pytest.mark.parametrize(
    "text",
    [
        "def f(a):\n    if a:\n        return 1\n    import os\n    global x\n    pass\n",  # alone in its block
        "def f(a):\n    'docstring'\n    return a\n",
        "def f(a):\n    if a: b = 1\n    else: b = 2\n    g(\n        b)\n",  # none fills one line of its own
    ],
)
def test_a_statement_that_must_stay_is_not_dropped(text):
    assert broken(text, "dropped") == []


def test_a_return_that_changes_nothing_is_not_dropped():
    assert broken("def f(a):\n    if a:\n        pass\n    return None\n", "dropped") == []


def test_a_variable_is_only_replaced_by_one_bound_on_an_earlier_line():
    text = "def f(a):\n    global g\n    b = h(a)\n    g = 1\n    later = [a for a in b]\n    return b\n"
    found = {before.split("\n")[i].strip() for before in broken(text, "variable") for i in (2, 5)} - {
        "b = h(a)",
        "return b",
    }
    assert found == {"return a", "return later"}


def test_an_operator_in_a_comment_between_the_operands_is_not_taken():
    text = "def f(a, b):\n    x = (a  # + or -\n         + b)\n    return x\n"
    assert broken(text, "operator") == ["def f(a, b):\n    x = (a  # + or -\n         - b)\n    return x\n"]


@given(word=st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="'\\"), max_size=8))
def test_columns_are_counted_in_characters(word):
    text = f"def f(a, b):\n    return '{word}', a == b, '{word}'\n"
    assert broken(text, "comparison") == [text.replace("==", "!=")]


# Finding functions

FIVE = "{0}def {1}(a, b):\n{0}    c = a + b\n{0}    if c:\n{0}        c = b - {2}\n{0}    return c\n"


def test_which_functions_are_taken(library):
    library(
        {
            "good.py": FIVE.format("", "top", 1) + "class A:\n    class B:\n" + FIVE.format(" " * 8, "deep", 2),
            "guarded.py": "try:\n    pass\nexcept E:\n    @deco\n    # why\n" + FIVE.format("    ", "f", 3),
            "pack/__init__.py": "def outer():\n" + FIVE.format("    ", "inner", 4) + "    x = 1\n    return inner\n",
            "pack/windows.py": FIVE.format("", "crlf", 5).replace("\n", "\r\n"),
            "pack/copy.py": "class C:\n" + FIVE.format("    ", "top", 1),
            "pack/bom.py": b"\xef\xbb\xbf" + FIVE.format("", "bom", 6).encode(),
            "feed.py": "x = 1\n\x0c\n" + FIVE.format("", "feed", 7).replace("return c", "return '\u2028\x0c', c"),
            "test/t.py": FIVE.format("", "t", 8),
            "site-packages/s.py": FIVE.format("", "s", 9),
            "config-3.11/c.py": FIVE.format("", "c", 10),
            "latin.py": b"# \xe9\n" + FIVE.format("", "latin", 11).encode(),
            "broken.py": "def (:\n" + FIVE.format("", "broken", 12),
            "made.py": "# This file is generated by a tool\n" + FIVE.format("", "made", 13),
            "comment.py": "class A:\n"
            + FIVE.format("    ", "left", 14).replace("        return", "# here\n        return"),
            "notes.txt": FIVE.format("", "notes", 15),
        }
    )
    found = {(c.module, c.qualname): c.text for c in pyfix._candidates(PyFixConfig(), BugReport())}
    assert sorted(found) == [
        ("feed", "feed"),
        ("good", "A.B.deep"),
        ("good", "top"),
        ("guarded", "f"),
        ("pack", "outer"),
        ("pack.bom", "bom"),
        ("pack.windows", "crlf"),
    ]
    assert found["good", "A.B.deep"] == FIVE.format("", "deep", 2)
    assert found["guarded", "f"] == "@deco\n# why\n" + FIVE.format("", "f", 3)
    assert found["pack.windows", "crlf"] == FIVE.format("", "crlf", 5)
    assert "\u2028\x0c" in found["feed", "feed"]


def test_a_function_whose_strings_dedenting_would_alter_is_left_out(library):
    def method(statement):
        return "class A:\n" + FIVE.format("    ", "f", 1) + f"        {statement}\n"

    library(
        {
            "altered.py": method("x = '''one\n        two'''"),
            "joined.py": method("x = f'''{a}\n        two'''"),
            "backslash.py": method("x = 'one\\\n        two'"),
            "docstring.py": method("pass").replace("c = a", "'''One.\n\n        Two.\n        '''\n        c = a"),
            "kept.py": method("x = ('one'\n             'two')"),
            "column_zero.py": FIVE.format("", "g", 2) + "    x = '''one\n    two'''\n",
        }
    )
    found = pyfix._candidates(PyFixConfig(max_docstring_lines=9), BugReport())
    assert [c.module for c in found] == ["column_zero", "kept"]


def test_docstrings_within_the_limit_are_part_of_the_document(library):
    documented = FIVE.format("", "f", 1).replace("    c = a", '    """One.\n\n    Two.\n    """\n    c = a')
    library({"m.py": documented})
    assert pyfix._candidates(PyFixConfig(max_docstring_lines=3), BugReport()) == []
    assert [c.text for c in pyfix._candidates(PyFixConfig(max_docstring_lines=4), BugReport())] == [documented]


def test_copies_under_another_name_or_docstring_are_one_group(library):
    library(
        {
            "one.py": FIVE.format("", "f", 1),
            "two.py": FIVE.format("", "g", 1)
            .replace("    c = a", "    'Add.'\n    c = a")
            .replace("b - 1", "b - 1  # why"),
            "three.py": FIVE.format("", "h", 2),
        }
    )
    group = {pair.meta["module"]: pair.group for pair in generate(PyFixConfig(cases=3), 0)}
    assert group["one"] == group["two"] != group["three"]


# Errors


def test_null_takes_every_function_and_the_error_says_so(library):
    library({"m.py": FIVE.format("", "f", 1) + FIVE.format("", "g", 2)})
    assert generate(PyFixConfig(cases=None), 0) == generate(PyFixConfig(cases=2), 0)
    with pytest.raises(ValueError, match=r"cases=400, but there are only 2 usable functions .*pyfix\.cases=null"):
        generate(PyFixConfig(), 0)


@pytest.mark.parametrize("cases", [400, None])
def test_nothing_to_use_is_said_to_be_nothing(tmp_path, cases):
    with pytest.raises(ValueError, match=f"no .py file in {tmp_path}$"):
        generate(PyFixConfig(cases=cases, source=str(tmp_path)), 0)
    (tmp_path / "m.py").write_text("def f():\n    return 1\n")
    with pytest.raises(ValueError, match=r"there is no usable function with min_lines=4, .*: widen these limits"):
        generate(PyFixConfig(cases=cases, source=str(tmp_path)), 0)


def test_more_cases_than_functions_says_how_many_there_are(library):
    library({"m.py": FIVE.format("", "f", 1) + FIVE.format("", "g", 2)})
    assert len(generate(PyFixConfig(cases=2), 0)) == 2
    with pytest.raises(ValueError, match=r"cases=3, but there are only 2 usable functions .* lower cases, .*or widen"):
        generate(PyFixConfig(cases=3), 0)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (PyFixConfig(cases=0), "cases=0 is not allowed: a whole number from 1 up"),
        (PyFixConfig(cases=2.5), "cases=2.5 is not allowed"),
        (PyFixConfig(cases=True), "cases=True is not allowed"),
        (PyFixConfig(min_lines=0), "min_lines=0 is not allowed: a whole number from 1 up"),
        (PyFixConfig(min_lines=9, max_lines=8), "max_lines=8 is not allowed: a whole number from min_lines=9 up"),
        (PyFixConfig(max_docstring_lines=-1), "max_docstring_lines=-1 is not allowed: a whole number from 0 up"),
        (PyFixConfig(describe="yes"), "describe='yes' is not allowed: true or false"),
    ],
)
def test_a_bad_field_is_named_with_what_is_allowed(config, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        generate(config, 0)


def test_the_config_is_a_structured_config(library):
    library({"m.py": FIVE.format("", "f", 1)})
    config = OmegaConf.merge(OmegaConf.structured(PyFixConfig), OmegaConf.from_dotlist(["cases=1", "describe=true"]))
    assert set(config) == {field.name for field in fields(PyFixConfig)}
    assert generate(config, 0) == generate(PyFixConfig(cases=1, describe=True), 0)
