"""The tables as one self-contained HTML file, see ``decoding.html_page``."""

from __future__ import annotations

import re
from html import escape
from typing import Any

from decoding.html_page import contents_entry, figures, items, of_class, page, prose, terms, wide
from eval.paper_tables.table import Plot, Table, difference, lines_by_row, lines_of, paper_decimals

_TITLE = "The tables of Copy-as-Decode, measured again"
_COMPARED = (
    "Where the paper has a figure, it stands below ours with the difference: absolute for counts and accuracies, in "
    "percentage points (pp) for shares, relative to the paper's otherwise; = where both read alike. Brackets are "
    "intervals. Figures that were not measured are shown as -."
)
_INTERVALS = {"line": " Shaded: intervals.", "groups": " Whiskers: intervals.", "bars": ""}


def html(tables: list[Table], record: dict[str, Any], notes: list[str]) -> str:
    """Return the report: what it is of, its contents, and every table with its plots and what it rests on.

    ``record`` is what eval/paper.py writes as paper.json, ``notes`` what was refused or left out and why. The text has
    no date: equal input gives equal bytes.
    """
    contents = "".join(contents_entry(_anchor(table), table.heading, _agreement(table)) for table in tables)
    sections = "".join(_section(table, record["command"]) for table in tables)
    return page(_TITLE, f"{_header(record, notes)}\n<p>{_COMPARED}</p>", contents, sections)


def _header(record: dict[str, Any], notes: list[str]) -> str:
    found = record["environment"]
    versions = {"Python": found["python"], **found["versions"], "revision": found["revision"]}
    environment = [f"{name} {version}" for name, version in versions.items() if version]
    environment += [str(found["device"]), f"CPU threads: {found['threads']}"]
    corpora = [
        f"{escape(name)}: n={corpus['n']}, fingerprint <code>{escape(corpus['fingerprint'])}</code>"
        for name, corpus in record["corpora"].items()
    ]
    said = {
        "Paper": escape(record["paper"]),
        "Command": f"<code>{escape(record['command'])}</code>",
        "Environment": escape(", ".join(environment)),
        "Corpora": items(corpora) if corpora else "none",
        "Left out": items(map(prose, notes)) if notes else "nothing",
    }
    return terms(said)


def _section(table: Table, command: str) -> str:
    sources = "; ".join(f"{name} {value}" for name, value in table.sources.items())
    parts = [
        f'<section id="{_anchor(table)}">',
        f"<h2>{escape(table.heading)}</h2>",
        f"<p>{prose(table.method)}</p>",
        _table(table),
        items(map(prose, table.findings)) if table.findings else "",
        f'<p class="sources">Rests on: {escape(sources)}.</p>',
        _plots(table, sources, command) if table.plots else "",
        "</section>\n",
    ]
    return "\n".join(part for part in parts if part)


def _table(table: Table) -> str:
    header, _ = lines_of(table)
    compared = len(header) > len(table.labels) + len(table.columns)
    kinds = ["text" if column.kind == "text" else "" for column in table.columns]
    of_columns = ["text"] * len(table.labels) + ["which"] * compared + kinds
    head = "".join(
        f'<th scope="col"{of_class(kind)}>{escape(name)}</th>' for name, kind in zip(header, of_columns, strict=True)
    )
    bodies = []
    for row, lines in zip(table.rows, lines_by_row(table), strict=True):
        start = "".join(
            f'<th scope="rowgroup"{of_class(_text(label))} rowspan="{len(lines)}">{escape(label)}</th>'
            for label in row.labels
        )
        body = ""
        for whose, cells in lines:
            start += f'<td class="which">{whose}</td>' if compared else ""
            shown = "".join(_cell(cell, kind) for cell, kind in zip(cells, kinds, strict=True))
            body += f'<tr class="{whose}">{start}{shown}</tr>\n'
            start = ""
        bodies.append(f"<tbody>\n{body}</tbody>\n")
    shown = f"<table{of_class('compared' * compared)}>\n<thead><tr>{head}</tr></thead>\n{''.join(bodies)}</table>"
    return wide(table.heading, shown)


def _cell(cell: str, kind: str) -> str:
    if cell == "=":
        return '<td class="same">=</td>'
    value, bracket, interval = cell.partition(" [")
    shown = escape(value) + (f' <span class="muted">[{escape(interval)}</span>' if bracket else "")
    return f"<td{of_class(kind and _text(cell))}>{shown}</td>"


def _text(cell: str) -> str:
    return "text long" if len(cell) > 24 else "text"


def _agreement(table: Table) -> str:
    """How many of the paper's figures ours read like."""
    found = [
        difference(figure, column.kind, decimals)
        for row in table.rows
        for figure, column, decimals in zip(row.figures, table.columns, paper_decimals(table), strict=True)
    ]
    found = [text for text in found if text]
    return f"{found.count('=')} of {len(found)} figures as in the paper" if found else "nothing to compare"


def _anchor(table: Table) -> str:
    return "table-" + re.sub(r"[^\w.-]", "-", table.number)


def _plots(table: Table, sources: str, command: str) -> str:
    def caption(plot: Plot) -> str:
        intervals = _INTERVALS[plot.kind] if any(series.band for series in plot.series) else ""
        return (
            f"<strong>{escape(plot.title)}</strong>, {escape(table.heading)}.{intervals} "
            f"Rests on: {escape(sources)}. Command: <code>{escape(command)}</code>"
        )

    return figures(table.plots, _anchor(table), caption)
