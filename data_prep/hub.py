"""Edits from data sets with named columns, on the Hugging Face hub or in files, read as a stream (corpus hub).

    python data_prep/build_oracles.py corpora=[hub] hub.path=bigcode/commitpackft hub.name=python hub.limit=20000
    python data_prep/build_oracles.py corpora=[hub] hub.path=nuprl/EditPackFT hub.instruction=subject
    python data_prep/build_oracles.py corpora=[hub] 'hub.data_files=[edits/*.parquet]' hub.before=old hub.after=new

Columns that are not named are found under the names that edits are published with: instruction, or subject or message
of a commit; before and after, or old_contents and new_contents; group, or repos. A row without an edit is counted by
reason: missing_field, null, not_text, empty, duplicate. Every cell of a CSV file is text, and a row with
more or fewer cells than the header is an error. Code of a data set is never run.
"""

from __future__ import annotations

import codecs
import csv
import glob
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from data_prep.pairs import EditPair
from data_prep.rows import read_rows_tolerant
from decoding.commandline import UserError

FIELDS = ("instruction", "before", "after")
# A commit's subject before its message, as OctoPack trains on CommitPackFT (arXiv 2308.07124).
_USUAL_NAMES = {
    "instruction": ("instruction", "subject", "message"),
    "before": ("before", "old_contents"),
    "after": ("after", "new_contents"),
    "group": ("group", "repos"),
}
_PROVENANCE = ("repo", "repos", "commit", "path", "old_file", "new_file", "license", "licence", "lang", "language")
_READERS = {
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".csv": "csv",
    ".arrow": "arrow",
}
_ABOUT = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")  # say what the data are
_PACKED = (".gz", ".bz2", ".xz", ".zst")
# The hub has these as scripts over JSON Lines files, and scripts are not run.
_FILES = {"bigcode/commitpackft": "data/{name}/*.jsonl", "bigcode/commitpack": "data/{name}/*.jsonl"}
_REFUSED = {
    "nuprl/canitedit": "its licence (BSD 3-Clause with Machine Learning Restriction) forbids training on it",
    "bigcode/humanevalpack": "it is a corpus of its own: corpora=[hevalfix-py]",
}
_CANITEDIT_COLUMNS = {"instruction_descriptive", "instruction_lazy"}  # wherever it was copied to


@dataclass
class Columns:
    """Which columns hold an edit. A column that is not named is looked for under its usual names."""

    instruction: str | None = None  # column of the instruction; else instruction, subject or message
    before: str | None = None  # column of the document; else before or old_contents
    after: str | None = None  # column of the edited document; else after or new_contents
    group: str | None = None  # column that says which rows stay on one side of the split; else group, repos, or before

    def find(self, role: str, there: Mapping[str, Any]) -> str | None:
        """Return the column of ``there`` that plays a role (instruction, before, after, group), or None."""
        named = getattr(self, role)
        return next((name for name in ([named] if named else _USUAL_NAMES[role]) if name in there), None)

    def missing(self, there: Mapping[str, Any]) -> list[str]:
        """Return what an edit needs and ``there`` lacks: columns by the name they should have."""
        lacking = [role for role in FIELDS if self.find(role, there) is None]
        lacking += ["group"] if self.group and self.group not in there else []
        return [getattr(self, role) or " or ".join(_USUAL_NAMES[role]) for role in lacking]


@dataclass
class HubConfig(Columns):
    """Which data set to read, and its columns."""

    path: str | None = None  # data set on the hub (OWNER/NAME), or a folder with its files
    name: str | None = None  # which of its configurations: a language of CommitPackFT, say
    split: str = "train"  # its split to read
    revision: str | None = None  # commit, tag or branch on the hub; else the newest commit
    data_files: list[str] = field(default_factory=list)  # files or globs instead: json, jsonl, parquet, csv, arrow
    limit: int | None = None  # read only so many rows, from the first

    def __post_init__(self) -> None:
        for source in (self.path, *self.data_files):
            for refused, reason in _REFUSED.items():
                if source and refused in source.lower():
                    raise ValueError(f"{source} is no corpus to train on: {reason}")
        if self.path in _FILES and not (self.name or self.data_files):
            raise ValueError(f"name: {self.path} has a part for each language; name one, such as python")
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit={self.limit}: must be at least 1")

    @property
    def source(self) -> str:
        """The data set as a person would name it."""
        return "/".join(filter(None, (self.path, self.name))) if self.path else ",".join(self.data_files)


def load_hub(config: HubConfig) -> Iterator[EditPair | dict]:
    """Yield each usable edit, and ``{"file", "row", "reason", "detail"}`` for every other row, in the order of rows.

    Reasons: missing_field, null, not_text, empty, duplicate. Rows with the same text in the group column, where there
    is one, and else those with the same ``before`` share a group. ``meta`` says where a row is from: data set,
    revision, row, and its columns of repository, path and licence.

    Raises:
        UserError: a data set that cannot be read or lacks a column, a file of a kind that is not known.
    """
    seen: set[bytes] = set()
    revision, builder = _open(config)
    for number, row in enumerate(_read(builder, config), start=1):
        if number == 1:
            check_columns(row, config, f"hub: {config.source}", "hub.")
        texts, reason, detail = read_edit(row, config)
        if not reason:
            digest = hashlib.sha256(json.dumps(texts).encode()).digest()
            if digest in seen:
                reason, detail = "duplicate", "the same instruction, before, and after stand in an earlier row"
            seen.add(digest)
        if reason:
            yield {"file": config.source, "row": number, "reason": reason, "detail": detail}
            continue
        meta = {"dataset": config.source, "row": number} | ({"revision": revision} if revision else {})
        name = f"hub/{config.source}:{number}"
        yield EditPair(name, "hub", *texts, group_of(row, config), meta | provenance(row))


def read_edit(row: Mapping[str, Any], columns: Columns) -> tuple[list[str], str, str]:
    """Return ``([instruction, before, after], "", "")``, or ``([], reason, detail)`` for a row that holds no edit."""
    if row.keys() >= _CANITEDIT_COLUMNS:
        return [], "evaluation_only", f"CanItEdit: {_REFUSED['nuprl/canitedit']}"
    if missing := columns.missing(row):
        return [], "missing_field", f"no {', '.join(missing)}"
    names = [columns.find(role, row) for role in FIELDS]
    values = [row[name] for name in names]
    if nulls := [name for name, value in zip(names, values, strict=True) if value is None]:
        return [], "null", f"{', '.join(nulls)} is null"
    wrong = [f"{n} is {type(v).__name__}" for n, v in zip(names, values, strict=True) if not isinstance(v, str)]
    if wrong:
        return [], "not_text", ", ".join(wrong)
    if not values[0].strip():
        return [], "empty", f"{names[0]} is empty"
    return values, "", ""


def check_columns(row: Mapping[str, Any], columns: Columns, source: str, key: str = "") -> None:
    """Refuse a data set by its first row; ``key`` is what the names of the settings start with.

    Raises:
        UserError: it lacks a column, or is not to be trained on.
    """
    if row.keys() >= _CANITEDIT_COLUMNS:
        raise UserError(f"{source} looks like CanItEdit; {_REFUSED['nuprl/canitedit']}")
    if missing := columns.missing(row):
        settings = ", ".join(f"{key}{role}=" for role in _USUAL_NAMES)
        raise UserError(
            f"{source} has no column {', no column '.join(missing)}; it has {', '.join(row)}: name them with {settings}"
        )


def group_of(row: Mapping[str, Any], columns: Columns) -> str:
    """Return what must not be torn apart by a split: the row's group, or else a hash of its ``before``."""
    name = columns.find("group", row)
    if name and row[name] is not None:
        return str(row[name])
    before = row[columns.find("before", row)]
    return hashlib.sha256(before.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def provenance(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row's columns of repository, path and licence, JSON-ready and printable."""
    there = {name: row[name] for name in _PROVENANCE if row.get(name) is not None}
    return {name: [*map(_plain, value)] if isinstance(value, list) else _plain(value) for name, value in there.items()}


def _plain(value: Any) -> str:
    return str(value).encode("utf-8", "backslashreplace").decode()


def not_rows(path: Path) -> str:
    """Say of what kind a file is in which no line can be a row of JSON Lines, and what to do; else nothing."""
    with path.open("rb") as file:
        start = file.read(4096)
    for bits, marks in (  # the longer first: the little-endian mark of 32 bits starts with that of 16
        (32, (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)),
        (16, (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)),
    ):
        if start.startswith(marks):
            return f"is in UTF-{bits}: save it as UTF-8 (iconv -f UTF-{bits} -t UTF-8)"
    if start.startswith(b"\x1f\x8b"):
        return "is packed by gzip: unpack it (gunzip)"
    if start.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"["):
        return "is a JSON array: write its objects one a line (jq -c '.[]')"
    return ""


def matches(pattern: str, folder: Path | None) -> list[Path]:
    """Return what of this machine a pattern of ``data_files`` names, in order; it starts at ``folder``, if any."""
    # Not Path.glob, which takes no absolute pattern.
    found = glob.glob(str(Path(pattern).expanduser()), root_dir=folder, recursive=True)  # noqa: PTH207
    return [Path(folder or "", name) for name in sorted(found)]


def _open(config: HubConfig) -> tuple[str | None, Any]:
    """Return the commit that is read, where it is from the hub, and what reads the rows, which has read none yet."""
    # Even local files would otherwise be reported to the hub. Set the first to 0 and the second to 1 to allow it.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("HF_UPDATE_DOWNLOAD_COUNTS", "0")
    from datasets import load_dataset_builder, logging

    logging.set_verbosity(logging.CRITICAL)  # what a reader logs as an error it raises too, and that is said below
    files = [str(Path(file).expanduser()) if "://" not in file else file for file in config.data_files]
    folder = Path(config.path).expanduser() if config.path else None
    reader = None if folder else _reader(files)
    _check_local(config, folder, files)
    try:
        if reader:
            return None, load_dataset_builder(reader, data_files=files)
        if folder.exists():
            return None, load_dataset_builder(str(folder), config.name, data_files=files or None)
        from huggingface_hub import HfApi

        # Named once and read by name, so that a data set that changes meanwhile is not read half and half.
        revision = HfApi().dataset_info(config.path, revision=config.revision).sha
        if config.path in _FILES and not files:
            pattern = f"hf://datasets/{config.path}@{revision}/{_FILES[config.path].format(name=config.name)}"
            return revision, load_dataset_builder("json", data_files=pattern)
        return revision, load_dataset_builder(config.path, config.name, data_files=files or None, revision=revision)
    except Exception as error:  # whatever the readers and the hub's client raise
        raise _unreadable(config, error) from error


def _check_local(config: HubConfig, folder: Path | None, files: list[str]) -> None:
    """Refuse a folder or files of this machine that are not there, or are of another kind, by what they are."""
    if folder and not folder.exists():
        if config.path.startswith(("/", ".", "~")) or "\\" in config.path:
            raise UserError(f"hub.path={config.path}: there is no such folder")
        return  # a data set on the hub, and its files
    if folder and folder.is_file():
        raise UserError(f"hub.path={config.path} is a file: name it with hub.data_files=[{config.path}] instead")
    if folder and (folder / "state.json").is_file():
        raise UserError(
            f"hub.path={config.path} was written by save_to_disk: name hub.data_files=[{config.path}/*.arrow] instead"
        )
    for file in files:
        if "://" not in file and not matches(file, folder):
            raise UserError(f"hub.data_files: no file matches {file}")
    if folder and not files and len(kinds := _kinds(folder)) > 1:
        raise UserError(
            f"hub.path={config.path} holds files of several kinds, {', '.join(kinds)}, and one alone would be read: "
            f"name files of one kind, hub.data_files=[{config.path}/**/*{kinds[0]}]"
        )


def _kinds(folder: Path) -> list[str]:
    """Return the ends of the names of the data files of a folder, one for each reader; none if a card names files."""
    card = folder / "README.md"
    if card.is_file() and "data_files:" in card.read_text(encoding="utf-8", errors="replace"):
        return []
    ends = {_end(path.name) for path in matches("**/*", folder) if path.name not in _ABOUT and path.is_file()}
    return sorted({_READERS[end]: end for end in sorted(ends & _READERS.keys())}.values())


def _reader(files: list[str]) -> str:
    """Return what reads the files, from the ends of their names.

    Raises:
        UserError: a kind of file that is not known, or several kinds.
    """
    readers = {_READERS.get(_end(file), "") for file in files}
    if len(readers) != 1 or "" in readers:
        known = ", ".join(end.removeprefix(".") for end in _READERS)
        raise UserError(f"hub.data_files=[{','.join(files)}]: name files of one kind, of {known}")
    return readers.pop()


def _end(file: str) -> str:
    """Return the end of a file's name that says its kind, which that of a packed file has before another."""
    return Path(file.removesuffix(next((end for end in _PACKED if file.endswith(end)), ""))).suffix


def _read(builder: Any, config: HubConfig) -> Iterator[dict]:
    from pandas.errors import EmptyDataError

    files = [file for of_split in (builder.config.data_files or {}).values() for file in of_split]
    if not files:
        raise _unreadable(config, FileNotFoundError("it has no such files"))
    number = 0
    try:
        _as_text(builder, config)
        rows = builder.as_streaming_dataset(config.split)
        for row in rows.take(config.limit) if config.limit else rows:
            number += 1
            yield row
    except UserError:
        raise
    except Exception as error:  # a reader's own, met where a damaged file or a lost connection is
        # How readers meet JSON Lines files without a row, and a CSV file without a byte.
        if not isinstance(error, StopIteration) and not (isinstance(error, EmptyDataError) and len(files) == 1):
            if damaged := _damaged_row(files):
                raise UserError(f"hub: {damaged}") from error
            raise _unreadable(config, error, f" after row {number}" if number else "") from error
    if not number:
        raise UserError(f"hub: {config.source} has no rows in split {config.split}")


def _as_text(builder: Any, config: HubConfig) -> None:
    """Have a reader of CSV give every cell as text, in its own column: no numbers, and NA is NA.

    Raises:
        UserError: a row of CSV that has not as many cells as the header.
    """
    from datasets import Features, Value
    from datasets.packaged_modules.csv.csv import CsvConfig

    if isinstance(builder.config, CsvConfig):
        for file in builder.config.data_files.get(config.split, ()):
            if _end(file) in (".csv", ".tsv"):
                _check_widths(file, builder.config.sep, config.limit)
        builder.config.keep_default_na = False
        builder.config.index_col = False  # or else the first column of rows with a cell too many names the rows
        first = next(iter(builder.as_streaming_dataset(config.split)))
        builder.config.features = Features(dict.fromkeys(first, Value("string")))


def _check_widths(file: str, separator: str, limit: int | None) -> None:
    """Refuse a CSV file with a row that the reader would fill up with empty cells, or cut."""
    import fsspec

    csv.field_size_limit(2**31 - 1)  # a cell is a document, and may be long
    with fsspec.open(file, "rt", encoding="utf-8-sig", newline="", compression="infer") as text:
        reader = csv.reader(text, delimiter=separator)
        rows = (cells for cells in reader if cells and not (len(cells) == 1 and cells[0].isspace()))  # as it skips them
        header = next(rows, [])
        for number, cells in enumerate(islice(rows, limit), start=1):
            if len(cells) != len(header):
                raise UserError(
                    f"hub: {file}, row {number} (it ends in line {reader.line_num}) has {len(cells)} cells, the header "
                    f"{len(header)}: mend it, with quotes around cells that have a comma or a line end"
                )


def _damaged_row(files: list[str]) -> str:
    """Say which local JSON Lines file is none, or which row is the first that cannot be read; nothing if all can be."""
    for path in (Path(file) for file in files if file.endswith((".jsonl", ".ndjson")) and Path(file).is_file()):
        if fault := not_rows(path):
            return f"{path} {fault}"
        for number, row, problem in read_rows_tolerant(path):
            try:
                json.dumps(row, ensure_ascii=False).encode()
            except UnicodeEncodeError:
                problem = "a lone surrogate"
            if problem:
                return (
                    f"{path}, row {number}: {problem}; mend it, or name the file in jsonl= (columns "
                    f"{', '.join(FIELDS)}): corpora=[jsonl] refuses such rows and goes on"
                )
    return ""


def _unreadable(config: HubConfig, error: Exception, where: str = "") -> UserError:
    said = next(iter(str(error).splitlines()), "")
    hint = ""
    if config.path and not Path(config.path).expanduser().exists():
        hint = (
            "; check the name, log in with `hf auth login` if access is granted by request, unset HF_HUB_OFFLINE, "
            "or name files that you have with hub.data_files="
        )
    return UserError(f"hub: cannot read {config.source}{where} ({type(error).__name__}: {said}){hint}")
