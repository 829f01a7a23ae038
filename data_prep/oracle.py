"""Oracle programs: the edit program that turns `before` into `after`, by line alignment (paper Appendix B)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import Match
from itertools import compress, count
from operator import ne

from cydifflib import SequenceMatcher

from decoding.grammar import Copy, Gen, Op, Program, split_lines

Block = tuple[int, int, int]  # (start in a, start in b, size): a[i : i + size] equals b[j : j + size]

# A range of up to so many pairs of items is left to difflib's own search, compiled; in a larger one, so many items are
# looked up in search of anchors before it is given up. They decide how fast a range is searched, not what is found.
_FEW_PAIRS = 10_000
_LOOKUPS = 32


def build_oracle(before: str, after: str) -> Program:
    """Return the program with ``resolve(program, before) == after``, for every pair of strings.

    Matching blocks are those of ``difflib.SequenceMatcher(None, a, b, autojunk=False)`` over lines split on newlines;
    they become copies, the unmatched lines of ``after`` become gens.
    """
    a, b = split_lines(before), split_lines(after)
    ops: list[Op] = []
    written = 0
    for i, j, size in _matching_blocks(a, b):
        if written < j:
            ops.append(Gen.of("\n".join(b[written:j])))
        ops.append(Copy(i + 1, i + size))
        written = j + size
    if written < len(b):
        ops.append(Gen.of("\n".join(b[written:])))
    return Program(ops)


class LineMatcher:
    """The blocks of ``difflib.SequenceMatcher(None, a, b, autojunk=False)``, over lines or ids, at any size.

    difflib takes the longest common run, of several the earliest in ``a`` and then in ``b``, and goes on left and right
    of it. For every block it visits all pairs of equal items anew, which is cubic where items repeat. Here only small
    ranges are left to it; n items take at most O(n sqrt(n)) steps, and O(n) where the blocks have few different sizes.
    """

    def __init__(self, a: Sequence[Hashable], b: Sequence[Hashable]) -> None:
        self.a = a
        self.b = b

    def get_matching_blocks(self) -> list[Match]:
        """Return the blocks in order and then ``Match(len(a), len(b), 0)``, as difflib does."""
        blocks = [Match(*block) for block in _matching_blocks(self.a, self.b)]
        return [*blocks, Match(len(self.a), len(self.b), 0)]

    def get_opcodes(self) -> list[tuple[str, int, int, int, int]]:
        """Return difflib's opcodes: (equal, replace, insert or delete; start and stop in a; start and stop in b)."""
        opcodes = []
        at_a = at_b = 0
        for i, j, size in self.get_matching_blocks():
            if at_a < i or at_b < j:
                tag = "insert" if at_a == i else "delete" if at_b == j else "replace"
                opcodes.append((tag, at_a, i, at_b, j))
            at_a, at_b = i + size, j + size
            if size:
                opcodes.append(("equal", i, at_a, j, at_b))
        return opcodes


def _matching_blocks(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[Block]:
    """Return difflib's blocks in order, with blocks that touch joined.

    Each range that is left gives all blocks of its longest size at once, and what is between them has only shorter
    runs. So in ranges within ranges the sizes fall, and as the blocks do not overlap, not more than sqrt(2 len(a))
    sizes fit into ``a``. The ranges of one depth do not overlap either, and each is searched in linear time.
    """
    if len(a) * len(b) <= _FEW_PAIRS:
        return SequenceMatcher(None, a, b, False).get_matching_blocks()[:-1]
    blocks: list[Block] = []
    ranges = [(0, len(a), 0, len(b))]
    while ranges:
        alo, ahi, blo, bhi = ranges.pop()
        if (ahi - alo) * (bhi - blo) <= _FEW_PAIRS:
            found = _matching_blocks(a[alo:ahi], b[blo:bhi])
            blocks += [(alo + i, blo + j, size) for i, j, size in found]
            continue
        at_a, at_b = alo, blo
        for i, j, size in _longest_blocks(a[alo:ahi], b[blo:bhi]):
            i, j = alo + i, blo + j
            blocks.append((i, j, size))
            if at_a < i and at_b < j:
                ranges.append((at_a, i, at_b, j))
            at_a, at_b = i + size, j + size
        if alo < at_a < ahi and at_b < bhi:  # at_a is still alo where nothing was found
            ranges.append((at_a, ahi, at_b, bhi))
    blocks.sort()
    joined: list[Block] = []
    for i, j, size in blocks:
        if joined:
            last_i, last_j, last_size = joined[-1]
            if last_i + last_size == i and last_j + last_size == j:
                joined[-1] = last_i, last_j, last_size + size
                continue
        joined.append((i, j, size))
    return joined


# The longest blocks of a range


def _longest_blocks(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[Block]:
    """Return, in order, all blocks of the longest size that difflib takes from two sequences; none if they share none.

    Its first block is the earliest of the longest runs. Left of it there is no other of that size, for it would start
    earlier in ``a``; so the next is the earliest that lies right of it in both, and so on. Between them, and after the
    last one, all runs are shorter.
    """
    blocks = _by_anchors(a, b)
    return _by_automaton(a, b) if blocks is None else blocks


def _from_left(runs: Iterable[Block]) -> list[Block]:
    """Return the blocks that difflib takes from all runs of the longest size, ordered by start in a, then in b."""
    blocks = []
    at_a = at_b = 0
    for run in runs:
        i, j, size = run
        if i >= at_a and j >= at_b:
            blocks.append(run)
            at_a, at_b = i + size, j + size
    return blocks


def _by_anchors(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[Block] | None:
    """Return the longest blocks by a look at a few items of ``a``, or None where that does not suffice.

    An anchor is an item of ``a`` that ``b`` has once or not at all: only one run can go through it, and that run is
    found by comparing on both sides. A run of w items goes through an anchor if every window of w items of ``a`` has
    one. So once anchors no more than w apart show a run of at least w, every run of the longest size is among those
    that were found. The windows grow with the longest run so far: only a run at least as long matters.
    """
    lookups = _LOOKUPS
    least = len(a) // 3 or 1  # a guess at the longest size
    while True:
        runs: list[Block] = []
        longest = stop = 0  # stop: where the last run found ends in a
        anchor, window = -1, least
        while anchor + window < len(a):
            for at in range(anchor + window, anchor, -1):
                if not lookups:
                    return None
                lookups -= 1
                if (times := b.count(a[at])) < 2:
                    break
            else:
                return None
            anchor = at
            if times and anchor >= stop:  # before it: an anchor of the run that is already found
                j = b.index(a[anchor])
                behind = _common_prefix(a[anchor::-1], b[j::-1])
                ahead = _common_prefix(a[anchor:], b[j:])
                stop = anchor + ahead
                size = behind + ahead - 1
                runs.append((stop - size, j + ahead - size, size))
                longest = max(longest, size)
                window = max(window, size)
        if longest >= least:
            return _from_left(run for run in runs if run[2] == longest)
        if least == 1:
            return []
        least = longest or (least + 3) // 4


def _common_prefix(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    return next(compress(count(), map(ne, a, b)), min(len(a), len(b)))


def _by_automaton(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[Block]:
    """Return the longest blocks in time linear in both: runs of one size are equal just where they share a state."""
    automaton = _SuffixAutomaton.of(b)
    in_a = list(automaton.runs(a))
    longest = max(size for size, _ in in_a)
    if not longest:
        return []
    starts: dict[int, list[int]] = {state: [] for size, state in in_a if size == longest}  # in b, by state
    for stop, (size, state) in enumerate(automaton.runs(b, longest), start=1):
        if size == longest and state in starts:
            starts[state].append(stop - longest)
    blocks = []
    at_a = at_b = 0
    for stop, (size, state) in enumerate(in_a, start=1):
        i = stop - longest
        if size == longest and i >= at_a:
            of_state = starts[state]
            first = bisect_left(of_state, at_b)
            if first < len(of_state):
                j = of_state[first]
                blocks.append((i, j, longest))
                at_a, at_b = i + longest, j + longest
    return blocks


def runs_ending(a: Sequence[Hashable], b: Sequence[Hashable]) -> Iterator[tuple[int, int]]:
    """Yield, after each item of ``a``, the longest run that ends with it and is in ``b``: (length, first end in b).

    Linear in both.
    """
    automaton = _SuffixAutomaton.of(b)
    return ((size, automaton.first_end[state]) for size, state in automaton.runs(a))


@dataclass(frozen=True, slots=True)
class _SuffixAutomaton:
    """The runs of a sequence by state (Blumer et al. 1985): runs of one state end at the same places.

    State s stands for the suffixes of one run longer than ``length[link[s]]``, up to the run itself, ``length[s]``;
    ``first_end[s]`` is where they first end. State 0 is the empty run.
    """

    moves: list[dict[Hashable, int]]
    link: list[int]
    length: list[int]
    first_end: list[int]

    @classmethod
    def of(cls, items: Sequence[Hashable]) -> _SuffixAutomaton:
        """Build the automaton of ``items``, in linear time and with at most twice as many states."""
        moves: list[dict[Hashable, int]] = [{}]
        link, length, first_end = [-1], [0], [0]
        last = 0
        for end, item in enumerate(items, start=1):
            new = len(moves)
            moves.append({})
            link.append(0)
            length.append(end)
            first_end.append(end)
            state = last
            while state >= 0 and item not in moves[state]:
                moves[state][item] = new
                state = link[state]
            if state >= 0:
                target = moves[state][item]
                if length[target] == length[state] + 1:
                    link[new] = target
                else:
                    clone = len(moves)
                    moves.append(dict(moves[target]))
                    link.append(link[target])
                    length.append(length[state] + 1)
                    first_end.append(first_end[target])
                    link[target] = link[new] = clone
                    while state >= 0 and moves[state].get(item) == target:
                        moves[state][item] = clone
                        state = link[state]
            last = new
        return cls(moves, link, length, first_end)

    def runs(self, items: Sequence[Hashable], most: int | None = None) -> Iterator[tuple[int, int]]:
        """Yield, after each of ``items``, (size, state) of the longest run that ends there, or of its last ``most``."""
        moves, link, length = self.moves, self.link, self.length
        state = size = 0
        for item in items:
            while state and item not in moves[state]:
                state = link[state]
                size = length[state]
            if item in moves[state]:
                state = moves[state][item]
                size += 1
                if size - 1 == most:  # without its first item it may be a run of the linked state
                    size = most
                    if length[link[state]] == most:
                        state = link[state]
            else:
                size = 0
            yield size, state
