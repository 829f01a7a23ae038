"""What an edit scores: exact match, endpoint accuracy, the paper's failure taxonomy, and intervals. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from data_prep.oracle import LineMatcher
from decoding.grammar import Program, split_lines

Outcome = Literal[
    "exact_match", "spans_right_text_wrong", "start_right_end_off", "end_right_start_off", "both_off", "parse_failure"
]
OUTCOMES: tuple[Outcome, ...] = Outcome.__args__
_Z95 = 1.959963984540054  # 0.975 quantile of the standard normal
_SPANS_RIGHT = 0.99  # per-case endpoint accuracy that counts as right (caption of Table 7)


def wilson(successes: int, n: int) -> tuple[float, float] | None:
    """Return the Wilson score interval at 95 % for a proportion, or None for n = 0 (Wilson 1927; paper Table 6).

    Raises:
        ValueError: unless 0 <= successes <= n.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n}")
    if n == 0:
        return None
    p, z2 = successes / n, _Z95**2
    center = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z95 * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    # Rounding can leave [0, 1] by one unit in the last place; the exact bounds at 0 and n are 0 and 1.
    low = 0.0 if successes == 0 else max(0.0, center - half)
    high = 1.0 if successes == n else min(1.0, center + half)
    return low, high


def exact_match(output: str | None, gold: str) -> bool:
    """Byte equality up to one final newline on either side (paper section 3)."""
    return output is not None and output.removesuffix("\n") == gold.removesuffix("\n")


def trimmed_match(output: str | None, gold: str) -> bool:
    """Equality after stripping white space at both ends (paper section 3)."""
    return output is not None and output.strip() == gold.strip()


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Copy endpoints of one program against its oracle's, the k-th copy against the k-th.

    A missing copy counts as wrong at both ends; superfluous ones are counted in ``predicted`` only.
    """

    oracle: int
    predicted: int
    starts: int
    ends: int

    @property
    def starts_right(self) -> bool:
        """Whether the case's start accuracy counts as right; an oracle without copies has nothing to miss."""
        return self.starts >= _SPANS_RIGHT * self.oracle

    @property
    def ends_right(self) -> bool:
        """Whether the case's end accuracy counts as right."""
        return self.ends >= _SPANS_RIGHT * self.oracle


def endpoints(program: Program | None, oracle: Program) -> Endpoints:
    """Compare the copies of a program (None: none were made) with its oracle's."""
    gold = oracle.copies
    made = program.copies if program else []
    pairs = list(zip(made, gold, strict=False))
    return Endpoints(
        oracle=len(gold),
        predicted=len(made),
        starts=sum(a.first == b.first for a, b in pairs),
        ends=sum(a.last == b.last for a, b in pairs),
    )


def outcome(output: str | None, gold: str, spans: Endpoints, parsed: bool) -> Outcome:
    """Return the one class of Table 7 that a case falls in.

    ``parsed`` is False where no complete program came out: text that does not parse, or a limit that was hit. An exact
    match wins over everything: several programs give one document.
    """
    if not parsed:
        return "parse_failure"
    if exact_match(output, gold):
        return "exact_match"
    if spans.starts_right and spans.ends_right:
        return "spans_right_text_wrong"
    if spans.starts_right:
        return "start_right_end_off"
    return "end_right_start_off" if spans.ends_right else "both_off"


def out_of_range(program: Program | None, document: str) -> int:
    """Count the copies of ``program`` that name a line outside the document or run backwards."""
    n = len(split_lines(document))
    return sum(not 1 <= op.first <= op.last <= n for op in (program.copies if program else []))


def changed_outside(output: str | None, gold: str, document: str) -> int | None:
    """Count the lines that ``output`` changes where the gold edit changes none; None where there is no output.

    Both edits are line alignments of the document, made as the oracles' are. The gold's hunks are the ranges of the
    document's lines that it replaces or deletes, and the points between lines where it inserts. What counts:

    - each line of the document that the output replaces or deletes and that is in no hunk;
    - each line that the output has more than what it replaces, unless the lines replaced, or the point of an insertion,
      overlap or touch a hunk.

    As for ``exact_match``, one final newline on either side does not count. The gold and the unchanged document have 0.
    """
    if output is None:
        return None
    lines, gold_lines, made = (split_lines(text.removesuffix("\n")) for text in (document, gold, output))
    hunks = [(first, last) for tag, first, last, _, _ in LineMatcher(lines, gold_lines).get_opcodes() if tag != "equal"]
    inside = {line for first, last in hunks for line in range(first, last)}
    count = 0
    for tag, first, last, made_first, made_last in LineMatcher(lines, made).get_opcodes():
        if tag == "equal":
            continue
        count += sum(line not in inside for line in range(first, last))
        if not any(start <= last and first <= end for start, end in hunks):
            count += max(0, (made_last - made_first) - (last - first))
    return count


@dataclass(frozen=True, slots=True)
class Rate:
    """A proportion with its counts; ``str`` gives "k/n = p % [low, high]"."""

    k: int
    n: int

    def __str__(self) -> str:
        interval = wilson(self.k, self.n)
        if interval is None:
            return "no data"
        return f"{self.k}/{self.n} = {self.k / self.n:.1%} [{interval[0]:.1%}, {interval[1]:.1%}]"

    def as_json(self) -> dict:
        """Counts, proportion and interval; both of the latter null for n = 0."""
        return {
            "k": self.k,
            "n": self.n,
            "rate": self.k / self.n if self.n else None,
            "wilson95": wilson(self.k, self.n),
        }


def rate(flags: Iterable[bool]) -> Rate:
    """Count true flags."""
    values = list(flags)
    return Rate(sum(values), len(values))


@dataclass(frozen=True, slots=True)
class RiskCoverage:
    """What is gained by answering only where confidence is high, and falling back elsewhere.

    Attributes:
        points: (coverage asked for, threshold, accepted, exact): at the highest threshold whose coverage is at least as
            asked, how many edits are accepted and how many of these are exact.
        aurc: area under the risk-coverage curve, the mean risk over all coverages 1/n to 1 (Geifman and El-Yaniv 2019);
            0 is perfect, and a confidence that says nothing gives the plain error rate. Ties count by their mean.
    """

    points: list[tuple[float, float, int, int]]
    aurc: float


def risk_coverage(
    confidences: list[float], exact: list[bool], coverages: tuple[float, ...] = (0.1, 0.25, 0.5, 0.75, 1.0)
) -> RiskCoverage | None:
    """Return risk against coverage of edits with these confidences, or None where there are none."""
    n = len(confidences)
    if n == 0:
        return None
    levels: dict[float, list[bool]] = {}
    for confidence, right in sorted(zip(confidences, exact, strict=True), reverse=True):
        levels.setdefault(confidence, []).append(right)
    steps: list[tuple[float, int, int]] = []  # threshold, accepted, exact
    accepted = right = 0
    risks = 0.0
    for threshold, group in levels.items():
        share = sum(group) / len(group)
        risks += sum(1 - (right + share * k) / (accepted + k) for k in range(1, len(group) + 1))
        accepted, right = accepted + len(group), right + sum(group)
        steps.append((threshold, accepted, right))
    points = [(wanted, *next(step for step in steps if step[1] >= wanted * n - 1e-9)) for wanted in coverages]
    return RiskCoverage(points, risks / n)
