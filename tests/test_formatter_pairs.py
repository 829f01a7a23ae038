"""The formatter corpus: the after is what the formatter itself writes, and every file that gives no pair is counted."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from data_prep import formatter_pairs
from data_prep.build import OracleConfig, build_oracles, content_settings
from data_prep.formatter_pairs import FormatterConfig, generate
from data_prep.prepared import read_split
from decoding.commandline import UserError

UGLY = """import  sys
import os

class A:
    @property
    def first( self ):
        return {'a':1,
            'b':2}

    def second(self):
        return 2

def third(x,y) :
    def inner( ):
        pass
    return x+y
"""
NEAT = 'def fine(x):\n    return [x, "a"]\n'


def write(folder: Path, **files: str | bytes) -> str:
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_py", ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(folder)


def ruff(text: str, *arguments: str) -> str:
    command = [sys.executable, "-m", "ruff", *(arguments or ("format",)), "--isolated", "--stdin-filename=x.py", "-"]
    return subprocess.run(command, input=text.encode(), capture_output=True, check=True).stdout.decode()


def reasons(faults: list[dict]) -> dict[str, str]:
    return {fault["file"].rpartition("/")[2]: fault["reason"] for fault in faults}


def test_whole_files_become_what_ruff_writes_and_the_rest_is_counted_by_reason(tmp_path):
    source = write(
        tmp_path / "app",
        ugly_py=UGLY,
        sub__crlf_py="def f( ):\r\n    return  1\r\n",
        bom_py="\ufeffx = [ 'é' ]\ny=1\nz = 2\n",
        neat_py=NEAT,
        copy_py=UGLY,
        broken_py="def f(:\n    pass\n",
        latin_py="s = 'caf\xe9'\nx=1\n".encode("latin-1"),
        null_py="x=1\n\0\n",
        long_py="x=1\n" * 30,
        readme_md="# x\n",
    )
    config = FormatterConfig(source=[source], unit="file", cases=None, min_lines=2, max_lines=20)
    pairs, faults = generate(config, 0)
    assert {pair.before for pair in pairs} == {
        UGLY, "def f( ):\r\n    return  1\r\n", "\ufeffx = [ 'é' ]\ny=1\nz = 2\n"
    }  # fmt: skip
    for pair in pairs:
        assert pair.after == ruff(pair.before) != pair.before
        assert pair.meta["row"] == 1 and pair.meta["formatter"].startswith("ruff ")
    counted = reasons(faults)
    assert [counted.pop(name) for name in ("copy.py", "ugly.py") if name in counted] == ["duplicate"]
    assert counted == {
        "neat.py": "no_op", "broken.py": "not_formatted", "latin.py": "not_utf8", "null.py": "binary",
        "long.py": "length",
    }  # fmt: skip
    assert any("Failed to parse" in fault["detail"] for fault in faults)


def test_functions_are_cut_as_the_file_has_them(tmp_path):
    source = write(
        tmp_path, ugly_py=UGLY, crlf_py=NEAT.replace("[x,", "[ x,").replace("\n", "\r\n"), old_py="print 1\n"
    )
    pairs, faults = generate(FormatterConfig(source=[source], cases=None, min_lines=2), 0)
    found = {pair.meta["function"]: pair for pair in pairs}
    assert found.keys() == {"A.first", "third", "fine"}
    first = found["A.first"]
    assert first.before == "    @property\n    def first( self ):\n        return {'a':1,\n            'b':2}\n"
    assert first.after == '    @property\n    def first(self):\n        return {"a": 1, "b": 2}\n'
    assert first.meta["row"] == 5
    assert found["fine"].after == NEAT.replace("\n", "\r\n")
    assert first.group == found["third"].group != found["fine"].group
    assert Counter(fault["reason"] for fault in faults) == {"no_op": 1, "not_formatted": 1}
    assert next(fault for fault in faults if fault["reason"] == "no_op")["detail"] == "A.second"


def test_no_settings_of_the_project_are_read(tmp_path):
    source = write(tmp_path, ugly_py=UGLY)
    (tmp_path / "ruff.toml").write_text('[format]\nquote-style = "single"\n')
    (pair,), _ = generate(FormatterConfig(source=[source], unit="file", cases=None), 0)
    assert '"a": 1' in pair.after


def test_imports_and_text_clean_ups(tmp_path):
    source = write(tmp_path, ugly_py=UGLY, blanks_py="if x:  \n\ty = 1\t\n\n\n", late_py="a = 1\r\nb\r\n \r\n")

    def afters(command: str) -> dict[str, str]:
        pairs, _ = generate(FormatterConfig(source=[source], command=command, unit="file", cases=None), 0)
        return {pair.meta["file"].rpartition("/")[2]: pair.after for pair in pairs}

    assert afters("ruff-imports") == {"ugly.py": ruff(UGLY, "check", "--select=I", "--fix")}
    assert afters("ruff-imports")["ugly.py"].startswith("import os\nimport sys\n")
    assert afters("trailing-whitespace") == {"blanks.py": "if x:\n\ty = 1\n", "late.py": "a = 1\r\nb\r\n"}
    assert afters("tabs") == {"blanks.py": "if x:  \n    y = 1\t\n\n\n"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a \r\nb\n", "a\r\nb\n"),
        ("a\nb \r\n\n", "a\nb\r\n"),
        ("a\r\nb\n\r\n \r\n", "a\r\nb\n"),
        ("a\r\nb\nc", "a\r\nb\nc\n"),  # without an end of its own: that of the line before
        ("a\nb\r\nc ", "a\nb\r\nc\r\n"),
        ("a \nb", "a\nb\n"),
    ],
)
def test_the_last_newline_is_of_the_kind_of_the_last_line_with_text(tmp_path, before, after):
    source = write(tmp_path, a_py=before)
    config = FormatterConfig(source=[source], command="trailing-whitespace", unit="file", cases=None, min_lines=1)
    [pair], _ = generate(config, 0)
    assert pair.after == after


def test_fewer_documents_than_the_default_name_the_setting_that_takes_them_all(tmp_path):
    source = write(tmp_path / "code", ugly_py=UGLY)
    with pytest.raises(ValueError, match=r"cases=400, but ruff changes only 1 documents .*formatter\.cases=null"):
        generate(FormatterConfig(source=[source], unit="file"), 0)
    assert len(generate(FormatterConfig(source=[source], unit="file", cases=None), 0)[0]) == 1
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"no \.py or \.pyi file in .*empty$"):
        generate(FormatterConfig(source=[str(tmp_path / "empty")]), 0)


def test_the_standard_library_needs_no_source_and_a_seed_gives_the_same_pairs():
    config = FormatterConfig(cases=20, max_lines=15)
    pairs, faults = generate(config, 1)
    assert (pairs, faults) == generate(config, 1)
    assert [pair.id for pair in pairs] == [f"formatter/{i:04d}" for i in range(20)]
    assert pairs != generate(config, 2)[0]
    for pair in pairs:
        assert 3 <= pair.before.count("\n") <= 15
        assert "ruff" in pair.instruction and "function" in pair.instruction
        assert ast.dump(ast.parse("if 1:\n" + pair.before if pair.before[0] == " " else pair.before))
    assert len({pair.instruction for pair in pairs}) > 1
    assert len({pair.before for pair in pairs}) == 20
    assert set(reasons(faults).values()) <= {"no_op", "duplicate", "not_parsed", "not_utf8", "not_formatted"}


def test_a_formatter_that_hangs_is_stopped_and_counted(tmp_path, monkeypatch):
    source = write(tmp_path / "code", ugly_py=UGLY)
    slow = tmp_path / "black"
    slow.write_text('#!/bin/sh\n[ "$1" = --version ] && echo black 0 && exit\nexec sleep 60\n')
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(formatter_pairs.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(formatter_pairs, "_TIMEOUT", 1)
    with pytest.raises(ValueError, match=r"changes no documents .* in 1 files \(1 timeout\)"):
        generate(FormatterConfig(source=[source], command="black", unit="file"), 0)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"cases": 0}, "cases=0 is not allowed"),
        ({"max_lines": 2}, "max_lines=2 .* from min_lines=3 up"),
        ({"command": "gofmt"}, "command=gofmt has no functions to take: set unit=file"),
        ({"command": "ruff-imports"}, "set unit=file"),
        ({"command": "rustfmt", "unit": "file"}, "standard library has no files for command=rustfmt: name a source"),
        ({"source": ["nowhere"]}, "there is no source nowhere"),
        ({"source": [__file__], "command": "gofmt", "unit": "file"}, "is no file for command=gofmt|needs gofmt"),
        ({"source": [__file__]}, r"cases=400, but ruff changes only \d+ documents .*\d no_op"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_name(choice, message):
    with pytest.raises(ValueError, match=message):
        generate(FormatterConfig(**choice), 0)


def test_a_program_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match="command=prettier needs prettier, which is not on PATH"):
        generate(FormatterConfig(source=[__file__], command="prettier", unit="file"), 0)


def test_the_corpus_is_built_like_any_other(tmp_path):
    write(tmp_path / "app", ugly_py=UGLY, more_py=UGLY.replace("third", "fourth").replace("first", "one"), neat_py=NEAT)
    settings = FormatterConfig(source=[str(tmp_path / "app")], cases=4, min_lines=2)
    config = OracleConfig(corpora=["formatter"], formatter=settings, out=str(tmp_path / "out"), heldout=0.5)
    entry = build_oracles(config)["corpora"]["formatter"]
    assert (entry["train"], entry["heldout"]) == (2, 2)
    assert entry["rejected"] == {"no_op": 3}
    train, heldout = (read_split(tmp_path / "out", ["formatter"], split) for split in ("train", "heldout"))
    assert not {row.group for row in train} & {row.group for row in heldout}
    assert "formatter" not in content_settings(OracleConfig())
    settings.source = ["nowhere"]
    with pytest.raises(UserError, match="nowhere"):
        build_oracles(config)
