"""Tests of data_prep/bugs.py and bug_languages.py: each pair is one bug, spliced byte for byte into a real function."""

import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep import bug_languages, pyfix
from data_prep.bug_languages import KINDS, LANGUAGES, Source, functions, parse
from data_prep.bugs import DESCRIPTIONS, BugReport, BugsConfig, generate
from data_prep.build import OracleConfig, build_oracles, content_settings
from data_prep.prepared import read_manifest
from data_prep.pyfix import PyFixConfig, generate_counted
from data_prep.rows import read_rows
from decoding.commandline import UserError
from decoding.grammar import parse as parse_program
from decoding.resolver import resolve

ROOT = Path(__file__).resolve().parents[1]
DATA_DIR = os.environ.get("CAD_DATA_DIR")

# One function of each language with a place for every kind, a name and a string that are not ASCII, and a comment.
FILES = {
    "js": """\
class Été {
  static compte(texte, début, max) {
    let total = début + 1; // é
    const vide = texte || '';
    if (!vide || total >= max) {
      return null;
    }
    for (const mot of vide.slice(total, max)) {
      if (mot.startsWith('é')) {
        total += 2;
        this.note(mot, total);
      }
    }
    return total === max ? true : total;
  }
}
""",
    "java": """\
class Ete {
    /** Compte les mots en « é ». */
    boolean compte(String texte, int début, int max) {
        int total = début + 1; // é
        if (!this.ouvert || total >= max) {
            return false;
        }
        for (String mot : texte.substring(total, max).split("é")) {
            if (mot.startsWith("é")) {
                total += 2;
                note(mot, total);
            }
        }
        return total == max;
    }
}
""",
    "go": """\
package été

func (e *Été) Compte(texte string, début int, max int) (int, bool) {
\ttotal := début + 1 // é
\tif !e.ouvert || total >= max {
\t\treturn 0, false
\t}
\tfor _, mot := range e.mots[total:max] {
\t\tif strings.HasPrefix(mot, "é") {
\t\t\ttotal += 2
\t\t\te.note(mot, total)
\t\t}
\t}
\treturn total, total == max
}
""",
    "cpp": """\
#include <string>
namespace été {
template <class T>
bool Ete<T>::compte(const std::string& texte, int debut, int max) const {
    int total = debut + 1; // é
    if (!ouvert || total >= max) {
        return false;
    }
    for (auto& mot : mots(texte.substr(total, max), "é")) {
        if (mot.find("é") == 0) {
            total += 2;
            note(mot, total);
        }
    }
    return total == max;
}
}
""",
    "rust": """\
impl Été {
    pub fn compte(&self, texte: &str, début: usize, max: usize) -> bool {
        let mut total = début + 1; // é
        if !self.ouvert || total >= max {
            return false;
        }
        for mot in self.mots[total..max].iter() {
            if mot.starts_with("é") {
                total += 2;
                self.note(mot, total);
            }
        }
        println!("{}", total - 1);
        total == max
    }
}
""",
}
SUFFIX = {"js": "js", "java": "java", "go": "go", "cpp": "cpp", "rust": "rs"}


def write(folder: Path, files: dict[str, str | bytes]) -> str:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(folder)


@pytest.fixture
def five(tmp_path) -> str:
    """A folder with the file of each language."""
    return write(tmp_path / "five", {f"a.{SUFFIX[language]}": text for language, text in FILES.items()})


def source_of(language: str, data: bytes) -> Source:
    """The only function of a file."""
    tree = parse(language, data)
    assert tree is not None
    (function,) = functions(language, data, tree)
    return Source(language, data, tree, function)


def assert_sums(report: BugReport) -> None:
    for counts, outcome in ((report.files, "seen"), (report.functions, "seen"), (report.bugs, "tried")):
        assert counts[outcome] == sum(count for reason, count in counts.items() if reason != outcome)
    assert report.bugs["made"] == sum(sum(kinds.values()) for kinds in report.kinds.values())


def assert_one_bug(language: str, data: bytes, edits: list, source: Source) -> None:
    """The file with the edits differs only there, parses, and the reverse edits give the file back."""
    changed = source.apply(edits)
    assert changed != data
    assert parse(language, changed) is not None
    shift, back = 0, []
    for start, end, new in sorted(edits):
        back.append((start + shift, start + shift + len(new), data[start:end]))
        shift += len(new) - (end - start)
    undone = changed
    for start, end, old in reversed(back):
        undone = undone[:start] + old + undone[end:]
    assert undone == data
    assert source.function.start <= min(e[0] for e in edits) and max(e[1] for e in edits) <= source.function.end


# The kinds


def test_the_kinds_are_those_of_pyfix():
    assert list(KINDS) == list(pyfix.KINDS) == list(DESCRIPTIONS)


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("language", LANGUAGES)
def test_every_kind_of_every_language_gives_bugs_that_parse_and_undo_to_the_bytes(language, mark, ends):
    data = (mark + FILES[language].replace("\n", ends)).encode()
    source = source_of(language, data)
    for kind in KINDS:
        places = [edits for edits in KINDS[kind](source) if source.is_function_still(edits, source.apply(edits))]
        assert places, kind
        for edits in places:
            assert_one_bug(language, data, edits, source)


@pytest.mark.parametrize(
    ("language", "kind", "line", "expected"),
    [
        ("js", "operator", "a.x **= b;", {"a.x *= b;"}),
        ("js", "operator", "let x = 'é' + a;", set()),
        ("js", "operator", "let x = a ?? b;", {"let x = a && b;"}),
        ("js", "comparison", "let x = a === b, y = a in b;", {"let x = a !== b, y = a in b;"}),
        ("js", "off_by_one", "let x = 0x10 + 010 + 1.5 + -1;", {"let x = 0x10 + 010 + 1.5 + -2;"}),
        ("js", "off_by_one", "a.substring(b + 1);", {"a.substring(b);", "a.substring(b + 2);", "a.substring(b + 0);"}),
        ("js", "swapped", "Math.max(a, b);", set()),
        ("js", "swapped", "a.replace('é', 'b');", set()),
        ("js", "swapped", "f(a, ...b);", set()),
        ("js", "swapped", "new F(a, b.é);", {"new F(b.é, a);"}),
        ("js", "negated", "if (a || b) g();", {"if (!(a || b)) g();"}),
        ("js", "negated", "if (a === b) g();", set()),
        ("js", "negated", "let x = !a ? 1 : 2;", {"let x = a ? 1 : 2;"}),
        ("js", "constant", "let x = a == null;", set()),
        ("js", "constant", "let x = null;", {"let x = false;"}),
        ("js", "method", "a?.b.pop();", {"a?.b.shift();"}),
        ("js", "method", "min();", {"max();"}),
        ("js", "variable", "b.a = a.b;", {"b.a = b.b;", "a.a = a.b;"}),
        ("js", "variable", "let c = ({ a }) => a;", {"let c = ({ a }) => b;"}),
        ("js", "dropped", "g(); h();", set()),
        ("js", "dropped", "let c = 1;", set()),
        ("java", "constant", 'String x = "";', {"String x = null;"}),
        ("java", "off_by_one", "long x = 1L;", set()),
        ("java", "operator", "a >>>= b;", {"a >>= b;"}),
        ("java", "variable", "int c = a;", {"int c = b;"}),
        ("java", "variable", "String c = s;", set()),
        ("java", "negated", "while (x.ok()) g();", {"while (!x.ok()) g();"}),
        ("go", "operator", "x := a &^ b", {"x := a & b"}),
        ("go", "swapped", "x := append(s, a)", set()),
        ("go", "variable", "x := T{a: b}", {"x := T{a: a}"}),
        ("go", "off_by_one", "x := s[a : len(s)-1]", {
            "x := s[a + 1 : len(s)-1]", "x := s[a - 1 : len(s)-1]", "x := s[a : len(s)]", "x := s[a : len(s)-0]",
            "x := s[a : len(s)-2]",
        }),
        ("cpp", "operator", "std::cout << a << b;", set()),
        ("cpp", "operator", "int x = 1 << a;", {"int x = 1 >> a;"}),
        ("cpp", "operator", "int x = a && b and c;", {"int x = a || b and c;", "int x = a && b or c;"}),
        ("cpp", "off_by_one", "std::array<int, 4> x;", set()),
        ("cpp", "off_by_one", "int x = f(-1);", {"int x = f(-2);"}),
        ("cpp", "method", "auto x = std::min(a, b);", {"auto x = std::max(a, b);"}),
        ("cpp", "variable", "int *x = &a;", {"int *x = &b;"}),
        ("rust", "off_by_one", "let x = s.0;", set()),
        ("rust", "off_by_one", "let x = &s[a..];", {"let x = &s[a + 1..];", "let x = &s[a - 1..];"}),
        ("rust", "operator", "println!(\"{}\", a + b);", set()),
        ("rust", "dropped", "assert!(a < b);", set()),
        ("rust", "dropped", "g(a);", {""}),
        ("rust", "negated", "if let Some(x) = a { g(x); }", set()),
        ("rust", "variable", "let x = match s { a => a, _ => b };", {
            "let x = match s { a => a, _ => a };", "let x = match s { a => b, _ => b };",
            "let x = match s { a => s, _ => b };",
        }),
        ("rust", "constant", "let x = (true, b);", {"let x = (false, b);"}),
    ],
)  # fmt: skip
def test_places_of_a_kind(language, kind, line, expected):
    text = {
        "js": "function f(a, b) {\n  {}\n  done();\n}\n",
        "java": "class A {\n  void f(int a, int b, String s) {\n  {}\n  done();\n  }\n}\n",
        "go": "package p\nfunc f(a int, b int, s []int) {\n  {}\n  done()\n}\n",
        "cpp": "void f(int a, int b) {\n  {}\n  done();\n}\n",
        "rust": "fn f(a: u8, b: u8, s: &[u8]) {\n  {}\n  done();\n}\n",
    }[language].replace("{}", line)
    source = source_of(language, text.encode())
    found = set()
    for edits in KINDS[kind](source):
        before = source.apply(edits).decode()
        if "done" not in before:
            continue  # the statement that only keeps the other one company
        if kind == "dropped":
            assert before == text.replace(f"  {line}\n", "")
            found.add("")
        else:
            found |= {new.strip() for new, old in zip(before.split("\n"), text.split("\n"), strict=True) if new != old}
    assert found == expected


def test_an_operator_that_would_open_a_comment_is_refused(tmp_path):
    text = "int f(int a, int *p) {\n  int b = a**p; /* twice */ ;\n  b++;\n  return b;\n}\n"
    source = source_of("cpp", text.encode())
    bug = [(text.index("**"), text.index("**") + 1, b"/")]
    assert bug in list(KINDS["operator"](source))
    assert parse("cpp", source.apply(bug)) is not None  # it parses, as another text
    assert not source.is_function_still(bug, source.apply(bug))
    pairs, report = generate(BugsConfig([write(tmp_path, {"a.cpp": text})], bugs=100), 0)
    assert report.bugs["does_not_parse"] >= 1 and not any("a/*p" in pair.before for pair in pairs)
    assert_sums(report)


# Pairs


@pytest.mark.parametrize("language", LANGUAGES)
def test_all_bugs_of_a_function_are_distinct_and_one_group(language, tmp_path):
    folder = write(tmp_path, {f"a.{SUFFIX[language]}": FILES[language]})
    pairs, report = generate(BugsConfig([folder], bugs=1000), 0)
    assert len({pair.before for pair in pairs}) == len(pairs) == report.bugs["made"] > 20
    assert len({(pair.after, pair.group, pair.instruction) for pair in pairs}) == 1
    assert set(report.kinds[language]) == set(Counter(pair.meta["kind"] for pair in pairs)) == set(KINDS)
    data = FILES[language].encode()
    after = pairs[0].after.encode()
    assert data.count(after) == 1 and after.endswith(b"\n")
    for pair in pairs:
        assert pair.before != pair.after
        assert parse(language, data.replace(after, pair.before.encode())) is not None
    assert_sums(report)


def test_fields_of_a_pair_and_describe(five):
    pairs, _ = generate(BugsConfig([five]), 0)
    described, _ = generate(BugsConfig([five], describe=True), 0)
    assert sorted(pair.meta["language"] for pair in pairs) == sorted(LANGUAGES)
    for number, (pair, told) in enumerate(zip(pairs, described, strict=True)):
        assert pair.id == f"bugs/{number:04d}" and pair.corpus == "bugs"
        assert pair.meta["function"].lower() == "compte"
        assert pair.instruction == f"Fix bugs in {pair.meta['function']}."
        assert told.instruction == f"Fix bugs in {pair.meta['function']}: {DESCRIPTIONS[pair.meta['kind']]}."
        assert pair.meta["file"] == f"five/a.{SUFFIX[pair.meta['language']]}"
        assert (told.before, told.after, told.group) == (pair.before, pair.after, pair.group)


def test_same_seed_same_bytes_in_another_process_and_fewer_cases_are_the_first_of_more(five):
    code = (
        "import json, sys, dataclasses\nfrom data_prep.bugs import BugsConfig, generate\n"
        "print(json.dumps([dataclasses.asdict(p) for p in generate(BugsConfig([sys.argv[1]], bugs=3), 7)[0]]))"
    )
    line, env = [sys.executable, "-c", code, five], {**os.environ, "PYTHONHASHSEED": "12345"}
    out = subprocess.run(line, cwd=ROOT, env=env, capture_output=True, text=True, check=True).stdout
    pairs, _ = generate(BugsConfig([five], bugs=3), 7)
    assert json.loads(out) == [asdict(pair) for pair in pairs] and len(pairs) == 15
    fewer, report = generate(BugsConfig([five], bugs=3, cases=2), 7)
    assert fewer == pairs[:6] and report.functions["over_cases"] == 3
    assert generate(BugsConfig([five], bugs=3), 8)[0] != pairs


@pytest.mark.skipif(shutil.which("node") is None, reason="no node on this machine")
def test_node_takes_the_broken_functions(tmp_path):
    """One bug of each kind, in its file, and node only checks the syntax."""
    data = FILES["js"].encode()
    source = source_of("js", data)
    for kind in KINDS:
        edits = random.Random(kind).choice(list(KINDS[kind](source)))
        path = tmp_path / f"{kind}.js"
        path.write_bytes(source.apply(edits))
        done = subprocess.run(["node", "--check", str(path)], capture_output=True, text=True)
        assert done.returncode == 0, (kind, done.stderr)


@cache
def problems(language: str) -> tuple[bytes, ...]:
    path = Path(DATA_DIR or "", "humanevalpack", f"{language}.jsonl")
    return tuple((row["prompt"] + row["canonical_solution"]).encode() for row in read_rows(path))


@pytest.mark.parametrize("language", ["js", "java"])
def test_every_bug_in_real_functions_parses_and_undoes_to_the_bytes(language):
    if not DATA_DIR or not Path(DATA_DIR, "humanevalpack", f"{language}.jsonl").exists():
        pytest.skip("set CAD_DATA_DIR to the folder of humanevalpack/")

    @settings(max_examples=60, deadline=None)
    @given(number=st.integers(0, 163), kind=st.sampled_from(list(KINDS)), seed=st.integers(0, 2**32))
    def check(number, kind, seed):
        data = problems(language)[number]
        tree = parse(language, data)
        if tree is None:
            return
        for function in filter(None, functions(language, data, tree)):
            source = Source(language, data, tree, function)
            places = list(KINDS[kind](source))
            for edits in random.Random(seed).sample(places, min(3, len(places))):
                if source.is_function_still(edits, source.apply(edits)):
                    assert_one_bug(language, data, edits, source)

    check()


@pytest.mark.parametrize("language", ["js", "java"])
def test_real_files_give_pairs_of_every_kind(language, tmp_path):
    if not DATA_DIR or not Path(DATA_DIR, "humanevalpack", f"{language}.jsonl").exists():
        pytest.skip("set CAD_DATA_DIR to the folder of humanevalpack/")
    folder = write(tmp_path, {f"{i}.{language}": text for i, text in enumerate(problems(language)[:60])})
    pairs, report = generate(BugsConfig([folder]), 0)
    assert len(pairs) > 40 and report.functions["used"] == len(pairs)
    assert all(report.kinds[language][kind] >= 2 for kind in KINDS)
    assert_sums(report)


# Files and functions


def test_files_that_cannot_be_used_are_counted_by_reason(tmp_path):
    good = FILES["js"]
    folder = write(
        tmp_path,
        {
            "good.js": good,
            "broken.js": good + "function (",
            "latin.js": good.encode("latin-1"),
            "utf16.js": good.encode("utf-16"),
            "long.js": good + "// " + "x" * 3000,
            "large.js": good + "// x\n" * 50_000,
            "made.js": "// Code generated by a tool. DO NOT EDIT.\n" + good,
            "lib.min.js": good,
            "node_modules/x/index.js": good,
            ".hidden/a.js": good,
            "notes.txt": good,
        },
    )
    (tmp_path / "link.js").symlink_to(tmp_path / "good.js")
    pairs, report = generate(BugsConfig([folder]), 0)
    assert len(pairs) == 1
    assert report.files == {
        "seen": 9, "read": 1, "syntax_error": 1, "not_utf8": 1, "utf16": 1, "long_line": 1, "too_large": 1,
        "generated": 2, "vendored": 1,
    }  # fmt: skip
    assert_sums(report)


def test_functions_that_cannot_be_used_are_counted_by_reason(tmp_path):
    function = "function {}(a, b) {{\n  if (a < b) {{\n    return a;\n  }}\n  return b;\n}}\n"
    wrapped = "(function () {\n" + function.format("inner") + "})();\n"
    folder = write(
        tmp_path,
        {
            "a.js": function.format("twice") + "const short = () => 1;\n",
            "b.js": function.format("twice") + "function long() {\n" + "  f();\n" * 40 + "}\n",
            "c.js": "x = 1; " + function.format("shared"),
            "d.js": "function nothing() {\n\n\n}\n",
            "e.js": wrapped,
            "f.js": "function outer() {\n" + function.format("kept") + "}\n",
            "g.js": "export const arrow = (a) => {\n  b(a, 1);\n  return a;\n};\nx.y = " + function.format(""),
        },
    )
    pairs, report = generate(BugsConfig([folder]), 0)
    assert sorted(pair.meta["function"] for pair in pairs) == ["arrow", "inner", "outer", "twice", "y"]
    assert report.functions == {
        "seen": 10, "used": 5, "duplicate": 1, "too_short": 1, "too_long": 1, "shares_lines": 1, "no_place": 1,
    }  # fmt: skip
    assert_sums(report)


@pytest.mark.parametrize(
    ("language", "text", "name"),
    [
        ("js", "x = {\n  été: async function* () {\n    await f(1);\n    yield 2;\n  },\n};\n", "été"),
        ("js", "class A {\n  #p = (a) => {\n    f(1);\n    g(2);\n  };\n}\n", "#p"),
        ("java", "class A {\n  @Override\n  public A(int a) {\n    this.a = a + 1;\n    f();\n  }\n}\n", "A"),
        ("go", "package p\n\nfunc Map[T any](a []T) int {\n\tb := 1\n\tb++\n\treturn b\n}", "Map"),
        ("cpp", "int &A::get(int i) {\n  f(i, 1);\n  return a[i];\n}\n", "get"),
        ("cpp", "bool A::operator==(const A &o) const {\n  f(o, 1);\n  return a == o.a;\n}\n", "operator=="),
        ("rust", "trait T {\n    async fn f(&self) -> u8 {\n        g(1, 2);\n        3\n    }\n}\n", "f"),
    ],
)
def test_names_and_whole_lines_of_functions(language, text, name, tmp_path):
    pairs, _ = generate(BugsConfig([write(tmp_path, {f"a.{SUFFIX[language]}": text})], min_lines=1), 0)
    assert pairs[0].meta["function"] == name
    head, after, tail = text.partition(pairs[0].after)
    assert after and (not head or head.endswith("\n")) and (not tail or after.endswith("\n"))
    assert name.encode() in after.encode() and after.count("\n") >= 3


def test_copies_under_another_name_or_layout_are_one_group(tmp_path):
    text = "function one(a, b) {\n  if (a < b) {\n    return a;\n  }\n  return b;\n}\n"
    copy = text.replace("one", "two").replace("  return b;", "    return b; // why")
    other = text.replace("one", "three").replace("<", ">")
    pairs, _ = generate(BugsConfig([write(tmp_path, {"a.js": text, "b.js": copy, "c.js": other})]), 0)
    group = {pair.meta["function"]: pair.group for pair in pairs}
    assert group["one"] == group["two"] != group["three"]


def test_an_expression_nested_too_deep_is_counted(tmp_path):
    deep = "function f(a) {\n  g(a);\n  return " + "(" * 1500 + "a" + ")" * 1500 + ";\n}\n"
    folder = write(tmp_path, {"a.js": deep.replace("((((((((((", "((((((((((\n"), "b.js": FILES["js"]})
    pairs, report = generate(BugsConfig([folder], max_lines=1000), 0)
    assert len(pairs) == 1 and report.functions["too_deep"] == 1
    assert_sums(report)


# Errors


@pytest.mark.parametrize(
    ("files", "settings", "message"),
    [
        ({}, {}, "bugs: no file of JavaScript, Java, Go, C++, Rust in"),
        ({"a.js": "x"}, {"languages": ["go"]}, "bugs: no file of Go in"),
        ({"a.js": "x = 1;\n"}, {}, "bugs: no function to use in .*: 1 files \\(1 read\\)$"),
        ({"a.js": "function ("}, {}, "bugs: no function to use in .*: 1 files \\(1 syntax_error\\)$"),
        ({"a.js": "function f() {}"}, {}, "1 functions \\(1 too_short\\)$"),
        ({}, {"languages": ["py"]}, "languages: unknown py; choose from js, java, go, cpp, rust; Python has the"),
        ({}, {"cases": 0}, "cases=0 is not allowed: a whole number from 1 up"),
        (
            {"a.js": "function f(a) {\n  let b = a + 1;\n  let c = b * 2;\n  return b + c;\n}\n"},
            {"cases": 2},
            "bugs: cases=2, but there are only 1 functions to use in .*: 1 files .*; lower cases, .* bugs.cases=null",
        ),
        ({}, {"max_lines": 3}, "max_lines=3 is not allowed: a whole number from 4 up"),
    ],
)
def test_what_cannot_be_done_is_said(files, settings, message, tmp_path):
    with pytest.raises(ValueError, match=message.replace("C++", "C\\+\\+")):
        generate(BugsConfig([write(tmp_path, files) if files else str(tmp_path)], **settings), 0)


def test_a_source_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match="source: there is no folder or file .*nowhere"):
        generate(BugsConfig([str(tmp_path / "nowhere")]), 0)


def test_a_grammar_that_is_not_installed_is_named_with_what_to_do(five, monkeypatch):
    monkeypatch.setitem(sys.modules, "tree_sitter_go", None)
    bug_languages._parser.cache_clear()
    with pytest.raises(UserError, match=r"Go needs tree_sitter_go: pip install 'cad-train\[bugs\]'"):
        generate(BugsConfig([five], languages=["go"]), 0)
    assert len(generate(BugsConfig([five], languages=["js"]), 0)[0]) == 1


def test_importing_loads_neither_torch_nor_tree_sitter():
    code = "import sys, data_prep.bugs\nprint({'torch', 'tree_sitter', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


# The command


def command(*arguments: str) -> subprocess.CompletedProcess:
    line = [sys.executable, "data_prep/build_oracles.py", *arguments]
    return subprocess.run(line, cwd=ROOT, capture_output=True, encoding="utf-8")


def test_the_command_builds_reports_and_keeps_groups_together(five, tmp_path):
    out = tmp_path / "out"
    done = command("corpora=[bugs]", f"bugs.source=[{five}]", "bugs.bugs=4", "heldout=0.4", f"out={out}")
    assert done.returncode == 0, done.stderr
    entry = read_manifest(out)["corpora"]["bugs"]
    assert entry["found"]["files"] == {"seen": 5, "read": 5} and entry["found"]["functions"] == {"seen": 5, "used": 5}
    assert {language: sum(kinds.values()) for language, kinds in entry["found"]["kinds"].items()} == dict.fromkeys(
        LANGUAGES, 4
    )
    assert "bugs: functions: 5 seen, 5 used" in done.stdout and "| rust " in done.stdout
    rows = {split: list(read_rows(out / "bugs" / f"{split}.jsonl")) for split in ("train", "heldout")}
    assert (len(rows["train"]), len(rows["heldout"])) == (12, 8)
    assert not {row["group"] for row in rows["train"]} & {row["group"] for row in rows["heldout"]}


def test_the_command_without_a_source_says_what_to_add(tmp_path):
    done = command("corpora=[bugs]", f"out={tmp_path / 'out'}")
    assert done.returncode == 2
    assert done.stderr == "error: corpora has bugs, but no source is named: add bugs.source=[FOLDER,...]\n"
    done = command("corpora=[bugs]", f"bugs.source=[{tmp_path}]", f"out={tmp_path / 'out'}")
    assert done.returncode == 2 and done.stderr.startswith("error: bugs: no file of JavaScript")
    assert done.stderr.count("\n") == 1 and not (tmp_path / "out").exists()


def test_oracles_of_crlf_functions_give_the_bytes_back(tmp_path):
    files = {f"a.{SUFFIX[name]}": text.replace("\n", "\r\n") for name, text in FILES.items()}
    source = BugsConfig([write(tmp_path / "in", files)])
    build_oracles(OracleConfig(corpora=["bugs"], out=str(tmp_path / "out"), heldout=0.0, bugs=source))
    rows = list(read_rows(tmp_path / "out/bugs/train.jsonl"))
    assert len(rows) == 5
    for row in rows:
        assert row["after"].count("\r\n") == row["after"].count("\n") > 5
        assert resolve(parse_program(row["program"]), row["before"]) == row["after"]


def test_folders_prepared_before_stay_valid():
    default = content_settings(OracleConfig())
    assert "bugs" not in default and "source" not in default["pyfix"]
    config = OracleConfig(corpora=["bugs"], bugs=BugsConfig(["x"]), pyfix=PyFixConfig(source="y"))
    assert content_settings(config)["bugs"]["source"] == ["x"] and content_settings(config)["pyfix"]["source"] == "y"


# pyfix on any package or folder

PYTHON = "def {0}(a, b):\n    c = a + b\n    if c:\n        c = b - {1}\n    return c\n"


@pytest.fixture
def package(tmp_path, monkeypatch) -> Path:
    """A package on the path of this Python that must not be imported."""
    root = tmp_path / "site" / "cad_test_package"
    raising = "raise RuntimeError('imported')\n"
    write(
        root,
        {
            "__init__.py": raising + PYTHON.format("top", 1),
            "inner/__init__.py": raising,
            "inner/one.py": raising + PYTHON.format("one", 2),
            "two.py": PYTHON.format("two", 3) + PYTHON.format("short", 4).replace("    if c:\n        c = b - 4\n", ""),
            "broken.py": "def (",
            "latin.py": "# é\n".encode("latin-1"),
            "made.py": "# This file is generated by a tool\n",
            "tests/t.py": PYTHON.format("t", 5),
            ".git/hooks/h.py": PYTHON.format("h", 6),
        },
    )
    monkeypatch.syspath_prepend(str(root.parent))
    return root


def test_pyfix_reads_a_package_a_folder_a_module_or_a_file(package):
    def modules(source, cases):
        pairs, report = generate_counted(PyFixConfig(source=source, cases=cases), 0)
        assert_sums(report)
        return sorted(pair.meta["module"] for pair in pairs)

    found = ["cad_test_package", "cad_test_package.inner.one", "cad_test_package.two"]
    assert modules("cad_test_package", 3) == modules(str(package), 3) == found
    assert modules("cad_test_package.inner", 1) == ["inner.one"]
    assert modules("cad_test_package.two", 1) == modules(str(package / "two.py"), 1) == ["two"]
    assert modules("json", 2) and "cad_test_package" not in sys.modules


def test_pyfix_counts_what_it_leaves_out(package):
    pairs, report = generate_counted(PyFixConfig(source=str(package), cases=2), 0)
    assert report.files == {"seen": 7, "read": 4, "syntax_error": 1, "not_utf8": 1, "generated": 1}
    assert report.functions == {"seen": 4, "too_short": 1, "used": 2, "over_cases": 1}
    assert sum(report.kinds["python"].values()) == len(pairs) == report.bugs["made"] == 2


def test_pyfix_says_what_is_wrong_with_a_source(package):
    with pytest.raises(ValueError, match="source=no_such_package: there is no such folder or file, and this Python"):
        generate_counted(PyFixConfig(source="no_such_package"), 0)
    with pytest.raises(ValueError, match="source=cad_test_package.nowhere: there is no such"):
        generate_counted(PyFixConfig(source="cad_test_package.nowhere"), 0)
    with pytest.raises(ValueError, match="only 3 usable functions .* in cad_test_package: lower cases"):
        generate_counted(PyFixConfig(source="cad_test_package"), 0)
