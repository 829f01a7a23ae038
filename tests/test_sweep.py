"""Sweeps on real command lines: the grid, failures and resuming, the same seed, the table beside a baseline."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_models import save_model

from cad_train.grid import load_recipe, make_grid
from decoding.commandline import UserError

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def sweep(*arguments: object, timeout: int = 300) -> subprocess.CompletedProcess:
    command = [sys.executable, "recipes/sweep.py", *map(str, arguments)]
    return subprocess.run(
        command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=timeout, check=False
    )


def losses(run: Path) -> list[float]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if "loss" in row]


def state(out: Path) -> dict:
    return json.loads((out / "sweep.json").read_text())


def test_a_grid_survives_a_failure_resumes_and_compares_with_its_baseline(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    save_model(first, "qwen2")
    out = tmp_path / "sweep"
    command = [
        "recipe=sft_combined",
        *[f"model=[{second},{first}]", f"baseline=model={first}", f"out={out}"],
        *["launcher=accelerate_configs/cpu.yaml", "adapter=lora", "max_steps=2", "batch_size=2", "lr=1e-3"],
        *["data.corpora=[probeedit]", "data.probeedit.cases=10", "data.probeedit.max_lines=6", "data.heldout=0.2"],
        *["data.probeedit.min_lines=4", f"data.out={tmp_path / 'oracles'}", "max_length=4096", "save=no"],
        *["activation_checkpointing=false", "precision=fp32"],
        *["heldout.max_tokens=8", "heldout.limit=2", "heldout.baseline=[fsm]"],
    ]
    # The second model does not exist yet: its run fails, and the other is trained and scored all the same.
    done = sweep(*command, "seeds=[0]")
    assert done.returncode == 1, done.stderr
    assert f"failed: model={second} seed 0: training failed (exit code 1)" in done.stderr
    assert f"there is no model folder {second}" in done.stderr
    # Same models, so same seed must mean same losses, the random half of the adapters included.
    shutil.copytree(first, second)
    before = {run["point"]: run for run in state(out)["runs"] if run["training"] == "finished"}
    assert list(before) == [f"model={first}"]
    trained = Path(before[f"model={first}"]["folder"])
    written = (trained / "metrics.jsonl").stat().st_mtime_ns

    done = sweep(*command, "seeds=[0,1]")
    assert done.returncode == 0, done.stderr
    runs = {(run["point"], run["seed"]): run for run in state(out)["runs"]}
    assert all((run["training"], run["scoring"]) == ("finished", "scored") for run in runs.values())
    assert (trained / "metrics.jsonl").stat().st_mtime_ns == written  # finished before: skipped
    folder = {key: Path(run["folder"]) for key, run in runs.items()}
    for seed in (0, 1):
        ours, theirs = (folder[f"model={model}", seed] for model in (first, second))
        assert losses(ours) == losses(theirs) and len(losses(ours)) == 2
        weights = [(run / "final" / "adapter_model.safetensors").read_bytes() for run in (ours, theirs)]
        assert weights[0] == weights[1]
    assert losses(folder[f"model={first}", 0]) != losses(folder[f"model={first}", 1])

    text = (out / "sweep.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| model=") and "| 0, 1 " in line]
    [row] = [line for line in rows if line.startswith(f"| model={second} ") and "+0.0 [+0.0, +0.0]" in line]
    assert row in done.stdout
    [row] = [line for line in rows if line.startswith(f"| model={first} ") and "| baseline " in line]
    assert "0/4 = 0.0% [0.0%, 49.0%]" in row and "0.0% ± 0.0% (0.0% to 0.0%)" in row
    assert "untrained" in text
    assert state(out)["comparisons"][f"model={second}"][0]["p"] == 1.0
    log = (folder[f"model={second}", 0] / "log.txt").read_text()
    assert log.count("$ ") == 2 and "there is no model folder" in log and "step    2/2" in log

    # The runs of a sweep can be drawn, with the EM of their held-out results.
    pytest.importorskip("matplotlib")
    plot = [sys.executable, "recipes/plot.py", *map(str, folder.values()), f"out={tmp_path / 'plot.svg'}"]
    drawn = subprocess.run(plot, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert drawn.returncode == 0 and drawn.stderr == "", drawn.stderr
    assert drawn.stdout.count(": 2 runs, up to step 2; last training loss ") == 2
    assert "EM of the trained model on its held-out results" in (tmp_path / "plot.svg").read_text()


SLOW = '''
"""A recipe of a user's own: stops on SIGTERM as ours do, and goes on when it is started again."""
import pathlib, signal, sys, time
from dataclasses import dataclass
from decoding.commandline import run

@dataclass
class Config:
    seed: int = 0
    out: str | None = None

def main(config: Config) -> None:
    folder = pathlib.Path(config.out)
    if not (folder / "checkpoint").exists():
        def stop(*_):
            (folder / "checkpoint").touch()
            print("saved", flush=True)
            sys.exit(143)
        signal.signal(signal.SIGTERM, stop)
        print("started", flush=True)
        time.sleep(60)
    (folder / "summary.json").write_text("{}")

if __name__ == "__main__":
    run(main, Config)
'''


def test_a_stopped_sweep_lets_its_run_save_and_goes_on_later(tmp_path):
    recipe, out = tmp_path / "slow.py", tmp_path / "sweep"
    recipe.write_text(SLOW)
    command = [f"recipe={recipe}", "seeds=[3]", f"out={out}"]
    log = out / "seed3" / "log.txt"
    process = subprocess.Popen([sys.executable, "recipes/sweep.py", *command], cwd=ROOT, env=ENVIRONMENT)
    try:
        deadline = time.monotonic() + 120
        while not (log.exists() and "started" in log.read_text()):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 130
    finally:
        process.kill()
    assert log.read_text().endswith("saved\n")
    assert [run["training"] for run in state(out)["runs"]] == ["interrupted"]
    # What a recipe of another kind leaves behind cannot be scored: that is one more line, and not the end.
    done = sweep(*command)
    assert done.returncode == 1
    assert "failed: slow seed 3: scoring failed: " in done.stderr
    assert [run["training"] for run in state(out)["runs"]] == ["finished"]
    assert "| slow  | 3    | finished | failed  |" in (out / "sweep.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["recipe=sft_pi"], "name one of qlora_7b, sft_combined, sft_py"),
        (["recipe=sweep"], "is no training recipe"),
        (["recipe=sft_py", "sede=[0,1]"], "unknown key 'sede'; did you mean 'seed'?"),
        (["recipe=sft_py", "seed=[0,1]"], "seeds=[0,1,2]"),
        (["recipe=sft_py", "seeds=[0,0]"], "give each seed once"),
        (["recipe=sft_py", "seeds=0,1"], "write several as seeds=[0,1,2]"),
        (["recipe=sft_py", "seeds=0-2"], "write several as seeds=[0,1,2]"),
        (["recipe=sft_py", "seeds=[0,-1]"], "seed=-1: must be at least 0 and below 2**32"),
        (["recipe=sft_py", "lr=[1e-3,-1]"], "lr=-1.0: must be above 0, and finite"),
        (["recipe=sft_py", "lr=[1e-3,0.001]"], "lr=1e-3 and lr=0.001 would be the same run"),
        (["recipe=sft_py", "save_steps=[1,2]"], "save_steps=1 and save_steps=2 would be the same run"),
        (["recipe=sft_py", "lr=1e-3", "lr=[1e-3,1e-4]"], "lr is given twice"),
        (["recipe=sft_py", "lr=[1e-3,1e-4]", "baseline=lr=1"], "choose from lr=1e-3 lr=1e-4"),
        (["recipe=sft_py", "heldout.limits=2"], "heldout: unknown key 'limits'; did you mean 'limit'?"),
        (["recipe=sft_py", "heldout.out=x"], "RUN/heldout"),
        (["recipe=sft_py", "launcher=no.yaml"], "launcher=no.yaml: there is no such file"),
    ],
)
def test_a_mistake_is_refused_before_anything_runs(arguments, message, tmp_path):
    done = sweep(*arguments, f"out={tmp_path / 'out'}")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and message in done.stderr
    assert not (tmp_path / "out").exists()


def test_axes_multiply_in_order_and_all_points_come_before_the_next_seed(tmp_path):
    recipe = load_recipe("sft_py")
    runs = make_grid(recipe, ["lr=[1e-3,2e-3]", "splice=[none,full]", "batch_size=4"], [5, 6], tmp_path)
    points = [f"lr={lr},splice={splice}" for lr in ("1e-3", "2e-3") for splice in ("none", "full")]
    assert [(run.seed, run.point) for run in runs] == [(seed, point) for seed in (5, 6) for point in points]
    assert len({run.folder for run in runs}) == 8 and all(run.folder.is_relative_to(tmp_path) for run in runs)
    assert (runs[3].config.lr, runs[3].config.splice, runs[3].config.batch_size) == (2e-3, "full", 4)
    [alone] = make_grid(recipe, ["batch_size=4"], [5], tmp_path)
    assert alone.folder == tmp_path / "seed5"


def test_a_list_key_is_one_value_and_a_list_of_lists_an_axis_with_oracles_of_its_own(tmp_path):
    recipe = load_recipe("sft_combined")
    [one] = make_grid(recipe, ["data.corpora=[probeedit,pyfix]"], [0], tmp_path)
    assert one.config.data.corpora == ["probeedit", "pyfix"] and one.config.data.out == "data/oracles"
    runs = make_grid(recipe, ["data.corpora=[[probeedit],[probeedit, pyfix]]", "lr=[1,2]"], [0], tmp_path)
    assert [run.config.data.corpora for run in runs] == [["probeedit"]] * 2 + [["probeedit", "pyfix"]] * 2
    places = [run.config.data.out for run in runs]
    assert len(set(places)) == 2 and places[0] == places[1] and places[0].startswith("data/oracles-data.corpora=")
    with pytest.raises(UserError, match=r"one list \[a,b\] or a list of lists"):
        make_grid(recipe, ["data.corpora=[[probeedit],pyfix]"], [0], tmp_path)


def test_values_are_taken_as_typed(tmp_path):
    recipe = load_recipe("sft_combined")
    runs = make_grid(recipe, ["model=[a/b,'c, d',2024_01,none]", "max_steps=[null,3]"], [0], tmp_path)
    assert [run.config.model for run in runs[::2]] == ["a/b", "c, d", "2024_01", "none"]
    assert [run.config.max_steps for run in runs[:2]] == [None, 3]
    assert all(run.folder.parent.parent == tmp_path for run in runs)  # a name of its own, without folders within


def test_a_folder_with_a_run_of_other_settings_is_refused(tmp_path):
    from decoding.commandline import to_yaml

    recipe = load_recipe("sft_py")
    [run] = make_grid(recipe, ["lr=1e-3"], [0], tmp_path)
    run.folder.mkdir(parents=True)
    (run.folder / "config.yaml").write_text(to_yaml(run.config))
    make_grid(recipe, ["lr=1e-3", "save_steps=7"], [0], tmp_path)  # may change when a run goes on
    with pytest.raises(UserError, match=r"holds another run \(lr was 0.001, now 0.002\)"):
        make_grid(recipe, ["lr=2e-3"], [0], tmp_path)
