"""What is in a prepared folder, measured in one pass, and the report on it: Markdown, and one self-contained HTML page.

The rows stay on disk and are read one at a time; in memory are a few numbers for each, and ``hygiene``'s index.
"""

from __future__ import annotations

import math
import random
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import unified_diff
from html import escape
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from data_prep.commit_filters import edit_tags, language_of
from data_prep.counts import copied_spans
from data_prep.humanevalpack import LANGUAGES
from data_prep.hygiene import LEAK_KINDS, Duplicate, Leakage, check_threshold, find_duplicates, find_leaks, recall
from data_prep.prepared import OracleRow, Prepared, open_prepared
from data_prep.rows import Joined, RowError, read_rows
from decoding.commandline import UserError
from decoding.console import markdown_table
from decoding.grammar import Program, parse, split_lines
from decoding.html_page import Plot, Series, contents_entry, figures, items, of_class, page, prose, terms, wide
from decoding.prompt import render_prompt
from decoding.tokens import TokenizerError

if TYPE_CHECKING:
    from decoding.encoder import ProgramEncoder

QUANTILES = (("min", 0), ("p10", 10), ("p50", 50), ("p90", 90), ("p99", 99), ("max", 100))
_SHOWN = 20  # of a list that may be long; all of it is in findings.jsonl
_SAMPLES = 2  # of a corpus
_SAMPLE_LINES, _SAMPLE_CHARACTERS = 60, 4000
_BAR = 40  # characters, in Markdown
_CORPUS_LANGUAGES = {"pyfix": "python", "probeedit": "prose"} | {f"hevalfix-{k}": v for k, v in LANGUAGES.items()}
_SAME_LANGUAGE = {"js": "javascript"}
_NUMBER = re.compile(r"-|[-\d][\d,.]*%?")
_TITLE = "What was prepared"

Progress = Callable[[Iterable, str], Iterable]


@dataclass
class Figures:
    """The numbers of one corpus, an entry an edit.

    ``copied`` is the share of the gold's characters in copied lines, of golds that are not empty. Tokens are counted
    where there is a tokenizer, else empty: of document, gold, program without copied text, and of the whole training
    example (prompt and program) as ``splice=none`` and ``splice=full`` make it.
    """

    copied: array = field(default_factory=lambda: array("d"))
    ops: array = field(default_factory=lambda: array("q"))
    copies: array = field(default_factory=lambda: array("q"))
    gens: array = field(default_factory=lambda: array("q"))
    document_lines: array = field(default_factory=lambda: array("q"))
    program_lines: array = field(default_factory=lambda: array("q"))
    document_tokens: array = field(default_factory=lambda: array("q"))
    gold_tokens: array = field(default_factory=lambda: array("q"))
    program_tokens: array = field(default_factory=lambda: array("q"))
    example_tokens: array = field(default_factory=lambda: array("q"))
    example_tokens_full: array = field(default_factory=lambda: array("q"))
    tags: Counter = field(default_factory=Counter)
    languages: Counter = field(default_factory=Counter)
    not_encoded: Counter = field(default_factory=Counter)  # by reason: text the tokenizer cannot express
    overlong: list[dict] = field(default_factory=list)


def measure(rows: Iterable[OracleRow], encoder: ProgramEncoder | None, max_length: int) -> Figures:
    """Return the figures of ``rows``; examples of more than ``max_length`` tokens are named in ``overlong``.

    An example is too long where it is with ``splice=full``; its entry has the tokens of both.
    """
    found = Figures()
    for row in rows:
        program = parse(row.program)
        found.copies.append(len(program.copies))
        found.gens.append(len(program.gens))
        found.ops.append(len(program.ops))
        copied = sum(map(len, copied_spans(row)))
        if row.after:
            found.copied.append(copied / len(row.after))
        found.tags["copies_only_empty_lines"] += bool(program.copies) and not copied
        found.document_lines.append(len(split_lines(row.before)))
        found.program_lines.append(len(split_lines(row.program)))
        found.tags.update({*row.tags, *tags_of(row)})
        found.languages[language(row)] += 1
        if encoder:
            _count_tokens(row, program, encoder, max_length, found)
    return found


def tags_of(row: OracleRow) -> list[str]:
    """Return what is odd about the texts: edge_newline, whitespace_only (see ``commit_filters.edit_tags``), crlf."""
    return edit_tags(row.before, row.after) + ["crlf"] * ("\r\n" in row.before or "\r\n" in row.after)


def language(row: OracleRow) -> str:
    """Return the language of an edit as its source says, by its path's extension, or its corpus's; else unknown."""
    # In the corpus jsonl, file is where the row was read.
    meta = {**row.meta, "file": ""} if row.corpus == "jsonl" else row.meta
    path = next(filter(None, map(meta.get, ("path", "new_file", "file"))), "")
    by_path = language_of(str(path).encode("utf-8", "surrogatepass"))
    said = meta.get("language") or meta.get("lang")
    name = str(said or by_path or _CORPUS_LANGUAGES.get(row.corpus, "unknown")).lower()
    return _SAME_LANGUAGE.get(name, name)


def _count_tokens(row: OracleRow, program: Program, encoder: ProgramEncoder, max_length: int, found: Figures) -> None:
    try:
        document, gold = (len(encoder.text.encode(text)) for text in (row.before, row.after))
        prompt = len(encoder.prompt(render_prompt(row.instruction, row.before)))
        spliced = written = 0
        for kind, ids in encoder.segments(program, row.before, "full"):
            spliced += len(ids)
            written += len(ids) if kind != "splice" else 0
    except TokenizerError as error:
        found.not_encoded[error.reason] += 1
        return
    found.document_tokens.append(document)
    found.gold_tokens.append(gold)
    found.program_tokens.append(written)
    found.example_tokens.append(prompt + written)
    found.example_tokens_full.append(prompt + spliced)
    if prompt + spliced > max_length:
        found.overlong.append(
            {"id": row.id, "split": row.split, "tokens": prompt + written, "tokens_full": prompt + spliced}
        )


# The report, in parts that both forms show


@dataclass
class Part:
    """A section of the report: a table, what it says, plots, and texts to show as they are (title, text)."""

    anchor: str
    heading: str
    note: str  # beside the heading in the contents
    text: str
    columns: list[str]
    rows: list[list[str]]
    findings: list[str] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    samples: list[tuple[str, str]] = field(default_factory=list)


@dataclass
class Report:
    """The parts, what they are of, and every duplicate, leak and over-length row by name (findings.jsonl)."""

    about: dict[str, str]
    parts: list[Part]
    findings: list[dict]


@dataclass
class ReportConfig:
    """What to report on."""

    data: str  # the prepared folder
    out: str  # the folder to write report.md, report.html and findings.jsonl to
    held_out: list[str] = field(default_factory=list)  # other prepared folders: their held-out edits must not leak
    tokenizer: str | None = None  # hub name, folder, or GGUF file: counts tokens
    max_length: int = 1536  # tokens of prompt and program; longer examples are named
    threshold: float = 0.8  # Jaccard similarity from which edits and documents are near
    seed: int = 0  # of the search for near texts, and of the sample

    def __post_init__(self) -> None:
        check_threshold(self.threshold)
        if self.max_length < 1:
            raise ValueError(f"max_length={self.max_length}: must be at least 1")


def inspect(config: ReportConfig, progress: Progress = lambda it, _: it) -> Report:
    """Return the report on ``config.data``.

    Raises:
        UserError: a folder that is not prepared or damaged, a tokenizer that cannot be had, datasketch not installed.
    """
    prepared = open_prepared(Path(config.data))
    names = list(prepared.manifest["corpora"])
    sets = {"its own held-out split": Joined(prepared.heldout.values())}
    for folder in config.held_out:
        sets[folder] = Joined(open_prepared(Path(folder)).heldout.values())
    edits = Joined([part for name in names for part in (prepared.train[name], prepared.heldout[name])])
    train = Joined(prepared.train.values())
    duplicates = find_duplicates(edits, config.threshold, config.seed, progress)
    leakage = {name: find_leaks(train, of, config.threshold, config.seed, progress) for name, of in sets.items()}
    encoder = None
    if config.tokenizer:
        from decoding.loading import load_encoder

        encoder = load_encoder(config.tokenizer)
    found = {}
    for name in names:
        rows = Joined([prepared.train[name], prepared.heldout[name]])
        found[name] = measure(progress(rows, name), encoder, config.max_length)
    parts = [
        _offered(prepared),
        _refused(prepared),
        _odd(prepared, found),
        _copied(found),
        _programs(found),
        _sizes(found, config),
        _languages(found),
        _duplicates(duplicates, edits, config.threshold),
        _leaks(leakage, train, sets, config.threshold),
        _samples(prepared, config.seed),
    ]
    about = {
        "Folder": config.data,
        "Corpora": ", ".join(names),
        "Fingerprint": prepared.manifest["fingerprint"],
        "Held-out sets": ", ".join(f"{name} (n={len(of)})" for name, of in sets.items()),
        "Tokenizer": config.tokenizer or "none given: tokens are not counted",
    }
    return Report(about, parts, _named(duplicates, edits, leakage, train, sets, found))


def _named(
    duplicates: list[Duplicate],
    edits: Joined[OracleRow],
    leakage: dict[str, Leakage],
    train: Joined[OracleRow],
    sets: dict[str, Joined[OracleRow]],
    found: dict[str, Figures],
) -> list[dict]:
    named = []
    for each in duplicates:
        what = "duplicate" if each.exact else "near_duplicate"
        ids = {"id": edits[each.row].id, "kept": edits[each.kept].id}
        named.append({"finding": what, **ids, "similarity": round(each.similarity, 4)})
    for name, of in leakage.items():
        for leak in of.leaks:
            ids = {"id": train[leak.row].id, "held_out_set": name, "held_out": sets[name][leak.held_out].id}
            named.append({"finding": "leak", "kind": leak.kind, **ids, "similarity": round(leak.similarity, 4)})
    for name, figures_of in found.items():
        named += [{"finding": "overlong", "corpus": name, **row} for row in figures_of.overlong]
    return named


def _offered(prepared: Prepared) -> Part:
    columns = ["corpus", "offered", "refused", "left out by limit", "train", "held out", "more programs"]
    rows, total = [], Counter()
    for name, entry in prepared.manifest["corpora"].items():
        counts = [
            entry["offered"],
            sum(entry["rejected"].values()),
            entry["over_limit"],
            entry["train"],
            entry["heldout"],
            entry.get("equivalents", 0),
        ]
        rows.append([name, *map(_count, counts)])
        total.update(dict(zip(columns[1:], counts, strict=True)))
    if len(rows) > 1:
        rows.append(["all", *(_count(total[column]) for column in columns[1:])])
    text = (
        "Edits by corpus: offered = refused + left out + train + held out. More programs are further training rows of "
        "edits that are counted already; nothing below counts them."
    )
    return Part("offered", "What came in", f"{total['offered']:,} edits offered", text, columns, rows)


def _refused(prepared: Prepared) -> Part:
    first: dict[tuple[str, str], str] = {}
    listed: Counter = Counter()
    path = prepared.folder / "rejected.jsonl"
    try:
        for fault in read_rows(path):
            key = (str(fault.get("corpus")), str(fault.get("reason")))
            listed[key] += 1
            first.setdefault(key, _where(fault))
    except (RowError, OSError) as error:
        raise UserError(f"{path}: {error}") from None
    rows = [[name, reason, _count(n), first[name, reason]] for (name, reason), n in sorted(listed.items())]
    reasons = Counter()
    for (_, reason), n in listed.items():
        reasons[reason] += n
    plots = []
    if reasons:
        labels = [reason for reason, _ in reasons.most_common()]
        bars = Series("edits refused", [(place, float(reasons[reason])) for place, reason in enumerate(labels)])
        plots = [Plot("Refused by reason", "reason", "edits", [bars], kind="groups", labels=labels)]
    text = "Every refused edit is in `rejected.jsonl` of the folder; the first of each reason is shown."
    columns = ["corpus", "reason", "edits", "first"]
    return Part("refused", "What was refused, and why", f"{listed.total():,} refused", text, columns, rows, [], plots)


def _where(fault: dict) -> str:
    row = f", row {fault['row']}" if fault.get("row") is not None else ""
    detail = f": {fault['detail']}" if fault.get("detail") else ""
    return f"{fault.get('file')}{row}{detail}"


def _odd(prepared: Prepared, found: dict[str, Figures]) -> Part:
    no_ops = {name: entry["rejected"].get("no_op", 0) for name, entry in prepared.manifest["corpora"].items()}
    always = [
        "zero_copy",
        "copies_only_empty_lines",
        "edge_newline_artifact",
        "edge_newline",
        "whitespace_only",
        "crlf",
    ]
    tags = always + sorted({tag for of in found.values() for tag in of.tags} - set(always))
    rows = [
        [name, _count(len(of.ops)), _count(no_ops[name]), *(_count(of.tags[tag]) for tag in tags)]
        for name, of in found.items()
    ]
    text = (
        "Prepared edits by tag; an edit may have several. no_op: refused, since gold and document are equal. "
        "zero_copy: the program copies nothing. copies_only_empty_lines: nor does it, but for empty lines, as the one "
        "after a final newline. edge_newline_artifact: newlines at an edge of the file are gained or "
        "lost, beside what else changes; edge_newline: nothing else changes. whitespace_only: only blanks change. "
        "crlf: the document or the gold has carriage returns before newlines."
    )
    columns = ["corpus", "edits", "no_op", *tags]
    return Part(
        "tags", "What is odd", f"{sum(sum(of.tags.values()) for of in found.values()):,} tags", text, columns, rows
    )


def _copied(found: dict[str, Figures]) -> Part:
    rows = [[name, _count(len(of.copied)), *_quantiles(of.copied, _share)] for name, of in found.items()]
    edges = [tenth / 10 for tenth in range(11)]
    plot = _histogram("Copied share of the gold", "copied share", {n: of.copied for n, of in found.items()}, edges)
    text = (
        "The share of the gold's characters that the program copies, an edit at a time; joined characters between ops "
        "are in neither. Edits with an empty gold have none."
    )
    medians = [float(np.median(of.copied)) for of in found.values() if of.copied]
    note = f"medians {min(medians):.0%} to {max(medians):.0%}" if medians else "no edits"
    return Part("copied", "Copied share", note, text, _columns("corpus", "edits"), rows, [], _drawn(plot))


def _programs(found: dict[str, Figures]) -> Part:
    rows = [
        [name, what, *_quantiles(values, _count)]
        for name, of in found.items()
        for what, values in (("ops", of.ops), ("copies", of.copies), ("gens", of.gens))
    ]
    plot = _histogram("Ops a program", "ops", {n: of.ops for n, of in found.items()}, None)
    text = "Operations of the oracle programs: copies of spans of lines, and gens of written text."
    most = max((max(of.ops) for of in found.values() if of.ops), default=0)
    return Part("ops", "Ops a program", f"at most {most:,}", text, _columns("corpus", "of"), rows, [], _drawn(plot))


def _sizes(found: dict[str, Figures], config: ReportConfig) -> Part:
    rows, findings, plots = [], [], []
    for name, of in found.items():
        measured = [("document, lines", of.document_lines), ("program, lines", of.program_lines)]
        if config.tokenizer:
            measured += [
                ("document, tokens", of.document_tokens),
                ("gold, tokens", of.gold_tokens),
                ("program, tokens", of.program_tokens),
                ("example, tokens", of.example_tokens),
                ("example with splice=full, tokens", of.example_tokens_full),
            ]
        rows += [[name, what, *_quantiles(values, _count)] for what, values in measured]
        if config.tokenizer:
            over = sum(length > config.max_length for length in of.example_tokens)
            shown = ", ".join(f"`{_short(row['id'])}` ({row['tokens_full']:,})" for row in of.overlong[:3])
            findings.append(
                f"`{_short(name)}`: {over:,} examples are longer than max_length={config.max_length:,}, with "
                f"splice=full {len(of.overlong):,}" + (f", first {shown}" if shown else "")
            )
            if of.not_encoded:
                reasons = ", ".join(f"{count:,} {reason}" for reason, count in of.not_encoded.items())
                findings.append(f"`{_short(name)}`: {reasons}: no tokens counted for these")
    lines = {name: of.document_lines for name, of in found.items()}
    plots += _drawn(_histogram("Lines a document", "lines", lines, None))
    note = "lines"
    if config.tokenizer:
        note = f"{sum(len(of.overlong) for of in found.values()):,} over max_length with splice=full"
        for title, values in (
            ("Tokens a document", {name: of.document_tokens for name, of in found.items()}),
            ("Tokens a program, copied text left out", {name: of.program_tokens for name, of in found.items()}),
            ("Tokens an example, splice=none", {name: of.example_tokens for name, of in found.items()}),
        ):
            plots += _drawn(_histogram(title, "tokens", values, None))
    text = "Sizes of documents and programs" + (
        ". An example is prompt and program as a recipe with `prompt=numbered` trains on it; those over max_length are "
        "named in `findings.jsonl`."
        if config.tokenizer
        else "; name `tokenizer=` to count tokens."
    )
    return Part("sizes", "Lines and tokens", note, text, _columns("corpus", "of"), rows, findings, plots)


def _languages(found: dict[str, Figures]) -> Part:
    total = Counter()
    for of in found.values():
        total.update(of.languages)
    rows = [
        [name, spoken, _count(n), _share(n / of.languages.total())]
        for name, of in found.items()
        for spoken, n in of.languages.most_common()
    ]
    labels = [spoken for spoken, _ in total.most_common(_SHOWN)]
    bars = Series("edits", [(place, float(total[spoken])) for place, spoken in enumerate(labels)])
    plots = [Plot("Edits by language", "language", "edits", [bars], kind="groups", labels=labels)] if labels else []
    text = "As the corpus says, or by the extension of the path that a row came with; unknown where it came with none."
    note = ", ".join(labels[:4]) + (", ..." if len(labels) > 4 else "") or "no edits"
    return Part("languages", "Languages", note, text, ["corpus", "language", "edits", "share"], rows, [], plots)


def _duplicates(duplicates: list[Duplicate], edits: Joined, threshold: float) -> Part:
    exact = sum(each.exact for each in duplicates)
    rows = [
        [edits[each.row].id, edits[each.kept].id, "exact" if each.exact else f"{each.similarity:.3f}"]
        for each in duplicates[:_SHOWN]
    ]
    findings = [f"{exact:,} exact and {len(duplicates) - exact:,} near duplicates among {len(edits):,} edits"]
    findings += _more(len(duplicates))
    text = (
        f"Edits whose changed lines, with three lines around them, are at least {threshold} similar (Jaccard, exact, "
        f"of five-word shingles) to those of an earlier edit. A pair this similar is found with probability "
        f"{recall(threshold, threshold):.2f}; an exact duplicate always. They are in the folder: a build refuses them "
        "only if asked to."
    )
    note = f"{exact:,} exact, {len(duplicates) - exact:,} near"
    return Part("duplicates", "Duplicates", note, text, ["edit", "first seen as", "similarity"], rows, findings)


def _leaks(leakage: dict[str, Leakage], train: Joined, sets: dict[str, Joined], threshold: float) -> Part:
    rows, findings = [], []
    for name, of in leakage.items():
        counts = of.counts()
        for kind in LEAK_KINDS:
            known = kind in of.compared
            shown = [_count(counts[kind]), _count(of.reached[kind])] if known else ["-", "-"]
            rows.append([name, kind, *shown])
        content = of.rows([kind for kind in LEAK_KINDS if kind != "same_repository"])
        findings.append(
            f"`{_short(name)}`, n={len(sets[name]):,}: {len(content):,} of {len(train):,} training edits leak in some "
            "way other than same_repository"
        )
        for leak in islice((leak for leak in of.leaks if leak.kind != "same_repository"), 3):
            other = sets[name][leak.held_out].id
            findings.append(f"{leak.kind}: `{_short(train[leak.row].id)}` and held-out `{_short(other)}`")
    findings += _more(sum(len(of.leaks) for of in leakage.values()))
    text = (
        "Training edits that show something of a held-out edit, and the held-out edits reached. same_gold: the "
        "held-out gold is the training document or gold. same_document: so is the held-out document. near_document: "
        f"document and gold together are at least {threshold} similar. The others go by repository, path and commit, "
        "and are - where no row on one of the sides came with them. Several kinds may hold for one edit."
    )
    leaking = sum(len(of.rows()) for of in leakage.values())
    columns = ["held-out set", "kind", "training edits", "held-out edits"]
    return Part("leakage", "Leakage", f"{leaking:,} training edits, over all sets", text, columns, rows, findings)


def _more(count: int) -> list[str]:
    return ["`findings.jsonl` has every one of them by name"] if count else []


def _samples(prepared: Prepared, seed: int) -> Part:
    rows, samples = [], []
    for name in prepared.manifest["corpora"]:
        edits = Joined([prepared.train[name], prepared.heldout[name]])
        numbers = random.Random(f"{seed}:{name}").sample(range(len(edits)), min(_SAMPLES, len(edits)))
        for row in (edits[number] for number in sorted(numbers)):
            rows.append([row.id, row.split, _short(row.instruction, 120), ", ".join(row.tags) or "-"])
            diff = unified_diff(split_lines(row.before), split_lines(row.after), "before", "after", lineterm="")
            samples.append((f"{row.id}, the edit", _excerpt(diff)))
            samples.append((f"{row.id}, its program", _excerpt(iter(split_lines(row.program)))))
    text = "Edits drawn by the seed, from each corpus."
    return Part(
        "samples", "Samples", f"{len(rows)} edits", text, ["id", "split", "instruction", "tags"], rows, [], [], samples
    )


def _excerpt(lines: Iterator[str]) -> str:
    shown = list(islice(lines, _SAMPLE_LINES + 1))
    text = "\n".join(shown[:_SAMPLE_LINES])
    cut = len(shown) > _SAMPLE_LINES or len(text) > _SAMPLE_CHARACTERS
    return text[:_SAMPLE_CHARACTERS] + ("\n[the rest is not shown]" if cut else "")


# Figures as text


def _columns(*first: str) -> list[str]:
    return [*first, *(name for name, _ in QUANTILES), "mean"]


def _quantiles(values: Sequence[float], shown: Callable[[float], str]) -> list[str]:
    """Values that occur (nearest rank), and the mean."""
    if not len(values):
        return ["-"] * (len(QUANTILES) + 1)
    at = np.percentile(values, [share for _, share in QUANTILES], method="inverted_cdf")
    mean = float(np.mean(values))
    return [*(shown(value) for value in at.tolist()), shown(mean) if shown is _share else f"{mean:,.1f}"]


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _share(value: float) -> str:
    return f"{value:.1%}"


def _short(text: str, most: int = 80) -> str:
    """One line of text that fits; backticks would end the code it is shown as."""
    line = " ".join(text.replace("`", "'").split())
    return line if len(line) <= most else line[: most - 3] + "..."


def _histogram(title: str, what: str, values: dict[str, Sequence[float]], edges: list[float] | None) -> Plot | None:
    """Bars in percent of each corpus's edits; without ``edges`` they start at whole numbers: 1, 2, 3, 4, 6, 8, ..."""
    values = {name: of for name, of in values.items() if len(of)}
    if not values:
        return None
    doubling = edges is None
    if edges is None:
        most = max(max(of) for of in values.values())
        edges = [1.0, 2.0, 3.0]
        while edges[-1] <= most:
            edges.append(2 * edges[-2])
        values = {name: np.maximum(of, 1) for name, of in values.items()}
    series = []
    for name, of in values.items():
        heights, _ = np.histogram(of, edges)
        shares = [100 * height / len(of) for height in heights.tolist()] + [0.0]
        series.append(Series(name, list(zip(edges, shares, strict=True))))
    return Plot(title, what, "% of the edits", series, kind="bars", log_x=doubling)


def _drawn(plot: Plot | None) -> list[Plot]:
    return [plot] if plot else []


# Markdown


def markdown(report: Report) -> str:
    """Return the report as Markdown; plots are bars of characters."""
    lines = [f"# {_TITLE}", ""]
    lines += [f"- {name}: {_cell(value)}" for name, value in report.about.items()]
    for part in report.parts:
        lines += ["", f"## {part.heading}", "", part.text, ""]
        lines.append(
            markdown_table(list(map(_cell, part.columns)), [list(map(_cell, row)) for row in part.rows])
            if part.rows
            else "None."
        )
        if part.findings:
            lines += ["", *(f"- {finding}" for finding in part.findings)]
        for plot in part.plots:
            lines += ["", f"{plot.title} ({plot.y}):", "", *_fenced(_bars(plot))]
        for title, text in part.samples:
            lines += ["", f"{_cell(title)}:", "", *_fenced(text)]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """Text in one line of Markdown, none of it read as markup."""
    return re.sub(r"([\\`*\[\]|<&])", r"\\\1", " ".join(text.split()))


def _fenced(text: str) -> list[str]:
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return [fence, text, fence]


def _bars(plot: Plot) -> str:
    lines = []
    for series in plot.series:
        if plot.kind == "groups":
            bars = [(plot.labels[int(place)], value, _count(value)) for place, value in series.points]
        else:
            lines.append(series.name)
            ends = [edge for edge, _ in series.points]
            bars = [
                (_bin(start, end, plot.log_x), value, f"{value:.1f}%")
                for (start, value), end in zip(series.points, ends[1:], strict=False)
            ]
        width = max(len(label) for label, _, _ in bars)
        most = max(value for _, value, _ in bars) or 1
        lines += [f"{label:<{width}}  {'#' * math.ceil(_BAR * value / most)} {said}" for label, value, said in bars]
    return "\n".join(lines)


def _bin(start: float, end: float, whole: bool) -> str:
    if not whole:
        return f"{start:.2f} to {end:.2f}"
    return f"{start:,.0f}" if end - start == 1 else f"{start:,.0f} to {end - 1:,.0f}"


# HTML


def html(report: Report) -> str:
    """Return the report as one page. It has no date: equal input gives equal bytes."""
    about = terms({name: f"<code>{escape(value)}</code>" for name, value in report.about.items()})
    contents = "".join(contents_entry(part.anchor, part.heading, part.note) for part in report.parts)
    return page(_TITLE, about, contents, "".join(map(_section, report.parts)))


def _section(part: Part) -> str:
    shown = [
        f'<section id="{part.anchor}">',
        f"<h2>{escape(part.heading)}</h2>",
        f"<p>{prose(part.text)}</p>",
        _table(part) if part.rows else "<p>None.</p>",
        items(map(prose, part.findings)) if part.findings else "",
        figures(part.plots, part.anchor, lambda plot: f"<strong>{escape(plot.title)}</strong>") if part.plots else "",
        *(
            f"<details><summary>{escape(title)}</summary><pre>\n{escape(text)}</pre></details>"
            for title, text in part.samples
        ),
        "</section>\n",
    ]
    return "\n".join(each for each in shown if each)


def _table(part: Part) -> str:
    numeric = [all(_NUMBER.fullmatch(row[i]) for row in part.rows) for i in range(len(part.columns))]

    def cell(text: str, place: int, tag: str) -> str:
        kind = "" if numeric[place] else "text long" if len(text) > 24 else "text"
        return f"<{tag}{of_class(kind)}>{escape(text)}</{tag.split()[0]}>"

    head = "".join(cell(name, place, 'th scope="col"') for place, name in enumerate(part.columns))
    body = ""
    for row in part.rows:
        first, *others = (cell(text, place, "td" if place else 'th scope="row"') for place, text in enumerate(row))
        body += f"<tr>{first}{''.join(others)}</tr>\n"
    return wide(part.heading, f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>")
