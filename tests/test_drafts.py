"""Drafts are always legal and never too long; prompt lookup finds what a search finds; programs are guessed as they are
mostly written."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from small_decoders import model_of, replay
from small_models import SUPPORTED, encoder_of
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from data_prep.oracle import build_oracle
from decoding.baselines import TextGrammar
from decoding.costs import CostCurve, measure_costs
from decoding.drafts import Draft, ProgramDrafter, PromptLookup
from decoding.forward import PackedForward
from decoding.fsm import ProgramFSM
from decoding.grammar import Copy, Gen, Program

ENCODER = encoder_of("byte_level")
TABLE = ENCODER.table
TEXT = TextGrammar(end_of_sequence=9, mask_row=0)
DOCUMENT = "\n".join(f"value_{number} = {number * 7}  # as it is" for number in range(1, 15))


# Prompt lookup

streams = st.tuples(
    st.lists(st.integers(0, 3), max_size=12),
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), max_size=5),
)


def searched(seen, longest, count, recent):
    """What followed the longest n-gram at the end elsewhere, by search."""
    for size in range(min(longest, len(seen)), 0, -1):
        gram = seen[-size:]
        places = [at for at in range(size, len(seen)) if seen[at - size : at] == gram]
        if places:
            at = places[-1] if recent else places[0]
            return seen[at : at + count]
    return []


@settings(max_examples=300, deadline=None)
@given(streams, st.integers(1, 4), st.integers(1, 8), st.booleans())
@example(([], [[1]]), 3, 4, False)
@example(([1, 1, 1], []), 3, 4, True)
def test_lookup_continues_as_a_search_over_all_that_was_read_does(stream, longest, count, recent):
    prompt, steps = stream
    lookup, ids = PromptLookup(longest, count, recent=recent), []
    for step in [[], *steps]:
        ids = ids + step
        assert lookup.continuation(prompt, ids) == searched(prompt + ids, longest, count, recent)
        assert lookup.continuation(prompt, ids) == searched(
            prompt + ids, longest, count, recent
        )  # asking changes nothing


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=2, max_size=24), st.integers(1, 3), st.integers(1, 8))
def test_the_first_occurrence_is_what_transformers_looks_up(seen, longest, count):
    theirs = PromptLookupCandidateGenerator(
        num_output_tokens=count, max_matching_ngram_size=longest, max_length=1000, eos_token_id=torch.tensor([99])
    )
    ids, _ = theirs.get_candidates(torch.tensor([seen]))
    assert PromptLookup(longest, count).continuation(seen[:1], seen[1:]) == ids[0, len(seen) :].tolist()


@settings(max_examples=100, deadline=None)
@given(streams, st.integers(1, 9), st.booleans())
def test_lookup_drafts_what_it_found_as_far_as_there_is_room(stream, room, recent):
    prompt, steps = stream
    ids = [token for step in steps for token in step]
    lookup, draft = PromptLookup(3, 5, recent=recent), Draft(TEXT.start)
    lookup.extend(draft, TEXT, prompt, ids, room)
    assert draft.tokens == searched(prompt + ids, 3, 5, recent)[:room]
    assert_draft(draft, TEXT, TEXT.start, room)
    assert {source for _, _, source in draft.choices[: len(draft.tokens)]} <= {"lookup"}


def test_lookup_drafts_nothing_after_the_end_of_sequence():
    draft = Draft(TEXT.start)
    PromptLookup(2, 8).extend(draft, TEXT, [1, 2, 9, 4, 5], [1, 2], 50)
    assert (draft.tokens, draft.end.ended) == ([9], True)
    assert [offset for offset, _, _ in draft.choices] == [0]


# Drafts


def assert_draft(draft, grammar, start, room):
    """Check that a draft is a legal path from ``start`` with its open choices, and fits."""
    assert len(draft.tokens) <= room
    state, at, offsets = start, 0, []
    for offset, there, _ in draft.choices:
        while at < offset:
            state, at = grammar.advance(state, draft.tokens[at]), at + 1
        assert state == there
        assert not state.ended
        assert grammar.forced(state)[0] == []  # a real choice
        offsets.append(offset)
    assert offsets == sorted(set(offsets))
    assert offsets[0] == 0
    for token in draft.tokens[at:]:
        state = grammar.advance(state, token)
    assert state == draft.end
    # Every id that is not at a choice is forced.
    state = start
    for at, token in enumerate(draft.tokens):
        if at not in offsets:
            assert grammar.forced(state)[0][:1] == [token]
        state = grammar.advance(state, token)
    if not draft.end.ended and len(draft.tokens) < room:
        assert offsets[-1] == len(draft.tokens)  # the choice after the last guess is open too


def walk(fsm, choose, steps, ends):
    """A random legal path of so many choices; return its ids and the state, at an open choice."""
    forced, state = fsm.forced(fsm.start)
    ids = list(forced)
    for _ in range(steps):
        legal = fsm.allowed(state)
        if legal is None:
            text = ENCODER.gen_masks[state.matched]
            end = TABLE.gen_end[0]
            legal = [end] if choose.random() < ends and text[end] else np.flatnonzero(text).tolist()
        token = choose.choice(legal)
        forced, after = fsm.forced(fsm.advance(state, token))
        if after.ended:
            break
        ids, state = [*ids, token, *forced], after
    return ids, state


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.sampled_from(["", "x", "  foo()", "</gen>", "value = 7"]), max_size=14).map("\n".join),
    st.sampled_from(["full", "none"]),
    st.booleans(),
    st.integers(1, 3),
    st.integers(0, 60),
    st.integers(1, 200),
    st.randoms(use_true_random=False),
)
def test_what_the_drafter_guesses_is_legal_and_fits_wherever_a_program_stands(
    document, splice, monotone, min_span, steps, room, choose
):
    fsm = ProgramFSM(ENCODER, document, splice=splice, monotone=monotone, min_span=min_span, max_ops=6)
    ids, state = walk(fsm, choose, steps, ends=0.3)
    prompt = ENCODER.text.encode(document)
    draft = Draft(state)
    ProgramDrafter(ENCODER).extend(draft, fsm, prompt, ids, room)
    assert_draft(draft, fsm, state, room)
    if fsm.splice == "none":
        assert len(draft.tokens) <= 140  # one that copies a span is as long as that
    # A cut draft is the draft that was never guessed further.
    for offset, _, _ in list(draft.choices)[::-1]:
        draft.cut(offset)
        assert len(draft.tokens) == offset
        assert_draft(draft, fsm, state, room)
    assert (draft.tokens, draft.end) == ([], state)


def test_a_guess_that_is_not_legal_or_does_not_fit_changes_nothing():
    fsm = ProgramFSM(ENCODER, "one\ntwo\nthree", splice="full")
    ids = [*TABLE.program_open, *TABLE.copy_head, *ENCODER.number(2), *TABLE.dash]
    state = replay(fsm, ids)
    draft = Draft(state)
    for token in (TABLE.end_of_sequence, ENCODER.number(1)[0], -1):
        assert not draft.guess(token, fsm, "header", 99)
    forced = fsm.forced(fsm.advance(state, ENCODER.number(3)[0]))[0]
    assert len(forced) > 3
    for room in range(len(forced) + 1):
        assert not draft.guess(ENCODER.number(3)[0], fsm, "header", room)
        assert (draft.tokens, draft.choices, draft.end) == ([], [(0, state, "")], state)
    assert draft.guess(ENCODER.number(3)[0], fsm, "header", len(forced) + 1)
    assert draft.tokens == [ENCODER.number(3)[0], *forced]
    assert [(offset, source) for offset, _, source in draft.choices] == [(0, "header")]  # no room for another choice
    assert not draft.guess(TABLE.copy_head[0], fsm, "header", len(forced) + 1)


def test_nothing_is_guessed_after_the_end_of_a_program():
    fsm = ProgramFSM(ENCODER, "one")
    ids = [*TABLE.program_open, *TABLE.copy_head, *ENCODER.number(1), *TABLE.dash, *ENCODER.number(1)]
    state = replay(fsm, [*ids, *TABLE.copy_close])
    draft = Draft(fsm.forced(state)[1])
    ProgramDrafter(ENCODER).extend(draft, fsm, [], fsm.forced(fsm.start)[0], 99)
    while draft.end.ended is False:
        legal = fsm.allowed(draft.end)
        assert draft.guess(next(token for token in TABLE.program_close if token in legal), fsm, "header", 99)
    assert not draft.guess(TABLE.end_of_sequence, fsm, "header", 99)
    assert draft.choices[-1][0] < len(draft.tokens)


# Guesses at programs


def drafted(encoder, document, program, body=None, splice="none", prompt=(), written=None, **options):
    """Draft after ``program``'s operations, and the raw ``body`` of one more gen if given; return text and draft."""
    fsm = ProgramFSM(encoder, document, splice=splice, **options)
    segments = encoder.segments(program, document, splice)[:-2]
    ids = [index for segment in segments for index in segment.ids]
    if body is not None:
        ids += [*encoder.table.gen_head, *(encoder.text.encode(body) if written is None else written)]
    forced, state = fsm.forced(replay(fsm, ids))
    draft = Draft(state)
    ProgramDrafter(encoder).extend(draft, fsm, list(prompt), [*ids, *forced], 1000)
    assert_draft(draft, fsm, state, 1000)
    return encoder.text.decode(forced + draft.tokens).decode(), draft


def lines(first, last, document=DOCUMENT):
    return "".join(line + "\n" for line in document.split("\n")[first - 1 : last])


@pytest.mark.parametrize("tokens", SUPPORTED)
def test_after_a_copy_the_next_line_is_expected_to_be_rewritten(tokens):
    text, draft = drafted(encoder_of(tokens), DOCUMENT, Program([Copy(1, 4)]))
    assert text.startswith("<gen>\n" + lines(5, 6))
    assert {source for _, _, source in draft.choices[:-1]} == {"header", "line"}


@pytest.mark.parametrize("tokens", SUPPORTED)
@pytest.mark.parametrize("splice", ["none", "full"])
def test_after_a_gen_everything_below_what_it_replaced_is_expected_to_be_copied(tokens, splice):
    encoder = encoder_of(tokens)
    document = "\n".join(f"x_{number}" for number in range(1, 15))
    for replaced, rest in (("x_5_", 6), ("x-5\nx-6", 7)):
        text, _ = drafted(encoder, document, Program([Copy(1, 4), Gen.of(replaced)]), splice=splice)
        spliced = lines(rest, 14, document) if splice == "full" else ""
        assert text == f'<copy lines="{rest}-14"/>\n{spliced}</program>'


@pytest.mark.parametrize("tokens", SUPPORTED)
def test_after_the_last_line_the_end_is_expected(tokens):
    encoder = encoder_of(tokens)
    whole = drafted(encoder, DOCUMENT, Program([Copy(1, 4), Gen.of("x"), Copy(6, 14)]))
    replaced = drafted(encoder, DOCUMENT, Program([Copy(1, 13), Gen.of("value_14 = 99  # as it is")]))
    for text, draft in (whole, replaced):
        assert text == "</program>"
        assert draft.end.ended


def test_a_program_is_expected_to_begin_with_the_first_line():
    text, _ = drafted(ENCODER, DOCUMENT, Program([]))
    assert text.startswith('<copy lines="1-')
    assert len(text) == len('<copy lines="1-')  # where it ends is the edit itself


def test_an_illegal_expectation_gives_no_guess():
    program = Program([Copy(1, 12), Gen.of("value_13 = 0  # as it is")])
    assert drafted(ENCODER, DOCUMENT, program)[0].startswith('<copy lines="14-14"/>')
    text, draft = drafted(ENCODER, DOCUMENT, program, min_span=3)  # one line is too few
    assert text == '<copy lines="1'
    text, draft = drafted(ENCODER, DOCUMENT, program, min_span=3, monotone=True)
    assert (text, draft.tokens) == ("", [])


@pytest.mark.parametrize("tokens", SUPPORTED)
@pytest.mark.parametrize("change", ["substitution", "insertion", "deletion"])
def test_a_changed_line_is_expected_to_go_on_as_it_was(tokens, change):
    encoder = encoder_of(tokens)
    document = "one two\nQZJXKVBWYPGM\nlast line"
    line = encoder.span(document.split("\n"), 2, 2)
    at = len(line) // 2
    other = next(index for index in encoder.text.encode("H~") if index not in line)
    written = {
        "substitution": [*line[:at], other, line[at + 1]],
        "insertion": [*line[:at], other, line[at]],
        "deletion": [*line[:at], line[at + 2]],
    }[change]
    assert len(set(line)) == len(line) > 8
    rest = line[line.index(written[-1]) + 1 :]
    text, draft = drafted(encoder, document, Program([Copy(1, 1)]), body="", written=written)
    assert draft.tokens[: len(rest)] == rest
    # The line was changed: with it the body is done, and the next line is to be copied.
    assert text.startswith(encoder.text.decode(rest).decode() + '</gen>\n<copy lines="3-3"/>')


def test_a_body_that_is_lost_goes_on_as_what_was_read_before():
    prompt = ENCODER.text.encode("Use: QZJXKVBWYPGM.")
    text, draft = drafted(ENCODER, DOCUMENT, Program([Copy(1, 4)]), body="YQZJXK", prompt=prompt)
    assert {source for _, _, source in draft.choices[:-1]} == {"lookup"}
    assert text == "VBWYPGM."


def test_an_end_tag_begun_is_expected_to_be_finished():
    text, draft = drafted(ENCODER, DOCUMENT, Program([Copy(1, 4)]), body="x</")
    assert text.startswith("gen>\n")
    assert draft.choices[0][2] == "line"


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 14), st.integers(0, 2), st.integers(0, 3), st.sampled_from(["none", "full"]))
def test_most_choices_of_a_plain_edit_are_guessed(first, replaced, inserted, splice):
    """Follow the gold as the engine would: up to the first choice that was not guessed."""
    before = DOCUMENT.split("\n")
    new = [line.replace("=", "is") for line in before[first - 1 : first - 1 + replaced]] + ["new line"] * inserted
    after = "\n".join(before[: first - 1] + new + before[first - 1 + replaced :])
    program = build_oracle(DOCUMENT, after)
    fsm = ProgramFSM(ENCODER, DOCUMENT, splice=splice)
    gold = [index for segment in ENCODER.segments(program, DOCUMENT, splice)[:-1] for index in segment.ids]
    ids, state = fsm.forced(fsm.start)
    drafter, forwards = ProgramDrafter(ENCODER), 0
    while not state.ended:
        draft = Draft(state)
        drafter.extend(draft, fsm, ENCODER.text.encode(DOCUMENT), ids, 5000)
        assert_draft(draft, fsm, state, 5000)
        forwards += 1
        right = 0
        while right < len(draft.tokens) and draft.tokens[right] == gold[len(ids) + right]:
            right += 1
        open_choices = [offset for offset, _, _ in draft.choices if offset <= right]
        step = gold[len(ids) : len(ids) + open_choices[-1] + 1]
        forced, state = fsm.forced(replay(fsm, ids + step))
        ids = [*ids, *step, *forced]
    assert ids == gold
    news = sum(len(ENCODER.text.encode(line + "\n")) for line in new[replaced:])
    assert forwards <= 10 + 4 * replaced + news


# Costs


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(1, 200), min_size=2, max_size=6, unique=True).map(sorted),
    st.lists(st.floats(0.001, 1), min_size=6, max_size=6).map(sorted),
    st.integers(1, 1000),
)
def test_a_cost_lies_on_the_straight_line_between_its_neighbours(widths, seconds, width):
    seconds = seconds[: len(widths)]
    curve = CostCurve(tuple(widths), tuple(seconds))
    if widths[0] <= width <= widths[-1]:
        assert curve(width) == pytest.approx(np.interp(width, widths, seconds), rel=1e-6)
    elif width > widths[-1]:
        slope = (seconds[-1] - seconds[-2]) / (widths[-1] - widths[-2])
        assert curve(width) == pytest.approx(seconds[-1] + slope * (width - widths[-1]), rel=1e-6)
    assert curve.slope(width) == pytest.approx((curve(2 * width) - curve(width)) / width)
    assert curve.slope(width) >= -1e-12


def test_costs_are_measured_on_what_the_forward_does_and_never_fall():
    real, widths = PackedForward(model_of("qwen2", "byte_level", 0), 2), []

    class Timed:
        """The forward, and what it was asked."""

        slots = 2

        def __call__(self, feeds):
            (feed,) = feeds
            assert feed.slot == 0
            widths.append(len(feed.ids))
            return real(feeds)

    curve = measure_costs(Timed())
    assert set(widths) == {128, *curve.widths}
    assert all(second > 0 for second in curve.seconds)
    assert list(curve.seconds) == sorted(curve.seconds)
    choose = random.Random(0)
    assert all(curve.slope(choose.randrange(1, 200)) >= 0 for _ in range(50))
