"""The engine and its forwards: a cache that always holds what was written, long spans in pieces, sequences that join,
leave and share prompts, and every backend alike."""

from __future__ import annotations

import random
from functools import cache
from itertools import product

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_decoders import (
    DOCUMENTS,
    FREE,
    PADDING,
    STEEP,
    Watch,
    assert_same_edit,
    decoder_of,
    model_of,
    program_ids,
    scripted,
    text_decoder_of,
)
from small_models import encoder_of, tiny_model
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
)

from decoding.baselines import TextDecoder
from decoding.costs import CostCurve
from decoding.decoder import EditRequest, SpliceDecoder, reference_decode
from decoding.engine import Engine, within
from decoding.forward import EagerForward, Feed, PackedForward, make_forward
from decoding.fsm import ProgramFSM
from decoding.grammar import Copy, Gen, Program
from decoding.resolver import resolve

BYTE_LEVEL = encoder_of("byte_level")
VOCABULARY = len(BYTE_LEVEL.text.token_bytes) + PADDING
LINES = ("", "x", "  return foo()", "</program>", "<|im_end|>", "value = 7")


def requests_of(count, seed=0, longest=9):
    choose = random.Random(seed)
    documents = ("\n".join(choose.choice(LINES) for _ in range(choose.randrange(longest))) for _ in range(count))
    return [EditRequest(f"Edit {number}.", document) for number, document in enumerate(documents)]


def fresh_logits(model, ids, heads=None):
    """The logits over ``ids`` without any cache."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    return logits[-1 if heads is None else heads]


def noted(decoder):
    """Return a list that will hold the decoder's sequences in the order they are opened."""
    sequences, opened = [], decoder.open

    def note(request, number=0):
        sequences.append(opened(request, number))
        return sequences[-1]

    decoder.open = note
    return sequences


def own_log_probability(decoder, sequence):
    """The log-probability of the model's own choices along a scripted sequence, by one forward over all of it."""
    fsm, state, total = sequence.grammar, sequence.grammar.start, 0.0
    logits = fresh_logits(decoder.model, sequence.prompt + sequence.ids, slice(None))
    for at, token in enumerate(sequence.ids):
        legal, row = fsm.allowed(state), logits[len(sequence.prompt) + at - 1]
        if legal is None:
            legal = decoder.encoder.gen_masks[fsm.mask_row(state)].nonzero()[0].tolist()
        if len(legal) > 1:
            total += (row[list(legal)].max() - row[list(legal)].logsumexp(0)).item()
        state = fsm.advance(state, token)
    return total


# The cache


@pytest.mark.parametrize(("batch_size", "backend"), [(1, "packed"), (3, "packed"), (3, "graphs"), (1, "eager")])
@pytest.mark.parametrize("splice", ["full", "none"])
@pytest.mark.parametrize("drafts", [False, True])
def test_after_every_step_a_slot_and_a_state_are_those_of_a_fresh_start(splice, drafts, batch_size, backend):
    """``Watch`` replays the ids in the grammar; here the slot's next logits are compared with those of no cache."""
    steps = []

    def probe(sequence):
        feed = Feed(sequence.slot, sequence.cached, sequence.pending, [len(sequence.pending) - 1])
        if sequence.pending:  # feeding it twice is no harm: the next step writes the same
            expected = fresh_logits(decoder.model, sequence.prompt + sequence.ids)
            assert torch.allclose(watch.real([feed])[0], expected, atol=1e-4)
            steps.append(sequence.number)

    decoder = decoder_of(
        splice=splice,
        drafts=drafts,
        batch_size=batch_size,
        backend=backend,
        temperature=1.0,
        seed=4,
        max_tokens=30,
        weights=3,
    )
    watch = Watch(decoder, probe)
    requests = requests_of(3, seed=2, longest=6)
    edits = decoder.decode(requests)
    assert len(steps) > 8
    if drafts:
        assert sum(edit.stats.drafted for edit in edits) > sum(
            edit.stats.accepted for edit in edits
        )  # some rolled back
    for number, edit in enumerate(edits):
        assert_same_edit(edit, reference_decode(decoder, requests[number], number))


feeds = st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(1, 9))
moves = st.lists(
    st.tuples(st.just("feed"), st.lists(feeds, min_size=1, max_size=3, unique_by=lambda feed: feed[0]))
    | st.tuples(st.just("copy"), st.permutations([0, 1, 2])),
    min_size=1,
    max_size=7,
)


@pytest.mark.parametrize(
    ("kind", "window", "heads"),
    [
        ("qwen2", None, (2, 1)),
        ("llama", None, (4, 2)),
        ("llama", None, (2, 2)),
        ("qwen2", 5, (4, 2)),
        ("mistral", 5, (2, 1)),
    ],
)
@pytest.mark.parametrize("graphs", [False, True])
def test_any_feeds_rollbacks_and_copies_give_the_logits_of_no_cache(kind, window, heads, graphs):
    model = tiny_model(kind, VOCABULARY, 0, window=window, heads=heads)

    @settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(moves, st.randoms(use_true_random=False))
    def check(moves, choose):
        forward, held = PackedForward(model, 3, graphs=graphs), {}
        for move, what in moves:
            if move == "copy":
                source, target, _ = what
                if held.get(source):
                    length = choose.randint(1, len(held[source]))
                    forward.copy(source, target, length)
                    held[target] = held[source][:length]
                continue
            batch = []
            for slot, back, count in what:
                start = max(len(held.get(slot, [])) - back, 0)
                ids = [choose.randrange(VOCABULARY) for _ in range(count)]
                heads = sorted(choose.sample(range(count), choose.randint(0, count)))
                held[slot] = held.get(slot, [])[:start] + ids
                batch.append(Feed(slot, start, ids, heads))
            logits = forward(batch)
            wanted = [fresh_logits(model, held[feed.slot], feed.start + head) for feed in batch for head in feed.heads]
            assert logits.shape == (len(wanted), VOCABULARY)
            if wanted:
                assert torch.allclose(logits, torch.stack(wanted), atol=1e-4)

    check()


@pytest.mark.parametrize("graphs", [False, True])
def test_a_cache_that_grows_keeps_what_it_holds(graphs):
    model = model_of("qwen2", "byte_level", 0)
    forward, choose = PackedForward(model, 2, graphs=graphs), random.Random(0)
    held, capacities = {0: [], 1: []}, []
    for count in (200, 200, 700, 5, 900, 3):
        batch = []
        for slot, ids in held.items():
            new = [choose.randrange(VOCABULARY) for _ in range(count + slot)]
            batch.append(Feed(slot, len(ids), new, [len(new) - 1]))
            held[slot] = ids + new
        logits = forward(batch)
        if graphs and forward.cache.capacity > max(capacities, default=0):
            assert len(forward._graphs) <= 1  # older ones point at the buffers of before
        capacities.append(forward.cache.capacity)
        for slot, ids in held.items():
            assert torch.allclose(logits[slot], fresh_logits(model, ids), atol=1e-4)
    assert len(set(capacities)) > 1


def test_the_padding_of_many_short_feeds_has_room():
    model, choose = model_of("qwen2", "byte_level", 0), random.Random(0)
    forward = PackedForward(model, 9, graphs=True)
    batch = [Feed(slot, 0, [choose.randrange(VOCABULARY) for _ in range(58)], [57]) for slot in range(9)]
    for logits, feed in zip(forward(batch), batch, strict=True):
        assert torch.allclose(logits, fresh_logits(model, feed.ids), atol=1e-4)


def test_the_model_keeps_its_own_attention_for_others():
    decoder = decoder_of()
    before = decoder.model.config._attn_implementation
    ids = BYTE_LEVEL.text.encode("def add(a, b):")
    expected = fresh_logits(decoder.model, ids)
    decoder.decode_one(EditRequest("Edit.", "one\ntwo"))
    assert decoder.model.config._attn_implementation == before
    assert torch.equal(fresh_logits(decoder.model, ids), expected)


def test_a_decoder_left_in_the_middle_of_a_stream_starts_anew():
    requests = requests_of(4)
    for backend, batch_size in (("packed", 3), ("graphs", 3), ("eager", 1)):
        decoder = decoder_of(batch_size=batch_size, backend=backend, temperature=1.0, max_tokens=30)
        whole = decoder.decode(requests)
        stream = decoder.stream(enumerate(requests))
        next(stream)
        stream.close()
        for edit, same in zip(decoder.decode(requests[::-1]), whole[::-1], strict=True):
            if requests[0] == requests[-1]:
                assert edit.ids == same.ids
        for edit, same in zip(decoder.decode(requests), whole, strict=True):
            assert_same_edit(edit, same)


# Long spans


def long_document(lines):
    return "\n".join(f"x{number}" for number in range(1, lines + 1))


@pytest.mark.parametrize(("drafts", "backend"), [(False, "packed"), (True, "graphs")])
def test_long_spans_are_fed_in_pieces_beside_others_and_at_once_alone(drafts, backend):
    document = long_document(240)
    programs = [
        Program([Copy(1, 120), Gen.of("new"), Copy(122, 240)]),
        Program([Gen.of("\n".join(f"line {number}" for number in range(20))), Copy(230, 240)]),
        Program([Copy(1, 2), Gen.of("x4"), Copy(4, 240)]),
    ]
    requests = [EditRequest(f"Edit {number}.", document) for number in range(3)]
    logs, edits, calls = {}, {}, {}
    for batch_size in (1, 3):
        decoder = decoder_of(
            splice="full",
            max_tokens=9000,
            positions=32768,
            batch_size=batch_size,
            drafts=drafts,
            backend=backend,
            costs=CostCurve((1, 2), (1.0, 1.02)),
        )
        golds = {number: program_ids(decoder, program, document) for number, program in enumerate(programs)}
        sequences = noted(scripted(decoder, golds))
        calls[batch_size] = Watch(decoder).calls
        edits[batch_size] = decoder.decode(requests)
        logs[batch_size] = [sequence.log_probability for sequence in sequences]
        if batch_size == 3:
            expected = [own_log_probability(decoder, sequence) for sequence in sequences]
    for number, program in enumerate(programs):
        for batch_size in (1, 3):
            edit = edits[batch_size][number]
            assert (edit.text, edit.ids) == (resolve(program, document), golds[number])
            assert logs[batch_size][number] == pytest.approx(expected[number], abs=0.02)
        assert edits[1][number].stats.decoded == edits[3][number].stats.decoded
    shared = [feed for feeds in calls[3] if len(feeds) > 1 for feed in feeds]
    alone = [feed for (feed,) in calls[1]]
    if not drafts:
        assert max(len(feed.ids) for feed in shared) == 64
        assert sum(len(feed.ids) == 64 and not feed.heads for feed in shared) > 5
    assert max(len(feed.ids) for feed in alone if feed.start) > 64
    # Nobody waits: while one is fed its span, others go on choosing.
    waits = [feeds for feeds in calls[3] if any(not feed.heads for feed in feeds)]
    assert any(feed.heads for feeds in waits for feed in feeds)


def test_a_span_wider_than_any_graph_is_fed_all_the_same():
    document = long_document(330)
    program = Program([Copy(1, 330)])
    request = EditRequest("Keep it.", document)
    for drafts, batch_size in product((False, True), (1, 2)):
        decoder = decoder_of(
            splice="full", max_tokens=9000, positions=32768, backend="graphs", drafts=drafts, batch_size=batch_size
        )
        gold = program_ids(decoder, program, document)
        sequences = noted(scripted(decoder, dict.fromkeys(range(batch_size), gold)))
        for edit in decoder.decode([request] * batch_size):
            assert (edit.text, edit.ids) == (document, gold)
        for sequence in sequences:
            assert sequence.log_probability == pytest.approx(own_log_probability(decoder, sequence), abs=0.01)
        assert len(BYTE_LEVEL.span(document.split("\n"), 1, 330)) > 1024


# Sequences that join and leave

JOINING = {"splice": "full", "temperature": 1.0, "max_tokens": 20, "seed": 1}


@cache
def one_by_one():
    return [decoder_of(**JOINING).decode_one(*pair[::-1]) for pair in enumerate(requests_of(11, seed=5, longest=6))]


@pytest.mark.parametrize("backend", ["packed", "graphs"])
@pytest.mark.parametrize("batch_size", [2, 3, 8])
def test_every_slot_is_in_use_while_requests_wait_and_each_edit_is_as_if_alone(batch_size, backend):
    requests = requests_of(11, seed=5, longest=6)
    decoder = decoder_of(batch_size=batch_size, backend=backend, **JOINING)
    watch = Watch(decoder)
    edits = decoder.decode(requests)
    for edit, alone in zip(edits, one_by_one(), strict=True):
        assert_same_edit(edit, alone)
    shared = {number for numbers in watch.live for number in numbers}
    begun = set()
    for numbers in watch.live:
        begun |= set(numbers)
        assert len(set(numbers)) == len(numbers) <= batch_size
        if len(numbers) < batch_size:  # nobody waits beside a free slot, but who is finished by a first forward
            assert begun == shared
    assert max(len(numbers) for numbers in watch.live) == batch_size
    assert watch.copies  # the last slot moved into a gap
    if backend == "graphs":
        assert 1 < len(decoder.forward._graphs) < 30
        assert all(size & (size - 1) == 0 for widths in decoder.forward._graphs for size in widths)


def test_edits_are_yielded_as_they_finish_and_requests_taken_as_slots_free_up():
    requests, taken = requests_of(12, seed=5), []

    def numbered():
        for number, request in enumerate(requests):
            taken.append(number)
            yield number, request

    decoder = decoder_of(batch_size=3, temperature=1.0, max_tokens=25)
    order = []
    for number, edit in decoder.stream(numbered()):
        order.append(number)
        assert len(taken) <= len(order) + 3
        assert edit.ids == decoder_of(temperature=1.0, max_tokens=25).decode_one(requests[number], number).ids
    assert sorted(order) == list(range(12))
    assert order != sorted(order)


@pytest.mark.parametrize("backend", ["packed", "graphs"])
@pytest.mark.parametrize("kind", ["program", "text"])
def test_twins_share_one_computation_of_their_prompt(kind, backend):
    request = EditRequest("Edit.", DOCUMENTS[2])
    requests = [request] * 5 + [EditRequest("Other.", "one")] + [request] * 2
    options = {"batch_size": 4, "backend": backend, "max_tokens": 25}
    if kind == "program":
        decoder = decoder_of(temperature=1.0, weights=1, **options)
        slow = [reference_decode(decoder, one, number) for number, one in enumerate(requests)]
    else:
        decoder = text_decoder_of("full", **options)
        slow = [decoder.decode_one(one) for one in requests]
    watch = Watch(decoder)
    edits = decoder.decode(requests)
    for edit, reference in zip(edits, slow, strict=True):
        assert (edit.ids, edit.stats.stop) == (reference.ids, reference.stats.stop)
        assert edit.confidence == pytest.approx(reference.confidence, rel=1e-3)
    prompt = edits[0].stats.prompt_tokens
    whole = [feed for feeds in watch.calls for feed in feeds if feed.start == 0]
    assert len(whole) < len(requests)
    shared = prompt if kind == "program" else prompt - 1  # something must be left to feed
    assert [length for _, _, length in watch.copies].count(shared) >= 3
    if kind == "program":
        assert len({tuple(edit.ids) for edit in edits[:5]}) > 1
    assert sum(edit.stats.fed for edit in edits) == watch.fed


# Backends


def test_the_backend_follows_the_device_the_model_and_the_slots():
    model = model_of("qwen2", "byte_level", 0)
    assert isinstance(make_forward(model, 3, None), PackedForward)
    assert isinstance(make_forward(model, 1, "eager"), EagerForward)
    assert make_forward(model, 3, "graphs").slots == make_forward(model, 3, "packed").slots == 3
    with pytest.raises(ValueError, match="batch_size=1"):
        make_forward(model, 2, "eager")
    bloom = other_model(BloomConfig, BloomForCausalLM, n_head=2, n_layer=2)
    assert isinstance(make_forward(bloom, 1, None), EagerForward)
    for slots, backend in ((2, None), (1, "packed"), (1, "graphs")):
        with pytest.raises(ValueError, match="backend='eager'"):
            make_forward(bloom, slots, backend)


def other_model(config_class, model_class, **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = config_class(
            vocab_size=VOCABULARY, hidden_size=32, bos_token_id=None, eos_token_id=None, pad_token_id=None, **options
        )
        model = model_class(config).float().eval()
        for name, weight in model.named_parameters():
            if weight.dim() == 2:
                torch.nn.init.normal_(weight, std=1.0 if "embed" in name else 0.3)
    return model


def gemma2(window):
    return other_model(
        Gemma2Config,
        Gemma2ForCausalLM,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        query_pre_attn_scalar=16,
        sliding_window=window,
        max_position_embeddings=4096,
    )


def lfm2():
    return other_model(
        Lfm2Config,
        Lfm2ForCausalLM,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        layer_types=["conv", "full_attention"],
        max_position_embeddings=4096,
    )


@pytest.mark.parametrize("name", ["bloom", "gemma2", "lfm2"])
def test_a_model_that_packed_attention_does_not_serve_decodes_by_default(name):
    if name == "bloom":
        model = other_model(BloomConfig, BloomForCausalLM, n_head=2, n_layer=2)
    elif name == "gemma2":  # caps its attention scores
        model = gemma2(window=16)
    else:  # keeps a state that cannot be taken back
        model = lfm2()
    for drafts in (False, True):
        decoder = SpliceDecoder(model, None, encoder=BYTE_LEVEL, costs=FREE, drafts=drafts, max_tokens=20)
        assert decoder.drafts == (drafts and name != "lfm2")
        for number, request in enumerate(requests_of(2)):
            assert_same_edit(decoder.decode_one(request, number), reference_decode(decoder, request, number))


@pytest.mark.parametrize("drafts", [False, True])
def test_layers_with_a_window_decode_over_transformers_own_cache(drafts):
    """A draft that fails is taken back from such a cache too."""
    decoder = decoder_of(
        "mistral", window=16, backend="eager", drafts=drafts, splice="full", temperature=1.0, seed=3, max_tokens=40
    )
    for number, request in enumerate(requests_of(3)):
        assert_same_edit(decoder.decode_one(request, number), reference_decode(decoder, request, number))


def test_a_state_that_cannot_be_taken_back_allows_no_lookup():
    assert TextDecoder(lfm2(), BYTE_LEVEL, "full", max_tokens=3).decode_one(EditRequest("Edit.", "one")).ids
    with pytest.raises(ValueError, match="lookup"):
        TextDecoder(lfm2(), BYTE_LEVEL, "full", lookup=(3, 10, False))


def test_packed_attention_refuses_capped_scores_by_name():
    with pytest.raises(ValueError, match="backend='eager'"):
        SpliceDecoder(gemma2(4096), None, encoder=BYTE_LEVEL, costs=FREE, backend="packed").decode_one(
            EditRequest("Edit.", "one")
        )


# The paper's feeding


@pytest.mark.parametrize("splice", ["full", "none"])
@pytest.mark.parametrize(("batch_size", "backend"), [(1, "packed"), (1, "eager"), (3, "packed"), (3, "graphs")])
def test_the_papers_feeding_gives_the_edits_of_the_reference(splice, batch_size, backend):
    requests = requests_of(4, seed=3, longest=6)
    decoder = decoder_of(
        splice=splice, batch_size=batch_size, backend=backend, feeding="paper", temperature=1.0, max_tokens=24
    )
    watch = Watch(decoder)
    assert not decoder.drafts
    edits = decoder.decode(requests)
    for number, edit in enumerate(edits):
        assert_same_edit(edit, reference_decode(decoder, requests[number], number))
        assert edit.stats.decoded <= edit.stats.forwards == edit.stats.heads  # every forward through the head
    fused = decoder_of(splice=splice, drafts=False, temperature=1.0, max_tokens=24)
    for number, request in enumerate(requests[:2]):
        assert fused.decode_one(request, number).stats.forwards < edits[number].stats.forwards
    assert all(feed.heads == [len(feed.ids) - 1] for feeds in watch.calls for feed in feeds)


def test_the_papers_feeding_spends_a_forward_on_each_literal_span_and_single_id():
    document = "one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\nten\neleven\ntwelve"
    program = Program([Copy(1, 11), Gen.of("x y")])
    for splice in ("full", "none"):
        decoder = decoder_of(splice=splice, feeding="paper", max_tokens=400)
        gold = program_ids(decoder, program, document)
        watch = Watch(scripted(decoder, {0: gold}))
        edit = decoder.decode_one(EditRequest("Edit.", document))
        assert edit.text == resolve(program, document)
        table, encoder = decoder.encoder.table, decoder.encoder
        fed = [feed.ids for (feed,) in watch.calls]
        prompt = decoder.open(EditRequest("Edit.", document)).prompt
        assert fed[0][: len(prompt) + len(table.program_open)] == prompt + table.program_open
        assert [index for ids in fed for index in ids] == (prompt + gold)[: sum(map(len, fed))]
        span = encoder.span(document.split("\n"), 1, 11)
        assert (span in fed) == (splice == "full")
        # The closing quote selects the rest of its literal; digits and ids of the body come one by one.
        assert table.copy_close in fed
        for index in [*encoder.number(11)[1:], *encoder.text.encode("x y\n")]:
            assert [index] in fed
        assert [table.gen_end[-1], *table.gen_close] in fed


def test_a_prompt_fed_apart_changes_no_choice_and_is_not_on_the_clock():
    requests = requests_of(3, seed=6, longest=6)
    for batch_size, backend in ((1, "packed"), (1, "eager"), (3, "packed"), (3, "graphs")):
        decoder = decoder_of(batch_size=batch_size, backend=backend, temperature=1.0, max_tokens=20, drafts=False)
        decoder.engine.prefill_apart = True
        watch = Watch(decoder)
        for number, edit in enumerate(decoder.decode(requests)):
            assert_same_edit(edit, reference_decode(decoder, requests[number], number))
            assert edit.stats.forwards == edit.stats.decoded
            assert edit.stats.fed < edit.stats.prompt_tokens
            assert edit.stats.prefill_s == 0
        apart = [feed for feeds in watch.calls for feed in feeds if feed.start == 0]
        assert len(apart) == len(requests)
        assert all(feed.heads == [] for feed in apart)


# Drafts and their costs


def test_guesses_stop_where_they_are_not_worth_their_tokens():
    requests = requests_of(4, seed=8)
    spent = {}
    for name, costs in (("free", FREE), ("fair", CostCurve((1, 2), (1.0, 1.5))), ("steep", STEEP)):
        decoder = decoder_of(costs=costs, temperature=1.0, max_tokens=40)
        edits = decoder.decode(requests)
        spent[name] = sum(edit.stats.drafted for edit in edits), sum(edit.stats.fed for edit in edits)
        plain = decoder_of(drafts=False, temperature=1.0, max_tokens=40).decode(requests)
        for edit, same in zip(edits, plain, strict=True):
            assert_same_edit(edit, same)
    assert spent["steep"][0] == 0
    assert 0 < spent["fair"][0] < spent["free"][0]
    assert spent["steep"][1] < spent["fair"][1] < spent["free"][1]


def test_a_kind_of_guess_that_keeps_failing_is_given_up():
    """The chances of a kind are learned over all edits of an engine."""
    costs = CostCurve((1, 2), (1.0, 1.6))
    decoder = decoder_of(costs=costs, temperature=2.0, max_tokens=40)
    drafted = [decoder.decode_one(request, number).stats.drafted for number, request in enumerate(requests_of(16))]
    engine = decoder.engine
    assert set(engine.accepted) <= set(engine.proposed) <= {"header", "line", "lookup"}
    assert all(engine.accepted[kind] <= engine.proposed[kind] for kind in engine.proposed)
    assert sum(engine.proposed.values()) == sum(drafted)
    assert sum(drafted[8:]) < sum(drafted[:8])


def test_within_cuts_a_run_where_the_room_ends():
    fsm = ProgramFSM(BYTE_LEVEL, "one\ntwo", splice="full")
    run, after = fsm.forced(fsm.start)
    assert len(run) > 1
    assert within(len(run), fsm, fsm.start, run, after) == (run, after)
    assert within(len(run) + 5, fsm, fsm.start, run, after) == (run, after)
    for room in range(len(run)):
        cut, state = within(room, fsm, fsm.start, run, after)
        assert (cut, state.length) == (run[:room], room)
        assert fsm.forced(state) == (run[room:], after)


def test_an_engine_without_costs_takes_drafts_as_they_come():
    decoder = decoder_of(temperature=1.0, max_tokens=30)
    free = decoder.decode_one(requests_of(1, seed=3)[0])
    engine = Engine(decoder.forward, decoder.chooser)
    (sequence,) = engine.run([decoder.open(requests_of(1, seed=3)[0])])
    assert sequence.ids == free.ids
    assert (sequence.stats.forwards, sequence.stats.drafted) == (free.stats.forwards, free.stats.drafted)
