"""Table 24 and Appendix G: what each way of decoding costs, on one model and the same edits."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from small_decoders import DOCUMENTS, decoder_of, model_of, program_ids, scripted, text_decoder_of
from small_models import encoder_of, save_model

from decoding.decoder import EditRequest, reference_decode
from decoding.grammar import parse
from eval.metrics import wilson
from eval.paper import make_table
from eval.paper_tables.inputs import Inputs, Missing, PaperConfig
from eval.paper_tables.strategies import (
    FULL,
    PAPER,
    PAPER_CASES,
    PAPER_FORWARDS,
    PAPER_GOLD,
    PAPER_TAU_MS,
    STRATEGIES,
    held_out_cases,
    scored,
    strategies_of,
    table_24,
)

EDITS = [
    {"instruction": "Fix b.", "before": f"a = {number}\nb = 1\n", "after": f"a = {number}\nb = 2\n"}
    for number in range(10)
]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Inputs:
    folder = tmp_path_factory.mktemp("paper")
    (folder / "edits.jsonl").write_text("".join(json.dumps(edit) + "\n" for edit in EDITS))
    model = str(save_model(folder / "model", "qwen2"))
    return Inputs(
        PaperConfig(corpora=["jsonl"], jsonl=[str(folder / "edits.jsonl")], tokenizer=model, model=model, cases=1)
    )


def test_the_table_has_every_strategy_on_the_same_edits(inputs):
    table = make_table("24", inputs)
    names = [column.name for column in table.columns]
    rows = {row.labels[0]: dict(zip(names, row.figures, strict=True)) for row in table.rows}
    assert tuple(rows) == STRATEGIES
    for figures in rows.values():
        assert figures["n"].ours == 1
        assert all(figure.paper is None for figure in figures.values())  # no ProbeEdit here
        assert figures["EM"].interval == pytest.approx(wilson(int(figures["EM"].ours), 1))
    assert rows[FULL]["times faster than full"].ours == 1
    for name in STRATEGIES[:2]:
        assert rows[name]["forwards"].ours == rows[name]["decoded"].ours
        assert rows[name]["copied"].ours == rows[name]["forced"].ours == 0
    same = ("decoded", "copied", "forced")
    paper, unspliced = (rows[name] for name in STRATEGIES[2:4])
    assert [paper[key] for key in same] == [unspliced[key] for key in same]
    assert unspliced["forwards"].ours == sum(unspliced[key].ours for key in same)
    assert "jsonl" in table.sources


def test_without_a_splice_every_token_is_a_forward_of_its_own():
    encoder = encoder_of("byte_level")
    ways = strategies_of(model_of("qwen2", "byte_level", 0), encoder, max_tokens=70)
    reference = decoder_of(splice="full", max_tokens=70)
    copied = 0
    for document in DOCUMENTS[:4]:
        request = EditRequest("Edit.", document)
        edits = {name: way(request) for name, way in ways.items()}
        _, _, paper, unspliced, ours = edits.values()
        assert paper.ids == unspliced.ids == reference_decode(reference, request).ids
        assert unspliced.stats.forwards == len(unspliced.ids)
        assert paper.stats.forwards <= unspliced.stats.forwards
        bare = decoder_of(splice="none", drafts=False, max_tokens=70).decode_one(request)
        assert (ours.ids, ours.stats.copied) == (bare.ids, bare.stats.copied)
        assert ours.stats.forwards <= bare.stats.forwards
        assert all(len(edit.ids) <= 70 for edit in edits.values())
        copied += unspliced.stats.copied
    assert copied > 0


def test_text_that_no_token_spells_is_counted_by_every_strategy():
    ways = strategies_of(model_of("qwen2", "byte_level", 0), encoder_of("byte_level"), max_tokens=5)
    for way in ways.values():
        edit = way(EditRequest("Edit.", "a\ud800"))
        assert (edit.text, edit.stats.stop) == (None, "lone_surrogate")


def test_an_edit_is_scored_by_what_it_makes(inputs):
    row = inputs.corpora[0].rows[0]
    request = EditRequest(row.instruction, row.before)
    end = encoder_of("byte_level").table.end_of_sequence
    text = encoder_of("byte_level").text.encode
    for format, answer in (("full", row.after), ("prompt", row.program)):
        decoder = text_decoder_of(format, max_tokens=200)
        right = scored(scripted(decoder, {0: [*text(answer), end]}).decode_one(request), row)
        assert (right["exact"], right["parsed"], right["written"]) == (True, True, len(text(answer)) + 1)
        cut = text_decoder_of(format, max_tokens=len(text(answer)))
        found = scored(scripted(cut, {0: text(answer)}).decode_one(request), row)
        assert (found["exact"], found["parsed"], found["stop"]) == (False, False, "max_tokens")
    decoder = decoder_of(max_tokens=200)
    ids = program_ids(decoder, parse(row.program), row.before)
    constrained = scored(scripted(decoder, {0: ids}).decode_one(request), row)
    assert (constrained["exact"], constrained["parsed"], constrained["program_exact"]) == (True, True, True)


def test_held_out_edits_come_first_and_all_where_there_are_none(inputs):
    corpus = inputs.corpora[0]
    assert {row.split for row in held_out_cases(corpus, 10)} == {"heldout"}
    trained = replace(corpus, rows=[row for row in corpus.rows if row.split == "train"])
    assert held_out_cases(trained, 3) == trained.rows[:3]


def test_the_table_needs_a_model_with_its_weights(inputs):
    with pytest.raises(Missing, match="model="):
        table_24(Inputs(replace(inputs.config, model=None)))
    with pytest.raises(Missing, match="random_weights"):
        table_24(Inputs(replace(inputs.config, random_weights=True)))


def test_the_papers_own_figures_say_what_the_findings_say():
    (ms, tokens, *_, exact), (prompt_ms, *_), (constrained_ms, *_, wrong) = PAPER.values()
    assert ms / constrained_ms == pytest.approx(2.0, abs=0.005)
    assert ms / prompt_ms == pytest.approx(2.47, abs=0.005)
    assert (exact, wrong, PAPER_CASES) == (4, 0, 4)
    assert sum(PAPER_FORWARDS[key] for key in ("decode steps", "forced forwards", "splices")) == 49
    assert PAPER_FORWARDS["as it says"] == 55
    assert tokens / PAPER_GOLD == pytest.approx(1 / 8, abs=0.01)
    assert tokens * PAPER_TAU_MS == 1896
    assert wilson(0, 4)[1] == pytest.approx(0.49, abs=0.005)
    assert wilson(4, 4)[0] == pytest.approx(0.51, abs=0.005)
