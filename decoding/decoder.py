"""The splice decoder: requests in, edits out, by programs that are grammatical by construction.

What is forced or copied is never generated, and what can be guessed is verified many ids at a time; the ids are those
of the plain one-id-per-forward loop (``reference_decode``).
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from decoding.choosing import Chooser
from decoding.costs import CostCurve, measure_costs
from decoding.drafts import ProgramDrafter
from decoding.encoder import ProgramEncoder, Splice
from decoding.engine import EditStats, Engine, Feeding, Sequence, StopReason
from decoding.forward import Backend, EagerForward, PackedForward, make_forward
from decoding.fsm import ProgramFSM
from decoding.grammar import Program
from decoding.prompt import PromptStyle, render_prompt
from decoding.resolver import resolve
from decoding.tokens import TokenizerError

DEFAULT_MAX_OPS = 512


@dataclass(frozen=True, slots=True)
class EditRequest:
    """A document and what to do with it."""

    instruction: str
    document: str


@dataclass(slots=True)
class Edit:
    """The outcome of a request.

    ``text`` is the edited document, or None where a limit ended the program early: then ``program`` holds the
    operations that were finished (None if there were none), and ``stats.stop`` names the limit. A request whose text
    the tokenizer cannot express has no ids, and ``stats.stop`` says why.

    ``confidence`` in [0, 1] ranks edits, so that a caller can fall back to another way below a threshold: the
    probability of all choices under the masked model, or after a vote the share that the document got.
    """

    text: str | None
    program: Program | None
    ids: list[int]
    stats: EditStats
    confidence: float = 0.0

    @property
    def complete(self) -> bool:
        """Whether the model ended the program itself."""
        return self.stats.stop == "end"


class Decoder(ABC):
    """Decodes requests through the engine; subclasses say what is written and how it is read.

    Args:
        model: a Hugging Face causal LM.
        batch_size: how many edits share a forward.
        backend: see ``decoding.forward.make_forward``.
        max_tokens: limit on written ids, spliced ones included; None means twice the document's tokens plus 256.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        encoder: ProgramEncoder,
        *,
        batch_size: int,
        backend: Backend | None,
        max_tokens: int | None,
        temperature: float = 0.0,
        seed: int = 0,
        feeding: Feeding = "fused",
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}: must be at least 1")
        self.model, self.encoder = model.eval(), encoder
        self.max_tokens = max_tokens
        self.context = context_length(model)
        vocabulary = model.get_output_embeddings().weight.shape[0]
        self.chooser = Chooser(encoder.gen_masks, vocabulary, model.device, temperature, seed)
        self.forward: PackedForward | EagerForward = make_forward(model, batch_size, backend)
        self.engine = Engine(self.forward, self.chooser, feeding=feeding)

    def decode(self, requests: list[EditRequest]) -> list[Edit]:
        """Decode every request; limits end in flagged partial results, not exceptions."""
        edits = dict(self.stream(enumerate(requests)))
        return [edits[number] for number in range(len(requests))]

    def decode_one(self, request: EditRequest, number: int = 0) -> Edit:
        """Decode one request; ``number`` selects its sampling noise."""
        ((_, edit),) = self.stream([(number, request)])
        return edit

    def stream(self, requests: Iterable[tuple[int, EditRequest]]) -> Iterator[tuple[int, Edit]]:
        """Decode numbered requests, a batch at a time in flight; yield each with its number as it is finished."""
        documents: dict[int, str] = {}
        refused: list[tuple[int, Edit]] = []

        def opened() -> Iterator[Sequence]:
            for number, request in requests:
                try:
                    sequence = self.open(request, number)
                except TokenizerError as error:
                    refused.append((number, Edit(None, None, [], EditStats(stop=error.reason))))
                    continue
                documents[number] = request.document
                yield sequence

        for sequence in self.engine.run(opened()):
            while refused:
                yield refused.pop(0)
            yield sequence.number, self.close(sequence, documents.pop(sequence.number))
        yield from refused

    def budget(self, document: str, prompt: list[int]) -> tuple[int, StopReason]:
        """Return how many ids may follow the prompt, and the name of the limit: max_tokens or context."""
        limit = self.max_tokens
        if limit is None:
            limit = 2 * len(self.encoder.text.encode(document)) + 256
        room = self.context - len(prompt)
        return (max(room, 0), "context") if room < limit else (limit, "max_tokens")

    @abstractmethod
    def open(self, request: EditRequest, number: int = 0) -> Sequence:
        """Return the sequence that decodes ``request``.

        Raises:
            TokenizerError: text that the tokenizer cannot express.
        """

    @abstractmethod
    def close(self, sequence: Sequence, document: str) -> Edit:
        """Read a finished sequence."""


class SpliceDecoder(Decoder):
    """Decodes edit programs with a causal language model.

    Args:
        model: any Hugging Face causal LM whose forward takes ``cache`` and ``logits_to_keep``.
        splice: what the model sees after a copy tag: the copied text (``full``) or nothing (``none``). Must match
            training.
        style: the prompt style. Must match training.
        monotone: allow only copies that do not go back in the document.
        min_span: the fewest lines of a copy.
        temperature: 0 is greedy; above 0 samples from the masked distribution. The noise of a choice depends only on
            ``seed``, the request's number, and the position, not on how the loop feeds tokens.
        max_ops: after so many operations the program is ended and flagged.
        max_tokens: limit on program ids, spliced ones included; None means twice the document's tokens plus 256.
        drafts: guess headers and bodies and verify them; the result is the same, the forwards fewer. Never on models
            with recurrent layers, whose state cannot be taken back.
        costs: bounds the drafts' width; None measures it on the device when the first edit is decoded.
        batch_size: how many edits share a forward.
        backend: ``packed`` (static cache, ragged batches), ``graphs`` (the same under CUDA graphs), ``eager``
            (transformers' own cache, one edit at a time); None chooses by device.
        feeding: ``fused``, or ``paper``: see ``decoding.engine.Engine``.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        splice: Splice = "none",
        style: PromptStyle = "numbered",
        monotone: bool = False,
        min_span: int = 1,
        temperature: float = 0.0,
        seed: int = 0,
        max_ops: int = DEFAULT_MAX_OPS,
        max_tokens: int | None = None,
        drafts: bool = True,
        costs: CostCurve | None = None,
        batch_size: int = 1,
        backend: Backend | None = None,
        feeding: Feeding = "fused",
        encoder: ProgramEncoder | None = None,
    ) -> None:
        if max_ops < 1:
            raise ValueError(f"max_ops={max_ops}: a program needs at least one operation")
        if min_span < 1:
            raise ValueError(f"min_span={min_span}: must be at least 1")
        super().__init__(
            model,
            encoder or ProgramEncoder(tokenizer),
            batch_size=batch_size,
            backend=backend,
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
            feeding=feeding,
        )
        self.splice, self.style, self.monotone, self.min_span = splice, style, monotone, min_span
        self.max_ops = max_ops
        self.drafts = drafts and feeding == "fused" and self.forward.rolls_back
        if costs is not None:
            self.costs = costs

    @cached_property
    def costs(self) -> CostCurve:
        """What a forward costs here by its width."""
        return measure_costs(self.forward)

    def stream(self, requests: Iterable[tuple[int, EditRequest]]) -> Iterator[tuple[int, Edit]]:
        """See ``Decoder``."""
        if self.drafts:
            self.engine.costs = self.costs
        return super().stream(requests)

    def open(self, request: EditRequest, number: int = 0) -> Sequence:
        """See ``Decoder``."""
        fsm = ProgramFSM(
            self.encoder,
            request.document,
            splice=self.splice,
            monotone=self.monotone,
            min_span=self.min_span,
            max_ops=self.max_ops,
        )
        prompt = self.encoder.prompt(render_prompt(request.instruction, request.document, self.style))
        limit, reason = self.budget(request.document, prompt)
        drafter = ProgramDrafter(self.encoder) if self.drafts else None
        return Sequence(prompt, fsm, limit, reason, number, drafter)

    def close(self, sequence: Sequence, document: str) -> Edit:
        """See ``Decoder``."""
        stats, fsm, state = sequence.stats, sequence.grammar, sequence.state
        if stats.stop == "end" and len(state.ops) >= self.max_ops:
            stats.stop = "max_ops"
        program, stats.broken_utf8 = fsm.program(state, sequence.ids)
        stats.forced = len(sequence.ids) - stats.decoded - state.spliced
        stats.copied = state.spliced if self.splice == "full" else self._copied_tokens(fsm, program)
        text = resolve(program, document) if stats.stop == "end" else None
        return Edit(text, program if program.ops else None, sequence.ids, stats, math.exp(sequence.log_probability))

    def _copied_tokens(self, fsm: ProgramFSM, program: Program) -> int:
        return sum(len(self.encoder.span(fsm.lines, op.first, op.last)) for op in program.copies)


def reference_decode(decoder: SpliceDecoder, request: EditRequest, number: int = 0) -> Edit:
    """Decode with one id per forward, nothing fused, drafted or batched, over transformers' own cache.

    What every other way of decoding must equal, id for id, in fp32; and the cost of a decoder in which every structural
    and spliced id is a forward of its own.
    """
    sequence = decoder.open(request, number)
    fsm, stats = sequence.grammar, sequence.stats
    stats.prompt_tokens = len(sequence.prompt)
    started = time.perf_counter()
    cache = DynamicCache(config=decoder.model.config)
    ids: list[int] = []
    state, pending = fsm.start, sequence.prompt
    with torch.inference_mode():
        while not state.ended and len(ids) < sequence.limit:
            fed = torch.tensor([pending], device=decoder.model.device)
            output = decoder.model(input_ids=fed, cache=cache, use_cache=True, logits_to_keep=1)
            stats.forwards += 1
            stats.fed += len(pending)
            stats.heads += 1
            legal = fsm.allowed(state)
            if legal is not None and len(legal) == 1:
                token = legal[0]
            else:
                token, log = decoder.chooser(output.logits[0], [decoder.engine.decision(sequence, state)])[0]
                sequence.log_probability += log
                stats.decoded += 1
            state = fsm.advance(state, token)
            ids.append(token)
            pending = [token]
    if not state.ended:
        stats.stop = sequence.limit_reason
    stats.wall_s = time.perf_counter() - started
    sequence.ids, sequence.state = ids, state
    return decoder.close(sequence, request.document)


def context_length(model: PreTrainedModel) -> int:
    """Return how many positions the model was built for."""
    return int(getattr(model.config.get_text_config(), "max_position_embeddings", None) or 1 << 30)
