"""QLoRA of a 7B span selector on the combined set: the paper's size comparison (Appendix O, Table 23).

Qwen2.5-Coder-7B-Instruct in NF4 with LoRA r=16, alpha=32 on every linear layer; the data, epochs and optimiser of
recipes/sft_combined.py, whose text describes the other features. Needs bitsandbytes: pip install 'cad-train[qlora]'.

    accelerate launch recipes/qlora_7b.py seed=0
    accelerate launch --config_file accelerate_configs/ddp.yaml recipes/qlora_7b.py seed=0

final/ holds the adapter; eval/heldout.py loads it onto its base. The base really being 4-bit is checked and printed.
"""

from dataclasses import dataclass
from typing import Literal

from cad_train.config import TrainConfig
from decoding.commandline import run


@dataclass
class Config(TrainConfig):
    """The paper's QLoRA run."""

    model: str = "Qwen/Qwen2.5-Coder-7B-Instruct"  # hub name, local folder, or GGUF file
    adapter: Literal["full", "lora", "qlora"] = "qlora"  # train all weights, LoRA, or LoRA over NF4 weights


def main(config: Config) -> None:
    """Train one selector."""
    from cad_train.sft import train_selector  # torch, trl and bitsandbytes load only now, so that --help is instant
    from eval.while_training import HeldOutMatch

    train_selector(config, "qlora_7b", callbacks=[HeldOutMatch(config)])


if __name__ == "__main__":
    run(main, Config, description=__doc__)
