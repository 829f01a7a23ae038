"""Prepared edits to training examples: ids and labels from the program encoder, with every refusal counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from cad_train.run_folder import differing
from data_prep.build import OracleConfig, OracleRow, build_oracles, content_settings, read_manifest
from decoding.commandline import UserError
from decoding.encoder import ProgramEncoder, Splice
from decoding.grammar import parse
from decoding.prompt import PromptStyle, render_prompt
from decoding.tokens import TokenizerError

IGNORED = -100  # the label of a token without loss
DROP_REASONS = ("overlong", "tokenizer_lossy", "lone_surrogate")


@dataclass
class Examples:
    """Training examples and the account of what they are.

    ``columns`` has ``input_ids`` and ``labels``, equally long lists. ``supervised`` counts supervised tokens by segment
    kind, ``refused`` lists (row id, reason).
    """

    columns: dict[str, list[list[int]]] = field(default_factory=lambda: {"input_ids": [], "labels": []})
    supervised: Counter = field(default_factory=Counter)
    tokens: int = 0
    longest: int = 0
    refused: list[tuple[str, str]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.columns["input_ids"])

    def report(self) -> dict:
        """The account, JSON-ready."""
        return {
            "examples": len(self),
            "tokens": self.tokens,
            "supervised_tokens": sum(self.supervised.values()),
            "supervised_by_kind": dict(self.supervised),
            "longest": self.longest,
            "refused": dict(Counter(reason for _, reason in self.refused)),
        }


def prepare_oracles(config: OracleConfig, announce=print) -> dict:
    """Return the manifest of the prepared oracles of ``config``, building them where they are not there yet.

    Under a launcher only the main process builds; the others wait.

    Raises:
        UserError: the folder holds oracles of other settings.
    """
    from accelerate import PartialState

    state = PartialState()
    folder = Path(config.out)
    with state.main_process_first():
        manifest = read_manifest(folder)
        if manifest is None and state.is_main_process:
            announce(f"building oracles in {folder} ({', '.join(config.corpora)})")
            manifest = build_oracles(config)
        elif manifest is None:
            raise UserError("the main process failed to build the oracles; see its message")
    changes = differing(manifest["settings"], content_settings(config))
    if changes:
        different = "; ".join(f"data.{key} there {there}, wanted {wanted}" for key, there, wanted in changes)
        raise UserError(
            f"{folder} holds oracles of other settings ({different}): choose another data.out, or rebuild "
            "with data_prep/build_oracles.py"
        )
    return manifest


def encode_row(
    encoder: ProgramEncoder, row: OracleRow, style: PromptStyle, splice: Splice
) -> tuple[list[int], list[int], Counter]:
    """Return (input_ids, labels, supervised tokens by kind) of one row.

    Prompt and spliced text carry the label -100; every other program id and the end of sequence are supervised.

    Raises:
        TokenizerError: text this tokenizer cannot express.
    """
    input_ids = encoder.prompt(render_prompt(row.instruction, row.before, style))
    labels = [IGNORED] * len(input_ids)
    kinds: Counter = Counter()
    for kind, ids in encoder.segments(parse(row.program), row.before, splice):
        input_ids += ids
        if kind == "splice":
            labels += [IGNORED] * len(ids)
        else:
            labels += ids
            kinds[kind] += len(ids)
    return input_ids, labels, kinds


def encode_rows(
    encoder: ProgramEncoder, rows: Iterable[OracleRow], style: PromptStyle, splice: Splice, max_length: int
) -> Examples:
    """Encode rows; those longer than ``max_length`` or not expressible are left out and listed as refused."""
    examples = Examples()
    for row in rows:
        try:
            input_ids, labels, kinds = encode_row(encoder, row, style, splice)
        except TokenizerError as error:
            examples.refused.append((row.id, error.reason))
            continue
        examples.longest = max(examples.longest, len(input_ids))
        if len(input_ids) > max_length:
            examples.refused.append((row.id, "overlong"))
            continue
        examples.columns["input_ids"].append(input_ids)
        examples.columns["labels"].append(labels)
        examples.tokens += len(input_ids)
        examples.supervised += kinds
    return examples


def check_refused(examples: Examples, allowed: list[str], max_length: int) -> None:
    """Stop a run that would leave examples out for a reason the user has not allowed by name, or train on nothing.

    Raises:
        UserError: with counts, the first ids, and what to do.
    """
    unknown = sorted(set(allowed) - set(DROP_REASONS))
    if unknown:
        raise UserError(f"allow_drop: unknown {', '.join(unknown)}; choose from {', '.join(DROP_REASONS)}")
    for reason in DROP_REASONS:
        ids = [row_id for row_id, why in examples.refused if why == reason]
        if ids and reason not in allowed:
            shown = ", ".join(ids[:3]) + (", ..." if len(ids) > 3 else "")
            detail = f" (longest {examples.longest} tokens, max_length={max_length})" if reason == "overlong" else ""
            raise UserError(
                f"{len(ids)} of {len(examples) + len(examples.refused)} examples are {reason}{detail}: {shown}. "
                f"Leave them out with allow_drop=[{reason}]" + (", or raise max_length" if reason == "overlong" else "")
            )
    if not len(examples):
        raise UserError("no training examples are left")


def show_example(encoder: ProgramEncoder, input_ids: list[int], labels: list[int], color: bool) -> str:
    """Return one example as text in which what is trained can be told from what is not.

    On a terminal supervised text is green; elsewhere it stands between » and «.
    """
    opening, closing = ("\x1b[32m", "\x1b[0m") if color else ("»", "«")
    parts, start = [], 0
    for stop in range(1, len(input_ids) + 1):
        if stop == len(input_ids) or (labels[stop] == IGNORED) != (labels[start] == IGNORED):
            text = encoder.tokenizer.decode(input_ids[start:stop], clean_up_tokenization_spaces=False)
            parts.append(text if labels[start] == IGNORED else f"{opening}{text}{closing}")
            start = stop
    return "".join(parts)
