"""Score span selectors on held-out edits: exact match with intervals, endpoints, failures, and what an edit costs.

    python eval/heldout.py --ckpt runs/sft_combined-seed0
    python eval/heldout.py --ckpt runs/a-seed0 runs/a-seed1 runs/a-seed2        # seeds pool into one row, as in Table 6
    python eval/heldout.py --ckpt RUN baseline=[fsm,prompt,full]                # beside the untrained model
    python eval/heldout.py --ckpt RUN corpus=[hevalfix-js] data=data/oracles    # on another corpus
    python eval/heldout.py --ckpt Qwen/Qwen2.5-Coder-0.5B-Instruct data=data/oracles corpus=[hevalfix-py]

    accelerate launch --multi_gpu eval/heldout.py --ckpt RUN batch_size=16      # a share of the cases each

Strategies: fsm (programs under the grammar; for an untrained model the paper's R005), monotone (the same, copies in
document order only), vote (several sampled programs, and the document that most of them make), prompt (few-shot
programs as free text, R004), full (regenerate the document, R003), search_replace and unified_diff (the formats of
other tools).

Prompt style, splice setting, oracles and base model come from the checkpoint's run; a key given here overrides them.
Writes to out=: cases.jsonl (a row per case, as it is decoded; the same command goes on where it stopped), summary.json,
and report.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from decoding.commandline import UserError, run
from eval.scoring import ScoreConfig, score_checkpoints


@dataclass
class Config(ScoreConfig):
    """What to score, and how."""


def main(config: Config) -> None:
    """Decode, score, print and write."""
    try:
        if (text := score_checkpoints(config)) is not None:
            print(text)
    except OSError as error:
        raise UserError(f"cannot write the results: {error}") from None


if __name__ == "__main__":
    run(main, Config, description=__doc__)
