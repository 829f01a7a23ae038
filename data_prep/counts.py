"""What oracle rows add up to: operations, copied share, and the paper's token counts (Table 2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from data_prep.prepared import OracleRow
from decoding.grammar import parse, split_lines

if TYPE_CHECKING:
    from decoding.tokens import TextTokenizer


def row_counts(row: OracleRow, text: TextTokenizer | None = None) -> dict[str, int]:
    """Return what a row adds to the sums of its corpus: operations, characters, and with a tokenizer tokens.

    T and T_copy are the paper's (Table 2): tokens of the gold and of its copied spans, each encoded by itself.
    """
    spans = copied_spans(row)
    counts = {
        "pairs": 1,
        "copies": len(spans),
        "gens": len(parse(row.program).gens),
        "copied": sum(map(len, spans)),
        "characters": len(row.after),
    }
    if text:
        counts |= {"T": len(text.encode(row.after)), "T_copy": sum(len(text.encode(span)) for span in spans)}
    return counts


def statistics(rows: Iterable[OracleRow]) -> dict[str, Any]:
    """Counts over the oracle programs of ``rows``; the copied share is of gold characters, newlines included."""
    return statistics_of(_sums(rows))


def token_statistics(rows: Iterable[OracleRow], text: TextTokenizer) -> dict[str, Any]:
    """Return the paper's T, T_copy, T_gen and K (Table 2), counted with a ``TextTokenizer``."""
    return token_statistics_of(_sums(rows, text))


def _sums(rows: Iterable[OracleRow], text: TextTokenizer | None = None) -> Counter:
    counts: Counter = Counter()
    for row in rows:
        counts.update(row_counts(row, text))
    return counts


def statistics_of(counts: Counter) -> dict[str, Any]:
    """Return ``statistics`` of rows whose ``row_counts`` add up to ``counts``."""
    total = counts["characters"]
    return {
        "pairs": counts["pairs"],
        "copy_ops": counts["copies"],
        "gen_ops": counts["gens"],
        "gold_characters": total,
        "copied_share": round(counts["copied"] / total, 4) if total else None,
    }


def token_statistics_of(counts: Counter) -> dict[str, Any]:
    """Return ``token_statistics`` of rows whose ``row_counts``, with a tokenizer, add up to ``counts``."""
    gold, copied = counts["T"], counts["T_copy"]
    share = round(copied / gold, 4) if gold else None
    return {"T": gold, "T_copy": copied, "T_gen": gold - copied, "K": counts["copies"], "copied_token_share": share}


def copied_spans(row: OracleRow) -> list[str]:
    """The text of each copy operation of a row's program."""
    lines = split_lines(row.before)
    return ["\n".join(lines[op.first - 1 : op.last]) for op in parse(row.program).copies]
