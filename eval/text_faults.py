"""Faults of an edit's text that have names of their own, beside the paper's taxonomy. No torch.

The taxonomy (``eval.metrics.outcome``) says which span ends are wrong; these say what is wrong with the text of an edit
that gave a document and not the gold. An edit may have several, or none.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from typing import Literal

from decoding.grammar import Gen, Program, split_lines
from decoding.resolver import resolve
from eval.metrics import exact_match

TextFault = Literal["bom_lost", "eol_mismatch", "gutter_leak", "control_char", "boundary_duplicate", "lazy_placeholder"]
TEXT_FAULTS: tuple[TextFault, ...] = TextFault.__args__

_LINE_END = re.compile(r"\r\n|\r|\n")
_GUTTER = re.compile(r"^ *[1-9][0-9]* ?\|(?!\|)", re.ASCII | re.MULTILINE)
_COMMENT = re.compile(r"(?:#+|//+|--|;+|%+|\{?/\*+|<!--)(.*?)(?:-->|\*+/\}?)?")
_ELLIPSIS = ("...", "\u2026")
_KEPT = re.compile(r"\b(?:existing|rest of|remaining|unchanged|omitted|same as|as before)\b", re.IGNORECASE)
_LONGEST_PLACEHOLDER = 120  # characters of its line


def text_faults(output: str | None, gold: str, document: str, program: Program | None) -> list[TextFault]:
    """Return the faults of ``output``, in the order of ``TEXT_FAULTS``; none of an exact match, nor of None.

    ``program`` is what made the output (None: free text did). Only what the output alone has is a fault, never text of
    a kind that the gold or the document has too:

    - ``bom_lost``: gold and document begin with a byte-order mark, the output does not;
    - ``eol_mismatch``: a kind of line end (CRLF, LF, lone CR) that neither gold nor document uses, if they have any;
    - ``gutter_leak``: lines that begin with a number and a bar (``12|`` or ``12 |``), as the numbered prompt has them;
    - ``control_char``: a control character (Unicode category Cc), tab, CR and LF apart;
    - ``boundary_duplicate``: where a gen stands beside another operation, the later one begins with the lines that the
      earlier one ends with, not all of them blank; gold and document do not have these lines twice running;
    - ``lazy_placeholder``: lines that stand for text left out: a comment that is an ellipsis, or that begins or ends
      with one and speaks of what is kept (``_KEPT``), or such words between two ellipses without a comment sign.
    """
    if output is None or exact_match(output, gold):
        return []
    known = (gold, document)

    def only_here(has: Callable[[str], bool]) -> bool:
        return has(output) and not any(map(has, known))

    found: dict[TextFault, bool] = {
        "bom_lost": all(text.startswith("\ufeff") for text in known) and not output.startswith("\ufeff"),
        "eol_mismatch": any(map(_line_ends, known)) and not _line_ends(output) <= set().union(*map(_line_ends, known)),
        "gutter_leak": only_here(lambda text: _GUTTER.search(text) is not None),
        "control_char": not _controls(output) <= set().union(*map(_controls, known)),
        "boundary_duplicate": any(
            not any(_has_lines(text, block + block) for text in known) for block in _repeated(program, document)
        ),
        "lazy_placeholder": only_here(lambda text: any(map(_is_placeholder, split_lines(text)))),
    }
    return [name for name in TEXT_FAULTS if found[name]]


def _line_ends(text: str) -> set[str]:
    return set(_LINE_END.findall(text))


def _controls(text: str) -> set[str]:
    return {character for character in set(text) - set("\t\r\n") if unicodedata.category(character) == "Cc"}


def _has_lines(text: str, lines: list[str]) -> bool:
    return "\n".join(["", *lines, ""]) in f"\n{text}\n"


def _repeated(program: Program | None, document: str) -> Iterator[list[str]]:
    """Yield the fewest lines, not all blank, that end one operation and begin the next, where either is a gen."""
    ops = program.ops if program else ()
    for pair in zip(ops, ops[1:], strict=False):
        if not any(isinstance(op, Gen) for op in pair):
            continue
        earlier, later = (split_lines(resolve(Program([op]), document)) for op in pair)
        for size in range(1, min(len(earlier), len(later)) + 1):
            block = later[:size]
            if earlier[-size] == block[0] and earlier[-size:] == block and any(map(str.strip, block)):
                yield block
                break


def _is_placeholder(line: str) -> bool:
    line = line.strip()
    if len(line) > _LONGEST_PLACEHOLDER or not any(dots in line for dots in _ELLIPSIS):
        return False
    comment = _COMMENT.fullmatch(line)
    said = (comment[1] if comment else line).strip(" \t[](){}")
    ends = said.startswith(_ELLIPSIS), said.endswith(_ELLIPSIS)
    if not comment:
        return all(ends) and _KEPT.search(said) is not None
    return any(ends) and (said.strip(".\u2026") == "" or _KEPT.search(said) is not None)
