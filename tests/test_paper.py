"""The paper's tables as one command: every table runs on a small corpus, what is written, what is left out and why."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from chat_server import Server, completion
from hypothesis import given
from hypothesis import strategies as st
from small_models import save_model

import eval.paper
from cad_train.config import TrainConfig
from cad_train.sft import train_selector
from data_prep.build import OracleConfig
from data_prep.probeedit import ProbeEditConfig
from eval.paper import TABLES
from eval.paper_tables.table import (
    Column,
    Figure,
    Row,
    Table,
    as_json,
    difference,
    lines_of,
    markdown,
    paper_decimals,
    show,
)
from eval.scoring import ScoreConfig, score_checkpoints

ROOT = Path(__file__).resolve().parent.parent
EDITS = [
    {
        "instruction": f"Set b to {number}.",
        "before": f"x = {number}\n" + "a = 1\nb = 2\nc = 3\n" * 2,
        "after": f"x = {number}\n" + f"a = 1\nb = {number}\nc = 3\n" + "a = 1\nb = 2\nc = 3\n",
    }
    for number in range(3, 13)
]


def paper(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    env = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "no_proxy": "*"} | environment
    words = [sys.executable, "eval/paper.py", *arguments]
    return subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Ten edits, and a tiny model that is its own tokenizer."""
    folder = tmp_path_factory.mktemp("paper")
    (folder / "edits.jsonl").write_text("".join(json.dumps(edit) + "\n" for edit in [*EDITS, EDITS[0]]))
    save_model(folder / "model", "qwen2")
    return folder


def corpus(folder: Path) -> list[str]:
    model = folder / "model"
    return [f"jsonl=[{folder}/edits.jsonl]", f"tokenizer={model}", f"tokenizers=[{model}]"]


def test_every_table_runs_on_a_small_corpus(folder, tmp_path):
    config = TrainConfig(
        data=OracleConfig(
            corpora=["probeedit"],
            out=str(folder / "oracles"),
            probeedit=ProbeEditConfig(cases=10, min_lines=4, max_lines=6),
        ),
        model=str(folder / "model"),
        max_length=2048,
        max_steps=1,
        batch_size=1,
        activation_checkpointing=False,
        precision="fp32",
        save="no",
        out=str(folder / "run"),
    )
    run = train_selector(config, "sft_combined")
    score_checkpoints(ScoreConfig(ckpt=[str(run)], max_tokens=12))
    server = Server(lambda body, number: completion("I would rather not."))
    done = paper(
        *corpus(folder),
        "corpora=[jsonl,probeedit]",
        f"model={folder}/model",
        f"runs=[{run}]",
        f"endpoint={server.url}",
        "endpoint_model=[made]",
        *["limit=10", "cases=1", "ar_cases=1", "kernel_trials=1", "fuzz=200", "trials=2", f"out={tmp_path}"],
    )
    server.close()
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "paper.json").read_text())
    assert record["left_out"] == {}
    assert [table["table"] for table in record["tables"]] == list(TABLES)
    assert record["refused"] == {"jsonl": {"duplicate": 1}, "probeedit": {"over limit": 144}}
    text = (tmp_path / "paper.md").read_text()
    page = (tmp_path / "paper.html").read_text()
    for table in record["tables"]:
        assert any(
            figure["ours"] is not None for row in table["rows"] for figure in row.values() if isinstance(figure, dict)
        ), table["table"]
        assert table["sources"] and table["method"]
        assert f"## {'Table' if table['table'].isdigit() else 'Section'} {table['table']}: " in text
        assert f"{table['table']}: {table['title']}" in page
    assert f"Corpus jsonl: left out 1 duplicate (listed in {tmp_path}/refused.jsonl)." in done.stdout
    (refused,) = [json.loads(line) for line in (tmp_path / "refused.jsonl").read_text().splitlines()]
    assert (refused["corpus"], refused["row"], refused["reason"]) == ("jsonl", 11, "duplicate")
    assert page.count("<svg") >= 4  # spans, bounds, s(N), perturbation


def test_what_needs_inputs_that_are_not_named_is_left_out_and_said(folder, tmp_path):
    done = paper(*corpus(folder), "corpora=[jsonl]", "fuzz=100", "trials=1", f"out={tmp_path}")
    assert done.returncode == 0, done.stderr
    left_out = json.loads((tmp_path / "paper.json").read_text())["left_out"]
    assert set(left_out) == {"5", "6", "7", "11", "15", "16", "22", "23", "24", "25"}
    assert "Table 11 is left out: it needs a model to run (model=)." in done.stdout
    assert "Table 6 is left out: it needs the folders of trained runs (runs=)." in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table=9"], "there is no table 9: choose from all, 2, 3"),
        (["table=[]"], "no table is named: choose from all"),
        (["table=[17,11]"], "table 11 needs a model to run (model=)"),
        (["table=6"], "table 6 needs the folders of trained runs (runs=)"),
        (["table=2", "trials=0"], "trials=0: must be at least 1"),
        (["table=2", "corpora=[nonsense]"], "corpora: unknown nonsense"),
        (["table=2", "jsonl=[edits.jsonl]"], "jsonl names files, but corpora has no jsonl"),
        (["table=25", "endpoint=file:///etc/passwd", "endpoint_model=[m]"], "endpoint= must be an http(s) address"),
    ],
)
def test_mistakes_are_told_in_a_line(arguments, message, tmp_path):
    done = paper(*arguments, f"out={tmp_path}")
    assert done.returncode == 2, done.stdout
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_corpus_without_a_usable_edit_is_refused(folder, tmp_path):
    (tmp_path / "same.jsonl").write_text(json.dumps({"instruction": "i", "before": "a", "after": "a"}) + "\n")
    done = paper("table=2", "corpora=[jsonl]", f"jsonl=[{tmp_path}/same.jsonl]", f"tokenizer={folder}/model")
    assert done.returncode == 2
    assert "jsonl has no edit that can be used: 1 no_op" in done.stderr


def test_a_place_that_cannot_be_written_is_told_before_anything_is_made(folder, tmp_path):
    (tmp_path / "file").touch()
    assert "out=: name a folder" in paper("table=17", "out=").stderr
    for out in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nowhere")):
        done = paper("table=17", f"out={out}")
        assert done.returncode == 2 and done.stderr.count("\n") == 1
        assert f"out={out}: cannot write there" in done.stderr


def test_few_and_empty_edits_leave_out_what_needs_more_and_keep_the_rest(folder, tmp_path):
    rows = [{"instruction": "Clear.", "before": "a\nb\n", "after": ""}]
    (tmp_path / "one.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = paper(
        *["corpora=[jsonl]", f"jsonl=[{tmp_path}/one.jsonl]", f"tokenizer={folder}/model"],
        *[f"tokenizers=[{folder}/model]", "fuzz=50", f"out={tmp_path}/out"],
    )
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "out" / "paper.json").read_text())
    assert record["left_out"]["2"] == "the edited documents of jsonl have no token"
    assert record["left_out"]["20"] == "no corpus has a held-out edit"
    assert {"3", "4", "4.3", "8", "14", "18"} <= {table["table"] for table in record["tables"]}


def test_what_is_finished_is_kept_when_the_next_table_breaks(folder, tmp_path, monkeypatch):
    real = eval.paper.make_table

    def breaking(number, inputs):
        if number == "12":
            raise KeyboardInterrupt
        return real(number, inputs)

    monkeypatch.setattr(eval.paper, "make_table", breaking)
    with pytest.raises(KeyboardInterrupt):
        eval.paper.main(eval.paper.Config(table=["17", "12"], out=str(tmp_path)))
    assert [table["table"] for table in json.loads((tmp_path / "paper.json").read_text())["tables"]] == ["17"]


# What a table shows


def table_of(*figures: Figure, kind="count") -> Table:
    columns = tuple(Column(f"c{number}", kind) for number in range(len(figures)))
    return Table("2", "made", ("corpus",), columns, [Row(("one",), figures)], "Counted.", {"data": "made"})


def test_a_row_has_the_papers_line_and_the_difference_only_where_there_is_something_to_compare():
    header, lines = lines_of(table_of(Figure(3, 5), Figure(4)))
    assert header == ["corpus", "", "c0", "c1"]
    assert lines == [["one", "ours", "3", "4"], ["", "paper", "5", ""], ["", "difference", "-2", ""]]
    assert lines_of(table_of(Figure(3), Figure(None))) == (["corpus", "c0", "c1"], [["one", "3", "-"]])
    assert lines_of(table_of(Figure(None, 5)))[1] == [["one", "paper", "5"]]
    with pytest.raises(ValueError, match="does not fit"):
        Table("2", "made", (), (), [Row(("one",), ())], "", {})


@pytest.mark.parametrize(
    ("kind", "ours", "paper", "shown"),
    [
        ("count", 12, 10, "+2"),
        ("count", 1234, 1234, "="),
        ("share", 0.5, 0.25, "+25.00 pp"),
        ("accuracy", 0.5, 0.25, "+0.25"),
        ("ratio", 3.0, 2.0, "+50.0%"),
        ("ratio", 2.001, 2.0, "="),
        ("mean", 1.0, 0.0, ""),
        ("text", "a", "b", "differs"),
        ("ms", None, 2.0, ""),
    ],
)
def test_differences_by_kind(kind, ours, paper, shown):
    assert difference(Figure(ours, paper), kind, 2) == shown


def test_figures_agree_in_the_decimals_that_the_paper_gives_them():
    columns = (Column("f", "share"), Column("bound", "ratio"), Column("mean", "mean"))
    rows = [
        Row(("one",), (Figure(0.7413, 0.741), Figure(3.41, 3.45), Figure(22.34, 22.3))),
        Row(("two",), (Figure(0.978, 0.978), Figure(5.05, 5.00), Figure(19.2, 19))),
    ]
    table = Table("2", "made", ("corpus",), columns, rows, "Counted.", {})
    assert paper_decimals(table) == [1, 2, 1]
    _, lines = lines_of(table)
    assert lines[1] == ["", "paper", "74.1%", "3.45x", "22.3"]
    assert lines[2] == ["", "difference", "=", "-1.2%", "="]
    assert lines[4] == ["", "paper", "97.8%", "5.00x", "19.0"]
    assert lines[5] == ["", "difference", "=", "+1.0%", "+1.1%"]


@given(st.sampled_from(["count", "mean", "share", "accuracy", "ratio", "ms"]), st.integers(0, 10**6))
def test_a_figure_and_its_interval_are_all_written(kind, value):
    table = table_of(Figure(value, value, (value, value + 1)), kind=kind)
    assert f"{show(value, kind)} [{show(value, kind)}, {show(value + 1, kind)}]" in markdown(table)
    (row,) = as_json(table)["rows"]
    assert row["c0"] == {"ours": value, "paper": value, "interval": [value, value + 1]}
