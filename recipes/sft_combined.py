"""Full-parameter SFT of a span selector on the combined set: the paper's main configuration (section 5, Appendix O).

Qwen2.5-Coder-1.5B-Instruct on 385 oracle programs: 131 HEvalFix-Py, 131 HEvalFix-JS and 123 ProbeEdit; 6 epochs of
AdamW at 2e-5 with an effective batch of 8.

    accelerate launch recipes/sft_combined.py seed=0
    accelerate launch --config_file accelerate_configs/ddp.yaml recipes/sft_combined.py seed=0     # every GPU
    accelerate launch recipes/sft_combined.py recipes/configs/quickstart.yaml                      # 135M, two CPU cores
    for s in 0 1 2; do accelerate launch recipes/sft_combined.py seed=$s; done                     # the paper's seeds

Features, and the keys that drive them (`--help` lists all, `--print-config` the resolved settings):
    data                  data.corpora=[...], built first where not yet there; data.data_dir or CAD_DATA_DIR for offline
    what is trained       splice=none|full, style=numbered|plain; prompt and spliced text carry no loss
    base model            model=HUB_NAME|FOLDER|FILE.gguf
    all weights or LoRA   adapter=full|lora|qlora
    memory                activation_checkpointing=true; dtype=bfloat16 stores weights and optimiser state in 16 bits
    precision             precision=auto|bf16|fp32; auto computes in bf16 on GPUs and on CPUs with AMX
    resume                on by default: the same command goes on from the newest whole checkpoint of out=

Memory: weights, gradients and AdamW state take 16 bytes a parameter in float32 (24 GB at 1.5B), 8 in bfloat16 (12 GB).
Stops, with one line and exit code 2, on: over-long or untrainable examples (allow_drop=[overlong] leaves them out), a
run folder or oracles of other settings, a batch the processes cannot share, a launcher that contradicts precision=fp32.
"""

from dataclasses import dataclass

from cad_train.config import TrainConfig
from decoding.commandline import run


@dataclass
class Config(TrainConfig):
    """The paper's combined run: what TrainConfig and OracleConfig already default to."""


def main(config: Config) -> None:
    """Train one selector."""
    from cad_train.sft import train_selector  # torch and trl load only now, so that --help is instant
    from eval.while_training import HeldOutMatch

    train_selector(config, "sft_combined", callbacks=[HeldOutMatch(config)])


if __name__ == "__main__":
    run(main, Config, description=__doc__)
