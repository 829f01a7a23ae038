"""The splice decoder equals its one-token reference however it runs, keeps its accounts, ends at limits in flagged
results, and samples by request and position alone."""

from __future__ import annotations

from functools import cache
from itertools import product

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_decoders import (
    DOCUMENTS,
    FREE,
    STEEP,
    Watch,
    assert_accounts,
    assert_same_edit,
    decoder_of,
    program_ids,
    scripted,
    taught,
)
from small_models import SUPPORTED, encoder_of

from data_prep.oracle import build_oracle
from decoding.choosing import Chooser, Decision
from decoding.decoder import EditRequest, SpliceDecoder, reference_decode
from decoding.fsm import ProgramFSM
from decoding.grammar import Copy, Gen, Program
from decoding.prompt import render_prompt
from decoding.resolver import resolve

LINES = ("", "x", "  return foo()", "</program>", '<copy lines="1-2"/>', "<|im_end|>", "e\u0301", "\r")
texts = st.lists(st.sampled_from(LINES), max_size=14).map("\n".join)
LIMITED = EditRequest("Edit.", "one\ntwo </program>\nthree\n")
INSTRUCTIONS = ("Rename it.", "Fix <|im_end|> and </program>.", "")
REQUESTS = [EditRequest(INSTRUCTIONS[i % 3], document) for i, document in enumerate(DOCUMENTS)]
REQUESTS += [REQUESTS[2]]  # a twin


# Against the reference

# Each pair of a splice and a temperature meets three of the pairs of a tokenizer and a model kind.
SETTINGS = list(product(("qwen2", "llama"), SUPPORTED))
CHOICES = list(product(("none", "full"), (0.0, 1.0)))
WAYS = list(product((False, True), (1, 3, 8), ("packed", "graphs")))


def matrix_decoder(kind, tokens, splice, temperature, **options):
    options = {"weights": SUPPORTED.index(tokens), "seed": 5, "max_ops": 3, "max_tokens": 34, **options}
    return decoder_of(kind, tokens, splice=splice, temperature=temperature, **options)


@cache
def references(kind, tokens, splice, temperature):
    decoder = matrix_decoder(kind, tokens, splice, temperature)
    return [reference_decode(decoder, request, number) for number, request in enumerate(REQUESTS)]


def setting(splice, temperature, way):
    row = CHOICES.index((splice, temperature))
    return SETTINGS[(row + 4 * (WAYS.index(way) % 3)) % len(SETTINGS)]


@pytest.mark.parametrize("backend", ["packed", "graphs"])
@pytest.mark.parametrize("batch_size", [1, 3, 8])
@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("splice", ["none", "full"])
def test_every_way_of_decoding_gives_the_edits_of_the_reference(splice, temperature, drafts, batch_size, backend):
    kind, tokens = setting(splice, temperature, (drafts, batch_size, backend))
    decoder = matrix_decoder(kind, tokens, splice, temperature, drafts=drafts, batch_size=batch_size, backend=backend)
    watch = Watch(decoder)
    for edit, slow in zip(decoder.decode(REQUESTS), references(kind, tokens, splice, temperature), strict=True):
        assert_same_edit(edit, slow)
        assert_accounts(edit, decoder)
    assert max(len(feeds) for feeds in watch.calls) >= min(batch_size, 6)


def test_the_references_end_in_every_way_and_hold_every_operation():
    for splice in ("none", "full"):
        stops, ops = set(), set()
        for temperature in (0.0, 1.0):
            for way in WAYS:
                for edit in references(*setting(splice, temperature, way), splice, temperature):
                    stops.add(edit.stats.stop)
                    ops |= {type(op) for op in edit.program.ops} if edit.program else set()
        assert stops == {"end", "max_ops", "max_tokens"}
        assert ops == {Copy, Gen}


@pytest.mark.parametrize("kind", ["mistral", "qwen2"])
@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize(("batch_size", "backend"), [(1, "packed"), (3, "packed"), (3, "graphs")])
def test_layers_with_a_window_attend_as_in_transformers(kind, drafts, batch_size, backend):
    """The reference runs on transformers' own attention and cache; its windows are far shorter than every prompt."""
    options = {"window": 16, "splice": "full", "temperature": 1.0, "seed": 3, "max_tokens": 30}
    decoder = decoder_of(kind, drafts=drafts, batch_size=batch_size, backend=backend, **options)
    slow = windowed_references(kind)
    for edit, reference in zip(decoder.decode(REQUESTS[1:5]), slow, strict=True):
        assert_same_edit(edit, reference)
    wide = decoder_of(kind, batch_size=batch_size, **{**options, "window": None})
    assert [edit.ids for edit in wide.decode(REQUESTS[1:5])] != [reference.ids for reference in slow]


@cache
def windowed_references(kind):
    decoder = decoder_of(kind, window=16, splice="full", temperature=1.0, seed=3, max_tokens=30)
    return [reference_decode(decoder, request, number) for number, request in enumerate(REQUESTS[1:5])]


def test_transformers_own_cache_and_attention_decode_the_same_edits():
    for splice, temperature in CHOICES:
        kind, tokens = SETTINGS[CHOICES.index((splice, temperature))]
        slow = references(kind, tokens, splice, temperature)
        for drafts in (False, True):
            decoder = matrix_decoder(kind, tokens, splice, temperature, drafts=drafts, backend="eager")
            for edit, reference in zip(decoder.decode(REQUESTS[:4]), slow[:4], strict=True):
                assert_same_edit(edit, reference)
                assert_accounts(edit, decoder)


@settings(max_examples=24, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_documents_and_settings_equal_the_reference(data):
    draw = data.draw
    decoder = decoder_of(
        draw(st.sampled_from(("qwen2", "llama"))),
        draw(st.sampled_from(SUPPORTED)),
        draw(st.integers(0, 3)),
        splice=draw(st.sampled_from(("full", "none"))),
        style=draw(st.sampled_from(("numbered", "plain"))),
        temperature=draw(st.sampled_from((0.0, 0.5, 1.0, 2.0))),
        monotone=draw(st.booleans()),
        min_span=draw(st.integers(1, 3)),
        seed=draw(st.integers(0, 9)),
        max_ops=draw(st.sampled_from((1, 3, 9))),
        max_tokens=draw(st.sampled_from((None, 20, 40))),
        drafts=draw(st.booleans()),
        costs=draw(st.sampled_from((FREE, STEEP))),
        batch_size=draw(st.sampled_from((1, 2, 3))),
        backend=draw(st.sampled_from(("packed", "graphs"))),
    )
    if decoder.max_tokens is None:
        decoder.context = 240  # so that it ends
    requests = draw(st.lists(st.builds(EditRequest, st.sampled_from(INSTRUCTIONS), texts), min_size=1, max_size=3))
    Watch(decoder)
    for number, edit in enumerate(decoder.decode(requests)):
        slow = reference_decode(decoder, requests[number], number)
        assert_same_edit(edit, slow)
        assert_accounts(edit, decoder)
        if edit.program:
            resolve(edit.program, requests[number].document)  # every range fits, in partial results too
            assert all(copy.last - copy.first + 1 >= decoder.min_span for copy in edit.program.copies)
            if decoder.monotone:
                copies = edit.program.copies
                assert all(a.last < b.first for a, b in zip(copies, copies[1:], strict=False))
        if edit.text is not None:
            assert edit.text == resolve(edit.program, requests[number].document)


def test_without_drafts_every_forward_makes_one_choice():
    for number, request in enumerate(REQUESTS[2:4]):
        for splice in ("full", "none"):
            edit = decoder_of(splice=splice, temperature=1.0, drafts=False).decode_one(request, number)
            assert edit.stats.forwards == edit.stats.decoded == edit.stats.heads
            assert edit.stats.drafted == edit.stats.accepted == 0


def test_the_positions_that_are_fed_are_counted():
    for drafts, backend in product((False, True), ("packed", "eager")):
        for number, request in enumerate(REQUESTS[2:4]):
            decoder = decoder_of(drafts=drafts, backend=backend, splice="full", temperature=1.0)
            watch = Watch(decoder)
            stats = decoder.decode_one(request, number).stats
            assert stats.fed == watch.fed
            assert stats.forwards == len(watch.calls)
            assert stats.heads == sum(len(feed.heads) for feeds in watch.calls for feed in feeds)
            assert 0 < stats.prefill_s <= stats.wall_s
            # The first forward is the prompt and what is forced after it.
            assert len(watch.calls[0][0].ids) >= stats.prompt_tokens


# A model that knows the answer


@pytest.mark.parametrize("tokens", SUPPORTED)
@pytest.mark.parametrize("splice", ["full", "none"])
def test_a_model_that_knows_the_oracle_writes_the_gold_in_at_most_one_forward_a_decision(tokens, splice):
    @settings(max_examples=8, deadline=None)
    @given(texts, texts, st.booleans(), st.booleans())
    def check(before, after, monotone, drafts):
        request, program = EditRequest("Edit.", before), build_oracle(before, after)
        for decode in (SpliceDecoder.decode_one, reference_decode):
            decoder = decoder_of(tokens=tokens, splice=splice, monotone=monotone, max_tokens=4000, drafts=drafts)
            gold = program_ids(decoder, program, before)
            prompt = decoder.open(request).prompt
            watch = Watch(taught(decoder, [(request, program)]))
            edit = decode(decoder, request)
            assert (edit.text, edit.program, edit.complete) == (after, program, True)
            assert edit.ids == gold  # without the end of sequence
            segments = decoder.encoder.segments(program, before, "full")
            assert edit.stats.copied == sum(len(segment.ids) for segment in segments if segment.kind == "splice")
            assert edit.stats.prompt_tokens == len(prompt)
            if decode is reference_decode:
                assert decoder.model.read == (prompt + gold)[:-1]
            else:
                assert_accounts(edit, decoder)
                assert edit.stats.forwards == len(watch.calls)
                assert edit.stats.forwards <= edit.stats.decoded
                if not drafts:  # nothing is ever fed that is not the gold, and nothing twice
                    assert edit.stats.forwards == edit.stats.decoded
                    fed = [index for (feed,) in watch.calls for index in feed.ids]
                    assert fed == (prompt + gold)[: len(fed)]

    check()


def test_drafts_save_most_forwards_of_a_plain_edit():
    document = "\n".join(f"value_{number} = {number * 7}" for number in range(1, 31))
    edited = document.replace("value_12 = 84", "value_12 = 85")
    request, program = EditRequest("Edit.", document), build_oracle(document, edited)
    spent = {}
    for drafts, costs in ((False, None), (True, FREE)):
        decoder = taught(decoder_of(drafts=drafts, costs=costs, max_tokens=4000), [(request, program)])
        edit = decoder.decode_one(request)
        assert edit.text == edited
        spent[drafts] = edit.stats.forwards
    assert spent[True] < 0.5 * spent[False]


def test_a_copy_costs_only_its_real_decisions():
    document = "\n".join(f"line {number}" for number in range(1, 8))
    request = EditRequest("Keep it.", document)
    for splice in ("full", "none"):
        decoder = taught(decoder_of(splice=splice, monotone=True, drafts=False), [(request, Program([Copy(1, 7)]))])
        edit = decoder.decode_one(request)
        assert edit.text == document
        # copy or gen, first line, last line; the end of a used-up monotone document is one more: gen or close.
        assert edit.stats.forwards == 4


def test_a_choice_that_the_script_makes_costs_what_the_models_own_would():
    document = "\n".join(f"value_{number} = {number * 7}" for number in range(1, 31))
    edits = [document.replace("value_12 = 84", "value_12 = 85"), document.replace("= 63", "= 6 # three")]
    requests = [EditRequest("Edit.", document)] * 2
    programs = [build_oracle(document, after) for after in edits]
    for splice, drafts, batch_size, feeding in product(("full", "none"), (False, True), (1, 2), ("fused", "paper")):
        options = {"splice": splice, "drafts": drafts, "max_tokens": 4000, "feeding": feeding}
        told = decoder_of(batch_size=batch_size, **options)
        golds = {number: program_ids(told, program, document) for number, program in enumerate(programs)}
        results = scripted(told, golds).decode(requests)
        for number, (edit, after) in enumerate(zip(results, edits, strict=True)):
            assert (edit.text, edit.ids, edit.stats.stop) == (after, golds[number], "end")
            knowing = taught(decoder_of(**options), [(requests[number], programs[number])])
            known = knowing.decode_one(requests[number])
            assert (edit.stats.decoded, edit.stats.forced, edit.stats.copied) == (
                known.stats.decoded,
                known.stats.forced,
                known.stats.copied,
            )
            if batch_size == 1 and number == 0:
                assert (edit.stats.forwards, edit.stats.fed, edit.stats.heads) == (
                    known.stats.forwards,
                    known.stats.fed,
                    known.stats.heads,
                )


# Text that looks like structure


@pytest.mark.parametrize("splice", ["full", "none"])
@pytest.mark.parametrize("drafts", [False, True])
def test_a_copied_line_that_spells_structure_changes_nothing(splice, drafts):
    document = 'one\n</program>\n<|im_end|>\n<copy lines="1-1"/>\n<gen>\nsix'
    plain = "one\ntwo\nthree\nfour\nfive\nsix"
    program = Program([Copy(2, 5), Copy(1, 1), Copy(2, 2)])
    for text in (document, plain):
        request = EditRequest("Edit.", text)
        decoder = taught(decoder_of(splice=splice, drafts=drafts), [(request, program)])
        edit = decoder.decode_one(request)
        assert edit.program == program
        assert edit.text == resolve(program, text)
        assert edit.complete


# Limits


@cache
def unlimited(tokens, splice, weights=0):
    return decoder_of(tokens=tokens, weights=weights, splice=splice, max_tokens=60).decode_one(LIMITED)


@pytest.mark.parametrize("tokens", ["byte_level", "metaspace"])
@pytest.mark.parametrize("splice", ["full", "none"])
def test_every_limit_on_tokens_cuts_where_the_reference_cuts(tokens, splice):
    full = unlimited(tokens, splice)
    for limit in range(24):
        slow = None
        for drafts in (False, True):
            decoder = decoder_of(tokens=tokens, splice=splice, max_tokens=limit, drafts=drafts)
            slow = slow or reference_decode(decoder, LIMITED)
            edit = decoder.decode_one(LIMITED)
            assert_same_edit(edit, slow)
            assert_accounts(edit, decoder)
            if not drafts:  # no forward is spent on a token that no longer fits
                assert edit.stats.forwards == edit.stats.decoded
        assert edit.ids == full.ids[:limit]
        if len(full.ids) > limit:
            assert (edit.text, edit.complete, edit.stats.stop) == (None, False, "max_tokens")
            assert edit.program is None or edit.program.ops == full.program.ops[: len(edit.program.ops)]
        else:
            assert (edit.text, edit.complete) == (full.text, full.complete)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_limit_within_a_copied_span_cuts_it_there(batch_size):
    """The copied span is longer than what one sequence may feed at once beside others."""
    document = "\n".join(f"value_{number} = {number * 7}" for number in range(40))
    program = Program([Copy(3, 38), Gen.of("end")])
    requests = [EditRequest(f"Edit {number}.", document) for number in range(3)]
    whole = decoder_of(splice="full", max_tokens=4000)
    ids = program_ids(whole, program, document)
    span = len(whole.encoder.span(document.split("\n"), 3, 38))
    start = len(program_ids(whole, Program([Copy(3, 38)]), document)) - len(whole.encoder.table.program_close) - span
    assert span > 200
    for limit in (start - 1, start, start + 1, start + 63, start + 64, start + 65, start + span - 1, start + span):
        for drafts in (False, True):
            decoder = decoder_of(splice="full", max_tokens=limit, batch_size=batch_size, drafts=drafts)
            watch = Watch(scripted(decoder, dict.fromkeys(range(3), ids)))
            for edit in decoder.decode(requests):
                assert edit.ids == ids[:limit]
                assert (edit.text, edit.stats.stop) == (None, "max_tokens")
                assert edit.program == (Program([Copy(3, 38)]) if limit >= start else None)
                assert edit.stats.copied == max(limit - start, 0)
                assert_accounts(edit, decoder)
            longest = max(feed.start + len(feed.ids) for feeds in watch.calls for feed in feeds)
            assert longest <= edit.stats.prompt_tokens + limit


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_program_ended_by_the_limit_on_operations_is_flagged(limit):
    reached = 0
    for seed, splice in product(range(2), ("full", "none")):
        decoder = decoder_of(weights=seed, splice=splice, max_ops=limit, batch_size=2, temperature=1.0, max_tokens=50)
        request = EditRequest("Edit.", "one\ntwo\nthree")
        for number, edit in enumerate(decoder.decode([request, LIMITED])):
            assert_same_edit(edit, reference_decode(decoder, (request, LIMITED)[number], number))
            if edit.stats.stop == "max_ops":
                reached += 1
                assert len(edit.program.ops) == limit
                assert (edit.text, edit.complete) == (None, False)
    assert reached


@pytest.mark.parametrize(
    ("options", "name"), [({"max_ops": 0}, "max_ops"), ({"min_span": 0}, "min_span"), ({"batch_size": 0}, "batch_size")]
)
def test_a_limit_that_leaves_nothing_is_an_error_that_names_it(options, name):
    with pytest.raises(ValueError, match=f"{name}=0"):
        decoder_of(**options)


@pytest.mark.parametrize("document", ["", "one\ntwo", "x\n" * 200])
def test_a_prompt_longer_than_the_context_ends_without_a_forward(document):
    request = EditRequest("Edit.", document)
    decoder = decoder_of(positions=16)
    watch = Watch(decoder)
    for edit in (decoder.decode_one(request), reference_decode(decoder, request)):
        assert (edit.text, edit.program, edit.ids, edit.complete) == (None, None, [], False)
        assert (edit.stats.stop, edit.stats.forwards, edit.stats.decoded) == ("context", 0, 0)
        assert edit.stats.prompt_tokens > 16
    assert watch.calls == []


@pytest.mark.parametrize("splice", ["full", "none"])
@pytest.mark.parametrize("drafts", [False, True])
def test_the_model_is_never_fed_more_than_its_context(splice, drafts):
    prompt = len(encoder_of("byte_level").prompt(render_prompt(LIMITED.instruction, LIMITED.document)))
    edits = ((weights, unlimited("byte_level", splice, weights)) for weights in range(50))
    weights, full = next((weights, edit) for weights, edit in edits if edit.complete and 20 < len(edit.ids) < 45)
    for room in range(-1, len(full.ids) + 2):
        decoder = decoder_of(weights=weights, splice=splice, max_tokens=400, drafts=drafts)
        decoder.context = prompt + room
        watch = Watch(decoder)
        edit = decoder.decode_one(LIMITED)
        reach = [feed.start + len(feed.ids) for feeds in watch.calls for feed in feeds]
        assert max(reach, default=0) <= prompt + max(room, 0)
        assert edit.ids == full.ids[: max(room, 0)]
        assert edit.stats.stop == ("end" if room >= len(full.ids) else "context")
        assert edit.text == (full.text if edit.complete else None)


def test_edits_in_one_batch_end_each_at_its_own_limit():
    requests = [EditRequest("Edit.", "one\ntwo\n" * size) for size in (6, 4, 5, 2, 7, 3)]
    decoder = decoder_of(max_tokens=40, batch_size=4, splice="full", temperature=1.0, seed=2)
    decoder.context = len(decoder.open(requests[4]).prompt) - 1
    limits = [decoder.open(request).limit for request in requests]
    assert 0 in limits
    assert len(set(limits)) > 3
    Watch(decoder)
    edits = decoder.decode(requests)
    for number, edit in enumerate(edits):
        assert_same_edit(edit, reference_decode(decoder, requests[number], number))
        assert len(edit.ids) <= limits[number]
    assert {"context", "max_tokens"} <= {edit.stats.stop for edit in edits}
    assert (edits[4].ids, edits[4].stats.forwards) == ([], 0)


def test_an_unfinished_edit_keeps_its_finished_operations():
    document = "one\ntwo\nthree"
    request, program = EditRequest("Edit.", document), Program([Copy(1, 2), Copy(1, 1)])
    for splice, drafts in product(("full", "none"), (False, True)):
        length = len(program_ids(decoder_of(splice=splice), program, document))
        decoder = taught(decoder_of(splice=splice, max_tokens=length - 1, drafts=drafts), [(request, program)])
        edit = decoder.decode_one(request)
        assert (edit.text, edit.program, edit.stats.stop) == (None, program, "max_tokens")
        assert len(edit.ids) == length - 1


def test_text_that_no_token_spells_is_refused_by_name_and_holds_up_no_one():
    requests = [EditRequest("Edit.", "one"), EditRequest("Edit.", "a\ud800"), EditRequest("\udc00", "b"), LIMITED]
    for batch_size in (1, 3):
        decoder = decoder_of(batch_size=batch_size)
        edits = decoder.decode(requests)
        for number in (0, 3):
            assert_same_edit(edits[number], reference_decode(decoder, requests[number], number))
        for number in (1, 2):
            assert (edits[number].text, edits[number].program, edits[number].ids) == (None, None, [])
            assert (edits[number].stats.stop, edits[number].stats.forwards) == ("lone_surrogate", 0)
            assert not edits[number].complete
        assert next(decoder.stream([(7, requests[1]), (8, LIMITED)]))[0] == 7  # as soon as may be
        only_refused = decoder.decode(requests[1:3])
        assert [edit.stats.stop for edit in only_refused] == ["lone_surrogate"] * 2
    assert decoder.decode([]) == []


# Sampling


def test_a_sample_depends_on_the_seed_and_the_number_of_the_request_alone():
    requests = [EditRequest(f"Edit {number}.", document) for number, document in enumerate(DOCUMENTS[:5])]
    options = {"temperature": 1.0, "seed": 1, "max_tokens": 50}
    decoder = decoder_of(**options)
    edits = [edit.ids for edit in decoder.decode(requests)]
    torch.manual_seed(99)
    state = torch.random.get_rng_state()
    for number in reversed(range(len(requests))):
        assert decoder.decode_one(requests[number], number).ids == edits[number]
    assert decoder_of(**options).decode(requests[:3])[2].ids == edits[2]
    together = decoder_of(**options, batch_size=3)
    numbered = list(enumerate(requests))
    assert {number: edit.ids for number, edit in together.stream(numbered[::-1])} == dict(enumerate(edits))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_another_seed_or_number_gives_another_sample_and_greedy_has_neither():
    request = EditRequest("Edit.", "one\ntwo\nthree")
    by_number = {
        tuple(decoder_of(temperature=3.0, max_tokens=40).decode_one(request, number).ids) for number in range(6)
    }
    by_seed = {
        tuple(decoder_of(temperature=3.0, max_tokens=40, seed=seed).decode_one(request).ids) for seed in range(6)
    }
    greedy = {tuple(decoder_of(seed=seed).decode_one(request, seed).ids) for seed in range(3)}
    assert len(by_number) > 3
    assert len(by_seed) > 3
    assert len(greedy) == 1


def deviation(counts, expected):
    """How many standard errors the relative frequencies are off at most."""
    n = counts.sum()
    return ((counts / n - expected).abs() / (expected * (1 - expected) / n).sqrt()).max()


def test_samples_of_listed_ids_follow_their_softmax():
    decoder = decoder_of(temperature=2.0)
    fsm = ProgramFSM(decoder.encoder, "\n" * 2)
    table = decoder.encoder.table
    state = fsm.start
    for token in [*table.program_open, *table.copy_head]:
        state = fsm.advance(state, token)
    legal = fsm.allowed(state)
    assert len(legal) == 3
    size = len(decoder.encoder.text.token_bytes) + 14
    logits = torch.randn(size, generator=torch.Generator().manual_seed(0)) * 3
    counts = torch.zeros(len(legal))
    decisions = [Decision(legal, 0, number, state.length) for number in range(3000)]
    probabilities = torch.log_softmax(logits[list(legal)], 0)
    for token, log in decoder.chooser(logits.repeat(3000, 1), decisions):
        counts[legal.index(token)] += 1
        assert log == pytest.approx(probabilities[legal.index(token)].item(), rel=1e-4)  # at no temperature
    assert deviation(counts, torch.softmax(logits[list(legal)] / 2.0, 0)) < 4


def test_samples_under_a_mask_follow_the_softmax_of_what_it_allows():
    masks = torch.tensor([[True, False, True, True, True, False], [False, True, True, False, False, True]])
    chooser = Chooser(masks.numpy(), 8, torch.device("cpu"), temperature=0.7)
    logits = torch.randn(8, generator=torch.Generator().manual_seed(1))
    assert chooser.unmasked == 2
    for row in range(3):
        counts = torch.zeros(8)
        allowed = torch.cat([masks[row], torch.zeros(2, dtype=torch.bool)]) if row < 2 else torch.ones(8).bool()
        for token, log in chooser(logits.repeat(4000, 1), [Decision(None, row, number, 9) for number in range(4000)]):
            assert allowed[token]
            assert log == pytest.approx((logits[token] - logits[allowed].logsumexp(0)).item(), rel=1e-4, abs=1e-6)
            counts[token] += 1
        assert deviation(counts[allowed], torch.softmax(logits[allowed] / 0.7, 0)) < 4


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_best_legal_ids_of_many_positions_are_those_of_each_alone(data):
    masks = torch.tensor([[True, False] * 6, [False, False, True] * 4])
    temperature = data.draw(st.sampled_from((0.0, 1.0)))
    chooser = Chooser(masks.numpy(), 14, torch.device("cpu"), temperature, seed=3)
    some = st.lists(st.integers(0, 13), min_size=1, max_size=5, unique=True).map(tuple) | st.none()
    decisions = data.draw(
        st.lists(st.builds(Decision, some, st.integers(0, 2), st.integers(0, 3), st.integers(0, 99)), min_size=1)
    )
    seed = data.draw(st.integers(0, 99))
    logits = torch.randn(len(decisions), 14, generator=torch.Generator().manual_seed(seed))
    together = chooser(logits.clone(), decisions)  # it overwrites them
    for row, (decision, (token, log)) in enumerate(zip(decisions, together, strict=True)):
        ((alone, same),) = chooser(logits[row : row + 1].clone(), [decision])
        assert (alone, same) == (token, pytest.approx(log, abs=1e-6))
        if decision.legal is not None:
            legal = list(decision.legal)
        elif decision.mask_row < 2:
            legal = [index for index in range(12) if masks[decision.mask_row, index]]
        else:
            legal = list(range(14))
        assert token in legal
        if temperature == 0:
            assert logits[row, token] == logits[row, legal].max()


def test_confidence_is_the_probability_of_the_choices():
    request, program = EditRequest("Edit.", "one\ntwo"), Program([Copy(2, 2), Gen.of("x")])
    for drafts in (False, True):
        decoder = taught(decoder_of(drafts=drafts, temperature=1.0), [(request, program)])
        # Nine against nought: e^9 of the weight for the right one of k legal ids.
        edit = decoder.decode_one(request)
        fsm, expected = ProgramFSM(decoder.encoder, "one\ntwo"), 1.0
        state = fsm.start
        for token in edit.ids:
            legal = fsm.allowed(state)
            size = decoder.encoder.gen_masks[state.matched].sum() if legal is None else len(legal)
            expected *= torch.e**9 / (torch.e**9 + size - 1) if size > 1 else 1
            state = fsm.advance(state, token)
        assert edit.confidence == pytest.approx(expected, rel=1e-3)
