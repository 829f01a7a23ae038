"""The one source of token ids: prompts, and programs as segments, for training, scoring and decoding alike.

A program is never tokenised as one string: tags, line numbers, gen bodies and spliced spans are encoded apart and
concatenated, so that what training sees is what the decoder can emit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

import numpy as np
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from decoding.escape import encode_gen_body
from decoding.grammar import Copy, Program, split_lines
from decoding.tokens import TextTokenizer, TokenizerError

Splice = Literal["full", "none"]
Region = Literal["structure", "start_digits", "end_digits", "gen_text", "end"]  # of a program; end ends the sequence
REGIONS: tuple[Region, ...] = get_args(Region)
GEN_END = b"</gen"  # escaped bodies never contain it, so these bytes end a body


class Segment(NamedTuple):
    """Consecutive program ids of one region, or a copied span that the model is shown."""

    kind: Region | Literal["splice"]
    ids: list[int]


@dataclass(frozen=True)
class StructuralTable:
    """The ids of the grammar's literals under one tokenizer, found by encoding the literals, never by constants."""

    program_open: list[int]
    copy_head: list[int]
    dash: list[int]
    copy_close: list[int]
    gen_head: list[int]
    gen_end: list[int]
    gen_close: list[int]
    program_close: list[int]
    end_of_sequence: int
    digit_group: int  # digits per token: 1 (Qwen, SmolLM2) to 3 (Llama 3)
    digits: tuple[tuple[int, ...], ...]  # digits[k][v]: the id of v written with k digits; digits[0] is empty


class ProgramEncoder:
    """Turns prompts and programs into ids under one tokenizer.

    Attributes:
        text: the byte-exact text tokenizer.
        table: the structural ids.
        gen_masks: bool ``[len(GEN_END), vocabulary]``; row k says which ids may follow inside a gen body whose last k
            bytes are the first k of ``</gen``. Control tokens never may, nor ids that would run past ``</gen``.

    Raises:
        TokenizerError: the tokenizer cannot express the grammar, has no end-of-sequence token, or loses text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.text = TextTokenizer(tokenizer)
        if tokenizer.eos_token_id is None:
            raise TokenizerError("unsupported_tokenizer", f"{self.text.name} has no end-of-sequence token")
        group, digits = self._digit_tokens()
        encode = self.text.encode
        self.table = StructuralTable(
            program_open=encode("<program>\n"),
            copy_head=encode('<copy lines="'),
            dash=encode("-"),
            copy_close=encode('"/>\n'),
            gen_head=encode("<gen>\n"),
            gen_end=encode("</gen"),
            gen_close=encode(">\n"),
            program_close=encode("</program>"),
            end_of_sequence=tokenizer.eos_token_id,
            digit_group=group,
            digits=digits,
        )
        self.gen_masks = self._gen_masks()

    # Programs

    def segments(self, program: Program, document: str, splice: Splice) -> list[Segment]:
        """Return the segments of ``program`` as the model reads and writes them, the end of sequence included.

        With ``splice="full"`` the copied text follows its tag; with ``"none"`` the program stands alone.
        """
        table, lines = self.table, split_lines(document)
        out = [Segment("structure", table.program_open)]
        for op in program.ops:
            if isinstance(op, Copy):
                out += [
                    Segment("structure", table.copy_head),
                    Segment("start_digits", self.number(op.first)),
                    Segment("structure", table.dash),
                    Segment("end_digits", self.number(op.last)),
                    Segment("structure", table.copy_close),
                ]
                if splice == "full":
                    out.append(Segment("splice", self.span(lines, op.first, op.last)))
            else:
                out += [
                    Segment("structure", table.gen_head),
                    Segment("gen_text", self.text.encode(encode_gen_body(op.content) + "\n")),
                    Segment("structure", table.gen_end + table.gen_close),
                ]
        return [*out, Segment("structure", table.program_close), Segment("end", [table.end_of_sequence])]

    def number(self, value: int) -> list[int]:
        """Return the ids of a line number: groups of ``digit_group`` digits from the left."""
        text, group = str(value), self.table.digit_group
        return [
            self.table.digits[len(part)][int(part)]
            for part in (text[i : i + group] for i in range(0, len(text), group))
        ]

    def span(self, lines: list[str], first: int, last: int) -> list[int]:
        """Return the ids of lines ``first`` to ``last`` (1-based, inclusive), encoded jointly, with a final newline."""
        return self.text.encode("\n".join(lines[first - 1 : last]) + "\n")

    # Prompts

    def prompt(self, messages: list[dict[str, str]]) -> list[int]:
        """Return the ids of chat ``messages`` up to where the reply starts.

        The chat template's own text may hold control tokens; message contents are encoded apart and never do.
        """
        roles = tuple(message["role"] for message in messages)
        contents = [message["content"] for message in messages]
        try:
            pieces = self._template_pieces(roles)
        except TemplateError:  # some templates know no system role
            if roles[:1] != ("system",):
                raise
            contents = [f"{contents[0]}\n\n{contents[1]}", *contents[2:]]
            pieces = self._template_pieces(roles[1:])
        ids = list(pieces[0])
        for content, piece in zip(contents, pieces[1:], strict=True):
            ids += self.text.encode(content)
            ids += piece
        return ids

    @lru_cache(maxsize=8)  # noqa: B019 - an encoder lives as long as its run
    def _template_pieces(self, roles: tuple[str, ...]) -> list[list[int]]:
        """The ids of the chat template's text before, between and after the contents."""
        if self.tokenizer.chat_template is None:
            newline = self.text.encode("\n\n")
            return [self.tokenizer("")["input_ids"], *([newline] * len(roles))]
        marks = [f"content-{number}-of-message" for number in range(len(roles))]
        rendered = self.tokenizer.apply_chat_template(
            [{"role": role, "content": mark} for role, mark in zip(roles, marks, strict=True)],
            tokenize=False,
            add_generation_prompt=True,
        )
        texts = []
        for mark in marks:
            before, found, rendered = rendered.partition(mark)
            if not found:
                raise TokenizerError("unsupported_tokenizer", f"the chat template of {self.text.name} drops a message")
            texts.append(before)
        return [self.tokenizer(text, add_special_tokens=False)["input_ids"] for text in [*texts, rendered]]

    # Tables

    def _digit_tokens(self) -> tuple[int, tuple[tuple[int, ...], ...]]:
        """The longest group g such that every string of up to g digits is a token and numbers group from the left."""
        encode = self.text.encode
        digits: list[tuple[int, ...]] = [()]
        for width in (1, 2, 3):
            ids = [encode(f"{value:0{width}d}") for value in range(10**width)]
            if any(len(encoded) != 1 for encoded in ids):
                break
            digits.append(tuple(encoded[0] for encoded in ids))
        if len(digits) == 1:
            raise TokenizerError("unsupported_tokenizer", f"{self.text.name} has no token for every single digit")
        group = len(digits) - 1
        probe = "1234567890123"
        grouped = [digits[len(part)][int(part)] for part in (probe[i : i + group] for i in range(0, len(probe), group))]
        if encode(probe) != grouped:  # groups from the right, or irregular merges: a digit a token is always possible
            group = 1
        return group, tuple(digits[: group + 1])

    def _gen_masks(self) -> np.ndarray:
        pieces = self.text.token_bytes
        masks = np.zeros((len(GEN_END), len(pieces)), dtype=bool)
        masks[:] = [bool(piece) for piece in pieces]
        for index, piece in enumerate(pieces):
            if not piece:
                continue
            # Only a piece with "<" inside, or one that continues a match, can complete the end; few do.
            for matched in range(len(GEN_END)):
                if matched and piece[0] != GEN_END[matched] and GEN_END not in piece:
                    continue
                at = (GEN_END[:matched] + piece).find(GEN_END)
                if at >= 0 and at + len(GEN_END) < matched + len(piece):
                    masks[matched, index] = False
        return masks


def match_gen_end(matched: int, piece: bytes) -> int:
    """Advance the match of ``</gen`` over ``piece``; ``matched`` and the result count matched bytes (5 = complete)."""
    for byte in piece:
        if byte == GEN_END[matched]:
            matched += 1
            if matched == len(GEN_END):
                return matched
        else:
            matched = 1 if byte == GEN_END[0] else 0  # "<" occurs only as the first byte, so no other border exists
    return matched
