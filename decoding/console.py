"""What commands show a person: the progress of long loops, and tables."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
_SECONDS_BETWEEN_LINES = 20.0


def track(items: Sequence[T], label: str) -> Iterator[T]:
    """Yield ``items``; stderr shows how far it is: a bar on a terminal, a plain line now and then elsewhere."""
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


def markdown_table(columns: list[str], rows: list[list[Any]]) -> str:
    """Return an aligned Markdown table."""
    cells = [[str(cell) for cell in row] for row in [columns, *rows]]
    widths = [max(3, *(len(row[i]) for row in cells)) for i in range(len(columns))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)
