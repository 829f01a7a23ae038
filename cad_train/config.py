"""The settings of a training run. Every recipe is this dataclass with its own defaults."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Literal

from data_prep.build import OracleConfig
from decoding.commandline import UserError


def require(settings: object, must: str, holds: Callable[[float], bool], *names: str) -> None:
    """Check numbers of ``settings``: ``holds`` for each of ``names`` that is not None.

    Write ``holds`` as what a value must be, so that nan, for which no comparison holds, is refused.

    Raises:
        ValueError: ``NAME=VALUE: must be`` and then ``must``.
    """
    for name in names:
        value = getattr(settings, name)
        if value is not None and not holds(value):
            raise ValueError(f"{name}={value}: must be {must}")


@dataclass
class RegionWeights:
    """What a supervised token counts for in the loss, by its region of the program."""

    structure: float = 1.0  # tags, quotes, dashes
    start_digits: float = 1.0  # the first line of a copy
    end_digits: float = 1.0  # the last line of a copy, the pilot's dominant error (paper section 5)
    gen_text: float = 1.0  # new text
    end: float = 1.0  # the end-of-sequence token

    def __post_init__(self) -> None:
        names = [field.name for field in fields(self)]
        require(self, "at least 0, and finite", lambda value: 0 <= value < math.inf, *names)
        if not any(getattr(self, name) for name in names):
            raise ValueError("the weights of all regions are 0: one must be above")


@dataclass
class LossConfig:
    """The loss: cross-entropy over supervised tokens, each by the weight of its region, over the sum of weights."""

    weights: RegionWeights = field(default_factory=RegionWeights)  # by region of the program


@dataclass
class EvaluationConfig:
    """Evaluation of held-out edits while training, with the real decoder."""

    every: int | None = None  # optimiser steps between evaluations; none by default
    cases: int = 16  # held-out edits to decode, the first of each corpus in turn
    patience: int | None = None  # stop after so many evaluations without a better exact match
    max_tokens: int | None = None  # tokens of an answer; default twice the document's plus 256

    def __post_init__(self) -> None:
        require(self, "at least 1", lambda value: value >= 1, "every", "cases", "patience", "max_tokens")
        if self.patience is not None and self.every is None:
            raise ValueError(f"patience={self.patience} counts evaluations: say how often, e.g. evaluation.every=50")


@dataclass
class TrainConfig:
    """One supervised fine-tuning run. Defaults are the paper's (section 5, Appendix O) unless a comment says other."""

    # Data
    data: OracleConfig = field(default_factory=OracleConfig)  # what to train on; prepared first where it is not yet
    style: Literal["numbered", "plain"] = "numbered"  # how the prompt shows the document
    splice: Literal["none", "full"] = "none"  # none: bare programs; full: copied text follows its tag, unsupervised
    max_length: int = 1536  # tokens of prompt and program together
    allow_drop: list[str] = field(default_factory=list)  # reasons for which examples may be left out, e.g. [overlong]

    # Model
    model: str = "Qwen/Qwen2.5-Coder-1.5B-Instruct"  # hub name, local folder, or GGUF file
    adapter: Literal["full", "lora", "qlora"] = "full"  # train all weights, LoRA, or LoRA over NF4 weights
    lora_r: int = 16  # rank
    lora_alpha: int = 32  # scale numerator
    lora_dropout: float = 0.0  # dropout before the adapters
    dora: bool = False  # weight-decomposed adapters (DoRA)
    rslora: bool = False  # scale by alpha over the root of the rank (rank-stabilised LoRA)
    dtype: Literal["float32", "bfloat16"] = "float32"  # of stored weights; bfloat16 halves memory, loses small updates
    precision: Literal["auto", "bf16", "fp32"] = "auto"  # of the computation; auto: bf16 on GPUs and CPUs with AMX
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"  # attention kernel
    activation_checkpointing: bool = True  # recompute activations in the backward pass to save memory

    # Loss and evaluation
    loss: LossConfig = field(default_factory=LossConfig)  # of the supervised tokens
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)  # while training

    # Optimisation
    optimizer: Literal["adamw", "adamw_8bit", "paged_adamw", "paged_adamw_8bit"] = (
        "adamw"  # 8 bit and paged: bitsandbytes
    )
    lr: float = 2e-5  # peak learning rate of AdamW
    beta1: float = 0.9  # AdamW
    beta2: float = 0.95  # AdamW
    weight_decay: float = 0.0  # AdamW; the paper names none
    warmup: float = 0.03  # share of the steps, below 1, before the cosine decay to 0
    max_grad_norm: float = 1.0  # gradient clipping, 0 for none; the paper names none
    epochs: float = 6.0  # passes over the training set
    max_steps: int | None = None  # stop after so many optimiser steps instead
    batch_size: int = 8  # examples per optimiser step, over all processes
    micro_batch: int = 1  # examples per forward and process
    padding_free: bool = False  # examples of a micro-batch in one row, without padding; needs micro_batch above 1
    group_by_length: bool = False  # fill micro-batches with examples of similar length: less padding, less random order
    seed: int = 0  # initialisation of adapters, dropout, order of examples

    # Run
    out: str | None = None  # the run folder; default runs/RECIPE-seedSEED
    resume: Literal["auto", "none"] = "auto"  # auto: go on from the newest whole checkpoint
    save: Literal["epoch", "steps", "no"] = "epoch"  # when to write checkpoints
    save_steps: int = 100  # with save=steps
    keep_checkpoints: int = 1  # older ones are removed
    log_steps: int = 1  # optimiser steps per line of metrics.jsonl
    report_to: list[Literal["tensorboard", "trackio", "wandb"]] = field(default_factory=list)  # trackers

    def __post_init__(self) -> None:
        counts = ["max_length", "batch_size", "micro_batch", "max_steps", "log_steps", "save_steps", "keep_checkpoints"]
        require(self, "at least 1", lambda value: value >= 1, *counts, "lora_r", "lora_alpha")
        require(self, "above 0, and finite", lambda value: 0 < value < math.inf, "lr", "epochs")
        require(self, "at least 0, and finite", lambda value: 0 <= value < math.inf, "weight_decay", "max_grad_norm")
        shares = ["beta1", "beta2", "lora_dropout", "warmup"]
        require(self, "at least 0 and below 1", lambda value: 0 <= value < 1, *shares)
        require(self, "at least 0 and below 2**32", lambda value: 0 <= value < 2**32, "seed")  # numpy's range
        if not self.model:
            raise ValueError("model is empty: name a model of the hub, a folder, or a GGUF file")
        if self.out == "":
            raise ValueError("out is empty: name a folder, or leave the key out for the default")
        for name in ("dora", "rslora"):
            if self.adapter == "full" and getattr(self, name):
                raise ValueError(f"{name}=true is of adapters, and adapter=full has none: give adapter=lora or qlora")
        if (
            self.evaluation.every
            and self.save != "no"
            and (self.save, self.save_steps) != ("steps", self.evaluation.every)
        ):
            raise ValueError(
                "the best checkpoint is kept by its evaluation: with evaluation.every=N also give save=steps "
                "save_steps=N"
            )
        if self.evaluation.every and self.save == "no" and self.evaluation.patience:
            raise ValueError("evaluation.patience stops at a worse model than the best: give save=steps, not save=no")
        if self.batch_size % self.micro_batch:
            raise ValueError(f"batch_size={self.batch_size} is not a multiple of micro_batch={self.micro_batch}")
        if self.padding_free and self.micro_batch == 1:
            raise ValueError("padding_free=true needs micro_batch above 1: an example alone has no padding")


def check_trackers(names: list[str]) -> None:
    """Check that the packages of the trackers of ``report_to`` are installed.

    No part of the settings' own check, since what was trained with a tracker is read where there is none.

    Raises:
        UserError: the package that is missing.
    """
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise UserError(f"report_to={name} needs the package {name}: pip install {name}")


# Settings that may differ between a run and its continuation.
NOT_RESUMED = (
    "out",
    "resume",
    "save",
    "save_steps",
    "keep_checkpoints",
    "log_steps",
    "report_to",
    "data.out",
    "data.data_dir",
)
