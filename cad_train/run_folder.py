"""The run folder: what a run was, what it did, and which of its checkpoints are whole.

config.yaml   the resolved settings          metrics.jsonl   one line per logged step
env.json      versions, command, device      checkpoint-N/   with COMPLETED once whole
data.json     oracles, fingerprint, counts   final/          model and tokenizer, whole if it is there
run.json      what a resume must have equal  summary.json    written last
.lock         held while a process trains

A process may die between any two writes: what is there is then either whole or not counted.
"""

from __future__ import annotations

import errno
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

from data_prep.rows import write_text
from decoding.commandline import UserError, to_yaml
from decoding.loading import COMPLETED, checkpoint_step, checkpoints, file_digest, newest_checkpoint
from decoding.lock import take_lock

PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "tokenizers", "bitsandbytes", "deepspeed")


_WRITTEN = ("run.json", "config.yaml", "data.json", "env.json", "metrics.jsonl", "summary.json")
# What says that a folder is something else: what a run would write over or remove, a model's files, prepared data.
_LOST = (*_WRITTEN, "checkpoint-*", "final", "config.json", "manifest.json")
_SHOWN = 5  # settings that differ


class RunFolder:
    """Paths and writers of one run folder. Only the main process writes."""

    def __init__(self, path: Path, main_process: bool) -> None:
        self.path, self.main_process = path, main_process
        self._lock: IO[str] | None = None

    def take(self) -> None:
        """Make the folder and hold it for this process, until ``release`` or its death.

        Raises:
            UserError: it cannot be written, another process holds it, or what is in it is of another program.
        """
        try:
            if self.path.exists() and not self.path.is_dir():
                raise UserError(f"out={self.path} is a file: name a folder")
            for inner, outer in pairwise([self.path.resolve(), *self.path.resolve().parents]):
                if (outer / "run.json").exists() and re.fullmatch(r"\.?final|checkpoint-\d+", inner.name):
                    raise UserError(f"out={self.path} is inside the run {outer}, which would remove it: choose another")
            there = self.read_json("run.json")
            ours = isinstance(there, dict) and {"settings", "launch"} <= there.keys()
            lost = [] if ours else [path.name for name in _LOST for path in self.path.glob(name)]
            if lost:
                raise UserError(f"out={self.path} holds {lost[0]} and is no run of ours: choose a new folder")
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / ".lock").open("w")
        except OSError as error:
            raise UserError(f"out={self.path} cannot be written: {error.strerror}") from None
        if not take_lock(self._lock):
            self.release()
            raise UserError(f"{self.path} is being trained by another process: wait for it, or choose another out=")

    def release(self) -> None:
        """Let other processes have the folder; of a run that did not begin, nothing stays."""
        if self._lock is None:
            return
        if [path.name for path in self.path.iterdir()] == [".lock"]:
            (self.path / ".lock").unlink()
            self.path.rmdir()
        self._lock.close()

    @property
    def started(self) -> bool:
        """Whether there is anything of a training in it; a first try may have failed before."""
        log = self.path / "metrics.jsonl"
        return bool(checkpoints(self.path)) or self.final.exists() or log.exists() and log.stat().st_size > 0

    @property
    def final(self) -> Path:
        """Where the trained model is, once it is whole."""
        return self.path / "final"

    @property
    def unfinished(self) -> Path:
        """Where the trained model is written before ``publish_final``."""
        return self.path / ".final"

    def publish_final(self) -> None:
        """Put the model of ``unfinished`` in place of whatever is in ``final``, on the main process."""
        if self.main_process:
            _state_whole(self.unfinished)
            shutil.rmtree(self.final, ignore_errors=True)
            self.unfinished.rename(self.final)

    def mark_checkpoint(self, step: int) -> None:
        """Call the checkpoint of ``step`` whole, on the main process, after every process has written its part."""
        if self.main_process:
            if (self.path / "metrics.jsonl").exists():
                _flush(self.path / "metrics.jsonl")
            _state_whole(self.path / f"checkpoint-{step}")

    def keep_checkpoints(self, count: int, best: str | None) -> None:
        """Remove all but the ``count`` newest checkpoints and the ``best``, on the main process."""
        spared = {Path(best).name} if best else set()
        for path in checkpoints(self.path)[:-count]:
            if path.name not in spared:
                self._remove_checkpoint(path)

    def open_checkpoint(self, resume: bool) -> Path | None:
        """Return the checkpoint to go on from: the newest whole one, or None to start anew.

        Removes what no run goes on from: half-written and damaged checkpoints, which the run writes again on its way
        from an older one, or without ``resume`` all.

        Raises:
            UserError: nothing but damaged checkpoints, which are left as they are.
        """
        faults: list[str] = []
        newest = newest_checkpoint(self.path, faults.append) if resume else None
        for fault in faults:
            print(fault, flush=True)
        if faults and newest is None:
            raise UserError(f"{self.path} has no whole checkpoint left: put one back, or start anew with resume=none")
        for path in checkpoints(self.path):
            whole = (path / COMPLETED).exists()
            damaged = newest is not None and checkpoint_step(path) > checkpoint_step(newest)
            if newest is None or damaged or not whole:
                why = "half-written" if not whole else "damaged" if damaged else "resume=none"
                print(f"removing {path}: {why}", flush=True)
                self._remove_checkpoint(path)
        return newest

    def _remove_checkpoint(self, path: Path) -> None:
        if self.main_process:
            (path / COMPLETED).unlink(missing_ok=True)  # first: a half-removed checkpoint is no more whole
            shutil.rmtree(path)

    def write_json(self, name: str, value: Any) -> None:
        """Write ``name`` atomically, on the main process."""
        if self.main_process:
            write_text(self.path / name, json.dumps(value, indent=2, ensure_ascii=False) + "\n")

    def read_json(self, name: str) -> Any | None:
        """Return the content of ``name``, or None where it does not exist.

        Raises:
            UserError: it is damaged.
        """
        path = self.path / name
        try:
            return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
        except ValueError:
            raise UserError(f"{path} is damaged: put it back, or choose another out=") from None

    def append_metrics(self, row: dict[str, Any]) -> None:
        """Append one line to metrics.jsonl, on the main process."""
        if self.main_process:
            with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")

    def truncate_metrics(self, step: int | None) -> None:
        """Drop metrics after ``step``, or with None all: a resumed run writes them again."""
        path = self.path / "metrics.jsonl"
        if self.main_process and path.exists():
            rows, damaged = self._metrics()
            if damaged and step is not None:
                print(f"{path}: {damaged} damaged lines are left out", flush=True)
            kept = [row for row in rows if step is not None and row["step"] <= step]
            write_text(path, "".join(json.dumps(row) + "\n" for row in kept))

    def _metrics(self) -> tuple[list[dict[str, Any]], int]:
        """The rows of metrics.jsonl, and how many lines are none; an unfinished last one is not counted."""
        rows, damaged = [], 0
        for line in (self.path / "metrics.jsonl").read_bytes().split(b"\n")[:-1]:
            try:
                row = json.loads(line)
                rows.append(row | {"step": int(row["step"])})
            except (ValueError, TypeError, KeyError):
                damaged += 1
        return rows, damaged

    def mean_loss(self) -> float | None:
        """Return the mean loss over all steps that are logged, of a resumed run with those before."""
        total, step = 0.0, 0
        for row in self._metrics()[0]:
            if "loss" in row:  # the mean since the row before
                total, step = total + row["loss"] * (row["step"] - step), row["step"]
        return total / step if step else None


def _state_whole(folder: Path) -> None:
    """Write ``COMPLETED`` once all of a folder is on disk, so that after a power cut, too, it states what is there."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    with ThreadPoolExecutor() as pool:  # hashing and the disk let go of the interpreter
        facts = pool.map(_written, files)
        stated = {str(path.relative_to(folder)): found for path, found in zip(files, facts, strict=True)}
    for path in (*(path for path in folder.rglob("*") if path.is_dir()), folder, folder.parent):
        _flush(path)
    part = folder / f".{COMPLETED}.part"
    part.write_text(json.dumps(stated, indent=2) + "\n", encoding="utf-8")
    _flush(part)
    part.replace(folder / COMPLETED)
    _flush(folder)


def _flush(path: Path) -> None:
    """Wait until a file or folder is on disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that cannot do it for folders
            raise
    finally:
        os.close(number)


def _written(path: Path) -> dict[str, Any]:
    """Return what ``COMPLETED`` states of a file, once it is on disk."""
    _flush(path)
    return {"size": path.stat().st_size, "sha256": file_digest(path)}


def differing(there: dict[str, Any], wanted: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return (dotted key, value there, value wanted) for every setting that differs, nested ones included."""
    a, b = flat(there), flat(wanted)
    return [(key, a.get(key), b.get(key)) for key in sorted(a | b) if a.get(key) != b.get(key)]


# What else a resume must have equal: keys of data.json, and what is said where they differ.
_SAME = {
    "fingerprint": "the training data differ",
    "tokenizer": "the tokenizer differs",
    "base": "the base model differs",
}


def open_run(
    run: RunFolder, config, data: dict[str, Any], launch: dict[str, Any], not_resumed: tuple[str, ...]
) -> None:
    """Write what ``run`` is to its folder, or check that the one there is the same run; for the main process.

    A folder in which nothing was trained yet, as a first try leaves that failed on its settings, is taken over.

    Args:
        config: the resolved settings.
        data: what goes to data.json; ``fingerprint``, ``tokenizer`` and ``base`` must equal those there.
            None, or its absence from an earlier version's run.json, equals anything.
        launch: how the processes share weights, as far as checkpoints depend on it.
        not_resumed: dotted keys that may differ.

    Raises:
        UserError: the folder holds a run of other settings, data, tokenizer, base model, or launch.
    """
    there = run.read_json("run.json")
    settings = {key: value for key, value in flat(asdict(config)).items() if key not in not_resumed}
    identity = {"settings": settings, "launch": launch, **{name: data[name] for name in _SAME}}
    if there is not None and run.started:
        try:
            changes = [change for part in ("settings", "launch") for change in differing(there[part], identity[part])]
            known = {name: there.get(name) for name in _SAME}
        except (AttributeError, KeyError, TypeError):
            raise UserError(f"{run.path / 'run.json'} is damaged: put it back, or choose another out=") from None
        different = [f"{key} was {was}, now {now}" for key, was, now in changes[:_SHOWN]]
        different += [f"and {len(changes) - _SHOWN} settings more"] * (len(changes) > _SHOWN)
        for name, message in _SAME.items():
            if None not in (known[name], identity[name]) and known[name] != identity[name]:
                different.append(message)
        if different:
            raise UserError(f"{run.path} holds another run ({'; '.join(different)}): choose another out= or remove it")
        if (run.path / "summary.json").exists():  # it is finished, and stays as it is
            return
    for name in _WRITTEN:
        for part in run.path.glob(f".{name}.*.part"):  # a process died while it wrote them
            part.unlink()
    run.write_json("run.json", identity)
    write_text(run.path / "config.yaml", to_yaml(config))
    run.write_json("data.json", data)
    run.write_json("env.json", environment())


def environment() -> dict[str, Any]:
    """Return versions, command line, source revision and device."""
    import torch

    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    return {
        "command": sys.argv,
        "python": platform.python_version(),
        "versions": versions,
        "revision": _revision(),
        "device": device,
        "threads": torch.get_num_threads(),
    }


def _revision() -> str | None:
    """The git revision of this source, with + where the tree has changes; None outside a checkout."""
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None
    describe = ["git", "-C", str(root), "describe", "--always", "--dirty=+", "--abbrev=12"]
    try:
        return subprocess.run(describe, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings with dotted keys."""
    out: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            out |= flat(value, f"{prefix}{key}.")
        else:
            out[prefix + key] = value
    return out
