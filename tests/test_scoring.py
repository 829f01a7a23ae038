"""Held-out scoring of several checkpoints: pooling, settings taken from the runs, refusals, and adapters."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from small_models import save_model

from cad_train.config import TrainConfig
from cad_train.sft import train_selector
from data_prep.build import OracleConfig, build_oracles
from data_prep.probeedit import ProbeEditConfig
from data_prep.rows import read_rows, write_rows
from decoding.commandline import UserError
from eval.execution import check_sandbox
from eval.report import pool, render
from eval.results import read_results
from eval.scoring import ScoreConfig, score_checkpoints
from eval.text_faults import TEXT_FAULTS


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    folder = tmp_path_factory.mktemp("runs")
    data = OracleConfig(
        corpora=["probeedit"],
        out=str(folder / "oracles"),
        probeedit=ProbeEditConfig(cases=10, min_lines=4, max_lines=6),
    )
    return TrainConfig(
        data=data,
        model=str(save_model(folder / "model", "qwen2")),
        splice="full",
        max_length=4096,
        max_steps=1,
        batch_size=1,
        activation_checkpointing=False,
        precision="fp32",
        save="no",
        out=str(folder / "seed0"),
    )


@pytest.fixture(scope="module")
def runs(config) -> list[str]:
    """Two seeds of one run."""
    other = replace(config, seed=1, out=config.out.replace("seed0", "seed1"))
    return [str(train_selector(each, "sft_combined")) for each in (config, other)]


@pytest.fixture(scope="module")
def adapter(config) -> str:
    """The same data and seed with adapters in place of full parameters."""
    return str(train_selector(replace(config, adapter="lora", out=config.out.replace("seed0", "lora")), "sft_combined"))


def score(tmp_path: Path, **keys) -> dict:
    score_checkpoints(ScoreConfig(max_tokens=12, out=str(tmp_path / "out"), **keys))
    return json.loads((tmp_path / "out" / "summary.json").read_text())


def test_seeds_pool_into_one_row_and_are_listed_one_by_one(runs, tmp_path):
    summary = score(tmp_path, ckpt=runs)
    pooled = next(entry for entry in summary["systems"] if entry["label"] == "checkpoint, fsm")
    assert pooled["n"] == pooled["exact_match"]["n"] == 4  # two held-out cases, two seeds
    assert sum(pooled["outcomes"].values()) == 4
    assert [figures["n"] for figures in pooled["checkpoints"].values()] == [2, 2]
    assert [entry["seed"] for entry in summary["checkpoints"]] == [0, 1]
    identity = next(entry for entry in summary["systems"] if entry["label"].startswith("identity"))
    assert identity["n"] == 2 and identity["exact_match"]["k"] == 0
    report = (tmp_path / "out" / "report.md").read_text()
    assert "seeds 0, 1" in report and "Checkpoint by checkpoint" in report


def test_runs_that_differ_in_more_than_the_seed_are_rows_of_their_own(runs, adapter, tmp_path):
    summary = score(tmp_path, ckpt=[runs[0], adapter])
    assert [entry["label"] for entry in summary["systems"]][:2] == [f"{runs[0]}, fsm", f"{adapter}, fsm"]
    assert all(entry["n"] == 2 for entry in summary["systems"])


@pytest.mark.parametrize("strategy", ["monotone", "vote", "prompt", "full", "search_replace", "unified_diff"])
def test_every_strategy_scores_every_case(runs, tmp_path, strategy):
    summary = score(tmp_path, ckpt=runs[:1], strategy=strategy, samples=3, batch_size=4)
    entry = summary["systems"][0]
    assert entry["label"] == f"checkpoint, {strategy}"
    assert entry["n"] == sum(entry["outcomes"].values()) == 2
    assert entry["risk_coverage"]["points"][-1]["exact_match"]["n"] == 2


def test_a_batch_scores_as_one_by_one_does(runs, tmp_path):
    def cases(name: str, **keys) -> list[dict]:
        score(tmp_path / name, ckpt=runs, temperature=1.0, **keys)
        rows = [json.loads(row) for row in (tmp_path / name / "out" / "cases.jsonl").read_text().splitlines()]
        return [{key: row[key] for key in ("id", "checkpoint", "program", "output", "stop", "decoded")} for row in rows]

    assert cases("one") == cases("many", batch_size=3)


def test_the_tests_run_on_what_was_decoded_before_and_only_when_asked(runs, tmp_path, monkeypatch):
    try:
        check_sandbox()
    except UserError as error:
        pytest.skip(str(error))
    problems = [
        {
            "task_id": f"Python/{number}",
            "entry_point": "f",
            "prompt": "def f(x):\n",
            "declaration": "def f(x):\n",
            "buggy_solution": f"    y = {number}\n    return x - y\n",
            "canonical_solution": f"    y = {number}\n    return x + y\n",
            "test": f"assert f(1) == {number + 1}",
        }
        for number in range(1, 7)
    ]
    write_rows(tmp_path / "humanevalpack" / "python.jsonl", problems)
    monkeypatch.setenv("CAD_DATA_DIR", str(tmp_path))
    data = OracleConfig(
        corpora=["hevalfix-py", "probeedit"],
        heldout=0.5,
        out=str(tmp_path / "oracles"),
        probeedit=ProbeEditConfig(cases=2, min_lines=4, max_lines=6),
    )
    build_oracles(data)
    keys = {"ckpt": runs[:1], "data": data.out, "corpus": data.corpora}
    cases, report = tmp_path / "out" / "cases.jsonl", tmp_path / "out" / "report.md"

    first = score(tmp_path, **keys)
    assert "tests passed" not in report.read_text() and "execution" not in first
    decoded = list(read_rows(cases))
    assert [row["corpus"] for row in decoded] == ["hevalfix-py"] * 3 + ["probeedit"]
    number = int(decoded[0]["id"].split("/")[-1])
    decoded[0]["output"] = f"    return {number} + x\n"  # right, and not the gold
    decoded[1]["output"] = None
    write_rows(cases, decoded)

    tested = score(tmp_path, **keys, execute=True)
    assert [{key: row[key] for key in row if key != "tests"} for row in read_rows(cases)] == decoded
    fix, probe, _ = [entry["tests"] for entry in tested["systems"] if entry["label"] == "checkpoint, fsm"]
    assert fix["passed"]["k"] == 1 and fix["passed"]["n"] == sum(fix["outcomes"].values()) == 3
    assert probe["passed"]["n"] == 0 and probe["not_executed"] == {"probeedit has no tests": 1}
    identity = next(entry for entry in tested["systems"] if entry["label"].startswith("identity"))
    assert identity["tests"]["outcomes"] == {"passed": 0, "failed": 3, "timeout": 0, "crashed": 0}
    assert tested["execution"]["isolated"] is True and tested["settings"] == first["settings"]
    assert "tests passed" in report.read_text() and "1: probeedit has no tests" in report.read_text()

    score(tmp_path, **keys)
    assert "tests passed" not in report.read_text()
    assert [row["tests"]["outcome"] for row in read_rows(cases)][:2] == ["passed", "failed"]


def test_lines_changed_outside_the_golds_hunks_are_in_rows_summary_and_report(runs, tmp_path):
    summary = score(tmp_path, ckpt=runs[:1])
    rows = list(read_rows(tmp_path / "out" / "cases.jsonl"))
    assert all((row["changed_outside"] is None) == (row["output"] is None) for row in rows)
    with_output = [row["changed_outside"] for row in rows if row["output"] is not None]
    decoded, identity = summary["systems"]
    assert decoded["changed_outside"]["edits"]["n"] == len(with_output)
    assert identity["changed_outside"]["mean"] == identity["changed_outside"]["edits"]["k"] == 0
    assert "| changed outside |" in (tmp_path / "out" / "report.md").read_text()


def test_text_faults_are_in_rows_summary_and_report_and_older_rows_need_none(runs, tmp_path):
    score(tmp_path, ckpt=runs[:1])
    cases, report = tmp_path / "out" / "cases.jsonl", tmp_path / "out" / "report.md"
    rows = list(read_rows(cases))
    assert all(row["text_faults"] == [] for row in rows if row["output"] is None)

    rows[0]["text_faults"] = ["gutter_leak", "control_char"]
    del rows[1]["text_faults"]  # as an earlier version wrote it
    write_rows(cases, rows)
    summary = score(tmp_path, ckpt=runs[:1])
    decoded, identity = summary["systems"]
    assert {name: count for name, count in decoded["text_faults"].items() if count} == {
        "n": 1,
        "gutter_leak": 1,
        "control_char": 1,
    }
    assert set(decoded["text_faults"]) == {"n", *TEXT_FAULTS}
    assert set(identity["text_faults"].values()) == {0, identity["n"]}
    [table] = [part for part in report.read_text().split("\n\n") if "line-number gutter" in part]
    assert table.count("\n") == 3 and table.splitlines()[-1].startswith("| checkpoint, fsm")

    write_rows(cases, [{key: row[key] for key in row if key != "text_faults"} for row in rows])
    assert "text_faults" not in score(tmp_path, ckpt=runs[:1])["systems"][0]
    assert "line-number gutter" not in report.read_text()
    pooled = render({"command": "", **pool([read_results(str(tmp_path / "out"))], 10, 0)})
    assert "| stopped by " in pooled and "line-number gutter" not in pooled


def test_style_and_splice_come_from_the_run_unless_given(runs, tmp_path):
    assert score(tmp_path, ckpt=runs[:1])["settings"]["splice"] == "full"
    assert score(tmp_path, ckpt=runs[:1], splice="none")["settings"]["splice"] == "none"


def test_an_interrupted_scoring_goes_on_where_it_stopped(runs, tmp_path):
    score(tmp_path, ckpt=runs)
    cases = tmp_path / "out" / "cases.jsonl"
    rows = cases.read_text().splitlines(keepends=True)
    cases.write_text("".join(rows[:2]) + rows[2][:40])  # killed in the middle of the third row
    score(tmp_path, ckpt=runs)
    timed = ("wall_s", "prefill_s")
    again = [json.loads(row) for row in cases.read_text().splitlines()]
    before = [json.loads(row) for row in rows]
    for row in again + before:
        for key in timed:
            row.pop(key)
    assert again == before


def test_oracles_that_changed_since_training_are_refused(runs, config, tmp_path):
    copy = tmp_path / "run"
    copy.mkdir()
    for name in ("config.yaml", "data.json", "final"):
        (copy / name).symlink_to(Path(runs[0]) / name)
    data = json.loads((copy / "data.json").read_text())
    other = build_oracles(replace(config.data, out=str(tmp_path / "other"), seed=5))
    assert other["fingerprint"] != data["fingerprint"]
    (copy / "data.json").unlink()
    (copy / "data.json").write_text(json.dumps(data | {"oracles": str(tmp_path / "other")}))
    with pytest.raises(UserError, match="are not those that .* trained on"):
        score(tmp_path, ckpt=[str(copy)])
    assert (
        score(tmp_path, ckpt=[str(copy)], data=str(tmp_path / "other"))["data"]["fingerprint"] == other["fingerprint"]
    )


def test_a_device_that_is_not_there_is_refused(runs, tmp_path):
    with pytest.raises(UserError, match="device=nowhere cannot be used here"):
        score(tmp_path, ckpt=runs[:1], device="nowhere")


def test_a_model_without_a_run_needs_data(config):
    with pytest.raises(UserError, match="give data=FOLDER"):
        score_checkpoints(ScoreConfig(ckpt=[config.model]))
    with pytest.raises(ValueError, match="twice"):
        ScoreConfig(ckpt=["a", "a"])


def test_rows_of_an_earlier_call_take_the_label_of_this_one(runs, adapter, tmp_path):
    score(tmp_path, ckpt=[runs[0], adapter])  # two rows, by name
    summary = score(tmp_path, ckpt=runs)
    assert [entry["label"] for entry in summary["systems"]] == ["checkpoint, fsm", "identity (document unchanged)"]
    assert len(summary["systems"][0]["checkpoints"]) == 2
