"""What a `--ckpt` path stands for: the model to load and the run it came from."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cad_train.config import NOT_RESUMED, TrainConfig
from cad_train.run_folder import differing
from decoding.commandline import UserError, from_yaml
from decoding.loading import EXPORTED_SETTINGS, find_model, stated_fault


@dataclass(frozen=True)
class Checkpoint:
    """A model to score. ``config`` and ``data`` are those of its run, None for a model without one.

    An exported folder has the settings of its run, and neither ``run`` nor ``data``.
    """

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

    The settings of a folder that recipes/export.py wrote are those of the run it came from.

    Raises:
        UserError: a run folder without a model, one whose files have changed, or settings that cannot be read.
    """
    model, run = find_model(name)
    folder = Path(model).expanduser()
    if fault := stated_fault(folder):
        raise UserError(f"{folder} is not whole ({fault}): train it again, or name another checkpoint")
    if run is None:
        exported = Path(model).expanduser() / EXPORTED_SETTINGS
        config = from_yaml(TrainConfig, exported) if exported.is_file() else None
        return Checkpoint(name, model, None, config, None)
    try:
        config = from_yaml(TrainConfig, run / "config.yaml")
        data = json.loads((run / "data.json").read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise UserError(f"{run / 'data.json'} is damaged: {error}") from None
    return Checkpoint(name, model, run, config, data)


def differing_settings(configs: list[TrainConfig]) -> list[str]:
    """Return the dotted settings in which runs differ; the seed and what may change on resuming count as alike."""
    first = asdict(configs[0])
    keys = {key for config in configs[1:] for key, _, _ in differing(asdict(config), first)}
    return sorted(keys - {"seed", *NOT_RESUMED})


def model_identity(name: str) -> str:
    """Return a short digest that changes when the model's files do; a hub name stands for itself."""
    path = Path(name).expanduser()
    files = sorted(path.iterdir()) if path.is_dir() else [path] if path.is_file() else []
    facts = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.is_file()]
    return hashlib.sha256(json.dumps([name, facts]).encode()).hexdigest()[:16]
