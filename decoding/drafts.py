"""Guesses at what a model will write next, to be verified in the forward that was due anyway. They cannot change it.

``ProgramDrafter`` knows what edit programs look like: the next header follows from the lines used so far, and a gen
body mostly repeats the lines it replaces. ``PromptLookup`` knows nothing but what has been seen: the strongest
model-free baseline (prompt lookup decoding), and here a last resort inside gen bodies.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from decoding.choosing import Grammar, State
from decoding.encoder import ProgramEncoder
from decoding.fsm import Phase, ProgramFSM
from decoding.fsm import State as ProgramState
from decoding.grammar import Copy

_REACH = 12  # lines of the document that a gen body is aligned with
_FAR = 24  # ids of one line within which an alignment is found again
_LOST = 3  # ids in a row without alignment after which line drafts give way to prompt lookup
_MOST = 128  # ids of a draft


class Draft:
    """A path of guessed ids from a choice on, and the choices that stand on it.

    Attributes:
        tokens: the guessed ids, forced ones between them included.
        choices: (offset in ``tokens``, state, kind of guess) of every open choice, the first at offset 0. A choice at
            ``len(tokens)`` has no guess.
        end: the state after ``tokens``.
    """

    def __init__(self, state: State) -> None:
        self.tokens: list[int] = []
        self.choices: list[tuple[int, State, str]] = [(0, state, "")]
        self.end = state

    def guess(self, token: int, grammar: Grammar, source: str, room: int) -> bool:
        """Add a guessed choice and what it forces; False where it is not legal or does not fit."""
        if len(self.tokens) >= min(room, _MOST) or self.end.ended:
            return False
        try:
            after = grammar.advance(self.end, token)
        except ValueError:
            return False
        forced, after = grammar.forced(after)
        if len(self.tokens) + 1 + len(forced) > room:
            return False
        self.choices[-1] = (len(self.tokens), self.end, source)
        self.tokens += [token, *forced]
        self.end = after
        if not after.ended and len(self.tokens) < room:
            self.choices.append((len(self.tokens), after, ""))
        return True

    def cut(self, offset: int) -> None:
        """Forget the guess at the choice at ``offset`` and all that follow."""
        kept = [choice for choice in self.choices if choice[0] <= offset]
        self.choices = kept
        del self.tokens[offset:]
        self.end = kept[-1][1]


class Drafter(Protocol):
    """A source of guesses for one sequence."""

    def extend(self, draft: Draft, grammar: Grammar, prompt: list[int], ids: list[int], room: int) -> None:
        """Add guesses to an empty ``draft`` that starts after ``prompt + ids``, at most ``room`` ids."""


class PromptLookup:
    """Prompt lookup decoding: what followed the same last ids before, in the prompt or in what was written.

    Args:
        longest: ids of the longest n-gram to look for; shorter ones are tried when it has not occurred.
        count: how many ids to draft.
        recent: take the last occurrence; else the first, as transformers does.
    """

    def __init__(self, longest: int = 3, count: int = 64, *, recent: bool = False) -> None:
        self.longest, self.count, self.recent = longest, count, recent
        self._seen: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}  # n-gram -> where it was followed by something

    def extend(self, draft: Draft, grammar: Grammar, prompt: list[int], ids: list[int], room: int) -> None:
        """See ``Drafter``."""
        for token in self.continuation(prompt, ids):
            if not draft.guess(token, grammar, "lookup", room):
                return

    def continuation(self, prompt: list[int], ids: list[int]) -> list[int]:
        """Return what stood after the last occurrence of the longest known n-gram at the end, at most ``count`` ids."""
        if not self._seen:
            self._learn(prompt)
        self._learn(ids[len(self._seen) - len(prompt) :])
        seen = self._seen
        for size in range(min(self.longest, len(seen)), 0, -1):
            at = self._after.get(tuple(seen[-size:]))
            if at is not None:
                return seen[at : at + self.count]
        return []

    def _learn(self, new: list[int]) -> None:
        seen, after = self._seen, self._after
        for token in new:
            # What ends here is now followed by something.
            for size in range(1, min(self.longest, len(seen)) + 1):
                gram = tuple(seen[-size:])
                if self.recent or gram not in after:
                    after[gram] = len(seen)
            seen.append(token)


class _Place(NamedTuple):
    """Where a gen body stands in the lines it seems to rewrite."""

    line: int  # lines passed
    at: int  # the next id of the current line
    changed: bool  # whether the body ever differed
    lost: int  # for how many ids it has been off the line


class ProgramDrafter:
    """Guesses for edit programs: headers by arithmetic, bodies by the lines they replace, else by prompt lookup.

    A copy is expected to be followed by a gen that rewrites the next line, a gen by a copy of everything after the
    lines it replaced, and a copy of the last line by the end. Kinds of guess: header, line, lookup.
    """

    def __init__(self, encoder: ProgramEncoder) -> None:
        self._encoder = encoder
        self._lookup = PromptLookup(longest=3, count=8, recent=True)
        self._lines: dict[int, list[int]] = {}

    def extend(self, draft: Draft, grammar: ProgramFSM, prompt: list[int], ids: list[int], room: int) -> None:
        """See ``Drafter``."""
        while True:
            source, guesses = self._next(draft.end, grammar, prompt, ids, draft.tokens)
            if not guesses:
                return
            for token in guesses:
                if not draft.guess(token, grammar, source, room):
                    return

    def _next(
        self, state: ProgramState, fsm: ProgramFSM, prompt: list[int], ids: list[int], drafted: list[int]
    ) -> tuple[str, list[int]]:
        """Return the kind and the ids of the next few choices, up to where another guess is due."""
        if state.phase is Phase.GEN_BODY:
            return self._in_body(state, fsm, prompt, ids, drafted)
        if state.phase in (Phase.AWAIT_OP, Phase.AFTER_LT):
            return "header", self._head(state, fsm, ids + drafted)
        if state.phase is Phase.COPY_LINES:
            return "header", self._number(state, fsm, ids + drafted)
        return "", []

    # Headers

    def _head(self, state: ProgramState, fsm: ProgramFSM, ids: list[int]) -> list[int]:
        table, ops = fsm.table, state.ops
        if ops and isinstance(ops[-1], Copy):
            head = table.gen_head if ops[-1].last < len(fsm.lines) else table.program_close
        elif ops and self._next_line(state, fsm, ids) > len(fsm.lines):
            head = table.program_close
        else:
            head = table.copy_head
        # One id at a time: which of them are forced depends on what else is legal.
        return head[len(state.head) : len(state.head) + 1] if list(state.head) == head[: len(state.head)] else []

    def _number(self, state: ProgramState, fsm: ProgramFSM, ids: list[int]) -> list[int]:
        table, n = fsm.table, len(fsm.lines)
        if not state.first:
            value, terminator = self._next_line(state, fsm, ids), table.dash[0]
        elif state.ops:
            value, terminator = n, table.copy_close[0]
        else:
            return []  # where the first copy ends is the edit itself
        text = str(value)
        if value > n or not text.startswith(state.digits):
            return []
        # One id at a time: which of them are forced depends on the range.
        rest = text[len(state.digits) :]
        return [table.digits[len(rest[: table.digit_group])][int(rest[: table.digit_group])] if rest else terminator]

    def _next_line(self, state: ProgramState, fsm: ProgramFSM, ids: list[int]) -> int:
        """The first line of the document that the operations so far have neither copied nor, it seems, replaced."""
        if not state.ops:
            return 1
        last = state.ops[-1]
        if isinstance(last, Copy):
            return last.last + 1
        first = 1 + next((op.last for op in reversed(state.ops) if isinstance(op, Copy)), 0)
        body = ids[last.start : last.stop]
        return first + max(self._align(fsm, first, body).line, 1)

    # Bodies

    def _in_body(
        self, state: ProgramState, fsm: ProgramFSM, prompt: list[int], ids: list[int], drafted: list[int]
    ) -> tuple[str, list[int]]:
        table = fsm.table
        written = ids + drafted
        if state.matched:
            return "line", self._rest_of_end(written, state, table.gen_end)
        first = 1 + next((op.last for op in reversed(state.ops) if isinstance(op, Copy)), 0)
        body = written[state.body_start :]
        place = self._align(fsm, first, body)
        at_start = not body or self._ends_line(body[-1])
        if at_start and place.changed:
            return "line", table.gen_end[:1]
        if place.lost < _LOST and place.line < _REACH and first + place.line <= len(fsm.lines):
            return "line", self._line(fsm, first + place.line)[place.at :]
        if drafted:
            return "", []
        return "lookup", self._lookup.continuation(prompt, ids)

    def _rest_of_end(self, written: list[int], state: ProgramState, end: list[int]) -> list[int]:
        for size in range(len(end) - 1, 0, -1):
            if written[-size:] == end[:size]:
                return end[size:]
        return []

    def _align(self, fsm: ProgramFSM, first: int, body: list[int]) -> _Place:
        """Follow ``body`` along the document's lines from ``first`` on."""
        line = at = left = lost = 0  # left: where the body last left its line
        changed = False
        for token in body:
            shown = self._line(fsm, first + line)
            if at < len(shown) and shown[at] == token:
                at, lost = at + 1, 0
            else:
                changed = True
                left = left if lost else at
                later, passed = shown[at + 1 : at + _FAR], shown[left:at]
                if token in later:  # ids were left out
                    at, lost = at + 2 + later.index(token), 0
                elif token in passed:
                    at, lost = left + 1 + passed.index(token), 0
                else:  # at first it looks like another id instead of this one, then like ids put in before it
                    lost += 1
                    at = min(left + 1, max(len(shown) - 1, 0)) if lost == 1 else left
            if self._ends_line(token):
                line, at, lost = line + 1, 0, 0
        return _Place(line, at, changed, lost)

    def _line(self, fsm: ProgramFSM, number: int) -> list[int]:
        """The ids of a line and its end; none beyond the document."""
        if number > len(fsm.lines):
            return []
        if number not in self._lines:
            self._lines[number] = self._encoder.span(fsm.lines, number, number)
        return self._lines[number]

    def _ends_line(self, token: int) -> bool:
        piece = self._encoder.text.token_bytes[token]
        return piece is not None and piece.endswith(b"\n")
