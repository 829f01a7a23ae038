"""Progress of long loops: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")
_SECONDS_BETWEEN_LINES = 20.0


def track(items: Sequence[T], label: str) -> Iterator[T]:
    """Yield ``items``, showing on stderr how many are done and how long the rest will take."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import track as bar

        yield from bar(items, description=label, console=Console(stderr=True))
        return
    started = shown = time.monotonic()
    for done, item in enumerate(items, start=1):
        yield item
        now = time.monotonic()
        if now - shown >= _SECONDS_BETWEEN_LINES:
            left = (now - started) / done * (len(items) - done)
            print(f"{label}: {done}/{len(items)}, about {left:.0f} s left", file=sys.stderr, flush=True)
            shown = now
