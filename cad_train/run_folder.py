"""The run folder: what a run was, what it did, and which of its checkpoints are whole.

config.yaml   the resolved settings          metrics.jsonl   one line per logged step
env.json      versions, command, device      checkpoint-N/   with COMPLETED once whole
data.json     oracles, fingerprint, counts   final/          model and tokenizer
summary.json  written last
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from data_prep.rows import write_text
from decoding.commandline import UserError, to_yaml

PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "tokenizers", "bitsandbytes", "deepspeed")


class RunFolder:
    """Paths and writers of one run folder. Only the main process writes."""

    def __init__(self, path: Path, main_process: bool) -> None:
        self.path, self.main_process = path, main_process

    @property
    def final(self) -> Path:
        """Where the trained model goes."""
        return self.path / "final"

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

    def truncate_metrics(self, step: int) -> None:
        """Drop metrics after ``step``: a resumed run writes them again."""
        path = self.path / "metrics.jsonl"
        if self.main_process and path.exists():
            kept = [line for line in path.read_text(encoding="utf-8").splitlines() if json.loads(line)["step"] <= step]
            write_text(path, "".join(line + "\n" for line in kept))


def differing(there: dict[str, Any], wanted: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return (dotted key, value there, value wanted) for every setting that differs, nested ones included."""
    a, b = flat(there), flat(wanted)
    return [(key, a.get(key), b.get(key)) for key in sorted(a | b) if a.get(key) != b.get(key)]


def open_run(config, data: dict[str, Any], main_process: bool, not_resumed: tuple[str, ...]) -> RunFolder:
    """Create the run folder of ``config``, or check that the one there is the same run.

    Args:
        config: the resolved settings, with ``out`` set.
        data: what goes to data.json; its ``fingerprint`` must equal the one there.
        not_resumed: dotted keys that may differ.

    Raises:
        UserError: the folder holds a run of other settings or data.
    """
    run = RunFolder(Path(config.out), main_process)
    there = run.read_json("run.json")
    settings = asdict(config)
    identity = {"settings": {key: value for key, value in flat(settings).items() if key not in not_resumed}}
    identity["fingerprint"] = data["fingerprint"]
    if there is not None:
        changes = differing(there["settings"], identity["settings"])
        different = [f"{key} was {was}, now {now}" for key, was, now in changes]
        if there["fingerprint"] != identity["fingerprint"]:
            different.append("the training data differ")
        if different:
            raise UserError(f"{run.path} holds another run ({'; '.join(different)}): choose another out= or remove it")
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
