"""The tables as one self-contained HTML file."""

from __future__ import annotations

from typing import Any

from eval.paper_tables.table import Table


def html(tables: list[Table], record: dict[str, Any], notes: list[str]) -> str:
    """Return the report: every table with what it rests on, and its plots as inline SVG."""
    raise NotImplementedError
