"""The program grammar over tokens: oracles replay, every path parses, and the choices of a number are exactly right."""

from __future__ import annotations

import copy
import os
import random
import sys
import tempfile
from dataclasses import FrozenInstanceError
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import SUPPORTED, encoder_of, qwen_encoder, smollm2_encoder

from data_prep.build import OracleConfig, build_oracles
from data_prep.counts import token_statistics
from data_prep.oracle import build_oracle
from data_prep.prepared import read_split
from decoding.encoder import GEN_END, match_gen_end
from decoding.fsm import Phase, ProgramFSM, number_choices
from decoding.grammar import Copy, Gen, Program, parse, split_lines
from decoding.resolver import resolve

KINDS = [*SUPPORTED, "qwen"]
LINES = (
    "",
    "return 1",
    "    return foo()",
    "\r",
    "</program>",
    '<copy lines="1-2"/>',
    "<gen>",
    "</gen>",
    "<\\gen>",
    "<\\\\/gen>",
    "<|im_end|>",
    "<|endoftext|>",
    "</ge",
    "<",
    "e\u0301\U000130c0",
    "\0\u2028",
)
documents = st.lists(st.sampled_from(LINES) | st.text(max_size=5), max_size=14).map("\n".join)
HARD_BODIES = (
    '<copy lines="1-2"/>',
    "</program>",
    "<|im_end|>",
    "</ge",
    "<\\gen",
    "</gen>",
    "</gen",
    "<gen>\n</gen>\n",
    "<\\/gen><\\\\/gen>",
    "</",
    "<",
    "<<</ge</gen",
    "",
    "\n",
    "\n\n",
    "  foo()",
    pytest.param("\U00013080 \u0f04\u0f05 \U0001faea ok", id="tok-04"),
    pytest.param("A \u4e16a\u754c\U00013080b", id="tok-05"),
    pytest.param("eos = '<|im_end|>'", id="spec-04"),
)


REAL = {"qwen": qwen_encoder, "smollm2": smollm2_encoder}


def get_encoder(kind):
    return REAL[kind]() if kind in REAL else encoder_of(kind)


def replay(fsm, ids):
    state = fsm.start
    for token in ids:
        state = fsm.advance(state, token)
    return state


def program_ids(encoder, program, document, splice="none"):
    return [index for _, ids in encoder.segments(program, document, splice) for index in ids]


def body_ids(encoder, pieces):
    """A whole program of one gen op, whose raw body and its end are ``pieces``, each encoded apart."""
    table = encoder.table
    body = [index for piece in pieces for index in encoder.text.encode(piece)]
    return [*table.program_open, *table.gen_head, *body, *table.gen_close, *table.program_close]


# Oracles


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("splice", ["full", "none"])
def test_the_training_ids_of_every_oracle_stay_in_the_grammar_and_give_the_gold(kind, splice):
    encoder = get_encoder(kind)

    @settings(max_examples=60, deadline=None)
    @given(documents, documents)
    def check(before, after):
        if kind == "metaspace":
            before, after = before.replace("\u2581", "_"), after.replace("\u2581", "_")
        program = build_oracle(before, after)
        segments = encoder.segments(program, before, splice)
        ids = [index for segment in segments for index in segment.ids]
        for monotone in (False, True):
            fsm = ProgramFSM(encoder, before, splice=splice, monotone=monotone)
            state = replay(fsm, ids)
            assert state.finished
            assert state.length == len(ids)
            assert state.spliced == sum(len(segment.ids) for segment in segments if segment.kind == "splice")
            read, broken = fsm.program(state, ids)
            assert read == program
            assert broken == 0
            assert resolve(read, before) == after

    check()


@pytest.mark.parametrize("kind", KINDS)
def test_segments_concatenate_to_the_program_text_and_the_spliced_lines(kind):
    encoder = get_encoder(kind)
    document = "one\n  two\n\nfour"
    program = Program([Copy(1, 2), Gen.of("</gen> 3"), Copy(4, 4)])
    expected = '<program>\n<copy lines="1-2"/>\n{}<gen>\n<\\/gen> 3\n</gen>\n<copy lines="4-4"/>\n{}</program>'
    for splice, spans in (("none", ("", "")), ("full", ("one\n  two\n", "four\n"))):
        segments = encoder.segments(program, document, splice)
        assert encoder.text.decode(
            [index for segment in segments for index in segment.ids]
        ).decode() == expected.format(*spans)
        assert segments[-1] == ("end", [encoder.tokenizer.eos_token_id])


@cache
def prepared(short):
    """The rows of HumanEvalPack in one language, as data preparation writes them."""
    if not os.environ.get("CAD_DATA_DIR"):
        pytest.skip("needs HumanEvalPack: point CAD_DATA_DIR at a folder with humanevalpack/*.jsonl")
    with tempfile.TemporaryDirectory() as folder:
        build_oracles(OracleConfig(corpora=[f"hevalfix-{short}"], out=folder))
        corpora = [f"hevalfix-{short}"]
        return read_split(Path(folder), corpora, "train") + read_split(Path(folder), corpora, "heldout")


@pytest.mark.parametrize(("short", "gold", "copied", "copies"), [("py", 8872, 6577, 295), ("js", 14876, 11725, 311)])
def test_the_papers_token_counts_are_met_exactly(short, gold, copied, copies):
    rows = prepared(short)
    counts = token_statistics(rows, qwen_encoder().text)
    assert len(rows) == 164
    assert (counts["T"], counts["T_copy"], counts["T_gen"], counts["K"]) == (gold, copied, gold - copied, copies)


@pytest.mark.parametrize("short", ["py", "js"])
@pytest.mark.parametrize("splice", ["full", "none"])
def test_real_oracles_replay_under_qwens_tokenizer(short, splice):
    encoder = qwen_encoder()
    for row in prepared(short):
        program = parse(row.program)
        ids = program_ids(encoder, program, row.before, splice)
        fsm = ProgramFSM(encoder, row.before, splice=splice, monotone=True)
        state = replay(fsm, ids)
        assert state.finished, row.id
        assert fsm.program(state, ids) == (program, 0), row.id
        assert resolve(fsm.program(state, ids)[0], row.before) == row.after, row.id


# Paths


class Walker:
    """Random legal paths; a gen body is ordinary text, stretches of ``</gen`` and any legal token, in turn."""

    def __init__(self, encoder, seed):
        self.encoder, self.random = encoder, random.Random(seed)
        self.legal = [np.flatnonzero(mask).tolist() for mask in encoder.gen_masks]
        pieces = encoder.text.token_bytes
        self.onward = [
            [index for index in legal if match_gen_end(matched, pieces[index]) > matched]
            for matched, legal in enumerate(self.legal)
        ]

    def step(self, fsm, state):
        legal = fsm.allowed(state)
        if legal is not None:
            return self.random.choice(legal)
        onward = self.random.random() < (0.35 if state.matched == 0 else 0.75)
        return self.random.choice((self.onward if onward else self.legal)[state.matched])

    def walk(self, fsm):
        """Walk to the end of the program; return its ids, those of spliced text apart, and the last state."""
        state, ids, kept = fsm.start, [], []
        while not state.finished:
            token = self.step(fsm, state)
            after = fsm.advance(state, token)
            ids.append(token)
            kept += [token] * (after.spliced == state.spliced)
            state = after
        return ids, kept, state


def random_document(choose):
    return "\n".join(choose.choice(LINES) for _ in range(choose.choice((1, 1, 2, 9, 12, 101, 130))))


@pytest.mark.parametrize("kind", [*KINDS, "smollm2"])
def test_every_path_through_the_grammar_is_a_program_that_fits_the_document(kind):
    encoder = get_encoder(kind)
    walker = Walker(encoder, kind)
    longest, copies, shortest = 0, 0, set()
    for number in range(1000 if kind in ("qwen", "smollm2", "split_slash") else 300):
        document = random_document(walker.random)
        n = len(split_lines(document))
        splice, monotone, min_span = ("full", "none")[number % 2], number % 3 == 0, (1, 1, 2, 5)[number % 4]
        options = {"splice": splice, "monotone": monotone, "min_span": min_span, "max_ops": 8}
        fsm = ProgramFSM(encoder, document, **options)
        ids, kept, state = walker.walk(fsm)
        text = encoder.text.decode(kept).decode(errors="replace")
        program, _ = fsm.program(state, ids)
        assert parse(text) == program
        assert resolve(parse(text), document) == resolve(program, document)  # strict: every range is valid
        assert ids[-1] == encoder.table.end_of_sequence
        assert 1 <= len(program.ops) <= 8
        spans = [(op.first, op.last) for op in program.copies]
        assert all(first >= 1 and first + min_span - 1 <= last <= n for first, last in spans)
        assert state.spliced == (sum(len(encoder.span(fsm.lines, *span)) for span in spans) if splice == "full" else 0)
        if monotone:
            assert all(before < after for (_, before), (after, _) in zip(spans, spans[1:], strict=False)), spans
        longest, copies = max(longest, len(program.ops)), copies + len(spans)
        shortest |= {min_span for first, last in spans if last - first + 1 == min_span}
    assert longest == 8
    assert copies > 300
    assert shortest == {1, 2, 5}


@pytest.mark.parametrize("kind", SUPPORTED)
def test_forced_ids_are_exactly_those_without_an_alternative(kind):
    encoder = encoder_of(kind)
    walker = Walker(encoder, f"forced {kind}")
    for number in range(40):
        document = random_document(walker.random)
        splice, min_span = ("full", "none")[number % 2], 1 + number % 4
        fsm = ProgramFSM(encoder, document, splice=splice, monotone=number % 3 == 0, min_span=min_span, max_ops=5)
        state = fsm.start
        while not state.ended:
            ids, after = fsm.forced(state)
            by_step = state
            for token in ids:
                assert fsm.allowed(by_step) == (token,)
                by_step = fsm.advance(by_step, token)
            assert by_step == after
            if after.ended:
                break
            legal = fsm.allowed(after)
            assert legal is None or len(legal) > 1
            state = fsm.advance(after, walker.step(fsm, after))
        assert fsm.allowed(replay(fsm, [])) == (encoder.table.program_open[0],)


def test_the_legal_ids_are_exactly_those_that_advance_accepts():
    encoder = encoder_of("byte_level")
    walker = Walker(encoder, "legal")
    for min_span in (1, 1, 4):
        fsm = ProgramFSM(encoder, "\n" * 24, monotone=True, min_span=min_span, max_ops=6)
        state = fsm.start
        while not state.finished:
            legal = fsm.allowed(state)
            legal = walker.legal[fsm.mask_row(state)] if legal is None else legal
            for token in range(-1, len(encoder.text.token_bytes) + 1):
                if token not in legal:
                    with pytest.raises(ValueError, match=f"token {token} at {state.length}"):
                        fsm.advance(state, token)
            for token in legal:
                fsm.advance(state, token)
            state = fsm.advance(state, walker.step(fsm, state))
        assert fsm.allowed(state) == ()
        with pytest.raises(ValueError, match="legal are"):
            fsm.advance(state, encoder.table.end_of_sequence)


def test_states_are_immutable_and_a_walk_leaves_earlier_states_as_they_were():
    encoder = encoder_of("byte_level")
    walker = Walker(encoder, "immutable")
    fsm = ProgramFSM(encoder, "one\ntwo\nthree", splice="full", max_ops=6)
    state, seen = fsm.start, []
    while not state.finished:
        seen.append((state, copy.deepcopy(state), fsm.allowed(state)))
        fsm.forced(state)
        state = fsm.advance(state, walker.step(fsm, state))
    for kept, copied, legal in seen:
        assert kept == copied
        assert fsm.allowed(kept) == legal
        with pytest.raises((FrozenInstanceError, AttributeError)):
            kept.length = 0


def test_a_walk_passes_all_five_states_of_the_paper():
    encoder = encoder_of("byte_level")
    program = Program([Copy(1, 9), Gen.of("new"), Copy(12, 12)])
    fsm = ProgramFSM(encoder, "\n" * 20)
    state, seen = fsm.start, {fsm.start.phase}
    for token in program_ids(encoder, program, "\n" * 20):
        state = fsm.advance(state, token)
        seen.add(state.phase)
    assert seen == set(Phase)


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_after_max_ops_operations_only_the_end_is_legal(limit):
    for kind in SUPPORTED:
        encoder = encoder_of(kind)
        fsm = ProgramFSM(encoder, "one\ntwo", max_ops=limit)
        program = Program([Copy(2, 2)] * limit)
        ids = program_ids(encoder, program, "one\ntwo")
        before_end = replay(fsm, ids[: -1 - len(encoder.table.program_close)])
        assert fsm.forced(before_end)[0] == encoder.table.program_close
        assert replay(fsm, ids).finished
        with pytest.raises(ValueError, match="legal are"):
            replay(fsm, program_ids(encoder, Program([Copy(2, 2)] * (limit + 1)), "one\ntwo"))


def test_a_program_needs_an_operation():
    for kind in SUPPORTED:
        encoder = encoder_of(kind)
        fsm = ProgramFSM(encoder, "one")
        with pytest.raises(ValueError, match="legal are|only"):
            replay(fsm, [*encoder.table.program_open, *encoder.table.program_close])


@pytest.mark.parametrize(("first", "last"), [(0, 1), (1, 13), (13, 13), (5, 4), (12, 1), (100, 100)])
def test_ranges_outside_the_document_and_reversed_ones_cannot_be_written(first, last):
    for kind in SUPPORTED:
        encoder = encoder_of(kind)
        fsm = ProgramFSM(encoder, "\n" * 11)
        with pytest.raises(ValueError, match="token"):
            replay(fsm, program_ids(encoder, Program([Copy(first, last)]), "\n" * 11))


def test_monotone_copies_start_after_the_end_of_the_one_before():
    document = "\n".join("abcdef")
    for kind in SUPPORTED:
        encoder = encoder_of(kind)
        fsm = ProgramFSM(encoder, document, monotone=True)
        loose = ProgramFSM(encoder, document)
        for ops, legal in [
            ([Copy(1, 2), Copy(3, 6)], True),
            ([Copy(2, 2), Gen.of("x"), Copy(6, 6)], True),
            ([Copy(1, 2), Copy(2, 3)], False),
            ([Copy(3, 4), Gen.of("x"), Copy(1, 1)], False),
            ([Copy(6, 6), Copy(6, 6)], False),
            ([Copy(6, 6), Gen.of("x")], True),
        ]:
            ids = program_ids(encoder, Program(ops), document)
            assert replay(loose, ids).finished
            if legal:
                assert replay(fsm, ids).finished
            else:
                with pytest.raises(ValueError, match="token"):
                    replay(fsm, ids)


@pytest.mark.parametrize("kind", SUPPORTED)
def test_a_copy_has_at_least_the_lines_that_are_asked_for(kind):
    encoder, document = encoder_of(kind), "\n".join("abcdefghijkl")
    table = encoder.table
    for min_span in (2, 5, 12):
        fsm = ProgramFSM(encoder, document, min_span=min_span)
        start = replay(fsm, [*table.program_open, *table.copy_head])
        assert numbers_from(fsm, start, table.dash[0]) == {str(first) for first in range(1, 14 - min_span)}
        for first in range(1, 14 - min_span):
            last = replay(fsm, [*table.program_open, *table.copy_head, *encoder.number(first), *table.dash])
            written = numbers_from(fsm, last, table.copy_close[0])
            assert written == {str(line) for line in range(first + min_span - 1, 13)}


def test_a_document_with_too_few_lines_left_is_not_copied():
    document = "\n".join("abcdef")
    for kind in SUPPORTED:
        encoder = encoder_of(kind)
        table = encoder.table
        short = ProgramFSM(encoder, document, min_span=7)
        assert short.forced(short.start)[0] == [*table.program_open, *table.gen_head]
        fsm = ProgramFSM(encoder, document, min_span=3, monotone=True)
        for ops, legal in (
            ([Copy(1, 3), Copy(4, 6)], True),
            ([Copy(1, 4), Gen.of("x")], True),
            ([Copy(1, 4), Copy(5, 6)], False),
            ([Copy(1, 2)], False),
        ):
            ids = program_ids(encoder, Program(ops), document)
            if legal:
                assert replay(fsm, ids).finished
            else:
                with pytest.raises(ValueError, match="token"):
                    replay(fsm, ids)


def test_a_copied_line_that_looks_like_structure_is_only_text():
    document = '</program>\n<gen>\n</gen>\n<copy lines="1-1"/>\n<|im_end|>'
    for kind in SUPPORTED:
        encoder = encoder_of(kind)
        fsm = ProgramFSM(encoder, document, splice="full")
        program = Program([Copy(1, 5), Gen.of("x"), Copy(1, 1)])
        ids = program_ids(encoder, program, document, "full")
        state = replay(fsm, ids)
        assert state.finished
        assert fsm.program(state, ids) == (program, 0)
        assert resolve(fsm.program(state, ids)[0], document) == f"{document}\nx\n</program>"


# Gen bodies


@pytest.mark.parametrize("kind", [*KINDS, "smollm2"])
@pytest.mark.parametrize("text", HARD_BODIES)
def test_a_body_that_looks_like_structure_stays_text(kind, text):
    encoder = get_encoder(kind)
    program = Program([Gen.of(text), Copy(1, 1), Gen.of(text + text)])
    ids = program_ids(encoder, program, "one")
    assert not set(encoder.tokenizer.added_tokens_decoder) & set(ids[:-1])  # the end is the only control token
    fsm = ProgramFSM(encoder, "one")
    state = replay(fsm, ids)
    assert state.finished
    assert fsm.program(state, ids) == (program, 0)
    assert parse(encoder.text.decode(ids).decode()) == program
    assert resolve(program, "one") == "\n".join((text, "one", text + text))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("raw", ['<copy lines="1-2"/>', "</program>\n", "<|im_end|>", "</ge", "<gen>", "<\\gen", "\n"])
def test_a_body_that_a_model_writes_unescaped_ends_only_at_its_end_tag(kind, raw):
    encoder = get_encoder(kind)
    ids = body_ids(encoder, [raw, "x</gen"])
    fsm = ProgramFSM(encoder, "one")
    state = replay(fsm, ids)
    assert state.ended
    assert fsm.program(state, ids)[0] == parse(f"<gen>\n{raw}x</gen>")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("raw", ["foo()", "baz", "x;", "foo();", "return foo()", "caf\u00e9", "<", "</", "</ge", " "])
def test_a_body_without_a_final_newline_ends_at_the_right_byte_however_the_end_merges(kind, raw):
    encoder = get_encoder(kind)
    fsm = ProgramFSM(encoder, "one")
    for pieces in ([raw + "</gen"], [raw, "</gen"], [raw + "</", "gen"], [raw, *"</gen"], [raw + "</g", "en"]):
        ids = body_ids(encoder, pieces)
        state = replay(fsm, ids)
        assert state.ended
        assert fsm.program(state, ids) == (Program([Gen(f"\n{raw}")]), 0)
        assert resolve(fsm.program(state, ids)[0], "one") == raw


@pytest.mark.parametrize(("kind", "text"), [("byte_level", "()</"), ("three_digits", "()</"), ("qwen", "()</")])
def test_the_merge_of_text_with_the_end_tag_is_really_exercised(kind, text):
    encoder = get_encoder(kind)
    assert text.encode() in [encoder.text.token_bytes[index] for index in encoder.text.encode("foo()</gen")]


def test_a_token_that_reaches_over_the_end_of_a_body_is_never_legal():
    encoder = encoder_of("metaspace")
    pieces = encoder.text.token_bytes
    over = [index for index, piece in enumerate(pieces) if piece and b"</gen>" in piece]
    assert over
    assert not encoder.gen_masks[:, over].any()


@pytest.mark.parametrize("kind", KINDS)
def test_the_masks_of_a_body_are_what_the_bytes_say(kind):
    encoder = get_encoder(kind)
    control = set(encoder.tokenizer.added_tokens_decoder)
    choose = random.Random(0)
    pieces = list(enumerate(encoder.text.token_bytes))
    if kind == "qwen":
        suspects = [(index, piece) for index, piece in pieces if piece and (b"<" in piece or piece[:1] in b"/gen")]
        pieces = choose.sample(pieces, 2000) + suspects + [(index, pieces[index][1]) for index in control]
    for matched in range(len(GEN_END)):
        for index, piece in pieces:
            at = (GEN_END[:matched] + (piece or b"")).find(GEN_END)
            fits = at < 0 or at + len(GEN_END) == matched + len(piece)
            assert encoder.gen_masks[matched, index] == (bool(piece) and index not in control and fits), (
                matched,
                piece,
            )


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from([b"<", b"/", b"g", b"e", b"n", b"</", b"</ge", b"x", b"\n"]), max_size=12))
def test_the_incremental_match_finds_the_end_where_a_search_does(pieces):
    matched, text = 0, b""
    for piece in pieces:
        matched = match_gen_end(matched, piece)
        text += piece
        if matched == len(GEN_END):
            assert GEN_END in text
            return
        assert GEN_END not in text
        assert text.endswith(GEN_END[:matched])
        assert not any(text.endswith(GEN_END[:more]) for more in range(matched + 1, len(GEN_END)))


def test_a_body_that_stops_inside_a_character_is_counted():
    encoder = encoder_of("byte_level")
    single = {piece: index for index, piece in enumerate(encoder.text.token_bytes) if piece and len(piece) == 1}
    table = encoder.table
    cut = [single[bytes([byte])] for byte in "\U000130c0".encode()[:2]]
    ids = [*table.program_open, *table.gen_head, *cut, *table.gen_end, *table.gen_close, *table.program_close]
    fsm = ProgramFSM(encoder, "one")
    program, broken = fsm.program(replay(fsm, ids), ids)
    assert broken == 1
    assert program == Program([Gen("\n\ufffd")])


def test_an_unfinished_program_gives_its_finished_operations():
    encoder = encoder_of("byte_level")
    fsm = ProgramFSM(encoder, "one\ntwo")
    program = Program([Copy(1, 1), Gen.of("new"), Copy(2, 2)])
    ids = program_ids(encoder, program, "one\ntwo")
    counts = [len(fsm.program(replay(fsm, ids[:stop]), ids[:stop])[0].ops) for stop in range(len(ids) + 1)]
    assert counts == sorted(counts)
    assert set(counts) == {0, 1, 2, 3}


# Line numbers


def table_of(group):
    """Only what number_choices reads: an id for every string of up to ``group`` digits."""
    digits, free = [()], 10
    for width in range(1, group + 1):
        digits.append(tuple(range(free, free + 10**width)))
        free += 10**width
    return SimpleNamespace(digit_group=group, digits=tuple(digits))


def grouped(value, group):
    text = str(value)
    return [text[start : start + group] for start in range(0, len(text), group)]


def expected_choices(table, prefix, low, high, terminator):
    group = table.digit_group
    out = set()
    for value in range(low, high + 1):
        parts = grouped(value, group)
        for taken in range(len(parts) + 1):
            if "".join(parts[:taken]) == prefix:
                part = parts[taken] if taken < len(parts) else None
                out.add(terminator if part is None else table.digits[len(part)][int(part)])
    return out


@pytest.mark.parametrize("group", [1, 2, 3])
def test_the_choices_of_a_number_are_those_of_some_number_in_the_range(group):
    table = table_of(group)

    @settings(max_examples=150, deadline=None)
    @given(st.data())
    def check(data):
        high = data.draw(st.integers(1, data.draw(st.sampled_from([9, 12, 120, 1300, 12_000]))))
        low = data.draw(st.integers(1, high))
        parts = grouped(data.draw(st.integers(low, high)), group)
        for taken in range(len(parts) + 1):
            prefix = "".join(parts[:taken])
            choices = number_choices(table, prefix, low, high, 7)
            assert len(set(choices)) == len(choices)
            assert set(choices) == expected_choices(table, prefix, low, high, 7)

    check()


@pytest.mark.parametrize("group", [1, 2, 3])
def test_every_range_up_to_thirty_lines_has_the_right_choices_at_every_prefix(group):
    table = table_of(group)
    for high in range(1, 31):
        for low in range(1, high + 1):
            prefixes = {"".join(grouped(v, group)[:taken]) for v in range(low, high + 1) for taken in range(3)}
            for prefix in prefixes:
                assert set(number_choices(table, prefix, low, high, 7)) == expected_choices(table, prefix, low, high, 7)


def numbers_from(fsm, state, terminator):
    """Every number that can be written from ``state`` on, as text."""
    found, waiting = set(), [(state, [])]
    while waiting:
        state, ids = waiting.pop()
        for token in fsm.allowed(state):
            if token == terminator:
                found.add(fsm.encoder.text.decode(ids).decode())
            else:
                waiting.append((fsm.advance(state, token), [*ids, token]))
    return found


@pytest.mark.parametrize("kind", ["byte_level", "three_digits"])
@pytest.mark.parametrize("n", [1, 9, 10, 11, 103])
def test_the_numbers_of_a_copy_reach_every_line_and_no_other(kind, n):
    encoder, middle = encoder_of(kind), (n + 1) // 2
    table, fsm = encoder.table, ProgramFSM(encoder, "\n" * (n - 1))
    first = replay(fsm, [*table.program_open, *table.copy_head])
    assert numbers_from(fsm, first, table.dash[0]) == {str(line) for line in range(1, n + 1)}
    last = replay(fsm, [*table.program_open, *table.copy_head, *encoder.number(middle), *table.dash])
    assert numbers_from(fsm, last, table.copy_close[0]) == {str(line) for line in range(middle, n + 1)}


def test_the_only_line_of_a_document_is_forced():
    for kind in SUPPORTED:
        encoder = encoder_of(kind)
        fsm = ProgramFSM(encoder, "one", splice="full")
        state = replay(fsm, [*encoder.table.program_open, *encoder.table.copy_head])
        forced, _ = fsm.forced(state)
        assert encoder.text.decode(forced).startswith(b'1-1"/>\none\n')


def test_lines_split_only_at_newlines():
    assert len(ProgramFSM(encoder_of("byte_level"), "a\rb\x0cc\u2028d\n").lines) == 2
    assert split_lines("") == [""]


# The paper's forwards


@pytest.mark.parametrize("kind", SUPPORTED)
@pytest.mark.parametrize("splice", ["full", "none"])
def test_a_run_is_cut_at_every_choice_forced_digit_and_span(kind, splice):
    encoder = encoder_of(kind)
    walker = Walker(encoder, f"units {kind}")
    for number in range(30):
        fsm = ProgramFSM(encoder, random_document(walker.random), splice=splice, monotone=number % 2 == 0, max_ops=4)
        state = fsm.forced(fsm.start)[1]
        while not state.ended:
            token = walker.step(fsm, state)
            forced, after = fsm.forced(fsm.advance(state, token))
            run = [token, *forced]
            sizes = fsm.units(state, run)
            assert sum(sizes) == len(run)
            assert min(sizes) >= 1
            spliced = after.spliced - state.spliced
            if spliced and after.at == len(after.queue):  # the span is the end of the run, or stands before a choice
                assert spliced in sizes
            if state.phase is Phase.GEN_BODY and after.phase is Phase.GEN_BODY:
                assert sizes == [1]
            state = after


def test_the_rest_of_a_literal_rides_with_the_id_that_selects_it():
    for kind in SUPPORTED:
        encoder = encoder_of(kind)
        table = encoder.table
        fsm = ProgramFSM(encoder, "\n" * 11, splice="full")
        state = replay(
            fsm, [*table.program_open, *table.copy_head, *encoder.number(7), *table.dash, *encoder.number(9)]
        )
        run = [*table.copy_close, *encoder.span(fsm.lines, 7, 9)]
        assert fsm.units(state, run) == [len(table.copy_close), len(run) - len(table.copy_close)]
        opened = replay(fsm, table.program_open)
        if table.copy_head[0] == table.gen_head[0]:  # then the second id selects
            assert fsm.units(opened, table.copy_head) == [1, len(table.copy_head) - 1]
        begun = replay(fsm, [*table.program_open, *table.gen_head, *table.gen_end[:-1]])
        assert fsm.units(begun, [table.gen_end[-1], *table.gen_close]) == [1 + len(table.gen_close)]


# Work


def lines_run(function, *arguments):
    """How many lines of the package's Python the call runs, whatever the machine."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        count += event == "line" and "decoding" in frame.f_code.co_filename
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function(*arguments)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("kind", ["byte_level", "qwen", "three_digits"])
@pytest.mark.parametrize("monotone", [False, True])
def test_the_work_of_a_choice_does_not_grow_with_the_document(kind, monotone):
    """A copy from the middle to the end and a body, at every state: legal ids, step, and what is forced."""
    encoder = get_encoder(kind)

    def work(n):
        document = "\n" * (n - 1)
        fsm = ProgramFSM(encoder, document, monotone=monotone)
        program = Program([Copy(1, n // 2 - 1), Gen.of("x"), Copy(n // 2 + 1, n - 1)])
        worst, choices, state = 0, 0, fsm.start
        for token in program_ids(encoder, program, document):
            legal = fsm.allowed(state)
            if legal is not None:
                choices = max(choices, len(legal))
                assert len(legal) <= 1 + len(set().union(*encoder.table.digits))
            worst = max(worst, sum(lines_run(step, *with_) for step, with_ in steps(fsm, state, token)))
            state = fsm.advance(state, token)
        return worst, choices

    def steps(fsm, state, token):
        return (fsm.allowed, (state,)), (fsm.advance, (state, token)), (fsm.forced, (state,)), (fsm.mask_row, (state,))

    (small, few), (large, many) = work(100), work(10_000)
    if kind == "three_digits":  # a number's first token is then one of a thousand
        few = max(few, len(set().union(*encoder.table.digits)))
        small = work(1000)[0]
    assert many <= few + 1
    assert large <= 3 * small


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3), st.integers(1, 10_000), st.data())
def test_the_work_of_a_number_is_bounded_by_its_choices(group, high, data):
    low = data.draw(st.integers(1, high))
    table = table_of(group)
    parts = grouped(data.draw(st.integers(low, high)), group)
    prefix = "".join(parts[: data.draw(st.integers(0, len(parts)))])
    choices = number_choices(table, prefix, low, high, 7)
    lengths = len(str(high))  # numbers of every length may share their first digits
    assert lines_run(number_choices, table, prefix, low, high, 7) <= 20 + 10 * lengths + 3 * lengths * len(choices)


def test_a_document_of_ten_thousand_lines_is_never_walked_in_a_choice():
    class Lines(list):
        """Counts how often a line is looked at."""

        looks = 0

        def __getitem__(self, key):
            Lines.looks += 1
            return super().__getitem__(key)

        def __iter__(self):
            Lines.looks += len(self)
            return super().__iter__()

    encoder = encoder_of("byte_level")
    walker = Walker(encoder, "ten thousand")
    fsm = ProgramFSM(encoder, "\n".join(f"line {number}" for number in range(10_000)), max_ops=12)
    fsm.lines = Lines(fsm.lines)
    for _ in range(20):
        ids, _, state = walker.walk(fsm)
        program, _ = fsm.program(state, ids)
        assert all(1 <= op.first <= op.last <= 10_000 for op in program.copies)
    assert Lines.looks == 0  # only spliced spans are read, and here nothing is spliced
