"""The selector tables, put together from run folders: what is pooled, and what stands beside the paper's rows."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from small_models import save_model

from cad_train.config import TrainConfig
from cad_train.sft import train_selector
from data_prep.build import OracleConfig
from eval.metrics import wilson
from eval.paper import make_table
from eval.paper_tables.inputs import Inputs, Missing, PaperConfig
from eval.paper_tables.selector import _TABLE_6, _TABLE_7, _TABLE_22
from eval.scoring import ScoreConfig, score_checkpoints


def problem(number: int) -> dict:
    return {
        "task_id": f"Python/{number}",
        "entry_point": f"f{number}",
        "prompt": f"def f{number}(x):\n",
        "buggy_solution": f"    y = x\n    return y - {number}\n",
        "canonical_solution": f"    y = x\n    return y + {number}\n",
        "test": f"assert f{number}(0) == {number}\n",
    }


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[str]:
    """Two seeds of a Py-only run of a model that goes by the name of the paper's, scored beside the untrained one."""
    folder = tmp_path_factory.mktemp("selector")
    (folder / "humanevalpack").mkdir()
    rows = "".join(json.dumps(problem(number)) + "\n" for number in range(10))
    (folder / "humanevalpack" / "python.jsonl").write_text(rows)
    config = TrainConfig(
        data=OracleConfig(corpora=["hevalfix-py"], data_dir=str(folder), out=str(folder / "oracles")),
        model=str(save_model(folder / "Qwen2.5-Coder-1.5B-made", "qwen2")),
        max_steps=1,
        batch_size=1,
        activation_checkpointing=False,
        precision="fp32",
        save="no",
    )
    out = []
    for seed in (0, 1):
        run = train_selector(replace(config, seed=seed, out=str(folder / f"seed{seed}")), "sft_py")
        score_checkpoints(ScoreConfig(ckpt=[str(run)], baseline=["fsm"], max_tokens=12))
        out.append(str(run))
    return out


def test_seeds_pool_and_stand_beside_the_papers_row_of_the_same_model_and_data(runs):
    table = make_table("6", Inputs(PaperConfig(runs=runs)))
    by_paper = {tuple(figure.paper for figure in row.figures): row for row in table.rows}
    trained = by_paper[(12 / 99, 99, 1.0, 0.59, 0.35)]
    assert trained.labels[2] == "2"
    assert trained.figures[1].ours == 4  # two seeds of two held-out cases
    untrained = by_paper[(0 / 33, 33, 1.0, 0.42, 0.23)]
    assert untrained.figures[1].ours == 2  # counted once, though it was scored beside both
    only_paper = [row for row in table.rows if all(figure.ours is None for figure in row.figures)]
    assert {row.labels[0] for row in only_paper} == {
        "Prompt-level CRP (untrained) (paper)",
        "SFT + FSM, Combined (paper)",
    }


def test_every_attempt_is_in_one_class_of_table_7(runs):
    table = make_table("7", Inputs(PaperConfig(runs=runs)))
    for row in table.rows:
        values = [figure.ours for figure in row.figures]
        if values[-1] is not None:
            assert sum(values[:-1]) == values[-1]


@pytest.mark.parametrize("number", ["22", "23"])
def test_tables_of_the_combined_run_keep_the_papers_rows_where_no_run_measures_them(runs, number):
    table = make_table(number, Inputs(PaperConfig(runs=runs)))
    assert sum(row.labels[0].endswith("(paper)") for row in table.rows) == {"22": 3, "23": 2}[number]


def test_without_runs_the_tables_are_left_out():
    with pytest.raises(Missing, match="runs="):
        make_table("6", Inputs(PaperConfig()))


def test_what_is_said_of_the_papers_counts_is_in_them():
    py, combined = (entry.figures for entry in _TABLE_7)
    assert sum(py) == sum(combined) == 99
    assert [round(100 * sum(counts[2:5]) / 99, 1) for counts in (py, combined)] == [76.8, 67.7]
    assert [round(100 * counts[4] / 99, 1) for counts in (py, combined)] == [74.7, 63.6]
    assert [round(100 * entry.figures[0] / entry.figures[1], 1) for entry in _TABLE_6[2:]] == [12.1, 17.2]
    for k, n, *_ in _TABLE_22.values():
        low, high = wilson(k, n)
        assert low < 0.09 and high > 0.30
