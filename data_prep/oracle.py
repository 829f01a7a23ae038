"""Oracle programs: the edit program that turns `before` into `after`, by line alignment (paper Appendix B)."""

from __future__ import annotations

from collections import Counter
from difflib import Match, SequenceMatcher

from decoding.grammar import Copy, Gen, Op, Program, split_lines

# difflib looks at every pair of equal lines. Above this many pairs the automaton below is faster.
_PAIRS_FOR_AUTOMATON = 200_000


def build_oracle(before: str, after: str) -> Program:
    """Return the program with ``resolve(program, before) == after``, for every pair of strings.

    Matching blocks are those of ``difflib.SequenceMatcher(None, a, b, autojunk=False)`` over lines split on newlines;
    they become copies, the unmatched lines of ``after`` become gens.
    """
    a, b = split_lines(before), split_lines(after)
    ops: list[Op] = []
    for tag, i1, i2, j1, j2 in LineMatcher(a, b).get_opcodes():
        if tag == "equal":
            ops.append(Copy(i1 + 1, i2))
        elif tag != "delete":
            ops.append(Gen.of("\n".join(b[j1:j2])))
    return Program(ops)


class LineMatcher(SequenceMatcher):
    """``SequenceMatcher(None, a, b, autojunk=False)`` with the same blocks, but not quadratic on repeated lines.

    difflib's search for the longest common run visits every pair of equal lines: thousands of blank lines cost minutes.
    Where that would be slow, the run is found with a suffix automaton instead, in time linear in the two ranges.
    """

    def __init__(self, a: list[str], b: list[str]) -> None:
        super().__init__(None, a, b, autojunk=False)
        in_a = Counter(a)
        self._many_pairs = (
            sum(count * len(self.b2j.get(line, ())) for line, count in in_a.items()) > _PAIRS_FOR_AUTOMATON
        )

    def find_longest_match(self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None) -> Match:
        """Return difflib's longest match: of the longest runs, the earliest in ``a``, then the earliest in ``b``."""
        ahi = len(self.a) if ahi is None else ahi
        bhi = len(self.b) if bhi is None else bhi
        if not self._many_pairs or (ahi - alo) * (bhi - blo) <= _PAIRS_FOR_AUTOMATON:
            return super().find_longest_match(alo, ahi, blo, bhi)
        size, a_end, b_end = _longest_common_run(self.a[alo:ahi], self.b[blo:bhi])
        if size == 0:
            return Match(alo, blo, 0)
        return Match(alo + a_end - size, blo + b_end - size, size)


def _longest_common_run(a: list[str], b: list[str]) -> tuple[int, int, int]:
    """Return (length, end in a, end in b) of the longest common run; ties go to the earliest end in a, then in b.

    A suffix automaton of ``b`` (Blumer et al. 1985): ``length[s]`` is the longest run state s stands for,
    ``first_end[s]`` where that run first ends in ``b``. Runs of equal length that end earliest also start earliest, as
    difflib wants.
    """
    moves: list[dict[str, int]] = [{}]
    link, length, first_end = [-1], [0], [0]
    last = 0
    for end, line in enumerate(b, start=1):
        new = len(moves)
        moves.append({})
        link.append(0)
        length.append(length[last] + 1)
        first_end.append(end)
        state = last
        while state >= 0 and line not in moves[state]:
            moves[state][line] = new
            state = link[state]
        if state >= 0:
            target = moves[state][line]
            if length[target] == length[state] + 1:
                link[new] = target
            else:
                clone = len(moves)
                moves.append(dict(moves[target]))
                link.append(link[target])
                length.append(length[state] + 1)
                first_end.append(first_end[target])
                link[target] = link[new] = clone
                while state >= 0 and moves[state].get(line) == target:
                    moves[state][line] = clone
                    state = link[state]
        last = new

    best = (0, 0, 0)
    state = size = 0
    for end, line in enumerate(a, start=1):
        while state and line not in moves[state]:
            state = link[state]
            size = length[state]
        if line in moves[state]:
            state = moves[state][line]
            size += 1
            if size > best[0]:
                best = (size, end, first_end[state])
        else:
            size = 0
    return best
