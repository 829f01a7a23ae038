"""An edit as data: the pair (before, after) with its instruction. Every corpus yields these."""

from __future__ import annotations

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
