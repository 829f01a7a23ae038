"""Duplicates among edits, and training edits that leak held-out ones: found by content, near content, and origin.

Near texts are found by MinHash and locality-sensitive hashing (Broder, 1997; datasketch, the extra ``hygiene``), which
only propose: every pair is then compared on its full sets, so that nothing is called near that is not. Memory is some
hundreds of bytes a row, the hashes of its bands; texts are read again where they are compared.

Two different things are near. For a **duplicate** it is the edit: its removed and added lines with three lines around
them. Two edits of one document are two edits; the same edit in two copies of a document is one. For a **leak** it is
the document, before and after: whoever trained on it has seen the held-out text, whatever was edited.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from data_prep.oracle import LineMatcher
from data_prep.rows import Joined
from data_prep.workers import usable_cores
from decoding.commandline import UserError
from decoding.grammar import split_lines

if TYPE_CHECKING:
    import numpy as np

LeakKind = Literal["same_gold", "same_document", "near_document", "same_path", "same_commit", "same_repository"]
LEAK_KINDS: tuple[LeakKind, ...] = get_args(LeakKind)

_SHINGLE = 5  # words
_CONTEXT = 3  # lines
_PERMUTATIONS = 128
# Missed pairs cost more than proposals that turn out false: those only cost time.
_WEIGHTS = (0.05, 0.95)
_HIGHEST = 0.95  # above, datasketch finds no bands
_MIX = 0x9E3779B97F4A7C15  # odd, its bits in no order (2^64 over the golden ratio)
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
    bands, width = _bands(threshold)
    return 1 - (1 - similarity**width) ** bands


def _shingles(words: list[str]) -> set[str]:
    return {" ".join(words[i : i + _SHINGLE]) for i in range(max(1, len(words) - _SHINGLE + 1))} if words else set()


# What is found


def find_duplicates(
    rows: Sequence[Edit],
    threshold: float = 0.8,
    seed: int = 0,
    progress: Progress = lambda it, _: it,
    workers: int | None = None,
) -> list[Duplicate]:
    """Return the rows that are an earlier kept row, or have an edit at least ``threshold`` similar to its edit.

    Rows are taken in order and the first is kept, so that no row is removed for one that is removed itself. Exact
    duplicates are always found. A near one is found with probability ``recall``: 0.95 at a similarity of 0.8 and the
    threshold 0.8, above 0.999 from 0.9 on. The seed decides which are missed; processes and their number do not: there
    are at most ``workers``, with None one a core.

    Raises:
        UserError: datasketch is not installed.
    """
    signed = _Signed(rows, edit_shingles, threshold, seed, workers)
    contents: list[bytes] = []
    for row in progress(signed, "duplicates"):
        contents.append(_digest(row.before) + _digest(row.after))
    proposals = _Proposals(signed.bands)
    shingles = _reader(rows, edit_shingles)
    settled: dict[bytes, tuple[int, float, bool]] = {}  # by content: the row kept for it
    found = []
    for number, content in enumerate(progress(contents, "edits compared")):
        if content not in settled:
            near = _first_near(proposals.of(number), shingles, number, threshold)
            settled[content] = (number, 1.0, True) if near is None else (*near, False)
            if near is None:
                proposals.add(number)
                continue
        found.append(Duplicate(number, *settled[content]))
    return found


def find_leaks(
    train: Sequence[Edit],
    held_out: Sequence[Edit],
    threshold: float = 0.8,
    seed: int = 0,
    progress: Progress = lambda it, _: it,
    workers: int | None = None,
) -> Leakage:
    """Return what training rows show of held-out rows. Blank texts say nothing and are not compared.

    same_gold: the held-out gold is the training row's document or gold. same_document: so is the held-out document.
    near_document: both texts together are at least ``threshold`` similar (found as in ``find_duplicates``).
    same_path, same_commit, same_repository: by ``meta``'s repo, path and commit (or repos, old_path, old_file,
    new_file), where both rows have them.

    Raises:
        UserError: datasketch is not installed.
    """
    signed = _Signed(Joined([held_out, train]), document_shingles, threshold, seed, workers)
    origins: dict[tuple, list[int]] = {}
    blank: set[int] = set()
    firsts: dict[int, dict[LeakKind, tuple[int, float]]] = {}  # by training row
    touched: set[tuple] = set()
    known: set[LeakKind] = set()
    for number, row in enumerate(progress(signed, "leaks")):
        by_origin = _origins(row)
        if number < len(held_out):
            texts = {"same_gold": row.after, "same_document": row.before}
            for key in {(kind, _digest(text)) for kind, text in texts.items() if text.strip()} | by_origin:
                origins.setdefault(key, []).append(number)
            if not (row.before.strip() or row.after.strip()):
                blank.add(number)
            continue
        known |= {key[0] for key in by_origin}
        texts = {_digest(row.before), _digest(row.after)}
        keys = {(kind, text) for kind in ("same_gold", "same_document") for text in texts} | by_origin
        for key in keys & origins.keys():
            touched.add(key)
            first = firsts.setdefault(number - len(held_out), {})
            first[key[0]] = min(first.get(key[0], (len(held_out), 1.0)), (origins[key][0], 1.0))
    proposals = _Proposals(signed.bands)
    for number in range(len(held_out)):
        if number not in blank:
            proposals.add(number)
    reached: dict[LeakKind, set[int]] = {kind: set() for kind in LEAK_KINDS}
    shingles = _reader(held_out, document_shingles)
    for number in progress(range(len(train)), "documents compared"):
        if proposed := proposals.of(len(held_out) + number):
            own = document_shingles(train[number].before, train[number].after)
            for other in proposed:
                similarity = jaccard(own, shingles(other))
                if similarity >= threshold:
                    reached["near_document"].add(other)
                    firsts.setdefault(number, {}).setdefault("near_document", (other, similarity))
    leaks = [
        Leak(number, first[kind][0], kind, first[kind][1])
        for number, first in sorted(firsts.items())
        for kind in LEAK_KINDS
        if kind in first
    ]
    for key in touched:
        reached[key[0]].update(origins[key])
    by_content = {"same_gold", "same_document", "near_document"}
    compared = by_content | (known & {key[0] for key in origins})
    return Leakage(leaks, {kind: len(rows) for kind, rows in reached.items()}, compared)


# What a build leaves out


def check_installed() -> None:
    """Raise UserError where datasketch is not installed."""
    _bands(0.8)


def refuse_duplicates(
    corpora: dict[str, Sequence[Edit]],
    config: HygieneConfig,
    seed: int,
    progress: Progress = lambda it, _: it,
    workers: int | None = None,
) -> Refused:
    """Return which edits are duplicates, by corpus and place, of all corpora together.

    A fault's reason is duplicate or near_duplicate; it names the ``id``, the id ``kept``, and the ``similarity``.
    """
    edits = Joined(corpora.values())
    names, refused = list(corpora), {name: {} for name in corpora}
    for each in find_duplicates(edits, config.threshold, seed, progress, workers):
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
    workers: int | None = None,
) -> Refused:
    """Return which training edits leak in the ways of ``config.drop_leaks``, by corpus and place.

    A fault's reason is leak; it names the ``id``, the ``kinds``, and the first ``held_out`` id.
    """
    edits = Joined(train.values())
    names, refused = list(train), {name: {} for name in train}
    leaks = find_leaks(edits, held_out, config.threshold, seed, progress, workers).leaks
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


def _bands(threshold: float) -> tuple[int, int]:
    """Return into how many bands a signature is cut, and how many of its values a band has."""
    try:
        from datasketch import MinHashLSH
    except ImportError:
        raise UserError(
            "duplicates and leaks are found with datasketch, which is not installed: pip install 'cad-train[hygiene]'"
        ) from None
    index = MinHashLSH(threshold=min(threshold, _HIGHEST), num_perm=_PERMUTATIONS, weights=_WEIGHTS)
    return index.b, index.r


class _Signed:
    """Every row once, in order, while ``bands`` fills; on several cores where rows are many, a few batches in flight.

    Attributes:
        bands: ``[rows, bands]``, a hash of each band of each row's MinHash.
    """

    def __init__(
        self, rows: Sequence[Edit], shingles: Shingles, threshold: float, seed: int, workers: int | None
    ) -> None:
        import numpy as np

        self._workers = workers
        self._rows = rows
        self._how = (shingles, *_bands(threshold), seed)
        self.bands = np.empty((len(rows), self._how[1]), np.uint64)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Edit]:
        workers = min(self._workers or usable_cores(), len(self) // _ROWS_A_WORKER)
        starts = range(0, len(self), _ROWS_A_BATCH)
        if workers < 2:
            for start in starts:
                batch = self._rows[start : start + _ROWS_A_BATCH]
                self.bands[start : start + len(batch)] = _sign(_texts(batch), *self._how)
                yield from batch
            return
        with multiprocessing.get_context("spawn").Pool(workers) as pool:
            waiting = deque()

            def done() -> list[Edit]:
                start, batch, job = waiting.popleft()
                self.bands[start : start + len(batch)] = job.get()
                return batch

            for start in starts:
                batch = self._rows[start : start + _ROWS_A_BATCH]
                waiting.append((start, batch, pool.apply_async(_sign, (_texts(batch), *self._how))))
                if len(waiting) > 2 * workers:
                    yield from done()
            while waiting:
                yield from done()


class _Proposals:
    """Rows that may be near one another: those that share a bucket, the same hash of the same band.

    Most hashes are of one row alone; they need no bucket.
    """

    def __init__(self, bands: np.ndarray) -> None:
        import numpy as np

        self._buckets = np.full(bands.shape, -1, np.int32)
        named = 0
        for band, hashes in enumerate(bands.T):
            _, bucket, size = np.unique(hashes, return_inverse=True, return_counts=True)
            number = np.cumsum(size > 1) - 1 + named
            shared = size[bucket] > 1
            self._buckets[shared, band] = number[bucket[shared]]
            named += int((size > 1).sum())
        self._added: dict[int, list[int]] = defaultdict(list)

    def _of(self, number: int) -> list[int]:
        buckets = self._buckets[number]
        return buckets[buckets >= 0].tolist()

    def add(self, number: int) -> None:
        """Propose this row from now on."""
        for bucket in self._of(number):
            self._added[bucket].append(number)

    def of(self, number: int) -> list[int]:
        """Return the added rows that may be near this one, in order."""
        return sorted({row for bucket in self._of(number) for row in self._added.get(bucket, ())})


def _texts(rows: Sequence[Edit]) -> list[tuple[str, str]]:
    return [(row.before, row.after) for row in rows]


def _sign(texts: list[tuple[str, str]], shingles: Shingles, bands: int, width: int, seed: int) -> np.ndarray:
    """Return ``[texts, bands]``: two rows that share a hash share, but for one pair in 2^64, the values of the band."""
    import numpy as np
    from datasketch import MinHash
    from xxhash import xxh32_intdigest

    sets = ([shingle.encode("utf-8", "surrogatepass") for shingle in shingles(*pair)] for pair in texts)
    made = MinHash.generator(sets, num_perm=_PERMUTATIONS, seed=seed, hashfunc=xxh32_intdigest)
    values = np.array([each.hashvalues[: bands * width] for each in made], np.uint64)
    return values.reshape(len(texts), bands, width) @ np.multiply.accumulate(np.full(width, _MIX, np.uint64))


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
