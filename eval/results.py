"""Reading result folders, which eval/heldout.py writes: their summary and case rows, checked. No torch."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from data_prep.rows import RowError, read_rows, write_text
from decoding.commandline import UserError

UNTRAINED = "untrained, "  # begins the label of an untrained model
IDENTITY = "identity"  # begins the label of the unchanged document
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_FIELDS = {
    **dict.fromkeys(("id", "corpus", "label", "checkpoint", "strategy", "identity", "outcome"), str),
    **dict.fromkeys(("document_sha256", "instruction_sha256", "gold_sha256"), str),
    **dict.fromkeys(("exact", "trimmed", "program_exact", "parsed"), bool),
    **dict.fromkeys(("copies_oracle", "copies_starts", "copies_ends", "out_of_range"), int),
    **dict.fromkeys(("output_tokens", "copied", "forwards", "decoded"), int),
    "confidence": float,
    "wall_s": float,
    "stop": str,
}


@dataclass(frozen=True)
class ScoredSystem:
    """One label of a result folder; ``rows`` are its case rows by checkpoint and case id, in the order of the cases."""

    label: str
    strategy: str
    rows: dict[str, dict[str, dict[str, Any]]]

    @property
    def untrained(self) -> bool:
        """Whether this is an untrained model scored beside a checkpoint."""
        return self.label.startswith(UNTRAINED)

    @property
    def seeds(self) -> list[int | None]:
        """The training seed of each checkpoint; None where its run is not known."""
        return [next(iter(rows.values()))["seed"] for rows in self.rows.values()]


@dataclass(frozen=True)
class Results:
    """A result folder.

    Attributes:
        folder: where it is.
        summary: the content of summary.json.
        systems: what was scored, by label. The unchanged document has no case rows: it is in the summary only.
        cases: how many cases there are; a checkpoint may have fewer where its scoring was interrupted.
        left_out: rows of cases.jsonl that are of a model since replaced, or of a checkpoint that is no longer scored.
    """

    folder: Path
    summary: dict[str, Any]
    systems: dict[str, ScoredSystem]
    cases: int
    left_out: int

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the scored cases; that of the oracles they are from is ``summary["data"]``'s."""
        return self.summary["settings"]["rows"]

    @property
    def decoding(self) -> dict[str, Any]:
        """The settings that the cases were decoded with."""
        return {key: v for key, v in self.summary["settings"].items() if key not in ("format", "rows", "batch_size")}


def read_results(path: str) -> Results:
    """Read a result folder, or the one of a run: RUN stands for RUN/heldout.

    Raises:
        UserError: a folder that is none, an unfinished scoring, a file that is missing or damaged.
    """
    folder = _result_folder(Path(path).expanduser())
    summary = _read_json(folder / "summary.json")
    try:
        names = {str(checkpoint["name"]) for checkpoint in summary["checkpoints"]} | {summary["base"]}
        cases = sum(
            entry["n"]
            for entry in summary["systems"]
            if entry["label"].startswith(IDENTITY) and entry["corpus"] != "all"
        )
        scored = {key: value for key, value in summary["settings"].items() if key != "batch_size"}
        _ = summary["settings"]["rows"], summary["data"]["fingerprint"]
    except (KeyError, TypeError, AttributeError):
        raise UserError(f"{folder / 'summary.json'} is not a summary that eval/heldout.py writes") from None
    if _read_json(folder / "settings.json") != scored:
        raise UserError(
            f"{folder} is being scored with other settings, and not finished: run its eval/heldout.py command again"
        )
    rows = _read_cases(folder / "cases.jsonl")
    # A path keeps its rows when the model there is trained anew; the summary's come first.
    current: dict[str, str] = {}
    systems: dict[str, ScoredSystem] = {}
    left_out = 0
    for row in rows:
        name = row["checkpoint"]
        if name not in names or current.setdefault(name, row["identity"]) != row["identity"]:
            left_out += 1
            continue
        system = systems.setdefault(row["label"], ScoredSystem(row["label"], row["strategy"], {}))
        system.rows.setdefault(name, {})[row["id"]] = row  # a case's last row counts
    for entry in summary["systems"]:
        if entry["label"] not in systems and not entry["label"].startswith(IDENTITY):
            raise UserError(f"{folder / 'cases.jsonl'} lacks the cases of '{entry['label']}': score it again")
    return Results(folder, summary, systems, cases, left_out)


def choose_system(results: Results, word: str | None) -> ScoredSystem:
    """Return the one system that ``word`` means: a label, its strategy, or what stands before the strategy.

    Where several fit, as all do without a word, trained ones come before untrained ones, and those of the last call of
    eval/heldout.py before earlier ones.

    Raises:
        UserError: none fits, or more than one still does; a checkpoint that lacks cases.
    """
    every = list(results.systems.values())
    found = [system for system in every if word in (None, system.label, *_parts(system))]
    last = {entry["label"] for entry in results.summary["systems"]}
    for preferred in (lambda system: not system.untrained, lambda system: system.label in last):
        if len(found) > 1:
            found = [system for system in found if preferred(system)] or found
    if len(found) != 1:
        there = "; ".join(f"'{system.label}'" for system in every) or "none"
        said = "no system" if not found else "more than one system"
        raise UserError(f"{results.folder} has {said}{f' {word!r}' if word else ''}: choose with systems= from {there}")
    check_complete(results, found[0])
    return found[0]


def check_complete(results: Results, system: ScoredSystem) -> None:
    """Refuse a system of which a checkpoint lacks cases."""
    for name, rows in system.rows.items():
        if len(rows) != results.cases:
            raise UserError(
                f"{results.folder} holds {len(rows)} of the {results.cases} cases of '{system.label}' ({name}), "
                f"{results.cases - len(rows)} are missing: run its eval/heldout.py command again"
            )


def check_same_data(first: Results, other: Results) -> None:
    """Refuse results on other cases than those of ``first``: they cannot be paired or pooled.

    Oracles may differ where the scored cases do not: a run on one corpus and one on three share their held-out cases.
    """
    if first.fingerprint != other.fingerprint:
        ours, theirs = _ids(first), _ids(other)
        raise UserError(
            f"{first.folder} and {other.folder} were scored on different cases: fingerprints "
            f"{first.fingerprint[:16]} and {other.fingerprint[:16]}, of oracles "
            f"{first.summary['data']['fingerprint'][:16]} and {other.summary['data']['fingerprint'][:16]}; "
            f"they share {len(ours & theirs)} of {len(ours)} and {len(theirs)} case ids"
        )


def check_same_cases(first: dict[str, dict[str, Any]], other: dict[str, dict[str, Any]], where: str) -> None:
    """Refuse case rows, by id, that are not of the same cases: ids, documents, instructions and golds must be equal."""
    lacking, beyond = first.keys() - other.keys(), other.keys() - first.keys()
    if lacking or beyond:
        raise UserError(
            f"{where}: the cases differ; {len(lacking)} of {len(first)} are missing in the second, "
            f"{len(beyond)} of {len(other)} in the first (such as {min(lacking | beyond)})"
        )
    for key in ("corpus", "document_sha256", "instruction_sha256", "gold_sha256", "copies_oracle"):
        changed = [name for name, row in first.items() if row[key] != other[name][key]]
        if changed:
            raise UserError(f"{where}: {key} differs in {len(changed)} of {len(first)} cases (such as {changed[0]})")


def write_report(folder: str, name: str, figures: dict[str, Any], text: str, what: str) -> str:
    """Write NAME.json and NAME.md under ``folder``; return where, for the person.

    Raises:
        UserError: it cannot be written; ``what`` says of what.
    """
    out = Path(folder)
    try:
        write_text(out / f"{name}.json", json.dumps(figures, indent=2, ensure_ascii=False) + "\n")
        write_text(out / f"{name}.md", text)
    except OSError as error:
        raise UserError(f"cannot write the {what}: {error}") from None
    return f"{out}/{name}.md, {name}.json"


def words_to_key(argv: list[str], key: str, schema: type) -> list[str]:
    """Return a command line with the words that are no settings as values of the list ``key`` of ``schema``."""
    if "-h" in argv or "--help" in argv:
        return argv
    lists = {field.name for field in fields(schema) if str(field.type).startswith("list")}
    names = {field.name for field in fields(schema)}
    settings: list[str] = []
    words: list[str] = []
    awaited = 0.0  # values that may still belong to the option before
    for token in argv:
        if token.startswith("--"):
            name = token.removeprefix("--")
            awaited = float("inf") if name in lists else float(name in names)
            settings.append(token)
        elif _ASSIGNMENT.match(token):
            awaited = 0
            settings.append(token)
        elif awaited:
            awaited -= 1
            settings.append(token)
        else:
            words.append(token)
    return [*settings, f"--{key}", *words] if words else settings


def _result_folder(path: Path) -> Path:
    for folder in (path, path / "heldout"):
        if (folder / "cases.jsonl").is_file():
            return folder
    if not path.is_dir():
        raise UserError(f"there is no folder {path}")
    what = "a run that was not scored" if (path / "config.yaml").is_file() else "no result folder (no cases.jsonl)"
    raise UserError(f"{path} is {what}: score a checkpoint with eval/heldout.py --ckpt PATH")


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing: its scoring is not finished; run eval/heldout.py again") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}): run eval/heldout.py again") from None


def _read_cases(path: Path) -> list[dict[str, Any]]:
    try:
        rows = list(read_rows(path))
    except (OSError, RowError) as error:
        raise UserError(str(error)) from None
    for number, row in enumerate(rows, start=1):
        for key, kind in _FIELDS.items():
            if type(row.get(key)) is not kind and not (kind is float and type(row.get(key)) is int):
                raise UserError(f"{path}, row {number}: {key} is {row.get(key)!r}, not {kind.__name__}: score it again")
        if type(row.get("seed", "")) not in (int, type(None)):
            raise UserError(f"{path}, row {number}: seed is {row.get('seed')!r}, not int or null: score it again")
    return rows


def _parts(system: ScoredSystem) -> tuple[str, str]:
    return system.label.removesuffix(f", {system.strategy}"), system.strategy


def _ids(results: Results) -> set[str]:
    return {name for system in results.systems.values() for rows in system.rows.values() for name in rows}
