"""The splice decoder: one loop that emits only grammatical edit programs and never generates what is forced or copied.

    forward(pending) -> one masked choice -> pending = [choice] + everything now forced

Forced ids (literals, digits the range makes unique, and with ``splice="full"`` the copied text) ride on the next
forward, so an edit costs one forward per real decision.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from decoding.encoder import ProgramEncoder, Splice
from decoding.fsm import ProgramFSM, State
from decoding.grammar import Program
from decoding.prompt import PromptStyle, render_prompt
from decoding.resolver import resolve

StopReason = Literal["end", "max_ops", "max_tokens", "context"]
DEFAULT_MAX_OPS = 512


@dataclass(frozen=True, slots=True)
class EditRequest:
    """A document and what to do with it."""

    instruction: str
    document: str


@dataclass(slots=True)
class EditStats:
    """What one edit cost. Token counts are program ids; every id is exactly one of decoded, copied, and forced.

    ``copied`` counts the tokens of copied text: with ``splice="none"`` they never enter the model, and are then not
    part of the ids. Times are seconds of wall clock; ``prefill_s`` is the first forward, included in ``wall_s``.
    """

    prompt_tokens: int = 0
    forwards: int = 0
    decoded: int = 0
    copied: int = 0
    forced: int = 0
    broken_utf8: int = 0
    wall_s: float = 0.0
    prefill_s: float = 0.0
    stop: StopReason = "end"


@dataclass(slots=True)
class Edit:
    """The outcome of a request.

    ``text`` is the edited document, or None where a limit ended the program early: then ``program`` holds the
    operations that were finished (None if there were none), and ``stats.stop`` names the limit.
    """

    text: str | None
    program: Program | None
    ids: list[int]
    stats: EditStats

    @property
    def complete(self) -> bool:
        """Whether the model ended the program itself."""
        return self.stats.stop == "end"


class SpliceDecoder:
    """Decodes edit programs with a causal language model, one request at a time.

    Args:
        model: any Hugging Face causal LM whose forward takes ``cache`` and ``logits_to_keep``.
        splice: what the model sees after a copy tag: the copied text (``full``) or nothing (``none``). Must match
        training.
        style: the prompt style. Must match training.
        monotone: allow only copies that do not go back in the document.
        temperature: 0 is greedy; above 0 samples from the masked distribution. The noise of a choice depends only on
            ``seed``, the request's number, and the position, not on how the loop feeds tokens.
        max_ops: after so many operations the program is ended and flagged.
        max_tokens: limit on program ids, spliced ones included; None means twice the document's tokens plus 256.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        splice: Splice = "none",
        style: PromptStyle = "numbered",
        monotone: bool = False,
        temperature: float = 0.0,
        seed: int = 0,
        max_ops: int = DEFAULT_MAX_OPS,
        max_tokens: int | None = None,
        encoder: ProgramEncoder | None = None,
    ) -> None:
        if max_ops < 1:
            raise ValueError(f"max_ops={max_ops}: a program needs at least one operation")
        self.model = model.eval()
        self.encoder = encoder or ProgramEncoder(tokenizer)
        self.splice, self.style, self.monotone = splice, style, monotone
        self.temperature, self.seed = temperature, seed
        self.max_ops, self.max_tokens = max_ops, max_tokens
        self.context = context_length(model)
        vocabulary = model.get_output_embeddings().weight.shape[0]
        masks = torch.zeros(len(self.encoder.gen_masks), vocabulary, dtype=torch.bool)
        width = min(vocabulary, self.encoder.gen_masks.shape[1])
        masks[:, :width] = torch.from_numpy(self.encoder.gen_masks[:, :width])
        self._forbidden = (~masks).to(model.device)

    def decode(self, requests: list[EditRequest]) -> list[Edit]:
        """Decode every request; limits end in flagged partial results, not exceptions."""
        return [self.decode_one(request, number) for number, request in enumerate(requests)]

    @torch.inference_mode()
    def decode_one(self, request: EditRequest, number: int = 0) -> Edit:
        """Decode one request; ``number`` selects its sampling noise."""
        started = time.perf_counter()
        fsm, prompt_ids = self._prepare(request)
        stats = EditStats(prompt_tokens=len(prompt_ids))
        limit, limit_reason = answer_budget(self, request.document, len(prompt_ids))
        cache = DynamicCache(config=self.model.config)

        ids, state = _within(limit, fsm, fsm.start, *fsm.forced(fsm.start))
        pending = prompt_ids + ids
        while not state.ended:
            if len(ids) == limit:
                stats.stop = limit_reason
                break
            logits = self._forward(pending, cache)
            stats.forwards += 1
            if stats.forwards == 1:
                stats.prefill_s = time.perf_counter() - started
            token = self.choose(logits, fsm, state, number)
            stats.decoded += 1
            forced, after = fsm.forced(fsm.advance(state, token))
            pending, state = _within(limit - len(ids), fsm, state, [token, *forced], after)
            ids += pending
        return self._finish(fsm, state, ids, stats, started, request.document)

    # The pieces that the reference loop shares

    def _prepare(self, request: EditRequest) -> tuple[ProgramFSM, list[int]]:
        messages = render_prompt(request.instruction, request.document, self.style)
        fsm = ProgramFSM(
            self.encoder, request.document, splice=self.splice, monotone=self.monotone, max_ops=self.max_ops
        )
        return fsm, self.encoder.prompt(messages)

    def _forward(self, ids: list[int], cache: DynamicCache) -> torch.Tensor:
        """Feed ``ids`` after what ``cache`` holds; return the logits that follow the last one, ``[vocabulary]``."""
        fed = torch.tensor([ids], device=self.model.device)
        return self.model(input_ids=fed, cache=cache, use_cache=True, logits_to_keep=1).logits[0, -1]

    def choose(self, logits: torch.Tensor, fsm: ProgramFSM, state: State, number: int) -> int:
        """Return the best or a sampled legal id; ``logits`` are ``[vocabulary]``."""
        legal = fsm.allowed(state)
        if legal is None:
            scores = logits.float().masked_fill(self._forbidden[state.matched], float("-inf"))
        else:
            scores = logits[torch.tensor(legal, device=logits.device)].float()
        if self.temperature > 0:
            scores = scores / self.temperature + self._gumbel(len(scores), number, state.length).to(scores.device)
        best = int(scores.argmax())
        return best if legal is None else legal[best]

    def _gumbel(self, size: int, number: int, position: int) -> torch.Tensor:
        """Noise that makes argmax a sample (the Gumbel-max trick), a function of seed, request and position alone."""
        generator = torch.Generator().manual_seed(hash((self.seed, number, position)) & (2**63 - 1))
        return -torch.empty(size).exponential_(generator=generator).log()

    def _finish(
        self, fsm: ProgramFSM, state: State, ids: list[int], stats: EditStats, started: float, document: str
    ) -> Edit:
        if stats.stop == "end" and len(state.ops) >= self.max_ops:
            stats.stop = "max_ops"
        program, stats.broken_utf8 = fsm.program(state, ids)
        stats.forced = len(ids) - stats.decoded - state.spliced
        stats.copied = state.spliced if self.splice == "full" else self._copied_tokens(fsm, program)
        text = resolve(program, document) if stats.stop == "end" else None
        stats.wall_s = time.perf_counter() - started
        return Edit(text, program if program.ops else None, ids, stats)

    def _copied_tokens(self, fsm: ProgramFSM, program: Program) -> int:
        return sum(len(self.encoder.span(fsm.lines, op.first, op.last)) for op in program.copies)


def _within(room: int, fsm: ProgramFSM, before: State, run: list[int], after: State) -> tuple[list[int], State]:
    """Cut ``run``, which leads from ``before`` to ``after``, to ``room`` ids; return it and the state it leads to."""
    if len(run) <= room:
        return run, after
    for index in run[:room]:
        before = fsm.advance(before, index)
    return run[:room], before


def reference_decode(decoder: SpliceDecoder, request: EditRequest, number: int = 0) -> Edit:
    """Decode with one id per forward and nothing fused: what ``decode_one`` must equal, id for id, in fp32.

    Also the cost model of a decoder without forced prefills: every structural and spliced id is a forward of its own.
    """
    with torch.inference_mode():
        started = time.perf_counter()
        fsm, prompt_ids = decoder._prepare(request)
        stats = EditStats(prompt_tokens=len(prompt_ids))
        limit, limit_reason = answer_budget(decoder, request.document, len(prompt_ids))
        cache = DynamicCache(config=decoder.model.config)
        ids: list[int] = []
        state, pending = fsm.start, prompt_ids
        while not state.ended:
            if len(ids) >= limit:
                stats.stop = limit_reason
                break
            logits = decoder._forward(pending, cache)
            stats.forwards += 1
            legal = fsm.allowed(state)
            if legal is not None and len(legal) == 1:
                token = legal[0]
            else:
                token = decoder.choose(logits, fsm, state, number)
                stats.decoded += 1
            state = fsm.advance(state, token)
            ids.append(token)
            pending = [token]
        return decoder._finish(fsm, state, ids, stats, started, request.document)


def answer_budget(decoder, document: str, prompt_tokens: int) -> tuple[int, StopReason]:
    """Return how many ids a decoder may add to its prompt, and the name of the limit: max_tokens or context."""
    limit = decoder.max_tokens
    if limit is None:
        limit = 2 * len(decoder.encoder.text.encode(document)) + 256
    room = decoder.context - prompt_tokens
    return (max(room, 0), "context") if room < limit else (limit, "max_tokens")


def context_length(model: PreTrainedModel) -> int:
    """Return how many positions the model was built for."""
    return int(getattr(model.config.get_text_config(), "max_position_embeddings", None) or 1 << 30)
