"""Instructions for edits that have none, from the edit itself: what to rename, insert, delete, move or replace, where.

A short edit gets an instruction that determines it: new text is quoted in full, and every place is named by a quote
that points at one line. A long edit gets its steps with the new text cut short (``exact`` is False then). Any language
and prose alike: nothing but lines and words is looked at.

How to read one. A quote is between double quotes, or between backticks where the text has a double quote (between more
backticks and blanks where it has both). Quoted lines leave out indentation: a new line takes that of the line it
replaces or stands beside, and none beside a blank line or an edge of the document. A block between lines of backticks
is verbatim. All steps refer to the document as it is before the edit; its line ends (LF or CRLF) hold for new lines.
Trailing whitespace is spaces and tabs before a line end of either kind.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import dataclass
from itertools import takewhile

from data_prep.oracle import LineMatcher

_QUOTE = 120  # characters: a longer line is named by its beginning
_NEW_TEXT = 1500  # characters of new text in one instruction: beyond, blocks are cut to their first line
_STEPS = 8  # beyond, the last step says how much more there is
_HEAD = 60  # characters of a line that was cut
_TOKEN = re.compile(r"\w+|\s+|[^\w\s]")
_IDENTIFIER = re.compile(r"[^\W\d]\w*")
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")


@dataclass(frozen=True, slots=True)
class Instruction:
    """``kind`` is the sort of edit; ``exact`` says that text and document together determine the edited document.

    Kinds: none, write (into an empty document), clear, line_ends, final_newline, trailing_whitespace, tabs, indent,
    whitespace, rename, replace_all, move, insert, delete, replace, several.
    """

    text: str
    kind: str
    exact: bool


def describe(before: str, after: str, seed: str) -> str:
    """Return the text of ``synthesize``."""
    return synthesize(before, after, seed).text


def synthesize(before: str, after: str, seed: str) -> Instruction:
    """Return an instruction for the edit, for every pair of strings; ``seed`` (an id, say) chooses among phrasings.

    The same arguments give the same text in every process.
    """
    rng = random.Random(
        f"instruction:{seed}".encode("utf-8", "surrogatepass")
    )  # the file name in an id need not be text
    if before == after:
        return Instruction(rng.choice(("Leave the document as it is.", "Change nothing.")), "none", True)
    if not after:
        return Instruction(rng.choice(("Delete everything.", "Empty the document.")), "clear", True)
    old_ends, new_ends = _line_ends(before), _line_ends(after)
    same_ends = old_ends == new_ends or "\n" not in after
    if "mixed" not in (old_ends, new_ends):
        before, after = before.replace("\r\n", "\n"), after.replace("\r\n", "\n")
    elif before.replace("\r\n", "\n") == after:  # nothing else changes
        before = after
    steps = _Steps(before, after, rng)
    if new_ends == "mixed" != old_ends:
        steps.exact = False
    elif not same_ends and new_ends != "mixed":
        steps.ends(new_ends)
        if "\r" in (before[-1:], after[-1:]):  # which the conversion would take for half a line end
            steps.exact = False
    return steps.instruction()


def _line_ends(text: str) -> str:
    crlf = text.count("\r\n")
    return "LF" if not crlf else "CRLF" if crlf == text.count("\n") else "mixed"


def _lines(text: str) -> list[str]:
    """The lines without the newline that ends the last one; none of an empty text."""
    return text.removesuffix("\n").split("\n") if text else []


class _Steps:
    """The sentences of one instruction as they are found, and whether any of them was cut short."""

    def __init__(self, before: str, after: str, rng: random.Random) -> None:
        self.rng = rng
        self.old, self.new = _lines(before), _lines(after)
        self.places = _Places(self.old)
        self.kinds: list[str] = []
        self.sentences: list[str] = []
        self.exact = True
        self.brief = False
        if self.old != self.new:
            self._whole(before, after) or self._hunks()
        if not before and not after.endswith("\n"):
            self._say("final_newline", "Put no newline at the end.")
        elif before and before.endswith("\n") != after.endswith("\n"):
            if after.endswith("\n"):
                self._say("final_newline", "End the document with a newline.", "Add the missing final newline.")
            else:
                self._say(
                    "final_newline", "Remove the newline at the end of the document.", "Remove the final newline."
                )

    def ends(self, ends: str) -> None:
        self._say("line_ends", f"Convert the line ends to {ends}.", f"Use {ends} line ends throughout.")

    def instruction(self) -> Instruction:
        if len(self.sentences) == 1:
            return Instruction(self.sentences[0], self.kinds[0], self.exact)
        start = self.rng.choice(("Make these changes:", "Apply these edits:", "Edit the document as follows:"))
        numbered = [f"{number}. {sentence}" for number, sentence in enumerate(self.sentences, start=1)]
        return Instruction("\n".join([start, *numbered]), "several", self.exact)

    def _say(self, kind: str, *phrasings: str) -> bool:
        self.kinds.append(kind)
        self.sentences.append(self.rng.choice(phrasings))
        return True

    # --- edits that are one thing throughout

    def _whole(self, before: str, after: str) -> bool:
        """Say it in one sentence, if that can be; True if so."""
        old, new = self.old, self.new
        if not old:
            return False
        if new == [_trimmed(line) for line in old]:
            return self._say("trailing_whitespace", "Remove trailing whitespace.", "Strip whitespace at line ends.")
        for width in (2, 4, 8):
            if new == [_spaces_for_tabs(line, width) for line in old]:
                tail = f"{width} spaces for each tab"
                return self._say("tabs", f"Indent with {tail}.", f"Replace tabs in the indentation: {tail}.")
        if len(old) != len(new):
            return False
        changed = [i for i, line in enumerate(old) if line != new[i]]
        return self._everywhere(before, after, changed[0]) or self._reindented(changed[0], changed[-1] + 1)

    def _everywhere(self, before: str, after: str, first: int) -> bool:
        """A rename, or one text for another wherever it stands; ``first`` is the first line that differs."""
        old, new = _TOKEN.findall(self.old[first]), _TOKEN.findall(self.new[first])
        at = _common(old, new)
        if at < min(len(old), len(new)) and _IDENTIFIER.fullmatch(old[at]) and _IDENTIFIER.fullmatch(new[at]):
            name, other = old[at], new[at]
            renamed, count = re.subn(rf"(?<!\w){re.escape(name)}(?!\w)", lambda _: other, before)
            if count > 1 and renamed == after and len(name) + len(other) <= _QUOTE:
                a, b = _quote(name), _quote(other)
                return self._say(
                    "rename", f"Rename {a} to {b} throughout.", f"Rename {a} to {b}.", f"Rename every {a} to {b}."
                )
        change = _change(self.old[first], self.new[first])
        if change and before.count(change[0]) > 1 and before.replace(*change) == after:
            a, b = map(_quote, change)
            if not change[1]:
                return self._say("replace_all", f"Remove every {a}.", f"Delete {a} everywhere.")
            return self._say("replace_all", f"Replace every {a} with {b}.", f"Change {a} to {b} everywhere.")
        return False

    def _reindented(self, start: int, stop: int) -> bool:
        pairs = [(a, b) for a, b in zip(self.old[start:stop], self.new[start:stop], strict=True) if a or b]
        more = len(pairs[0][0]) < len(pairs[0][1])
        if not more:
            pairs = [(b, a) for a, b in pairs]
        by = pairs[0][1].removesuffix(pairs[0][0])
        unit = {" ": "space", "\t": "tab"}.get(by[:1])
        if not unit or by != by[0] * len(by) or any(a.strip() == "" or b != by + a for a, b in pairs):
            return False
        what, much = self._range(start, stop), _number(len(by), unit)
        if more:
            return self._say("indent", f"Indent {what} by {much}.", f"Move {what} to the right by {much}.")
        return self._say("indent", f"Unindent {what} by {much}.", f"Move {what} to the left by {much}.")

    # --- edits hunk by hunk

    def _hunks(self) -> None:
        hunks = [hunk for hunk in LineMatcher(self.old, self.new).get_opcodes() if hunk[0] != "equal"]
        if self._moved(hunks):
            return
        new_text = sum(len(line) + 1 for _, _, _, start, stop in hunks for line in self.new[start:stop])
        self.brief = len(hunks) > _STEPS or new_text > _NEW_TEXT
        if self.brief and "".join("".join(self.old).split()) == "".join("".join(self.new).split()):
            self.exact = False
            self._say(
                "whitespace",
                "Reformat the document: change only spaces, indentation and line breaks.",
                "Lay the document out anew, changing nothing but whitespace.",
            )
            return
        shown = hunks if len(hunks) <= _STEPS else hunks[: _STEPS - 1]
        for tag, i, j, start, stop in shown:
            new = self.new[start:stop]
            if tag == "delete":
                what = self._range(i, j)
                self._say("delete", f"Delete {what}.", f"Remove {what}.")
            elif tag == "insert":
                self._insert(i, new)
            else:
                self._replace(i, j, new)
        if len(hunks) > len(shown):
            self.exact = False
            rest = hunks[len(shown) :]
            removed, added = sum(j - i for _, i, j, _, _ in rest), sum(stop - start for *_, start, stop in rest)
            self._say(
                "more",
                f"Make {len(rest)} more changes further down: {_number(removed, 'line')} out, "
                f"{_number(added, 'line')} in.",
            )

    def _moved(self, hunks: list[tuple[str, int, int, int, int]]) -> bool:
        if sorted(hunk[0] for hunk in hunks) != ["delete", "insert"]:
            return False
        _, i, j, _, _ = next(hunk for hunk in hunks if hunk[0] == "delete")
        _, at, _, start, stop = next(hunk for hunk in hunks if hunk[0] == "insert")
        if self.old[i:j] != self.new[start:stop] or not any(self.places.stripped[i:j]):
            return False
        what, (place, _) = self._range(i, j), self._beside(at)
        to = "to " + (place.removeprefix("at ") if place.startswith("at ") else f"right {place}")
        return self._say("move", f"Move {what} {to}.")

    def _insert(self, at: int, new: list[str]) -> None:
        if not self.old:
            what, block = self._text(new, "")
            self._say("write", f"Write {what}{block}", f"The document is empty. Write {what}{block}")
            return
        place, indent = self._beside(at)
        what, block = self._text(new, indent)
        before_comma = place[0].upper() + place[1:]
        verb = self.rng.choice(("Insert", "Add"))
        self._say("insert", f"{verb} {what} {place}{block}", f"{before_comma}, {verb.lower()} {what}{block}")

    def _replace(self, i: int, j: int, new: list[str]) -> None:
        if self._line_tails(i, j, new):
            return
        old = self.old[i]
        if j - i == len(new) == 1 and (change := _change(old, new[0])):
            a, b = map(_quote, change)
            where = self.places.name(i)
            if not change[1]:
                self._say("replace", f"In {where}, remove {a}.", f"Remove {a} from {where}.")
            else:
                phrasings = [f"In {where}, change {a} to {b}.", f"Change {a} to {b} in {where}."]
                if len(change[0]) > 2 and sum(line.count(change[0]) for line in self.old) == 1:
                    phrasings.append(f"Change {a} to {b}.")
                self._say("replace", *phrasings)
            return
        what, block = self._text(new, _indent(old))
        target = self._range(i, j)
        self._say("replace", f"Replace {target} with {what}{block}", f"Change {target} to {what}{block}")

    def _line_tails(self, i: int, j: int, new: list[str]) -> bool:
        """Say it of lines that change in the whitespace at their ends alone, which no quote shows; True if so."""
        old = self.old[i:j]
        bare = [line.rstrip() for line in new]
        if [line.rstrip() for line in old] != bare:
            return False
        where = self._range(i, j)
        if new == [_trimmed(line) for line in old]:
            return self._say(
                "trailing_whitespace",
                f"Remove the trailing whitespace of {where}.",
                f"Strip the whitespace at the end of {where}.",
            )
        if new == bare or any(line.endswith("\r") for line in old + new):  # nothing that a block would show
            self.exact = False
            return self._say("whitespace", f"Change nothing but the whitespace at the end of {where}.")
        what, block = self._text(new, "")
        return self._say("whitespace", f"Change the whitespace at the end of {where}, to get {what}{block}")

    def _beside(self, at: int) -> tuple[str, str]:
        """A phrase for the place before line ``at``, and the indentation that a quoted line takes there."""
        count = self.places.count
        stripped = self.places.stripped
        sides = [(side, i) for side, i in (("after", at - 1), ("before", at)) if 0 <= i < len(stripped)]
        sides = [(side, i) for side, i in sides if stripped[i]] or sides[:1]
        sides = [(side, i) for side, i in sides if count[stripped[i]] == 1] or sides
        edges = ["start"] * (at == 0) + ["end"] * (at == len(stripped))
        choice = self.rng.choice([*sides, *edges])
        if isinstance(choice, str):
            return f"at the {choice} of the document", ""
        side, i = choice
        return f"{side} {self.places.name(i)}", _indent(self.old[i])

    def _range(self, start: int, stop: int) -> str:
        first = self.places.name(start)
        more = stop - start - 1
        if not more:
            return first
        counted = f"{first} and the {'line' if more == 1 else f'{more} lines'} after it"
        return self.rng.choice((counted, f"everything from {first} through {self.places.name(stop - 1)}"))

    def _text(self, new: list[str], indent: str) -> tuple[str, str]:
        """New lines as (what they are, how the sentence ends): a quote, a number of blank lines, or a block."""
        if not any(new):
            return ("a blank line" if len(new) == 1 else f"{len(new)} blank lines"), "."
        if len(new) == 1 and new[0] == indent + new[0].strip() and len(new[0]) <= 2 * _QUOTE:
            return f"the line {_quote(new[0].strip())}", "."
        if self.brief:
            self.exact = False
            head = next(filter(None, map(str.strip, new)), "")[:_HEAD].rstrip()
            return f"{_number(len(new), 'line')}, beginning with {_quote(head)}", "."
        if any(line.endswith("\r") for line in new):  # of a document with both kinds of line ends
            self.exact = False
            new = [line.removesuffix("\r") for line in new]
        fence = "```"
        while any(line.strip().startswith(fence) for line in new):
            fence += "`"
        return ("this line" if len(new) == 1 else "these lines"), "\n".join([":", fence, *new, fence])


class _Places:
    """The lines of a document, and phrases that name one of them."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.stripped = [line.strip() for line in lines]
        self.count = Counter(self.stripped)

    def name(self, i: int) -> str:
        """A phrase that is true of line ``i`` (0-based) alone."""
        text = self.stripped[i]
        if not text:
            return self._blank(i)
        if len(text) <= _QUOTE:
            phrase = f"line {_quote(text)}"
            same = [i] if self.count[text] == 1 else [j for j, line in enumerate(self.stripped) if line == text]
        else:
            head = text[:_QUOTE].rstrip()
            phrase = f"line that starts with {_quote(head)}"
            same = [j for j, line in enumerate(self.stripped) if line.startswith(head)]
        if len(same) == 1:
            return f"the {phrase}"
        rank = same.index(i)
        landmark = self._landmark(same[rank - 1] if rank else -1, i)
        if landmark is not None:
            return f"the first {phrase} after the line {_quote(self.stripped[landmark])}"
        return f"the {_ordinal(rank)} {phrase}"

    def _blank(self, i: int) -> str:
        before = len(list(takewhile(lambda j: not self.stripped[j], range(i - 1, -1, -1))))
        phrase = f"the {_ordinal(before)} blank line"
        return f"{phrase} after {self.name(i - before - 1)}" if before < i else phrase

    def _landmark(self, after: int, i: int) -> int | None:
        """The nearest line between the two that occurs once: if possible one that line ``i`` is indented under."""
        once = [
            j
            for j in range(i - 1, after, -1)
            if self.count[self.stripped[j]] == 1
            and len(self.stripped[j]) <= _QUOTE
            and re.search(r"\w\w", self.stripped[j])
        ]
        depth = len(_indent(self.lines[i]))
        return next((j for j in once if len(_indent(self.lines[j])) < depth), once[0] if once else None)


def _change(old: str, new: str) -> tuple[str, str] | None:
    """The text in a line that gives way to another, at word boundaries; None if it is most of the line.

    The old text stands once in the line, and neither text starts or ends with whitespace where that can be.
    """
    a, b = _TOKEN.findall(old), _TOKEN.findall(new)
    start = _common(a, b)
    end = min(_common(a[::-1], b[::-1]), len(a) - start, len(b) - start)
    kept_start, kept_end = start, end
    while True:
        x, y = "".join(a[start : len(a) - end]), "".join(b[start : len(b) - end])
        if len(x) > _QUOTE or len(y) > _QUOTE:
            return None
        tight = x.strip() == x != "" and y.strip() == y
        if tight and old.count(x) == 1:
            break
        if start and (not x or x[0].isspace() or y[:1].isspace() or not end):
            start -= 1
        elif end:
            end -= 1
        else:
            return None
    kept = sum(len(token) for token in a[:kept_start]) + sum(len(token) for token in a[len(a) - kept_end :])
    if 2 * kept < len(old.strip()) or "\r" in x + y or x == old.strip():
        return None
    return x, y


def _common(a: list[str], b: list[str]) -> int:
    """How many items two lists have in common at their start."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def _quote(text: str) -> str:
    if '"' not in text:
        return f'"{text}"'
    if "`" not in text:
        return f"`{text}`"
    fence = "`" * (max(map(len, re.findall("`+", text))) + 1)
    return f"{fence} {text} {fence}"


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())] if line.strip() else ""


def _trimmed(line: str) -> str:
    """The line without blanks at its end; a carriage return there is half of its line end and stays."""
    return line.removesuffix("\r").rstrip(" \t") + "\r" * line.endswith("\r")


def _spaces_for_tabs(line: str, width: int) -> str:
    rest = line.lstrip("\t")
    return " " * width * (len(line) - len(rest)) + rest


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def _ordinal(index: int) -> str:
    """The word for a 0-based index: 0 is the first."""
    if index < len(_ORDINALS):
        return _ORDINALS[index]
    number = index + 1
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
