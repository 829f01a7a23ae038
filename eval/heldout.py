"""Score span selectors on held-out edits: exact match with intervals, endpoints, failures, and what an edit costs.

    python eval/heldout.py --ckpt runs/sft_combined-seed0
    python eval/heldout.py --ckpt runs/a-seed0 runs/a-seed1 runs/a-seed2        # seeds pool into one row, as in Table 6
    python eval/heldout.py --ckpt RUN baseline=[fsm,prompt,full]                 # beside the untrained model
    python eval/heldout.py --ckpt RUN corpus=[hevalfix-js] data=data/oracles     # another corpus than it was trained on
    python eval/heldout.py --ckpt Qwen/Qwen2.5-Coder-0.5B-Instruct data=data/oracles corpus=[hevalfix-py]

Strategies: fsm (programs under the grammar; for an untrained model the paper's R005), monotone (the same, copies in
document order only), prompt (few-shot programs as free text, R004), full (regenerate the document, R003).

Prompt style, splice setting, oracles and base model come from the checkpoint's run; a key given here overrides them.
Writes to out=: cases.jsonl (a row per case, as it is decoded; the same command goes on where it stopped), summary.json,
and report.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from decoding.commandline import UserError, run

Strategy = Literal["fsm", "monotone", "prompt", "full"]


@dataclass
class Config:
    """What to score, and how."""

    ckpt: list[str]  # run folders, model or adapter folders, GGUF files, or hub names
    corpus: list[str] = field(default_factory=list)  # corpora to score; default those the run was trained on
    data: str | None = None  # folder of prepared oracles; default the run's
    split: Literal["heldout", "train"] = "heldout"  # train shows how far a run has overfitted
    limit: int | None = None  # at most so many cases of each corpus
    strategy: Strategy = "fsm"  # how the checkpoint decodes
    baseline: list[Strategy] = field(default_factory=list)  # strategies of the untrained model to score beside it
    base: str | None = None  # the untrained model, and the base of adapters; default the run's
    style: Literal["numbered", "plain"] | None = None  # default the run's, else numbered
    splice: Literal["none", "full"] | None = None  # default the run's, else none
    temperature: float = 0.0  # 0 is greedy
    seed: int = 0  # of sampling
    max_ops: int = 64  # operations an edit may have
    max_tokens: int | None = None  # tokens of an answer; default twice the document's plus 256
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: bfloat16 on an accelerator, float32 on a CPU
    device: str | None = None  # default the accelerator if there is one
    out: str | None = None  # default RUN/heldout, or results/NAME for a model without a run

    def __post_init__(self) -> None:
        if not self.ckpt:
            raise ValueError("ckpt names nothing to score: give --ckpt PATH")
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit={self.limit}: must be at least 1")
        if self.temperature < 0:
            raise ValueError(f"temperature={self.temperature}: must be at least 0")
        if len(set(self.ckpt)) < len(self.ckpt):
            raise ValueError(f"ckpt={self.ckpt}: the same checkpoint twice would pool a result with itself")


def main(config: Config) -> None:
    """Decode, score, print and write."""
    from eval.scoring import score_checkpoints  # torch and transformers load only now, so that --help is instant

    try:
        print(score_checkpoints(config))
    except OSError as error:
        raise UserError(f"cannot write the results: {error}") from None


if __name__ == "__main__":
    run(main, Config, description=__doc__)
