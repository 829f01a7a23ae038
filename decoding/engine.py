"""The decoding loop: sequences in, forwards, sequences out.

    forward(pending + draft) -> one choice for every open position -> pending = [choice] + everything now forced

Forced ids (literals, digits the range makes unique, copied text) ride on the next forward. A draft is a guess at what
comes after them: the same forward verifies it, choice by choice, exactly as if it had not been there, and what was
guessed wrong is forgotten. Several sequences share each forward; they join and leave as they finish.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from decoding.choosing import Chooser, Decision, Grammar, State
from decoding.costs import CostCurve
from decoding.drafts import Draft, Drafter
from decoding.forward import EagerForward, Feed, PackedForward

StopReason = Literal["end", "max_ops", "max_tokens", "context", "tokenizer_lossy", "lone_surrogate"]
Feeding = Literal["fused", "paper"]
_CHUNK = 64  # ids of one sequence in a forward that others share: a long span must not make them wait
_PRIOR = 4.0, 0.75  # how many observations the first guess at a draft's acceptance counts for, and that guess


@dataclass(slots=True)
class EditStats:
    """What one edit cost. Program ids are exactly one of decoded, copied (with ``splice="full"``), and forced.

    ``copied`` counts the tokens of copied text: with ``splice="none"`` they never enter the model, and are then not
    part of the ids. ``fed`` counts the positions computed, prompt and failed drafts included, ``heads`` those that went
    through the language-model head, ``drafted`` and ``accepted`` the guessed choices. Times are seconds of wall clock
    since the request was taken up; ``prefill_s`` is the first forward, included in ``wall_s``.
    """

    prompt_tokens: int = 0
    forwards: int = 0
    decoded: int = 0
    copied: int = 0
    forced: int = 0
    fed: int = 0
    heads: int = 0
    drafted: int = 0
    accepted: int = 0
    broken_utf8: int = 0
    wall_s: float = 0.0
    prefill_s: float = 0.0
    stop: StopReason = "end"


@dataclass(eq=False)
class Sequence:
    """One request in flight.

    Args:
        prompt: its ids.
        grammar: what may be written.
        limit: how many ids may be written, and ``limit_reason`` the name of that limit.
        number: of the request; sampling noise depends on it.
        drafter: guesses, or None.
        script: ids to choose instead of the model's own choice: every cost stays, the model's quality plays no part.
    """

    prompt: list[int]
    grammar: Grammar
    limit: int
    limit_reason: StopReason
    number: int = 0
    drafter: Drafter | None = None
    script: list[int] | None = None
    stats: EditStats = field(default_factory=EditStats)
    ids: list[int] = field(default_factory=list)  # written so far, ``pending`` included
    log_probability: float = 0.0  # of the choices made
    state: State = None  # after ``ids``
    pending: list[int] = field(default_factory=list)  # the end of prompt + ids that is not in the cache yet
    units: list[int] = field(default_factory=list)  # how the paper's decoder cuts ``pending`` into forwards
    slot: int = -1
    cached: int = 0  # ids in the cache
    started: float = 0.0

    @property
    def done(self) -> bool:
        """Whether there is nothing left to decide, or no room to."""
        return self.state.ended or len(self.ids) >= self.limit

    @property
    def room(self) -> int:
        """How many ids may still be written."""
        return self.limit - len(self.ids)


class Engine:
    """Runs sequences through a forward.

    Args:
        costs: what a forward costs by width; bounds how far drafts go. None: drafts are taken as they come.
        feeding: ``fused``, or ``paper``: literals, spliced spans and single choices are forwards of their own, as in
            the paper's decoder (section 2.3), and every forward goes through the head.
        prefill_apart: feed all but the last id of a prompt in a forward of its own, and start the clock after it. Such
            forwards are not counted; ``prefill_s`` adds up their time.
    """

    def __init__(
        self,
        forward: PackedForward | EagerForward,
        chooser: Chooser,
        *,
        costs: CostCurve | None = None,
        feeding: Feeding = "fused",
        prefill_apart: bool = False,
    ) -> None:
        self.forward, self.chooser, self.costs = forward, chooser, costs
        self.feeding, self.prefill_apart = feeding, prefill_apart
        self.prefill_s = 0.0
        self.proposed: Counter[str] = Counter()  # guessed choices that were reached, by kind of draft
        self.accepted: Counter[str] = Counter()

    def run(self, sequences: Iterable[Sequence]) -> Iterator[Sequence]:
        """Yield every sequence as it finishes; as many as the forward has slots for are in flight."""
        waiting, live = iter(sequences), []
        while True:
            while len(live) < self.forward.slots and (sequence := next(waiting, None)) is not None:
                self._admit(sequence, live)
                if sequence.done:
                    yield self._finish(sequence)
                else:
                    live.append(sequence)
            if not live:
                return
            self._step(live)
            for sequence in [one for one in reversed(live) if one.done]:
                # The last slot moves into the gap, so that the slots in use are the first ones.
                last = live.pop()
                if last is not sequence:
                    self.forward.copy(last.slot, sequence.slot, last.cached)
                    last.slot = sequence.slot
                    live[sequence.slot] = last
                yield self._finish(sequence)

    def _admit(self, sequence: Sequence, live: list[Sequence]) -> None:
        """Give a sequence the next slot and its prompt's keys and values: a forward of its own, or a twin's copy."""
        sequence.started = time.perf_counter()
        sequence.slot = len(live)
        grammar = sequence.grammar
        forced, after = grammar.forced(grammar.start)
        sequence.ids, sequence.state = within(sequence.limit, grammar, grammar.start, forced, after)
        sequence.stats.prompt_tokens = len(sequence.prompt)
        if sequence.done:
            return
        sequence.pending = sequence.prompt + sequence.ids
        sequence.units = [len(sequence.pending)]
        twin = next((one for one in live if one.prompt == sequence.prompt), None)
        if twin is not None:
            shared = len(sequence.prompt) - (not sequence.ids)  # something must be left to feed
            self.forward.copy(twin.slot, sequence.slot, shared)
            self._fed(sequence, shared)
        elif self.prefill_apart:
            shared = len(sequence.prompt) - 1
            self.forward([Feed(sequence.slot, 0, sequence.pending[:shared], [])])
            self._fed(sequence, shared)
            self.forward.synchronize()
            now = time.perf_counter()
            self.prefill_s += now - sequence.started
            sequence.started = now
        else:
            self._step([sequence])
            sequence.stats.prefill_s = time.perf_counter() - sequence.started

    def _fed(self, sequence: Sequence, count: int) -> None:
        """Note that the first ``count`` pending ids are in the cache."""
        sequence.pending = sequence.pending[count:]
        sequence.cached += count
        sequence.units = [len(sequence.pending)]

    def _step(self, live: list[Sequence]) -> None:
        """One forward for all of ``live``: feed what is pending, and make the choices that it and drafts open."""
        feeds, drafts, decisions = [], [], []
        total = sum(len(sequence.pending) for sequence in live)
        for sequence in live:
            draft = None
            ids = sequence.pending[: self._portion(sequence, len(live))]
            heads = [len(ids) - 1] if self.feeding == "paper" else []
            if len(ids) == len(sequence.pending):
                draft = self._draft(sequence, total, len(live))
                heads = [len(ids) - 1 + offset for offset, _, _ in draft.choices]
                decisions += [self.decision(sequence, state) for _, state, _ in draft.choices]
                ids = ids + draft.tokens
            feeds.append(Feed(sequence.slot, sequence.cached, ids, heads))
            drafts.append(draft)
        logits = self.forward(feeds)
        if self.feeding == "paper":  # heads of forwards that decide nothing
            wanted = [draft is not None for feed, draft in zip(feeds, drafts, strict=True) for _ in feed.heads]
            logits = logits[wanted]
        chosen = iter(self.chooser(logits, decisions) if decisions else ())
        for sequence, feed, draft in zip(live, feeds, drafts, strict=True):
            stats = sequence.stats
            stats.forwards += 1
            stats.fed += len(feed.ids)
            stats.heads += len(feed.heads)
            if draft is None:
                sequence.cached += len(feed.ids)
                sequence.pending = sequence.pending[len(feed.ids) :]
                sequence.units = sequence.units[1:]
            else:
                self._accept(sequence, draft, [next(chosen) for _ in draft.choices])

    def _portion(self, sequence: Sequence, sharing: int) -> int:
        """How many pending ids to feed now."""
        if self.feeding == "paper":
            return sequence.units[0]
        return len(sequence.pending) if sharing == 1 else _CHUNK

    def decision(self, sequence: Sequence, state: State) -> Decision:
        """Return the choice that is open at ``state``."""
        grammar = sequence.grammar
        legal = grammar.allowed(state)
        row = grammar.mask_row(state) if legal is None else 0
        return Decision(legal, row, sequence.number, state.length)

    def _draft(self, sequence: Sequence, total: int, sharing: int) -> Draft:
        """Return the guesses that are worth their width; at the least the one choice that is open."""
        draft = Draft(sequence.state)
        if sequence.drafter is None:
            return draft
        sequence.drafter.extend(draft, sequence.grammar, sequence.prompt, sequence.ids, sequence.room)
        if self.costs is not None:
            self._cut(draft, total, sharing)
        return draft

    def _cut(self, draft: Draft, total: int, sharing: int) -> None:
        """Cut a draft where a guess is no longer worth its tokens.

        A right guess saves this sequence's share of a forward's fixed cost; its tokens are then no loss, since they
        had to be fed anyway. A wrong one wastes them, and all that follow.
        """
        saved, slope = self.costs(1) / sharing, self.costs.slope(total)
        survives = 1.0
        ends = [offset for offset, _, _ in draft.choices[1:]] + [len(draft.tokens)]
        for (offset, _, source), end in zip(draft.choices, ends, strict=True):
            if offset == len(draft.tokens):
                return
            weight, guess = _PRIOR
            survives *= (self.accepted[source] + weight * guess) / (self.proposed[source] + weight)
            if survives * saved < (1 - survives) * slope * (end - offset):
                draft.cut(offset)
                return

    def _accept(self, sequence: Sequence, draft: Draft, chosen: list[tuple[int, float]]) -> None:
        """Take the choices up to the first that the draft did not guess; pending is then that choice and its due."""
        before = len(sequence.ids)
        sequence.cached += len(sequence.pending)
        taken, sequence.state, sequence.pending = len(draft.tokens), draft.end, []
        for (offset, state, source), (token, log) in zip(draft.choices, chosen, strict=True):
            if sequence.script is not None:
                token = sequence.script[before + offset]
            sequence.stats.decoded += 1
            sequence.log_probability += log
            guess = draft.tokens[offset] if offset < len(draft.tokens) else None
            if guess is not None:
                self.proposed[source] += 1
                sequence.stats.drafted += 1
                if guess == token:
                    self.accepted[source] += 1
                    sequence.stats.accepted += 1
                    continue
            taken = offset
            forced, after = sequence.grammar.forced(sequence.grammar.advance(state, token))
            room = sequence.room - offset
            sequence.pending, sequence.state = within(room, sequence.grammar, state, [token, *forced], after)
            if self.feeding == "paper":
                sequence.units = sequence.grammar.units(state, sequence.pending)
            break
        sequence.cached += taken
        sequence.ids += draft.tokens[:taken] + sequence.pending

    def _finish(self, sequence: Sequence) -> Sequence:
        if not sequence.state.ended:
            sequence.stats.stop = sequence.limit_reason
        sequence.stats.wall_s = time.perf_counter() - sequence.started
        return sequence


def within(room: int, grammar: Grammar, before: State, run: list[int], after: State) -> tuple[list[int], State]:
    """Cut ``run``, which leads from ``before`` to ``after``, to ``room`` ids; return it and the state it leads to."""
    if len(run) <= room:
        return run, after
    for index in run[:room]:
        before = grammar.advance(before, index)
    return run[:room], before
