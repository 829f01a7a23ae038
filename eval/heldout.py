"""Score span selectors on held-out edits: exact match with intervals, endpoints, failures, and what an edit costs.

    python eval/heldout.py --ckpt runs/sft_combined-seed0
    python eval/heldout.py --ckpt runs/a-seed0 runs/a-seed1 runs/a-seed2        # seeds pool into one row, as in Table 6
    python eval/heldout.py --ckpt RUN baseline=[fsm,prompt,full]                # beside the untrained model
    python eval/heldout.py --ckpt RUN corpus=[hevalfix-js] data=data/oracles    # on another corpus
    python eval/heldout.py --ckpt Qwen/Qwen2.5-Coder-0.5B-Instruct data=data/oracles corpus=[hevalfix-py]

    python eval/heldout.py --ckpt RUN execute=true                              # and run the tests of HumanEvalPack

    accelerate launch --multi_gpu eval/heldout.py --ckpt RUN batch_size=16      # a share of the cases each

Strategies: fsm (programs under the grammar; for an untrained model the paper's R005), monotone (the same, copies in
document order only), vote (several sampled programs, and the document that most of them make), prompt (few-shot
programs as free text, R004), full (regenerate the document, R003), search_replace and unified_diff (the formats of
other tools).

execute=true runs HumanEvalPack's own tests on the edited documents of hevalfix-py and, where node is on PATH, of
hevalfix-js. It runs model-written code, which nothing else here does: without network, in namespaces of its own, with
limits on time, memory, processes and output (Linux; eval/execution.py lists them), and as root under a user id that
owns nothing. An ordinary user's files are not protected. Where namespaces cannot be had it is refused, unless
execute_isolated=false says that this is a container of its own. Edits that were decoded before are executed from
cases.jsonl, not decoded again. The rate is over what was executed; an edit that gave no document has failed, and cases
without tests, without an interpreter, or whose gold fails its tests here are counted as not executed.

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
