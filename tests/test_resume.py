"""Resume: killed at any moment, a run goes on to the very weights it would have had; what differs is refused by name."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import safetensors.torch
import torch
from small_models import save_model
from training_runs import RECIPE, ROOT, finish, metrics, recipe_line, run, start, weight_bytes

from decoding.loading import COMPLETED, checkpoint_step, newest_checkpoint

EVERY_STEP = ["max_steps=2", "save=steps", "save_steps=1"]
OF_THE_CLOCK = ("seconds", "tokens_per_s")


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"), "qwen2")


@pytest.fixture
def line(tmp_path: Path, model_folder: Path):
    """Return the command line of a run in the folder ``name`` with some settings."""

    def line(name: str, *settings: str) -> list[str]:
        return recipe_line(model_folder, tmp_path / "oracles", tmp_path / name, *settings)

    return line


def log_of(folder: Path) -> list[dict]:
    """All rows of metrics.jsonl, without what the clock says."""
    return [{key: row[key] for key in row if key not in OF_THE_CLOCK} for row in metrics(folder, of="step")]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# Every write


def photograph(folder: Path, copies: Path) -> None:
    """From now on, copy ``folder`` before each of this process's writes, and with the file of the write half-written.

    What a kill leaves is what is on disk at that moment, so that the copies are what is left of a run that dies there.
    """
    copying = False

    def copy(cut: Path | None = None) -> None:
        nonlocal copying
        copying = True
        target = copies / f"{len(list(copies.iterdir())):03}"
        shutil.copytree(folder, target) if folder.exists() else target.mkdir()
        if cut is not None:
            half = target / cut.relative_to(folder)
            half.parent.mkdir(parents=True, exist_ok=True)
            half.write_bytes(half.read_bytes()[: half.stat().st_size // 2] if half.exists() else b"")
        copying = False

    def inside(path, directory: int = -1) -> Path | None:
        if copying or not isinstance(path, (str, os.PathLike)):
            return None
        path = Path(os.readlink(f"/proc/self/fd/{directory}") if directory != -1 else "", path)
        return path if path.is_relative_to(folder) else None

    def before(event: str, arguments: tuple) -> None:
        if event == "open":
            path, mode, flags = arguments
            if flags & (os.O_WRONLY | os.O_RDWR) and (path := inside(path)):
                copy()
                if not flags & os.O_APPEND:
                    copy(cut=path)
        elif event in ("os.mkdir", "os.rename") and inside(arguments[0]):
            copy()
        elif event in ("os.remove", "os.rmdir") and inside(*arguments[:2]):
            copy()

    def halving(write, position: int):
        def photographed(*arguments, **options):
            path = inside(arguments[position])
            if path:
                copy()
            result = write(*arguments, **options)
            if path:
                copy(cut=path)
            return result

        return photographed

    # Written in C++ and in Rust, which Python's audit events do not see.
    torch.save = halving(torch.save, 1)
    safetensors.torch.serialize_file = halving(safetensors.torch.serialize_file, 1)
    sys.addaudithook(before)


def test_whatever_write_a_run_dies_at_it_ends_with_the_same_weights(tmp_path, line):
    whole, copies, log = tmp_path / "whole", tmp_path / "copies", tmp_path / "log"
    copies.mkdir()
    run(line("oracles-only", "max_steps=1", "save=no"), log)  # prepares the data
    assert finish(start(line("whole", *EVERY_STEP), log, lambda: photograph(whole, copies))) == 0, log.read_text()
    written = {path.relative_to(copy).parts[0] for copy in copies.iterdir() for path in copy.rglob("*")}
    assert {"run.json", "checkpoint-1", "checkpoint-2", ".final", "final", "metrics.jsonl"} <= written
    expected = weight_bytes(whole), log_of(whole)
    newest, seen, resumed = 0, [], set()
    for copy in sorted(copies.iterdir()):
        checkpoint = newest_checkpoint(copy)
        assert (checkpoint_step(checkpoint) if checkpoint else 0) >= newest, f"{copy}: a whole checkpoint is lost"
        newest = checkpoint_step(checkpoint) if checkpoint else 0
        found = contents(copy)
        if found in seen:
            continue
        seen.append(found)
        run(line(f"copies/{copy.name}", *EVERY_STEP), log)
        assert (weight_bytes(copy), log_of(copy)) == expected, copy
        left = {path.name for path in copy.iterdir() if path.is_dir()}
        assert left == {"checkpoint-2", "final"}, copy
        resumed.add(json.loads((copy / "summary.json").read_text())["resumed_from"])
    assert resumed == {None, "checkpoint-1", "checkpoint-2"}
