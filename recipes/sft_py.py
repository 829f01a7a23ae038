"""Full-parameter SFT of a span selector on HEvalFix-Py alone, the paper's smaller set (section 5, Appendix O).

Qwen2.5-Coder-1.5B-Instruct on 131 oracle programs, 8 epochs; otherwise as recipes/sft_combined.py, whose text describes
the features and the keys that drive them.

    accelerate launch recipes/sft_py.py seed=0
    accelerate launch recipes/sft_py.py seed=0 data.data_dir=FOLDER     # with FOLDER/humanevalpack/python.jsonl
"""

from dataclasses import dataclass, field

from cad_train.config import TrainConfig
from data_prep.build import OracleConfig
from decoding.commandline import run


@dataclass
class Config(TrainConfig):
    """The paper's Py-only run."""

    data: OracleConfig = field(  # 131 HEvalFix-Py programs
        default_factory=lambda: OracleConfig(corpora=["hevalfix-py"], out="data/oracles-py")
    )
    epochs: float = 8.0  # passes over the training set


def main(config: Config) -> None:
    """Train one selector."""
    from cad_train.sft import train_selector  # torch and trl load only now, so that --help is instant
    from eval.while_training import HeldOutMatch

    train_selector(config, "sft_py", callbacks=[HeldOutMatch(config)])


if __name__ == "__main__":
    run(main, Config, description=__doc__)
