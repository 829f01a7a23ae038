"""The program grammar as a token-level state machine with immutable states (paper section 2.3 and Appendix A).

Five states as in the paper, and stricter: line ranges are valid by construction (1 <= first <= last <= n), numbers have
one encoding, and the end of a gen body is found on bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache

from decoding.encoder import GEN_END, ProgramEncoder, Splice, match_gen_end
from decoding.escape import decode_gen_body
from decoding.grammar import Copy, Gen, Op, Program, split_lines


class Phase(Enum):
    """Where in the grammar a state stands."""

    AWAIT_OP = "await_op"
    AFTER_LT = "after_lt"
    COPY_LINES = "copy_lines"
    GEN_BODY = "gen_body"
    CLOSE = "close"


@dataclass(frozen=True, slots=True)
class Body:
    """A finished gen op: its body is the program ids ``start`` to ``stop``, ``</gen`` included in the bytes."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class State:
    """A position in the grammar. ``queue[at:]`` must come next; when it is used up, ``phase`` says what may follow."""

    phase: Phase
    queue: tuple[int, ...]
    at: int = 0
    literal: int = 0  # of the queue, the first ``literal`` ids are structure, the rest are spliced text
    length: int = 0  # program ids so far
    spliced: int = 0  # of these, spliced text
    ops: tuple[Copy | Body, ...] = ()
    head: tuple[int, ...] = ()  # AFTER_LT: ids of the tag so far
    first: int = 0  # COPY_LINES: the range's first line, 0 while it is being written
    digits: str = ""  # COPY_LINES: the number so far
    body_start: int = 0  # GEN_BODY
    matched: int = 0  # GEN_BODY: bytes of "</gen" matched

    @property
    def ended(self) -> bool:
        """Whether the program is complete but for its literal end."""
        return self.phase is Phase.CLOSE

    @property
    def finished(self) -> bool:
        """Whether nothing may follow, the end of sequence included."""
        return self.ended and self.at == len(self.queue)


class ProgramFSM:
    """The grammar over one document.

    Args:
        monotone: copies must not go back: each starts after the end of the one before (as every difflib oracle does).
        min_span: the fewest lines of a copy; shorter ones are not legal, so what they would keep is written (the
            minimum-span policy m* of paper section 2.4, in lines).
        max_ops: after so many operations only the end is legal.
    """

    def __init__(
        self,
        encoder: ProgramEncoder,
        document: str,
        *,
        splice: Splice = "none",
        monotone: bool = False,
        min_span: int = 1,
        max_ops: int | None = None,
    ) -> None:
        self.encoder, self.table = encoder, encoder.table
        self.lines = split_lines(document)
        self.splice, self.monotone, self.min_span, self.max_ops = splice, monotone, min_span, max_ops
        table = self.table
        self.start = State(Phase.AWAIT_OP, tuple(table.program_open), literal=len(table.program_open))
        self._heads = {
            tuple(table.copy_head): Phase.COPY_LINES,
            tuple(table.gen_head): Phase.GEN_BODY,
            tuple(table.program_close): Phase.CLOSE,
        }

    def allowed(self, state: State) -> tuple[int, ...] | None:
        """Return the legal next ids, or None inside a gen body: then ``encoder.gen_masks[state.matched]`` says."""
        if state.at < len(state.queue):
            return (state.queue[state.at],)
        if state.phase in (Phase.AWAIT_OP, Phase.AFTER_LT):
            depth = len(state.head)
            heads = (head for head in self._legal_heads(state) if head[:depth] == state.head)
            return tuple(dict.fromkeys(head[depth] for head in heads))
        if state.phase is Phase.COPY_LINES:
            low, high = self._number_bounds(state)
            terminator = self.table.copy_close[0] if state.first else self.table.dash[0]
            return number_choices(self.table, state.digits, low, high, terminator)
        return None if state.phase is Phase.GEN_BODY else ()

    def advance(self, state: State, token: int) -> State:
        """Return the state after ``token``.

        Raises:
            ValueError: the token is not legal here.
        """
        length = state.length + 1
        if state.at < len(state.queue):
            if token != state.queue[state.at]:
                raise ValueError(f"token {token} at {state.length}: only {state.queue[state.at]} may follow")
            spliced = state.spliced + (state.at >= state.literal)
            return replace(state, at=state.at + 1, length=length, spliced=spliced)
        if state.phase is Phase.GEN_BODY:
            return self._advance_body(state, token, length)
        legal = self.allowed(state)
        if token not in legal:
            raise ValueError(f"token {token} at {state.length} in {state.phase.value}: legal are {sorted(legal)[:20]}")
        if state.phase is Phase.COPY_LINES:
            return self._advance_lines(state, token, length)
        return self._advance_head(state, token, length)

    def forced(self, state: State) -> tuple[list[int], State]:
        """Return the ids that must follow ``state``, up to the next real choice or the end of the program.

        The end of sequence, which says nothing once the program has ended, is left to ``allowed``. Returns the ids and
        the state after them.
        """
        out: list[int] = []
        while not state.ended:
            if rest := state.queue[state.at :]:
                out += rest
                spliced = len(state.queue) - max(state.at, state.literal)
                state = replace(
                    state,
                    at=len(state.queue),
                    length=state.length + len(rest),
                    spliced=state.spliced + spliced,
                )
                continue
            legal = self.allowed(state)
            if legal is None or len(legal) != 1:
                break
            out += legal
            state = self.advance(state, legal[0])
        return out, state

    def mask_row(self, state: State) -> int:
        """Return the row of ``encoder.gen_masks`` that says what may follow inside a gen body."""
        return state.matched

    def units(self, state: State, run: list[int]) -> list[int]:
        """Return how the paper's decoder cuts ``run``, which starts at ``state``, into forwards (section 2.3).

        The rest of a literal rides with the id that selects it; every other id, chosen or forced by the range, and
        every spliced span is a forward of its own.
        """
        sizes: list[int] = []
        for token in run:
            in_queue = state.at < len(state.queue)
            first_spliced = in_queue and state.at == state.literal
            rest_of_head = state.phase is Phase.AFTER_LT and len(state.head) > 1
            if sizes and (in_queue or rest_of_head) and not first_spliced:
                sizes[-1] += 1
            else:
                sizes.append(1)
            state = self.advance(state, token)
        return sizes

    def program(self, state: State, ids: list[int]) -> tuple[Program, int]:
        """Return the finished operations of ``state``, whose ids are ``ids``, and how many bodies are not UTF-8.

        A model may stop a body inside a character; such bytes become U+FFFD, and the caller can count them.
        """
        ops: list[Op] = []
        broken = 0
        for op in state.ops:
            if isinstance(op, Body):
                raw = self.encoder.text.decode(ids[op.start : op.stop]).removesuffix(GEN_END)
                body = raw.decode(errors="replace")
                broken += body.encode() != raw
                op = Gen("\n" + decode_gen_body(body))
            ops.append(op)
        return Program(ops), broken

    # One step in each phase

    def _legal_heads(self, state: State) -> list[tuple[int, ...]]:
        full = self.max_ops is not None and len(state.ops) >= self.max_ops
        legal = []
        for head, phase in self._heads.items():
            if phase is Phase.CLOSE:
                ok = bool(state.ops)
            elif phase is Phase.COPY_LINES:
                ok = not full and self._first_bound(state) <= len(self.lines) - self.min_span + 1
            else:
                ok = not full
            if ok:
                legal.append(head)
        return legal

    def _advance_head(self, state: State, token: int, length: int) -> State:
        head = (*state.head, token)
        phase = self._heads.get(head)
        if phase is None:
            return replace(state, phase=Phase.AFTER_LT, head=head, length=length)
        state = replace(state, phase=phase, head=(), queue=(), at=0, literal=0, length=length)
        if phase is Phase.COPY_LINES:
            return replace(state, first=0, digits="")
        if phase is Phase.GEN_BODY:
            return replace(state, body_start=length, matched=0)
        return replace(state, queue=(self.table.end_of_sequence,), literal=1)

    def _advance_lines(self, state: State, token: int, length: int) -> State:
        if digits := _digits_of(self.table, token):
            return replace(state, digits=state.digits + digits, length=length)
        number = int(state.digits)
        if not state.first:
            dash = tuple(self.table.dash[1:])
            return replace(state, first=number, digits="", queue=dash, at=0, literal=len(dash), length=length)
        close = tuple(self.table.copy_close[1:])
        span = tuple(self.encoder.span(self.lines, state.first, number)) if self.splice == "full" else ()
        return replace(
            state,
            phase=Phase.AWAIT_OP,
            ops=(*state.ops, Copy(state.first, number)),
            queue=close + span,
            at=0,
            literal=len(close),
            length=length,
        )

    def _advance_body(self, state: State, token: int, length: int) -> State:
        masks = self.encoder.gen_masks
        if not (0 <= token < masks.shape[1] and masks[state.matched, token]):
            raise ValueError(f"token {token} at {state.length}: not text, or it runs past the end of the gen body")
        matched = match_gen_end(state.matched, self.encoder.text.token_bytes[token])
        if matched < len(GEN_END):
            return replace(state, matched=matched, length=length)
        close = tuple(self.table.gen_close)
        body = Body(state.body_start, length)
        return replace(
            state, phase=Phase.AWAIT_OP, ops=(*state.ops, body), queue=close, at=0, literal=len(close), length=length
        )

    def _first_bound(self, state: State) -> int:
        """The lowest legal first line of a copy."""
        if not self.monotone:
            return 1
        return 1 + next((op.last for op in reversed(state.ops) if isinstance(op, Copy)), 0)

    def _number_bounds(self, state: State) -> tuple[int, int]:
        n, more = len(self.lines), self.min_span - 1
        return (state.first + more, n) if state.first else (self._first_bound(state), n - more)


@lru_cache(maxsize=16)
def _digit_index(digits: tuple[tuple[int, ...], ...]) -> dict[int, str]:
    return {token: f"{value:0{width}d}" for width, ids in enumerate(digits) for value, token in enumerate(ids)}


def _digits_of(table, token: int) -> str:
    """The digits a number token stands for, or an empty string."""
    return _digit_index(table.digits).get(token, "")


def number_choices(table, prefix: str, low: int, high: int, terminator: int) -> tuple[int, ...]:
    """Return the ids that may continue a number in [low, high] whose digits so far are ``prefix``.

    A number is written in groups of ``table.digit_group`` digits from the left, so a shorter group is the last one.
    The work is proportional to the number of choices, not to the range.
    """
    group = table.digit_group
    choices: dict[int, None] = {}
    if prefix and low <= int(prefix) <= high:
        choices[terminator] = None
    if len(prefix) % group == 0 and len(prefix) < len(str(high)):
        base = int(prefix or 0)
        for width in range(1, group + 1):
            more_digits = range(len(str(high)) - len(prefix) - width + 1) if width == group else (0,)
            for more in more_digits:  # digits that would still follow this group
                scale = 10**more
                # The numbers with this prefix and length; without a prefix, a leading zero would make them shorter.
                smallest = base * 10 ** (width + more) if prefix else 10 ** (width + more - 1)
                largest = base * 10 ** (width + more) + 10 ** (width + more) - 1
                bottom, top = max(low, smallest) // scale, min(high, largest) // scale
                for value in range(bottom, top + 1):
                    choices[table.digits[width][value - base * 10**width]] = None
    return tuple(choices)
