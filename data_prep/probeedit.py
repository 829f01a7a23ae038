"""ProbeEdit: controlled edits to prose documents with gold by construction, as many as asked for.

The corpus of the Copy-as-Decode paper (arXiv 2604.18170 v1, sections 3 and 4.2; withdrawn, its data is not public) has
154 multi-paragraph edits of four source documents: meeting notes, a technical design, a scientific abstract and an API
spec. This module rebuilds it from that description. The texts are ours, so the figures are near the paper's, not equal
to them. Default config, seed 0, Qwen2.5 tokens, copied spans encoded jointly:

    figure                                   paper       here
    replace, insert, delete, compound        72 29 27 26 72 29 27 26
    gold tokens: mean, median, p95           657 500 1089 654 529 1039
    share of gold tokens in copied lines     97.8 %      98.1 %
    copy spans                               321         333 (17 of them the empty line after the final newline)
    tokens in a copy span: mean, p50, p95    308 266 543 297 257 761

With ``min_lines`` and ``max_lines`` every case gets a document of its own, put together from the same text: other
blocks, lines, names, dates and figures. Short ones train a small model; long ones show how cost grows with length.
The fixed documents have 48 (abstract), 72, 129 and 156 different deletions, which ends them at some 1,100 cases. Varied
ones do not run out: 100,000 cases of the smallest size, four lines, drew a document again 10,019 times. A core made
3,360 of these a second, and 9 a second of 2,000 lines.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from data_prep.pairs import EditPair
from data_prep.probeedit_documents import SOURCES, VALUES

KINDS = {"replace": 72, "insert": 29, "delete": 27, "compound": 26}  # the paper's counts (Table 15), our proportions
MIN_LINES = 4  # a title, a blank line, a heading and one line: the smallest document with a section

_TRIES = 500  # draws for one case before the fixed documents count as exhausted; about three are usual
_SLOT = re.compile(r"\{(\w+):([^}]*)\}")
_MOST_SECTION_LINES = 8  # of a drawn document: blank line, heading and six lines, so that every block keeps a spare
_VARIED = "varied documents with min_lines and max_lines"
_COUNT_WORDS = {1: "line", 2: "two lines"}


@dataclass
class ProbeEditConfig:
    """What to generate. The defaults give the paper's corpus: 154 edits of four fixed documents."""

    cases: int = 154  # number of edits; the kinds keep the proportions 72:29:27:26 by largest remainder
    min_lines: int = 0  # fewest lines of a document before its edit, 4 or more (0 with max_lines=0: paper documents)
    max_lines: int = 0  # most lines of a document before its edit, blank lines counted (0 with min_lines=0: as above)


def generate(config: ProbeEditConfig, seed: int) -> list[EditPair]:
    """Return the edits of ``stream`` as a list."""
    return list(stream(config, seed))


def stream(config: ProbeEditConfig, seed: int) -> Iterator[EditPair]:
    """Yield ``config.cases`` edits, of which only digests are remembered; the same config and seed give the same bytes.

    Documents end with a final newline, which does not count as a line. Every text that an instruction quotes to locate
    an edit occurs in exactly one line of the document, so the instruction alone determines the gold. No two cases share
    (before, after); with line limits no two share ``before``. Each case is its own group, as the paper splits by case.

    Raises ValueError if the config is out of range, or asks for more distinct edits than there are.
    """
    _check(config)
    fixed = {genre: _fixed_document(genre) for genre in SOURCES} if config.max_lines == 0 else None
    kinds = _kinds(config.cases)
    random.Random(f"probeedit:{seed}:kinds").shuffle(kinds)
    genres = list(SOURCES)
    if fixed:
        _check_deletions(
            config.cases, Counter(genres[i % len(genres)] for i, kind in enumerate(kinds) if kind == "delete")
        )
    seen: set[bytes] = set()
    for i, kind in enumerate(kinds):
        rng = random.Random(f"probeedit:{seed}:{i}")
        genre = genres[i % len(genres)]
        for _ in range(_TRIES):
            document = fixed[genre] if fixed else _draw_document(genre, rng, config.min_lines, config.max_lines)
            drawn = _draw_edit(kind, document, rng)
            if drawn is None:
                continue
            instruction, edits = drawn
            lines = [line.text for line in document]
            before, after = _text(lines), _text(_apply(lines, edits))
            key = hashlib.sha256((after if fixed else before).encode()).digest()
            if key not in seen:
                break
        else:
            raise ValueError(
                f"cases={config.cases}: no further distinct {kind} edit of the {genre} found after {i} cases; "
                + ("ask for fewer cases, or for " + _VARIED if fixed else "ask for fewer cases, or raise max_lines")
            )
        seen.add(key)
        name = f"probeedit/{i:04d}"
        meta = {"kind": kind, "genre": genre}
        yield EditPair(name, "probeedit", instruction, before, after, group=name, meta=meta)


def _check(config: ProbeEditConfig) -> None:
    if config.cases < 1:
        raise ValueError(f"cases={config.cases}: must be 1 or more")
    if config.min_lines == 0 and config.max_lines == 0:
        return
    if config.min_lines < MIN_LINES:
        raise ValueError(
            f"min_lines={config.min_lines}: must be {MIN_LINES} or more "
            f"(or 0 together with max_lines=0, which asks for the four paper-size documents)"
        )
    if config.max_lines < config.min_lines:
        raise ValueError(f"max_lines={config.max_lines}: must be at least min_lines={config.min_lines}")


def _check_deletions(cases: int, wanted: Counter[str]) -> None:
    """Deletions are the edits that a fixed document runs out of first, and they can be counted beforehand."""
    for genre, count in wanted.items():
        found = _deletions(_fixed_document(genre))
        if count > found:
            raise ValueError(
                f"cases={cases}: no further distinct delete edit of the {genre} after {found} of them, and {count} are "
                f"asked for; ask for fewer cases, or for {_VARIED}"
            )


def _deletions(document: list[_Line]) -> int:
    """How many different documents the deletion of one to three adjacent lines of a section can leave."""
    texts = [line.text for line in document]
    kept = [bool(line.text) and not line.heading for line in document]
    starts = range(len(document))
    runs = [(i, i + n) for n in (1, 2, 3) for i in starts if len(kept[i : i + n]) == n and all(kept[i : i + n])]
    return len({tuple(texts[:i] + texts[j:]) for i, j in runs})


def _kinds(cases: int) -> list[str]:
    """The kind of each case, grouped by kind; largest remainder, ties to the earlier kind."""
    total = sum(KINDS.values())
    counts = {kind: cases * weight // total for kind, weight in KINDS.items()}
    by_remainder = sorted(KINDS, key=lambda kind: -(cases * KINDS[kind] % total))
    for kind in by_remainder[: cases - sum(counts.values())]:
        counts[kind] += 1
    return [kind for kind, count in counts.items() for _ in range(count)]


def _text(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


# --- documents -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Line:
    """A document line with what the edits need to know about it."""

    text: str
    slots: tuple[tuple[str, str], ...] = ()  # (kind, value) of each replaceable value in the text
    spares: tuple[str, ...] = ()  # templates of lines that are not in the document and would fit beside this one
    heading: bool = False


@cache
def _parts(template: str) -> list[str]:
    """Text and slots in turn: text, kind, value, text, kind, value, ..., text."""
    return _SLOT.split(template)


def _fill(template: str, rng: random.Random | None, chosen: dict[tuple[str, str], str]) -> _Line:
    """Put a value in every slot: the written one without ``rng``, else a drawn one, which ``chosen`` remembers."""
    parts = _parts(template)
    slots, text = [], [parts[0]]
    for slot, literal in zip(zip(parts[1::3], parts[2::3], strict=True), parts[3::3], strict=True):
        kind, written = slot
        if rng is not None and slot not in chosen:
            chosen[slot] = _other_value(kind, written, rng, set(chosen.values()))
        value = chosen.get(slot, written)
        if text == [""]:
            value = _capital(value)
        slots.append((kind, value))
        text += value, literal
    return _Line("".join(text), tuple(slots))


def _other_value(kind: str, old: str, rng: random.Random, taken: set[str]) -> str:
    """A value of the kind other than ``old``, and if possible not ``taken``."""
    if kind == "n":  # nine draws, so that one is free
        parts = _digits(old)
        drawn = ["".join([_number(len(x), rng) if i % 2 else x for i, x in enumerate(parts)]) for _ in range(9)]
        options = [value for value in drawn if value != old] or [old + "0"]
    else:
        options = _vocabulary(kind, old)
    return rng.choice([value for value in options if value not in taken] or options)


@cache
def _digits(value: str) -> list[str]:
    """Text and runs of digits in turn."""
    return re.split(r"(\d+)", value)


@cache
def _vocabulary(kind: str, old: str) -> list[str]:
    return [value for value in VALUES[kind] if value.lower() != old.lower()] or [old + "0"]


def _number(digits: int, rng: random.Random) -> str:
    return str(rng.randint(10 ** (digits - 1) if digits > 1 else 2, 10**digits - 1))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


@dataclass(frozen=True, slots=True)
class _Block:
    """A title or section of a source, as templates."""

    heading: str
    lines: tuple[str, ...]
    spares: tuple[str, ...]


def _blocks(source: str) -> list[_Block]:
    blocks = []
    for text in source.strip("\n").split("\n\n"):
        heading, *rest = text.split("\n")
        lines = tuple(line for line in rest if not line.startswith("+ "))
        blocks.append(_Block(heading, lines, tuple(line[2:] for line in rest if line.startswith("+ "))))
    return blocks


_BLOCKS = {genre: _blocks(source) for genre, source in SOURCES.items()}


def _fixed_document(genre: str) -> list[_Line]:
    """The source as written, without its spare lines."""
    document: list[_Line] = []
    for block in _BLOCKS[genre]:
        document += [_Line("")] if document else []
        for i, template in enumerate((block.heading, *block.lines)):
            line = _fill(template, None, {})
            document.append(_Line(line.text, line.slots, block.spares, heading=i == 0))
    return document


def _draw_document(genre: str, rng: random.Random, min_lines: int, max_lines: int) -> list[_Line]:
    """A document of n lines, n uniform in [min_lines, max_lines]: blocks in some order, each with some of its lines.

    When the blocks run out they come again with other values, and a heading that is already there is numbered.
    """
    size = rng.randint(min_lines, max_lines)
    title, *others = _BLOCKS[genre]
    chosen: dict[tuple[str, str], str] = {}
    headings: set[str] = set()
    document = _draw_section(title, rng.randint(0, min(2, size - MIN_LINES)), rng, chosen, headings)
    queue = rng.sample(others, len(others))
    while room := size - len(document):
        if not queue:
            queue, chosen = rng.sample(others, len(others)), {}
        if room <= _MOST_SECTION_LINES and (room < 6 or rng.random() < 0.5):
            take = room
        else:
            take = rng.randint(3, min(_MOST_SECTION_LINES, room - 3))  # what is left must hold another section
        document += [_Line(""), *_draw_section(queue.pop(), take - 2, rng, chosen, headings)]
    return document


def _draw_section(
    block: _Block, count: int, rng: random.Random, chosen: dict[tuple[str, str], str], headings: set[str]
) -> list[_Line]:
    """The block's heading and ``count`` of its lines and spares in source order; the rest are the spares."""
    pool = block.lines + block.spares
    kept = set(rng.sample(range(len(pool)), count))
    heading = _fill(block.heading, rng, chosen)
    part = 1
    while (text := heading.text if part == 1 else f"{heading.text}, part {part}") in headings:
        part += 1
    headings.add(text)
    spares = tuple(template for i, template in enumerate(pool) if i not in kept)
    lines = [_fill(template, rng, chosen) for i, template in enumerate(pool) if i in kept]
    return [_Line(text, heading.slots, spares, heading=True)] + [_Line(x.text, x.slots, spares) for x in lines]


# --- edits -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Edit:
    """``lines[start:stop]`` give way to ``new``; ``anchors`` are the texts by which the sentence says where."""

    start: int
    stop: int
    new: tuple[str, ...]
    sentence: str
    anchors: tuple[str, ...]


def _apply(lines: list[str], edits: list[_Edit]) -> list[str]:
    result = list(lines)
    for edit in sorted(edits, key=lambda edit: -edit.start):
        result[edit.start : edit.stop] = edit.new
    return result


def _unique(quote: str, lines: list[str]) -> bool:
    return sum(quote in line for line in lines) == 1


def _locate(index: int, lines: list[str], rng: random.Random) -> tuple[str, str] | None:
    """A phrase that names the line by a quote of it, and the quote; None if no tried quote is unique.

    The quote is the whole line, its shortest unique beginning, or two to four words out of its middle.
    """
    line = lines[index]
    words = line.split(" ")
    prefixes = [" ".join(words[:n]) for n in range(1, len(words)) if n > 1 or words[0].endswith(":")]
    middles = [" ".join(words[i : i + n]).strip(" .,;:|") for i in range(1, len(words) - 2) for n in (2, 3, 4)]
    middles = [quote for quote in middles if re.search(r"\w{3}", quote)]
    choices = [
        ("the line", [line]),
        ("the line that starts with", prefixes),
        ("the line that contains", rng.sample(middles, len(middles))),
    ]
    for phrase, quotes in rng.sample(choices, len(choices)):
        for quote in quotes:
            if _unique(quote, lines):
                return f'{phrase} "{quote}"', quote
    return None


def _fresh_lines(spares: tuple[str, ...], count: int, lines: list[str], rng: random.Random) -> tuple[str, ...] | None:
    """``count`` new lines from the spare templates, with values drawn anew."""
    new = tuple(_fill(template, rng, {}).text for template in rng.sample(spares, count))
    return None if any(line in lines for line in new) else new


def _replace(document: list[_Line], rng: random.Random) -> _Edit | None:
    return _replace_value(document, rng) if rng.random() < 0.5 else _replace_line(document, rng)


def _replace_value(document: list[_Line], rng: random.Random) -> _Edit | None:
    """One name, date or figure gives way to another."""
    lines = [line.text for line in document]
    index = rng.choice([i for i, line in enumerate(document) if line.slots])
    kind, old = rng.choice(document[index].slots)
    new = _other_value(kind, old, rng, {value for _, value in document[index].slots})
    if lines[index].startswith(old):
        new = _capital(new)
    located = _locate(index, lines, rng)
    after = lines[index].replace(old, new)
    if located is None or lines[index].count(old) != 1 or after in lines:
        return None
    where, quote = located
    phrases = [
        (f'In {where}, change "{old}" to "{new}".', quote),
        (f'In {where}, replace "{old}" with "{new}".', quote),
        (f'Change "{old}" to "{new}" in {where}.', quote),
    ]
    if _unique(old, lines):
        phrases.append((f'Change "{old}" to "{new}".', old))
    sentence, anchor = rng.choice(phrases)
    return _Edit(index, index + 1, (after,), sentence, (anchor,))


def _replace_line(document: list[_Line], rng: random.Random) -> _Edit | None:
    """A whole line gives way to a spare of its section."""
    lines = [line.text for line in document]
    candidates = [i for i, line in enumerate(document) if line.text and not line.heading]
    index = rng.choice(candidates)
    located = _locate(index, lines, rng)
    new = _fresh_lines(document[index].spares, 1, lines, rng)
    if located is None or new is None:
        return None
    where, quote = located
    sentence = rng.choice(
        (
            f'Replace {where} with the line "{new[0]}".',
            f'Rewrite {where} as "{new[0]}".',
            f'Change {where} so that it reads "{new[0]}".',
        )
    )
    return _Edit(index, index + 1, new, sentence, (quote,))


def _insert(document: list[_Line], rng: random.Random) -> _Edit | None:
    """One or two spares of a section: beside one of its lines, at its end, or at the end of the document."""
    lines = [line.text for line in document]
    place = rng.choice(("after", "after", "before", "before", "section", "document"))
    index = len(lines) - 1 if place == "document" else rng.choice([i for i, line in enumerate(lines) if line])
    head = max(i for i in range(index + 1) if document[i].heading)
    spares = document[index].spares
    new = _fresh_lines(spares, 2 if len(spares) > 1 and rng.random() < 0.3 else 1, lines, rng)
    located = _locate(index, lines, rng)
    if new is None or located is None:
        return None
    where, quote = located
    what = f'the line "{new[0]}"' if len(new) == 1 else f'the lines "{new[0]}" and "{new[1]}"'
    if place == "after":
        start = index + 1
        phrases = (f"After {where}, insert {what}.", f"Add {what} after {where}.", f"Insert {what} below {where}.")
    elif place == "before" and not document[index].heading:
        start = index
        phrases = (f"Before {where}, insert {what}.", f"Add {what} before {where}.", f"Insert {what} above {where}.")
    elif place == "section" and head > 0 and _unique(lines[head], lines):
        start = next((i for i in range(head, len(lines)) if not lines[i]), len(lines))
        quote = lines[head]
        phrases = (f'Add {what} at the end of the section "{quote}".', f'In the section "{quote}", append {what}.')
    elif place == "document":
        start, quote = len(lines), ""
        phrases = (f"Add {what} at the end of the document.", f"At the very end of the document, append {what}.")
    else:
        return None
    return _Edit(start, start, new, rng.choice(phrases), (quote,) if quote else ())


def _delete(document: list[_Line], rng: random.Random) -> _Edit | None:
    """One to three adjacent lines of a section, never its heading."""
    lines = [line.text for line in document]
    count = rng.choice((1, 1, 1, 2, 2, 3))
    start = rng.randrange(len(lines))
    last = start + count - 1
    if any(not line.text or line.heading for line in document[start : last + 1]) or last >= len(lines):
        return None
    located, located_last = _locate(start, lines, rng), _locate(last, lines, rng)
    if located is None or located_last is None:
        return None
    where, quote = located
    verb = rng.choice(("Delete", "Remove"))
    if count == 1:
        return _Edit(start, last + 1, (), f"{verb} {where}.", (quote,))
    if rng.random() < 0.5:
        return _Edit(start, last + 1, (), f"{verb} {where} and the {_COUNT_WORDS[count - 1]} after it.", (quote,))
    where_last, quote_last = located_last
    return _Edit(start, last + 1, (), f"{verb} everything from {where} through {where_last}.", (quote, quote_last))


_SINGLE = {"replace": _replace, "insert": _insert, "delete": _delete}


def _compound(document: list[_Line], rng: random.Random) -> tuple[str, list[_Edit]] | None:
    """Two edits with a kept line or more between them, each of which can be found whether or not the other is done."""
    lines = [line.text for line in document]
    edits = [_SINGLE[rng.choice(list(_SINGLE))](document, rng) for _ in range(2)]
    if None in edits:
        return None
    upper, lower = sorted(edits, key=lambda edit: edit.start)
    if lower.start <= upper.stop or any(line in upper.new for line in lower.new):
        return None
    for one, other in ((upper, lower), (lower, upper)):
        if not all(_unique(quote, _apply(lines, [other])) for quote in one.anchors):
            return None
    first, second = (edit.sentence for edit in edits)
    then = second[0].lower() + second[1:]
    instruction = rng.choice((f"{first} Then {then}", f"{first} Also, {then}", f"(1) {first} (2) {second}"))
    return instruction, edits


def _draw_edit(kind: str, document: list[_Line], rng: random.Random) -> tuple[str, list[_Edit]] | None:
    """The instruction and edits of one case; None if this draw has no unique wording (the caller draws again)."""
    if kind == "compound":
        return _compound(document, rng)
    edit = _SINGLE[kind](document, rng)
    return None if edit is None else (edit.sentence, [edit])
