"""The run folder: what a run was, what it did, and which of its checkpoints are whole.

config.yaml   the resolved settings          metrics.jsonl   one line per logged step
env.json      versions, command, device      checkpoint-N/   with COMPLETED once whole
data.json     oracles, fingerprint, counts   final/          model and tokenizer, whole if it is there
run.json      what a resume must have equal  summary.json    written last

A process may die between any two writes: what is there is then either whole or not counted.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from data_prep.rows import write_text
from decoding.commandline import UserError, to_yaml
from decoding.loading import COMPLETED, checkpoint_step, newest_checkpoint

PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "tokenizers", "bitsandbytes", "deepspeed")


class RunFolder:
    """Paths and writers of one run folder. Only the main process writes."""

    def __init__(self, path: Path, main_process: bool) -> None:
        self.path, self.main_process = path, main_process

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
            shutil.rmtree(self.final, ignore_errors=True)
            self.unfinished.rename(self.final)

    def mark_checkpoint(self, step: int) -> None:
        """Call the checkpoint of ``step`` whole, on the main process, after every process has written its part."""
        if self.main_process:
            (self.path / f"checkpoint-{step}" / COMPLETED).touch()

    def keep_checkpoints(self, count: int, best: str | None) -> None:
        """Remove all but the ``count`` newest checkpoints and the ``best``, on the main process."""
        spared = {Path(best).name} if best else set()
        for path in sorted(self.path.glob("checkpoint-*"), key=checkpoint_step)[:-count]:
            if path.name not in spared:
                self._remove_checkpoint(path)

    def open_checkpoint(self, resume: bool) -> Path | None:
        """Return the checkpoint to go on from: the newest whole one, or None to start anew.

        Removes what no run goes on from, on the main process: half-written checkpoints, or without ``resume`` all.
        """
        newest = newest_checkpoint(self.path) if resume else None
        for path in self.path.glob("checkpoint-*"):
            whole = (path / COMPLETED).exists()
            if newest is None or not whole:
                if self.main_process:
                    print(f"removing {path}: " + ("resume=none" if whole else "half-written"), flush=True)
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
        """Return the content of ``name``, or None where it does not exist."""
        path = self.path / name
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def append_metrics(self, row: dict[str, Any]) -> None:
        """Append one line to metrics.jsonl, on the main process."""
        if self.main_process:
            with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")

    def truncate_metrics(self, step: int | None) -> None:
        """Drop metrics after ``step``, or with None all: a resumed run writes them again."""
        path = self.path / "metrics.jsonl"
        if self.main_process and path.exists():
            whole = [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line[-1] == "\n"]
            kept = [line for line in whole if step is not None and json.loads(line)["step"] <= step]
            write_text(path, "".join(kept))


def differing(there: dict[str, Any], wanted: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return (dotted key, value there, value wanted) for every setting that differs, nested ones included."""
    a, b = flat(there), flat(wanted)
    return [(key, a.get(key), b.get(key)) for key in sorted(a | b) if a.get(key) != b.get(key)]


def open_run(
    config, data: dict[str, Any], launch: dict[str, Any], main_process: bool, not_resumed: tuple[str, ...]
) -> RunFolder:
    """Create the run folder of ``config``, or check that the one there is the same run.

    Args:
        config: the resolved settings, with ``out`` set.
        data: what goes to data.json; its ``fingerprint`` and ``tokenizer`` must equal those there.
        launch: how the processes share weights, as far as checkpoints depend on it.
        not_resumed: dotted keys that may differ.

    Raises:
        UserError: the folder holds a run of other settings, data, tokenizer, or launch.
    """
    run = RunFolder(Path(config.out), main_process)
    there = run.read_json("run.json")
    settings = {key: value for key, value in flat(asdict(config)).items() if key not in not_resumed}
    identity = {"settings": settings, "launch": launch, **{name: data[name] for name in ("fingerprint", "tokenizer")}}
    if there is not None:
        changes = [change for part in ("settings", "launch") for change in differing(there[part], identity[part])]
        different = [f"{key} was {was}, now {now}" for key, was, now in changes]
        for name, message in (("fingerprint", "the training data differ"), ("tokenizer", "the tokenizer differs")):
            if there[name] != identity[name]:
                different.append(message)
        if different:
            raise UserError(f"{run.path} holds another run ({'; '.join(different)}): choose another out= or remove it")
        if (run.path / "summary.json").exists():  # it is finished, and stays as it is
            return run
    if main_process:
        for part in run.path.glob(".*.part"):  # a process died while it wrote them
            part.unlink()
    run.write_json("run.json", identity)
    if main_process:
        write_text(run.path / "config.yaml", to_yaml(config))
    run.write_json("data.json", data)
    run.write_json("env.json", environment())
    return run


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
