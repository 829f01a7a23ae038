"""Table 4: the strict and the clipped resolver, on oracle programs and under noise that leaves the document."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Literal

from decoding.grammar import Program, split_lines
from decoding.resolver import ClippedRange, ResolveError, resolve
from eval.metrics import exact_match, trimmed_match
from eval.paper_tables.inputs import Inputs
from eval.paper_tables.perturbation import Case, case_interval, perturbed
from eval.paper_tables.table import Column, Figure, Row, Table

Mode = Literal["strict", "clipped"]
MODES: tuple[Mode, ...] = ("strict", "clipped")
_COLUMNS = (
    Column("cases", "count"),
    Column("programs", "count"),
    Column("EM", "share"),
    Column("trimmed EM", "share"),
    Column("out of range", "count"),
    Column("raised", "count"),
    Column("clipped", "count"),
    Column("raised by reason", "text"),
)
_PAPER = (482, None, 1.0, None, 0)  # Table 4: cases, EM (up to one final newline) and programs out of range


@dataclass(frozen=True, slots=True)
class Resolved:
    """What one mode made of one program: the text, or the reason why it raised; and whether it clipped."""

    text: str | None
    reason: str | None
    clipped: bool


def resolved(program: Program, document: str, mode: Mode) -> Resolved:
    """Resolve, with the error and the warning of the resolver as values."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ClippedRange)
        try:
            text, reason = resolve(program, document, mode), None
        except ResolveError as error:
            text, reason = None, error.reason
    return Resolved(text, reason, any(issubclass(warning.category, ClippedRange) for warning in caught))


def leaves(program: Program, lines: int) -> bool:
    """Return whether a copy names a line outside [1, lines]."""
    return any(not (1 <= op.first <= lines and 1 <= op.last <= lines) for op in program.copies)


def noisy_programs(cases: list[Case], trials: int, seed: str) -> list[list[Program]]:
    """Return ``trials`` programs of each case whose endpoints are off by at most one line and are not clamped."""
    random = Random(seed)
    return [
        [
            perturbed(case.program, len(split_lines(case.document)), 1, random, "refused", clamp=False)
            for _ in range(trials)
        ]
        for case in cases
    ]


def table_4(inputs: Inputs) -> Table:
    """Return exact match, errors and clipped ranges of both modes."""
    trials, seed = inputs.config.trials, inputs.config.seed
    cases = {corpus.name: [Case.of(row) for row in corpus.rows] for corpus in inputs.corpora}
    noisy = {name: noisy_programs(some, trials, f"{seed} {name} unclamped") for name, some in cases.items()}
    cases["pooled"] = [case for some in cases.values() for case in some]
    noisy["pooled"] = [programs for some in noisy.values() for programs in some]
    rows, findings = [], []
    for corpus in inputs.with_pooled:
        own = cases[corpus.name]
        paper = _PAPER if corpus.name == "pooled" and inputs.as_in_paper("pooled") else (None,) * len(_PAPER)
        for mode in MODES:
            figures = _line(own, [[case.program] for case in own], mode, seed, paper)
            rows.append(Row((corpus.title, "oracle", mode), figures))
        found = {mode: _line(own, noisy[corpus.name], mode, seed, (None,) * len(_PAPER)) for mode in MODES}
        for mode, figures in found.items():
            rows.append(Row((corpus.title, "eps=1, not clamped", mode), figures))
        strict, clipped = found["strict"], found["clipped"]
        findings.append(
            f"{corpus.title}: of {strict[1].ours:,} noisy programs {strict[4].ours:,} name a line that is not there. "
            f"Strict raises on {strict[5].ours:,} and is exact on {strict[2].ours:.1%}; clipped raises on "
            f"{clipped[5].ours:,} and is exact on {clipped[2].ours:.1%}."
        )
    return Table(
        number="4",
        title="strict and clipped resolution",
        labels=("corpus", "programs of", "mode"),
        columns=_COLUMNS,
        rows=rows,
        method="EM up to one final newline, as the paper's byte-exact EM, and trimmed. Noise shifts both ends of every "
        f"copy by -1, 0 or 1 lines, {trials} trials a case, seed {seed}, and is not clamped to the document. Out of "
        "range counts programs with an end outside [1, n]; raised and clipped count programs on which the resolver "
        "raised or warned. A range that runs backwards is an error in both modes. Intervals: Wilson for oracle "
        "programs, 95 % bootstrap over cases for noisy ones.",
        sources=inputs.sources | {"seed": str(seed)},
        findings=[
            *findings,
            "The paper's row under noise refers to its Table 8, whose endpoints are clamped to the document: no index "
            "of it is out of range, so that the two modes cannot differ there. What clipping is worth it never "
            "measured.",
        ],
    )


def _line(cases: list[Case], programs: list[list[Program]], mode: Mode, seed: int, paper: tuple) -> tuple[Figure, ...]:
    """The figures of a row; ``programs`` are those of each case, as many for each."""
    trials = len(programs[0])
    results = [[resolved(one, case.document, mode) for one in some] for case, some in zip(cases, programs, strict=True)]
    every = [result for some in results for result in some]
    reasons = Counter(result.reason for result in every if result.reason)
    outside = sum(
        leaves(one, len(split_lines(case.document))) for case, some in zip(cases, programs, strict=True) for one in some
    )
    shares = []
    for match, theirs in ((exact_match, paper[2]), (trimmed_match, paper[3])):
        right = [
            sum(match(result.text, case.gold) for result in some) for case, some in zip(cases, results, strict=True)
        ]
        shares.append(Figure(sum(right) / len(every), theirs, case_interval(right, trials, seed)))
    return (
        Figure(len(cases), paper[0]),
        Figure(len(every), paper[1]),
        *shares,
        Figure(outside, paper[4]),
        Figure(reasons.total()),
        Figure(sum(result.clipped for result in every)),
        Figure(", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))),
    )
