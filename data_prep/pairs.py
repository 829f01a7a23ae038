"""An edit as data: the pair (before, after) with its instruction. Every corpus yields these."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class EditPair:
    """One edit a selector can learn from.

    ``group`` names what must not be torn apart by a split: pairs of one group all train or are all held out (the same
    HumanEvalPack problem in two languages, two bugs in one function). ``meta`` is JSON-ready provenance.
    """

    id: str
    corpus: str
    instruction: str
    before: str
    after: str
    group: str
    meta: dict = field(default_factory=dict)


def collect(stream: Iterable[EditPair | dict]) -> tuple[list[EditPair], list[dict]]:
    """Return the edits of a corpus's stream, and the rows that are none."""
    pairs: list[EditPair] = []
    faults: list[dict] = []
    for item in stream:
        (pairs if isinstance(item, EditPair) else faults).append(item)
    return pairs, faults


def pair_fault(pair: EditPair) -> str:
    """Return why a pair is no edit to learn from (empty, no_op, lone_surrogate), or an empty text.

    Of the texts only the instruction may not be empty or blank: to fill a document or to empty it is an edit.
    """
    if not pair.instruction.strip():
        return "empty"
    if pair.before == pair.after:
        return "no_op"
    try:
        "".join((pair.instruction, pair.before, pair.after, pair.group)).encode()
    except UnicodeEncodeError:
        return "lone_surrogate"
    return ""
