"""Plots of training curves: grouping over seeds, bands, runs that differ in steps, unfinished and empty runs."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cad_train.config import TrainConfig
from decoding.commandline import UserError, to_yaml
from eval.curves import band, group_runs, read_run, smoothed

ROOT = Path(__file__).resolve().parent.parent
REGIONS = ("structure", "start_digits", "end_digits", "gen_text", "end")


def plot(*arguments: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "recipes/plot.py", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def make_run(folder: Path, seed: int = 0, steps=range(1, 21), finished: bool = True, **settings) -> Path:
    """A run folder as a recipe leaves it, with a loss that falls by a curve of its own for every seed and lr."""
    config = TrainConfig(seed=seed, out=str(folder), **settings)
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(to_yaml(config))
    (folder / "data.json").write_text(json.dumps({"fingerprint": "f" * 64}))
    rows = [{"step": 0, "epoch": 0.0, "eval_nll": 3.0, "eval_exact_match": 0.0}]
    for step in steps:
        loss = 3 * np.exp(-step * config.lr * 2000) + 0.1 * seed
        rows.append({"step": step, "loss": loss, "lr": 1e-4} | {f"nll_{region}": loss / 2 for region in REGIONS})
        if step % 5 == 0:
            rows.append({"step": step, "eval_nll": loss + 0.2, "eval_exact_match": min(1.0, step / 30 + seed / 10)})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if finished:
        (folder / "summary.json").write_text("{}")
    return folder


def texts(path: Path) -> list[str]:
    return ["".join(element.itertext()).strip() for element in ET.parse(path).iter("{http://www.w3.org/2000/svg}text")]


def test_seeds_are_one_line_with_a_band_and_other_settings_are_another(tmp_path):
    pytest.importorskip("matplotlib")
    runs = [make_run(tmp_path / f"slow{seed}", seed) for seed in range(3)]
    runs += [make_run(tmp_path / f"fast{seed}", seed, lr=1e-4) for seed in range(2)]
    out = tmp_path / "deeper" / "plot.svg"
    done = plot(*runs, f"out={out}")
    assert done.returncode == 0, done.stderr
    assert "lr=2e-05: 3 runs, up to step 20; last training loss 1.448 (1.348 to 1.548)" in done.stdout
    assert "lr=0.0001: 2 runs" in done.stdout and done.stdout.endswith(f"wrote {out}\n")
    shown = texts(out)
    assert {"lr=2e-05 (seeds 0, 1, 2)", "lr=0.0001 (seeds 0, 1)"} <= set(shown)
    assert {"training loss", "held-out loss", "held-out EM", "training loss: end digits"} <= set(shown)
    bands = [element for element in ET.parse(out).iter() if "FillBetweenPolyCollection" in element.get("id", "")]
    assert len(bands) == 2 * 8  # both groups in every panel
    before = out.read_bytes()
    assert plot(*runs, f"out={out}").returncode == 0
    assert out.read_bytes() == before


def test_a_single_run_has_its_plot_beside_it_and_a_png_may_be_asked_for(tmp_path):
    pytest.importorskip("matplotlib")
    run = make_run(tmp_path / "run", seed=4)
    done = plot(run)
    assert done.returncode == 0, done.stderr
    assert "run (seed 4)" in texts(run / "plot.svg")
    assert plot(run, f"out={tmp_path / 'plot.png'}", "smooth=5").returncode == 0
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_unfinished_and_empty_runs_are_said_and_damaged_rows_counted(tmp_path):
    pytest.importorskip("matplotlib")
    half = make_run(tmp_path / "half", steps=range(1, 8), finished=False)
    with (half / "metrics.jsonl").open("a") as file:
        file.write('{"step": 8, "loss": NaN}\n{"step": 9, "lo')
    empty = make_run(tmp_path / "empty", seed=1, finished=False)
    (empty / "metrics.jsonl").unlink()
    done = plot(half, empty, f"out={tmp_path / 'plot.svg'}")
    assert done.returncode == 0, done.stderr
    assert f"{half}: not finished\n" in done.stderr
    assert f"{half}: 1 rows of metrics.jsonl are damaged, and left out\n" in done.stderr
    assert f"{half}: 1 values are not finite, and not drawn\n" in done.stderr
    assert f"{empty}: nothing has been logged yet, and nothing is drawn\n" in done.stderr
    assert "1 run, up to step 7" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "there is no folder nowhere"),
        (["tests"], "tests is no run folder (no config.yaml)"),
        (["tests", "./tests"], "named twice"),
        (["tests", "out=plot.doc"], "ends in .svg or .png"),
        (["tests", "smooth=0"], "smooth=0: must be at least 1"),
        (["tests", "smoth=2"], "did you mean 'smooth'?"),
        ([], "runs"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments, message):
    done = plot(*arguments)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and message in done.stderr


def test_only_empty_runs_are_an_error(tmp_path):
    pytest.importorskip("matplotlib")
    run = make_run(tmp_path / "run")
    (run / "metrics.jsonl").write_text("")
    done = plot(run)
    assert done.returncode == 2 and "nothing has been logged yet" in done.stderr
    assert not (run / "plot.svg").exists()


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    from recipes.plot import Config, main

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=r"pip install 'cad-train\[report\]'"):
        main(Config(["run"]))


def test_runs_on_other_training_data_are_not_one_group(tmp_path):
    runs = [make_run(tmp_path / name, seed) for seed, name in enumerate("ab")]
    assert len(group_runs([read_run(str(run)) for run in runs])) == 1
    (runs[1] / "data.json").write_text(json.dumps({"fingerprint": "0" * 64}))
    labels = [group.label for group in group_runs([read_run(str(run)) for run in runs])]
    assert len(set(labels)) == 2


def test_other_log_steps_line_up_by_step_and_an_early_end_does_not_count_beyond_it():
    every, other = [(step, float(step)) for step in range(1, 7)], [(2, 4.0), (4, 8.0)]
    over = band([every, other])
    assert over.steps.tolist() == [1, 2, 3, 4, 5, 6]
    assert over.mean.tolist() == [1, 3, 4.5, 6, 5, 6]
    assert over.low.tolist() == [1, 2, 3, 4, 5, 6] and over.high.tolist() == [1, 4, 6, 8, 5, 6]


curves = st.lists(
    st.dictionaries(st.integers(0, 50), st.floats(-1e3, 1e3), min_size=1).map(lambda points: sorted(points.items())),
    min_size=1,
    max_size=4,
)


@given(curves)
def test_a_band_holds_its_mean_and_every_logged_value(runs):
    over = band(runs)
    assert np.all(over.low <= over.mean + 1e-9) and np.all(over.mean <= over.high + 1e-9)
    at = {step: index for index, step in enumerate(over.steps.tolist())}
    for run in runs:
        for step, value in run:
            assert over.low[at[step]] <= value <= over.high[at[step]]


@given(curves, st.integers(1, 9))
def test_smoothing_is_the_mean_of_the_last_values(runs, window):
    for run in runs:
        values = [value for _, value in run]
        for at, (step, value) in enumerate(smoothed(run, window)):
            assert step == run[at][0]
            assert value == pytest.approx(np.mean(values[: at + 1][-window:]), abs=1e-9)
