"""Every choice of program makes the edit byte-exactly; the fewest operations are the fewest, equivalents equivalent."""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path

import edit_cases
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from small_models import encoder_of

from data_prep.build import OracleConfig, build_oracles, content_settings
from data_prep.build_oracles import summarise
from data_prep.counts import statistics
from data_prep.oracle import build_oracle
from data_prep.prepared import read_manifest, read_split
from data_prep.programs import (
    _cheapest_forward,
    _program,
    _weights,
    choose,
    cost,
    equivalent,
    fewest_ops,
    in_order,
    merge_short,
)
from data_prep.rows import write_rows
from decoding.commandline import from_yaml
from decoding.fsm import ProgramFSM
from decoding.grammar import Copy, Gen, Program, parse, render, split_lines
from decoding.resolver import resolve

DATA_DIR = os.environ.get("CAD_DATA_DIR")
CHOICES = ("difflib", "fewest_ops", "fewest_ops_monotone")
DOCUMENT = st.text("ab}\n", max_size=14) | st.lists(st.sampled_from(["", "x", "yy", "}"]), max_size=9).map("\n".join)
CASES = {case.id: case for case in edit_cases.ROUND_TRIPS}


@st.composite
def edits(draw) -> tuple[str, str]:
    """Two documents: unrelated, or one and what copies of its parts, in any order, and new lines make of it."""
    before = draw(DOCUMENT)
    if draw(st.booleans()):
        return before, draw(DOCUMENT)
    lines = split_lines(before)
    after: list[str] = []
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(lines) - 1))
        after += lines[start : draw(st.integers(start, len(lines)))]
        after += draw(st.lists(st.sampled_from(["", "x", "new"]), max_size=2))
    return before, "\n".join(after)


EDITS = edits()
# Documents of few lines, for which all programs can be listed.
TINY = st.lists(st.sampled_from(["", "x", "yy"]), max_size=4).map("\n".join)


def emitted(op: Copy | Gen) -> list | range:
    """Return something for each line that an operation writes."""
    return range(op.first, op.last + 1) if isinstance(op, Copy) else split_lines(op.content)


def all_programs(before: str, after: str, forward: bool) -> list[Program]:
    """Return every program that makes ``after`` and generates only lines that difflib's does."""
    a, b = split_lines(before), split_lines(after)
    programs: list[Program] = []
    written_out = [isinstance(op, Gen) for op in build_oracle(before, after).ops for _ in emitted(op)]

    def go_on(written: int, ops: list[Copy | Gen]) -> None:
        if written == len(b):
            programs.append(Program(ops))
        behind = max((op.last for op in ops if isinstance(op, Copy)), default=0) if forward else 0
        for stop in range(written + 1, len(b) + 1):
            if all(written_out[written:stop]):
                go_on(stop, [*ops, Gen.of("\n".join(b[written:stop]))])
            size = stop - written
            for first in range(behind, len(a) - size + 1):
                if a[first : first + size] == b[written:stop]:
                    go_on(stop, [*ops, Copy(first + 1, first + size)])

    go_on(0, [])
    return programs


def small_copies(program: Program, document: str, m: int, text_free: bool = False) -> list[Copy]:
    lines = split_lines(document)
    return [
        copy
        for copy in program.copies
        if copy.last - copy.first + 1 < m
        or (text_free and not any(map(str.isalnum, "".join(lines[copy.first - 1 : copy.last]))))
    ]


# --- the choice ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", CHOICES)
@settings(max_examples=120, deadline=None)
@given(EDITS)
@example(("", ""))
@example(("", "\n"))
@example(("\n\n", ""))
@example(("a\r\nb", "b\na\r\n"))
def test_every_choice_resolves_to_its_gold(choice, edit):
    before, after = edit
    program = choose(choice, before, after)
    assert resolve(program, before) == after
    assert parse(render(program)) == program


@settings(max_examples=120, deadline=None)
@given(EDITS)
def test_the_default_is_difflibs(edit):
    assert choose(OracleConfig().program, *edit) == build_oracle(*edit)


@settings(max_examples=120, deadline=None)
@given(EDITS)
def test_fewest_ops_never_costs_more_than_difflib_and_is_difflibs_where_that_costs_no_more(edit):
    usual, free, forward = (choose(choice, *edit) for choice in CHOICES)
    assert cost(free) <= cost(forward) <= cost(usual)
    assert in_order(usual) and in_order(forward)
    for program in (free, forward):
        assert program == usual or cost(program) < cost(usual)
        assert sum(len(op.content) + 1 for op in program.gens) <= cost(usual)[1]


@pytest.mark.parametrize("monotone", [False, True])
@settings(max_examples=120, deadline=None)
@given(TINY, TINY)
@example("x\nyy\nx", "x\nx\nyy\nx")
@example("x\ny", "x\nx\ny")  # to copy the common beginning costs an operation more
@example("yy\nx", "x\nyy")
def test_no_program_at_all_costs_less(monotone, before, after):
    programs = all_programs(before, after, forward=monotone)
    assert all(resolve(program, before) == after for program in programs)
    assert cost(fewest_ops(before, after, monotone)) == min(map(cost, programs))


@settings(max_examples=120, deadline=None)
@given(TINY, TINY)
@example("x\ny\nu\n1\nv\nx\n2\ny", "u\nv\nx\ny")  # one gen of two lines, or three copies and no gen
def test_the_search_through_forward_programs_finds_the_cheapest_by_itself(before, after):
    b = split_lines(after)
    weights = _weights(build_oracle(before, after))
    program = _program(_cheapest_forward(split_lines(before), b, weights), b)
    assert resolve(program, before) == after and in_order(program)
    assert cost(program) == min(map(cost, all_programs(before, after, forward=True)))


def test_moved_and_repeated_lines_are_copies():
    move, dup = CASES["move-02"], CASES["dup-03"]
    assert fewest_ops(move.before, move.after).ops == (Copy(3, 3), Copy(1, 2), Copy(4, 4))
    assert not fewest_ops(dup.before, dup.after).gens
    twice = fewest_ops("def f():\n    return 1\n\nend", "def f():\n    return 1\n\ndef f():\n    return 1\n\nend")
    assert twice.ops == (Copy(1, 3), Copy(1, 4))


@pytest.mark.parametrize("case", edit_cases.ROUND_TRIPS, ids=lambda case: case.id)
def test_every_choice_makes_the_edits_that_tools_got_wrong(case):
    for choice in CHOICES:
        assert resolve(choose(choice, case.before, case.after), case.before) == case.after


def test_a_run_comes_from_behind_the_copy_before_it_where_it_can():
    before = "x\np1\np2\nx\nq1\nq2\nx\nlast"
    assert fewest_ops(before, "q1\nq2\np1\np2\nnew\nx").ops == (Copy(5, 6), Copy(2, 3), Gen.of("new"), Copy(4, 4))
    assert fewest_ops(before, "q1\nq2\np1\np2\nlast\nx").ops == (Copy(5, 6), Copy(2, 3), Copy(8, 8), Copy(1, 1))


def test_many_lines_that_repeat_take_no_more_than_they_must():
    before = "\n".join(["", "}"] * 4000 + ["end"])
    after = "\n".join(["end"] + ["", "}"] * 4000)
    assert fewest_ops(before, after).ops == (Copy(8001, 8001), Copy(1, 8000))


# --- short copies ----------------------------------------------------------------------------------------------------


@settings(max_examples=120, deadline=None)
@given(EDITS, st.sampled_from(CHOICES), st.integers(1, 4), st.booleans())
def test_no_short_copy_is_left_and_the_document_is_the_same(edit, choice, m, text_free):
    before, after = edit
    program = choose(choice, before, after)
    merged = merge_short(program, before, m, text_free)
    assert resolve(merged, before) == after
    assert small_copies(merged, before, m, text_free) == []
    assert not any(isinstance(one, Gen) and isinstance(other, Gen) for one, other in pairwise(merged.ops))
    small = small_copies(program, before, m, text_free)
    assert merged.copies == [copy for copy in program.copies if copy not in small]
    assert len(merged.ops) <= len(program.ops)


def test_a_short_copy_joins_the_gens_around_it():
    document = "a\n\nb\nc\nd\n"
    program = parse('<gen>\nx\n</gen>\n<copy lines="2-2"/>\n<gen>\ny\n</gen>\n<copy lines="4-6"/>')
    merged = Program([Gen.of("x\n\ny"), Copy(4, 6)])
    assert merge_short(program, document, 2) == merge_short(program, document, 1, text_free=True) == merged
    assert merge_short(program, document, 1) == program


def test_copies_without_text_are_written_out_whatever_their_length():
    document = "a {\n}\n\n}\nb {\n}"
    program = Program([Copy(1, 1), Gen.of("new"), Copy(2, 4), Gen.of("more"), Copy(5, 6)])
    assert merge_short(program, document, 1, text_free=True).ops == (
        Copy(1, 1),
        Gen.of("new\n}\n\n}\nmore"),
        Copy(5, 6),
    )
    assert merge_short(program, document, 2).ops[0] == Gen.of("a {\nnew")


@settings(max_examples=60, deadline=None)
@given(EDITS, st.sampled_from(CHOICES), st.integers(1, 3), st.integers(0, 4))
def test_what_is_chosen_can_be_decoded_under_the_same_minimum_and_order(edit, choice, m, k):
    before, after = edit
    program = merge_short(choose(choice, before, after), before, m)
    encoder = encoder_of("byte_level")
    for each in (program, *equivalent(program, before, k, 0, m)):
        fsm = ProgramFSM(encoder, before, monotone=choice != "fewest_ops", min_span=m)
        state = fsm.start
        for segment in encoder.segments(each, before, "none"):
            for token in segment.ids:
                state = fsm.advance(state, token)
        assert state.finished


# --- equivalents -----------------------------------------------------------------------------------------------------


@settings(max_examples=120, deadline=None)
@given(EDITS, st.sampled_from(CHOICES), st.integers(1, 3), st.booleans(), st.integers(0, 12), st.integers(0, 3))
def test_equivalents_are_distinct_and_resolve_to_the_same(edit, choice, m, text_free, k, seed):
    before, after = edit
    program = merge_short(choose(choice, before, after), before, m, text_free)
    others = equivalent(program, before, k, seed, m, text_free)
    assert len(others) <= k
    assert len({render(each) for each in [program, *others]}) == len(others) + 1
    for other in others:
        assert resolve(parse(render(other)), before) == after
        assert small_copies(other, before, m, text_free) == []
        assert in_order(other) or not in_order(program)
    assert others == equivalent(program, before, k, seed, m, text_free)


@settings(max_examples=60, deadline=None)
@given(EDITS, st.integers(1, 6), st.integers(0, 3))
def test_more_equivalents_go_on_from_fewer(edit, k, seed):
    program = build_oracle(*edit)
    more = equivalent(program, edit[0], k + 3, seed)
    assert equivalent(program, edit[0], k, seed) == more[:k]


def test_equivalents_of_any_program_in_any_form():
    document = "a\nb\na\nb"
    program = parse('<copy lines="3-4"/><gen>x</gen><gen>\ny\n</gen><copy lines="1-1"/>')
    others = equivalent(program, document, 50, seed=0)
    assert len(others) >= 10 and {resolve(other, document) for other in others} == {"a\nb\nx\ny\na"}
    assert all(isinstance(op, Copy) or op == Gen.of(op.content) for other in others for op in other.ops)


def test_each_kind_of_change_is_found():
    before = "f {\n}\ng {\n}\n"
    program = Program([Copy(1, 2), Gen.of("new {\n}"), Copy(3, 5)])
    others = {other.ops for other in equivalent(program, before, 200, seed=0)}
    assert (Copy(1, 1), Gen.of("}\nnew {"), Copy(2, 5)) in others  # a boundary slides
    assert (Copy(1, 1), Copy(2, 2), Gen.of("new {\n}"), Copy(3, 5)) in others  # split
    assert (Gen.of("f {\n}\nnew {\n}"), Copy(3, 5)) in others  # written out
    assert resolve(Program([Copy(3, 4), Copy(3, 4)]), before) == "g {\n}\ng {\n}"
    moved = {other.ops for other in equivalent(Program([Copy(3, 4), Copy(2, 2)]), before, 50, seed=0)}
    assert (Copy(3, 4), Copy(4, 4)) in moved  # the same line elsewhere


def test_a_document_that_repeats_one_line_has_equivalents_at_once():
    before, after = ("\n".join(line for i in range(2000) for line in ("", f"{name} {i}")) for name in "xy")
    program = build_oracle(before, after)
    assert len(program.ops) == 4000
    others = equivalent(program, before, 5, seed=0)
    assert len(set(others)) == 5 and all(resolve(other, before) == after for other in others)


def test_deletions_slide_too():
    before = "f {\n}\ng {\n}\nh {\n}"
    program = Program([Copy(1, 2), Copy(5, 6)])
    assert Program([Copy(1, 1), Copy(4, 6)]) in equivalent(program, before, 20, seed=1)


def test_there_may_be_no_other_program():
    assert equivalent(Program([Gen.of("x")]), "y", 5, seed=0) == []
    assert equivalent(Program([Copy(1, 1)]), "y", 5, seed=0) == [Program([Gen.of("y")])]


def test_the_seed_decides_which():
    document = "\n".join(f"line {i}" for i in range(50))
    program = Program([Copy(1, 50)])
    assert len({tuple(equivalent(program, document, 2, seed)) for seed in range(6)}) > 1
    assert equivalent(program, document, 0, seed=0) == []


# --- in a build ------------------------------------------------------------------------------------------------------


ROWS = [
    {"instruction": f"Edit {i}.", "before": f"a{i}\nb\n\nc\nd{i}\n", "after": f"d{i}\na{i}\nnew\n\nmore\nc\n"}
    for i in range(10)
]


def built(tmp_path: Path, name: str, **choices) -> tuple[dict, list, list]:
    """Return the manifest and the rows of both splits."""
    write_rows(tmp_path / "edits.jsonl", ROWS)
    out = tmp_path / name
    config = OracleConfig(corpora=["jsonl"], jsonl=[str(tmp_path / "edits.jsonl")], out=str(out), **choices)
    return build_oracles(config), *(read_split(out, ["jsonl"], split) for split in ("train", "heldout"))


def test_training_rows_have_the_chosen_program_and_held_out_rows_difflibs(tmp_path):
    usual, train, held_out = built(tmp_path, "usual")
    chosen, others, same = built(tmp_path, "chosen", program="fewest_ops", min_copy=2)
    assert held_out == same and len(same) == 2
    assert [row.program for row in train] == [render(build_oracle(row.before, row.after)) for row in train]
    for row, other in zip(train, others, strict=True):
        expected = merge_short(fewest_ops(row.before, row.after), row.before, 2)
        assert (other.id, other.program) == (row.id, render(expected)) and other.program != row.program
    assert usual["fingerprint"] != chosen["fingerprint"]


def test_equivalents_are_additional_training_rows_counted_apart(tmp_path):
    usual, train, held_out = built(tmp_path, "usual")
    more, rows, same = built(tmp_path, "more", equivalents=3)
    assert same == held_out and rows[: len(train)] == train
    of = {row.id: row for row in train}
    added = rows[len(train) :]
    assert sorted(row.id for row in added) == sorted(f"{id}#{number}" for id in of for number in (1, 2, 3))
    for row in added:
        first = of[row.id.rpartition("#")[0]]
        assert (row.before, row.after, row.instruction, row.group) == (
            first.before,
            first.after,
            first.instruction,
            first.group,
        )
        assert row.program != first.program and resolve(parse(row.program), row.before) == row.after
    entry = more["corpora"]["jsonl"]
    assert (entry["train"], entry["heldout"], entry["equivalents"]) == (8, 2, 24)
    assert entry["statistics"] == statistics(train + held_out) == usual["corpora"]["jsonl"]["statistics"]
    assert entry["fingerprint"] != usual["corpora"]["jsonl"]["fingerprint"]
    assert "jsonl: 24 more training rows with other programs" in summarise(more, "out")
    again, *_ = built(tmp_path, "again", equivalents=3)
    assert again["fingerprint"] == more["fingerprint"]


@pytest.mark.parametrize(
    "choice", [{"program": "fewest_ops"}, {"min_copy": 2}, {"merge_text_free": True}, {"equivalents": 1}]
)
def test_a_choice_is_a_setting_of_the_content_and_its_default_is_not(tmp_path, choice):
    [(key, value)] = choice.items()
    assert key not in content_settings(OracleConfig())  # folders prepared before the setting stay valid
    assert content_settings(OracleConfig(**choice))[key] == value
    built(tmp_path, "out", **choice)
    assert read_manifest(tmp_path / "out")["settings"][key] == value


@pytest.mark.parametrize("wrong", [{"min_copy": 0}, {"equivalents": -1}])
def test_settings_that_mean_nothing_are_refused(wrong):
    [(key, value)] = wrong.items()
    with pytest.raises(ValueError, match=f"{key}={value}: must be at least"):
        OracleConfig(**wrong)


def test_the_choice_can_be_given_as_text(tmp_path):
    (tmp_path / "config.yaml").write_text("program: fewest_ops_monotone\nequivalents: 2\n", encoding="utf-8")
    config = from_yaml(OracleConfig, tmp_path / "config.yaml")
    assert (config.program, config.equivalents) == ("fewest_ops_monotone", 2)


# --- the real data ---------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not DATA_DIR, reason="set CAD_DATA_DIR to the folder of humanevalpack/ and commits/")
def test_every_real_edit_has_all_choices():
    paths = [*Path(DATA_DIR).glob("humanevalpack/*.jsonl"), *Path(DATA_DIR).glob("commits/*.jsonl")]
    assert paths
    for path in sorted(paths):
        for line in path.read_text(encoding="utf-8").split("\n")[:60]:
            if not line:
                continue
            row = json.loads(line)
            names = ("before", "after") if "before" in row else ("buggy_solution", "canonical_solution")
            before, after = (row[name] for name in names)
            costs = {}
            for choice in CHOICES:
                program = choose(choice, before, after)
                costs[choice] = cost(program)
                for each in (program, merge_short(program, before, 3), *equivalent(program, before, 2, path.name)):
                    assert resolve(each, before) == after
            assert costs["fewest_ops"] <= costs["fewest_ops_monotone"] <= costs["difflib"]
