"""Measure every table of the Copy-as-Decode paper again: the paper's number, ours on the same work, the difference.

    python eval/paper.py                                                    # all tables that need no model
    python eval/paper.py table=[2,3,8]
    python eval/paper.py model=Qwen/Qwen2.5-Coder-1.5B-Instruct             # and those that run one
    python eval/paper.py table=11 model=Qwen/Qwen2.5-Coder-7B-Instruct random_weights=true
    python eval/paper.py table=[2,13] corpora=[jsonl] jsonl=[edits.jsonl]   # on your own edits
    python eval/paper.py table=[6,7] runs=[runs/a-seed0,runs/a-seed1,runs/a-seed2]
    python eval/paper.py table=25 endpoint=https://api.openai.com/v1 endpoint_model=[gpt-5-mini]

Prints the tables, and writes to out=: paper.json, paper.md, and paper.html (one file, with plots). A table whose inputs
are not named (a model, run folders, an endpoint) is left out of table=all, and the report says so.

The paper is arXiv 2604.18170 v1; its author has withdrawn it, so each of its numbers is a claim to measure again.
"""

from __future__ import annotations

import importlib
import json
import shlex
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from decoding.commandline import UserError, run
from eval.paper_tables.inputs import Inputs, Missing, PaperConfig
from eval.paper_tables.table import Table, as_json, markdown

# Each table, and the module of eval/paper_tables that makes it with its function table_NUMBER.
TABLES = {
    "2": "copy_ceiling",
    "3": "edit_formats",
    "4": "resolver_modes",
    "4.3": "losslessness",
    "5": "serving",
    "6": "selector",
    "7": "selector",
    "8": "perturbation",
    "11": "kernel",
    "12": "copy_ceiling",
    "13": "token_cover",
    "14": "perturbation",
    "15": "token_cover",
    "16": "fixed_costs",
    "17": "fixed_costs",
    "18": "portability",
    "19": "pointer",
    "20": "speculation",
    "21": "token_cover",
    "22": "selector",
    "23": "selector",
    "24": "strategies",
    "25": "prompt_level",
}


@dataclass
class Config(PaperConfig):
    """Which tables, on what, with which model."""

    def __post_init__(self) -> None:
        unknown = [number for number in self.table if number not in ("all", *TABLES)]
        if unknown or not self.table:
            raise ValueError(f"table={','.join(unknown)}: choose from all, {', '.join(TABLES)}")
        super().__post_init__()


def main(config: Config) -> None:
    """Make the tables, print and write them."""
    from cad_train.run_folder import environment
    from data_prep.rows import write_text
    from eval.paper_tables.html import html

    every = "all" in config.table
    inputs = Inputs(config)
    tables: list[Table] = []
    left_out: dict[str, str] = {}
    for number in TABLES if every else dict.fromkeys(config.table):
        started = time.monotonic()
        try:
            tables.append(make_table(number, inputs))
        except (Missing, UserError) as reason:
            if not every:
                raise UserError(f"table {number}: {reason}") from None
            left_out[number] = str(reason)
            continue
        print(markdown(tables[-1]), flush=True)
        print(f"table {number}: {time.monotonic() - started:.1f} s", file=sys.stderr)
    refused = {corpus.name: corpus.refused for corpus in inputs.loaded if corpus.refused}
    record = {
        "paper": "arXiv 2604.18170 v1 (withdrawn)",
        "command": shlex.join(["python", *sys.argv]),
        "settings": asdict(config),
        "environment": environment(),
        "corpora": {
            corpus.name: {"n": len(corpus.rows), "fingerprint": corpus.fingerprint} for corpus in inputs.loaded
        },
        "refused": refused,
        "left_out": left_out,
        "tables": [as_json(table) for table in tables],
    }
    out = Path(config.out)
    write_text(out / "paper.json", json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    notes = _notes(refused, left_out)
    parts = ["# The tables of Copy-as-Decode, measured again", f"Command: `{record['command']}`", *notes]
    write_text(out / "paper.md", "\n\n".join([*parts, *map(markdown, tables)]))
    write_text(out / "paper.html", html(tables, record, notes))
    print("\n".join([*notes, f"wrote {out}/paper.json, paper.md, paper.html"]))


def make_table(number: str, inputs: Inputs) -> Table:
    """Return one table of ``TABLES``.

    Raises:
        Missing: the settings do not name an input it needs.
    """
    module = importlib.import_module(f"eval.paper_tables.{TABLES[number]}")
    return getattr(module, f"table_{number.replace('.', '_')}")(inputs)


def _notes(refused: dict[str, dict[str, int]], left_out: dict[str, str]) -> list[str]:
    notes = [
        f"Corpus {name}: left out " + ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items())) + "."
        for name, reasons in refused.items()
    ]
    return notes + [f"Table {number} is left out: {reason}." for number, reason in left_out.items()]


if __name__ == "__main__":
    run(main, Config, description=__doc__)
