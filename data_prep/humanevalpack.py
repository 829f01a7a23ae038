"""HumanEvalPack as edits: the buggy solution is the document, the canonical solution the gold (corpora hevalfix-*)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from data_prep.pairs import EditPair
from data_prep.rows import RowError, read_rows

LANGUAGES = {"py": "python", "js": "js", "java": "java", "go": "go", "cpp": "cpp", "rust": "rust"}
HUB_FILE = "hf://datasets/bigcode/humanevalpack/data/{language}/data/humanevalpack.jsonl"
_FIELDS = ("task_id", "entry_point", "prompt", "buggy_solution", "canonical_solution", "test")
# What OctoPack's evaluation puts before a Python program (arXiv 2308.07124), less numpy, which may not be there.
_PYTHON_IMPORTS = """\
import collections, copy, datetime, functools, hashlib, heapq, itertools, math, re, statistics, string, sys
from collections import *
from typing import *
"""


@dataclass(frozen=True, slots=True)
class HumanEvalTest:
    """The tests of one problem: ``prefix`` and a body make the program, ``test`` fails where the program is wrong."""

    language: str  # a key of LANGUAGES
    prefix: str
    test: str


def load_humanevalpack(short: str, data_dir: Path | None, tests_in_prompt: bool = False) -> list[EditPair]:
    """Return the 164 fixes of one language (a key of ``LANGUAGES``).

    Rows come from ``data_dir/humanevalpack/LANGUAGE.jsonl`` where that file exists, else from the hub. Problems have
    the same number in every language and share a ``group``, so no problem trains in one language and is held out in
    another.

    Raises:
        RowError: a damaged file or a row without the fields of HumanEvalPack.
    """
    return [_pair(short, row, tests_in_prompt) for row in _rows(short, data_dir)]


def load_tests(short: str, data_dir: Path | None) -> dict[str, HumanEvalTest]:
    """Return the tests of one language by ``task_id``; files, hub, and errors are those of ``load_humanevalpack``."""
    imports = _PYTHON_IMPORTS if short == "py" else ""
    rows = _rows(short, data_dir, (*_FIELDS, "declaration"))
    return {row["task_id"]: HumanEvalTest(short, imports + row["declaration"], row["test"]) for row in rows}


def _rows(short: str, data_dir: Path | None, fields: tuple[str, ...] = _FIELDS) -> Iterator[dict]:
    language = LANGUAGES[short]
    local = data_dir / "humanevalpack" / f"{language}.jsonl" if data_dir else None
    number = 0
    for number, row in enumerate(read_rows(local) if local and local.exists() else _from_hub(language), start=1):
        missing = [name for name in fields if not isinstance(row.get(name), str)]
        if missing:
            raise RowError(
                f"{local or HUB_FILE.format(language=language)}, row {number}: no text in {', '.join(missing)}"
            )
        yield row
    if not number:
        raise RowError(f"{local or HUB_FILE.format(language=language)} has no rows; fetch it again")


def _pair(short: str, row: dict, tests_in_prompt: bool) -> EditPair:
    context = row["prompt"].strip("\n")
    instruction = f"Fix bugs in {row['entry_point']}.\n\n{context}"
    if tests_in_prompt:
        instruction += f"\n\nTests:\n{row['test'].strip()}"
    return EditPair(
        id=f"hevalfix-{short}/{row['task_id'].split('/')[-1]}",
        corpus=f"hevalfix-{short}",
        instruction=instruction,
        before=row["buggy_solution"],
        after=row["canonical_solution"],
        group=f"humaneval/{row['task_id'].split('/')[-1]}",
        meta={"task_id": row["task_id"], "bug_type": row.get("bug_type", "")},
    )


def _from_hub(language: str) -> Iterable[dict]:
    from datasets import load_dataset

    try:
        return load_dataset("json", data_files=HUB_FILE.format(language=language), split="train")
    except Exception as error:  # the errors of the hub's client have no base of their own
        raise OSError(f"the hub: {str(error).splitlines()[0] if str(error) else type(error).__name__}") from error
