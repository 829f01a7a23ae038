"""The resolver: a program and its document to the edited document (paper section 2.2). Pure, no model."""

from __future__ import annotations

import warnings
from typing import Literal

from decoding.grammar import Copy, Program, ProgramError, split_lines


class ResolveError(ProgramError):
    """A program that does not fit the document: out_of_range, reversed_range, empty_program."""


class ClippedRange(UserWarning):
    """A copy range that reached outside the document and was clipped to it."""


def resolve(program: Program, document: str, mode: Literal["strict", "clipped"] = "strict") -> str:
    """Apply ``program`` to ``document``: copies are verbatim, gens emit their content, one newline joins operations.

    Line numbers are 1-based, inclusive, and always those of the original document. ``strict`` raises on a line number
    outside [1, n]; ``clipped`` clips it and warns with ``ClippedRange``. A reversed range is an error in both.

    Raises:
        ResolveError: names the operation; ``reason`` is out_of_range, reversed_range or empty_program.
    """
    if mode not in ("strict", "clipped"):
        raise ValueError(f"mode={mode!r}: choose 'strict' or 'clipped'")
    if not program.ops:
        raise ResolveError("empty_program", "a program needs at least one operation")
    lines = split_lines(document)
    emitted: list[str] = []
    for number, op in enumerate(program.ops):
        if isinstance(op, Copy):
            first, last = _check_range(op, len(lines), number, mode)
            emitted += lines[first - 1 : last]
        else:
            emitted.append(op.content)
    return "\n".join(emitted)


def _check_range(op: Copy, n: int, number: int, mode: str) -> tuple[int, int]:
    if op.first > op.last:
        raise ResolveError("reversed_range", f"lines {op.first}-{op.last} run backwards", number)
    if op.first >= 1 and op.last <= n:
        return op.first, op.last
    if mode == "strict":
        raise ResolveError("out_of_range", f"lines {op.first}-{op.last} of a document with lines 1-{n}", number)
    first, last = (min(max(line, 1), n) for line in (op.first, op.last))
    message = f"operation {number + 1}: lines {op.first}-{op.last} clipped to {first}-{last}"
    warnings.warn(message, ClippedRange, stacklevel=3)
    return first, last
