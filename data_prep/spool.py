"""The edits of a corpus on disk, in order, to be read again: a build in constant memory that can be resumed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from data_prep.pairs import EditPair
from data_prep.rows import StoredRows, read_rows, write_text


class Spool:
    """A folder with the usable edits of a corpus, its refused rows, and once both are whole their counts.

    Attributes:
        filled: whether all is there.
        pairs: how many usable edits.
        faults: how many refused rows, by reason.
        found: what generators of bugs say of their source.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._pairs, self._faults, self._counts = (
            folder / name for name in ("pairs.jsonl", "rejected.jsonl", "counts.json")
        )
        self.filled = self._counts.exists()
        counts = json.loads(self._counts.read_text(encoding="utf-8")) if self.filled else {}
        self.pairs: int = counts.get("pairs", 0)
        self.faults = Counter(counts.get("faults", {}))
        self.found: dict[str, Any] = counts.get("found", {})

    def fill(self, stream: Iterable[EditPair | dict], found: dict[str, Any]) -> None:
        """Write a corpus's stream (see ``data_prep.corpora.load_pairs``); ``found`` is read once it has ended."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.pairs, self.faults = 0, Counter()
        with self._pairs.open("w", encoding="utf-8") as pairs, self._faults.open("w", encoding="utf-8") as faults:
            for item in stream:
                if isinstance(item, EditPair):
                    # Escaped, so that every string survives, and a line ends where it should.
                    pairs.write(json.dumps(asdict(item)) + "\n")
                    self.pairs += 1
                else:
                    faults.write(json.dumps(item) + "\n")
                    self.faults[item["reason"]] += 1
        self.found, self.filled = found, True
        counts = {"pairs": self.pairs, "faults": dict(self.faults), "found": found}
        write_text(self._counts, json.dumps(counts) + "\n")

    def rows(self) -> StoredRows[EditPair]:
        """Return the edits by number."""
        return StoredRows(self._pairs, EditPair, self.pairs)

    def lines(self, places: Sequence[int]) -> Iterator[bytes]:
        """Yield the edits at ascending ``places``, as JSON."""
        wanted = iter(places)
        place = next(wanted, None)
        with self._pairs.open("rb") as file:
            for at, line in enumerate(file):
                if place is None:
                    return
                if at == place:
                    yield line
                    place = next(wanted, None)

    def rejected(self) -> Iterator[dict]:
        """Yield the refused rows."""
        yield from read_rows(self._faults)
