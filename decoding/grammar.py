"""The edit program: two primitives over the lines of a document, its text form, and the parser (paper section 2.1).

<program>
<copy lines="1-3"/>
<gen>
new text
</gen>
</program>
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from decoding.escape import decode_gen_body, encode_gen_body

PROGRAM_OPEN, PROGRAM_CLOSE = "<program>", "</program>"
GEN_OPEN, GEN_CLOSE = "<gen>", "</gen>"

_COPY_TAG = re.compile(r'<copy lines="(0|[1-9][0-9]*)-(0|[1-9][0-9]*)"/>', re.ASCII)
_LOOSE_COPY_TAG = re.compile(r'<copy lines="[^"<>]*"/>')
_SPACE = re.compile(r"[ \t\r\n]*")
# No document has 10^18 lines; longer digit strings would only reach Python's limit for int().
_MAX_DIGITS = 18


class ProgramError(ValueError):
    """A program that is wrong. ``reason`` is machine-readable; ``op`` is the 0-based operation it concerns, or None."""

    def __init__(self, reason: str, message: str, op: int | None = None) -> None:
        where = "" if op is None else f"operation {op + 1}: "
        super().__init__(f"{reason}: {where}{message}")
        self.reason = reason
        self.op = op


class GrammarError(ProgramError):
    """Text that is not a program: bad_tag, stray_text, unclosed_gen, unclosed_program, out_of_range, empty_program."""


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy the document's lines ``first`` to ``last``, 1-based and inclusive."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Gen:
    """New text. ``text`` is what stands between the tags with the escape undone; see ``content`` for what it emits."""

    text: str

    @classmethod
    def of(cls, content: str) -> Gen:
        """Return the canonical op that emits exactly ``content``: padded by one newline on either side (Appendix B)."""
        return cls(f"\n{content}\n")

    @property
    def content(self) -> str:
        """The emitted text: ``text`` less at most one leading and one trailing newline (paper section 2.2, rule 2)."""
        return self.text.removeprefix("\n").removesuffix("\n")


Op = Copy | Gen


@dataclass(frozen=True, slots=True)
class Program:
    """A sequence of operations; what they emit is joined by single newlines."""

    ops: tuple[Op, ...]

    def __init__(self, ops: Iterable[Op]) -> None:
        object.__setattr__(self, "ops", tuple(ops))

    @property
    def copies(self) -> list[Copy]:
        """The copy operations, in order."""
        return [op for op in self.ops if isinstance(op, Copy)]

    @property
    def gens(self) -> list[Gen]:
        """The gen operations, in order."""
        return [op for op in self.ops if isinstance(op, Gen)]


def split_lines(document: str) -> list[str]:
    r"""Return the document's lines. Only ``\n`` separates, so ``"\n".join`` is the exact inverse for every string."""
    return document.split("\n")


def render(program: Program) -> str:
    """Return the canonical text of ``program``: one tag a line, gen bodies escaped and padded; no final newline."""
    parts = [PROGRAM_OPEN]
    for op in program.ops:
        if isinstance(op, Copy):
            parts.append(f'<copy lines="{op.first}-{op.last}"/>')
        else:
            parts += [GEN_OPEN, encode_gen_body(op.content), GEN_CLOSE]
    parts.append(PROGRAM_CLOSE)
    return "\n".join(parts)


def parse(text: str) -> Program:
    """Parse a program, or a bare list of operations; blanks between operations are allowed.

    Raises:
        GrammarError: ``bad_tag`` (a tag that is not one of ours, or is cut off), ``stray_text`` (text outside a tag),
            ``unclosed_gen``, ``unclosed_program``, ``out_of_range`` (a number of more than 18 digits),
            ``empty_program`` (no operation).
    """
    ops: list[Op] = []
    at = _SPACE.match(text).end()
    wrapped = text.startswith(PROGRAM_OPEN, at)
    if wrapped:
        at += len(PROGRAM_OPEN)
    while True:
        at = _SPACE.match(text, at).end()
        if at == len(text):
            if wrapped:
                raise GrammarError("unclosed_program", f"the text ends without {PROGRAM_CLOSE}")
            break
        if wrapped and text.startswith(PROGRAM_CLOSE, at):
            at = _SPACE.match(text, at + len(PROGRAM_CLOSE)).end()
            if at != len(text):
                raise GrammarError("stray_text", f"{_excerpt(text, at)} stands after {PROGRAM_CLOSE}")
            break
        op, at = _parse_op(text, at, len(ops))
        ops.append(op)
    if not ops:
        raise GrammarError("empty_program", "a program needs at least one operation")
    return Program(ops)


def _parse_op(text: str, at: int, number: int) -> tuple[Op, int]:
    """Parse the operation that starts at ``text[at]``; return it and where it ends."""
    if text.startswith(GEN_OPEN, at):
        start = at + len(GEN_OPEN)
        stop = text.find(GEN_CLOSE, start)
        if stop < 0:
            raise GrammarError("unclosed_gen", f"the text ends without {GEN_CLOSE}", number)
        return Gen(decode_gen_body(text[start:stop])), stop + len(GEN_CLOSE)
    if match := _COPY_TAG.match(text, at):
        first, last = match.groups()
        if max(len(first), len(last)) > _MAX_DIGITS:
            raise GrammarError("out_of_range", f"a line number of {max(len(first), len(last))} digits", number)
        return Copy(int(first), int(last)), match.end()
    if text[at] == "<":
        raise GrammarError("bad_tag", _bad_tag(text, at), number)
    raise GrammarError("stray_text", f"{_excerpt(text, at)} stands outside a tag", number)


def _bad_tag(text: str, at: int) -> str:
    shown = _excerpt(text, at)
    if text.find(">", at) < 0:
        return f"the text ends inside the tag {shown}"
    if _LOOSE_COPY_TAG.match(text, at):
        return f"{shown} needs two line numbers i-j in plain decimal, without signs, blanks or leading zeros"
    return f'{shown} is neither <copy lines="i-j"/> nor <gen>'


def _excerpt(text: str, at: int) -> str:
    shown = text[at : at + 40]
    return repr(shown + ("..." if len(text) > at + 40 else ""))
