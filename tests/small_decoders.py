"""Decoders over tiny models, and what watches them: the ids in every slot, the state and the accounts of every edit."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from small_models import ModelKind, TokenizerKind, encoder_of, tiny_model, tokenizer_of

from decoding.baselines import TextDecoder, TextFormat
from decoding.costs import CostCurve
from decoding.decoder import Decoder, Edit, EditRequest, SpliceDecoder
from decoding.engine import Sequence
from decoding.fsm import ProgramFSM, State
from decoding.grammar import Program

PADDING = 14  # rows of the embedding that no token uses, as in most released models
FREE = CostCurve((1, 2), (1.0, 1.0))  # more tokens cost nothing: every guess is worth it
STEEP = CostCurve((1, 2), (1.0, 1000.0))  # no guess that may be wrong is worth it
DOCUMENTS = (
    "",
    "one line",
    "def add(a, b):\n    return a - b\n",
    '</program>\n<copy lines="1-2"/>\n<|im_end|>\n<gen>\n</gen>',
    "a\r\nb\u2028\n\x00\n\U000130c0 e\u0301\n" * 3,
    "\n".join(f"x{number}" for number in range(101)),
    "\n" * 12,
)
SAME = ("stop", "prompt_tokens", "decoded", "copied", "forced", "broken_utf8")  # counts that no feeding changes


@cache
def model_of(
    kind: ModelKind, tokens: TokenizerKind, weights: int, positions: int = 4096, window: int | None = None
) -> torch.nn.Module:
    """Return a model that, now and then, opens and closes tags."""
    encoder = encoder_of(tokens)
    end = encoder.table.gen_end
    return tiny_model(
        kind,
        len(encoder.text.token_bytes) + PADDING,
        weights,
        favoured=tuple({end[0], encoder.table.copy_head[0]}),
        successors=tuple(zip(end, end[1:], strict=False)),
        bias=7.0,
        positions=positions,
        window=window,
    )


def decoder_of(
    kind: ModelKind = "qwen2",
    tokens: TokenizerKind = "byte_level",
    weights: int = 0,
    *,
    positions: int = 4096,
    window: int | None = None,
    **options,
) -> SpliceDecoder:
    """Return a splice decoder over ``model_of``, whose drafts cost nothing."""
    options = {"max_tokens": 110, "costs": FREE, **options}
    model = model_of(kind, tokens, weights, positions, window)
    return SpliceDecoder(model, tokenizer_of(tokens), encoder=encoder_of(tokens), **options)


def text_decoder_of(
    format: TextFormat, tokens: TokenizerKind = "byte_level", weights: int = 0, *, positions: int = 4096, **options
) -> TextDecoder:
    """Return a decoder of free text over ``model_of``."""
    return TextDecoder(model_of("qwen2", tokens, weights, positions), encoder_of(tokens), format, **options)


def assert_same_edit(edit: Edit, reference: Edit) -> None:
    """Check that two ways of decoding came to one outcome, at one confidence."""
    assert edit.ids == reference.ids
    assert (edit.text, edit.program, edit.complete) == (reference.text, reference.program, reference.complete)
    assert [getattr(edit.stats, name) for name in SAME] == [getattr(reference.stats, name) for name in SAME]
    assert edit.confidence == pytest.approx(reference.confidence, rel=1e-3)


def assert_accounts(edit: Edit, decoder: SpliceDecoder) -> None:
    """Check what holds of the counts of every edit, however it was decoded."""
    stats = edit.stats
    spliced = stats.copied if decoder.splice == "full" else 0
    assert stats.decoded + stats.forced + spliced == len(edit.ids)
    assert min(stats.decoded, stats.forced, spliced, stats.copied) >= 0
    assert edit.complete == (edit.text is not None) == (stats.stop == "end")
    assert 0 <= edit.confidence <= 1
    assert stats.accepted <= stats.drafted <= stats.heads
    if decoder.engine.feeding == "fused":
        assert stats.decoded <= stats.heads
        if not decoder.drafts:
            assert (stats.drafted, stats.accepted) == (0, 0)
        if decoder.engine.forward.slots == 1:
            # Every forward makes one choice of its own, but for a last one that only had guesses to confirm.
            assert stats.decoded - stats.accepted <= stats.forwards <= stats.decoded
            assert stats.forwards <= stats.decoded - stats.accepted + 1


def scripted(decoder: Decoder, scripts: dict[int, list[int]]) -> Decoder:
    """Have ``decoder`` choose what ``scripts`` says for each request's number, instead of the model's own choices."""
    opened = decoder.open

    def open_scripted(request: EditRequest, number: int = 0) -> Sequence:
        sequence = opened(request, number)
        sequence.script = scripts[number]
        return sequence

    decoder.open = open_scripted
    return decoder


def program_ids(decoder: SpliceDecoder, program: Program, document: str) -> list[int]:
    """Return the ids a decoder writes for ``program``: those of training without the end of sequence."""
    segments = decoder.encoder.segments(program, document, decoder.splice)
    return [index for segment in segments[:-1] for index in segment.ids]


def replay(fsm: ProgramFSM, ids: list[int]) -> State:
    """Return the state after ``ids``, one at a time from the start."""
    state = fsm.start
    for token in ids:
        state = fsm.advance(state, token)
    return state


# A model that knows the answer


class Knows:
    """Logits of a model that knows every program: wherever what it has read begins one, its next id stands out.

    Args:
        golds: prompt and program of every request, the end of sequence included.
    """

    def __init__(self, vocabulary: int, golds: list[list[int]]) -> None:
        self.vocabulary, self.golds = vocabulary, golds

    def logits(self, read: list[int]) -> torch.Tensor:
        """Return the next logits after ``read``."""
        out = torch.zeros(self.vocabulary)
        for gold in self.golds:
            if gold[: len(read)] == read and len(read) < len(gold):
                out[gold[len(read)]] = 9.0
        return out


class KnowingForward:
    """``Knows`` as the forward of an engine."""

    def __init__(self, knows: Knows, slots: int) -> None:
        self.knows, self.slots, self.held = knows, slots, {}

    def __call__(self, feeds: list) -> torch.Tensor:
        rows = []
        for feed in feeds:
            held = self.held[feed.slot] = self.held.get(feed.slot, [])[: feed.start] + feed.ids
            rows += [self.knows.logits(held[: feed.start + head + 1]) for head in feed.heads]
        return torch.stack(rows)

    def copy(self, source: int, target: int, length: int) -> None:
        self.held[target] = self.held[source][:length]

    def synchronize(self) -> None:
        """Nothing runs elsewhere."""


class KnowingModel:
    """``Knows`` as a model of transformers, for the reference."""

    device = torch.device("cpu")

    def __init__(self, knows: Knows, config) -> None:
        self.knows, self.config, self.read = knows, config, []

    def __call__(self, input_ids: torch.Tensor, **kwargs) -> SimpleNamespace:
        self.read += input_ids[0].tolist()
        return SimpleNamespace(logits=self.knows.logits(self.read)[None, None])


def taught(decoder: SpliceDecoder, edits: list[tuple[EditRequest, Program]]) -> SpliceDecoder:
    """Give ``decoder`` a model that knows the program of every request."""
    golds = []
    for request, program in edits:
        end = decoder.encoder.table.end_of_sequence
        golds.append(decoder.open(request).prompt + program_ids(decoder, program, request.document) + [end])
    knows = Knows(len(decoder.encoder.text.token_bytes) + PADDING, golds)
    decoder.engine.forward = KnowingForward(knows, decoder.engine.forward.slots)
    decoder.model = KnowingModel(knows, decoder.model.config)
    return decoder


# What watches a decoder


class Watch:
    """Stands between a decoder and its forward: keeps what every slot was fed, and holds what a cache relies on.

    After every step each sequence in flight must be in the grammar where its ids lead, and its slot must hold its
    prompt and ids but for those still pending; ``each`` is called with it then.

    Attributes:
        calls: the feeds of every forward.
        copies: (source, target, length) of every copy between slots.
        live: the numbers of the requests that shared each step, first steps of new ones apart.
    """

    def __init__(self, decoder: Decoder, each: Callable[[Sequence], None] | None = None) -> None:
        self.real, self.slots, self.each = decoder.engine.forward, decoder.engine.forward.slots, each
        self.held: dict[int, list[int]] = {}
        self.calls: list[list] = []
        self.copies: list[tuple[int, int, int]] = []
        self.live: list[list[int]] = []
        self._step, decoder.engine._step = decoder.engine._step, self._watched_step
        decoder.engine.forward = self

    def __call__(self, feeds: list) -> torch.Tensor:
        assert len({feed.slot for feed in feeds}) == len(feeds)
        for feed in feeds:
            held = self.held.setdefault(feed.slot, [])
            assert feed.ids
            assert 0 <= feed.start <= len(held)  # nothing is skipped
            assert 0 <= feed.slot < self.slots
            assert feed.heads == sorted(set(feed.heads))
            assert all(0 <= head < len(feed.ids) for head in feed.heads)
            self.held[feed.slot] = held[: feed.start] + feed.ids
        self.calls.append(list(feeds))
        return self.real(feeds)

    def copy(self, source: int, target: int, length: int) -> None:
        assert source != target
        assert 0 < length <= len(self.held[source])
        self.held[target] = self.held[source][:length]
        self.copies.append((source, target, length))
        self.real.copy(source, target, length)

    def synchronize(self) -> None:
        self.real.synchronize()

    @property
    def fed(self) -> int:
        """How many positions were computed in all."""
        return sum(len(feed.ids) for feeds in self.calls for feed in feeds)

    def _watched_step(self, live: list[Sequence]) -> None:
        if any(sequence.cached for sequence in live):
            self.live.append([sequence.number for sequence in live])
            assert [sequence.slot for sequence in live] == list(range(len(live)))
        self._step(live)
        for sequence in live:
            read = sequence.prompt + sequence.ids
            assert sequence.cached == len(read) - len(sequence.pending)
            assert read[sequence.cached :] == sequence.pending
            assert self.held[sequence.slot][: sequence.cached] == read[: sequence.cached]
            assert len(sequence.ids) <= sequence.limit
            assert sequence.done or sequence.pending  # something to feed
            assert sequence.state.length == len(sequence.ids)
            if isinstance(sequence.grammar, ProgramFSM):
                assert sequence.state == replay(sequence.grammar, sequence.ids)
            if self.each is not None:
                self.each(sequence)
