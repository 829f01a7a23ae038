"""Reading and writing JSON Lines with errors that name file and row."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path


class RowError(ValueError):
    """A JSON Lines file that cannot be used as a whole, with the row that broke it."""


def read_rows(path: Path) -> Iterator[dict]:
    """Yield the objects of a JSON Lines file that the toolkit or a published data set wrote; any bad row is an error.

    Raises:
        RowError: names the file and the 1-based row that is not a JSON object (a truncated download, say).
    """
    for number, row, problem in read_rows_tolerant(path):
        if problem:
            raise RowError(
                f"{path}, row {number}: {problem}; the file may be cut off or damaged: fetch or build it again"
            )
        yield row


def read_rows_tolerant(path: Path) -> Iterator[tuple[int, dict | None, str]]:
    """Yield ``(row number, object or None, problem)`` for every row not blank; a good row's problem is empty."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except UnicodeDecodeError:
                yield number, None, "not UTF-8"
            except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a plain ValueError
                located = isinstance(error, json.JSONDecodeError)
                detail = f" ({error.msg.removesuffix(' at')} at column {error.colno})" if located else ""
                yield number, None, "not JSON" + detail
            else:
                problem = "" if isinstance(row, dict) else f"not a JSON object but {type(row).__name__}"
                yield number, row if not problem else None, problem


def write_rows(path: Path, rows: Iterable[dict]) -> None:
    """Write objects as JSON Lines, atomically: the file appears under its name only when it is whole."""
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, in UTF-8, newlines as they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_text(text, encoding="utf-8", newline="")
    part.replace(path)
