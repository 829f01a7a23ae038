"""The paper's bounds, kernel and cost tables: the formulas hold, its own figures follow or are found wrong."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_models import qwen_tokenizer, save_model, tiny_model

from eval.paper import make_table
from eval.paper_tables.copy_ceiling import bounds
from eval.paper_tables.fixed_costs import minimum_span, safe_span
from eval.paper_tables.inputs import Inputs, Missing, PaperConfig, TokenCounts, paper_size
from eval.paper_tables.kernel import _PAPER, _PAPER_S, LENGTHS, PAPER_CURVES, eager_attention, measure_kernel
from eval.paper_tables.pointer import forward_passes
from eval.paper_tables.speculation import projected_speedups, speedup_over_regeneration
from eval.speedup import SpeedupCurve, bound

EDITS = [
    {
        "instruction": "Fix it.",
        "before": "a = 1\nb = 2\nc = 3\n" * 3 + f"x = {number}\n",
        "after": "a = 1\nb = 2\nc = 3\n" * 2 + f"a = 1\nb = 4\nc = 3\nx = {number}\n",
    }
    for number in range(10)
]
STRAIGHT = SpeedupCurve((1, 512), (1.0, 512.0))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Inputs:
    """Ten edits, and a tiny model that is its own tokenizer."""
    folder = tmp_path_factory.mktemp("paper")
    (folder / "edits.jsonl").write_text("".join(json.dumps(edit) + "\n" for edit in EDITS))
    model = str(save_model(folder / "model", "qwen2"))
    return Inputs(
        PaperConfig(
            corpora=["jsonl"],
            jsonl=[str(folder / "edits.jsonl")],
            tokenizer=model,
            model=model,
            kernel_trials=1,
            cases=2,
            ar_cases=1,
        )
    )


@pytest.mark.parametrize("number", ["2", "11", "12", "16", "17", "19", "20"])
def test_the_tables_of_bounds_and_costs_run_on_a_small_corpus(inputs, number):
    table = make_table(number, inputs)
    assert table.number == number
    assert table.findings
    measured = [figure.ours for row in table.rows for figure in row.figures if figure.ours is not None]
    assert measured
    if number in ("2", "12", "19", "20"):
        assert "jsonl" in table.sources
        assert all(figure.paper is None for row in table.rows for figure in row.figures)  # not the paper's corpus


def test_without_a_model_only_what_needs_none_is_made(inputs):
    bare = Inputs(PaperConfig(corpora=["jsonl"], jsonl=inputs.config.jsonl, tokenizer=inputs.config.tokenizer))
    for number in ("11", "16"):
        with pytest.raises(Missing, match="model="):
            make_table(number, bare)
    assert [column.name for column in make_table("2", bare).columns][-3:] == ["bnd_m8", "bnd_mean", "bnd_exact"]
    assert len(make_table("20", bare).columns) == 2


@pytest.mark.parametrize(
    ("model", "size"),
    [
        ("Qwen/Qwen2.5-Coder-7B-Instruct", "7B"),
        ("qwen2.5-1.5b", "1.5B"),
        ("HuggingFaceTB/SmolLM2-1.7B", None),
        ("a/27B", None),
        ("a/7billion", None),
        (None, None),
    ],
)
def test_the_papers_figures_stand_beside_models_of_its_sizes(model, size):
    assert paper_size(model) == size


def test_a_corpus_is_compared_with_the_paper_only_where_it_is_the_papers():
    assert Inputs(PaperConfig()).as_in_paper("hevalfix-py")
    assert Inputs(PaperConfig()).as_in_paper("pooled")
    assert not Inputs(PaperConfig(limit=10)).as_in_paper("hevalfix-py")
    assert not Inputs(PaperConfig(corpora=["hevalfix-py", "hevalfix-js"])).as_in_paper("pooled")
    assert not Inputs(PaperConfig(corpora=["hevalfix-java"])).as_in_paper("hevalfix-java")


@given(st.lists(st.integers(0, 600), max_size=20), st.integers(1, 2000))
def test_a_curve_of_ones_gains_nothing_and_the_exact_bound_is_equation_3(spans, generated):
    total = sum(spans) + generated
    flat = SpeedupCurve(LENGTHS, (1.0,) * len(LENGTHS))
    tokens = TokenCounts([total], [spans], [[generated]])
    found = bounds(tokens, flat)
    assert found.exact == pytest.approx(1.0)
    assert found.m8 == pytest.approx(1.0)
    by_hand = total / (generated + sum(n / PAPER_CURVES["7B"](n) for n in spans if n))
    assert bounds(tokens, PAPER_CURVES["7B"]).exact == pytest.approx(by_hand)
    assert 1.0 <= bound(total, spans, PAPER_CURVES["7B"]) <= total / generated + 1e-9


@given(st.floats(1, 512))
def test_a_curve_stays_between_its_neighbours(n):
    curve = PAPER_CURVES["1.5B"]
    at = [k for k in LENGTHS if k <= n][-1], next(k for k in LENGTHS if k >= n)
    low, high = sorted(map(curve, at))
    assert low - 1e-9 <= curve(n) <= high + 1e-9


def test_what_is_said_of_the_papers_kernel_is_in_its_own_figures():
    for size, (one, whole) in _PAPER.items():
        for a, b, s in zip(one, whole, _PAPER_S[size], strict=True):
            assert a / b == pytest.approx(s, rel=0.05)
    one, whole = _PAPER["1.5B"]
    assert _PAPER_S["7B"][LENGTHS.index(128)] > _PAPER_S["7B"][LENGTHS.index(256)]
    assert whole[LENGTHS.index(32)] > whole[LENGTHS.index(64)] > whole[LENGTHS.index(128)]
    assert round(one[LENGTHS.index(8)] / 8, 1) == 19.6
    assert round(one[LENGTHS.index(32)] / 32, 1) == 37.5
    assert round(one[-1] / 512, 1) == 30.7


def test_minimum_spans_of_the_papers_times():
    for size, fixed, step in (("1.5B", 0.245, 19.0), ("7B", 0.337, 26.8)):
        assert minimum_span(PAPER_CURVES[size], fixed, step) == 1
        assert PAPER_CURVES[size](1) > 1 + fixed / step
    assert (safe_span(PAPER_CURVES["1.5B"]), safe_span(PAPER_CURVES["7B"])) == (2, 3)


@given(st.floats(0, 5), st.floats(0.1, 30))
def test_a_minimum_span_is_the_least_that_pays(fixed, step):
    found = minimum_span(STRAIGHT, fixed, step)
    saved = [n * step - n * step / STRAIGHT(n) - fixed for n in range(1, 513)]
    if found is None:
        assert all(value <= 1e-9 for value in saved)
    else:
        assert saved[found - 1] > -1e-9
        assert all(value <= 1e-9 for value in saved[: found - 1])


def test_passes_and_projections_are_the_papers_formulas():
    tokens = TokenCounts(gold=[50, 7], spans=[[40, 0], []], gens=[[6], [7]])
    first, second = forward_passes(tokens, STRAIGHT)
    assert (first.pointer, first.program) == (3 + 3 + 1 + 6, pytest.approx(3 + 40 / STRAIGHT(40) + 3 + 2 + 6))
    assert (second.pointer, second.program) == (8, 9)
    projected = projected_speedups(tokens, STRAIGHT, 2.0)
    assert projected == pytest.approx([50 / (3 + 40 / STRAIGHT(40) + 3 + 2 + 3), 7 / (2 + 3.5)])


def test_realised_speed_is_over_the_cases_that_both_ran():
    rows = {
        "autoregressive": [{"case": 0, "wall_s": 4.0}],
        "ours": [{"case": 0, "wall_s": 1.0}, {"case": 1, "wall_s": 9.0}],
    }
    assert speedup_over_regeneration(rows, "ours") == 4.0
    assert speedup_over_regeneration(rows, "absent") is None


def test_the_kernel_is_timed_and_the_model_keeps_its_own_attention():
    model = tiny_model("qwen2", 300, seed=0)
    before = model.config._attn_implementation
    times = measure_kernel(model, 2, lengths=(1, 4, 16), prefix=20)
    assert model.config._attn_implementation == before
    for side in (times.paper, times.ours):
        assert 0 < side.one_by_one[0] < side.one_by_one[1] < side.one_by_one[2]
        assert all(low <= high for low, high in side.spread)
    assert times.curve.lengths == (1, 4, 16)
    with eager_attention(model):
        assert model.config._attn_implementation == "eager"
    with pytest.raises(ValueError, match="context"):
        measure_kernel(model, 1, prefix=10**7)


@pytest.mark.skipif(not os.environ.get("CAD_DATA_DIR"), reason="set CAD_DATA_DIR to the folder of humanevalpack/")
def test_the_copy_ceiling_of_humanevalpack_is_the_papers(tmp_path):
    tokenizer = qwen_tokenizer()
    tokenizer.save_pretrained(tmp_path / "qwen")
    inputs = Inputs(PaperConfig(corpora=["hevalfix-py", "hevalfix-js"], tokenizer=str(tmp_path / "qwen")))
    table = make_table("2", inputs)
    for row in table.rows[:2]:
        by_name = {column.name: figure for column, figure in zip(table.columns, row.figures, strict=True)}
        for name in ("n", "T", "T_copy", "T_gen", "K"):
            assert by_name[name].ours == by_name[name].paper
        assert by_name["bnd_exact"].ours == pytest.approx(by_name["bnd_exact"].paper, rel=0.02)
    assert [round(row.figures[-1].ours, 2) for row in table.rows[:2]] == [3.41, 4.17]
    assert any("34.6% of the spans" in finding and "67 are empty" in finding for finding in table.findings)
