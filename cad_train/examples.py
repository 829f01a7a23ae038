"""Prepared edits to training examples: ids and regions from the program encoder, with every refusal counted."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cad_train.run_folder import differing
from data_prep.build import OracleConfig, build_oracles, content_settings
from data_prep.prepared import OracleRow, fingerprint, read_manifest
from data_prep.rows import write_text
from data_prep.workers import usable_cores
from decoding.commandline import UserError
from decoding.encoder import REGIONS, ProgramEncoder, Splice
from decoding.grammar import parse
from decoding.prompt import PromptStyle, render_prompt
from decoding.tokens import TokenizerError

if TYPE_CHECKING:
    from datasets import Dataset

UNSUPERVISED = -1  # the region of a token without loss
DROP_REASONS = ("overlong", "tokenizer_lossy", "lone_surrogate")
_FORMAT = 1  # of encoded examples; a change of what encode_row returns needs another
_ROWS_PER_WORKER = 500  # fewer are encoded sooner than a process starts
_CHECKED = 100  # examples whose supervised text is compared with their program


@dataclass
class Examples:
    """Training examples and the account of what they are.

    ``dataset`` has ``input_ids`` and ``regions``, equally long: the index in ``REGIONS`` of every supervised token, and
    -1 where there is no loss. ``refused`` lists (row id, reason); ``longest`` counts refused ones too.
    """

    dataset: Dataset
    longest: int
    refused: list[tuple[str, str]]

    def __len__(self) -> int:
        return len(self.dataset)

    def report(self) -> dict[str, Any]:
        """Return the account, JSON-ready: what is trained on, by length and by region, and what is left out."""
        lengths, by_region, fully_masked, missing_end = [], Counter(), 0, 0
        for batch in self.dataset.with_format("numpy").iter(batch_size=1000):
            for regions in batch["regions"]:
                lengths.append(len(regions))
                by_region.update(regions[regions != UNSUPERVISED].tolist())
                fully_masked += not (regions != UNSUPERVISED).any()
                missing_end += not len(regions) or bool(regions[-1] != REGIONS.index("end"))
        supervised = sum(by_region.values())
        tokens = sum(lengths)
        return {
            "examples": len(self),
            "tokens": tokens,
            "supervised_tokens": supervised,
            "supervised_share": round(supervised / tokens, 4) if tokens else None,
            "supervised_by_region": {name: by_region[index] for index, name in enumerate(REGIONS)},
            "lengths": {
                name: int(np.percentile(lengths, share)) if lengths else None
                for name, share in (("min", 0), ("p50", 50), ("p95", 95), ("max", 100))
            },
            "longest": self.longest,
            "truncated": 0,  # nothing is ever cut: longer examples are refused
            "fully_masked": fully_masked,
            "missing_end": missing_end,
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
) -> tuple[list[int], list[int]]:
    """Return (input_ids, regions) of one row.

    Prompt and spliced text are unsupervised; every other program id and the end of sequence are supervised.

    Raises:
        TokenizerError: text this tokenizer cannot express.
    """
    input_ids = encoder.prompt(render_prompt(row.instruction, row.before, style))
    regions = [UNSUPERVISED] * len(input_ids)
    for kind, ids in encoder.segments(parse(row.program), row.before, splice):
        input_ids += ids
        regions += [UNSUPERVISED if kind == "splice" else REGIONS.index(kind)] * len(ids)
    return input_ids, regions


def encode_rows(
    encoder: ProgramEncoder,
    rows: list[OracleRow],
    style: PromptStyle,
    splice: Splice,
    max_length: int,
    cache: Path | None = None,
) -> Examples:
    """Encode rows, on every core where they are many; those too long or not expressible are listed as refused.

    With ``cache``, a folder, what was encoded is kept there by content (tokenizer, rows and settings) and read back.
    """
    from datasets import Dataset, Features, List, Value, disable_progress_bars, load_from_disk

    if not sys.stderr.isatty():
        disable_progress_bars()
    folder = cache / f"encoded-{_content_key(encoder, rows, style, splice, max_length)}" if cache else None
    if folder and (folder / "examples.json").exists():
        account = json.loads((folder / "examples.json").read_text(encoding="utf-8"))
        refused = [tuple(pair) for pair in account["refused"]]
        return Examples(load_from_disk(str(folder / "dataset")), account["longest"], refused)

    def encode(number: int) -> dict[str, Any]:
        try:
            input_ids, regions = encode_row(encoder, rows[number], style, splice)
        except TokenizerError as error:
            return {"input_ids": [], "regions": [], "length": 0, "refused": error.reason}
        if len(input_ids) > max_length:
            return {"input_ids": [], "regions": [], "length": len(input_ids), "refused": "overlong"}
        return {"input_ids": input_ids, "regions": regions, "length": len(input_ids), "refused": ""}

    features = Features(
        {
            "input_ids": List(Value("int32")),
            "regions": List(Value("int8")),
            "length": Value("int64"),
            "refused": Value("string"),
        }
    )
    workers = max(1, min(usable_cores(), len(rows) // _ROWS_PER_WORKER))
    if rows:
        encoded = Dataset.from_dict({"number": range(len(rows))}).map(
            encode,
            input_columns="number",
            remove_columns="number",
            features=features,
            num_proc=workers if workers > 1 else None,
            load_from_cache_file=False,  # our key knows the content; theirs would hash every row with the function
            keep_in_memory=workers == 1,
        )
    else:  # which map would leave without columns
        encoded = Dataset.from_dict({name: [] for name in features}, features=features)
    reasons = encoded["refused"][:]
    refused = [(row.id, reason) for row, reason in zip(rows, reasons, strict=True) if reason]
    kept = encoded.select([number for number, reason in enumerate(reasons) if not reason])
    dataset = kept.select_columns(["input_ids", "regions"])
    longest = max(encoded["length"][:], default=0)
    if folder and len(dataset):
        part = folder.with_name(f".{folder.name}.{os.getpid()}")
        dataset.save_to_disk(str(part / "dataset"))
        write_text(part / "examples.json", json.dumps({"longest": longest, "refused": refused}) + "\n")
        try:
            part.rename(folder)
        except OSError:  # another run was sooner, with the same content
            shutil.rmtree(part)
        dataset = load_from_disk(str(folder / "dataset"))
    return Examples(dataset, longest, refused)


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
        left_out = Counter(reason for _, reason in examples.refused)
        counts = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
        remedy = "add other edits" if left_out else "lower data.heldout, or add edits of other groups"
        if left_out["overlong"]:
            remedy = f"raise max_length={max_length} (the longest has {examples.longest} tokens)"
        raise UserError(f"no training examples are left{f' ({counts})' * bool(counts)}: {remedy}")


def check_supervised(examples: Examples, rows: list[OracleRow], encoder: ProgramEncoder) -> None:
    """Stop a run whose loss would be on the wrong tokens: looks at the data that training gets, not at how it was made.

    Raises:
        UserError: an example without a supervised token, without its end token, or whose supervised text is not its
            program.
    """
    account = examples.report()
    for count, what in ((account["fully_masked"], "no supervised token"), (account["missing_end"], "no end token")):
        if count:
            raise UserError(f"{count} of {len(examples)} examples have {what}: remove DATA.OUT/encoded and try again")
    refused = {row_id for row_id, _ in examples.refused}
    programs = (row.program for row in rows if row.id not in refused)
    for number, program in zip(range(min(_CHECKED, len(examples))), programs, strict=False):
        example = examples.dataset[number]
        pairs = zip(example["input_ids"], example["regions"], strict=True)
        supervised = [token for token, region in pairs if region != UNSUPERVISED]
        if encoder.text.decode(supervised[:-1]).decode() != program:
            raise UserError(
                f"example {number + 1} would be trained on another text than its program: remove DATA.OUT/encoded"
            )


def show_example(encoder: ProgramEncoder, input_ids: list[int], regions: list[int], color: bool) -> str:
    """Return one example as text in which what is trained can be told from what is not.

    On a terminal supervised text is green, its line numbers yellow; elsewhere it stands between » and «.
    """
    digits = {REGIONS.index("start_digits"), REGIONS.index("end_digits")}

    def paint(region: int) -> str:
        if region == UNSUPERVISED:
            return ""
        return ("\x1b[33m" if region in digits else "\x1b[32m") if color else "»"

    closing = "\x1b[0m" if color else "«"
    parts, start = [], 0
    for stop in range(1, len(input_ids) + 1):
        if stop == len(input_ids) or paint(regions[stop]) != paint(regions[start]):
            text = encoder.tokenizer.decode(input_ids[start:stop], clean_up_tokenization_spaces=False)
            opening = paint(regions[start])
            parts.append(f"{opening}{text}{closing}" if opening else text)
            start = stop
    return "".join(parts)


def tokenizer_fingerprint(encoder: ProgramEncoder) -> str:
    """SHA-256 of what the ids of an example depend on: vocabulary, rules, chat template, end of sequence."""
    tokenizer = encoder.tokenizer
    return _digest([tokenizer.backend_tokenizer.to_str(), tokenizer.chat_template, tokenizer.eos_token_id])


def _content_key(encoder: ProgramEncoder, rows: list[OracleRow], style: str, splice: str, max_length: int) -> str:
    """What encoded examples depend on: the tokenizer, the rows, the settings."""
    return _digest([_FORMAT, tokenizer_fingerprint(encoder), fingerprint(rows), style, splice, max_length])[:20]


def _digest(facts: list) -> str:
    return hashlib.sha256(json.dumps(facts, ensure_ascii=False).encode()).hexdigest()
