"""What a `--ckpt` path stands for: the model to load and the run it came from."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cad_train.config import TrainConfig
from cad_train.run_folder import RunFolder
from decoding.commandline import UserError, from_yaml
from decoding.loading import local_name


@dataclass(frozen=True)
class Checkpoint:
    """A model to score. ``config`` and ``data`` are those of its run, None for a model without one."""

    name: str
    model: str
    run: Path | None
    config: TrainConfig | None
    data: dict[str, Any] | None

    @property
    def seed(self) -> int | None:
        """The run's training seed."""
        return self.config.seed if self.config else None


def find_checkpoint(name: str) -> Checkpoint:
    """Resolve a run folder, its ``final`` or a ``checkpoint-N``, any model folder, GGUF file, or hub name.

    Raises:
        UserError: a run folder without a model, or with settings that cannot be read.
    """
    path = Path(name)
    if _is_run(path):
        folder = path / "final"
        if not folder.is_dir():
            folder = RunFolder(path, main_process=False).newest_checkpoint()
            if folder is None:
                raise UserError(f"{name} is a run without final/ or a whole checkpoint: train it first")
        return _of_run(name, folder, path)
    if path.is_dir() and _is_run(path.resolve().parent):
        return _of_run(name, path, path.resolve().parent)
    if path.is_dir() and not any((path / file).is_file() for file in ("config.json", "adapter_config.json")):
        raise UserError(f"{name} is neither a run folder nor a model folder (no config.json)")
    local_name(name)  # says so now if there is no such folder or file
    return Checkpoint(name, name, None, None, None)


def model_identity(name: str) -> str:
    """Return a short digest that changes when the model's files do; a hub name stands for itself."""
    path = Path(name)
    files = sorted(path.iterdir()) if path.is_dir() else [path] if path.is_file() else []
    facts = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.is_file()]
    return hashlib.sha256(json.dumps([name, facts]).encode()).hexdigest()[:16]


def _is_run(path: Path) -> bool:
    return (path / "config.yaml").is_file() and (path / "data.json").is_file()


def _of_run(name: str, folder: Path, run: Path) -> Checkpoint:
    try:
        config = from_yaml(TrainConfig, run / "config.yaml")
        data = json.loads((run / "data.json").read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise UserError(f"{run / 'data.json'} is damaged: {error}") from None
    return Checkpoint(name, str(folder), run, config, data)
