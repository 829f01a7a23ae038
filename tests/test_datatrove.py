"""Oracles by datatrove: the folder is that of one task whatever the tasks, stops and machines, and nothing is lost."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("datatrove", reason="needs the extra datatrove")

import dill
from datatrove.data import Document
from datatrove.executor import LocalPipelineExecutor

from data_prep.build import OracleConfig, content_settings
from data_prep.counts import statistics
from data_prep.datatrove_pipeline import Config, collect, main, oracle_pipeline, work_folder
from data_prep.datatrove_steps import CollectStep, EditReader, OracleStep, as_document
from data_prep.hub import Columns
from data_prep.oracle import build_oracle
from data_prep.prepared import fingerprint, read_manifest, read_split
from data_prep.rows import read_rows
from decoding.commandline import UserError
from decoding.grammar import parse, render
from decoding.resolver import resolve

ROOT = Path(__file__).resolve().parents[1]


def edit(number: int, **changes) -> dict:
    """Return one edit; three edits in a row are of one document, six of one group."""
    before = f"def f{number // 3}(x):\n    y = x\n\n    return y\n"
    after = before.replace("return y", f"return y + {number}\u2028") + ("" if number % 2 else "\n")
    row = {"instruction": f"Add {number}.", "before": before, "after": after, "group": f"g{number // 6}"}
    return row | {"path": f"f{number // 3}.py", "license": "mit"} | changes


def lines(*rows: dict | str) -> bytes:
    return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows).encode()


@pytest.fixture(scope="module")
def edits(tmp_path_factory) -> Path:
    """Five files with 90 edits, one of them three times, and one row of every kind of fault."""
    folder = tmp_path_factory.mktemp("edits")
    (folder / "sub").mkdir()
    (folder / "a.jsonl").write_bytes(lines(*map(edit, range(30))))
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(lines(*map(edit, range(30, 60)), edit(7))))
    (folder / "sub/c.jsonl").write_bytes(lines(*map(edit, range(60, 90))))
    faults = [
        '{"instruction": "cut of',
        "[1]",
        edit(100, after=None),
        edit(101, before=5),
        edit(102, instruction=" "),
        {"instruction": "Add.", "before": "a"},
        edit(103, after=edit(103)["before"]),
        edit(104, after="\ud800"),
    ]
    (folder / "d.jsonl").write_bytes(lines(*faults) + b'{"instruction": "\xff", "before": "a", "after": "b"}\n\n')
    (folder / "e.jsonl").write_bytes(lines(edit(7)))
    (folder / "README.md").write_text("Not a row.\n")
    return folder


FAULTS = {"not_json": 3, "null": 1, "not_text": 1, "empty": 1, "missing_field": 1, "no_op": 1, "lone_surrogate": 1}


def prepare(edits: Path, out: Path, **settings) -> Path:
    """Run and collect, as the command does; without processes, unless ``workers`` asks for some."""
    main(Config(**{"input": str(edits), "out": str(out), "tasks": 1, "workers": 1} | settings))
    return out


def prepared(folder: Path) -> dict[str, bytes]:
    """The files of a prepared folder, less those of its making."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and "parts" not in path.parts]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def rows_of(folder: Path) -> list:
    return read_split(folder, ["datatrove"], "train") + read_split(folder, ["datatrove"], "heldout")


@pytest.fixture(scope="module")
def one(edits, tmp_path_factory) -> Path:
    """What one task makes of the edits."""
    return prepare(edits, tmp_path_factory.mktemp("one"))


def test_the_command_with_four_tasks_makes_the_folder_of_one(edits, one, tmp_path):
    line = [
        sys.executable,
        "data_prep/datatrove_pipeline.py",
        f"input={edits}",
        f"out={tmp_path}",
        "tasks=4",
        "workers=2",
    ]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, encoding="utf-8", env=os.environ)
    assert done.returncode == 0, done.stderr
    assert f"wrote {tmp_path}, fingerprint {read_manifest(one)['fingerprint'][:16]}" in done.stdout
    assert prepared(tmp_path) == prepared(one)
    assert sorted(prepared(one)) == [
        "datatrove/heldout.jsonl",
        "datatrove/train.jsonl",
        "manifest.json",
        "rejected.jsonl",
    ]


def test_more_tasks_than_files_make_the_same_folder(edits, one, tmp_path):
    assert prepared(prepare(edits, tmp_path, tasks=9)) == prepared(one)


def test_every_edit_is_there_once_and_resolves(one):
    rows = rows_of(one)
    wanted = [edit(number) for number in range(90)]
    assert sorted((r.instruction, r.before, r.after, r.group) for r in rows) == sorted(
        (e["instruction"], e["before"], e["after"], e["group"]) for e in wanted
    )
    for row in rows:
        assert resolve(parse(row.program), row.before) == row.after
        assert row.meta.keys() == {"file", "row", "path", "license"}
    assert len({row.id for row in rows}) == 90
    [seventh] = [row for row in rows if row.instruction == "Add 7."]
    assert (seventh.meta["file"], seventh.meta["row"]) == ("a.jsonl", 8)  # the first of its three copies


def test_the_manifest_says_what_is_in_the_folder(edits, one):
    manifest = read_manifest(one)
    entry, rows = manifest["corpora"]["datatrove"], rows_of(one)
    assert manifest["settings"] == content_settings(OracleConfig(corpora=["datatrove"]))  # a recipe asks for these
    assert entry["statistics"] == statistics(rows) and entry["fingerprint"] == fingerprint(rows)
    assert entry["offered"] == 101 and entry["train"] + entry["heldout"] == 90
    assert (
        entry["tags"] == dict(Counter(tag for row in rows for tag in row.tags))
        and "edge_newline_artifact" in entry["tags"]
    )


def test_every_fault_is_counted_in_the_statistics_and_listed_with_its_place(edits, one):
    entry = read_manifest(one)["corpora"]["datatrove"]
    assert entry["rejected"] == dict(sorted((FAULTS | {"duplicate": 2}).items()))
    listed = list(read_rows(one / "rejected.jsonl"))
    assert Counter(fault["reason"] for fault in listed) == entry["rejected"]
    assert {(f["file"], f["row"]) for f in listed if f["reason"] == "duplicate"} == {("b.jsonl.gz", 31), ("e.jsonl", 1)}
    assert sorted(f["row"] for f in listed if f["file"] == "d.jsonl") == list(range(1, 10))
    [statistics_of] = (one / "parts").glob("*/logs/stats.json")
    step = next(step for step in json.loads(statistics_of.read_text()) if step["name"] == "oracle: edit programs")
    counts = {key.removeprefix("dropped_"): n for key, n in step["stats"].items() if key.startswith("dropped_")}
    assert counts == FAULTS and step["stats"]["forwarded"] == 92 and step["stats"]["total"] == 101


@pytest.mark.parametrize("tasks", [3, 5])
def test_a_killed_task_alone_runs_again_and_the_folder_is_the_same(edits, one, tmp_path, tasks):
    prepare(edits, tmp_path, tasks=tasks)
    work = work_folder(Config(input=str(edits), out=str(tmp_path), tasks=tasks))
    (work / "logs/completions/00001").unlink()
    for shard in work.glob("rows/*/00001.jsonl.gz"):  # as it stands when a task is killed
        shard.write_bytes(shard.read_bytes()[:30])
    statistics_of = {path.name: path.stat().st_mtime_ns for path in (work / "logs/stats").iterdir()}
    with pytest.raises(UserError, match=f"1 of {tasks} tasks are not complete, the first is 1"):
        collect(Config(input=str(edits), out=str(tmp_path), tasks=tasks), work)
    prepare(edits, tmp_path, tasks=tasks)
    again = {
        path.name for path in (work / "logs/stats").iterdir() if path.stat().st_mtime_ns != statistics_of[path.name]
    }
    assert again == {"00001.json"}
    assert prepared(tmp_path) == prepared(one)


def test_groups_are_whole_and_keep_their_side_when_other_edits_come(edits, one, tmp_path):
    sides = {row.group: row.split for row in rows_of(one)}
    assert all(row.split == sides[row.group] for row in rows_of(one))
    assert set(sides.values()) == {"train", "heldout"}
    more = tmp_path / "more"
    more.mkdir()
    (more / "x.jsonl").write_bytes(lines(*map(edit, range(50, 140))))
    with_others = {row.group: row.split for row in rows_of(prepare(more, tmp_path / "out"))}
    shared = sides.keys() & with_others.keys()
    assert len(shared) == 7 and all(sides[group] == with_others[group] for group in shared)


def test_the_share_of_held_out_groups_is_met_on_average():
    step = OracleStep(OracleConfig(corpora=["datatrove"], heldout=0.3), Columns())
    documents = [Document(**as_document(None, edit(6 * n), "x", n)) for n in range(2000)]
    held = sum(row.metadata["split"] == "heldout" for row in step.run(documents))
    assert 0.26 < held / 2000 < 0.34  # four standard deviations; the hash is fixed


def test_settings_reach_the_rows_and_another_run_in_the_folder_mixes_nothing_in(edits, one, tmp_path):
    out = prepare(edits, tmp_path / "out", tasks=2)
    before = prepared(out)
    prepare(edits, out, tasks=2, seed=2, heldout=0.5, equivalents=2, program="fewest_ops")
    entry, rows = read_manifest(out)["corpora"]["datatrove"], rows_of(out)
    additional = [row for row in rows if "#" in row.id]
    assert len(additional) == entry["equivalents"] > 0 and entry["train"] + entry["heldout"] == 90
    assert {row.split for row in additional} == {"train"}
    assert {row.instruction for row in additional} >= {"Add 7."}  # of copies too, once
    assert entry["rejected"]["duplicate"] == 2 and entry["statistics"]["pairs"] == 90
    assert len({row.id for row in rows}) == len(rows) == 90 + len(additional)
    for row in rows:
        assert resolve(parse(row.program), row.before) == row.after
        if row.split == "heldout":
            assert row.program == render(build_oracle(row.before, row.after))
    assert prepared(prepare(edits, out, tasks=2)) == before == prepared(one)


def test_the_steps_survive_pickling_and_collect_as_a_pipeline_of_their_own(edits, one, tmp_path):
    # What Slurm does: the executor is pickled, each node runs one rank, then the dependent job collects.
    config = Config(input=str(edits), out=str(tmp_path), tasks=2)
    work = work_folder(config)
    rows = LocalPipelineExecutor(oracle_pipeline(config, work), tasks=2, logging_dir=str(work / "logs"))
    for rank in range(2):
        dill.loads(dill.dumps(rows))._run_for_rank(rank)
    step = dill.loads(dill.dumps(CollectStep(config, work)))
    LocalPipelineExecutor([step], tasks=1, workers=1, logging_dir=str(work / "collect")).run()
    assert prepared(tmp_path) == prepared(one)


def test_columns_may_be_named_and_other_readers_used(tmp_path):
    row = {"ask": "Do.", "old": "a\n", "new": "b\n"}
    step = OracleStep(OracleConfig(corpora=["datatrove"]), Columns("ask", "old", "new"))
    [document] = step.run([Document(text="-", id="somewhere", metadata=row)])
    assert document.text == document.metadata["program"] == render(build_oracle("a\n", "b\n"))
    assert document.metadata["meta"] == {"file": "somewhere", "row": None}
    (tmp_path / "x.jsonl").write_bytes(lines(row))
    main(Config("ask", "old", "new", input=str(tmp_path), out=str(tmp_path / "out"), tasks=1, workers=1))
    assert [(row.before, row.after) for row in rows_of(tmp_path / "out")] == [("a\n", "b\n")]


def test_a_named_column_that_the_first_row_lacks_is_one_error_before_any_task(edits, tmp_path):
    with pytest.raises(UserError, match="has no column nope; it has instruction, before, after.*: name them with"):
        prepare(edits, tmp_path, before="nope")
    assert not (tmp_path / "parts").exists()


def test_an_edit_that_fills_or_empties_a_document_is_kept(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/x.jsonl").write_bytes(lines(edit(1, before=""), edit(2, after=""), edit(3, instruction=" ")))
    out = prepare(tmp_path / "in", tmp_path / "out")
    assert sorted(bool(row.before) for row in rows_of(out)) == [False, True]
    assert read_manifest(out)["corpora"]["datatrove"]["rejected"] == {"empty": 1}


def test_a_run_without_an_edit_says_why_and_leaves_the_folder_as_it_is(tmp_path):
    for name, rows in (("good", [edit(1)]), ("bad", [edit(2, instruction=" "), edit(3, after=5)]), ("blank", [])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.jsonl").write_bytes(lines(*rows))
    out = prepare(tmp_path / "good", tmp_path / "out")
    before = prepared(out)
    with pytest.raises(
        UserError, match=r"nothing to prepare: every edit is refused, .*; the first is x\.jsonl, row 1: "
    ):
        prepare(tmp_path / "bad", out)
    with pytest.raises(UserError, match=f"nothing to prepare: there are no edits in {tmp_path / 'blank'}"):
        prepare(tmp_path / "blank", out)
    assert prepared(out) == before
    with pytest.raises(UserError, match="nothing to prepare"):
        prepare(tmp_path / "bad", tmp_path / "new")
    assert prepared(tmp_path / "new") == {}


def test_an_edited_input_of_the_same_size_is_read_again(tmp_path):
    (tmp_path / "in").mkdir()
    file = tmp_path / "in/x.jsonl"
    for after, time in (("b\n", 1), ("c\n", 2)):
        file.write_bytes(lines(edit(1, after=after)))
        os.utime(file, (time, time))
        assert [row.after for row in rows_of(prepare(tmp_path / "in", tmp_path / "out"))] == [after]


def test_a_split_with_one_side_says_that_groups_are_held_out_by_hash(tmp_path, capsys):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/x.jsonl").write_bytes(lines(edit(1)))
    prepare(tmp_path / "in", tmp_path / "out")
    said = capsys.readouterr().out
    assert "each by its hash, so that on average they make heldout=0.2" in said and "as near as" not in said


def test_a_damaged_packed_file_fails_its_task_and_says_where_the_log_is(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/x.jsonl.gz").write_bytes(gzip.compress(lines(*map(edit, range(50))))[:-40])
    with pytest.raises(UserError, match="a task failed .*; its log is in .*logs"):
        prepare(tmp_path / "in", tmp_path / "out")
    assert read_manifest(tmp_path / "out") is None


def test_mistakes_are_named(edits, tmp_path):
    config = Config(input=str(edits), out=str(tmp_path))
    with pytest.raises(UserError, match="input=FOLDER"):
        main(replace(config, input=None))
    with pytest.raises(UserError, match="there are no files"):
        main(replace(config, input=str(tmp_path / "absent")))
    for setting in ({"tasks": 0}, {"workers": 0}, {"heldout": 1.0}, {"min_copy": 0}):
        with pytest.raises(ValueError, match=next(iter(setting))):
            replace(config, **setting)
    (tmp_path / "manifest.json").write_text(json.dumps({"format": 1, "corpora": {"pyfix": {}}}))
    with pytest.raises(UserError, match="holds pyfix, prepared before"):
        main(config)


def test_files_are_shared_out_once(edits):
    reader = EditReader(str(edits), glob_pattern="**/*.jsonl*")
    found = [[document.id for document in reader.run(rank=rank, world_size=2)] for rank in range(2)]
    assert not set(found[0]) & set(found[1])
    assert len(found[0] + found[1]) == 101
