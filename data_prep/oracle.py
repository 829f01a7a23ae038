"""Oracle programs: the edit program that turns `before` into `after`, by line alignment (paper Appendix B)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from difflib import Match
from itertools import compress, count
from operator import ne

from decoding.grammar import Copy, Gen, Op, Program, split_lines

Block = tuple[int, int, int]  # (start in a, start in b, size): a[i : i + size] == b[j : j + size]

# Up to so many pairs of equal items for each item, visiting them all is faster than the automaton.
_PAIRS_PER_ITEM = 16
# How many lines may be looked up before it is given up to prove that a common prefix or suffix is a block.
_LOOKUPS = 64


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
    """The blocks of ``difflib.SequenceMatcher(None, a, b, autojunk=False)``, over lines or ids, without its cubic cases.

    difflib takes the longest common run, of several the earliest in ``a`` and then in ``b``, and goes on with what is
    left of it and what is right of it. For every block it visits all pairs of equal items anew. Here n items cost at
    most O(n sqrt(n)) steps however often they repeat, and O(n) where one edit leaves unique lines on both sides.
    """

    def __init__(self, a: Sequence[Hashable], b: Sequence[Hashable]) -> None:
        self.a = a
        self.b = b

    def get_matching_blocks(self) -> list[Match]:
        """Return the blocks in order, then ``Match(len(a), len(b), 0)``, as difflib does."""
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
    """Return difflib's blocks in order, those that touch joined.

    A range of the search gives its longest blocks, all at once; between them only shorter ones are left. So ranges
    within ranges have ever smaller blocks, all of them apart in ``a``: no more than sqrt(2 len(a)) of different sizes
    fit. The ranges of one depth do not overlap and each is searched in linear time, which makes O(n sqrt(n)).
    """
    blocks: list[Block] = []
    ranges = [(0, len(a), 0, len(b))]
    while ranges:
        alo, ahi, blo, bhi = ranges.pop()
        if alo == ahi or blo == bhi:
            continue
        longest = _longest_blocks(a[alo:ahi], b[blo:bhi])
        if not longest:
            continue
        left_a, left_b = alo, blo
        for i, j, size in longest:
            ranges.append((left_a, alo + i, left_b, blo + j))
            blocks.append((alo + i, blo + j, size))
            left_a, left_b = alo + i + size, blo + j + size
        ranges.append((left_a, ahi, left_b, bhi))
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
    """Return, in order, all blocks of the longest size that difflib takes from two sequences.

    Its first block is the earliest of the longest runs. Left of it there is none of that size, for it would start
    earlier in ``a``; so the next is the earliest right of it, and so on. Between them all runs are shorter.
    """
    if (blocks := _by_anchors(a, b)) is not None:
        return blocks
    where: dict[Hashable, list[int]] = {}
    for j, item in enumerate(b):
        if item in where:
            where[item].append(j)
        else:
            where[item] = [j]
    places = [where.get(item, ()) for item in a]
    if sum(map(len, places)) > _PAIRS_PER_ITEM * (len(a) + len(b)):
        return _longest_blocks_of_many_pairs(a, b)

    longest = 1
    runs: list[tuple[int, int]] = []  # where the longest runs end, by their end in a and then in b
    sizes: dict[int, int] = {}  # of the runs that end at the last item of a, by their end in b
    for i, ends in enumerate(places):
        last, sizes = sizes, {}
        for j in ends:
            size = sizes[j] = last.get(j - 1, 0) + 1
            if size >= longest:
                if size > longest:
                    longest = size
                    runs.clear()
                runs.append((i + 1, j + 1))
    blocks = []
    at_a = at_b = longest  # where the next block may end at the earliest
    for i, j in runs:
        if i >= at_a and j >= at_b:
            blocks.append((i - longest, j - longest, longest))
            at_a, at_b = i + longest, j + longest
    return blocks


def _by_anchors(a, b):
    n, m = len(a), len(b)
    lookups = _LOOKUPS
    guess = n // 3 or 1
    while True:
        window = guess
        best = stop = 0
        last = -1
        runs = []
        while last + window < n:
            for at in range(last + window, last, -1):
                if not lookups:
                    return None
                lookups -= 1
                times = b.count(a[at])
                if times < 2:
                    break
            else:
                return None
            last = at
            if times and at >= stop:
                j = b.index(a[at])
                back = next(compress(count(), map(ne, a[at::-1], b[j::-1])), min(at, j) + 1)
                ahead = next(compress(count(), map(ne, a[at:], b[j:])), min(n - at, m - j))
                size = back + ahead - 1
                stop = at + ahead
                if size > best:
                    best = size
                    window = max(window, size)
                runs.append((stop - size, j + ahead - size, size))
        if best >= guess:
            break
        if guess == 1:
            return []
        guess = best or (guess + 3) // 4
    blocks = []
    at_a = at_b = 0
    for i, j, size in runs:
        if size == best and i >= at_a and j >= at_b:
            blocks.append((i, j, size))
            at_a, at_b = i + size, j + size
    return blocks


def _longest_blocks_of_many_pairs(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[Block]:
    """Return what ``_longest_blocks`` does, in time linear in the two, by a suffix automaton of ``b``.

    Two runs of one size are equal just where they lead to the same state.
    """
    automaton = SuffixAutomaton.of(b)
    in_a = list(automaton.runs(a))
    longest = max(size for size, _ in in_a)
    if not longest:
        return []
    where: dict[int, list[int]] = {state: [] for size, state in in_a if size == longest}
    for end, (size, state) in enumerate(automaton.runs(b, longest), start=1):
        if size == longest and state in where:
            where[state].append(end)
    blocks = []
    at_a = at_b = longest  # where the next block may end at the earliest
    for i, (size, state) in enumerate(in_a, start=1):
        if size == longest and i >= at_a:
            ends = where[state]
            first = bisect_left(ends, at_b)
            if first < len(ends):
                j = ends[first]
                blocks.append((i - longest, j - longest, longest))
                at_a, at_b = i + longest, j + longest
    return blocks


def runs_ending(a: Sequence[Hashable], b: Sequence[Hashable]) -> Iterator[tuple[int, int]]:
    """Yield, after each item of ``a``, the longest run that ends with it and is in ``b``: (length, first end in b).

    Linear in both.
    """
    automaton = SuffixAutomaton.of(b)
    return ((size, automaton.first_end[state]) for size, state in automaton.runs(a))


@dataclass(frozen=True, slots=True)
class SuffixAutomaton:
    """The runs of a sequence by state (Blumer et al. 1985): runs of one state end at the same places.

    State s stands for the suffixes of one run longer than ``length[link[s]]``, up to the run itself, ``length[s]``;
    ``first_end[s]`` is where they first end. State 0 is the empty run.
    """

    moves: list[dict[Hashable, int]]
    link: list[int]
    length: list[int]
    first_end: list[int]

    @classmethod
    def of(cls, items: Sequence[Hashable]) -> SuffixAutomaton:
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
        """Yield, after each of ``items``, (size, state) of the longest run, of at most ``most`` items, that ends there."""
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
