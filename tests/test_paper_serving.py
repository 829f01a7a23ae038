"""Table 5: the cost of the output format, on our decoder and on another engine with the same prompts."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest
from small_decoders import text_decoder_of
from small_models import qwen_encoder, save_model

from decoding.decoder import EditRequest
from decoding.engine import Sequence
from eval.paper import make_table
from eval.paper_tables import serving
from eval.paper_tables.inputs import Inputs, Missing, PaperConfig
from eval.paper_tables.serving import BATCHES, PAPER, PAPER_RATIOS, generate_in_batches, prompt_ids, table_5
from eval.paper_tables.strategies import scored

EDITS = [
    {"instruction": "Fix b.", "before": f"a = {number}\nb = 1\n", "after": f"a = {number}\nb = 2\n"}
    for number in range(25)
]


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> PaperConfig:
    folder = tmp_path_factory.mktemp("paper")
    (folder / "edits.jsonl").write_text("".join(json.dumps(edit) + "\n" for edit in EDITS))
    model = str(save_model(folder / "model", "qwen2"))
    return PaperConfig(corpora=["jsonl"], jsonl=[str(folder / "edits.jsonl")], tokenizer=model, model=model, cases=30)


@pytest.fixture
def short(monkeypatch) -> None:
    """Short answers: a random model never ends one."""
    monkeypatch.setattr(serving, "LIMITS", {"full": 24, "program": 12, "program, FSM": 12})


def test_the_table_has_every_batch_that_the_edits_fill(config, short):
    table = make_table("5", Inputs(config))
    names = [column.name for column in table.columns]
    rows = {row.labels[1:]: dict(zip(names, row.figures, strict=True)) for row in table.rows}
    n = next(iter(rows.values()))["n"].ours
    assert n >= 4
    assert list(rows) == [(str(size), "ours", output) for size in BATCHES if size <= n for output in serving.LIMITS]
    written = {}
    for (size, _, output), figures in rows.items():
        full = rows[size, "ours", "full"]
        assert figures["n"].ours == n
        written.setdefault(output, set()).add(figures["out tok"].ours)
        own = figures["ms a request"].ours * figures["tok/s"].ours / 1000
        assert own == pytest.approx(figures["out tok"].ours)  # as in the paper's own cells
        assert figures["latency, full over this"].ours == pytest.approx(
            full["ms a request"].ours / figures["ms a request"].ours
        )
        assert figures["out tok, this over full"].ours == figures["out tok"].ours / full["out tok"].ours
        assert all(figure.paper is None for figure in figures.values())
    assert all(len(means) == 1 for means in written.values())  # greedy: the batch does not change what is written
    assert max(written["full"]) <= 24
    assert max(written["program"] | written["program, FSM"]) <= 12
    assert any("vLLM" in finding and "left out" in finding for finding in table.findings)


def test_edits_that_do_not_fit_the_context_are_left_out_and_counted(config, short, tmp_path):
    edits = [edit | {"before": edit["before"] + "x = 1\n" * 900} for edit in EDITS[:10]]
    (tmp_path / "long.jsonl").write_text("".join(json.dumps(edit) + "\n" for edit in edits))
    table = table_5(Inputs(replace(config, jsonl=[str(tmp_path / "long.jsonl")])))
    assert table.rows == []
    assert any("2 of 2 edits are left out" in finding for finding in table.findings)
    assert any("0 edits do not fill a batch of 1, 4, 16" in finding for finding in table.findings)


def test_a_backend_of_one_edit_at_a_time_leaves_batches_out(config, short):
    table = table_5(Inputs(replace(config, backend="eager", cases=4)))
    assert {row.labels[1] for row in table.rows} == {"1"}
    assert sum("one edit at a time" in finding for finding in table.findings) == 2


def test_the_table_needs_a_model(config):
    with pytest.raises(Missing, match="model="):
        table_5(Inputs(PaperConfig(corpora=config.corpora, jsonl=config.jsonl)))


def test_prompts_are_the_decoders_own(config):
    row = Inputs(config).corpora[0].rows[0]
    request = EditRequest(row.instruction, row.before)
    inputs = Inputs(config)
    for output in serving.LIMITS:
        decoder = serving._decoder(inputs, output)
        assert prompt_ids(decoder.encoder, row, output) == decoder.open(request).prompt


class OtherEngine:
    """What is used of ``vllm.LLM``, with its signatures: a decoder of ours, asked for ids by ids."""

    def __init__(self, decoder) -> None:
        self.decoder, self.calls, self.resets = decoder, [], []

    def generate(self, prompts, sampling_params=None, *, use_tqdm=True) -> list:
        assert use_tqdm is False
        self.calls.append(len(prompts))
        out = []
        for prompt in prompts:
            (sequence,) = self.decoder.engine.run(
                [Sequence(prompt["prompt_token_ids"], self.decoder.grammar, sampling_params.max_tokens, "max_tokens")]
            )
            assert sampling_params.temperature == 0
            assert sampling_params.stop_token_ids == [self.decoder.grammar.end_of_sequence]
            out.append(SimpleNamespace(outputs=[SimpleNamespace(token_ids=tuple(sequence.ids))]))
        return out

    def reset_prefix_cache(self) -> bool:
        self.resets.append(len(self.calls))
        return True


@pytest.mark.parametrize("output", ["full", "program"])
@pytest.mark.parametrize("size", [1, 3])
def test_another_engine_gets_the_same_prompts_and_is_read_alike(config, monkeypatch, output, size):
    module = ModuleType("vllm")
    module.SamplingParams = lambda *, temperature, max_tokens, stop_token_ids: SimpleNamespace(
        temperature=temperature, max_tokens=max_tokens, stop_token_ids=stop_token_ids
    )
    module.TokensPrompt = lambda *, prompt_token_ids: {"prompt_token_ids": prompt_token_ids}
    monkeypatch.setitem(sys.modules, "vllm", module)
    decoder = text_decoder_of("full" if output == "full" else "prompt", weights=2, max_tokens=14)
    rows = Inputs(config).corpora[0].rows[:5]
    engine = OtherEngine(text_decoder_of("full", weights=2))
    seconds, cases = generate_in_batches(engine, decoder, output, rows, size)
    assert engine.calls == [size, *([1] * 5 if size == 1 else [3, 2])]
    assert engine.resets == [1]  # after the warm-up
    assert seconds > 0
    own = [scored(edit, row) for edit, row in zip(decoder.decode([_request(row) for row in rows]), rows, strict=True)]
    quality = ("exact", "parsed", "outcome", "written", "decoded", "stop")
    assert [{key: case[key] for key in quality} for case in cases] == [
        {key: case[key] for key in quality} for case in own
    ]


def _request(row) -> EditRequest:
    return EditRequest(row.instruction, row.before)


# The paper's own figures

CELLS = [(at, cell) for at, cells in PAPER.items() for cell in cells]


def test_each_row_of_the_paper_is_one_call_of_as_many_requests():
    assert all(mean == round(mean) for (_, size), (_, _, mean) in CELLS if size == 1)
    assert len([at for at, _ in CELLS if at[1] == 1]) == 6
    for (_, size), (_, _, mean) in CELLS:
        if size == 4:
            assert round(mean * 4) / 4 == pytest.approx(mean, abs=0.0501)  # printed to one decimal
    for output in (0, 1):  # the same greedy answers would have one mean at every batch
        for corpus in ("probeedit", "hevalfix-py", "hevalfix-js"):
            assert len({PAPER[corpus, size][output][2] for size in BATCHES}) == 3


def test_latency_times_throughput_is_the_mean_output_in_every_cell():
    for _, (latency, throughput, mean) in CELLS:
        low, high = (latency - 0.005) * (throughput - 0.5), (latency + 0.005) * (throughput + 0.5)
        assert low - 0.05 <= mean <= high + 0.05
    assert len(CELLS) == 18


def test_the_ratios_of_the_paper_are_what_the_findings_say():
    for at, (full, program) in PAPER.items():
        latency, throughput, tokens = PAPER_RATIOS[at]
        assert program[1] / full[1] == pytest.approx(throughput, abs=0.0051)  # CaD over Full, not Full over CaD
        assert program[2] / full[2] == pytest.approx(tokens, abs=0.0051)
        assert throughput / tokens == pytest.approx(latency, rel=0.03)
    inverted = [at for at, (full, program) in PAPER.items() if abs(full[1] / program[1] - PAPER_RATIOS[at][1]) > 0.006]
    assert len(inverted) == 8
    assert [at for at, ratios in PAPER_RATIOS.items() if ratios[0] < 1] == [("probeedit", 1), ("hevalfix-js", 1)]
    assert PAPER["hevalfix-py", 1][0][2] / PAPER["hevalfix-py", 1][1][2] == pytest.approx(2.29, abs=0.005)
    assert PAPER_RATIOS["hevalfix-py", 1][:2] == (3.25, 1.42)


@pytest.mark.skipif(not os.environ.get("CAD_DATA_DIR"), reason="needs CAD_DATA_DIR with humanevalpack/")
def test_a_program_of_the_real_corpora_can_be_longer_than_its_document():
    encoder = qwen_encoder()
    found = [serving._budget(corpus.title, corpus.rows, encoder) for corpus in Inputs(PaperConfig()).corpora]
    tokens = "the oracles' programs have {} tokens and their documents {}; in {} edits the program is the longer one."
    assert found == [
        "ProbeEdit: " + tokens.format("6,816", "100,774", "0 of 154"),
        "HEvalFix-Py: " + tokens.format("6,727", "8,872", "69 of 164"),
        "HEvalFix-JS: " + tokens.format("7,824", "14,876", "40 of 164"),
    ]
