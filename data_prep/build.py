"""From corpora to a prepared folder: oracle programs, splits, statistics, and a fingerprint.

OUT/CORPUS/train.jsonl, OUT/CORPUS/heldout.jsonl    one row per edit
OUT/rejected.jsonl                                  what was refused, and why
OUT/manifest.json                                   settings, counts, statistics, fingerprints; written last
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import multiprocessing
import shutil
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from data_prep.bugs import BugsConfig
from data_prep.commit_filters import GitConfig
from data_prep.corpora import CORPORA, Progress, load_pairs, source_stamps
from data_prep.counts import row_counts, statistics_of, token_statistics_of
from data_prep.formatter_pairs import FormatterConfig
from data_prep.hub import HubConfig
from data_prep.hygiene import HygieneConfig, Refused, check_installed
from data_prep.oracle import build_oracle
from data_prep.pairs import EditPair, collect
from data_prep.prepared import FORMAT_VERSION, OracleRow, Split, finished_manifest, open_prepared
from data_prep.probeedit import ProbeEditConfig
from data_prep.programs import Choice, choose, equivalent, merge_short
from data_prep.pyfix import PyFixConfig
from data_prep.rows import Joined, read_rows, write_rows, write_text
from data_prep.split import Chosen, choose_edits
from data_prep.spool import Spool
from data_prep.workers import usable_cores
from decoding.commandline import UserError
from decoding.grammar import Program, parse, render
from decoding.loading import file_digest
from decoding.lock import take_lock
from decoding.resolver import resolve

if TYPE_CHECKING:
    from decoding.tokens import TextTokenizer

_EDITS_PER_JOB, _BYTES_PER_JOB = 200, 1 << 20  # whichever is reached first
_EDITS_FOR_WORKERS = 4000  # fewer are made sooner than processes start
_JOBS_AHEAD = 4  # for each process; bounds memory
MOST_EQUIVALENTS = 100  # of one edit
_SEARCHES = ("duplicates", "leaks")  # of hygiene; what they find is kept until the folder is whole
_OPTIONAL = {"git", "bugs", "formatter", "hub"}  # corpora whose settings count where they are prepared
# Settings that do not change a single prepared byte.
_NOT_CONTENT = ("out", "data_dir", "tokenizer", "workers")
# Left out of the content while they have their defaults: folders prepared before there were these settings stay valid.
_CONTENT_IF_SET = ("synthesize_instructions", "program", "min_copy", "merge_text_free", "equivalents")


@dataclass
class OracleConfig:
    """What to prepare. The defaults are the paper's combined set: 131 Py + 131 JS + 123 ProbeEdit to train on."""

    corpora: list[str] = field(default_factory=lambda: ["hevalfix-py", "hevalfix-js", "probeedit"])  # what to prepare
    out: str = "data/oracles"  # the folder to write
    seed: int = 0  # of generators and splits; independent of any training seed
    heldout: float = 0.2  # share of each corpus's groups that is held out
    data_dir: str | None = None  # folder with humanevalpack/*.jsonl; else CAD_DATA_DIR, else the hub
    jsonl: list[str] = field(default_factory=list)  # files of the jsonl corpus (instruction, before, after)
    synthesize_instructions: bool = False  # jsonl: make an instruction from the edit for rows that have none
    limit: int | None = None  # at most so many pairs of each corpus, chosen by the seed
    tests_in_prompt: bool = False  # hevalfix: show the tests in the instruction
    program: Choice = "difflib"  # of training edits: which of the programs that make the edit; see data_prep.programs
    min_copy: int = 1  # of training edits: copies of fewer lines are written out
    merge_text_free: bool = False  # likewise copies without a letter or digit (blank lines, brackets)
    equivalents: int = 0  # up to so many training rows more an edit, with other programs for it; at most 100
    tokenizer: str | None = None  # hub name, folder, or GGUF file: adds token counts to the statistics
    workers: int | None = None  # processes that make oracles; default one a core where there are thousands of edits
    probeedit: ProbeEditConfig = field(default_factory=ProbeEditConfig)  # the probeedit generator
    pyfix: PyFixConfig = field(default_factory=PyFixConfig)  # the pyfix generator
    bugs: BugsConfig = field(default_factory=BugsConfig)  # the bugs generator: folders of js, java, go, C++ or Rust
    formatter: FormatterConfig = field(default_factory=FormatterConfig)  # the formatter corpus: code and its new layout
    git: GitConfig = field(default_factory=GitConfig)  # the git corpus: commits of local repositories, mined first
    hub: HubConfig = field(default_factory=HubConfig)  # the hub corpus: a data set on the hub, or files with columns
    hygiene: HygieneConfig = field(default_factory=HygieneConfig)  # duplicates and leaks to refuse; by default none

    def __post_init__(self) -> None:
        unknown = [name for name in self.corpora if name not in CORPORA]
        if unknown:
            raise ValueError(f"corpora: unknown {', '.join(unknown)}; choose from {', '.join(CORPORA)}")
        if not self.corpora or len(set(self.corpora)) < len(self.corpora):
            raise ValueError(f"corpora={self.corpora}: name at least one corpus, each once")
        if not 0 <= self.heldout < 1:
            raise ValueError(f"heldout={self.heldout}: must be at least 0 and below 1")
        if self.jsonl and "jsonl" not in self.corpora:
            raise ValueError("jsonl names files, but corpora has no jsonl: add it, or leave the files out")
        if "jsonl" in self.corpora and not self.jsonl:
            raise ValueError("corpora has jsonl, but no file is named: add jsonl=[FILE,...]")
        if "bugs" in self.corpora and not self.bugs.source:
            raise ValueError("corpora has bugs, but no source is named: add bugs.source=[FOLDER,...]")
        if "git" in self.corpora and not self.git.repo:
            raise ValueError("corpora has git, but no repository is named: add git.repo=[PATH,...]")
        if "hub" in self.corpora and not (self.hub.path or self.hub.data_files):
            raise ValueError(
                "corpora has hub, but no data set is named: add hub.path=OWNER/NAME or hub.data_files=[...]"
            )
        if Path(self.out) in map(Path, self.hygiene.held_out):
            raise ValueError(f"hygiene.held_out has {self.out}, the folder to write: leaks within it are always found")
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit={self.limit}: must be at least 1")
        for name, least in (("min_copy", 1), ("equivalents", 0), ("workers", 1)):
            if getattr(self, name) is not None and getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least {least}")
        if self.equivalents > MOST_EQUIVALENTS:
            raise ValueError(f"equivalents={self.equivalents}: must be at most {MOST_EQUIVALENTS}")


@dataclass(frozen=True, slots=True)
class Corpus:
    """The oracles of one corpus: every edit with its split, and what was offered, refused, and left out by limit.

    ``equivalents`` are additional training rows: edits of ``rows`` with other programs.
    """

    rows: list[OracleRow]
    offered: int
    faults: list[dict]
    over_limit: int
    equivalents: list[OracleRow]


def prepare_corpora(config: OracleConfig, progress: Progress = lambda it, _: it) -> dict[str, Corpus]:
    """Return every corpus of ``config`` by name, in memory; nothing is written but the mined commits of the corpus git.

    The rows are those that ``build_oracles`` writes. Each oracle is checked to resolve to its gold.

    Raises:
        UserError: a file that is missing or damaged, a generator that cannot make what was asked for.
    """
    elsewhere = _held_out_elsewhere(config)
    loaded = {name: collect(load_pairs(name, config, progress, {})) for name in config.corpora}
    chosen = choose_edits({name: pairs for name, (pairs, _) in loaded.items()}, config, elsewhere, progress)
    corpora = {}
    for name, (pairs, faults) in loaded.items():
        rows, more = [], []
        for at, split in zip(progress(chosen[name].places, name), _splits(chosen[name]), strict=True):
            row, *others = oracle_rows(pairs[at], split, config)
            rows.append(row)
            more += others
        offered = len(pairs) + len(faults)
        corpora[name] = Corpus(rows, offered, faults + chosen[name].faults, chosen[name].over_limit, more)
    return corpora


def build_oracles(config: OracleConfig, progress: Progress = lambda it, _: it) -> dict[str, Any]:
    """Prepare every corpus of ``config`` under ``config.out`` and return the manifest.

    The edits of a corpus are first put on disk, in order; then their oracles are made, on every core, and written in
    that order, whatever the number of workers. Memory holds a few numbers for each edit, not the edits. A folder that
    is there stays as it is until the new one is whole, and the same call goes on where an earlier one was stopped.

    Pairs that cannot be used are listed in rejected.jsonl with a reason and counted in the manifest.

    Raises:
        UserError: as ``prepare_corpora``, an ``out`` that is a file, or no edit that could be prepared.
    """
    out = Path(config.out)
    if out.exists() and not out.is_dir():
        raise UserError(f"out={config.out} is a file: name a folder")
    if config.tokenizer:
        _text(config.tokenizer)  # refused now, if it is
    elsewhere = _held_out_elsewhere(config)
    content, stamps = content_settings(config), source_stamps(config)
    work, made_out = out / ".building", not out.exists()
    work.mkdir(parents=True, exist_ok=True)
    with _alone(work):
        return _build(config, content, stamps, elsewhere, work, made_out, progress)


@contextmanager
def _alone(work: Path) -> Iterator[None]:
    """Hold the lock of a build; it goes with the process, and with the folder."""
    with (work / "lock").open("w") as lock:
        if not take_lock(lock):
            raise UserError(f"{work.parent} is being built by another process: wait for it, and try again")
        yield


def _build(
    config: OracleConfig,
    content: dict[str, Any],
    stamps: dict[str, list],
    elsewhere: Sequence[OracleRow],
    work: Path,
    made_out: bool,
    progress: Progress,
) -> dict[str, Any]:
    out = work.parent
    settings = json.loads(json.dumps([asdict(replace(config, workers=None)), content, stamps]))
    if _read_json(work / "settings.json") != settings:
        for path in work.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != "lock":
                path.unlink()
        write_text(work / "settings.json", json.dumps(settings) + "\n")
    spools = {name: Spool(work / name) for name in config.corpora}
    try:
        for name, spool in spools.items():
            if not spool.filled:
                found: dict[str, dict] = {}
                spool.fill(load_pairs(name, config, progress, found), found)
    except UserError:
        _discard(work, made_out)
        raise
    manifest = _read_json(work / "manifest.json")
    if manifest is None:
        corpora = _make_corpora(spools, elsewhere, work, config, progress)
        manifest = {
            "format": FORMAT_VERSION,
            "settings": content,
            "corpora": corpora,
            "fingerprint": _digest([entry["fingerprint"] for entry in corpora.values()]),
        }
        write_text(work / "manifest.json", json.dumps(manifest, indent=2) + "\n")
    if not any(entry["train"] + entry["heldout"] for entry in manifest["corpora"].values()):
        why = refusals(manifest, next(_rejected(work, spools), None))
        _discard(work, made_out)
        raise UserError(why)
    _publish(work, out, spools)
    return manifest


def _discard(work: Path, made_out: bool) -> None:
    """Nothing was built, so nothing stays."""
    shutil.rmtree(work)
    if made_out and not any(work.parent.iterdir()):
        work.parent.rmdir()


def refusals(manifest: dict[str, Any], first: dict | None) -> str:
    """Say why there is nothing to prepare."""
    if first is None:
        return f"nothing to prepare: there are no edits in {', '.join(manifest['corpora'])}"
    reasons = sum((Counter(entry["rejected"]) for entry in manifest["corpora"].values()), Counter())
    counted = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
    where = first["file"] if first["row"] is None else f"{first['file']}, row {first['row']}"
    detail = f" ({first['detail']})" if first["detail"] else ""
    return f"nothing to prepare: every edit is refused, {counted}; the first is {where}: {first['reason']}{detail}"


def _held_out_elsewhere(config: OracleConfig) -> Joined[OracleRow]:
    """The held-out edits of other folders that are not to leak; what hygiene needs is refused now, if it is."""
    if config.hygiene.refuses:
        check_installed()
    prepared = [open_prepared(Path(folder)) for folder in config.hygiene.held_out]
    return Joined(rows for each in prepared for rows in each.heldout.values())


def _make_corpora(
    spools: dict[str, Spool], elsewhere: Sequence[OracleRow], work: Path, config: OracleConfig, progress: Progress
) -> dict[str, Any]:
    def remember(what: str, find: Callable[[], Refused]) -> Refused:
        file = work / f"{what}.jsonl"
        if not file.exists():
            faults = ((name, *each) for name, of_corpus in find().items() for each in of_corpus.items())
            write_rows(file, ({"corpus": name, "place": place, "fault": fault} for name, place, fault in faults))
        return _read_refused(file)

    edits = {name: spool.rows() for name, spool in spools.items()}
    chosen = choose_edits(edits, config, elsewhere, progress, remember)
    return {name: _make_corpus(name, spool, chosen[name], config, progress) for name, spool in spools.items()}


def _read_refused(file: Path) -> Refused:
    refused: Refused = {}
    for row in read_rows(file) if file.exists() else ():
        refused.setdefault(row["corpus"], {})[row["place"]] = row["fault"]
    return refused


def _rejected(work: Path, spools: dict[str, Spool]) -> Iterator[dict]:
    """Yield the rows of rejected.jsonl."""
    refused = [_read_refused(work / f"{what}.jsonl") for what in _SEARCHES]
    for name, spool in spools.items():
        by_hygiene = (of.get(name, {}).values() for of in refused)
        for fault in itertools.chain(spool.rejected(), *by_hygiene):
            yield {"corpus": name, **fault}


def _splits(chosen: Chosen) -> list[Split]:
    return ["heldout" if held_out else "train" for held_out in chosen.held_out]


def _publish(work: Path, out: Path, spools: dict[str, Spool]) -> None:
    """Move what was made to its place; after a kill in between, what has not been moved yet."""
    (out / "manifest.json").unlink(missing_ok=True)  # from here on the folder is unfinished
    with (out / "rejected.jsonl").open("w", encoding="utf-8") as file:
        for fault in _rejected(work, spools):
            file.write(json.dumps(fault, ensure_ascii=False) + "\n")
    for name, spool in spools.items():
        (out / name).mkdir(exist_ok=True)
        for split in ("train", "heldout"):
            made = spool.folder / f"{split}.jsonl"
            if made.exists():
                made.replace(out / name / made.name)
    write_text(out / "manifest.json", (work / "manifest.json").read_text(encoding="utf-8"))
    (work / "settings.json").unlink()  # what a kill leaves from here on is removed, not gone on with
    shutil.rmtree(work)


def _make_corpus(name: str, spool: Spool, chosen: Chosen, config: OracleConfig, progress: Progress) -> dict[str, Any]:
    """Write train.jsonl and heldout.jsonl beside the spool and return the corpus's entry of the manifest."""
    places, splits = chosen.places, _splits(chosen)
    state_file = spool.folder / "made.json"
    state = _read_json(state_file) or {"edits": 0, "sizes": {}, "counts": {}}
    files = {part: spool.folder / f"{part}.jsonl" for part in ("train", "heldout", "more")}
    counts = Counter(state["counts"])
    content = hashlib.sha256(b"[")
    separator = b""
    for line in _in_order(files, state["sizes"], splits[: state["edits"]]):
        content.update(separator + _canonical(json.loads(line)))
        separator = b", "
    opened = {part: _opened_at(path, state["sizes"].get(part, 0)) for part, path in files.items()}
    done = state["edits"]
    left = len(places) - done
    edits = progress(_Sized(spool.lines(places[done:]), left), f"{name}: oracles")
    with _Workers(config, left) as workers:
        for made in workers.map(_jobs(edits, splits[done:])):
            for part, lines in made.lines.items():
                opened[part].write(lines)
            for row in made.canonical:
                content.update(separator + row)
                separator = b", "
            counts.update(made.counts)
            done += made.edits
            for file in opened.values():
                file.flush()
            state = {"edits": done, "sizes": {p: f.tell() for p, f in opened.items()}, "counts": dict(counts)}
            write_text(state_file, json.dumps(state) + "\n")
    # Additional rows follow the edits'. They are copied once all else is done, and again after a kill in between.
    with files["more"].open("rb") as more:
        for line in more:
            opened["train"].write(line)
            content.update(separator + _canonical(json.loads(line)))
            separator = b", "
    for file in opened.values():
        file.close()
    content.update(b"]")
    tags = {key.removeprefix("tag "): n for key, n in sorted(counts.items()) if key.startswith("tag ")}
    entry = {
        "offered": spool.pairs + sum(spool.faults.values()),
        "rejected": dict(spool.faults + Counter(fault["reason"] for fault in chosen.faults)),
        "over_limit": chosen.over_limit,
        "train": splits.count("train"),
        "heldout": splits.count("heldout"),
        "equivalents": counts["equivalents"],  # rows of train.jsonl beside those of "train"; not in what follows
        "tags": tags,
        "statistics": statistics_of(counts) | (token_statistics_of(counts) if config.tokenizer else {}),
        "fingerprint": content.hexdigest(),
        "sha256": {split: file_digest(files[split]) for split in ("train", "heldout")},
    } | ({"found": spool.found[name]} if name in spool.found else {})
    if counts["instructions_made"]:  # and of these, how many leave open what exactly to write
        entry |= {key: counts[key] for key in ("instructions_made", "instructions_inexact")}
    return entry


@dataclass(frozen=True)
class _Made:
    """What a worker made of some edits: lines to append to each file, the rows' canonical bytes, and sums."""

    edits: int
    lines: dict[str, bytes]
    canonical: list[bytes]
    counts: Counter


def _make(job: tuple[list[bytes], list[Split]], config: OracleConfig) -> _Made:
    lines = {"train": [], "heldout": [], "more": []}
    canonical: list[bytes] = []
    counts: Counter = Counter()
    text = _text(config.tokenizer) if config.tokenizer else None
    for line, split in zip(*job, strict=True):
        row, *others = oracle_rows(EditPair(**json.loads(line)), split, config)
        lines[split].append(_line(row))
        lines["more"] += map(_line, others)
        canonical.append(_canonical(asdict(row)))
        counts.update(row_counts(row, text))
        counts.update(f"tag {tag}" for tag in row.tags)
        counts["equivalents"] += len(others)
        if "instruction_made" in row.meta:
            counts["instructions_made"] += 1
            counts["instructions_inexact"] += not row.meta["instruction_made"]
    return _Made(len(canonical), {part: b"".join(rows) for part, rows in lines.items()}, canonical, counts)


class _Workers:
    """The processes that make oracles; none where the edits are few, or ``workers`` is 1."""

    def __init__(self, config: OracleConfig, edits: int) -> None:
        self._make = functools.partial(_make, config=config)
        count = config.workers or usable_cores()
        # A started process imports all this anew; a forked one could hold a lock of a thread that it does not have.
        several = count > 1 and (edits >= _EDITS_FOR_WORKERS or config.workers is not None)
        self._pool = multiprocessing.get_context("spawn").Pool(count) if several else None
        self._ahead = _JOBS_AHEAD * count

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, kind, *_: object) -> None:
        if self._pool is not None:
            self._pool.terminate()
            self._pool.join()

    def map(self, jobs: Iterable[tuple[list[bytes], list[Split]]]) -> Iterator[_Made]:
        """Yield what is made of each job, in order; a few jobs are read ahead."""
        if self._pool is None:
            yield from map(self._make, jobs)
            return
        waiting: deque = deque()
        for job in jobs:
            waiting.append(self._pool.apply_async(self._make, (job,)))
            if len(waiting) >= self._ahead:
                yield waiting.popleft().get()
        while waiting:
            yield waiting.popleft().get()


class _Sized:
    """An iterator with a known length, for progress."""

    def __init__(self, items: Iterable, length: int) -> None:
        self._items, self._length = items, length

    def __iter__(self) -> Iterator:
        return iter(self._items)

    def __len__(self) -> int:
        return self._length


def _jobs(lines: Iterable[bytes], splits: list[Split]) -> Iterator[tuple[list[bytes], list[Split]]]:
    job: tuple[list[bytes], list[Split]] = ([], [])
    size = 0
    for line, split in zip(lines, splits, strict=True):
        job[0].append(line)
        job[1].append(split)
        size += len(line)
        if len(job[0]) == _EDITS_PER_JOB or size >= _BYTES_PER_JOB:
            yield job
            job, size = ([], []), 0
    if job[0]:
        yield job


def _opened_at(path: Path, size: int) -> IO[bytes]:
    """Open a file to append to, without what was written after the last count of it."""
    file = path.open("r+b" if path.exists() else "w+b")
    file.truncate(size)
    file.seek(size)
    return file


def _in_order(files: dict[str, Path], sizes: dict[str, int], splits: list[Split]) -> Iterator[bytes]:
    """Yield the rows that an earlier call wrote, train and held-out ones in the edits' own order."""
    if not splits:
        return
    with files["train"].open("rb") as train, files["heldout"].open("rb") as heldout:
        for split in splits:
            yield (train if split == "train" else heldout).readline()


def _line(row: OracleRow) -> bytes:
    return (json.dumps(asdict(row), ensure_ascii=False) + "\n").encode()


def _canonical(row: dict[str, Any]) -> bytes:
    """A row's bytes in the fingerprint; see ``fingerprint``."""
    return json.dumps(row, ensure_ascii=False, sort_keys=True).encode()


@functools.cache
def _text(tokenizer: str) -> TextTokenizer:
    from decoding.loading import load_text_tokenizer

    return load_text_tokenizer(tokenizer)


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def content_settings(config: OracleConfig) -> dict[str, Any]:
    """The settings that determine the prepared bytes, JSON-ready; of folders in hygiene.held_out the fingerprints.

    Raises:
        UserError: a folder in hygiene.held_out that is not prepared.
    """
    settings = {key: value for key, value in asdict(config).items() if key not in _NOT_CONTENT}
    if config.hygiene.refuses:
        manifests = (finished_manifest(Path(folder)) for folder in config.hygiene.held_out)
        settings["hygiene"]["held_out"] = [manifest["fingerprint"] for manifest in manifests]
    else:
        del settings["hygiene"]
    for key in _CONTENT_IF_SET:
        if settings[key] == getattr(OracleConfig, key):
            del settings[key]
    # Folders prepared before there were these settings stay valid.
    settings = {key: value for key, value in settings.items() if key not in _OPTIONAL - set(config.corpora)}
    if config.pyfix.source is None:
        del settings["pyfix"]["source"]
    if "git" in settings:
        del settings["git"]["out"]
    if "jsonl" in config.corpora:  # the same path may hold other edits
        settings["jsonl_sha256"] = [file_digest(Path(path).expanduser()) for path in config.jsonl]
    return settings


def oracle_rows(pair: EditPair, split: Split, config: OracleConfig) -> list[OracleRow]:
    """Return the row of an edit and, to train on, rows with other programs for it."""
    if split == "heldout":
        return [_oracle_row(pair, split, build_oracle(pair.before, pair.after))]
    program = choose(config.program, pair.before, pair.after)
    short = {"m": config.min_copy, "text_free": config.merge_text_free}
    program = merge_short(program, pair.before, **short)
    others = equivalent(program, pair.before, config.equivalents, f"{config.seed}:{pair.id}", **short)
    rows = [_oracle_row(pair, split, each) for each in (program, *others)]
    return rows[:1] + [replace(row, id=f"{row.id}#{number}") for number, row in enumerate(rows[1:], start=1)]


def _oracle_row(pair: EditPair, split: Split, program: Program) -> OracleRow:
    text = render(program)
    if resolve(parse(text), pair.before) != pair.after:  # the losslessness every later figure rests on (section 4.3)
        raise AssertionError(
            f"{pair.id}: the oracle does not resolve to its gold; this is a bug, please report the pair"
        )
    tags = _tags(pair, program)
    return OracleRow(
        pair.id, pair.corpus, split, pair.group, pair.instruction, pair.before, pair.after, text, tags, pair.meta
    )


def _tags(pair: EditPair, program: Program) -> list[str]:
    """Name what is odd: zero_copy (nothing kept), edge_newline_artifact (a newline gained or lost at a file's edge)."""
    tags = []
    if not program.copies:
        tags.append("zero_copy")
    if pair.before and pair.after and _edge_newlines(pair.before) != _edge_newlines(pair.after):
        tags.append("edge_newline_artifact")
    return tags


def _edge_newlines(text: str) -> tuple[int, int]:
    return len(text) - len(text.lstrip("\n")), len(text) - len(text.rstrip("\n"))


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, ensure_ascii=False, sort_keys=True).encode()).hexdigest()
