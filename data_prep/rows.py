"""Reading and writing JSON Lines with errors that name file and row; rows on disk, and parts of them, as sequences."""

from __future__ import annotations

import json
import os
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

from decoding.commandline import UserError

T = TypeVar("T")


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


class StoredRows(Sequence[T]):
    """The rows of a JSON Lines file that the toolkit wrote, by number, read where they are asked for.

    Args:
        path: the file.
        make: makes of a row's fields what stands for it.
        count: how many it should have; there may be others after them.

    Raises:
        UserError: fewer rows than that, or one that is damaged.
    """

    def __init__(self, path: Path, make: Callable[..., T], count: int) -> None:
        self._path, self._make = path, make
        self._starts = array("Q")
        try:
            with path.open("rb") as file:
                start = 0
                for line in file:
                    if line.strip():
                        self._starts.append(start)
                    start += len(line)
            self._file = path.open("rb")
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror}); build the folder again") from None
        if len(self._starts) < count:
            raise UserError(f"{path} has {len(self._starts)} rows, its manifest says {count}: build the folder again")
        del self._starts[count:]

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, number):
        if isinstance(number, slice):
            return [self._row(start) for start in self._starts[number]]
        return self._row(self._starts[number])

    def _row(self, start: int) -> T:
        self._file.seek(start)
        try:
            return self._make(**json.loads(self._file.readline()))
        except (ValueError, TypeError, RecursionError) as error:
            row = self._starts.index(start) + 1
            raise UserError(f"{self._path}, row {row}: no prepared edit ({error}); build the folder again") from None


class Joined(Sequence[T]):
    """Several sequences as one."""

    def __init__(self, parts: Iterable[Sequence[T]]) -> None:
        self._parts = list(parts)
        self._ends = list(accumulate(map(len, self._parts)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, number):
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(len(self)))]
        part, place = self.locate(number)
        return self._parts[part][place]

    def locate(self, number: int) -> tuple[int, int]:
        """Return which part has this item, and its place there."""
        if not 0 <= number < len(self):
            raise IndexError(number)
        part = bisect_right(self._ends, number)
        return part, number - self._ends[part] + len(self._parts[part])


class Picked(Sequence[T]):
    """The items of a sequence at some places."""

    def __init__(self, items: Sequence[T], places: Sequence[int]) -> None:
        self._items, self._places = items, places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, number):
        if isinstance(number, slice):
            return [self._items[place] for place in self._places[number]]
        return self._items[self._places[number]]
