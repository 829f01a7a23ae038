"""A user's own edits from JSON Lines files with `instruction`, `before`, `after` (corpus jsonl)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from data_prep.hub import Columns, group_of, not_rows, provenance
from data_prep.instructions import synthesize
from data_prep.pairs import EditPair
from data_prep.rows import read_rows_tolerant
from decoding.commandline import UserError

FIELDS = ("instruction", "before", "after")
_COLUMNS = Columns(*FIELDS, "group")  # no other names


def read_user_pairs(paths: list[Path], synthesize_instructions: bool = False) -> Iterator[EditPair | dict]:
    """Yield the usable pairs and, for every other row, ``{"file", "row", "reason", "detail"}``.

    Reasons: not_json, missing_field, not_text, empty (an instruction that is blank), duplicate. Pairs with the same
    ``before`` share a group, so that no document is in two splits; a ``group`` field of the row, where it has one that
    is not null, is used instead, as text. ``meta`` says where a row is from: file, row, and its fields of repository,
    path, commit, licence and language.

    With ``synthesize_instructions`` a row whose instruction is missing, null or blank gets one made from the edit, the
    same for the same edit; the pair's ``meta["instruction_made"]`` says whether it determines the edit.

    Raises:
        UserError: a path that is no file, or a file in which no line can be a row: UTF-16 or -32, gzip, a JSON array.
    """
    for path in paths:
        _check_file(path)
    seen: set[bytes] = set()
    for path in paths:
        shown = str(path).encode("utf-8", "backslashreplace").decode()  # a file name need not be Unicode
        for number, row, problem in read_rows_tolerant(path):
            made = None
            if synthesize_instructions and not problem and _lacks_instruction(row):
                made = synthesize(row["before"], row["after"], _digest(row["before"], row["after"]))
                row["instruction"] = made.text
            reason, detail = ("not_json", problem) if problem else _fault(row)
            if not reason:
                digest = hashlib.sha256(json.dumps([row[name] for name in FIELDS]).encode()).digest()[:16]
                if digest in seen:
                    reason, detail = "duplicate", "the same instruction, before, and after stand in an earlier row"
                seen.add(digest)
            if reason:
                yield {"file": shown, "row": number, "reason": reason, "detail": detail}
                continue
            yield EditPair(
                id=f"jsonl/{shown}:{number}",
                corpus="jsonl",
                instruction=row["instruction"],
                before=row["before"],
                after=row["after"],
                group=group_of(row, _COLUMNS),
                meta={"file": shown, "row": number}
                | provenance(row)
                | ({"instruction_made": made.exact} if made else {}),
            )


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise UserError(f"jsonl: {path} is a folder: name its files, jsonl=[{path}/FILE,...]")
    if not path.is_file():
        is_glob = any(sign in str(path) for sign in "*?[")
        raise UserError(f"jsonl: there is no file {path}" + ("; name each file, globs are not expanded" * is_glob))
    if fault := not_rows(path):
        raise UserError(f"jsonl: {path} {fault}")


def _lacks_instruction(row: dict) -> bool:
    """Whether the row is an edit with nothing said about it."""
    if not isinstance(row.get("before"), str) or not isinstance(row.get("after"), str):
        return False
    instruction = row.get("instruction") or ""
    return isinstance(instruction, str) and not instruction.strip()


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _fault(row: dict) -> tuple[str, str]:
    missing = [name for name in FIELDS if name not in row]
    if missing:
        return "missing_field", f"no {', '.join(missing)}"
    wrong = [name for name in FIELDS if not isinstance(row[name], str)]
    if wrong:
        return "not_text", f"{', '.join(wrong)} is not a string"
    if not row["instruction"].strip():
        return "empty", "instruction is empty: write one, or give synthesize_instructions=true and leave it out"
    return "", ""
