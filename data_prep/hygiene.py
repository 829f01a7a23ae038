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
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from data_prep.oracle import LineMatcher
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
_SETS_KEPT = 4096  # of shingles, of rows that were compared last
_WORD = re.compile(r"\w+|[^\w\s]")
_WORD_WITH_BLANKS = re.compile(r"\s*(?:\w+|[^\w\s])|\s+\Z")  # indentation is content of an edit

Shingles = Callable[[str, str], set[str]]
Progress = Callable[[Iterable, str], Iterable]


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
    same_path, same_commit, same_repository: by ``meta``'s repo, path, old_path and commit, where both rows have them.

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


def refuse_duplicates(
    loaded: dict[str, tuple[list[Edit], list[dict]]],
    config: HygieneConfig,
    seed: int,
    progress: Progress = lambda it, _: it,
) -> dict[str, tuple[list[Edit], list[dict]]]:
    """Return edits and faults by corpus, as given, with the duplicates of all corpora moved to the faults.

    A fault's reason is duplicate or near_duplicate; it names the ``id``, the id ``kept``, and the ``similarity``.
    """
    rows = [(name, pair) for name, (pairs, _) in loaded.items() for pair in pairs]
    pairs = [pair for _, pair in rows]
    found = {each.row: each for each in find_duplicates(pairs, config.threshold, seed, progress)}
    out = {name: ([], list(faults)) for name, (_, faults) in loaded.items()}
    for number, (name, pair) in enumerate(rows):
        if (duplicate := found.get(number)) is None:
            out[name][0].append(pair)
            continue
        kept, similarity = pairs[duplicate.kept].id, round(duplicate.similarity, 4)
        reason = "duplicate" if duplicate.exact else "near_duplicate"
        detail = f"the edit of {kept}" if duplicate.exact else f"{similarity} similar to the edit of {kept}"
        out[name][1].append(_fault(pair, reason, detail) | {"kept": kept, "similarity": similarity})
    return out


def refuse_leaks(
    kept: dict[str, list[Edit]],
    is_held_out: Callable[[str, Edit], bool],
    others: Sequence[Edit],
    config: HygieneConfig,
    seed: int,
    progress: Progress = lambda it, _: it,
) -> dict[str, tuple[list[Edit], list[dict]]]:
    """Return edits by corpus less the training edits that leak in the ways of ``config.drop_leaks``, and the faults.

    ``is_held_out`` says of a corpus's name and its edit whether it is held out; ``others`` are held-out edits from
    elsewhere. A fault's reason is leak; it names the ``id``, the ``kinds``, and the first ``held_out`` id.
    """
    rows = [(name, pair, is_held_out(name, pair)) for name, pairs in kept.items() for pair in pairs]
    train = [pair for _, pair, is_out in rows if not is_out]
    held_out = [pair for _, pair, is_out in rows if is_out] + list(others)
    found: dict[int, list[Leak]] = {}
    for leak in find_leaks(train, held_out, config.threshold, seed, progress).leaks:
        if leak.kind in config.drop_leaks:
            found.setdefault(leak.row, []).append(leak)
    out: dict[str, tuple[list[Edit], list[dict]]] = {name: ([], []) for name in kept}
    number = 0  # among the training edits
    for name, pair, is_out in rows:
        leaks = [] if is_out else found.get(number, [])
        number += not is_out
        if not leaks:
            out[name][0].append(pair)
            continue
        kinds, other = [leak.kind for leak in leaks], held_out[leaks[0].held_out].id
        fault = _fault(pair, "leak", f"{', '.join(kinds)}: held-out {other}")
        out[name][1].append(fault | {"kinds": kinds, "held_out": other})
    return out


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
        with multiprocessing.Pool(workers) as pool:
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
    repository = row.meta.get("repo")
    if not repository:
        return set()
    keys = {("same_repository", repository)}
    keys |= {("same_path", repository, row.meta[name]) for name in ("path", "old_path") if row.meta.get(name)}
    if row.meta.get("commit"):
        keys.add(("same_commit", repository, row.meta["commit"]))
    return keys
