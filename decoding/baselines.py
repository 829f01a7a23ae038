"""Decoding without the grammar: a few-shot program as free text, and regeneration of the whole document."""

from __future__ import annotations

import time
from typing import Literal

import torch
from transformers import PreTrainedModel

from decoding.decoder import Edit, EditRequest, EditStats, answer_budget, context_length
from decoding.encoder import ProgramEncoder
from decoding.grammar import GrammarError, Program, parse
from decoding.prompt import PromptStyle, render_few_shot_prompt, render_regeneration_prompt
from decoding.resolver import ResolveError, resolve


class FreeDecoder:
    """Greedy generation by transformers, read back as a program (``prompt``) or as the document (``full``).

    The paper's baselines R004 (prompt-level grammar, no state machine) and R003 (full regeneration). A program that
    does not parse leaves ``program`` None, one that does not fit the document leaves ``text`` None.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        encoder: ProgramEncoder,
        kind: Literal["prompt", "full"],
        *,
        style: PromptStyle = "numbered",
        max_tokens: int | None = None,
    ) -> None:
        self.model, self.encoder, self.kind = model.eval(), encoder, kind
        self.style, self.max_tokens = style, max_tokens
        self.context = context_length(model)

    def decode(self, requests: list[EditRequest]) -> list[Edit]:
        """Decode every request."""
        return [self.decode_one(request) for request in requests]

    @torch.inference_mode()
    def decode_one(self, request: EditRequest, number: int = 0) -> Edit:
        """Decode one request; ``number`` is accepted for symmetry and has no effect on greedy decoding."""
        started = time.perf_counter()
        if self.kind == "full":
            messages = render_regeneration_prompt(request.instruction, request.document)
        else:
            messages = render_few_shot_prompt(request.instruction, request.document, self.style)
        prompt = self.encoder.prompt(messages)
        limit, limit_reason = answer_budget(self, request.document, len(prompt))
        ids = self._generate(prompt, limit) if limit else []
        end = self.encoder.table.end_of_sequence
        ended = bool(ids) and ids[-1] == end
        stop = "end" if ended else limit_reason
        stats = EditStats(prompt_tokens=len(prompt), forwards=len(ids), decoded=len(ids), stop=stop)
        text, program = self._read(ids[:-1] if ended else ids, request.document, ended)
        stats.wall_s = time.perf_counter() - started
        return Edit(text, program, ids, stats)

    def _generate(self, prompt: list[int], limit: int) -> list[int]:
        fed = torch.tensor([prompt], device=self.model.device)
        out = self.model.generate(
            input_ids=fed,
            attention_mask=torch.ones_like(fed),
            do_sample=False,
            temperature=None,
            top_p=None,
            top_k=None,
            max_new_tokens=limit,
            eos_token_id=self.encoder.table.end_of_sequence,
            pad_token_id=self.encoder.table.end_of_sequence,
        )
        return out[0, len(prompt) :].tolist()

    def _read(self, ids: list[int], document: str, ended: bool) -> tuple[str | None, Program | None]:
        output = self.encoder.text.decode(ids).decode(errors="replace")
        if self.kind == "full":
            return (output if ended else None), None
        try:
            program = parse(output)
            return (resolve(program, document) if ended else None), program
        except GrammarError:
            return None, None
        except ResolveError:
            return None, program
