"""Two processes give what one gives, whether they share nothing, optimiser state or weights, and go on after a kill."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from small_models import save_model
from training_runs import RECIPE, ROOT, finish, launch, metrics, recipe_line, run, start, weights

CONFIGS = ROOT / "accelerate_configs"
# What a test with two processes on a CPU may change of a shipped configuration.
OF_THE_DEVICE = {
    "use_cpu": True,
    "gpu_ids": None,
    "num_machines": 1,
    "num_processes": 2,
    "machine_rank": 0,
    "main_process_port": 0,  # any that is free
    "mixed_precision": "no",
}
SHARED = ["ddp", "zero2", "zero3", "fsdp2"]
# An epoch of 11 examples ends in the third step; no process may see an example twice for it.
SETTINGS = ["max_steps=4", "save=steps", "save_steps=2", "keep_checkpoints=2", "activation_checkpointing=true"]


def on_two_cpus(name: str, folder: Path) -> Path:
    """Write the shipped configuration ``name`` for two processes on a CPU: all but ``OF_THE_DEVICE`` as it is."""
    shipped = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())
    config = {key: value for key, value in (shipped | OF_THE_DEVICE).items() if value is not None}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def needs_deepspeed(name: str) -> None:
    if name.startswith("zero"):
        pytest.importorskip("deepspeed", reason="needs DeepSpeed: pip install 'cad-train[deepspeed]'")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("distributed")


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    return save_model(folder / "model", "qwen2")


@pytest.fixture(scope="module")
def line(folder: Path, model: Path):
    return lambda name, *settings: recipe_line(model, folder / "oracles", folder / name, *SETTINGS, *settings)


@pytest.fixture(scope="module")
def alone(folder: Path, line) -> Path:
    """The run of one process that all others must equal."""
    run(line("alone", "micro_batch=4"), folder / "alone.log")
    return folder / "alone"


def assert_same_run(got: Path, expected: Path) -> None:
    for figure in ("loss", "grad_norm", "nll_end_digits", "accuracy", "eval_nll"):
        a, b = ([row[figure] for row in metrics(run, of=figure)] for run in (got, expected))
        assert a == pytest.approx(b, rel=2e-6), figure
    ours, theirs = weights(got / "final"), weights(expected / "final")
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        torch.testing.assert_close(weight, theirs[name], rtol=1e-5, atol=1e-5, msg=lambda text: f"{name}: {text}")  # noqa: B023


@pytest.mark.parametrize("name", SHARED)
def test_two_processes_train_as_one_and_go_on_after_a_kill(name, folder, line, alone, monkeypatch):
    needs_deepspeed(name)
    config, log, out = on_two_cpus(name, folder), folder / f"{name}.log", folder / name
    launch(monkeypatch, config, line(name), log)
    assert_same_run(out, alone)
    data, expected = (json.loads((run / "data.json").read_text()) for run in (out, alone))
    assert data == expected
    # As if both had been killed while checkpoint-4 was written.
    finished = weights(out / "final")
    (out / "summary.json").unlink()
    (out / "checkpoint-4" / "COMPLETED").unlink()
    shutil.rmtree(out / "final")
    launch(monkeypatch, config, line(name), log)
    assert json.loads((out / "summary.json").read_text())["resumed_from"] == "checkpoint-2"
    assert_same_run(out, alone)
    for key, weight in weights(out / "final").items():
        torch.testing.assert_close(weight, finished[key], rtol=0, atol=0)
