"""What a table is: figures of ours beside the paper's, their difference, and what they rest on. No torch.

The paper is Copy-as-Decode, arXiv 2604.18170 v1, withdrawn by its author: its numbers are claims to measure again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

from decoding.console import markdown_table
from decoding.html_page import Plot, Series  # noqa: F401 - what a table is made of has one place to import from

Kind = Literal["count", "mean", "share", "accuracy", "ratio", "ms", "text"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: ours (None: not measured), the paper's (None: it has none), and an interval of ours.

    Shares are fractions of 1, times milliseconds. A figure of kind text is a word or two.
    """

    ours: float | str | None = None
    paper: float | str | None = None
    interval: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """A column of figures of one kind."""

    name: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a table: what it is of (one label for each of the table's label columns), and its figures."""

    labels: tuple[str, ...]
    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class Table:
    """A table of the paper, measured again.

    Attributes:
        number: its number in the paper, or the section's.
        title: what it shows.
        labels: names of the columns that say what a row is of.
        columns: the figures' columns.
        rows: as many figures as columns each.
        method: how ours were measured, with units and n where no column has it.
        sources: what the figures rest on: corpora and their fingerprints, tokenizer, model, seeds.
        findings: what the comparison says, the paper's errors first.
        plots: drawn in the HTML report.
    """

    number: str
    title: str
    labels: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: list[Row]
    method: str
    sources: dict[str, str]
    findings: list[str] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.labels) != len(self.labels) or len(row.figures) != len(self.columns):
                raise ValueError(f"table {self.number}: row {row.labels} does not fit the columns")

    @property
    def heading(self) -> str:
        """Return the heading of the table in a report."""
        kind = "Table" if self.number.isdigit() else "Section"
        return f"{kind} {self.number}: {self.title}"


def lines_of(table: Table) -> tuple[list[str], list[list[str]]]:
    """Return the header and the lines that a person reads: labels, whose figures they are, and the figures.

    Where no row has a figure of the paper, whose they are is left out.
    """
    of_rows = lines_by_row(table)
    compared = any(whose != "ours" for lines in of_rows for whose, _ in lines)
    header = [*table.labels, *([""] if compared else []), *(column.name for column in table.columns)]
    out = []
    for row, lines in zip(table.rows, of_rows, strict=True):
        for index, (whose, cells) in enumerate(lines):
            labels = row.labels if index == 0 else [""] * len(row.labels)
            out.append([*labels, *([whose] if compared else []), *cells])
    return header, out


def lines_by_row(table: Table) -> list[list[tuple[str, list[str]]]]:
    """Return the lines of each row: ours, and where the paper has figures, the paper's and the difference.

    Differences are absolute for counts and accuracies, percentage points for shares, otherwise relative to the paper.
    """
    decimals = paper_decimals(table)
    out = []
    for row in table.rows:
        known = list(zip(row.figures, [column.kind for column in table.columns], decimals, strict=True))
        lines = []
        if any(figure.ours is not None for figure in row.figures) or all(f.paper is None for f in row.figures):
            lines.append(("ours", [_ours(figure, kind) for figure, kind, _ in known]))
        if any(figure.paper is not None for figure in row.figures):
            lines.append(("paper", ["" if f.paper is None else show(f.paper, kind, d) for f, kind, d in known]))
            if len(lines) > 1:
                lines.append(("difference", [difference(*figure) for figure in known]))
        out.append(lines)
    return out


def show(value: float | str, kind: Kind, decimals: int | None = None) -> str:
    """Return a figure as text, with at most so many decimals."""
    if isinstance(value, str):
        return value
    if kind not in _FORMATS:
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    most, unit, scale = _FORMATS[kind]
    return f"{scale * value:,.{most if decimals is None else min(decimals, most)}f}{unit}"


def paper_decimals(table: Table) -> list[int]:
    """Return, for each column, with how many decimals the paper gives its figures there: the most that one has."""
    out = []
    for index, column in enumerate(table.columns):
        papers = [row.figures[index].paper for row in table.rows]
        scale = 2 if column.kind == "share" else 0
        written = [
            -Decimal(repr(paper)).as_tuple().exponent - scale for paper in papers if isinstance(paper, (int, float))
        ]
        out.append(max([0, *written]))
    return out


def difference(figure: Figure, kind: Kind, decimals: int) -> str:
    """Return ours against the paper's: "=" where they agree in its decimals, empty where there is none to compare."""
    ours, paper = figure.ours, figure.paper
    if ours is None or paper is None:
        return ""
    if isinstance(ours, str) or isinstance(paper, str):
        return "=" if ours == paper else "differs"
    if show(ours, kind, decimals) == show(paper, kind, decimals):
        return "="
    if kind in ("count", "accuracy"):
        return f"{ours - paper:+,}" if kind == "count" else f"{ours - paper:+.2f}"
    if kind == "share":
        return f"{100 * (ours - paper):+.2f} pp"
    return f"{ours / paper - 1:+.1%}" if paper else ""


def markdown(table: Table) -> str:
    """Return the table with its heading, method, sources and findings."""
    header, lines = lines_of(table)
    parts = [f"## {table.heading}", table.method, markdown_table(header, lines)]
    if table.findings:
        parts.append("\n".join(f"- {finding}" for finding in table.findings))
    parts.append("Rests on: " + "; ".join(f"{name} {value}" for name, value in table.sources.items()) + ".")
    return "\n\n".join(parts) + "\n"


def as_json(table: Table) -> dict[str, Any]:
    """Return the table as JSON values: a row is its labels and, by column, ours, the paper's and the interval."""
    return {
        "table": table.number,
        "title": table.title,
        "method": table.method,
        "sources": table.sources,
        "columns": [{"name": column.name, "kind": column.kind} for column in table.columns],
        "rows": [
            dict(zip(table.labels, row.labels, strict=True))
            | {
                column.name: {"ours": figure.ours, "paper": figure.paper}
                | ({"interval": list(figure.interval)} if figure.interval else {})
                for column, figure in zip(table.columns, row.figures, strict=True)
            }
            for row in table.rows
        ],
        "findings": table.findings,
    }


# The most decimals, what stands behind the number, and what it is multiplied by.
_FORMATS: dict[Kind, tuple[int, str, int]] = {
    "count": (0, "", 1),
    "mean": (1, "", 1),
    "share": (2, "%", 100),
    "accuracy": (2, "", 1),
    "ratio": (2, "x", 1),
}


def _ours(figure: Figure, kind: Kind) -> str:
    if figure.ours is None:
        return "-"
    if figure.interval is None:
        return show(figure.ours, kind)
    low, high = (show(bound, kind) for bound in figure.interval)
    return f"{show(figure.ours, kind)} [{low}, {high}]"
