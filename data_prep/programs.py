"""Choices of program: of all programs that make the same edit, the one to train on, and others to train on beside it.

difflib               the canonical one: copies are the blocks of difflib, in document order (paper Appendix B)
fewest_ops            the fewest operations that generate no line which difflib's copies; copies may go in any order and
                      repeat, so what was moved or doubled is copied
fewest_ops_monotone   the same with copies that go forward, as strategy=monotone decodes them

``merge_short`` writes out what is too short to copy, ``equivalent`` gives other programs of the same edit.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, zip_longest
from math import inf
from typing import Literal

from data_prep.oracle import build_oracle, runs_ending
from decoding.grammar import Copy, Gen, Op, Program, split_lines
from decoding.resolver import resolve

Choice = Literal["difflib", "fewest_ops", "fewest_ops_monotone"]
Piece = tuple[int, int, int | None]  # lines start to stop of after, and where in before they are copied from

_WRITTEN = 3  # lines of the longest copy that ``equivalent`` writes out

# Steps of the state machine over (lines written, lines of before used up): how the cheapest way got to a cell.
_SKIP, _COPY, _COPY_ON, _GEN_ON = 1, 2, 4, 8


def choose(choice: Choice, before: str, after: str) -> Program:
    """Return the program of ``choice`` with ``resolve(program, before) == after``, for every pair of strings."""
    if choice == "difflib":
        return build_oracle(before, after)
    return fewest_ops(before, after, monotone=choice == "fewest_ops_monotone")


def cost(program: Program) -> tuple[int, int]:
    """Return what ``fewest_ops`` minimises: the operations, and then the generated characters, newlines included."""
    return len(program.ops), sum(len(gen.content) + 1 for gen in program.gens)


def in_order(program: Program) -> bool:
    """Whether each copy starts after the end of the one before: what ``strategy=monotone`` can decode."""
    return all(one.last < other.first for one, other in pairwise(program.copies))


def fewest_ops(before: str, after: str, monotone: bool = False) -> Program:
    """Return the cheapest program by ``cost`` that copies every line of ``after`` which difflib's program copies.

    Without that condition it would always be a single gen. The lines that difflib's program generates are copied where
    that costs no more operations. Where difflib's program costs no more, it is the one returned. Of several places to
    copy a run from it takes the first behind the copy before, or else the first of all.

    Takes linear time in any order. With ``monotone``, all programs whose copies go forward are searched, in time and
    bytes of the product of both numbers of lines, but only where neither difflib's nor the cheapest in any order will
    do: few edits move lines.
    """
    a, b = split_lines(before), split_lines(after)
    usual = build_oracle(before, after)
    weights = _weights(usual)
    cheapest = _program(_cheapest(a, b, weights), b)
    if monotone and cost(cheapest) < cost(usual) and not in_order(cheapest):
        cheapest = _program(_cheapest_forward(a, b, weights), b)
    return cheapest if cost(cheapest) < cost(usual) else usual


def merge_short(program: Program, document: str, m: int, text_free: bool = False) -> Program:
    """Return ``program`` with every copy of fewer than ``m`` lines written out, joined to the gens it touches.

    What is left can be decoded with ``min_span=m``.

    Args:
        text_free: also write out copies without a letter or digit: blank lines, brackets.
    """
    lines = split_lines(document)
    return Program(
        _joined(
            _written(op, lines) if isinstance(op, Copy) and _too_small(op, lines, m, text_free) else op
            for op in program.ops
        )
    )


def equivalent(
    program: Program, document: str, k: int, seed: int | str, m: int = 1, text_free: bool = False
) -> list[Program]:
    """Return up to ``k`` other programs that resolve to the same document, those with the fewest changes first.

    A change splits a copy, takes its lines from the nearest place that has the same, writes out a copy of at most 3
    lines, or slides a boundary over equal lines. Kinds of change take turns, and the seed decides within a kind. There
    are fewer than ``k`` where there is nothing more to change. Of a program whose copies go forward, all do. No change
    makes a copy that ``merge_short`` would write out.

    Raises:
        ResolveError: a program that does not fit the document.
    """
    rng = random.Random(seed)
    lines = split_lines(document)
    (text,) = _as_characters(lines)
    after = resolve(program, document)
    start = Program(_joined(Gen.of(op.content) if isinstance(op, Gen) else op for op in program.ops))
    forward = in_order(start)
    seen = {program, start}
    found: list[Program] = []
    waiting = deque([start])
    while waiting and len(found) < k:
        ops = waiting.popleft().ops
        kinds = [list(changes) for changes in _changes(ops, lines, text)]
        for changes in kinds:
            rng.shuffle(changes)
        rng.shuffle(kinds)
        for change in (change for turn in zip_longest(*kinds) for change in turn if change):
            first, last, new = change
            if any(isinstance(op, Copy) and _too_small(op, lines, m, text_free) for op in new):
                continue
            other = Program(_joined([*ops[:first], *new, *ops[last:]]))
            if other in seen or (forward and not in_order(other)):
                continue
            if resolve(other, document) != after:
                raise AssertionError(f"{other} is not equivalent to {program}; this is a bug, please report it")
            seen.add(other)
            found.append(other)
            waiting.append(other)
            if len(found) == k:
                break
    return found


# The fewest operations


def _cheapest(a: Sequence[str], b: Sequence[str], weights: Sequence[int | None]) -> list[Piece]:
    """Return the pieces of ``b`` that cost least, copies in any order: a shortest path over the lines of ``b``.

    A program of the first p lines, cut down to the first q < p, costs no more. So of all copies that end at a line the
    longest is best, for it leaves the least to the program before it, and one step a line suffices.
    """
    per_op = _per_op(weights)
    best = [0]  # the cost of the first lines of b, by their number
    ends: list[tuple[int, bool]] = [(0, False)]  # of the last operation there: its first line, and whether it copies
    gen, gen_start = inf, 0  # the cost where the last operation is a gen, and its first line
    for stop, ((size, _), weight) in enumerate(zip(runs_ending(b, a), weights, strict=True), start=1):
        if weight is None:
            gen = inf
        else:
            if best[-1] + per_op < gen:
                gen, gen_start = best[-1] + per_op, stop - 1
            gen += weight
        if size and (copy := best[stop - size] + per_op) <= gen:
            best.append(copy)
            ends.append((stop - size, True))
        else:
            best.append(gen)
            ends.append((gen_start, False))
    pieces: list[tuple[int, int, bool]] = []
    stop = len(b)
    while stop:
        start, copies = ends[stop]
        pieces.append((start, stop, copies))
        stop = start
    return _placed(reversed(pieces), a, b)


def _placed(pieces: Iterable[tuple[int, int, bool]], a: Sequence[str], b: Sequence[str]) -> list[Piece]:
    """Say where each copied piece comes from: the first place behind the copy before, or else the first of all."""
    source, target = _as_characters(a, b)
    placed: list[Piece] = []
    behind = 0
    for start, stop, copies in pieces:
        at = None
        if copies:
            run = target[start:stop]
            at = source.find(run, behind)
            if at < 0:
                at = source.find(run)
            behind = at + stop - start
        placed.append((start, stop, at))
    return placed


def _cheapest_forward(a: Sequence[str], b: Sequence[str], weights: Sequence[int | None]) -> list[Piece]:
    """Return the pieces of ``b`` that cost least with copies that go forward in ``a``.

    Alignment with affine gaps (Gotoh 1982): a cell stands for p lines of ``b`` written from the first i of ``a``. Its
    last operation is a gen, or a copy that ends with line i, begun here or gone on with; or line i is not used.
    """
    import numpy as np

    per_op = _per_op(weights)
    number: dict[str, int] = {}
    a_ids = np.array([number.setdefault(line, len(number)) for line in a])
    never = 2**61
    best = np.zeros(len(a) + 1, np.int64)
    copy, gen = np.full_like(best, never), np.full_like(best, never)
    steps = np.zeros((len(b), len(a) + 1), np.uint8)
    for p, (line, weight) in enumerate(zip(b, weights, strict=True)):
        opened = best + per_op
        goes_on, gen_goes_on = copy <= opened, gen <= opened
        copy[1:] = np.where(a_ids == number.get(line, -1), np.minimum(copy, opened)[:-1], never)
        copy[0] = never
        gen = np.full_like(best, never) if weight is None else np.minimum(gen, opened) + weight
        best = np.minimum.accumulate(np.minimum(np.minimum(copy, gen), never))
        steps[p] = (copy <= gen) * _COPY + gen_goes_on * _GEN_ON
        steps[p, 1:] += (best[1:] == best[:-1]) * np.uint8(_SKIP) + goes_on[:-1] * np.uint8(_COPY_ON)
    pieces: list[Piece] = []
    p, i = len(b), len(a)
    while p:
        while steps[p - 1, i] & _SKIP:
            i -= 1
        stop = p
        if steps[p - 1, i] & _COPY:
            while steps[p - 1, i] & _COPY_ON:
                p, i = p - 1, i - 1
            p, i = p - 1, i - 1
            pieces.append((p, stop, i))
        else:
            while steps[p - 1, i] & _GEN_ON:
                p -= 1
            p -= 1
            pieces.append((p, stop, None))
    return pieces[::-1]


def _weights(usual: Program) -> list[int | None]:
    """Return for each line that ``usual`` writes what it counts for when generated, None where it is copied."""
    weights: list[int | None] = []
    for op in usual.ops:
        if isinstance(op, Copy):
            weights += [None] * (op.last - op.first + 1)
        else:
            weights += [len(line) + 1 for line in split_lines(op.content)]
    return weights


def _per_op(weights: Iterable[int | None]) -> int:
    """Return what an operation counts for: more than all generated text."""
    return 1 + sum(weight for weight in weights if weight)


def _program(pieces: Iterable[Piece], b: Sequence[str]) -> Program:
    return Program(
        Gen.of("\n".join(b[start:stop])) if at is None else Copy(at + 1, at + stop - start)
        for start, stop, at in pieces
    )


def _as_characters(*sequences: Sequence[str]) -> list[str]:
    """Return sequences of lines as strings, a character for each different line, so that ``str.find`` finds runs.

    There are 1,114,112 characters; more different lines than that are a ValueError.
    """
    number: dict[str, int] = {}
    return ["".join([chr(number.setdefault(line, len(number))) for line in lines]) for lines in sequences]


# Changes that keep what a program resolves to

Change = tuple[int, int, list[Op]]  # operations from the first up to the second number become these


def _changes(ops: Sequence[Op], lines: Sequence[str], text: str) -> tuple[Iterator[Change], ...]:
    """Return all single changes, by kind. ``text`` is the lines as characters."""
    return _splits(ops), _elsewhere(ops, text), _write_outs(ops, lines), _slides(ops, lines)


def _splits(ops: Sequence[Op]) -> Iterator[Change]:
    for at, op in enumerate(ops):
        if isinstance(op, Copy):
            for line in range(op.first, op.last):
                yield at, at + 1, [Copy(op.first, line), Copy(line + 1, op.last)]


def _elsewhere(ops: Sequence[Op], text: str) -> Iterator[Change]:
    """The nearest places before and behind that have the same lines."""
    for at, op in enumerate(ops):
        if isinstance(op, Copy):
            run = text[op.first - 1 : op.last]
            for found in (text.rfind(run, 0, op.last - 1), text.find(run, op.first)):
                if found >= 0:
                    yield at, at + 1, [Copy(found + 1, found + len(run))]


def _write_outs(ops: Sequence[Op], lines: Sequence[str]) -> Iterator[Change]:
    for at, op in enumerate(ops):
        if isinstance(op, Copy) and op.last - op.first < _WRITTEN:
            yield at, at + 1, [_written(op, lines)]


def _slides(ops: Sequence[Op], lines: Sequence[str]) -> Iterator[Change]:
    """Between two copies, with a gen or nothing between them: one line up, or one line down."""
    for at, one in enumerate(ops):
        for stop in (at + 2, at + 3):
            if stop > len(ops) or not (isinstance(one, Copy) and isinstance(ops[stop - 1], Copy)):
                continue
            other, between = ops[stop - 1], ops[at + 1 : stop - 1]
            if between and isinstance(between[0], Copy):
                continue
            new = split_lines(between[0].content) if between else []
            if one.first < one.last and other.first > 1:
                up = [lines[one.last - 1], *new]
                if up.pop() == lines[other.first - 2]:
                    gens = [Gen.of("\n".join(up))] if up else []
                    yield at, stop, [Copy(one.first, one.last - 1), *gens, Copy(other.first - 1, other.last)]
            if other.first < other.last and one.last < len(lines):
                down = [*new, lines[other.first - 1]]
                if down.pop(0) == lines[one.last]:
                    gens = [Gen.of("\n".join(down))] if down else []
                    yield at, stop, [Copy(one.first, one.last + 1), *gens, Copy(other.first + 1, other.last)]


def _joined(ops: Iterable[Op]) -> list[Op]:
    """Return the operations with gens that touch joined to one; an operation joins the next by a newline."""
    joined: list[Op] = []
    for op in ops:
        if joined and isinstance(op, Gen) and isinstance(joined[-1], Gen):
            joined[-1] = Gen.of(f"{joined[-1].content}\n{op.content}")
        else:
            joined.append(op)
    return joined


def _written(copy: Copy, lines: Sequence[str]) -> Gen:
    return Gen.of("\n".join(lines[copy.first - 1 : copy.last]))


def _too_small(copy: Copy, lines: Sequence[str], m: int, text_free: bool) -> bool:
    if copy.last - copy.first + 1 < m:
        return True
    copied = lines[copy.first - 1 : copy.last]
    return text_free and not any(character.isalnum() for line in copied for character in line)
