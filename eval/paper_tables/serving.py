"""Table 5: what the output format costs on a serving engine, with the model writing freely: our decoder, and vLLM."""

from __future__ import annotations

import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_prep.prepared import OracleRow
from decoding.console import track
from decoding.prompt import render_prompt
from eval.metrics import wilson
from eval.paper_tables.inputs import Inputs
from eval.paper_tables.prompt_level import messages_of
from eval.paper_tables.strategies import held_out_cases, scored, weights_of
from eval.paper_tables.table import Column, Figure, Plot, Row, Series, Table

if TYPE_CHECKING:
    from decoding.baselines import TextDecoder
    from decoding.decoder import Decoder, Edit, EditRequest
    from decoding.encoder import ProgramEncoder

BATCHES = (1, 4, 16)
LIMITS = {"full": 1024, "program": 256, "program, FSM": 256}  # max_tokens, as the paper's
CONTEXT = 2048  # max_model_len, as the paper's
PAPER = {  # by corpus and batch: L_mean (s), tokens a second, mean output tokens; of Full, then of the program
    ("probeedit", 1): ((0.50, 161, 81.0), (0.54, 160, 87.0)),
    ("probeedit", 4): ((1.20, 287, 345.5), (0.42, 288, 120.0)),
    ("probeedit", 16): ((0.45, 1402, 625.4), (0.13, 1275, 170.5)),
    ("hevalfix-py", 1): ((2.29, 112, 256.0), (0.70, 159, 112.0)),
    ("hevalfix-py", 4): ((0.42, 377, 159.2), (0.20, 456, 92.0)),
    ("hevalfix-py", 16): ((0.13, 1326, 171.0), (0.12, 901, 105.0)),
    ("hevalfix-js", 1): ((0.78, 162, 127.0), (1.57, 163, 256.0)),
    ("hevalfix-js", 4): ((0.62, 374, 229.8), (0.45, 386, 172.5)),
    ("hevalfix-js", 16): ((0.19, 993, 190.8), (0.12, 1206, 149.1)),
}
PAPER_RATIOS = {  # the same rows: latency, throughput, output tokens
    ("probeedit", 1): (0.93, 0.99, 1.07),
    ("probeedit", 4): (2.89, 1.00, 0.35),
    ("probeedit", 16): (3.33, 0.91, 0.27),
    ("hevalfix-py", 1): (3.25, 1.42, 0.44),
    ("hevalfix-py", 4): (2.09, 1.21, 0.58),
    ("hevalfix-py", 16): (1.11, 0.68, 0.61),
    ("hevalfix-js", 1): (0.50, 1.01, 2.02),
    ("hevalfix-js", 4): (1.38, 1.03, 0.75),
    ("hevalfix-js", 16): (1.55, 1.21, 0.78),
}
_WARM_UP = 8  # tokens decoded once before the clock runs: the first forwards set things up

Timed = tuple[float, list[dict[str, Any]]]  # seconds of all cases together, and each case's figures


def table_5(inputs: Inputs) -> Table:
    """Return latency, throughput and output tokens by corpus, batch, engine and output.

    Raises:
        Missing: no model is named, or it has no weights.
    """
    config = inputs.config
    weights_of(inputs)
    engines: dict[str, Callable[[str, list[OracleRow], int], Timed]] = {"ours": _ours(inputs)}
    vllm, absent = _vllm(inputs)
    if vllm:
        engines["vLLM"] = vllm
    beside = "vLLM" if vllm else "ours"  # the paper's figures stand beside the nearest engine
    rows, findings = [], _findings()
    sizes = []
    for size in BATCHES:
        try:
            _decoder(inputs, "full", size)
            sizes.append(size)
        except ValueError as error:  # a backend, or a model, that decodes one edit at a time
            findings.append(f"Batches of {size} are left out: {error}.")
    for corpus in inputs.corpora:
        offered = held_out_cases(corpus, config.cases)
        edits = [row for row in offered if _fits(inputs.encoder, row)]
        findings.append(_budget(corpus.title, corpus.rows, inputs.encoder))
        if len(edits) < len(offered):
            findings.append(
                f"{corpus.title}: {len(offered) - len(edits)} of {len(offered)} edits are left out, as prompt and "
                f"answer do not fit {CONTEXT} tokens."
            )
        if unfilled := [str(size) for size in sizes if size > len(edits)]:
            findings.append(f"{corpus.title}: {len(edits)} edits do not fill a batch of {', '.join(unfilled)}.")
        work = [
            (size, engine, output)
            for size in sizes
            if size <= len(edits)
            for engine in engines
            for output in LIMITS
            if engine == "ours" or output != "program, FSM"
        ]
        timed = {
            (size, engine, output): engines[engine](output, edits, size)
            for size, engine, output in track(work, f"serving {corpus.title}")
        }
        for size, engine, output in work:
            at = (corpus.name, size)
            compared = at in PAPER and engine == beside and inputs.as_in_paper(corpus.name)
            own = PAPER[at][output == "program"] if compared and output != "program, FSM" else (None,) * 3
            ratios = PAPER_RATIOS[at] if compared and output == "program" else (None,) * 3
            figures = _figures(timed[size, engine, output], timed[size, engine, "full"], own, ratios)
            rows.append(Row((corpus.title, str(size), engine, output), figures))
    return Table(
        number="5",
        title="format cost on a serving engine",
        labels=("corpus", "batch", "engine", "output"),
        columns=(
            Column("n", "count"),
            Column("ms a request", "ms"),
            Column("waits", "ms"),
            Column("tok/s", "mean"),
            Column("out tok", "mean"),
            Column("parsed", "share"),
            Column("EM", "share"),
            Column("latency, full over this", "ratio"),
            Column("tok/s, this over full", "ratio"),
            Column("out tok, this over full", "ratio"),
        ),
        rows=rows,
        method=f"At most {config.cases} held-out edits of each corpus, all of them at every batch size, greedy; at "
        f"most {LIMITS['full']} tokens of a document and {LIMITS['program']} of a program, context {CONTEXT}. Full is "
        "the whole document, program the few-shot prompt without a grammar (free run, as the paper's), and program, "
        "FSM our decoder with grammar, drafts and splice (splice=none). ms a request: wall clock of all requests over "
        "their number, prompts included, which is the paper's L_mean; waits: mean time from taking a request up to its "
        "end. Parsed: the answer ended, and could be read; 95 % Wilson intervals. vLLM: the same "
        "type of weights and the same prompts as ids, prefix caching, emptied before each measurement, a generate call "
        "a batch. The paper: vLLM 0.19, RTX 3090, Qwen2.5-Coder-1.5B-Instruct.",
        sources=inputs.sources | inputs.model_source,
        findings=findings + ([absent] if absent else []),
        plots=_plots(rows),
    )


def _figures(found: Timed, full: Timed, paper: tuple, ratios: tuple) -> tuple[Figure, ...]:
    seconds, of = found

    def per(timed: Timed) -> tuple[float, float, float]:
        """Milliseconds a request, tokens a second, tokens a request."""
        written = sum(case["written"] for case in timed[1])
        return 1000 * timed[0] / len(timed[1]), written / timed[0], written / len(timed[1])

    ms, speed, tokens = per(found)
    full_ms, full_speed, full_tokens = per(full)
    shares = [(k, len(of)) for k in (sum(case["parsed"] for case in of), sum(case["exact"] for case in of))]
    return (
        Figure(len(of)),
        Figure(ms, paper[0] and 1000 * paper[0]),
        Figure(1000 * statistics.mean(case["wall_s"] for case in of)),
        Figure(speed, paper[1]),
        Figure(tokens, paper[2]),
        *(Figure(k / n, None, wilson(k, n)) for k, n in shares),
        Figure(full_ms / ms, ratios[0]),
        Figure(speed / full_speed if full_speed else None, ratios[1]),
        Figure(tokens / full_tokens if full_tokens else None, ratios[2]),
    )


# Engines


def _decoder(inputs: Inputs, output: str, batch_size: int = 1) -> Decoder:
    from decoding.baselines import TextDecoder
    from decoding.decoder import SpliceDecoder

    model, encoder = inputs.model, inputs.encoder
    shared = {"max_tokens": LIMITS[output], "batch_size": batch_size, "backend": inputs.config.backend}
    if output == "program, FSM":
        return SpliceDecoder(model, encoder.tokenizer, encoder=encoder, **shared)
    return TextDecoder(model, encoder, "full" if output == "full" else "prompt", **shared)


def _request(row: OracleRow) -> EditRequest:
    from decoding.decoder import EditRequest

    return EditRequest(row.instruction, row.before)


def prompt_ids(encoder: ProgramEncoder, row: OracleRow, output: str) -> list[int]:
    """Return the ids of an edit's prompt, as the decoder of ``output`` has it."""
    if output == "program, FSM":
        return encoder.prompt(render_prompt(row.instruction, row.before))
    return encoder.prompt(messages_of(row, output))


def _fits(encoder: ProgramEncoder, row: OracleRow) -> bool:
    """Whether every prompt and the longest answer to it fit the context, so that no engine cuts one."""
    return all(len(prompt_ids(encoder, row, output)) + limit <= CONTEXT for output, limit in LIMITS.items())


def _ours(inputs: Inputs) -> Callable[[str, list[OracleRow], int], Timed]:
    def run(output: str, rows: list[OracleRow], size: int) -> Timed:
        decoder = _decoder(inputs, output, size)
        requests = [_request(row) for row in rows]
        decoder.max_tokens = _WARM_UP
        decoder.decode(requests[:size])
        decoder.max_tokens = LIMITS[output]
        started = time.perf_counter()
        edits = decoder.decode(requests)
        seconds = time.perf_counter() - started
        return seconds, [scored(edit, row) for edit, row in zip(edits, rows, strict=True)]

    return run


def _vllm(inputs: Inputs) -> tuple[Callable[[str, list[OracleRow], int], Timed] | None, str]:
    """Return vLLM as an engine, or None and why it is left out."""
    import torch

    from decoding.loading import local_name

    config, model = inputs.config, inputs.model
    hint = "its rows are left out; on a CUDA device, pip install vllm and run this again"
    if importlib.util.find_spec("vllm") is None or model.device.type != "cuda":
        why = "vLLM is not installed" if model.device.type == "cuda" else "vLLM needs a CUDA device"
        return None, f"{why}: {hint}."
    if (Path(config.model).expanduser() / "adapter_config.json").is_file():
        return None, "vLLM is given whole models here, not adapters: its rows are left out; merge the adapter first."
    try:
        from vllm import LLM

        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(model.device)
        engine = LLM(
            model=local_name(config.model),
            dtype=str(model.dtype).removeprefix("torch."),
            max_model_len=CONTEXT,
            enable_prefix_caching=True,
            gpu_memory_utilization=0.85 * free / total,  # of the whole device, on which our own model stays
            generation_config="vllm",  # no repetition penalty and no end tokens of the model's own generation settings
            seed=0,
        )
    except Exception as error:  # whatever it raises where it does not fit the model, the driver, or its own packages
        print(f"vLLM: {type(error).__name__}: {error}", file=sys.stderr)
        return None, f"vLLM does not load {config.model} here ({type(error).__name__}): its rows are left out."

    def run(output: str, rows: list[OracleRow], size: int) -> Timed:
        decoder = _decoder(inputs, output)
        return generate_in_batches(engine, decoder, output, rows, size)

    return run, ""


def generate_in_batches(engine: Any, decoder: TextDecoder, output: str, rows: list[OracleRow], size: int) -> Timed:
    """Run the prompts of ``decoder``, token for token, through ``vllm.LLM.generate``, ``size`` to a call.

    Answers are read and scored as the decoder's own. Its prefix cache is emptied first: an earlier measurement holds
    the same prompts.
    """
    from vllm import SamplingParams, TokensPrompt

    end = decoder.encoder.table.end_of_sequence
    settings = SamplingParams(temperature=0.0, max_tokens=decoder.max_tokens, stop_token_ids=[end])
    warm_up = SamplingParams(temperature=0.0, max_tokens=_WARM_UP, stop_token_ids=[end])
    prompts = [TokensPrompt(prompt_token_ids=prompt_ids(decoder.encoder, row, output)) for row in rows]
    engine.generate(prompts[:size], warm_up, use_tqdm=False)
    engine.reset_prefix_cache()
    total, cases = 0.0, []
    for at in range(0, len(rows), size):
        started = time.perf_counter()
        outputs = engine.generate(prompts[at : at + size], settings, use_tqdm=False)
        seconds = time.perf_counter() - started
        total += seconds
        for row, generated in zip(rows[at : at + size], outputs, strict=True):
            edit = _read(decoder, row, list(generated.outputs[0].token_ids))
            edit.stats.wall_s = seconds  # generate returns when the whole batch is done
            cases.append(scored(edit, row))
    return total, cases


def _read(decoder: TextDecoder, row: OracleRow, ids: list[int]) -> Edit:
    """Read ids of another engine as the decoder reads its own."""
    sequence = decoder.open(_request(row))
    sequence.ids, sequence.state = ids, sequence.grammar.start
    for token in ids:
        sequence.state = sequence.grammar.advance(sequence.state, token)
    sequence.stats.decoded = len(ids)
    if not sequence.state.ended:
        sequence.stats.stop = sequence.limit_reason
    return decoder.close(sequence, row.before)


# What the paper says


def _budget(title: str, rows: list[OracleRow], encoder: ProgramEncoder) -> str:
    encode = encoder.text.encode
    sizes = [(len(encode(row.program)), len(encode(row.after))) for row in rows]
    longer = sum(program > gold for program, gold in sizes)
    program, gold = map(sum, zip(*sizes, strict=True))
    return (
        f"{title}: the oracles' programs have {program:,} tokens and their documents {gold:,}; in {longer} of "
        f"{len(rows)} edits the program is the longer one."
    )


def _findings() -> list[str]:
    return [
        "The paper says 32 cases a corpus. Greedy answers to the same 32 are the same at every batch, but for "
        "rounding, yet its Full writes 81, 345.5 and 625.4 tokens on ProbeEdit at batches of 1, 4 and 16. All its six "
        "means at batch 1 are whole numbers and all at batch 4 are whole quarters: each row is one generate call of "
        "that many requests, one case at batch 1.",
        "L_mean times thr is the mean output in every one of its 18 cells, so L_mean is a call's time over its "
        "requests, the inverse of throughput; a request waits for the whole call. Both are columns here.",
        "Its caption has the throughput ratio as Full/CaD; the figures are CaD/Full (161 and 160 give 0.99x).",
        "It calls HEvalFix-JS at batch 1 the only latency regression of the table; ProbeEdit at batch 1 has 0.93x.",
        "Of its 3.25x on HEvalFix-Py at batch 1, 1.42x is a throughput that differs between two runs of one engine at "
        "the same load; the tokens (112 against 256) give 2.29x.",
        "It concludes that an FSM-constrained decoder matches or beats every row, as a program's budget is at most a "
        "document's on every corpus. That holds of totals over oracle programs, not of every edit (see below), and a "
        "grammar does not bound how long a model writes.",
    ]


def _plots(rows: list[Row]) -> list[Plot]:
    """One plot a corpus: milliseconds a request by batch, a line for each engine and output."""
    plots = []
    for title in dict.fromkeys(row.labels[0] for row in rows):
        lines: dict[str, list[tuple[float, float]]] = {}
        for row in rows:
            if row.labels[0] == title:
                lines.setdefault(f"{row.labels[2]}, {row.labels[3]}", []).append(
                    (float(row.labels[1]), row.figures[1].ours)
                )
        series = [Series(name, points) for name, points in lines.items()]
        plots.append(Plot(f"{title}: ms a request", "batch", "ms", series, log_x=True, log_y=True))
    return plots
