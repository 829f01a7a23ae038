"""Decoding of free text: greedy and bounded, alike with and without prompt lookup, and read back as its format says."""

from __future__ import annotations

import random
from functools import cache
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_decoders import PADDING, Watch, scripted, text_decoder_of
from small_models import SUPPORTED, encoder_of, tiny_model

from data_prep.oracle import build_oracle
from decoding.baselines import TextDecoder, TextGrammar, TextState
from decoding.decoder import EditRequest
from decoding.formats import FormatError, apply_search_replace, write_search_replace, write_unified_diff
from decoding.grammar import Copy, Program, render
from decoding.prompt import render_few_shot_prompt, render_format_prompt
from decoding.resolver import resolve

FORMATS = ["full", "prompt", "search_replace", "unified_diff"]
DOCUMENT = "one\ntwo\nthree"
LOOKUPS = [(3, 10, False), (3, 64, True), (1, 2, True)]
SAME = ("decoded", "copied", "forced", "prompt_tokens", "stop")


def written(format, text, *, ended=True, document=DOCUMENT, **options):
    """Return the edit of a model that writes ``text``, and ends it or runs on to the limit."""
    decoder = text_decoder_of(format, **options)
    ids = decoder.encoder.text.encode(text) + [decoder.encoder.table.end_of_sequence] * ended
    decoder.max_tokens = len(ids)
    (edit,) = scripted(decoder, {0: ids}).decode([EditRequest("Edit.", document)])
    assert edit.ids == ids
    return edit


def repetitive_requests(count, seed=0):
    choose = random.Random(seed)
    lines = ("value = 7", "return foo()", "", "value = 8")
    return [
        EditRequest(f"Edit {number}.", "\n".join(choose.choice(lines) for _ in range(choose.randrange(8))))
        for number in range(count)
    ]


# Generation


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("lookup", [None, (3, 10, False)])
def test_free_decoding_is_greedy_and_stops_at_its_limit(format, lookup):
    request = EditRequest("Edit.", "one\ntwo")
    decoder = text_decoder_of(format, max_tokens=12, lookup=lookup)
    messages = (
        render_few_shot_prompt(request.instruction, request.document)
        if format == "prompt"
        else render_format_prompt(request.instruction, request.document, format)
    )
    ids, total = decoder.encoder.prompt(messages), 0.0
    start = len(ids)
    with torch.inference_mode():
        while len(ids) < start + 12:
            logits = decoder.model(input_ids=torch.tensor([ids])).logits[0, -1]
            ids.append(int(logits.argmax()))
            total += logits.log_softmax(-1).max().item()
    (edit,) = decoder.decode([request])
    assert edit.ids == ids[start:]
    assert (edit.text, edit.complete, edit.stats.stop) == (None, False, "max_tokens")
    assert (edit.stats.prompt_tokens, edit.stats.decoded) == (start, 12)
    assert edit.confidence == pytest.approx(torch.tensor(total).exp().item(), rel=1e-3)
    if lookup is None:
        assert (edit.stats.forwards, edit.stats.heads, edit.stats.fed) == (12, 12, start + 11)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("room", [16, 0, -4])
def test_free_decoding_ends_at_the_context(format, room):
    request = EditRequest("Edit.", "one\ntwo")
    for lookup in (None, (3, 10, True)):
        decoder = text_decoder_of(format, lookup=lookup)
        prompt = len(decoder.open(request).prompt)
        decoder.context = prompt + room
        watch = Watch(decoder)
        edit = decoder.decode_one(request)
        assert (edit.text, edit.complete, edit.stats.stop) == (None, False, "context")
        assert len(edit.ids) == edit.stats.decoded == max(room, 0)
        reach = [feed.start + len(feed.ids) for feeds in watch.calls for feed in feeds]
        assert max(reach, default=0) <= prompt + max(room, 0)
        if lookup is None:
            assert edit.stats.forwards == max(room, 0)


@cache
def plainly_written():
    return text_decoder_of("full", "byte_level", 2, max_tokens=28).decode(repetitive_requests(8))


@pytest.mark.parametrize("lookup", LOOKUPS)
@pytest.mark.parametrize(("batch_size", "backend"), [(1, "packed"), (1, "eager"), (3, "packed"), (8, "graphs")])
def test_prompt_lookup_gives_the_ids_of_plain_decoding_in_fewer_forwards(lookup, batch_size, backend):
    requests, plain = repetitive_requests(8), plainly_written()
    decoder = text_decoder_of(
        "full", "byte_level", 2, max_tokens=28, lookup=lookup, batch_size=batch_size, backend=backend
    )
    Watch(decoder)
    edits = decoder.decode(requests)
    for edit, same in zip(edits, plain, strict=True):
        assert (edit.ids, edit.text) == (same.ids, same.text)
        assert [getattr(edit.stats, name) for name in SAME] == [getattr(same.stats, name) for name in SAME]
        assert edit.confidence == pytest.approx(same.confidence, rel=1e-3)
        assert edit.stats.accepted <= edit.stats.drafted
        assert edit.stats.decoded - edit.stats.accepted <= edit.stats.forwards <= edit.stats.decoded
    assert sum(edit.stats.accepted for edit in edits) > 0
    assert sum(edit.stats.forwards for edit in edits) < sum(edit.stats.forwards for edit in plain)


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_any_text_is_written_alike_with_and_without_lookup(data):
    draw = data.draw
    tokens, format = draw(st.sampled_from(SUPPORTED)), draw(st.sampled_from(FORMATS))
    weights, limit = draw(st.integers(0, 3)), draw(st.integers(0, 30))
    requests = repetitive_requests(draw(st.integers(1, 4)), draw(st.integers(0, 9)))
    lookup = (draw(st.integers(1, 4)), draw(st.integers(1, 20)), draw(st.booleans()))
    batch_size = draw(st.sampled_from((1, 3)))
    plain = text_decoder_of(format, tokens, weights, max_tokens=limit)
    drafted = text_decoder_of(format, tokens, weights, max_tokens=limit, lookup=lookup, batch_size=batch_size)
    Watch(drafted)
    for edit, same in zip(drafted.decode(requests), plain.decode(requests), strict=True):
        assert (edit.ids, edit.text, edit.program) == (same.ids, same.text, same.program)
        assert edit.stats.stop == same.stats.stop


def test_lookup_writes_a_repeated_text_in_few_forwards():
    document = "\n".join(f"value_{number} = {number * 7}" for number in range(12))
    spent = {}
    for lookup in (None, (3, 10, False), (3, 64, True)):
        edit = written("full", document, document=document, lookup=lookup)
        assert edit.text == document
        spent[lookup] = edit.stats.forwards
    assert spent[3, 64, True] < spent[3, 10, False] < 0.5 * spent[None]


@pytest.mark.parametrize("format", ["full", "prompt"])
def test_ids_that_no_token_has_are_no_text_in_free_decoding(format):
    encoder = encoder_of("byte_level")
    vocabulary = len(encoder.text.token_bytes) + PADDING
    model = tiny_model("qwen2", vocabulary, 0, favoured=tuple(range(vocabulary - PADDING, vocabulary)), bias=30.0)
    edit = TextDecoder(model, encoder, format, max_tokens=5).decode_one(EditRequest("Edit.", "one"))
    assert edit.ids[0] >= len(encoder.text.token_bytes)
    assert edit.text is None


def test_the_end_of_sequence_ends_free_text_and_nothing_else_does():
    grammar = TextGrammar(end_of_sequence=5, mask_row=7)
    state = grammar.start
    assert (state, grammar.allowed(state), grammar.mask_row(state)) == (TextState(0, False), None, 7)
    for length, token in enumerate((0, 6, 5), start=1):
        assert grammar.forced(state) == ([], state)
        state = grammar.advance(state, token)
        assert state == TextState(length, token == 5)


def test_nothing_is_fed_or_written_after_the_end():
    ids = encoder_of("byte_level").text.encode(DOCUMENT)
    for lookup, batch_size in product((None, (3, 64, True)), (1, 2)):
        decoder = text_decoder_of("full", lookup=lookup, batch_size=batch_size, max_tokens=90)
        end = decoder.encoder.table.end_of_sequence
        watch = Watch(scripted(decoder, dict.fromkeys(range(3), [*ids, end])))
        for edit in decoder.decode([EditRequest("Edit.", DOCUMENT)] * 3):
            assert (edit.text, edit.ids, edit.stats.stop) == (DOCUMENT, [*ids, end], "end")
        assert watch.calls


def test_text_that_no_token_spells_is_refused_by_name():
    edits = text_decoder_of("full", max_tokens=3).decode([EditRequest("Edit.", "a\ud800"), EditRequest("Edit.", "a")])
    assert [edit.stats.stop for edit in edits] == ["lone_surrogate", "max_tokens"]


# Reading


def test_a_free_document_is_taken_as_it_is_written():
    edit = written("full", "one\n<|im_end|>\nTWO")
    assert (edit.text, edit.program, edit.complete) == ("one\n<|im_end|>\nTWO", None, True)
    cut = written("full", "one\nTWO", ended=False)
    assert (cut.text, cut.program, cut.complete, cut.stats.stop) == (None, None, False, "max_tokens")
    assert written("full", "").text == ""


def test_a_free_program_is_parsed_and_resolved():
    program = build_oracle(DOCUMENT, "one\n</gen>\nthree")
    edit = written("prompt", render(program))
    assert (edit.text, edit.program, edit.complete) == ("one\n</gen>\nthree", program, True)
    assert edit.text == resolve(program, DOCUMENT)


def test_a_free_program_that_is_wrong_leaves_no_text():
    outside = written("prompt", '<program>\n<copy lines="1-9"/>\n</program>')
    assert (outside.text, outside.program, outside.complete) == (None, Program([Copy(1, 9)]), True)
    nonsense = written("prompt", "Sure! <program>")
    assert (nonsense.text, nonsense.program) == (None, None)


def test_a_free_program_cut_by_the_limit_leaves_no_text():
    """Operations without their outer tag parse wherever they are cut, so the limit must speak."""
    cut = written("prompt", '<copy lines="1-2"/>', ended=False)
    assert (cut.text, cut.complete, cut.stats.stop) == (None, False, "max_tokens")


@pytest.mark.parametrize("after", ["one\nTWO\nthree", "one", "zero\none\ntwo\nthree\nfour", "one\n\n<gen>\nthree\n"])
@pytest.mark.parametrize(
    ("format", "write"), [("search_replace", write_search_replace), ("unified_diff", write_unified_diff)]
)
def test_blocks_and_diffs_are_applied_to_the_document(format, write, after):
    text = write(DOCUMENT, after)
    edit = written(format, text)
    assert (edit.text, edit.program, edit.complete) == (after, None, True)
    assert written(format, text, ended=False).text is None  # what else would have come is not known


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("search_replace", "Sure!"),
        ("search_replace", "<<<<<<< SEARCH\nfour\n=======\n4\n>>>>>>> REPLACE"),
        ("search_replace", "<<<<<<< SEARCH\ntwo\n=======\n2"),
        ("unified_diff", "Sure!"),
        ("unified_diff", "--- a\n+++ b\n@@ -1,1 +1,1 @@\n-four\n+4\n"),
        ("unified_diff", "@@ -1,3 +1,3 @@\n one\n-two\n"),
    ],
)
def test_blocks_and_diffs_that_are_wrong_leave_no_text(format, text):
    edit = written(format, text)
    assert (edit.text, edit.program, edit.complete) == (None, None, True)


def test_a_search_that_occurs_twice_is_taken_first_or_refused():
    document, text = "a\nb\na", "<<<<<<< SEARCH\na\n=======\nA\n>>>>>>> REPLACE"
    assert written("search_replace", text, document=document).text == "A\nb\na"
    assert written("search_replace", text, document=document, unique=True).text is None
    with pytest.raises(FormatError, match="ambiguous"):
        apply_search_replace(text, document, "unique")


def test_text_cut_inside_a_character_is_still_a_document():
    encoder = encoder_of("byte_level")
    single = {piece: index for index, piece in enumerate(encoder.text.token_bytes) if piece and len(piece) == 1}
    ids = [single[bytes([byte])] for byte in "\U000130c0".encode()[:2]] + [encoder.table.end_of_sequence]
    decoder = scripted(text_decoder_of("full", max_tokens=3), {0: ids})
    assert decoder.decode_one(EditRequest("Edit.", "one")).text == "\ufffd"
