"""Export a trained run as a Hugging Face folder with a model card, and push it to the hub if asked.

    python recipes/export.py --ckpt runs/sft_combined-seed0 out=exported/selector
    python recipes/export.py --ckpt runs/qlora_7b-seed0 out=exported/selector-7b       # merged into its base
    python recipes/export.py --ckpt runs/qlora_7b-seed0 out=exported/adapter merge=false
    python recipes/export.py --ckpt runs/sft_combined-seed0/checkpoint-96 out=exported/early dtype=float32
    python recipes/export.py --ckpt RUN out=exported/selector push=USER/NAME           # a private repository

Weights are computed in float32 on the CPU (4 bytes a parameter) and rounded to dtype once, as safetensors. An adapter
is merged into its base as that is stored, never into the 4-bit copy that QLoRA trains over. On a few of the run's
held-out edits the merged model must then give the logits of base and adapter; how much rounding changes them, and how
many greedy choices, is printed and goes into the card.

out= has the model, the tokenizer with its chat template, generation_config.json, cad_train.json (the run's settings;
eval/heldout.py reads style and splice from it), and README.md, the model card: base model and licence, data, settings,
losses, the results of eval/heldout.py if the run was scored, and how to use it. Local paths are reduced to names.

Stops, with one line and exit code 2 and nothing at out=, on: an out= that exists, a run that is not finished (name a
checkpoint-N of it instead), a damaged checkpoint, a base that is quantised, outputs that differ. With push=, also where
the hub cannot be reached, does not know the access token, or has the name already; that is found out first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cad_train.export import check_free, check_push, export_run, push_folder
from decoding.commandline import run


@dataclass
class Config:
    """What to export, where, and how."""

    ckpt: str  # run folder, its final, or a checkpoint-N of it
    out: str  # the folder to write; new, or empty
    merge: bool = True  # of adapters: merge into the base; false exports the adapter alone
    dtype: Literal["bfloat16", "float32"] = "bfloat16"  # of the weights of a whole model
    base: str | None = None  # the base model, to merge into and to name in the card; default the run's
    push: str | None = None  # USER/NAME of a new repository on the hub; nothing is pushed by default
    private: bool = True  # with push: only its owner sees the repository

    def __post_init__(self) -> None:
        if self.push is not None and not re.fullmatch(r"[\w.-]+/[\w.-]+", self.push):
            raise ValueError(f"push={self.push}: name the repository as USER/NAME")


def main(config: Config) -> None:
    """Export, and push if asked."""
    out = Path(config.out).expanduser()
    if config.push:
        check_free(out)
        check_push(config.push)
    export_run(config.ckpt, out, merge=config.merge, dtype=config.dtype, base=config.base)
    if config.push:
        print(f"pushed to {push_folder(out, config.push, config.private)}")


if __name__ == "__main__":
    run(main, Config, description=__doc__)
