"""Covers by runs of tokens, against brute force; token programs; Tables 13, 15 and 21, and the paper's arithmetic."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import SUPPORTED, encoder_of, qwen_tokenizer, tokenizer_of

from eval.paper_tables import copy_ceiling, token_cover
from eval.paper_tables.inputs import Inputs, Missing, PaperConfig
from eval.paper_tables.table import as_json, markdown
from eval.paper_tables.token_cover import (
    MIN_SPANS,
    TokenCopy,
    TokenPair,
    earliest_starts,
    floor,
    greedy_cover,
    optimal_cover,
    resolve_tokens,
    table_13,
    table_15,
    table_21,
    token_ceilings,
    token_oracle,
)

needs_data = pytest.mark.skipif(
    not os.environ.get("CAD_DATA_DIR"), reason="set CAD_DATA_DIR to the folder of humanevalpack/"
)
SEQUENCES = st.lists(st.integers(0, 2), max_size=40)
SHORT = st.lists(st.integers(0, 2), max_size=8)
LEAST = st.integers(1, 5)


# Brute force, by the definitions


def occurs(run, before):
    return any(before[at : at + len(run)] == run for at in range(len(before) - len(run) + 1))


def greedy_by_definition(before, after, least):
    spans, start = [], 0
    while start < len(after):
        length = max(n for n in range(len(after) - start + 1) if occurs(after[start : start + n], before))
        if length >= least:
            spans.append((start, start + length))
            start += length
        else:
            start += 1
    return spans


def every_cover(before, after, least, start=0):
    """All covers of ``after`` from ``start`` on, as lists of spans."""
    if start == len(after):
        yield []
        return
    yield from every_cover(before, after, least, start + 1)
    for stop in range(start + least, len(after) + 1):
        if occurs(after[start:stop], before):
            for rest in every_cover(before, after, least, stop):
                yield [(start, stop), *rest]


@given(SEQUENCES, SEQUENCES)
def test_a_run_is_in_the_document_just_where_it_starts_late_enough(before, after):
    earliest = earliest_starts(before, after)
    assert earliest == sorted(earliest)
    for stop in range(len(after) + 1):
        for start in range(stop + 1):
            assert (start >= earliest[stop]) == occurs(after[start:stop], before)


@given(SEQUENCES, SEQUENCES, LEAST)
def test_the_greedy_cover_is_the_longest_run_from_left_to_right(before, after, least):
    cover = greedy_cover(earliest_starts(before, after), least)
    assert cover.spans == greedy_by_definition(before, after, least)
    assert cover.total == len(after)


@settings(max_examples=200, deadline=None)
@given(SHORT, SHORT, st.integers(1, 4))
def test_the_optimal_cover_is_the_best_of_all_covers(before, after, least):
    cover = optimal_cover(earliest_starts(before, after), least)
    covers = list(every_cover(before, after, least))
    assert cover.spans in covers
    worth = [(sum(stop - start for start, stop in spans), -len(spans)) for spans in covers]
    assert (cover.covered, -len(cover.spans)) == max(worth)


@given(SEQUENCES, SEQUENCES, LEAST)
def test_the_optimal_cover_is_a_cover_and_not_worse_than_the_greedy_one(before, after, least):
    earliest = earliest_starts(before, after)
    greedy, optimal = greedy_cover(earliest, least), optimal_cover(earliest, least)
    edge = 0
    for start, stop in optimal.spans:
        assert edge <= start
        assert stop - start >= least
        assert occurs(after[start:stop], before)
        edge = stop
    assert optimal.covered >= greedy.covered
    if least == 1:
        assert (optimal.covered, len(optimal.spans)) == (greedy.covered, len(greedy.spans))


def test_greed_can_cost_tokens():
    earliest = earliest_starts([1, 2, 3, 9, 3, 4, 9], [1, 2, 3, 4])
    assert greedy_cover(earliest, 2).spans == [(0, 3)]  # the rest is too short; stopping one earlier covers all
    assert optimal_cover(earliest, 2).spans == [(0, 2), (2, 4)]


def test_long_repetitive_documents_are_no_trouble():
    earliest = earliest_starts([0] * 20_000, [0] * 15_000 + [1] + [0] * 30_000)
    expected = [(0, 15_000), (15_001, 35_001), (35_001, 45_001)]
    assert greedy_cover(earliest, 8).spans == expected
    cover = optimal_cover(earliest, 8)
    assert (cover.covered, len(cover.spans)) == (45_000, 3)


# Token programs


@pytest.mark.parametrize("kind", SUPPORTED)
def test_token_programs_give_the_gold(kind):
    text = encoder_of(kind).text

    @settings(max_examples=60, deadline=None)
    @given(*[st.text(st.characters(codec="ascii"), max_size=60)] * 2)
    def check(before, after):
        pair = TokenPair(text.encode(before), text.encode(after))
        program = token_oracle(pair)
        assert resolve_tokens(program, pair.before, text) == after

    check()


@given(*[st.text(max_size=40)] * 2)
def test_the_ids_of_a_token_program_are_those_of_the_gold_for_every_text(before, after):
    text = encoder_of("byte_level").text
    pair = TokenPair(text.encode(before), text.encode(after))
    ids = []
    for op in token_oracle(pair):
        ids += pair.before[op.first : op.last + 1] if isinstance(op, TokenCopy) else op
    assert ids == pair.after
    assert text.decode(ids).decode() == after


# Tables


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer_of("byte_level").save_pretrained(folder)
    return str(folder)


EDITS = [
    ("def add(a, b):\n    return a - b\n", "def add(a, b):\n    return a + b\n"),
    ("one\ntwo\nthree\nfour\n", "three\nfour\none\ntwo\n"),
    ("Ș1 the meeting is on Monday\n", "Ț1 the meeting is on Friday\n"),  # two letters that share their first byte
    ("gone\n", ""),
    ("value = values[0]\n" * 4, "value = values[1]\n" * 4),
]


def jsonl_inputs(tmp_path, tokenizer, edits=EDITS):
    path = tmp_path / "edits.jsonl"
    rows = [{"instruction": f"Edit {i}.", "before": a, "after": b} for i, (a, b) in enumerate(edits)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Inputs(PaperConfig(corpora=["jsonl"], jsonl=[str(path)], tokenizer=tokenizer))


def test_table_13_has_both_covers_at_every_span(tmp_path, tokenizer):
    inputs = jsonl_inputs(tmp_path, tokenizer)
    table = table_13(inputs)
    assert [row.labels[1] for row in table.rows] == [str(least) for least in MIN_SPANS]
    pairs = token_cover.token_pairs(inputs.corpora[0].rows, inputs.text)
    total = sum(len(pair.after) for pair in pairs)
    for row, least in zip(table.rows, MIN_SPANS, strict=True):
        share, spans, mean, bound, most, fewest, gap, _ = (figure.ours for figure in row.figures)
        greedy = [greedy_by_definition(pair.before, pair.after, least) for pair in pairs]
        lengths = [stop - start for spans in greedy for start, stop in spans]
        assert share == pytest.approx(sum(lengths) / total)
        assert spans == len(lengths)
        assert mean == pytest.approx(sum(lengths) / max(len(lengths), 1))
        assert bound == pytest.approx(floor(share, least))
        assert gap == pytest.approx(most - share)
        assert gap >= 0
        assert fewest >= 1 or most == 0
        assert all(figure.paper is None for figure in row.figures)
    assert "token-level cover" in markdown(table)
    json.dumps(as_json(table))


def test_table_15_is_of_probeedit(tmp_path, tokenizer):
    with pytest.raises(Missing, match="probeedit"):
        table_15(jsonl_inputs(tmp_path, tokenizer))
    table = table_15(Inputs(PaperConfig(corpora=["probeedit"], limit=12, tokenizer=tokenizer)))
    *kinds, total = table.rows
    assert total.labels == ("Total",)
    assert sum(row.figures[0].ours for row in kinds) == total.figures[0].ours == 12
    left = sum(row.figures[0].ours * row.figures[4].ours for row in kinds)
    assert left == pytest.approx(12 * total.figures[4].ours)
    assert 0.5 < total.figures[1].ours <= total.figures[2].ours < 1


def test_table_21_counts_what_does_not_come_back(tmp_path, tokenizer):
    inputs = jsonl_inputs(tmp_path, tokenizer)
    table = table_21(inputs)
    held_out, every = table.rows
    n, mean, median, reachable, exact = (figure.ours for figure in every.figures)
    assert held_out.figures[0].ours + sum(row.split == "train" for row in inputs.corpora[0].rows) == n == len(EDITS)
    assert exact == n - 1
    assert "jsonl:3" in " ".join(table.findings)
    found = token_ceilings(inputs.corpora[0].rows, inputs.text)
    assert [case.exact for case in found] == [True, True, False, True, True]
    assert found[3].copied == found[3].reachable == 1.0  # an empty gold leaves nothing to write
    assert found[1].copied < found[1].reachable == 1.0  # difflib does not go back
    assert mean == pytest.approx(sum(case.copied for case in found) / n)
    assert median == sorted(case.copied for case in found)[2]
    low, high = every.figures[1].interval
    assert low <= mean <= high
    assert mean <= reachable
    markdown(table)


def test_table_21_of_a_corpus_without_held_out_cases(tmp_path, tokenizer):
    table = table_21(jsonl_inputs(tmp_path, tokenizer, EDITS[:1]))
    assert sorted(row.figures[0].ours for row in table.rows) == [0, 1]
    empty = next(row for row in table.rows if row.figures[0].ours == 0)
    assert [figure.ours for figure in empty.figures] == [0, None, None, None, 0]
    markdown(table)


# The paper's own numbers


def test_the_papers_floors_do_not_follow_from_its_shares():
    given = {"probeedit": (0.993, 6.4, 6.5), "hevalfix-py": (0.910, 4.5, 4.5), "hevalfix-js": (0.933, 5.4, 4.9)}
    for name, (share, printed, right) in given.items():
        assert token_cover._PAPER_13[name][MIN_SPANS.index(8)][0] == share
        assert token_cover._PAPER_FLOOR[name] == printed
        for rounded in (share - 0.0005, share, share + 0.0005):
            for s in (6.785, 6.79, 6.795):
                assert round(1 / (1 - rounded + rounded / s), 1) == right


def test_the_rest_of_the_papers_table_13_agrees_with_itself():
    totals = {name: figures[1] for name, figures in copy_ceiling._PAPER.items()}
    for name, rows in token_cover._PAPER_13.items():
        for share, spans, mean in rows:
            assert (mean - 0.5) * spans <= (share + 0.0005) * totals[name]
            assert (mean + 0.5) * spans >= (share - 0.0005) * totals[name]


def test_the_papers_table_15_adds_up():
    *kinds, (cases, total) = token_cover._PAPER_15.values()
    assert sum(n for n, _ in kinds) == cases == 154
    assert round(sum(n * share for n, share in kinds) / cases, 3) == total


def test_the_papers_table_12_is_not_74_to_91_percent():
    shares = [share for share, *_ in copy_ceiling._PAPER_12.values()]
    assert (min(shares), max(shares)) == (0.741, 0.978)


# The real corpora


@needs_data
def test_the_papers_covers_come_out_exactly_on_humanevalpack(tmp_path):
    qwen_tokenizer().save_pretrained(tmp_path)
    inputs = Inputs(PaperConfig(corpora=["hevalfix-py", "hevalfix-js"], tokenizer=str(tmp_path)))
    table = table_13(inputs)
    assert len(table.rows) == 2 * len(MIN_SPANS)
    for row in table.rows:
        share, spans, mean = row.figures[:3]
        assert round(share.ours, 3) == share.paper
        assert spans.ours == spans.paper
        assert abs(mean.ours - mean.paper) <= 0.51
    optimal = [(round(row.figures[4].ours, 4), row.figures[5].ours) for row in table.rows]
    assert optimal == [
        (0.9751, 493),
        (0.9658, 411),
        (0.9470, 326),
        (0.9110, 255),
        (0.8344, 189),
        (0.5733, 88),
        (0.9855, 639),
        (0.9780, 528),
        (0.9657, 428),
        (0.9347, 315),
        (0.8717, 224),
        (0.7555, 150),
    ]
    table = table_21(inputs)
    found = {row.labels: [figure.ours for figure in row.figures] for row in table.rows}
    assert [round(value, 4) for value in found["HEvalFix-Py", "all"]] == [164, 0.9191, 0.9646, 0.9488, 164]
    assert [round(value, 4) for value in found["HEvalFix-JS", "all"]] == [164, 0.9415, 0.9762, 0.9716, 164]
    assert [row.figures[0].ours for row in table.rows] == [33, 164, 33, 164]
