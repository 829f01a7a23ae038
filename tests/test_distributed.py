"""Two processes give what one gives, whether they share nothing, optimiser state or weights, and go on after a kill."""

from __future__ import annotations

import json
import os
import shutil
import signal
from functools import cache
from pathlib import Path

import pytest
import torch
import yaml
from small_models import save_model
from torch.utils.cpp_extension import _get_build_directory
from training_runs import ROOT, await_text, finish, launch, metrics, recipe_line, run, start, weights

from cad_train.trainer import sharding
from decoding.loading import COMPLETED, checkpoint_step

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
# By configuration, a file of a checkpoint that only its way of sharing writes.
SHARED = {
    "ddp": "rng_state_1.pth",
    "zero2": "global_step4/zero_pp_rank_1_mp_rank_00_optim_states.pt",
    "zero3": "global_step4/zero_pp_rank_1_mp_rank_00_model_states.pt",
    "zero3_offload": "global_step4/zero_pp_rank_1_mp_rank_00_model_states.pt",
    "fsdp2": "optimizer.bin",
}
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
    if name == "zero3_offload":
        # A first run of it compiles DeepSpeed's AdamW for the CPU, five minutes on two cores.
        compiled = Path(_get_build_directory("cpu_adam", verbose=False)) / "cpu_adam.so"
        if not compiled.exists():
            pytest.skip("DeepSpeed's AdamW for the CPU is not compiled here")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("distributed")


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    return save_model(folder / "model", "qwen2", tied=True)


@pytest.fixture(scope="module")
def line(folder: Path, model: Path):
    return lambda name, *settings: recipe_line(model, folder / "oracles", folder / name, *SETTINGS, *settings)


@pytest.fixture(scope="module")
def alone(folder: Path, line):
    """Return the run of one process that others with these settings must equal."""

    @cache
    def alone(*settings: str) -> Path:
        out = "-".join(["alone", *settings])
        run(line(out, "micro_batch=4", *settings), folder / "alone.log")
        return folder / out

    return alone


def assert_same_run(got: Path, expected: Path) -> None:
    for figure in ("loss", "grad_norm", "nll_end_digits", "accuracy", "eval_nll"):
        a, b = ([row[figure] for row in metrics(run, of=figure)] for run in (got, expected))
        assert a == pytest.approx(b, rel=2e-6), figure
    ours, theirs = weights(got / "final"), weights(expected / "final")
    if head := ours.keys() - theirs.keys():  # DeepSpeed writes a tied matrix once more
        assert head == {"lm_head.weight"}
        theirs["lm_head.weight"] = theirs["model.embed_tokens.weight"]
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        torch.testing.assert_close(weight, theirs[name], rtol=1e-5, atol=1e-5, msg=lambda text: f"{name}: {text}")  # noqa: B023


@pytest.mark.parametrize(
    ("name", "adapter"), [*((name, "full") for name in SHARED), ("ddp", "lora"), ("zero3", "lora"), ("fsdp2", "lora")]
)
def test_two_processes_train_as_one_and_go_on_after_a_kill(name, adapter, folder, line, alone):
    needs_deepspeed(name)
    settings = () if adapter == "full" else (f"adapter={adapter}",)
    log, out = folder / f"{name}-{adapter}.log", folder / f"{name}-{adapter}"
    config, command, expected = on_two_cpus(name, folder), line(out.name, *settings), alone(*settings)
    assert launch(config, command, log) == [0, 0], log.read_text()[-3000:]
    assert_same_run(out, expected)
    assert (out / "checkpoint-4" / SHARED[name]).exists()
    # As if both had been killed while checkpoint-4 was written.
    finished = weights(out / "final")
    (out / "summary.json").unlink()
    (out / "checkpoint-4" / COMPLETED).unlink()
    shutil.rmtree(out / "final")
    assert launch(config, command, log) == [0, 0], log.read_text()[-3000:]
    assert json.loads((out / "summary.json").read_text())["resumed_from"] == "checkpoint-2"
    assert_same_run(out, expected)
    for key, weight in weights(out / "final").items():
        torch.testing.assert_close(weight, finished[key], rtol=0, atol=0)


def test_examples_are_shared_out_by_length_and_without_padding_alike(folder, line, alone):
    settings = ("group_by_length=true", "padding_free=true")
    out, log = folder / "by-length", folder / "by-length.log"
    assert launch(on_two_cpus("ddp", folder), line("by-length", "micro_batch=2", *settings), log) == [0, 0]
    assert_same_run(out, alone(*settings))


def test_a_signal_to_one_process_stops_all_after_the_same_step(folder, line, alone):
    log, out = folder / "stopped.log", folder / "stopped"
    log.touch()

    def stop_the_second(workers: list[int]) -> None:
        await_text("step    1/", log, workers[0])
        os.kill(workers[1], signal.SIGTERM)

    codes = launch(on_two_cpus("ddp", folder), line("stopped", "max_steps=30", "save=no"), log, stop_the_second)
    assert codes == [128 + signal.SIGTERM] * 2, log.read_text()[-3000:]
    [checkpoint] = out.glob("checkpoint-*")
    assert (checkpoint / COMPLETED).exists() and metrics(out)[-1]["step"] == checkpoint_step(checkpoint)


def test_a_part_that_another_process_wrote_is_missed(folder, line, alone):
    log, out = folder / "parts.log", folder / "parts"
    config, command = on_two_cpus("ddp", folder), line("parts")
    assert launch(config, command, log) == [0, 0], log.read_text()[-3000:]
    (out / "summary.json").unlink()
    shutil.rmtree(out / "final")
    (out / "checkpoint-4" / SHARED["ddp"]).unlink()
    assert launch(config, command, log) == [0, 0], log.read_text()[-3000:]
    assert log.read_text().count(f"skipping checkpoint-4: {SHARED['ddp']} is missing") == 1
    assert json.loads((out / "summary.json").read_text())["resumed_from"] == "checkpoint-2"
    assert_same_run(out, alone())
    # What the main process finds stops all.
    (out / "run.json").unlink()
    assert launch(config, command, log) == [2, 2]
    assert "and is no run of ours: choose a new folder" in log.read_text()


def test_a_checkpoint_of_other_sharding_is_refused_by_name(folder, line):
    log, out = folder / "resharded.log", folder / "resharded"
    assert launch(on_two_cpus("fsdp2", folder), line("resharded", "max_steps=1", "save=no"), log) == [0, 0]
    (out / "summary.json").unlink()
    assert finish(start(line("resharded", "max_steps=1", "save=no"), log)) == 2
    assert "holds another run (processes was 2, now None; sharding was FSDP, now None)" in log.read_text()


def test_checkpointing_by_fsdp_itself_is_refused(folder, line):
    config, log = on_two_cpus("fsdp2", folder), folder / "refused.log"
    config.write_text(config.read_text().replace("activation_checkpointing: false", "activation_checkpointing: true"))
    assert launch(config, line("refused", "adapter=lora", "lora_dropout=0.1"), log) == [2, 2]
    assert "fsdp_activation_checkpointing=true draws dropout anew" in log.read_text()


# What is shipped


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_configuration_starts_the_processes_it_names(path, monkeypatch):
    """``accelerate launch`` up to the start of its workers, whose environment the recipe reads."""
    from accelerate.commands import launch as accelerate_launch

    if path.stem.startswith("zero"):
        needs_deepspeed("zero3")
    seen = {}

    def workers(args) -> None:
        seen.update(os.environ, nodes=int(str(args.nnodes).partition(":")[0]), processes=int(args.nproc_per_node))
        seen["sharding"] = sharding()

    class Alone:
        returncode = 0

        def __init__(self, command, env) -> None:
            seen.update(env, nodes=1, processes=1, sharding=None)

        def wait(self) -> None:
            pass

    monkeypatch.setattr("torch.distributed.run.run", workers)
    monkeypatch.setattr("subprocess.Popen", Alone)
    elsewhere = ["--main_process_ip", "127.0.0.1"] if path.stem == "multi_node" else []
    arguments = ["--config_file", str(path), *elsewhere, "recipes/sft_combined.py", "seed=0"]
    accelerate_launch.launch_command(accelerate_launch.launch_command_parser().parse_args(arguments))

    shipped = yaml.safe_load(path.read_text())
    assert seen["nodes"] * seen["processes"] == shipped["num_processes"]
    assert seen["ACCELERATE_MIXED_PRECISION"] == shipped["mixed_precision"]
    expected = {"zero2": "DeepSpeed ZeRO-2", "zero3": "DeepSpeed ZeRO-3", "zero3_offload": "DeepSpeed ZeRO-3"}
    assert seen["sharding"] == (expected | {"fsdp2": "FSDP"}).get(path.stem)
    offload = "cpu" if path.stem == "zero3_offload" else "none"
    if path.stem.startswith("zero"):
        assert seen["ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE"] == offload
        assert seen["ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE"] == offload


@pytest.mark.parametrize("name", SHARED)
def test_what_is_tested_is_what_is_shipped_but_for_the_device(name, tmp_path):
    tested, shipped = (
        yaml.safe_load(path.read_text()) for path in (on_two_cpus(name, tmp_path), CONFIGS / f"{name}.yaml")
    )
    different = {key for key in tested | shipped if tested.get(key) != shipped.get(key)}
    assert different <= OF_THE_DEVICE.keys()
    assert tested["distributed_type"] == shipped["distributed_type"]


def test_offloading_differs_from_zero3_in_nothing_else():
    zero3, offload = (yaml.safe_load((CONFIGS / f"{name}.yaml").read_text()) for name in ("zero3", "zero3_offload"))
    for key in ("offload_optimizer_device", "offload_param_device"):
        assert offload["deepspeed_config"].pop(key) == "cpu" and zero3["deepspeed_config"].pop(key) == "none"
    assert offload == zero3
