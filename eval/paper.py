"""Measure every table of the Copy-as-Decode paper again: the paper's number, ours on the same work, the difference.

    python eval/paper.py                                                    # all tables that need no model
    python eval/paper.py table=[2,3,8]
    python eval/paper.py model=Qwen/Qwen2.5-Coder-1.5B-Instruct             # and those that run one
    python eval/paper.py table=11 model=Qwen/Qwen2.5-Coder-7B-Instruct random_weights=true
    python eval/paper.py table=[2,13] corpora=[jsonl] jsonl=[edits.jsonl]   # on your own edits
    python eval/paper.py table=[6,7] runs=[runs/a-seed0,runs/a-seed1,runs/a-seed2]
    python eval/paper.py table=25 endpoint=https://api.openai.com/v1 endpoint_model=[gpt-5-mini]

Tables are 2 to 8 and 11 to 25, and 4.3 with Appendix I. They are printed as they come, and written to out=: paper.json,
paper.md, and paper.html (one file, with plots); rows of a corpus that could not be used are listed in refused.jsonl. A
table whose inputs are not named (a model, run folders, an endpoint) is left out of table=all, and the report says so.

The paper is arXiv 2604.18170 v1; its author has withdrawn it, so each of its numbers is a claim to measure again.
"""

from __future__ import annotations

import importlib
import json
import shlex
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from decoding.commandline import UserError, run
from eval.paper_tables.inputs import Inputs, Missing, PaperConfig
from eval.paper_tables.table import Table, as_json, markdown

# Each table: the module of eval/paper_tables that makes it with its function table_NUMBER, and the settings it needs.
TABLES: dict[str, tuple[str, tuple[str, ...]]] = {
    "2": ("copy_ceiling", ()),
    "3": ("edit_formats", ()),
    "4": ("resolver_modes", ()),
    "4.3": ("losslessness", ()),
    "5": ("serving", ("model",)),
    "6": ("selector", ("runs",)),
    "7": ("selector", ("runs",)),
    "8": ("perturbation", ()),
    "11": ("kernel", ("model",)),
    "12": ("copy_ceiling", ()),
    "13": ("token_cover", ()),
    "14": ("perturbation", ()),
    "15": ("token_cover", ()),
    "16": ("fixed_costs", ("model",)),
    "17": ("fixed_costs", ()),
    "18": ("portability", ()),
    "19": ("pointer", ()),
    "20": ("speculation", ()),
    "21": ("token_cover", ()),
    "22": ("selector", ("runs",)),
    "23": ("selector", ("runs",)),
    "24": ("strategies", ("model",)),
    "25": ("prompt_level", ("endpoint", "endpoint_model")),
}
_NEEDS = {
    "model": "a model to run",
    "runs": "the folders of trained runs",
    "endpoint": "an API",
    "endpoint_model": "models behind it",
}


@dataclass
class Config(PaperConfig):
    """Which tables, on what, with which model."""

    def __post_init__(self) -> None:
        unknown = [number for number in self.table if number not in ("all", *TABLES)]
        if unknown or not self.table:
            said = f"there is no table {', '.join(unknown)}" if unknown else "no table is named"
            raise ValueError(f"{said}: choose from all, {', '.join(TABLES)}; several as table=[2,8]")
        super().__post_init__()
        for number in self.table:
            if number != "all" and (lacking := self.lacks(number)):
                raise ValueError(f"table {number} needs {lacking}")

    def lacks(self, number: str) -> str:
        """Return what a table needs that is not named, as text; empty where nothing is lacking."""
        return " and ".join(f"{_NEEDS[key]} ({key}=)" for key in TABLES[number][1] if not getattr(self, key))


def main(config: Config) -> None:
    """Make the tables, print and write them; those that are finished are kept whatever becomes of the next."""
    every = "all" in config.table
    inputs = Inputs(config)
    tables: list[Table] = []
    left_out: dict[str, str] = {}
    _check_writable(Path(config.out))
    try:
        for number in TABLES if every else dict.fromkeys(config.table):
            if lacking := config.lacks(number):
                left_out[number] = f"it needs {lacking}"
                continue
            started = time.monotonic()
            print(f"table {number} ...", file=sys.stderr, flush=True)
            try:
                tables.append(make_table(number, inputs))
            except (Missing, UserError) as reason:
                if not every:
                    raise UserError(f"table {number}: {reason}") from None
                left_out[number] = str(reason)
                continue
            _write(config, inputs, tables, left_out)
            print(markdown(tables[-1]), flush=True)
            print(f"table {number}: {time.monotonic() - started:.1f} s", file=sys.stderr)
    finally:
        if tables or left_out:
            notes = _write(config, inputs, tables, left_out, page=True)
            print("\n".join([*notes, f"wrote {config.out}/paper.json, paper.md, paper.html"]))


def _check_writable(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise UserError(f"out={out}: cannot write there ({error.strerror})") from None


def _write(
    config: Config, inputs: Inputs, tables: list[Table], left_out: dict[str, str], page: bool = False
) -> list[str]:
    """Write what there is, and return the notes; the page, with its plots, only at the end."""
    from cad_train.run_folder import environment
    from data_prep.rows import write_rows, write_text
    from eval.paper_tables.html import html

    out = Path(config.out)
    record = {
        "paper": "arXiv 2604.18170 v1 (withdrawn)",
        "command": shlex.join(["python", *sys.argv]),
        "settings": asdict(config),
        "environment": environment(),
        "corpora": {
            corpus.name: {"n": len(corpus.rows), "fingerprint": corpus.fingerprint} for corpus in inputs.loaded
        },
        "refused": {corpus.name: corpus.refused for corpus in inputs.loaded if corpus.refused},
        "left_out": left_out,
        "tables": [as_json(table) for table in tables],
    }
    notes = _notes(inputs, left_out, out)
    write_rows(
        out / "refused.jsonl",
        ({"corpus": corpus.name, **fault} for corpus in inputs.loaded for fault in corpus.faults),
    )
    write_text(out / "paper.json", json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    parts = ["# The tables of Copy-as-Decode, measured again", f"Command: `{record['command']}`", *notes]
    write_text(out / "paper.md", "\n\n".join([*parts, *map(markdown, tables)]))
    if page:
        write_text(out / "paper.html", html(tables, record, notes))
    return notes


def make_table(number: str, inputs: Inputs) -> Table:
    """Return one table of ``TABLES``.

    Raises:
        Missing: the settings do not name an input it needs.
    """
    module = importlib.import_module(f"eval.paper_tables.{TABLES[number][0]}")
    return getattr(module, f"table_{number.replace('.', '_')}")(inputs)


def _notes(inputs: Inputs, left_out: dict[str, str], out: Path) -> list[str]:
    notes = []
    for corpus in inputs.loaded:
        if corpus.refused:
            listed = f" (listed in {out}/refused.jsonl)" if corpus.faults else ""
            notes.append(f"Corpus {corpus.name}: left out {corpus.left_out}{listed}.")
        if corpus.name == "probeedit":
            notes.append(
                "ProbeEdit was never published: ours is a generator with its counts of documents and edit kinds, and "
                "other text."
            )
    return notes + [f"Table {number} is left out: {reason}." for number, reason in left_out.items()]


if __name__ == "__main__":
    run(main, Config, description=__doc__)
