"""Workloads: real edits by name, the same ones for the same seed, and a mistake of the person in one line."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from decoding.commandline import UserError
from decoding.grammar import split_lines
from eval.workloads import WORKLOADS, load_workload

ROOT = Path(__file__).resolve().parents[1]
DATA_DIR = os.environ.get("CAD_DATA_DIR")
needs_data = pytest.mark.skipif(not DATA_DIR, reason="set CAD_DATA_DIR to the folder of humanevalpack/ and commits/")


def present(name: str) -> bool:
    """Whether the data folder has what the workload needs."""
    language = {"py": "python", "js": "js"}.get(name.removeprefix("hevalfix-")[:2])
    files = f"humanevalpack/{language}.jsonl" if language else "commits/*.jsonl"
    return bool(DATA_DIR) and any(Path(DATA_DIR).glob(files))


PRESENT = [name for name in WORKLOADS if name != "pyfix" and present(name)]


def problem(number: int, name: str | None = None, above: str = "") -> dict:
    """Return one row of HumanEvalPack, with the fields that the toolkit reads."""
    name = name or f"f{number}"
    return {
        "task_id": f"Python/{number}",
        "entry_point": name,
        "prompt": f'\n{above}def {name}(x):\n    """Add {number}."""\n',
        "declaration": f"\n{above}def {name}(x):\n",
        "buggy_solution": f"    return x - {number}\n",
        "canonical_solution": f"    return x + {number}\n",
        "test": f"\nassert {name}(1)\n",
        "bug_type": "operator misuse",
    }


def folder_of(tmp_path: Path, python: list[dict] | None = None, commits: list[dict] | None = None) -> Path:
    """Write a data folder with these rows."""
    for name, rows in (("humanevalpack/python", python), ("commits/some", commits)):
        if rows is not None:
            path = tmp_path / f"{name}.jsonl"
            path.parent.mkdir(exist_ok=True)
            path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return tmp_path


@pytest.fixture(autouse=True)
def no_data_folder(monkeypatch):
    """What a test reads is what it names."""
    monkeypatch.delenv("CAD_DATA_DIR", raising=False)


@pytest.fixture
def small_library(tmp_path, monkeypatch):
    """Make thirty functions the standard library, which takes seconds to read."""
    functions = [
        f"def f{n}(values):\n    total = {n}\n    for value in values:\n        total += value\n" for n in range(30)
    ]
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "some.py").write_text("\n\n".join(f"{text}    return total\n" for text in functions))
    paths = {**sysconfig.get_paths(), "stdlib": str(tmp_path / "library")}
    monkeypatch.setattr(sysconfig, "get_paths", lambda: paths)


def changed(edit) -> list[tuple[str, str]]:
    return [pair for pair in zip(split_lines(edit.before), split_lines(edit.after), strict=True) if pair[0] != pair[1]]


# --- files of functions ----------------------------------------------------------------------------------------------


def test_a_file_has_so_many_functions_and_one_bug_in_the_one_that_the_instruction_names(tmp_path):
    edits = load_workload("py-4", folder_of(tmp_path, [problem(n) for n in range(10)]))
    assert sorted(edit.id for edit in edits) == [f"py-4/{n}" for n in range(10)]
    for edit in edits:
        number = edit.id.removeprefix("py-4/")
        assert edit.after.count("def ") == 4 and edit.after.startswith("def ") and edit.after.count("\n\n\ndef ") == 3
        assert changed(edit) == [(f"    return x - {number}", f"    return x + {number}")]
        assert edit.instruction == f'Fix bugs in f{number}.\n\ndef f{number}(x):\n    """Add {number}."""'
        assert f"def f{number}(x):\n    return x + {number}\n" in edit.after
        assert (edit.corpus, edit.group) == ("py-4", f"humaneval/{number}")
        assert edit.meta["task_id"] in edit.meta["functions"] and len(set(edit.meta["functions"])) == 4
    assert len({edit.meta["functions"].index(edit.meta["task_id"]) for edit in edits}) > 1  # not always in one place


def test_no_name_is_defined_twice_in_a_file(tmp_path):
    helped = [problem(n, above=f"def f{n - 4}(x):\n    return x\n\n\n") for n in range(4, 8)]
    data_dir = folder_of(tmp_path, [problem(n) for n in range(4)] + helped + [problem(8, name="f0")])
    for edit in load_workload("py-4", data_dir):
        names = [node.name for node in ast.parse(edit.after).body]
        assert len(set(names)) == len(names)


def test_a_file_that_cannot_be_filled_is_refused(tmp_path):
    data_dir = folder_of(tmp_path, [problem(0), problem(1), problem(2), problem(3, name="f0")])
    with pytest.raises(UserError, match="py-4: only 3 functions"):
        load_workload("py-4", data_dir)


# --- every workload --------------------------------------------------------------------------------------------------


def test_fewer_edits_are_the_first_of_more_and_another_seed_draws_others(tmp_path, small_library):
    rows = [{"instruction": f"{n}", "before": f"{n}\n", "after": f"{n}!\n"} for n in range(30)]
    data_dir = folder_of(tmp_path, [problem(n) for n in range(30)], rows)
    for name in ("hevalfix-py", "py-4", "commits", "pyfix"):
        edits = load_workload(name, data_dir, 20, seed=1)
        assert len(edits) == 20 and load_workload(name, data_dir, 20, seed=1) == edits
        assert load_workload(name, data_dir, 5, seed=1) == edits[:5]
        assert load_workload(name, data_dir, 5, seed=2) != edits[:5]
    bodies, files = (load_workload(name, data_dir, 9, seed=3) for name in ("hevalfix-py", "py-4"))
    assert [edit.group for edit in bodies] == [edit.group for edit in files]


def test_the_files_are_the_same_in_another_process(tmp_path):
    data_dir = folder_of(tmp_path, [problem(n) for n in range(20)])
    code = (
        "import sys, pathlib; from eval.workloads import load_workload; "
        f"print([edit.id for edit in load_workload('py-4', pathlib.Path({str(data_dir)!r}))]); "
        f"print([edit.meta['functions'] for edit in load_workload('py-4', pathlib.Path({str(data_dir)!r}))]); "
        "sys.exit('torch' in sys.modules)"  # and it needs no torch
    )
    line = [sys.executable, "-c", code]
    runs = [
        subprocess.run(line, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True)
        for seed in ("1", "2")
    ]
    assert runs[0].stdout == runs[1].stdout


def test_commits_keep_their_text_and_say_where_they_are_from(tmp_path):
    row = {"repo": "a/b", "commit": "0", "path": "x.py", "instruction": "Fix it", "before": "a\r\n", "after": "b"}
    (edit,) = load_workload("commits", folder_of(tmp_path, commits=[row]))
    assert (edit.id, edit.corpus, edit.instruction) == ("commits/some.jsonl:1", "commits", "Fix it")
    assert (edit.before, edit.after, edit.meta) == ("a\r\n", "b", {"file": "some.jsonl", "row": 1})


def test_the_environment_variable_names_the_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("CAD_DATA_DIR", str(folder_of(tmp_path, [problem(0)])))
    assert [edit.id for edit in load_workload("hevalfix-py")] == ["hevalfix-py/0"]


def test_pyfix_needs_no_data_folder(small_library):
    edits = load_workload("pyfix", limit=3)
    assert len(edits) == 3 and all(edit.before != edit.after for edit in edits)


@pytest.mark.parametrize("name", [name for name in WORKLOADS if name != "pyfix"])
def test_a_missing_folder_is_an_error_that_says_what_to_set(tmp_path, name, monkeypatch):
    with pytest.raises(UserError, match="set CAD_DATA_DIR"):
        load_workload(name)
    with pytest.raises(UserError, match="set CAD_DATA_DIR"):  # a folder without the file
        load_workload(name, tmp_path)
    with pytest.raises(UserError, match="data_dir: there is no folder .*nowhere"):
        load_workload(name, tmp_path / "nowhere")
    monkeypatch.setenv("CAD_DATA_DIR", str(tmp_path / "gone"))
    with pytest.raises(UserError, match="CAD_DATA_DIR: there is no folder .*gone"):
        load_workload(name)


def test_what_a_person_gets_wrong_is_named(tmp_path, small_library):
    with pytest.raises(UserError, match="'py-5': choose from hevalfix-py, "):
        load_workload("py-5")
    with pytest.raises(UserError, match="limit=0"):
        load_workload("pyfix", limit=0)
    with pytest.raises(UserError, match="only .* usable functions"):
        load_workload("pyfix", limit=10**6)
    row = problem(1)
    del row["declaration"]
    with pytest.raises(UserError, match=r"python\.jsonl, row 2: no text in declaration"):
        load_workload("py-4", folder_of(tmp_path, [problem(0), row]))
    commits = [{"instruction": "x", "before": "a", "after": "b"}, {"instruction": "x", "before": "a"}]
    with pytest.raises(UserError, match=r"some\.jsonl, row 2: missing_field \(no after\)"):
        load_workload("commits", folder_of(tmp_path, commits=commits))


# --- the real data ---------------------------------------------------------------------------------------------------


@needs_data
@pytest.mark.parametrize("name", PRESENT)
def test_real_workloads_have_their_edits(name):
    edits = load_workload(name, Path(DATA_DIR))
    assert len(edits) == 164 if name != "commits" else edits
    assert len({edit.id for edit in edits}) == len(edits)
    assert all(edit.before != edit.after and edit.instruction for edit in edits)


@needs_data
@pytest.mark.parametrize("name", [name for name in PRESENT if name.startswith("py-")])
def test_real_python_files_are_python_with_no_name_twice(name):
    for edit in load_workload(name, Path(DATA_DIR), limit=40):
        names = [node.name for node in ast.parse(edit.after).body if isinstance(node, ast.FunctionDef)]
        assert len(set(names)) == len(names) >= int(name.removeprefix("py-"))


@needs_data
@pytest.mark.parametrize("name", [name for name in PRESENT if name.startswith(("py-", "js-"))])
def test_real_files_differ_in_the_one_function_alone(name):
    short = name.partition("-")[0]
    fixes = {edit.group: edit for edit in load_workload(f"hevalfix-{short}", Path(DATA_DIR))}
    for edit in load_workload(name, Path(DATA_DIR), limit=40):
        fix = fixes[edit.group]
        buggy, fixed = fix.before.strip("\n"), fix.after.strip("\n")
        assert any(
            edit.before[at:].startswith(buggy)
            and edit.before[:at] + fixed + edit.before[at + len(buggy) :] == edit.after
            for at in range(len(edit.before))
        )
        assert edit.instruction == fix.instruction
