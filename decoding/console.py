"""What commands show a person: the progress of long loops, and tables."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sized
from typing import Any, TypeVar

T = TypeVar("T")
_SECONDS_BETWEEN_LINES = 20.0


def track(items: Iterable[T], label: str, total: int | None = None) -> Iterator[T]:
    """Yield ``items``; stderr shows how far it is: a bar on a terminal, a plain line now and then elsewhere.

    ``total`` is their number; it may be left out where ``items`` has a length.
    """
    total = len(items) if total is None and isinstance(items, Sized) else total
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import track as bar

        yield from bar(items, description=label, total=total, console=Console(stderr=True))
        return
    started = shown = time.monotonic()
    for done, item in enumerate(items, start=1):
        yield item
        now = time.monotonic()
        if now - shown >= _SECONDS_BETWEEN_LINES:
            left = (now - started) / done * (total - done)
            print(f"{label}: {done}/{total}, about {left:.0f} s left", file=sys.stderr, flush=True)
            shown = now


def markdown_table(columns: list[str], rows: list[list[Any]]) -> str:
    """Return an aligned Markdown table."""
    cells = [[str(cell) for cell in row] for row in [columns, *rows]]
    widths = [max(3, *(len(row[i]) for row in cells)) for i in range(len(columns))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)
