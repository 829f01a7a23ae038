"""Steps for datatrove pipelines: JSON Lines to edits, edits to oracle rows, and rows to a prepared folder.

Only this module imports datatrove (extra ``datatrove``). The command is data_prep/datatrove_pipeline.py.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from datatrove.data import Document, DocumentsPipeline
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.readers.base import BaseDiskReader
from datatrove.pipeline.writers.disk_base import DiskWriter
from datatrove.pipeline.writers.jsonl import JsonlWriter

from data_prep.build import OracleConfig, oracle_rows
from data_prep.hub import Columns, group_of, provenance, read_edit
from data_prep.pairs import EditPair, pair_fault
from data_prep.prepared import OracleRow

CORPUS = "datatrove"
_NOT_JSON = "_not_json"  # metadata of a line that is none; OracleStep counts it


def as_document(reader: Any, data: dict, path: str, id_in_file: int | str) -> dict[str, Any]:
    """An ``adapter`` for datatrove's own readers: all columns stay in the metadata, the id says file and row."""
    return {"text": path, "id": f"{path}:{id_in_file}", "metadata": data}


class EditReader(BaseDiskReader):
    """Reads JSON Lines, packed or not. datatrove's JsonlReader leaves out damaged lines; this one hands them on.

    Task r of n reads files r, r + n, ... of the sorted folder; more tasks than files have nothing to do.
    """

    name = "edits"

    def read_file(self, filepath: str) -> Iterator[Document]:
        """Yield a document for every line that is not blank, its metadata the row, its id ``FILE:ROW``."""
        with self.data_folder.open(filepath, "rb", compression="infer") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
                    row = row if isinstance(row, dict) else {_NOT_JSON: f"not an object but {type(row).__name__}"}
                except UnicodeDecodeError:
                    row = {_NOT_JSON: "not UTF-8"}
                except (ValueError, RecursionError) as error:
                    row = {_NOT_JSON: str(error)}
                yield Document(**as_document(self, row, filepath, number))


def first_row(folder: str, pattern: str) -> dict | None:
    """Return the first row of the first file that has a JSON object, or None."""
    rows = (document.metadata for document in EditReader(folder, glob_pattern=pattern).run())
    with suppress(Exception):  # a file that cannot be read fails its task, which logs why
        return next((row for row in rows if _NOT_JSON not in row), None)


class OracleStep(PipelineStep):
    """Turns documents whose metadata is an edit into oracle rows, knowing nothing of other documents.

    A document may give several rows (``settings.equivalents``). The text of a row is its program, its metadata the
    fields of ``OracleRow`` and ``bucket``, the first hex digit of the edit's hash. The id is that hash, so copies of an
    edit have one id, wherever they are. A group is held out if its hash is below the share ``settings.heldout``.

    Faults (not_json, evaluation_only, missing_field, null, not_text, empty, no_op, lone_surrogate) are counted in the
    statistics as ``dropped_REASON``, and written to ``rejected``.
    """

    type = "oracle"
    name = "edit programs"

    def __init__(self, settings: OracleConfig, columns: Columns, rejected: DiskWriter | None = None):
        super().__init__()
        self.settings = settings
        self.columns = columns
        self.rejected = rejected

    def run(self, data: DocumentsPipeline, rank: int = 0, world_size: int = 1) -> DocumentsPipeline:
        """Yield the rows of every document that holds an edit."""
        with self.rejected or nullcontext():
            for document in data:
                with self.track_time():
                    rows, reason, detail = self._rows(document)
                self.stat_update("total", f"dropped_{reason}" if reason else "forwarded")
                if reason and self.rejected:
                    file, row = _place(document.id)
                    fault = {"file": file, "row": row, "reason": reason, "detail": detail, "bucket": _digest(file)[0]}
                    self.rejected.write(Document(text=reason, id=document.id, metadata=fault), rank)
                for row in rows:
                    bucket = {"bucket": row.id.removeprefix(f"{CORPUS}/")[0]}
                    yield Document(text=row.program, id=row.id, metadata=asdict(row) | bucket)

    def _rows(self, document: Document) -> tuple[list[OracleRow], str, str]:
        """Return the rows of a document, or why it has none."""
        row = document.metadata
        if _NOT_JSON in row:
            return [], "not_json", row[_NOT_JSON]
        texts, reason, detail = read_edit(row, self.columns)
        if reason:
            return [], reason, detail
        file, number = _place(document.id)
        meta = {"file": file, "row": number} | provenance(row)
        name = f"{CORPUS}/{_digest(json.dumps(texts))[:32]}"
        pair = EditPair(name, CORPUS, *texts, group_of(row, self.columns), meta)
        if reason := pair_fault(pair):
            return [], reason, ""
        split = "heldout" if _share(f"{self.settings.seed}:{pair.group}") < self.settings.heldout else "train"
        return oracle_rows(pair, split, self.settings), "", ""


class CollectStep(PipelineStep):
    """Turns the rows that all tasks wrote into a prepared folder; a pipeline of its own, with one task."""

    type = "oracle"
    name = "prepared folder"

    def __init__(self, config: Any, work: Path):
        super().__init__()
        self.config = config
        self.work = work

    def run(self, data: DocumentsPipeline = None, rank: int = 0, world_size: int = 1) -> DocumentsPipeline:
        """Collect on rank 0; yields nothing."""
        from data_prep.datatrove_pipeline import collect

        if rank == 0:
            collect(self.config, self.work)
        yield from ()


def writer(folder: Path) -> JsonlWriter:
    """Return the writer of what ``OracleStep`` makes: FOLDER/BUCKET/RANK.jsonl.gz, a row a line."""
    return JsonlWriter(str(folder), "${bucket}/${rank}.jsonl.gz", adapter=_without_bucket)


def _without_bucket(writer: DiskWriter, document: Document) -> dict[str, Any]:
    return {key: value for key, value in document.metadata.items() if key != "bucket"}


def _place(document_id: str) -> tuple[str, int | None]:
    """The file and the row of an id; what is not ``FILE:ROW`` counts as a file."""
    file, _, row = document_id.rpartition(":")
    return (file, int(row)) if file and row.isdecimal() else (document_id, None)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _share(text: str) -> float:
    """A number in [0, 1) that only the text determines."""
    return int(_digest(f"split:{text}")[:13], 16) / 16**13
