"""Look at a prepared folder before training on it: what came in, what is odd, what is there twice, what leaks.

    python data_prep/inspect_data.py data=data/oracles out=reports/oracles
    python data_prep/inspect_data.py data=data/mine out=reports/mine tokenizer=Qwen/Qwen2.5-Coder-1.5B-Instruct
    python data_prep/inspect_data.py data=data/mine out=reports/mine held_out=[data/hevalfix,data/other]

Writes OUT/report.md, OUT/report.html (one file, with histograms) and OUT/findings.jsonl (every duplicate, leak and
over-length example by name). Changes nothing in the folder.

Counted: edits offered, refused by reason, trained on and held out; tags (zero-copy edits, edits of edge newlines
alone); copied share, ops a program, lines, and with tokenizer= tokens and the examples longer than max_length;
languages; exact and near duplicates; training edits that leak held-out ones, of this folder and of those in held_out=,
by content, near content, path, commit and repository. Needs datasketch (pip install 'cad-train[hygiene]'); the
histograms of the page need matplotlib (the extra report).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from data_prep.data_report import ReportConfig, html, inspect, markdown
from data_prep.rows import write_rows, write_text
from decoding.commandline import UserError, run
from decoding.console import markdown_table, track


@dataclass
class Config(ReportConfig):
    """What to look at."""


def main(config: Config) -> None:
    """Measure, write, and say what stands out."""
    out = Path(config.out)
    if out.exists() and not out.is_dir():
        raise UserError(f"out={config.out} is a file: name a folder")
    report = inspect(config, progress=track)
    try:
        write_text(out / "report.md", markdown(report))
        write_text(out / "report.html", html(report))
        write_rows(out / "findings.jsonl", report.findings)
    except OSError as error:
        raise UserError(f"cannot write the report: {error}") from None
    print(markdown_table(["part", "found"], [[part.heading, part.note] for part in report.parts]))
    print(f"wrote {out}: report.md, report.html, findings.jsonl")


if __name__ == "__main__":
    run(main, Config, description=__doc__)
