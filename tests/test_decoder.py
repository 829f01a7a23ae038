"""The splice decoder equals its one-token reference, keeps its accounts, and ends at limits in flagged results."""

from __future__ import annotations

import random
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import SUPPORTED, encoder_of, tiny_model, tokenizer_of

from data_prep.oracle import build_oracle
from decoding.baselines import FreeDecoder
from decoding.decoder import EditRequest, SpliceDecoder, reference_decode
from decoding.fsm import ProgramFSM
from decoding.grammar import Copy, Program, render
from decoding.prompt import render_few_shot_prompt, render_prompt, render_regeneration_prompt
from decoding.resolver import resolve

PADDING = 14  # rows of the embedding that no token uses, as in most released models
DOCUMENTS = (
    "",
    "one line",
    "def add(a, b):\n    return a - b\n",
    '</program>\n<copy lines="1-2"/>\n<|im_end|>\n<gen>\n</gen>',
    "a\r\nb\u2028\n\x00\n\U000130c0 e\u0301\n" * 3,
    "\n".join(f"value_{number} = {number * 7}" for number in range(200)),
    "\n" * 12,
)
LIMITED = EditRequest("Edit.", "one\ntwo </program>\nthree\n")
INSTRUCTIONS = ("Rename it.", "Fix <|im_end|> and </program>.", "")


@cache
def model_of(kind, tokens, seed, positions=4096):
    """A model that, now and then, opens and closes tags."""
    encoder = encoder_of(tokens)
    end = encoder.table.gen_end
    return tiny_model(
        kind,
        len(encoder.text.token_bytes) + PADDING,
        seed,
        favoured=tuple({end[0], encoder.table.copy_head[0]}),
        successors=tuple(zip(end, end[1:], strict=False)),
        bias=7.0,
        positions=positions,
    )


def decoder_of(kind="qwen2", tokens="byte_level", weights=0, positions=4096, **options):
    model = model_of(kind, tokens, weights, positions)
    options.setdefault("max_tokens", 110)
    return SpliceDecoder(model, tokenizer_of(tokens), encoder=encoder_of(tokens), **options)


def assert_equals_reference(decoder, request, number=0):
    """Check the fused loop against the reference and its own accounts; return its edit."""
    edit, slow = decoder.decode_one(request, number), reference_decode(decoder, request, number)
    assert edit.ids == slow.ids
    assert (edit.text, edit.program, edit.complete) == (slow.text, slow.program, slow.complete)
    for name in ("stop", "prompt_tokens", "decoded", "copied", "forced", "broken_utf8"):
        assert getattr(edit.stats, name) == getattr(slow.stats, name), name
    spliced = edit.stats.copied if decoder.splice == "full" else 0
    assert edit.stats.decoded + edit.stats.forced + spliced == len(edit.ids)
    assert min(edit.stats.decoded, edit.stats.forced, spliced) >= 0
    assert slow.stats.forwards == len(slow.ids)
    assert edit.complete == (edit.text is not None) == (edit.stats.stop == "end")
    if edit.stats.stop in ("end", "max_ops"):
        assert edit.stats.forwards == edit.stats.decoded
    return edit


# Against the reference


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
@pytest.mark.parametrize("splice", ["full", "none"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_fused_loop_gives_the_ids_text_and_counts_of_the_reference(kind, splice, temperature):
    stops, ops = set(), set()
    for number in range(2 * len(DOCUMENTS)):
        decoder = decoder_of(
            kind,
            SUPPORTED[number % len(SUPPORTED)],
            number,
            splice=splice,
            temperature=temperature,
            seed=5,
            monotone=number % 2 == 1,
            max_ops=6,
        )
        document = DOCUMENTS[number // 2]
        edit = assert_equals_reference(decoder, EditRequest(INSTRUCTIONS[number % 3], document), number)
        stops.add(edit.stats.stop)
        if edit.program:
            ops |= {type(op).__name__ for op in edit.program.ops}
            resolve(edit.program, document)  # every range fits, in partial results too
        if edit.text is not None:
            assert edit.text == resolve(edit.program, document)
    assert "end" in stops
    assert len(stops) > 1
    assert ops == {"Copy", "Gen"}


def test_random_documents_and_settings_equal_the_reference():
    choose = random.Random(0)
    outcomes = set()
    for number in range(40):
        lines = [choose.choice(("", "x", "  return foo()", "</program>", "<|im_end|>", "\r")) for _ in range(30)]
        decoder = decoder_of(
            choose.choice(("qwen2", "llama")),
            choose.choice(SUPPORTED),
            choose.randrange(4),
            splice=choose.choice(("full", "none")),
            style=choose.choice(("numbered", "plain")),
            temperature=choose.choice((0.0, 0.5, 1.0, 2.0)),
            monotone=choose.random() < 0.5,
            seed=number,
            max_ops=choose.choice((1, 3, 9)),
            max_tokens=choose.choice((40, 90, 140)),
        )
        document = "\n".join(lines[: choose.randrange(31)])
        edit = assert_equals_reference(decoder, EditRequest(f"Edit {number}.", document), number)
        outcomes.add((edit.stats.stop, decoder.splice))
    assert outcomes == {(stop, splice) for stop in ("end", "max_ops", "max_tokens") for splice in ("full", "none")}


class Knows:
    """A decoder whose model knows the program: it is told what it was fed and answers with the next id of the gold."""

    def __init__(self, decoder, request, program):
        self.encoder, self.decoder = decoder.encoder, decoder
        prompt = self.encoder.prompt(render_prompt(request.instruction, request.document, decoder.style))
        segments = self.encoder.segments(program, request.document, decoder.splice)
        self.gold = prompt + [index for segment in segments for index in segment.ids]
        self.prompt_tokens, self.fed, self.forwards = len(prompt), [], 0
        self.vocabulary = len(self.encoder.text.token_bytes) + PADDING

    def __call__(self, ids, cache):
        self.fed += ids
        self.forwards += 1
        assert self.fed == self.gold[: len(self.fed)]
        logits = torch.zeros(self.vocabulary)
        logits[self.gold[len(self.fed)]] = 9.0
        return logits


@pytest.mark.parametrize("tokens", SUPPORTED)
@pytest.mark.parametrize("splice", ["full", "none"])
def test_a_model_that_knows_the_oracle_writes_the_gold_in_one_forward_a_decision(tokens, splice):
    lines = st.sampled_from(("", "x", "  foo()", "</program>", '<copy lines="1-2"/>', "<|im_end|>", "e\u0301", "\r"))
    texts = st.lists(lines, max_size=14).map("\n".join)

    @settings(max_examples=15, deadline=None)
    @given(texts, texts, st.booleans())
    def check(before, after, monotone):
        request, program = EditRequest("Edit.", before), build_oracle(before, after)
        for decode in (SpliceDecoder.decode_one, reference_decode):
            decoder = decoder_of(tokens=tokens, splice=splice, monotone=monotone, max_tokens=4000)
            knows = decoder._forward = Knows(decoder, request, program)
            edit = decode(decoder, request)
            assert (edit.text, edit.program, edit.complete) == (after, program, True)
            assert knows.prompt_tokens == edit.stats.prompt_tokens
            assert edit.ids == knows.gold[knows.prompt_tokens : -1]  # without the end of sequence
            segments = decoder.encoder.segments(program, before, "full")
            assert edit.stats.copied == sum(len(segment.ids) for segment in segments if segment.kind == "splice")
            if decode is not reference_decode:
                assert edit.stats.forwards == edit.stats.decoded == knows.forwards

    check()


def test_a_copy_costs_only_its_real_decisions():
    document = "\n".join(f"line {number}" for number in range(1, 8))
    program = Program([Copy(1, 7)])
    request = EditRequest("Keep it.", document)
    for splice in ("full", "none"):
        decoder = decoder_of(splice=splice, monotone=True)
        knows = decoder._forward = Knows(decoder, request, program)
        edit = decoder.decode_one(request)
        assert edit.text == document
        # copy or gen, first line, last line; the end of a used-up monotone document is one more: gen or close.
        assert knows.forwards == 4


# Text that looks like structure


@pytest.mark.parametrize("splice", ["full", "none"])
def test_a_copied_line_that_spells_structure_changes_nothing(splice):
    document = 'one\n</program>\n<|im_end|>\n<copy lines="1-1"/>\n<gen>\nsix'
    plain = "one\ntwo\nthree\nfour\nfive\nsix"
    program = Program([Copy(2, 5), Copy(1, 1), Copy(2, 2)])
    for text in (document, plain):
        request = EditRequest("Edit.", text)
        decoder = decoder_of(splice=splice)
        decoder._forward = Knows(decoder, request, program)
        edit = decoder.decode_one(request)
        assert edit.program == program
        assert edit.text == resolve(program, text)
        assert edit.complete


# Limits


@cache
def unlimited(tokens, splice, weights=0):
    return decoder_of(tokens=tokens, weights=weights, splice=splice, max_tokens=400).decode_one(LIMITED)


@pytest.mark.parametrize("limit", range(41))
@pytest.mark.parametrize("tokens", ["byte_level", "metaspace"])
def test_every_limit_on_tokens_cuts_where_the_reference_cuts(limit, tokens):
    for splice in ("full", "none"):
        full = unlimited(tokens, splice)
        edit = assert_equals_reference(decoder_of(tokens=tokens, splice=splice, max_tokens=limit), LIMITED)
        assert edit.ids == full.ids[:limit]
        if len(full.ids) > limit:
            assert (edit.text, edit.complete, edit.stats.stop) == (None, False, "max_tokens")
            assert edit.program is None or edit.program.ops == full.program.ops[: len(edit.program.ops)]
        else:
            assert (edit.text, edit.complete) == (full.text, full.complete)


@pytest.mark.parametrize("splice", ["full", "none"])
def test_no_forward_is_spent_on_a_token_that_no_longer_fits(splice):
    for limit in range(41):
        edit = decoder_of(splice=splice, max_tokens=limit).decode_one(LIMITED)
        assert edit.stats.forwards == edit.stats.decoded, limit


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_program_ended_by_the_limit_on_operations_is_flagged(limit):
    reached = 0
    for seed in range(8):
        for splice in ("full", "none"):
            decoder = decoder_of(weights=seed, splice=splice, max_ops=limit)
            edit = assert_equals_reference(decoder, EditRequest("Edit.", "one\ntwo\nthree"))
            if edit.stats.stop == "max_ops":
                reached += 1
                assert len(edit.program.ops) == limit
                assert (edit.text, edit.complete) == (None, False)
    assert reached


def test_a_limit_of_no_operations_is_an_error_that_says_so():
    with pytest.raises(ValueError, match="max_ops"):
        decoder_of(max_ops=0).decode_one(EditRequest("Edit.", "one"))


@pytest.mark.parametrize("document", ["", "one\ntwo", "x\n" * 200])
def test_a_prompt_longer_than_the_context_ends_without_a_forward(document):
    request = EditRequest("Edit.", document)
    decoder = decoder_of(positions=16)
    for edit in (decoder.decode_one(request), reference_decode(decoder, request)):
        assert (edit.text, edit.program, edit.ids, edit.complete) == (None, None, [], False)
        assert (edit.stats.stop, edit.stats.forwards, edit.stats.decoded) == ("context", 0, 0)


@pytest.mark.parametrize("splice", ["full", "none"])
def test_the_model_is_never_fed_more_than_its_context(splice):
    prompt = len(encoder_of("byte_level").prompt(render_prompt(LIMITED.instruction, LIMITED.document)))
    edits = ((weights, unlimited("byte_level", splice, weights)) for weights in range(50))
    weights, full = next((weights, edit) for weights, edit in edits if edit.complete and 20 < len(edit.ids) < 80)
    for room in range(-1, len(full.ids) + 2):
        decoder = decoder_of(weights=weights, splice=splice, max_tokens=400)
        decoder.context, fed, real = prompt + room, [], decoder._forward

        def count(ids, cache, fed=fed, real=real):
            fed.extend(ids)
            return real(ids, cache)

        decoder._forward = count
        edit = decoder.decode_one(LIMITED)
        assert len(fed) <= prompt + room
        assert edit.ids == full.ids[: max(room, 0)]
        assert edit.stats.stop == ("end" if room >= len(full.ids) else "context")
        assert edit.text == (full.text if edit.complete else None)


def test_an_unfinished_edit_keeps_its_finished_operations():
    document = "one\ntwo\nthree"
    request, program = EditRequest("Edit.", document), Program([Copy(1, 2), Copy(1, 1)])
    for splice in ("full", "none"):
        whole = decoder_of(splice=splice)
        whole._forward = Knows(whole, request, program)
        length = len(whole.decode_one(request).ids)
        decoder = decoder_of(splice=splice, max_tokens=length - 1)
        decoder._forward = Knows(decoder, request, program)
        edit = decoder.decode_one(request)
        assert (edit.text, edit.program, edit.stats.stop) == (None, program, "max_tokens")


# Sampling


def test_a_sample_depends_on_the_seed_and_the_number_of_the_request_alone():
    requests = [EditRequest(f"Edit {number}.", document) for number, document in enumerate(DOCUMENTS[:5])]
    decoder = decoder_of(temperature=1.0, seed=1)
    edits = [edit.ids for edit in decoder.decode(requests)]
    torch.manual_seed(99)
    state = torch.random.get_rng_state()
    for number in reversed(range(len(requests))):
        assert decoder.decode_one(requests[number], number).ids == edits[number]
    assert decoder_of(temperature=1.0, seed=1).decode(requests[:3])[2].ids == edits[2]
    assert torch.equal(torch.random.get_rng_state(), state)


def test_another_seed_or_number_gives_another_sample_and_greedy_has_neither():
    request = EditRequest("Edit.", "one\ntwo\nthree")
    by_number = {tuple(decoder_of(temperature=3.0).decode_one(request, number).ids) for number in range(6)}
    by_seed = {tuple(decoder_of(temperature=3.0, seed=seed).decode_one(request).ids) for seed in range(6)}
    greedy = {tuple(decoder_of(seed=seed).decode_one(request, seed).ids) for seed in range(3)}
    assert len(by_number) > 3
    assert len(by_seed) > 3
    assert len(greedy) == 1


def test_samples_follow_the_softmax_of_the_legal_ids():
    decoder = decoder_of(temperature=2.0)
    fsm = ProgramFSM(decoder.encoder, "\n" * 2)
    table = decoder.encoder.table
    state = fsm.start
    for token in [*table.program_open, *table.copy_head]:
        state = fsm.advance(state, token)
    legal = fsm.allowed(state)
    assert len(legal) == 3
    logits = torch.randn(len(decoder.encoder.text.token_bytes), generator=torch.Generator().manual_seed(0)) * 3
    n = 3000
    counts = torch.zeros(len(legal))
    for number in range(n):
        counts[legal.index(decoder.choose(logits, fsm, state, number))] += 1
    expected = torch.softmax(logits[list(legal)] / 2.0, 0)
    deviation = (counts / n - expected).abs() / (expected * (1 - expected) / n).sqrt()
    assert deviation.max() < 4


# Decoding without the grammar


def free(kind, tokens="byte_level", seed=0, positions=4096, **options):
    return FreeDecoder(model_of("qwen2", tokens, seed, positions), encoder_of(tokens), kind, **options)


def scripted(decoder, text, ended):
    """Make the decoder's model write ``text``, and end it or run on to the limit."""
    encoder = decoder.encoder
    ids = encoder.text.encode(text) + [encoder.table.end_of_sequence] * ended
    decoder._generate = lambda prompt, limit: ids[:limit]
    decoder.max_tokens = len(ids)
    return decoder.decode_one(EditRequest("Edit.", "one\ntwo\nthree"))


@pytest.mark.parametrize("kind", ["prompt", "full"])
def test_free_decoding_is_greedy_and_stops_at_its_limit(kind):
    request = EditRequest("Edit.", "one\ntwo")
    decoder = free(kind, max_tokens=12)
    messages = (
        render_few_shot_prompt(request.instruction, request.document)
        if kind == "prompt"
        else render_regeneration_prompt(request.instruction, request.document)
    )
    ids = decoder.encoder.prompt(messages)
    start = len(ids)
    with torch.inference_mode():
        while len(ids) < start + 12:
            ids.append(int(decoder.model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    (edit,) = decoder.decode([request])
    assert edit.ids == ids[start:]
    assert (edit.text, edit.complete, edit.stats.stop) == (None, False, "max_tokens")
    assert (edit.stats.prompt_tokens, edit.stats.forwards) == (start, 12)


@pytest.mark.parametrize("kind", ["prompt", "full"])
@pytest.mark.parametrize("room", [16, 0, -4])
def test_free_decoding_ends_at_the_context(kind, room):
    request = EditRequest("Edit.", "one\ntwo")
    decoder = free(kind)
    decoder.context = decoder.decode_one(request).stats.prompt_tokens + room
    edit = decoder.decode_one(request)
    assert (edit.text, edit.complete, edit.stats.stop) == (None, False, "context")
    assert len(edit.ids) == edit.stats.forwards == max(room, 0)


@pytest.mark.parametrize("kind", ["prompt", "full"])
def test_ids_that_no_token_has_are_no_text_in_free_decoding(kind):
    encoder = encoder_of("byte_level")
    vocabulary = len(encoder.text.token_bytes) + PADDING
    model = tiny_model("qwen2", vocabulary, 0, favoured=tuple(range(vocabulary - PADDING, vocabulary)), bias=30.0)
    edit = FreeDecoder(model, encoder, kind, max_tokens=5).decode_one(EditRequest("Edit.", "one"))
    assert edit.ids[0] >= len(encoder.text.token_bytes)
    assert edit.text is None


def test_a_free_document_is_taken_as_it_is_written():
    edit = scripted(free("full"), "one\n<|im_end|>\nTWO", ended=True)
    assert (edit.text, edit.program, edit.complete) == ("one\n<|im_end|>\nTWO", None, True)
    cut = scripted(free("full"), "one\nTWO", ended=False)
    assert (cut.text, cut.program, cut.complete) == (None, None, False)


def test_a_free_program_is_parsed_and_resolved():
    program = build_oracle("one\ntwo\nthree", "one\n</gen>\nthree")
    edit = scripted(free("prompt"), render(program), ended=True)
    assert (edit.text, edit.program, edit.complete) == ("one\n</gen>\nthree", program, True)


def test_a_free_program_that_is_wrong_leaves_no_text():
    outside = scripted(free("prompt"), '<program>\n<copy lines="1-9"/>\n</program>', ended=True)
    assert (outside.text, outside.program) == (None, Program([Copy(1, 9)]))
    nonsense = scripted(free("prompt"), "Sure! <program>", ended=True)
    assert (nonsense.text, nonsense.program) == (None, None)


def test_a_free_program_cut_by_the_limit_leaves_no_text():
    """Operations without their outer tag parse wherever they are cut, so the limit must speak."""
    cut = scripted(free("prompt"), '<copy lines="1-2"/>', ended=False)
    assert (cut.text, cut.complete, cut.stats.stop) == (None, False, "max_tokens")
