"""Evaluation over several processes: the cases are shared out, the files put together by the main one."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
# A process may wait for another's whole share, and for the main one's report.
_PATIENCE = timedelta(days=2)


class Processes:
    """The processes of ``accelerate launch`` or ``torchrun``, or the only one there is.

    Attributes:
        main: whether this is the process that prepares and reports.
        suffix: what tells this process's progress from the others', empty where there is one.
    """

    def __init__(self) -> None:
        self._state = None
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            import torch
            from accelerate import PartialState

            self._state = PartialState(cpu=not torch.accelerator.is_available(), timeout=_PATIENCE)
        self.index = self._state.process_index if self._state else 0
        self.count = self._state.num_processes if self._state else 1
        self.main = self.index == 0
        self.suffix = f" ({self.index + 1} of {self.count} processes)" if self.count > 1 else ""

    def share(self, items: list[T]) -> list[T]:
        """Return this process's part of ``items``: every ``count``-th one, so that long cases spread."""
        return items[self.index :: self.count]

    def file(self, path: Path) -> Path:
        """Return the file that this process may write for ``path``: itself, or ``NAME-INDEX.SUFFIX`` beside it."""
        return path if self.count == 1 else path.with_name(f"{path.stem}-{self.index}{path.suffix}")

    def device(self, given: str | None) -> str | None:
        """Return the device to load on: as given, else this process's own."""
        return given if given or self._state is None else str(self._state.device)

    def wait(self) -> None:
        """Return once every process has come here."""
        if self._state is not None:
            self._state.wait_for_everyone()
