"""Decoding without the grammar: the whole document, a few-shot program, search/replace blocks, or a unified diff.

They run in the splice decoder's loop, over the same cache and with the same clock, plain or with prompt lookup.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from transformers import PreTrainedModel

from decoding.decoder import Decoder, Edit, EditRequest
from decoding.drafts import PromptLookup
from decoding.encoder import ProgramEncoder
from decoding.engine import Sequence
from decoding.formats import FormatError, apply_search_replace, apply_unified_diff
from decoding.forward import Backend
from decoding.grammar import GrammarError, Program, parse
from decoding.prompt import PromptStyle, render_few_shot_prompt, render_format_prompt
from decoding.resolver import ResolveError, resolve

TextFormat = Literal["full", "prompt", "search_replace", "unified_diff"]


@dataclass(frozen=True, slots=True)
class TextState:
    """How many ids have been written, and whether the end of sequence was one."""

    length: int = 0
    ended: bool = False


class TextGrammar:
    """Free text: anything may follow anything, until the end of sequence."""

    start = TextState()

    def __init__(self, end_of_sequence: int, mask_row: int) -> None:
        self.end_of_sequence, self._mask_row = end_of_sequence, mask_row

    def allowed(self, state: TextState) -> None:
        """Return None: see ``mask_row``."""

    def mask_row(self, state: TextState) -> int:
        """Return the chooser's row that allows everything."""
        return self._mask_row

    def advance(self, state: TextState, token: int) -> TextState:
        """Return the state after ``token``."""
        return TextState(state.length + 1, token == self.end_of_sequence)

    def forced(self, state: TextState) -> tuple[list[int], TextState]:
        """Return nothing: text is free."""
        return [], state


class TextDecoder(Decoder):
    """Generation of free text, read back as ``format`` says.

    ``full`` is the edited document (the paper's baseline R003), ``prompt`` a program without the state machine (R004),
    ``search_replace`` and ``unified_diff`` are the formats of ``decoding.formats``. What cannot be read or does not fit
    the document leaves ``text`` None.

    Args:
        lookup: the settings of prompt lookup decoding, (longest n-gram, ids to draft, most recent?), or None for one id
            per forward.
        unique: refuse a search block that occurs more than once; else its first occurrence is taken, as Aider does.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        encoder: ProgramEncoder,
        format: TextFormat,
        *,
        style: PromptStyle = "numbered",
        lookup: tuple[int, int, bool] | None = None,
        unique: bool = False,
        max_tokens: int | None = None,
        batch_size: int = 1,
        backend: Backend | None = None,
    ) -> None:
        super().__init__(model, encoder, batch_size=batch_size, backend=backend, max_tokens=max_tokens)
        if lookup and not self.forward.rolls_back:
            raise ValueError(f"{type(model).__name__} has recurrent layers, which cannot take back a draft: no lookup")
        self.format, self.style, self.lookup, self.unique = format, style, lookup, unique
        self.grammar = TextGrammar(encoder.table.end_of_sequence, self.chooser.unmasked)

    def open(self, request: EditRequest, number: int = 0) -> Sequence:
        """See ``Decoder``."""
        if self.format == "prompt":
            messages = render_few_shot_prompt(request.instruction, request.document, self.style)
        else:
            messages = render_format_prompt(request.instruction, request.document, self.format)
        prompt = self.encoder.prompt(messages)
        limit, reason = self.budget(request.document, prompt)
        drafter = None
        if self.lookup:
            longest, count, recent = self.lookup
            drafter = PromptLookup(longest, count, recent=recent)
        return Sequence(prompt, self.grammar, limit, reason, number, drafter=drafter)

    def close(self, sequence: Sequence, document: str) -> Edit:
        """See ``Decoder``."""
        ids, ended = sequence.ids, sequence.state.ended
        text, program = self._read(ids[:-1] if ended else ids, document, ended)
        return Edit(text, program, ids, sequence.stats, math.exp(sequence.log_probability))

    def _read(self, ids: list[int], document: str, ended: bool) -> tuple[str | None, Program | None]:
        output = self.encoder.text.decode(ids).decode(errors="replace")
        program = None
        try:
            if self.format == "full":
                text = output
            elif self.format == "search_replace":
                text = apply_search_replace(output, document, "unique" if self.unique else "first")
            elif self.format == "unified_diff":
                text = apply_unified_diff(output, document)
            else:
                program = parse(output)
                text = resolve(program, document)
        except (GrammarError, ResolveError, FormatError):
            text = None
        return (text if ended else None), program
