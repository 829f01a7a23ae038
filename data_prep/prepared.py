"""A prepared folder as it is read: its manifest, its rows, and whether they are as they were prepared.

OUT/CORPUS/train.jsonl, OUT/CORPUS/heldout.jsonl    one row per edit
OUT/rejected.jsonl                                  what was refused, and why
OUT/manifest.json                                   settings, counts, statistics, fingerprints
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from data_prep.rows import RowError, StoredRows, read_rows
from decoding.commandline import UserError
from decoding.loading import file_digest

FORMAT_VERSION = 1
Split = Literal["train", "heldout"]


@dataclass(frozen=True, slots=True)
class OracleRow:
    """One prepared edit; ``program`` is the canonical text of the oracle, ``tags`` names what is odd about the edit.

    A held-out edit has difflib's program whatever is trained on, so that runs on different programs are scored alike.
    An additional training row is the same edit with another program; its id ends in ``#1``, ``#2``, ...
    """

    id: str
    corpus: str
    split: Split
    group: str
    instruction: str
    before: str
    after: str
    program: str
    tags: list[str]
    meta: dict


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest of a prepared folder, or None where there is no finished one.

    Raises:
        UserError: a manifest that is damaged or of another format.
    """
    path = folder / "manifest.json"
    if not path.exists():
        return None
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is damaged ({error}); remove it and build the oracles again") from None
    if manifest.get("format") != FORMAT_VERSION:
        raise UserError(f"{path} has format {manifest.get('format')}, this version reads {FORMAT_VERSION}: build again")
    return manifest


@dataclass(frozen=True)
class Prepared:
    """A prepared folder: its manifest, and by corpus the rows of train and held-out without equivalents."""

    folder: Path
    manifest: dict[str, Any]
    train: dict[str, StoredRows[OracleRow]]
    heldout: dict[str, StoredRows[OracleRow]]


def open_prepared(folder: Path) -> Prepared:
    """Open a folder that data_prep/build_oracles.py wrote; its rows stay on disk.

    Raises:
        UserError: no finished folder, or files that are not as they were prepared.
    """
    manifest = finished_manifest(folder)
    for name, entry in manifest["corpora"].items():
        for split in ("train", "heldout"):
            _check_bytes(folder / name / f"{split}.jsonl", entry)
    stored = {
        split: {
            name: StoredRows(folder / name / f"{split}.jsonl", OracleRow, entry[split])
            for name, entry in manifest["corpora"].items()
        }
        for split in ("train", "heldout")
    }
    return Prepared(folder, manifest, stored["train"], stored["heldout"])


def finished_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a prepared folder.

    Raises:
        UserError: as ``read_manifest``, or there is no finished folder.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        raise UserError(f"{folder} has no manifest.json: prepare it with data_prep/build_oracles.py out={folder}")
    return manifest


def read_split(folder: Path, corpora: list[str], split: Split) -> list[OracleRow]:
    """Return the rows of one split of some prepared corpora, in file order.

    Raises:
        UserError: a corpus that is not in the folder's manifest, a file that is missing or not as it was prepared.
    """
    rows = []
    manifest = read_manifest(folder) or {"corpora": {}}
    for name in corpora:
        path = folder / name / f"{split}.jsonl"
        if name not in manifest["corpora"] or not path.exists():
            raise UserError(
                f"{folder} has no corpus {name!r}: prepare it with data_prep/build_oracles.py corpora=[{name}]"
            )
        _check_bytes(path, manifest["corpora"][name])
        try:
            rows += [OracleRow(**row) for row in read_rows(path)]
        except (RowError, TypeError) as error:
            raise UserError(str(error) if isinstance(error, RowError) else f"{path}: {error}") from None
    return rows


def _check_bytes(path: Path, entry: dict[str, Any]) -> None:
    """Refuse a file that was changed: what was trained or scored on it would be said to be of the manifest's data."""
    prepared = entry.get("sha256", {}).get(path.stem)  # folders of earlier versions have none
    if prepared is not None and file_digest(path) not in (prepared, None):
        raise UserError(
            f"{path} is not as it was prepared: build the folder again; edits of your own are for corpora=[jsonl]"
        )


def fingerprint(rows: Iterable[OracleRow]) -> str:
    """SHA-256 over the content of ``rows``, in order: equal fingerprints mean equal training and evaluation data."""
    digest, before = hashlib.sha256(b"["), ""
    for row in rows:  # the text of the whole list, row by row
        digest.update((before + json.dumps(asdict(row), ensure_ascii=False, sort_keys=True)).encode())
        before = ", "
    digest.update(b"]")
    return digest.hexdigest()
