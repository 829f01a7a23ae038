"""The line matcher gives the blocks of difflib, on real edits and where ties abound, and searches nothing too often."""

from __future__ import annotations

import json
import os
import random
from difflib import SequenceMatcher
from pathlib import Path

import edit_cases
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data_prep import oracle
from data_prep.oracle import LineMatcher, build_oracle, runs_ending
from data_prep.oracle_bench import DOCUMENTS, difflib_oracle
from decoding.grammar import split_lines

DATA_DIR = os.environ.get("CAD_DATA_DIR")

FEW_KINDS = st.lists(st.sampled_from("ab"), max_size=16) | st.lists(st.sampled_from("abcdef"), max_size=16)
PERIODIC = st.tuples(st.lists(st.sampled_from("abc"), min_size=1, max_size=4), st.integers(1, 6)).map(
    lambda drawn: drawn[0] * drawn[1]
)
DISTINCT = st.integers(0, 20).map(lambda n: [str(i) for i in range(n)])
MIXED = st.lists(st.sampled_from("ab") | st.none(), max_size=20).map(
    lambda items: [item or f"line {i}" for i, item in enumerate(items)]
)


@st.composite
def edits(draw) -> tuple[list[str], list[str]]:
    """Two unrelated sequences, or one and what deletions, repeats, moves, reversals and new items make of it."""
    a = draw(FEW_KINDS | PERIODIC | DISTINCT | MIXED)
    if draw(st.booleans()):
        return a, draw(FEW_KINDS | PERIODIC | MIXED)
    b = list(a)
    for _ in range(draw(st.integers(0, 4))):
        start, stop = sorted(draw(st.tuples(*[st.integers(0, len(b))] * 2)))
        part = b[start:stop]
        match draw(st.sampled_from(["delete", "repeat", "move", "reverse", "new", "insert"])):
            case "delete":
                b[start:stop] = []
            case "repeat":
                b[stop:stop] = part
            case "move":
                b[start:stop] = []
                to = draw(st.integers(0, len(b)))
                b[to:to] = part
            case "reverse":
                b[start:stop] = part[::-1]
            case "new":
                b[start:stop] = [f"new {i}" for i in range(len(part))]
            case "insert":
                b[start:start] = [draw(st.sampled_from("abx"))]
    return (a, b) if draw(st.booleans()) else (b, a)


def assert_same(a, b) -> None:
    matcher, expected = LineMatcher(a, b), SequenceMatcher(None, a, b, autojunk=False)
    assert matcher.get_matching_blocks() == expected.get_matching_blocks()
    assert matcher.get_opcodes() == expected.get_opcodes()


def texts() -> list[tuple[str, str]]:
    """Return before and after of every real edit there is."""
    pairs = []
    for path in sorted([*Path(DATA_DIR).glob("commits/*.jsonl"), *Path(DATA_DIR).glob("humanevalpack/*.jsonl")]):
        for line in path.read_text(encoding="utf-8").split("\n"):
            if line:
                row = json.loads(line)
                names = ("before", "after") if "before" in row else ("buggy_solution", "canonical_solution")
                pairs.append(tuple(row[name] for name in names))
    return pairs


# The search as it is, and its own ways forced on small documents: by anchors where they suffice, and never by them.
WAYS = {"default": {}, "anchors": {"_FEW_PAIRS": -1}, "automaton": {"_FEW_PAIRS": -1, "_LOOKUPS": 0}}
WAYS |= {"in turn": {"_FEW_PAIRS": 20, "_LOOKUPS": 4}}


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=400, deadline=None)
@given(edits())
@example((list("ab"), list("acab")))  # a common prefix that is no block
@example((list("xyyz"), list("xyyyz")))
@example((list("xyyzw"), list("xyyyzw")))
@example(([], []))
@example(([], ["a"]))
def test_the_blocks_are_those_of_difflib(way, edit):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in WAYS[way].items():
            patch.setattr(oracle, name, value)
        assert_same(*edit)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", DOCUMENTS)
@pytest.mark.parametrize("n", [5, 90, 200])
def test_the_blocks_of_hard_documents_are_those_of_difflib(way, name, n, monkeypatch):
    for setting, value in WAYS[way].items():
        monkeypatch.setattr(oracle, setting, value)
    a, b = DOCUMENTS[name](n)
    assert_same(a, b)
    assert_same(b, a)


def test_ids_are_matched_as_lines_are():
    rng = random.Random(0)
    assert_same(rng.choices(range(9), k=80), rng.choices(range(9), k=90))


@pytest.mark.skipif(not DATA_DIR, reason="set CAD_DATA_DIR to the folder of humanevalpack/ and commits/")
def test_every_real_edit_has_the_blocks_of_difflib():
    pairs = texts()
    assert len(pairs) > 100
    for before, after in pairs:
        assert_same(split_lines(before), split_lines(after))
        assert_same(split_lines(after), split_lines(before))
        assert build_oracle(before, after) == difflib_oracle(before, after)


# --- how much is searched ---------------------------------------------------------------------------------------------


def searched(a, b) -> int:
    """Return the number of items in all ranges that are searched, for their longest blocks or by difflib."""
    total = 0

    def counted(search, before=0):
        def count(*arguments):
            nonlocal total
            total += sum(map(len, arguments[before : before + 2]))
            return search(*arguments)

        return count

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(oracle, "_longest_blocks", counted(oracle._longest_blocks))
        patch.setattr(oracle, "SequenceMatcher", counted(oracle.SequenceMatcher, before=1))
        LineMatcher(a, b).get_matching_blocks()
    return total


@pytest.mark.parametrize("name", DOCUMENTS)
def test_no_item_is_searched_more_often_than_there_can_be_sizes_of_blocks(name):
    a, b = DOCUMENTS[name](3000)
    sizes = int((2 * len(a)) ** 0.5)
    assert searched(a, b) <= (sizes + 1) * (len(a) + len(b))


LARGE = {
    "perf-01": (edit_cases.LARGE_UNCHANGED, edit_cases.LARGE_UNCHANGED),
    "perf-02": (edit_cases.BLANK_LINES + "x\n", edit_cases.BLANK_LINES + "y\n"),
    "perf-03": (edit_cases.LONG_LINE + "0];", edit_cases.LONG_LINE + "9];"),
}


@pytest.mark.parametrize(("before", "after"), LARGE.values(), ids=LARGE)
def test_a_large_edit_is_searched_once_and_by_lines(before, after):
    a, b = split_lines(before), split_lines(after)
    assert searched(a, b) <= len(a) + len(b) + 4  # once the whole, and the changed line and the last


@pytest.mark.parametrize("name", ["blank and changed lines in turn", "unique and changed lines in turn"])
def test_blocks_of_one_size_are_found_at_once(name):
    a, b = DOCUMENTS[name](8000)
    assert searched(a, b) <= 2 * (len(a) + len(b))  # the whole, and what is between the blocks
    assert LineMatcher(a, b).get_matching_blocks()[:-1] == [(i, i, 1) for i in range(0, 8000, 2)]


def test_thousands_of_equal_lines_are_aligned():
    a, b = DOCUMENTS["blank, one line changed"](8000)
    assert LineMatcher(a, b).get_matching_blocks() == [(0, 0, 4000), (4000, 4001, 3999), (8000, 8000, 0)]
    assert LineMatcher([""] * 20_000, [""] * 20_001).get_matching_blocks() == [(0, 0, 20_000), (20_000, 20_001, 0)]


# --- runs by their end ------------------------------------------------------------------------------------------------


@given(edits())
def test_the_longest_run_to_each_end_is_found(edit):
    a, b = edit
    for stop, (size, first_end) in enumerate(runs_ending(a, b), start=1):
        runs = {tuple(b[end - n : end]): end for n in range(stop + 1) for end in range(len(b), n - 1, -1)}
        longest = max(n for n in range(stop + 1) if tuple(a[stop - n : stop]) in runs or n == 0)
        assert size == longest
        assert first_end == (runs[tuple(a[stop - size : stop])] if size else 0)
