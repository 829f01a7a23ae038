"""Time our training beside a plain TRL script: the same model, ids, order, batch and precision, in one run.

    python recipes/train_bench.py                                                # SmolLM2-135M, full-parameter
    python recipes/train_bench.py model=Qwen/Qwen2.5-Coder-0.5B-Instruct max_steps=3
    python recipes/train_bench.py data.corpora=[jsonl] data.jsonl=[edits.jsonl] data.out=data/mine tokenise=0

Both systems take the same few optimiser steps, each time in a fresh process, in turns; a step's rate is its tokens over
its time, and the first step of a process, which sets things up, does not count. The plain script is SFTTrainer on
``input_ids`` and ``labels`` with TRL's own loss. Keys of a recipe hold for both, except those of the loss and of
batches that TRL's trainer has no word for (loss.*, padding_free).

The floor of a step is what its matrix products take at the rate that this machine multiplies such matrices at.

Then it times tokenising: tokenise= examples, the real ones with words that differ from copy to copy, on one core, on
every core, and again from the cache.

Data are HumanEvalPack's Python and JavaScript fixes where CAD_DATA_DIR has them, otherwise pyfix and ProbeEdit.
Writes to out=: summary.json and report.md.
"""

from __future__ import annotations

import io
import json
import os
import random
import re
import shlex
import statistics
import sys
import tempfile
import time
import zlib
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cad_train.config import EvaluationConfig, TrainConfig
from data_prep.build import OracleConfig
from data_prep.prepared import OracleRow, read_split
from data_prep.rows import write_text
from decoding.commandline import UserError, run
from decoding.console import markdown_table

if TYPE_CHECKING:
    from cad_train.examples import Examples

System = Literal["ours", "plain TRL"]
SYSTEMS: tuple[System, ...] = ("ours", "plain TRL")


def _real_examples() -> OracleConfig:
    if os.environ.get("CAD_DATA_DIR"):
        return OracleConfig(corpora=["hevalfix-py", "hevalfix-js"], out="data/oracles-bench")
    return OracleConfig(corpora=["pyfix", "probeedit"], out="data/oracles-bench-generated")


@dataclass
class Config(TrainConfig):
    """What to train, and how long: a recipe's keys, with other defaults, and a few of the benchmark's own."""

    data: OracleConfig = field(default_factory=_real_examples)  # prompt-heavy real edits
    allow_drop: list[str] = field(default_factory=lambda: ["overlong"])  # reasons for which examples may be left out
    model: str = "models/SmolLM2-135M-Instruct.Q4_1.gguf"  # hub name, local folder, or GGUF file
    max_steps: int | None = 4  # optimiser steps of a turn; the first is not timed
    repeats: int = 3  # turns of each system
    tokenise: int = 100_000  # examples to time tokenising on; 0 leaves it out
    save: Literal["epoch", "steps", "no"] = "no"  # checkpoints are none of this
    out: str | None = "results/train_bench"  # where to write

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_steps is None or self.max_steps < 2:
            raise ValueError(f"max_steps={self.max_steps}: must be at least 2, since the first is not timed")
        if self.tokenise and not hasattr(os, "sched_setaffinity"):
            raise ValueError(f"tokenise={self.tokenise}: needs Linux, to keep to one core; use tokenise=0 here")
        if self.repeats < 1 or self.tokenise < 0:
            raise ValueError(f"repeats={self.repeats}, tokenise={self.tokenise}: at least 1, and at least 0")
        if self.adapter == "qlora":
            raise ValueError("adapter=qlora: compare full or lora")


def main(config: Config) -> None:
    """Train in turns, tokenise, print, and write."""
    import torch

    from cad_train.run_folder import environment
    from cad_train.trainer import computes_in_bf16

    rows, examples = load_examples(config)
    chosen = _draw(examples, config)
    turns: dict[str, list[dict[str, Any]]] = {system: [] for system in SYSTEMS}
    for turn in range(config.repeats):
        for system in SYSTEMS if turn % 2 == 0 else SYSTEMS[::-1]:
            turns[system].append(in_fresh_process(train_steps, system, config, chosen))
            rate = statistics.median(_rates(turns[system][-1]))
            print(f"turn {turn + 1}/{config.repeats}, {system}: {rate:.1f} tokens/s", flush=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    in_bf16 = computes_in_bf16(config, device == "cpu")
    summary: dict[str, Any] = {
        "command": shlex.join(["python", *sys.argv]),
        "settings": asdict(config),
        "environment": environment(),
        "computes_in": "bfloat16" if in_bf16 else "float32",
        "examples": len(chosen),
        "systems": {system: _figures(turns[system]) for system in SYSTEMS},
    }
    summary["same_order"] = turns["ours"][0]["lengths"] == turns["plain TRL"][0]["lengths"]
    summary["largest_loss_difference"] = max(
        abs(a - b) for a, b in zip(*(summary["systems"][system]["losses"] for system in SYSTEMS), strict=True)
    )
    summary["floor"] = measured_floor(config, turns["ours"][0], device)
    if config.tokenise:
        summary["tokenising"] = _tokenising(config, rows)
    out = Path(config.out)
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "summary.json", json.dumps(summary, indent=2, ensure_ascii=False) + "\n")
    text = report(summary)
    write_text(out / "report.md", text)
    print(f"{text}\nwrote {out}/report.md, summary.json")


def load_examples(config: TrainConfig) -> tuple[list[OracleRow], Examples]:
    """Return the rows to train on and their encoding, as a run of ``config`` would have them.

    Raises:
        UserError: as a run would.
    """
    from cad_train.examples import check_refused, encode_rows, prepare_oracles
    from decoding.loading import load_encoder

    prepare_oracles(config.data)
    oracles = Path(config.data.out)
    rows = read_split(oracles, config.data.corpora, "train")
    encoder = load_encoder(config.model)
    examples = encode_rows(encoder, rows, config.style, config.splice, config.max_length, oracles / "encoded")
    check_refused(examples, config.allow_drop, config.max_length)
    return rows, examples


def _draw(examples: Examples, config: Config) -> list[dict[str, list[int]]]:
    """Examples of whole steps in the order in which both systems see them; again from the first where they run out."""
    steps = min(len(examples) // config.batch_size, config.max_steps)
    if not steps:
        raise UserError(f"{len(examples)} examples are fewer than batch_size={config.batch_size}: lower it")
    numbers = random.Random(config.seed).sample(range(len(examples)), steps * config.batch_size)
    return [dict(examples.dataset[number]) for number in numbers]


# ---------------------------------------------------------------------------------------------------------------------
# Steps in a process of their own


def in_fresh_process(function, *arguments):
    """Return ``function(*arguments)`` as computed by a new interpreter, so that nothing is warm and memory is its own.

    Raises:
        UserError: the process was killed, as the system does where memory ends.
    """
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(function, *arguments).result()
        except BrokenProcessPool:
            raise UserError(
                "the measuring process was killed, most likely for its memory: try activation_checkpointing=true, "
                "a smaller micro_batch, adapter=lora, or a smaller model"
            ) from None


def train_steps(system: System, config: TrainConfig, examples: list[dict[str, list[int]]]) -> dict[str, Any]:
    """Train ``config.max_steps`` optimiser steps in this process, on ``examples`` in the order given.

    Args:
        examples: ``input_ids`` and ``regions`` of each; whole steps of them.

    Returns:
        JSON-ready, by step: ``seconds``, ``losses``, ``lengths`` (tokens of each example), ``supervised`` (targets of
        each); and ``peak_bytes`` of the process, or on a GPU of its tensors there.
    """
    import torch
    from datasets import Dataset, disable_progress_bars
    from transformers.utils import logging

    from decoding.loading import load_tokenizer, local_name

    disable_progress_bars()
    logging.disable_progress_bar()
    folder, tokenizer = local_name(config.model), load_tokenizer(config.model)
    build = {"ours": _our_trainer, "plain TRL": _plain_trainer}[system]
    with tempfile.TemporaryDirectory() as out:
        # Nothing but the steps.
        config = replace(config, out=out, save="no", report_to=[], log_steps=1, evaluation=EvaluationConfig())
        trainer = build(config, folder, tokenizer, Dataset.from_list(examples), Path(out))
        trainer.data_collator = collator = _Counting(trainer.data_collator)
        trainer.add_callback(clock := _clock())
        with redirect_stdout(io.StringIO()):  # a line a step, of ours alone
            trainer.train()
        per_step = trainer.args.gradient_accumulation_steps
    batches = [collator.batches[at : at + per_step] for at in range(0, len(clock.seconds) * per_step, per_step)]
    return {
        "seconds": clock.seconds,
        "losses": clock.losses,
        "lengths": [[length for batch in step for length, _ in batch] for step in batches],
        "supervised": [[targets for batch in step for _, targets in batch] for step in batches],
        "peak_bytes": torch.cuda.max_memory_allocated() if torch.cuda.is_available() else peak_memory(),
    }


def _our_trainer(config: TrainConfig, folder: str, tokenizer, dataset, out: Path):
    from torch.utils.data import SequentialSampler

    from cad_train.examples import Examples
    from cad_train.run_folder import RunFolder
    from cad_train.trainer import build_trainer

    examples = Examples(dataset, max(map(len, dataset["input_ids"])), [])
    trainer = build_trainer(config, folder, tokenizer, examples, None, RunFolder(out, True))
    trainer.order = SequentialSampler(dataset)
    return trainer


def _plain_trainer(config: TrainConfig, folder: str, tokenizer, dataset, out: Path):
    """What a user of TRL writes: SFTTrainer on ids and labels, with TRL's loss and optimiser defaults."""
    import torch
    from peft import LoraConfig
    from transformers.trainer_callback import PrinterCallback
    from trl import SFTConfig, SFTTrainer

    from cad_train.trainer import computes_in_bf16

    def labelled(row: dict[str, list[int]]) -> dict[str, list[int]]:
        pairs = zip(row["input_ids"], row["regions"], strict=True)
        return {"input_ids": row["input_ids"], "labels": [token if region >= 0 else -100 for token, region in pairs]}

    on_cpu = not torch.cuda.is_available()
    arguments = SFTConfig(
        output_dir=str(out),
        dataset_kwargs={"skip_prepare_dataset": True},
        max_length=None,
        model_init_kwargs={"dtype": getattr(torch, config.dtype), "attn_implementation": config.attention},
        use_cpu=on_cpu,
        bf16=computes_in_bf16(config, on_cpu),
        activation_checkpointing=config.activation_checkpointing,
        learning_rate=config.lr,
        adam_beta1=config.beta1,
        adam_beta2=config.beta2,
        weight_decay=config.weight_decay,
        lr_scheduler_type="cosine",
        warmup_steps=config.warmup,
        max_grad_norm=config.max_grad_norm,
        max_steps=config.max_steps,
        per_device_train_batch_size=config.micro_batch,
        gradient_accumulation_steps=config.batch_size // config.micro_batch,
        seed=config.seed,
        train_sampling_strategy="sequential",  # in the order of the rows, as ours
        logging_steps=1,
        save_strategy="no",
        disable_tqdm=True,
        report_to="none",
    )
    adapter = LoraConfig(
        r=config.lora_r,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        use_dora=config.dora,
        use_rslora=config.rslora,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    trainer = SFTTrainer(
        model=folder,
        args=arguments,
        train_dataset=dataset.map(labelled, remove_columns="regions"),
        processing_class=tokenizer,
        peft_config=adapter if config.adapter == "lora" else None,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


class _Counting:
    """A collator, and the examples it was given: (tokens, targets) of each, batch by batch."""

    def __init__(self, collator) -> None:
        self._collator = collator
        self.batches: list[list[tuple[int, int]]] = []

    def __call__(self, examples: list[dict[str, list[int]]]):
        marks = [example.get("labels", example.get("regions")) for example in examples]
        self.batches.append([(len(row), sum(mark >= 0 for mark in row)) for row in marks])
        return self._collator(examples)


def _clock():
    """A callback that takes the seconds and the loss of every optimiser step."""
    import torch
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        def __init__(self) -> None:
            self.seconds: list[float] = []
            self.losses: list[float] = []
            self.last = 0.0

        def on_train_begin(self, args, state, control, **kwargs):
            self.last = time.perf_counter()

        def on_step_end(self, args, state, control, **kwargs):
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            now = time.perf_counter()
            self.seconds.append(now - self.last)
            self.last = now

        def on_log(self, args, state, control, logs=None, **kwargs):
            if logs and "loss" in logs:
                self.losses.append(logs["loss"])

    return Clock()


def peak_memory() -> int:
    """Return the most bytes of memory that this process has held at once, itself alone.

    From /proc where there is one: elsewhere, as getrusage has it, a parent's memory may count.
    """
    status = Path("/proc/self/status")
    if status.exists():
        return int(re.search(r"VmHWM:\s+(\d+) kB", status.read_text())[1]) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


# ---------------------------------------------------------------------------------------------------------------------
# Figures


def measured_floor(config: TrainConfig, turn: dict[str, Any], device: str) -> dict[str, Any]:
    """Return the operations of the timed steps of a turn, the machine's rates, and the seconds these need at least."""
    import torch
    from transformers import AutoConfig

    from cad_train.floor import architecture, matmul_rate, step_flops
    from cad_train.trainer import computes_in_bf16
    from decoding.loading import local_name

    model = architecture(AutoConfig.from_pretrained(local_name(config.model), trust_remote_code=False))
    counts = [
        step_flops(
            model,
            lengths,
            sum(supervised),
            lora_rank=None if config.adapter == "full" else config.lora_r,
            activation_checkpointing=config.activation_checkpointing,
        )
        for lengths, supervised in zip(turn["lengths"][1:], turn["supervised"][1:], strict=True)
    ]
    lengths = [length for step in turn["lengths"] for length in step]
    tokens = int(statistics.median(lengths)) * config.micro_batch
    rates = {
        str(dtype).removeprefix("torch."): matmul_rate(model, tokens, dtype, device)
        for dtype in (torch.float32, torch.bfloat16)
    }
    in_bf16 = computes_in_bf16(config, device == "cpu") or config.dtype == "bfloat16"
    rate = rates["bfloat16" if in_bf16 else "float32"]
    total = sum(count.total for count in counts)
    return {
        "flops": {
            part: sum(getattr(count, part) for count in counts)
            for part in ("body", "attention", "recomputed", "head", "full_head", "total")
        },
        "matmul_flops_per_s": rates,
        "seconds": total / rate,
        "tokens_per_s": sum(map(sum, turn["lengths"][1:])) * rate / total,
    }


def _rates(turn: dict[str, Any]) -> list[float]:
    """Tokens per second of every step after the first."""
    return [sum(lengths) / seconds for lengths, seconds in zip(turn["lengths"][1:], turn["seconds"][1:], strict=True)]


def _figures(turns: list[dict[str, Any]]) -> dict[str, Any]:
    rates = [rate for turn in turns for rate in _rates(turn)]
    return {
        "tokens_per_s": statistics.median(rates),
        "slowest": min(rates),
        "fastest": max(rates),
        "peak_bytes": max(turn["peak_bytes"] for turn in turns),
        "losses": turns[0]["losses"],
        "same_losses_every_turn": all(turn["losses"] == turns[0]["losses"] for turn in turns),
        "turns": turns,
    }


def report(summary: dict[str, Any]) -> str:
    """Return the Markdown report of a summary."""
    ours, plain = (summary["systems"][system] for system in SYSTEMS)
    floor, settings = summary["floor"], summary["settings"]
    timed = (settings["max_steps"] - 1) * settings["repeats"]
    lengths = [length for step in ours["turns"][0]["lengths"] for length in step]
    targets = sum(map(sum, ours["turns"][0]["supervised"]))
    lines = [
        "# Training beside a plain TRL script",
        "",
        f"- command: `{summary['command']}`",
        f"- {settings['model']}, adapter={settings['adapter']}, weights in {settings['dtype']}, computed in "
        f"{summary['computes_in']}, activation_checkpointing={str(settings['activation_checkpointing']).lower()}",
        f"- {summary['environment']['device']}, {summary['environment']['threads']} threads",
        f"- {summary['examples']} examples of {', '.join(settings['data']['corpora'])}: {min(lengths)} to "
        f"{max(lengths)} tokens, median {statistics.median(lengths):.0f}; {targets / sum(lengths):.1%} supervised; "
        f"{settings['batch_size']} a step, {settings['micro_batch']} a forward",
        "",
        f"Tokens per second are medians over {timed} steps ({settings['repeats']} fresh processes each, in turns, "
        "without the first step); memory is the most of any turn.",
        "",
        markdown_table(
            ["system", "tokens/s", "slowest to fastest", "peak memory", "share of the floor's rate"],
            [
                [
                    system,
                    f"{entry['tokens_per_s']:.1f}",
                    f"{entry['slowest']:.1f} to {entry['fastest']:.1f}",
                    f"{entry['peak_bytes'] / 1e9:.2f} GB",
                    f"{entry['tokens_per_s'] / floor['tokens_per_s']:.1%}",
                ]
                for system, entry in summary["systems"].items()
            ]
            + [
                [
                    "ours / plain",
                    f"{ours['tokens_per_s'] / plain['tokens_per_s']:.2f}x",
                    "",
                    f"{ours['peak_bytes'] / plain['peak_bytes']:.2f}x",
                    "",
                ]
            ],
        ),
        "",
        "## Loss",
        "",
        markdown_table(
            ["step", *SYSTEMS, "difference"],
            [
                [step, f"{a:.6f}", f"{b:.6f}", f"{abs(a - b):.1e}"]
                for step, (a, b) in enumerate(zip(ours["losses"], plain["losses"], strict=True), start=1)
            ],
        ),
        "",
        f"Largest difference {summary['largest_loss_difference']:.1e}; examples in the same order: "
        f"{_yes(summary['same_order'])}; the same losses every turn: "
        + ", ".join(f"{system} {_yes(summary['systems'][system]['same_losses_every_turn'])}" for system in SYSTEMS)
        + ".",
        "",
        "## The floor",
        "",
        *_floor_lines(floor, settings["max_steps"] - 1),
    ]
    if "tokenising" in summary:
        lines += ["", "## Tokenising", "", *_tokenising_lines(summary["tokenising"])]
    return "\n".join(lines) + "\n"


def _floor_lines(floor: dict[str, Any], steps: int) -> list[str]:
    flops = floor["flops"]
    named = {
        "body": "layers, forward and backward",
        "attention": "attention, causal pairs",
        "recomputed": "recomputed (activation checkpointing)",
        "head": "output head, supervised positions",
    }
    rates = ", ".join(f"{rate / 1e9:.1f} GFLOP/s in {dtype}" for dtype, rate in floor["matmul_flops_per_s"].items())
    return [
        markdown_table(
            ["part of a step", "GFLOP", "share"],
            [
                [name, f"{flops[part] / steps / 1e9:.1f}", f"{flops[part] / flops['total']:.1%}"]
                for part, name in named.items()
            ],
        ),
        "",
        f"The head over every position would take {flops['full_head'] / steps / 1e9:.1f} GFLOP. Matrix products of the "
        f"layers' shapes run at {rates} here: a step takes at least {floor['seconds'] / steps:.2f} s, "
        f"{floor['tokens_per_s']:.1f} tokens/s.",
    ]


def _yes(value: bool) -> str:
    return "yes" if value else "no"


# ---------------------------------------------------------------------------------------------------------------------
# Tokenising


def _tokenising(config: Config, rows: list[OracleRow]) -> dict[str, Any]:
    cores = sorted(os.sched_getaffinity(0))
    out: dict[str, Any] = {"examples": config.tokenise, "cores": len(cores)}
    with tempfile.TemporaryDirectory() as cache:
        for name, allowed in (("one core", cores[:1]), ("every core", cores)):
            folder = Path(cache) / name
            for again in ("", ", from the cache"):
                out[name + again] = in_fresh_process(_encode, config, rows, allowed, folder)
                print(f"{name}{again}: {out[name + again]['seconds']:.1f} s", flush=True)
    return out


def _encode(config: Config, rows: list[OracleRow], cores: list[int], cache: Path) -> dict[str, Any]:
    """Encode ``config.tokenise`` varied rows on ``cores`` alone."""
    from datasets import disable_progress_bars

    from cad_train.examples import encode_rows
    from decoding.loading import load_encoder

    os.sched_setaffinity(0, cores)
    disable_progress_bars()
    many = [varied(rows[number % len(rows)], number // len(rows)) for number in range(config.tokenise)]
    encoder = load_encoder(config.model)
    started = time.perf_counter()
    examples = encode_rows(encoder, many, config.style, config.splice, config.max_length, cache)
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "kept": len(examples), "refused": len(examples.refused)}


_WORD = re.compile(r"[A-Za-z]{4,}")
_PROGRAM_WORDS = frozenset({"program", "copy", "lines"})


def varied(row: OracleRow, number: int) -> OracleRow:
    """Return ``row`` with a quarter of its words renamed, everywhere alike, and ``number`` after its instruction.

    Tokenizers keep the words they have seen, so that plain repetition would be faster than new text. The program stays
    the oracle: renaming alike keeps which lines are equal.
    """
    if number == 0:
        return row
    suffix = ""
    rest = number
    while rest:
        rest, digit = divmod(rest, 26)
        suffix += chr(ord("a") + digit)

    def rename(match: re.Match) -> str:
        word = match[0]
        if word in _PROGRAM_WORDS or (zlib.crc32(word.encode()) + number) % 4:
            return word
        return word + suffix

    texts = {name: _WORD.sub(rename, getattr(row, name)) for name in ("instruction", "before", "after", "program")}
    texts["instruction"] += f" ({number})"  # a short example may have no word to rename
    return replace(row, id=f"{row.id}#{number}", **texts)


def _tokenising_lines(tokenising: dict[str, Any]) -> list[str]:
    one, every = tokenising["one core"]["seconds"], tokenising["every core"]["seconds"]
    names = [name for name, entry in tokenising.items() if isinstance(entry, dict)]
    return [
        markdown_table(
            ["examples", "seconds", "examples/s"],
            [
                [
                    f"{tokenising['examples']}, {name}",
                    f"{tokenising[name]['seconds']:.1f}",
                    f"{tokenising['examples'] / tokenising[name]['seconds']:.0f}",
                ]
                for name in names
            ],
        ),
        "",
        f"{tokenising['cores']} cores are {one / every:.2f}x one; from the cache "
        f"{every / tokenising['every core, from the cache']['seconds']:.0f}x. {tokenising['every core']['refused']} of "
        "these examples are longer than max_length, and were encoded too.",
    ]


if __name__ == "__main__":
    run(main, Config, description=__doc__)
