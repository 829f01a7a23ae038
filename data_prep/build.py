"""From corpora to a prepared folder: oracle programs, splits, statistics, and a fingerprint.

OUT/CORPUS/train.jsonl, OUT/CORPUS/heldout.jsonl    one row per edit
OUT/rejected.jsonl                                  what was refused, and why
OUT/manifest.json                                   settings, counts, statistics, fingerprints; written last
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from data_prep.bugs import BugsConfig
from data_prep.bugs import generate as generate_bugs
from data_prep.commit_filters import GitConfig
from data_prep.formatter_pairs import FormatterConfig
from data_prep.formatter_pairs import generate as generate_formatter
from data_prep.humanevalpack import LANGUAGES, load_humanevalpack
from data_prep.mine_git import load_commits, mine
from data_prep.oracle import build_oracle
from data_prep.pairs import EditPair
from data_prep.probeedit import ProbeEditConfig
from data_prep.probeedit import generate as generate_probeedit
from data_prep.programs import Choice, choose, equivalent, merge_short
from data_prep.pyfix import PyFixConfig
from data_prep.pyfix import generate_counted as generate_pyfix
from data_prep.rows import RowError, read_rows, write_rows, write_text
from data_prep.user_pairs import load_user_pairs
from decoding.commandline import UserError
from decoding.grammar import Program, parse, render, split_lines
from decoding.resolver import resolve

FORMAT_VERSION = 1
Split = Literal["train", "heldout"]
CORPORA = (*(f"hevalfix-{short}" for short in LANGUAGES), "probeedit", "pyfix", "bugs", "formatter", "jsonl", "git")
# Settings that do not change a single prepared byte.
_NOT_CONTENT = ("out", "data_dir", "tokenizer")
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
    equivalents: int = 0  # up to so many training rows more an edit, with other programs for it
    tokenizer: str | None = None  # hub name, folder, or GGUF file: adds token counts to the statistics
    probeedit: ProbeEditConfig = field(default_factory=ProbeEditConfig)  # the probeedit generator
    pyfix: PyFixConfig = field(default_factory=PyFixConfig)  # the pyfix generator
    bugs: BugsConfig = field(default_factory=BugsConfig)  # the bugs generator: folders of js, java, go, C++ or Rust
    formatter: FormatterConfig = field(default_factory=FormatterConfig)  # the formatter corpus: code and its new layout
    git: GitConfig = field(default_factory=GitConfig)  # the git corpus: commits of local repositories, mined first

    def __post_init__(self) -> None:
        unknown = [name for name in self.corpora if name not in CORPORA]
        if unknown:
            raise ValueError(f"corpora: unknown {', '.join(unknown)}; choose from {', '.join(CORPORA)}")
        if not self.corpora or len(set(self.corpora)) < len(self.corpora):
            raise ValueError(f"corpora={self.corpora}: name at least one corpus, each once")
        if not 0 <= self.heldout < 1:
            raise ValueError(f"heldout={self.heldout}: must be at least 0 and below 1")
        if "jsonl" in self.corpora and not self.jsonl:
            raise ValueError("corpora has jsonl, but no file is named: add jsonl=[FILE,...]")
        if "bugs" in self.corpora and not self.bugs.source:
            raise ValueError("corpora has bugs, but no source is named: add bugs.source=[FOLDER,...]")
        if "git" in self.corpora and not self.git.repo:
            raise ValueError("corpora has git, but no repository is named: add git.repo=[PATH,...]")
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit={self.limit}: must be at least 1")
        for name, least in (("min_copy", 1), ("equivalents", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least {least}")


@dataclass(frozen=True, slots=True)
class OracleRow:
    """One prepared edit; ``program`` is the canonical text of the oracle, ``tags`` names what is odd about the edit.

    A held-out edit has difflib's program whatever is trained on, so that runs on different programs are scored alike.
    An additional training row is the same edit with another program; its id ends in ``#1``, ``#2``, ...
    """

    id: str
    corpus: str
    split: Split
    group: str
    instruction: str
    before: str
    after: str
    program: str
    tags: list[str]
    meta: dict


@dataclass(frozen=True, slots=True)
class Corpus:
    """The oracles of one corpus: every edit with its split, and what was offered, refused, and left out by limit.

    ``found`` is what a generator of bugs says of its source (``BugReport.as_dict``), empty for other corpora.
    ``equivalents`` are additional training rows: edits of ``rows`` with other programs.
    """

    rows: list[OracleRow]
    offered: int
    faults: list[dict]
    over_limit: int
    found: dict[str, dict]
    equivalents: list[OracleRow]


def prepare_corpora(
    config: OracleConfig, progress: Callable[[Iterable, str], Iterable] = lambda it, _: it
) -> dict[str, Corpus]:
    """Return every corpus of ``config`` by name, nothing written but the mined commits of the corpus git.

    Each oracle is checked to resolve to its gold.

    Raises:
        UserError: a file that is missing or damaged, a generator that cannot make what was asked for.
    """
    found: dict[str, dict] = {}
    loaded = {name: _usable(*_load(name, config, progress, found)) for name in config.corpora}
    kept = {name: _limited(name, pairs, config) for name, (pairs, _) in loaded.items()}
    held_out = _heldout_groups(kept, config)
    corpora = {}
    for name, (usable, faults) in loaded.items():
        rows, more = [], []
        for pair in progress(kept[name], name):
            split = "heldout" if pair.group in held_out[_family(name)] else "train"
            row, *others = _oracle_rows(pair, split, config)
            rows.append(row)
            more += others
        over_limit = len(usable) - len(rows)
        corpora[name] = Corpus(rows, len(usable) + len(faults), faults, over_limit, found.get(name, {}), more)
    return corpora


def build_oracles(
    config: OracleConfig, progress: Callable[[Iterable, str], Iterable] = lambda it, _: it
) -> dict[str, Any]:
    """Prepare every corpus of ``config`` under ``config.out`` and return the manifest.

    Pairs that cannot be used are listed in rejected.jsonl with a reason and counted in the manifest: not_json,
    missing_field, not_text, duplicate, no_op, lone_surrogate.

    Raises:
        UserError: as ``prepare_corpora``, or an ``out`` that is a file.
    """
    out = Path(config.out)
    if out.exists() and not out.is_dir():
        raise UserError(f"out={config.out} is a file: name a folder")
    text = None
    if config.tokenizer:
        from decoding.loading import load_text_tokenizer

        text = load_text_tokenizer(config.tokenizer)
    # Everything that can be refused is, before anything that is there is touched.
    prepared = prepare_corpora(config, progress)
    corpora = {}
    (out / "manifest.json").unlink(missing_ok=True)  # from here on the folder is unfinished
    for name, corpus in prepared.items():
        rows = corpus.rows
        for split in ("train", "heldout"):
            of_split = (asdict(row) for row in rows + corpus.equivalents if row.split == split)
            write_rows(out / name / f"{split}.jsonl", of_split)
        corpora[name] = {
            "offered": corpus.offered,
            "rejected": dict(Counter(fault["reason"] for fault in corpus.faults)),
            "over_limit": corpus.over_limit,
            "train": sum(row.split == "train" for row in rows),
            "heldout": sum(row.split == "heldout" for row in rows),
            "equivalents": len(corpus.equivalents),  # rows of train.jsonl beside those of "train"; not in what follows
            "tags": dict(Counter(tag for row in rows for tag in row.tags)),
            "statistics": statistics(rows) | (token_statistics(rows, text) if text else {}),
            "fingerprint": fingerprint(rows + corpus.equivalents),
        } | ({"found": corpus.found} if corpus.found else {})
        made = [row.meta["instruction_made"] for row in rows if "instruction_made" in row.meta]
        if made:  # and of these, how many leave open what exactly to write
            corpora[name] |= {"instructions_made": len(made), "instructions_inexact": made.count(False)}
    rejected = [{"corpus": name, **fault} for name, corpus in prepared.items() for fault in corpus.faults]
    write_rows(out / "rejected.jsonl", rejected)
    manifest = {
        "format": FORMAT_VERSION,
        "settings": content_settings(config),
        "corpora": corpora,
        "fingerprint": _digest([entry["fingerprint"] for entry in corpora.values()]),
    }
    write_text(out / "manifest.json", json.dumps(manifest, indent=2) + "\n")
    return manifest


def content_settings(config: OracleConfig) -> dict[str, Any]:
    """The settings that determine the prepared bytes, JSON-ready."""
    settings = {key: value for key, value in asdict(config).items() if key not in _NOT_CONTENT}
    for key in _CONTENT_IF_SET:
        if settings[key] == getattr(OracleConfig, key):
            del settings[key]
    # Folders prepared before there were these settings stay valid.
    settings = {
        key: value for key, value in settings.items() if key not in {"git", "bugs", "formatter"} - set(config.corpora)
    }
    if config.pyfix.source is None:
        del settings["pyfix"]["source"]
    if "git" in settings:
        del settings["git"]["out"]
    return settings


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest of a prepared folder, or None where there is no finished one.

    Raises:
        UserError: a manifest that is damaged or of another format.
    """
    path = folder / "manifest.json"
    if not path.exists():
        return None
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is damaged ({error}); remove it and build the oracles again") from None
    if manifest.get("format") != FORMAT_VERSION:
        raise UserError(f"{path} has format {manifest.get('format')}, this version reads {FORMAT_VERSION}: build again")
    return manifest


def read_split(folder: Path, corpora: list[str], split: Split) -> list[OracleRow]:
    """Return the rows of one split of some prepared corpora, in file order.

    Raises:
        UserError: a corpus that is not in the folder's manifest, a damaged or missing file.
    """
    rows = []
    manifest = read_manifest(folder) or {"corpora": {}}
    for name in corpora:
        path = folder / name / f"{split}.jsonl"
        if name not in manifest["corpora"] or not path.exists():
            raise UserError(
                f"{folder} has no corpus {name!r}: prepare it with data_prep/build_oracles.py corpora=[{name}]"
            )
        try:
            rows += [OracleRow(**row) for row in read_rows(path)]
        except (RowError, TypeError) as error:
            raise UserError(f"{path}: {error}") from None
    return rows


def fingerprint(rows: Iterable[OracleRow]) -> str:
    """SHA-256 over the content of ``rows``, in order: equal fingerprints mean equal training and evaluation data."""
    return _digest([asdict(row) for row in rows])


def statistics(rows: list[OracleRow]) -> dict[str, Any]:
    """Counts over the oracle programs of ``rows``; the copied share is of gold characters, newlines included."""
    copies = gens = copied = total = 0
    for row in rows:
        spans = copied_spans(row)
        copies += len(spans)
        gens += len(parse(row.program).gens)
        copied += sum(len(span) for span in spans)
        total += len(row.after)
    return {
        "pairs": len(rows),
        "copy_ops": copies,
        "gen_ops": gens,
        "gold_characters": total,
        "copied_share": round(copied / total, 4) if total else None,
    }


def token_statistics(rows: list[OracleRow], text) -> dict[str, Any]:
    """The paper's T, T_copy, T_gen and K (Table 2), counted with a ``TextTokenizer``; spans are encoded jointly."""
    gold = copied = copies = 0
    for row in rows:
        spans = copied_spans(row)
        copied += sum(len(text.encode(span)) for span in spans)
        copies += len(spans)
        gold += len(text.encode(row.after))
    share = round(copied / gold, 4) if gold else None
    return {"T": gold, "T_copy": copied, "T_gen": gold - copied, "K": copies, "copied_token_share": share}


def copied_spans(row: OracleRow) -> list[str]:
    """The text of each copy operation of a row's program."""
    lines = split_lines(row.before)
    return ["\n".join(lines[op.first - 1 : op.last]) for op in parse(row.program).copies]


def _load(
    name: str, config: OracleConfig, progress: Callable, found: dict[str, dict]
) -> tuple[list[EditPair], list[dict]]:
    """Return the pairs of a corpus, and the rows that are none, with the reason; ``found`` gets a bug report."""
    try:
        if name == "jsonl":
            paths = [Path(path).expanduser() for path in config.jsonl]
            for path in paths:
                if not path.is_file():
                    raise UserError(f"jsonl: there is no file {path}")
            return load_user_pairs(paths, config.synthesize_instructions)
        if name == "git":
            return load_commits(mine(config.git, progress))
        if name == "probeedit":
            return generate_probeedit(config.probeedit, config.seed), []
        if name == "pyfix":
            pairs, report = generate_pyfix(config.pyfix, config.seed)
            found[name] = report.as_dict()
            return pairs, []
        if name == "bugs":
            pairs, report = generate_bugs(config.bugs, config.seed, progress)
            found[name] = report.as_dict()
            return pairs, []
        if name == "formatter":
            return generate_formatter(config.formatter, config.seed)
        short = name.removeprefix("hevalfix-")
        return load_humanevalpack(short, _data_dir(short, config), config.tests_in_prompt), []
    except (RowError, ValueError) as error:
        raise UserError(str(error)) from None
    except OSError as error:
        hint = "; without the hub, point data_dir= at JSON Lines files" if name.startswith("hevalfix") else ""
        raise UserError(f"{name}: cannot load ({type(error).__name__}: {str(error).splitlines()[0]}){hint}") from None


def _data_dir(short: str, config: OracleConfig) -> Path | None:
    """The folder to read HumanEvalPack from, None for the hub. A folder that was named must have the file."""
    named = config.data_dir or os.environ.get("CAD_DATA_DIR")
    if not named:
        return None
    if not Path(named).is_dir():
        raise UserError(f"{'data_dir' if config.data_dir else 'CAD_DATA_DIR'}: there is no folder {named}")
    file = Path(named) / "humanevalpack" / f"{LANGUAGES[short]}.jsonl"
    if config.data_dir and not file.is_file():
        raise UserError(f"data_dir: there is no file {file}")
    return Path(named)


def _usable(pairs: list[EditPair], bad_rows: list[dict]) -> tuple[list[EditPair], list[dict]]:
    """Split pairs into those an oracle can be built for and faults, after the faults that loading found."""
    usable, faults = [], list(bad_rows)
    for pair in pairs:
        reason = _fault(pair)
        if reason:
            file, row = pair.meta.get("file", pair.id), pair.meta.get("row")
            faults.append({"file": file, "row": row, "reason": reason, "detail": ""})
        else:
            usable.append(pair)
    return usable, faults


def _family(name: str) -> str:
    """Corpora of one family share their groups: HumanEvalPack has the same problems in every language."""
    return "humaneval" if name.startswith("hevalfix") else name


def _score(purpose: str, name: str, group: str, seed: int) -> str:
    """A group's place in a random order that does not depend on which other groups there are."""
    return hashlib.sha256(f"{purpose}:{seed}:{_family(name)}:{group}".encode()).hexdigest()


def _limited(name: str, pairs: list[EditPair], config: OracleConfig) -> list[EditPair]:
    """At most ``limit`` pairs, in their own order; the same problems in every language."""
    if config.limit is None or len(pairs) <= config.limit:
        return pairs
    order = sorted(range(len(pairs)), key=lambda i: (_score("limit", name, pairs[i].group, config.seed), i))
    return [pairs[i] for i in sorted(order[: config.limit])]


def _heldout_groups(kept: dict[str, list[EditPair]], config: OracleConfig) -> dict[str, set[str]]:
    """Return, by family, whole groups that together reach the held-out share of the family's pairs."""
    sizes: dict[str, Counter] = {}
    for name, pairs in kept.items():
        sizes.setdefault(_family(name), Counter()).update(pair.group for pair in pairs)
    chosen: dict[str, set[str]] = {}
    for family, counts in sizes.items():
        wanted, count, groups = round(config.heldout * counts.total()), 0, set()
        for group in sorted(counts, key=lambda group: _score("split", family, group, config.seed)):
            if count >= wanted:
                break
            groups.add(group)
            count += counts[group]
        chosen[family] = groups
    return chosen


def _fault(pair: EditPair) -> str:
    if pair.before == pair.after:
        return "no_op"
    try:
        "".join((pair.instruction, pair.before, pair.after, pair.group)).encode()
    except UnicodeEncodeError:
        return "lone_surrogate"
    return ""


def _oracle_rows(pair: EditPair, split: Split, config: OracleConfig) -> list[OracleRow]:
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
