"""Duplicates among edits, and training edits that leak held-out ones: found by content, near content, and origin.

Near texts are found by MinHash and locality-sensitive hashing (Broder, 1997; datasketch, the extra ``hygiene``), which
only propose: every pair is then compared on its full sets, so that nothing is called near that is not. Memory is the
index, some 7 kB for each row that is kept, or held out; texts are read again where they are compared.

Two different things are near. For a **duplicate** it is the edit: its removed and added lines with three lines around
them. Two edits of one document are two edits; the same edit in two copies of a document is one. For a **leak** it is
the document, before and after: whoever trained on it has seen the held-out text, whatever was edited.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from data_prep.oracle import LineMatcher
from data_prep.rows import Joined
from decoding.commandline import UserError
from decoding.grammar import split_lines

if TYPE_CHECKING:
    from datasketch import LeanMinHash, MinHashLSH

LeakKind = Literal["same_gold", "same_document", "near_document", "same_path", "same_commit", "same_repository"]
LEAK_KINDS: tuple[LeakKind, ...] = get_args(LeakKind)

_SHINGLE = 5  # words
_CONTEXT = 3  # lines
_PERMUTATIONS = 128
# Missed pairs cost more than proposals that turn out false: those only cost time.
_WEIGHTS = (0.05, 0.95)
_HIGHEST = 0.95  # above, datasketch finds no bands
_ROWS_A_BATCH = 500
_ROWS_A_WORKER = 2000  # fewer are hashed sooner than a process starts
_SETS_KEPT = 1024  # of shingles, of rows that were compared last
_WORD = re.compile(r"\w+|[^\w\s]")
_WORD_WITH_BLANKS = re.compile(r"\s*(?:\w+|[^\w\s])|\s+\Z")  # indentation is content of an edit

Shingles = Callable[[str, str], set[str]]
Progress = Callable[[Iterable, str], Iterable]
Refused = dict[str, dict[int, dict]]  # by corpus and place, a row of rejected.jsonl


class Edit(Protocol):
    """What is compared: an ``EditPair`` or an ``OracleRow``."""

    id: str
    before: str
    after: str
    meta: dict


@dataclass
class HygieneConfig:
    """What a build refuses. With the defaults nothing: ProbeEdit's few documents are in both of its splits."""

    near_duplicates: bool = False  # refuse an edit that is nearly an earlier one; needs the extra hygiene
    threshold: float = 0.8  # Jaccard similarity from which texts are near
    drop_leaks: list[LeakKind] = field(default_factory=list)  # leave out training edits that leak in these ways
    held_out: list[str] = field(default_factory=list)  # prepared folders whose held-out edits are not to leak either

    def __post_init__(self) -> None:
        check_threshold(self.threshold)
        if self.held_out and not self.drop_leaks:
            raise ValueError(f"held_out={self.held_out} changes nothing: name what may not leak, drop_leaks=[...]")

    @property
    def refuses(self) -> bool:
        """Whether anything is refused at all."""
        return bool(self.near_duplicates or self.drop_leaks)


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Row ``row`` is (nearly) row ``kept``; ``similarity`` is the exact Jaccard similarity of their edits.

    ``exact``: before and after are the same, character by character.
    """

    row: int
    kept: int
    similarity: float
    exact: bool


@dataclass(frozen=True, slots=True)
class Leak:
    """Training row ``row`` shows something of the held-out row ``held_out``, the first of those it does so for."""

    row: int
    held_out: int
    kind: LeakKind
    similarity: float  # 1.0, of near_document the exact Jaccard similarity


@dataclass(frozen=True, slots=True)
class Leakage:
    """The leaks, at most one a training row and kind; ``reached`` counts the held-out rows of each kind.

    ``compared`` has the kinds that could be looked for: those by origin only where rows on both sides have one.
    """

    leaks: list[Leak]
    reached: dict[LeakKind, int]
    compared: set[LeakKind]

    def rows(self, kinds: Iterable[LeakKind] = LEAK_KINDS) -> set[int]:
        """Return the training rows that leak in any of ``kinds``."""
        wanted = set(kinds)
        return {leak.row for leak in self.leaks if leak.kind in wanted}

    def counts(self) -> dict[LeakKind, int]:
        """Return the training rows of each kind; a row may be of several."""
        found = Counter(leak.kind for leak in self.leaks)
        return {kind: found[kind] for kind in LEAK_KINDS}


def check_threshold(threshold: float) -> None:
    """Raise ValueError where a similarity cannot be ``threshold``, or everything would reach it."""
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold={threshold}: must be above 0 and at most 1")


# What is compared


def edit_shingles(before: str, after: str) -> set[str]:
    """Return the five-word shingles of an edit: changed lines and three lines around them, marked -, + or unchanged.

    A word has the blanks before it: edits that change the layout alone differ.
    """
    a, b = split_lines(before), split_lines(after)
    opcodes = LineMatcher(a, b).get_opcodes()
    words: list[str] = []

    def add(sign: str, lines: list[str]) -> None:
        for line in lines:
            words.append(sign)
            words.extend(_WORD_WITH_BLANKS.findall(line))

    for number, (tag, i, j, k, m) in enumerate(opcodes):
        if tag != "equal":
            add("\n-", a[i:j])
            add("\n+", b[k:m])
            continue
        first = i + _CONTEXT if number > 0 else i
        last = j - _CONTEXT if number < len(opcodes) - 1 else j
        if first >= last:
            add("\n ", a[i:j])
        else:
            add("\n ", a[i:first])
            words.append("\n@")
            add("\n ", a[last:j])
    return _shingles(words)


def document_shingles(before: str, after: str) -> set[str]:
    """Return the five-word shingles of both texts, blanks left out: a document laid out anew is the same document."""
    return _shingles(_WORD.findall(before)) | _shingles(_WORD.findall(after))


def jaccard(a: set[str], b: set[str]) -> float:
    """Return the share that two sets have in common of what they have together; 1.0 for two empty ones."""
    together = len(a | b)
    return len(a & b) / together if together else 1.0


def recall(threshold: float, similarity: float) -> float:
    """Return the probability that a pair of this similarity is proposed, and so found, at this threshold."""
    index = _index(threshold)
    return 1 - (1 - similarity**index.r) ** index.b


def _shingles(words: list[str]) -> set[str]:
    return {" ".join(words[i : i + _SHINGLE]) for i in range(max(1, len(words) - _SHINGLE + 1))} if words else set()


# What is found


def find_duplicates(
    rows: Sequence[Edit], threshold: float = 0.8, seed: int = 0, progress: Progress = lambda it, _: it
) -> list[Duplicate]:
    """Return the rows that are an earlier kept row, or have an edit at least ``threshold`` similar to its edit.

    Rows are taken in order and the first is kept, so that no row is removed for one that is removed itself. Exact
    duplicates are always found. A near one is found with probability ``recall``: 0.95 at a similarity of 0.8 and the
    threshold 0.8, above 0.999 from 0.9 on. The seed decides which are missed; processes and their number do not.

    Raises:
        UserError: datasketch is not installed.
    """
    index = _index(threshold)
    settled: dict[bytes, tuple[int, float, bool]] = {}  # by content: the row kept for it
    found = []
    shingles = _reader(rows, edit_shingles)
    for number, (row, signature) in enumerate(progress(_Signed(rows, edit_shingles, seed), "duplicates")):
        content = _digest(row.before) + _digest(row.after)
        if content not in settled:
            near = _first_near(sorted(index.query(signature)), shingles, number, threshold)
            settled[content] = (number, 1.0, True) if near is None else (*near, False)
            if near is None:
                index.insert(number, signature)
                continue
        found.append(Duplicate(number, *settled[content]))
    return found


def find_leaks(
    train: Sequence[Edit],
    held_out: Sequence[Edit],
    threshold: float = 0.8,
    seed: int = 0,
    progress: Progress = lambda it, _: it,
) -> Leakage:
    """Return what training rows show of held-out rows. Blank texts say nothing and are not compared.

    same_gold: the held-out gold is the training row's document or gold. same_document: so is the held-out document.
    near_document: both texts together are at least ``threshold`` similar (found as in ``find_duplicates``).
    same_path, same_commit, same_repository: by ``meta``'s repo, path and commit (or repos, old_path, old_file,
    new_file), where both rows have them.

    Raises:
        UserError: datasketch is not installed.
    """
    index = _index(threshold)
    origins: dict[tuple, list[int]] = {}
    signed = progress(_Signed(held_out, document_shingles, seed), "held-out documents")
    for number, (row, signature) in enumerate(signed):
        texts = {"same_gold": row.after, "same_document": row.before}
        keys = {(kind, _digest(text)) for kind, text in texts.items() if text.strip()} | _origins(row)
        for key in keys:
            origins.setdefault(key, []).append(number)
        if row.before.strip() or row.after.strip():
            index.insert(number, signature)
    shingles = _reader(held_out, document_shingles)
    reached: dict[LeakKind, set[int]] = {kind: set() for kind in LEAK_KINDS}
    touched: set[tuple] = set()
    known: set[LeakKind] = set()
    leaks = []
    for number, (row, signature) in enumerate(progress(_Signed(train, document_shingles, seed), "leaks")):
        texts = {_digest(row.before), _digest(row.after)}
        by_origin = _origins(row)
        known |= {key[0] for key in by_origin}
        keys = {(kind, text) for kind in ("same_gold", "same_document") for text in texts} | by_origin
        first: dict[LeakKind, tuple[int, float]] = {}
        for key in keys & origins.keys():
            touched.add(key)
            first[key[0]] = min(first.get(key[0], (len(held_out), 1.0)), (origins[key][0], 1.0))
        if proposed := sorted(index.query(signature)):
            own = document_shingles(row.before, row.after)
            for other in proposed:
                similarity = jaccard(own, shingles(other))
                if similarity >= threshold:
                    reached["near_document"].add(other)
                    first.setdefault("near_document", (other, similarity))
        leaks += [Leak(number, first[kind][0], kind, first[kind][1]) for kind in LEAK_KINDS if kind in first]
    for key in touched:
        reached[key[0]].update(origins[key])
    by_content = {"same_gold", "same_document", "near_document"}
    compared = by_content | (known & {key[0] for key in origins})
    return Leakage(leaks, {kind: len(rows) for kind, rows in reached.items()}, compared)


# What a build leaves out


def check_installed() -> None:
    """Raise UserError where datasketch is not installed."""
    _index(0.8)


def refuse_duplicates(
    corpora: dict[str, Sequence[Edit]], config: HygieneConfig, seed: int, progress: Progress = lambda it, _: it
) -> Refused:
    """Return which edits are duplicates, by corpus and place, of all corpora together.

    A fault's reason is duplicate or near_duplicate; it names the ``id``, the id ``kept``, and the ``similarity``.
    """
    edits = Joined(corpora.values())
    names, refused = list(corpora), {name: {} for name in corpora}
    for each in find_duplicates(edits, config.threshold, seed, progress):
        part, place = edits.locate(each.row)
        kept, similarity = edits[each.kept].id, round(each.similarity, 4)
        reason = "duplicate" if each.exact else "near_duplicate"
        detail = f"the edit of {kept}" if each.exact else f"{similarity} similar to the edit of {kept}"
        fault = _fault(edits[each.row], reason, detail) | {"kept": kept, "similarity": similarity}
        refused[names[part]][place] = fault
    return refused


def refuse_leaks(
    train: dict[str, Sequence[Edit]],
    held_out: Sequence[Edit],
    config: HygieneConfig,
    seed: int,
    progress: Progress = lambda it, _: it,
) -> Refused:
    """Return which training edits leak in the ways of ``config.drop_leaks``, by corpus and place.

    A fault's reason is leak; it names the ``id``, the ``kinds``, and the first ``held_out`` id.
    """
    edits = Joined(train.values())
    names, refused = list(train), {name: {} for name in train}
    leaks = find_leaks(edits, held_out, config.threshold, seed, progress).leaks
    for row, of_row in groupby((leak for leak in leaks if leak.kind in config.drop_leaks), lambda leak: leak.row):
        first, *others = of_row
        kinds, other = [first.kind, *(leak.kind for leak in others)], held_out[first.held_out].id
        part, place = edits.locate(row)
        fault = _fault(edits[row], "leak", f"{', '.join(kinds)}: held-out {other}")
        refused[names[part]][place] = fault | {"kinds": kinds, "held_out": other}
    return refused


def _fault(pair: Edit, reason: str, detail: str) -> dict[str, Any]:
    file, row = pair.meta.get("file", pair.id), pair.meta.get("row")
    return {"file": file, "row": row, "reason": reason, "detail": detail, "id": pair.id}


# How


def _index(threshold: float) -> MinHashLSH:
    try:
        from datasketch import MinHashLSH
    except ImportError:
        raise UserError(
            "duplicates and leaks are found with datasketch, which is not installed: pip install 'cad-train[hygiene]'"
        ) from None
    return MinHashLSH(threshold=min(threshold, _HIGHEST), num_perm=_PERMUTATIONS, weights=_WEIGHTS)


@dataclass(frozen=True)
class _Signed:
    """Every row with its MinHash, in order; made on every core where rows are many, with a few batches in flight."""

    rows: Sequence[Edit]
    shingles: Shingles
    seed: int

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[tuple[Edit, LeanMinHash]]:
        batches = (self.rows[start : start + _ROWS_A_BATCH] for start in range(0, len(self), _ROWS_A_BATCH))
        workers = min(len(os.sched_getaffinity(0)), len(self) // _ROWS_A_WORKER)
        if workers < 2:
            for batch in batches:
                yield from zip(batch, _sign(_texts(batch), self.shingles, self.seed), strict=True)
            return
        with multiprocessing.get_context("spawn").Pool(workers) as pool:
            waiting = deque()
            for batch in batches:
                waiting.append((batch, pool.apply_async(_sign, (_texts(batch), self.shingles, self.seed))))
                if len(waiting) > 2 * workers:
                    batch, job = waiting.popleft()
                    yield from zip(batch, job.get(), strict=True)
            for batch, job in waiting:
                yield from zip(batch, job.get(), strict=True)


def _texts(rows: Sequence[Edit]) -> list[tuple[str, str]]:
    return [(row.before, row.after) for row in rows]


def _sign(texts: list[tuple[str, str]], shingles: Shingles, seed: int) -> list[LeanMinHash]:
    from datasketch import LeanMinHash, MinHash
    from xxhash import xxh32_intdigest

    sets = ([shingle.encode("utf-8", "surrogatepass") for shingle in shingles(*pair)] for pair in texts)
    made = MinHash.generator(sets, num_perm=_PERMUTATIONS, seed=seed, hashfunc=xxh32_intdigest)
    return [LeanMinHash(each) for each in made]


def _reader(rows: Sequence[Edit], shingles: Shingles) -> Callable[[int], set[str]]:
    """Return a function that gives the shingles of a row by its number, and keeps those of the rows asked for last."""

    @lru_cache(_SETS_KEPT)
    def read(number: int) -> set[str]:
        row = rows[number]
        return shingles(row.before, row.after)

    return read


def _first_near(
    proposed: list[int], shingles: Callable[[int], set[str]], number: int, threshold: float
) -> tuple[int, float] | None:
    for other in proposed:
        similarity = jaccard(shingles(other), shingles(number))
        if similarity >= threshold:
            return other, similarity
    return None


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16]


def _origins(row: Edit) -> set[tuple]:
    def named(*fields: str) -> set[str]:
        values = [row.meta.get(field) or [] for field in fields]
        return {name for value in values for name in ([value] if isinstance(value, str) else value)}

    keys: set[tuple] = set()
    # CommitPack lists all repositories that have a commit in one text.
    for repository in {name.strip() for names in named("repo", "repos") for name in names.split(",")} - {""}:
        keys.add(("same_repository", repository))
        keys |= {("same_path", repository, path) for path in named("path", "old_path", "old_file", "new_file")}
        keys |= {("same_commit", repository, commit) for commit in named("commit")}
    return keys
