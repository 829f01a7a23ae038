"""Recipe command lines for tests of training, in forks of one server, alone or as accelerate launch starts them."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.util
import json
import multiprocessing.forkserver
import os
import runpy
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState, DistributedType, PartialState
from safetensors.torch import load_file

# Torch, transformers and trl take 7 s to import: once here, not once in every run.
import cad_train.sft  # noqa: F401
import eval.while_training  # noqa: F401

for slow in ("peft", "bitsandbytes", "deepspeed"):
    if importlib.util.find_spec(slow):
        importlib.import_module(slow)

ROOT = Path(__file__).resolve().parent.parent
RECIPE = "recipes/sft_combined.py"


def recipe_line(model: Path, oracles: Path, out: Path, *settings: str) -> list[str]:
    """The command line of a run over 11 short examples; ``settings`` come last and win."""
    return [
        RECIPE,
        *["data.corpora=[probeedit]", "data.probeedit.cases=14", "data.probeedit.min_lines=4"],
        *["data.probeedit.max_lines=6", f"data.out={oracles}", f"model={model}", f"out={out}", "max_length=4096"],
        *["batch_size=4", "lr=1e-3", "precision=fp32", "activation_checkpointing=false", *settings],
    ]


@functools.cache
def _server():
    """A process of one thread that has all imported, and forks for every run.

    Forks of the tests' own process would hang now and then: it has threads, whose locks a fork cannot open.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["training_runs"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # CPython 3.11 does not hand it on
        multiprocessing.forkserver.ensure_running()
    return context


_started: dict[int, multiprocessing.process.BaseProcess] = {}


def start(arguments: list[str], log: Path, prepare: Callable[[], None] | None = None, **environment: str) -> int:
    """Run a script's command line in a process of its own; return its id.

    ``prepare``, which can be pickled, runs in it before the script. What the script prints goes to ``log``.
    """
    process = _server().Process(target=_run_script, args=(arguments, log, prepare, os.environ | environment))
    process.start()
    _started[process.pid] = process
    return process.pid


def _run_script(arguments: list[str], log: Path, prepare, environment: dict[str, str]) -> None:
    gc.freeze()  # or the first collection in the fork would copy every page
    code = 1
    try:
        with log.open("ab", buffering=0) as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
        os.chdir(ROOT)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = arguments
        AcceleratorState._reset_state(reset_partial_state=True)
        if prepare:
            prepare()
        runpy.run_path(arguments[0], run_name="__main__")
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def finish(process: int, seconds: float = 120) -> int:
    """Wait for a run and return its exit status, negative for the signal that ended it, as subprocess does."""
    running = _started.pop(process)
    running.join(seconds)
    if running.exitcode is None:
        running.kill()
        running.join()
        raise AssertionError(f"process {process} did not end in {seconds} s")
    return running.exitcode


def send(process: int, number: int) -> None:
    """Send a signal to a run; one that has ended does not get it."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)


def run(arguments: list[str], log: Path, **environment: str) -> str:
    """Run a command line to its end, which must be a good one; return what it printed."""
    before = log.stat().st_size if log.exists() else 0
    code = finish(start(arguments, log, **environment))
    printed = log.read_bytes()[before:].decode()
    assert code == 0, printed[-3000:]
    return printed


def launch(config: Path, arguments: list[str], log: Path, meanwhile=lambda workers: None) -> list[int]:
    """Do what ``accelerate launch --config_file config arguments`` does, with forks as workers, on a CPU over gloo.

    Returns the exit statuses of the workers. ``meanwhile`` is given their process ids while they run.
    """
    from accelerate.commands import launch as accelerate_launch

    codes = []

    def workers(args) -> None:
        """Stand in for torchrun: the same environment for every worker, without a new interpreter."""
        count = int(args.nproc_per_node)
        world = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1"}
        world |= {"MASTER_PORT": str(args.master_port), "ACCELERATE_TORCH_DEVICE": "cpu"}
        started = [
            start([args.training_script, *args.training_script_args], log, as_if_on_gpus, **world, RANK=rank)
            for rank in map(str, range(count))
        ]
        meanwhile(started)
        codes.extend(finish(process) for process in started)

    parser = accelerate_launch.launch_command_parser()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.distributed.run.run", workers)
        accelerate_launch.launch_command(parser.parse_args(["--config_file", str(config), *arguments]))
    return codes


def as_if_on_gpus() -> None:
    """In a worker: let accelerate, which knows DeepSpeed and FSDP only on accelerators, take gloo on a CPU for one."""
    os.environ["LOCAL_RANK"] = os.environ["RANK"]
    if os.environ.get("ACCELERATE_USE_DEEPSPEED") == os.environ.get("ACCELERATE_USE_FSDP"):
        os.environ["ACCELERATE_USE_CPU"] = "true"
        return
    torch.distributed.init_process_group("gloo")
    PartialState._prepare_backend = lambda *_: ("gloo", DistributedType.MULTI_GPU)
    if os.environ.get("ACCELERATE_USE_DEEPSPEED"):
        import deepspeed.ops

        # Its collectives over shared memory take minutes to compile; gloo is what is tested.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def await_text(text: str, log: Path, process: int) -> None:
    """Wait until a run has printed ``text``, or has ended."""
    while text not in log.read_text() and _started[process].is_alive():
        time.sleep(0.002)


def metrics(run: Path, of: str = "loss") -> list[dict]:
    """The rows of metrics.jsonl that have the figure ``of``."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if of in row]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of a model or adapter folder."""
    [file] = folder.glob("*.safetensors")
    return load_file(file)


def weight_bytes(run: Path) -> bytes:
    """The weights of a finished run, as they are on disk."""
    [file] = (run / "final").glob("*.safetensors")
    return file.read_bytes()
