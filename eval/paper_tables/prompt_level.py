"""Table 25: the program as a mere output format of a model behind an API, beside regeneration of the document."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from data_prep.prepared import OracleRow
from decoding.grammar import GrammarError, parse
from decoding.prompt import render_few_shot_prompt, render_format_prompt
from decoding.resolver import ResolveError, resolve
from eval.endpoint import KEY_VARIABLE, THINKING_TOKENS, Answer, ChatModel, Messages, NoAnswer, ask_all
from eval.metrics import exact_match, wilson
from eval.paper_tables.inputs import Inputs, Missing
from eval.paper_tables.table import Column, Figure, Plot, Row, Series, Table

if TYPE_CHECKING:
    from decoding.tokens import TextTokenizer

Format = Literal["program", "full"]
FORMATS: tuple[Format, ...] = ("program", "full")
PAPER = {"GPT-5-mini": (0.80, 1.00, 465), "Claude Haiku": (0.50, 0.99, 153), "DeepSeek-v3.2": (0.43, 0.98, 62)}
PAPER_CASES = 131
PAPER_SAVED = (0.48, 0.92)
PAPER_GOLD = 101_113 / 154  # tokens of a ProbeEdit gold, its Table 2
PAPER_PROGRAM = 45.3  # tokens of a ProbeEdit program, its Table 3


@dataclass(frozen=True, slots=True)
class Reading:
    """What an answer comes to. ``error`` is why it gives no document: a parser's or resolver's reason, or cut."""

    text: str | None
    parsed: bool
    error: str | None = None


def messages_of(row: OracleRow, format: Format) -> Messages:
    """Return the prompt: the few-shot one that teaches the program, or the one that asks for the whole document.

    They are those of ``decoding.baselines.TextDecoder`` with ``prompt`` and ``full``.
    """
    if format == "program":
        return render_few_shot_prompt(row.instruction, row.before)
    return render_format_prompt(row.instruction, row.before, "full")


def read_answer(answer: Answer, document: str, format: Format) -> Reading:
    """Return the edited document: a program parsed and strictly resolved, or the text as it is.

    Blanks between operations and a program without its outer tag are accepted (``decoding.grammar.parse``); a code
    fence or a sentence before it is not. An answer that was cut is no document, whatever it parses to.
    """
    if not answer.complete:
        return Reading(None, False, "cut")
    if format == "full":
        return Reading(answer.text, True)
    try:
        program = parse(answer.text)
    except GrammarError as error:
        return Reading(None, False, error.reason)
    try:
        return Reading(resolve(program, document), True)
    except ResolveError as error:
        return Reading(None, True, error.reason)


def table_25(inputs: Inputs) -> Table:
    """Return exact match, parse rate and output tokens of every ``endpoint_model``, asked for programs and documents.

    Answers are kept in OUT/answers.jsonl and not asked for again.

    Raises:
        Missing: no endpoint or no model is named.
        UserError: as ``eval.endpoint.ask_all``.
    """
    config = inputs.config
    if config.endpoint is None or not config.endpoint_model:
        raise Missing("it asks models behind an API: name them with endpoint= and endpoint_model=")
    models = [ChatModel(config.endpoint, name) for name in dict.fromkeys(config.endpoint_model)]
    cases = {corpus.title: corpus.rows[: config.cases] for corpus in inputs.corpora}
    asked = [(format, row) for format in FORMATS for rows in cases.values() for row in rows]
    prompts = [(messages_of(row, format), 2 * len(inputs.text.encode(row.before)) + 256) for format, row in asked]
    rows, saved, notes = [], [], []
    for model in models:
        answers = ask_all(model, prompts, Path(config.out) / "answers.jsonl", f"asking {model.model}")
        given = [answer for answer in answers if isinstance(answer, Answer)]
        by_api = all(answer.output_tokens is not None for answer in given)
        if not all(answer.greedy for answer in given):
            notes.append(f"{model.model} does not take temperature 0: its answers are samples.")
        remaining = iter(answers)
        found = {
            (format, title): [(row, next(remaining)) for row in of_corpus]
            for format in FORMATS
            for title, of_corpus in cases.items()
        }
        for title in cases:
            spent = {format: _tokens(found[format, title], by_api, inputs.text) for format in FORMATS}
            for format in FORMATS:
                row = _row((model.model, title, format), found[format, title], spent, by_api, inputs.text)
                rows.append(row)
            if spent["program"] and spent["full"]:
                saved.append((f"{model.model}, {title}", spent["program"], spent["full"]))
    rows += [
        Row(
            (name, f"its {PAPER_CASES} of ProbeEdit", "program"),
            (Figure(None, PAPER_CASES), *(Figure(None, value) for value in figures), *[Figure()] * 4),
        )
        for name, figures in PAPER.items()
    ]
    return Table(
        number="25",
        title="the prompt-level variant, on models behind an API",
        labels=("model", "corpus", "output"),
        columns=(
            Column("answered", "count"),
            Column("EM", "share"),
            Column("parsed", "share"),
            Column("out tok", "mean"),
            Column("counted by", "text"),
            Column("tok of the text", "mean"),
            Column("fewer than full", "share"),
            Column("errors", "text"),
        ),
        rows=rows,
        method=f"The first {config.cases} edits of each corpus, asked for twice: as a few-shot program, parsed and "
        "strictly resolved, and as the whole edited document. Shares are of the answers, with 95 % Wilson intervals. "
        "Output tokens are the API's usage field, thinking included, where it gives one for every answer, else those "
        "of the text under the tokenizer named below; means. Temperature 0; at most twice the document's tokens plus "
        f"256 ({THINKING_TOKENS:,} more where the limit counts thinking). Errors: an answer's first, by kind. The key "
        f"comes from {KEY_VARIABLE} alone.",
        sources=inputs.sources | {"endpoint": models[0].endpoint, "tokenizer": config.tokenizer},
        findings=_findings() + notes,
        plots=[_plot(saved)] if saved else [],
    )


def implied_full(tokens: float, saved: float) -> float:
    """Return the tokens of a full regeneration that an output of ``tokens`` saves a share ``saved`` of."""
    return tokens / (1 - saved)


def _tokens(found: list[tuple[OracleRow, Answer | NoAnswer]], by_api: bool, text: TextTokenizer) -> float | None:
    counts = [
        answer.output_tokens if by_api else len(text.encode(answer.text))
        for _, answer in found
        if isinstance(answer, Answer)
    ]
    return statistics.mean(counts) if counts else None


def _row(
    labels: tuple[str, str, Format],
    found: list[tuple[OracleRow, Answer | NoAnswer]],
    spent: dict[Format, float | None],
    by_api: bool,
    text: TextTokenizer,
) -> Row:
    format = labels[2]
    errors: Counter[str] = Counter()
    exact = parsed = answered = 0
    for row, answer in found:
        if isinstance(answer, NoAnswer):
            errors[f"no answer ({answer.kind})"] += 1
            continue
        reading = read_answer(answer, row.before, format)
        answered += 1
        parsed += reading.parsed
        exact += exact_match(reading.text, row.after)
        if reading.error:
            errors[reading.error] += 1
    both = spent["program"] is not None and spent["full"]
    return Row(
        labels,
        (
            Figure(answered),
            _share(exact, answered),
            _share(parsed, answered),
            Figure(spent[format]),
            Figure("API" if by_api else "tokenizer"),
            Figure(_tokens(found, False, text)),
            Figure(1 - spent["program"] / spent["full"] if format == "program" and both else None),
            Figure(", ".join(f"{count} {kind}" for kind, count in sorted(errors.items())) or "none"),
        ),
    )


def _share(k: int, n: int) -> Figure:
    return Figure(k / n if n else None, None, wilson(k, n))


def _findings() -> list[str]:
    most, least = PAPER["GPT-5-mini"][2], PAPER["DeepSeek-v3.2"][2]
    from_most, from_least = (implied_full(n, s) for n, s in zip((most, least), PAPER_SAVED, strict=True))
    low, high = wilson(round(PAPER["Claude Haiku"][0] * PAPER_CASES), PAPER_CASES)
    return [
        f"The paper says 48 % to 92 % fewer output tokens than full regeneration and has no row of one. {most} tokens "
        f"that are 48 % fewer imply {from_most:.0f} of a regeneration, and {least} that are 92 % fewer imply "
        f"{from_least:.0f}; the gold documents of its own ProbeEdit have {PAPER_GOLD:.0f} (Table 2), against which "
        f"{most} are {1 - most / PAPER_GOLD:.0%} fewer.",
        f"Its {most} output tokens of GPT-5-mini are {most / PAPER_PROGRAM:.0f} times a ProbeEdit program "
        f"({PAPER_PROGRAM} tokens, its Table 3) and {most / least:.1f} times what DeepSeek writes: an API counts "
        "thinking as output, which may be why. Ours has both counts.",
        f"It gives no intervals: at {PAPER_CASES} cases, 50 % is {low:.0%} to {high:.0%}. Its {PAPER_CASES} cases are "
        "of an earlier, unpublished benchmark, so they stand in rows of their own.",
        "Prompt-level programs parse in 98 % to 100 % of the cases here, in 33 of 33 with an untrained 1.5B (Table 6), "
        "and in 0 of 4 with a 7B (Appendix G).",
    ]


def _plot(saved: list[tuple[str, float, float]]) -> Plot:
    series = [
        Series("program", [(float(at), program) for at, (_, program, _) in enumerate(saved)]),
        Series("full", [(float(at), full) for at, (_, _, full) in enumerate(saved)]),
    ]
    labels = [label for label, _, _ in saved]
    return Plot("Output tokens", "model and corpus", "tokens of an answer", series, kind="groups", labels=labels)
