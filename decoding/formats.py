r"""Other formats in which a model may write an edit: search/replace blocks, unified diffs, the whole document.

They are what copy/gen programs are compared with. Each has a writer, for the answer a model should give, and an
applier, which reads what a model gave; ``FORMATS`` has them by name. As in programs only ``\n`` separates lines, and
``apply(write(before, after), before) == after`` for every pair of strings that the writer does not refuse. In the first
two, blank text is the edit that changes nothing.

search_replace, the blocks of Aider without their file names; each is applied to what the one before it left:

    <<<<<<< SEARCH
    lines of the document
    =======
    lines to put in their place
    >>>>>>> REPLACE

unified_diff, the format of ``diff -u`` and ``git diff``: hunks under ``@@ -first,count +first,count @@`` with three
lines of context, and ``\ No newline at end of file`` where it belongs.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from difflib import SequenceMatcher
from typing import Literal, NamedTuple

from decoding.grammar import split_lines

SEARCH, DIVIDER, REPLACE = "<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE"
DIFF_HEADER = "--- a/document\n+++ b/document\n"
NO_NEWLINE = "\\ No newline at end of file"

Rule = Literal["first", "unique"]


class FormatError(ValueError):
    """An edit that cannot be read, applied or written. ``reason`` is machine-readable.

    ``hunk`` is the 0-based block or hunk it concerns, or None.
    """

    def __init__(self, reason: str, message: str, hunk: int | None = None) -> None:
        where = "" if hunk is None else f"hunk {hunk + 1}: "
        super().__init__(f"{reason}: {where}{message}")
        self.reason = reason
        self.hunk = hunk


# ---------------------------------------------------------------------------------------------------------------------
# Search/replace blocks


def apply_search_replace(text: str, document: str, rule: Rule = "first") -> str:
    """Apply the blocks of ``text`` in order; what stands outside of blocks (prose, code fences) is ignored.

    A search is whole lines, compared exactly; where a document ends with a newline, its last line is an empty one.
    Where the search occurs more than once, ``first`` takes the first place, as Aider does, and ``unique`` refuses. A
    search without lines puts its text into an empty document.

    Raises:
        FormatError: ``no_block`` (text, but no block in it), ``unopened_block`` (an end without a beginning),
            ``unclosed_block`` (the text ends within a block), ``empty_anchor`` (a search without lines in a document
            that is not empty), ``anchor_missing``, ``anchor_ambiguous`` (under ``unique``).
        ValueError: an unknown rule.
    """
    if rule not in ("first", "unique"):
        raise ValueError(f"rule={rule!r}: choose 'first' or 'unique'")
    framed = _framed(split_lines(document))
    for number, (search, replace) in enumerate(_parse_blocks(text)):
        if not search and framed != _EMPTY:
            raise FormatError("empty_anchor", "a search without lines in a document that is not empty", number)
        anchor = _framed(search)
        at = framed.find(anchor)
        if at < 0:
            raise FormatError("anchor_missing", f"{_excerpt(anchor[1:-1])} is not in the document", number)
        if search and rule == "unique" and framed.find(anchor, at + 1) >= 0:
            raise FormatError("anchor_ambiguous", f"{_excerpt(anchor[1:-1])} is in the document more than once", number)
        framed = framed[:at] + _framed(replace) + framed[at + len(anchor) :]
        if framed == _framed([]):  # every line is gone; what is left is the empty document, which has one
            framed = _EMPTY
    return framed[1:-1]


def write_search_replace(before: str, after: str) -> str:
    """Return blocks that turn ``before`` into ``after`` under either rule; no final newline.

    One block for each run of changed lines, with no more context than makes it unique in the document it meets.

    Raises:
        FormatError: ``inexpressible`` (a line that reads as a delimiter would have to stand in a block).
    """
    a, b = split_lines(before), split_lines(after)
    blocks = [([], b[:-1])] if not before and after.endswith("\n") else _blocks(a, b)
    text = "\n".join(row for search, replace in blocks for row in (SEARCH, *search, DIVIDER, *replace, REPLACE))
    # A unique anchor is the first one too, so this holds for both rules.
    return _checked(text, after, lambda: apply_search_replace(text, before, "unique"))


def _framed(lines: list[str]) -> str:
    """Text with a newline on either side of every line: whole lines are found in it as a substring."""
    return "\n" + "".join(line + "\n" for line in lines)


_EMPTY = _framed([""])


def _mark(line: str) -> str:
    return line.rstrip(" \t\r")


def _parse_blocks(text: str) -> list[tuple[list[str], list[str]]]:
    """Return (search, replace) of every block. Within one, only the delimiter that is due counts, as in Aider."""
    blocks: list[tuple[list[str], list[str]]] = []
    search: list[str] | None = None
    replace: list[str] | None = None
    for line in split_lines(text):
        if search is None:
            if _mark(line) == SEARCH:
                search = []
            elif _mark(line) == REPLACE:
                raise FormatError("unopened_block", f"{REPLACE} without {SEARCH} before it", len(blocks))
        elif replace is None:
            if _mark(line) == DIVIDER:
                replace = []
            else:
                search.append(line)
        elif _mark(line) == REPLACE:
            blocks.append((search, replace))
            search = replace = None
        else:
            replace.append(line)
    if search is not None:
        due = DIVIDER if replace is None else REPLACE
        raise FormatError("unclosed_block", f"the text ends without {due}", len(blocks))
    if not blocks and text.strip():
        raise FormatError("no_block", f"the text has no {SEARCH}")
    return blocks


def _blocks(a: list[str], b: list[str]) -> Iterator[tuple[list[str], list[str]]]:
    """Yield (search, replace) of every change, each for the document in which the changes above it are made."""
    # Context stands on both sides of the divider, so it reaches no further than the next line that reads as one.
    tops = [0, *(i + 1 for i, line in enumerate(b) if _mark(line) in (DIVIDER, REPLACE))]
    ends = [*(i for i, line in enumerate(a) if _mark(line) in (DIVIDER, REPLACE)), len(a)]
    for change in _changes(a, b):
        most_above = change.j1 - tops[bisect_right(tops, change.j1) - 1]
        most_below = ends[bisect_left(ends, change.i2)] - change.i2
        above, below = _least_context(a, b, change, most_above, most_below)
        context_above, context_below = b[change.j1 - above : change.j1], a[change.i2 : change.i2 + below]
        yield (
            context_above + a[change.i1 : change.i2] + context_below,
            context_above + b[change.j1 : change.j2] + context_below,
        )


def _least_context(a: list[str], b: list[str], change: _Change, most_above: int, most_below: int) -> tuple[int, int]:
    """Return how many lines above and below make the changed ones unique, no line of them to spare.

    Where even the most is not enough, it is what is returned.
    """
    document = _framed(b[: change.j1] + a[change.i1 :])

    def unique(above: int, below: int) -> bool:
        search = b[change.j1 - above : change.j1] + a[change.i1 : change.i2 + below]
        anchor = _framed(search)
        return bool(search) and document.find(anchor, document.find(anchor) + 1) < 0

    # What contains a unique anchor is unique, so each number can be searched for by bisection.
    both = _least(max(most_above, most_below), lambda n: unique(min(n, most_above), min(n, most_below)))
    above = min(both, most_above)
    below = _least(min(both, most_below), lambda n: unique(above, n))
    return _least(above, lambda n: unique(n, below)), below


def _least(most: int, works: Callable[[int], bool]) -> int:
    """Return the least number up to ``most`` that works, of a predicate that keeps working; ``most`` if none does."""
    high = 1  # nearly always the number is small, so close in from below
    while high < most and not works(high):
        high *= 2
    return bisect_left(range(min(high, most)), True, key=works)


# ---------------------------------------------------------------------------------------------------------------------
# Unified diffs

_CONTEXT = 3
_FILE_LINE = re.compile(r"[^\n]*\n|[^\n]+")
# No document has 10^18 lines; longer digit strings would only reach Python's limit for int().
_HUNK = re.compile(r"@@ -([0-9]{1,18})(?:,([0-9]{1,18}))? \+[0-9]{1,18}(?:,([0-9]{1,18}))? @@", re.ASCII)


class _Hunk(NamedTuple):
    """Lines ``old`` of the file, after ``skipped`` lines, give way to ``new``; every line has its newline, or none."""

    skipped: int
    old: list[str]
    new: list[str]


def apply_unified_diff(text: str, document: str) -> str:
    """Apply the hunks of ``text``; what stands outside of hunks (file headers, prose, code fences) is ignored.

    Strict: a hunk goes where the first number of its ``@@`` line says, its counts must hold, and every kept or removed
    line must be the document's. Where a hunk lands in the new file follows from that, so the second position is not
    read. A blank row within a hunk is an empty context line, as for ``git apply``.

    Raises:
        FormatError: ``no_hunk`` (text, but no hunk in it), ``bad_hunk`` (an ``@@`` line without numbers, counts that do
            not hold, a hunk before the one above it, a second file, a line without newline that is not the last),
            ``out_of_range`` (lines that the document does not have), ``context_mismatch`` (lines that differ).
    """
    lines = _FILE_LINE.findall(document)
    result: list[str] = []
    done = 0
    for number, (skipped, old, new) in enumerate(_parse_hunks(text)):
        if skipped < done:
            message = f"it begins at line {skipped + 1}, where the first it may change is {done + 1}"
            raise FormatError("bad_hunk", message, number)
        if skipped + len(old) > len(lines):
            asked = f"lines {skipped + 1}-{skipped + len(old)}" if old else f"the place after line {skipped}"
            raise FormatError("out_of_range", f"{asked} of a document with {len(lines)} lines", number)
        for at, wanted in enumerate(old, start=skipped):
            if lines[at] != wanted:
                message = f"line {at + 1} is {_excerpt(lines[at])}, not {_excerpt(wanted)}"
                raise FormatError("context_mismatch", message, number)
        result += lines[done:skipped] + new
        done = skipped + len(old)
    result += lines[done:]
    if not all(line.endswith("\n") for line in result[:-1]):
        raise FormatError("bad_hunk", f"{NO_NEWLINE!r} after a line that is not the last")
    return "".join(result)


def write_unified_diff(before: str, after: str) -> str:
    """Return the unified diff of two texts as a patch for the file ``document``, or "" where they are equal."""
    a, b = _FILE_LINE.findall(before), _FILE_LINE.findall(after)
    hunks: list[list[_Change]] = []
    for change in _changes(a, b):
        if hunks and change.i1 - hunks[-1][-1].i2 <= 2 * _CONTEXT:
            hunks[-1].append(change)
        else:
            hunks.append([change])
    text = DIFF_HEADER * bool(hunks) + "".join(_render_hunk(a, b, changes) for changes in hunks)
    return _checked(text, after, lambda: apply_unified_diff(text, before))


def _render_hunk(a: list[str], b: list[str], changes: list[_Change]) -> str:
    start, stop = max(changes[0].i1 - _CONTEXT, 0), min(changes[-1].i2 + _CONTEXT, len(a))
    rows: list[str] = []
    at = start
    for i1, i2, j1, j2 in changes:
        for sign, lines in ((" ", a[at:i1]), ("-", a[i1:i2]), ("+", b[j1:j2])):
            rows += [sign + line for line in lines]
        at = i2
    rows += [" " + line for line in a[at:stop]]
    shift = changes[0].j1 - changes[0].i1
    grown = sum((j2 - j1) - (i2 - i1) for i1, i2, j1, j2 in changes)
    head = f"@@ -{_span(start, stop - start)} +{_span(start + shift, stop - start + grown)} @@\n"
    return head + "".join(row if row.endswith("\n") else f"{row}\n{NO_NEWLINE}\n" for row in rows)


def _span(skipped: int, count: int) -> str:
    """The range of ``count`` lines after ``skipped`` lines: an empty one is named by the line before it."""
    if count == 1:
        return str(skipped + 1)
    return f"{skipped + 1 if count else skipped},{count}"


def _parse_hunks(text: str) -> list[_Hunk]:
    rows = text.removesuffix("\n").split("\n")
    hunks: list[_Hunk] = []
    at, in_diff = 0, False
    while at < len(rows):
        row = rows[at]
        if row.startswith("@@"):
            hunk, at = _parse_hunk(rows, at, len(hunks))
            hunks.append(hunk)
            in_diff = True
            continue
        header = row.startswith("+++ ")
        if header and hunks or in_diff and row.startswith((" ", "+", "-")):
            # To ignore it would be to lose a part of the edit.
            message = f"{_excerpt(row)} belongs to no hunk: a wrong count in an @@ line, or a second file"
            raise FormatError("bad_hunk", message, max(len(hunks) - 1, 0))
        in_diff = header or in_diff and not row
        at += 1
    if not hunks and text.strip():
        raise FormatError("no_hunk", "the text has no line that begins with @@")
    return hunks


def _parse_hunk(rows: list[str], at: int, number: int) -> tuple[_Hunk, int]:
    """Parse the hunk whose ``@@`` line is ``rows[at]``; return it and the row after it."""
    match = _HUNK.match(rows[at])
    if not match:
        raise FormatError("bad_hunk", f"{_excerpt(rows[at])} is not '@@ -first,count +first,count @@'", number)
    first, old_count, new_count = (1 if digits is None else int(digits) for digits in match.groups())
    old: list[str] = []
    new: list[str] = []
    at += 1
    while len(old) < old_count or len(new) < new_count:
        if at == len(rows):
            raise FormatError("bad_hunk", "the text ends before the hunk has the lines its @@ line counts", number)
        sign, line = rows[at][:1] or " ", rows[at][1:] + "\n"
        if sign not in " -+":
            raise FormatError("bad_hunk", f"{_excerpt(rows[at])} begins with none of blank, - and +", number)
        at += 1
        if at < len(rows) and rows[at].startswith("\\ "):
            line = line[:-1]
            at += 1
        if sign != "+":
            old.append(line)
        if sign != "-":
            new.append(line)
    if (len(old), len(new)) != (old_count, new_count):
        raise FormatError("bad_hunk", "its lines are not those that its @@ line counts", number)
    return _Hunk(first - 1 if old_count else first, old, new), at


# ---------------------------------------------------------------------------------------------------------------------
# What they share


class _Change(NamedTuple):
    """Lines ``i1:i2`` of one text give way to lines ``j1:j2`` of the other."""

    i1: int
    i2: int
    j1: int
    j2: int


def _changes(a: list[str], b: list[str]) -> list[_Change]:
    """Return the differing runs of two lists of lines, in order."""
    # difflib is quadratic in repeated lines; most edits change little between a long common start and end.
    start = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    rest = min(len(a), len(b)) - start
    end = next((i for i in range(rest) if a[-1 - i] != b[-1 - i]), rest)
    matcher = SequenceMatcher(None, a[start : len(a) - end], b[start : len(b) - end], autojunk=False)
    return [
        _Change(*(start + at for at in (i1, i2, j1, j2)))
        for tag, i1, i2, j1, j2 in matcher.get_opcodes()
        if tag != "equal"
    ]


def _checked(text: str, after: str, apply: Callable[[], str]) -> str:
    """Return ``text`` if applying it gives ``after``."""
    try:
        if apply() == after:
            return text
    except FormatError as error:
        raise FormatError("inexpressible", f"the edit cannot be written in this format ({error})") from None
    raise FormatError("inexpressible", "the edit cannot be written in this format")


def _excerpt(text: str) -> str:
    return repr(text[:60] + ("..." if len(text) > 60 else ""))


class Format(NamedTuple):
    """``write(before, after)`` gives the text of an edit, ``apply(text, document)`` the edited document."""

    write: Callable[[str, str], str]
    apply: Callable[[str, str], str]


FORMATS = {
    "search_replace": Format(write_search_replace, apply_search_replace),
    "unified_diff": Format(write_unified_diff, apply_unified_diff),
    "full": Format(write=lambda before, after: after, apply=lambda text, document: text),
}
