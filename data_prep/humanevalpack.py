"""HumanEvalPack as edits: the buggy solution is the document, the canonical solution the gold (corpora hevalfix-*)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from data_prep.pairs import EditPair
from data_prep.rows import RowError, read_rows

LANGUAGES = {"py": "python", "js": "js", "java": "java", "go": "go", "cpp": "cpp", "rust": "rust"}
HUB_FILE = "hf://datasets/bigcode/humanevalpack/data/{language}/data/humanevalpack.jsonl"
_FIELDS = ("task_id", "entry_point", "prompt", "buggy_solution", "canonical_solution", "test")


def load_humanevalpack(short: str, data_dir: Path | None, tests_in_prompt: bool = False) -> list[EditPair]:
    """Return the 164 fixes of one language (a key of ``LANGUAGES``).

    Rows come from ``data_dir/humanevalpack/LANGUAGE.jsonl`` where that file exists, else from the hub. Problems have
    the same number in every language and share a ``group``, so no problem trains in one language and is held out in
    another.

    Raises:
        RowError: a damaged file or a row without the fields of HumanEvalPack.
    """
    language = LANGUAGES[short]
    local = data_dir / "humanevalpack" / f"{language}.jsonl" if data_dir else None
    rows = read_rows(local) if local and local.exists() else _from_hub(language)
    pairs = []
    for number, row in enumerate(rows, start=1):
        missing = [name for name in _FIELDS if not isinstance(row.get(name), str)]
        if missing:
            raise RowError(
                f"{local or HUB_FILE.format(language=language)}, row {number}: no text in {', '.join(missing)}"
            )
        pairs.append(_pair(short, row, tests_in_prompt))
    if not pairs:
        raise RowError(f"{local or HUB_FILE.format(language=language)} has no rows; fetch it again")
    return pairs


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

    return load_dataset("json", data_files=HUB_FILE.format(language=language), split="train")
