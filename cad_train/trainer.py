"""TRL's SFTTrainer on our ids and labels: arguments spelled out, loss on supervised positions only, a plain log."""

from __future__ import annotations

import math
import os
import sys
import time
from typing import TYPE_CHECKING, Any

import torch
from datasets import Dataset
from transformers import TrainerCallback
from transformers.trainer_callback import PrinterCallback
from trl import SFTConfig, SFTTrainer

from cad_train.config import TrainConfig
from cad_train.examples import IGNORED, Examples
from cad_train.run_folder import RunFolder
from decoding.commandline import UserError
from decoding.loading import COMPLETED

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class SelectorTrainer(SFTTrainer):
    """SFTTrainer that projects only supervised positions through the output head.

    Prompts are long and programs short: at 150 thousand vocabulary entries the head over the prompt would cost more
    than a layer of the model, and the logits most of the memory.
    """

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """Mean cross-entropy per supervised token of the whole optimiser step, over all processes."""
        targets = inputs["labels"][:, 1:]
        # A position counts if any row of the micro-batch is supervised there.
        keep = (targets != IGNORED).any(dim=0).nonzero().squeeze(1)
        outputs = model(
            input_ids=inputs["input_ids"],
            attention_mask=inputs.get("attention_mask"),
            use_cache=False,
            logits_to_keep=keep,
        )
        targets = targets[:, keep]
        loss = torch.nn.functional.cross_entropy(
            outputs.logits.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum"
        )
        if num_items_in_batch is None:
            num_items_in_batch = (targets != IGNORED).sum()
        elif self.args.average_tokens_across_devices:
            loss = loss * self.accelerator.num_processes  # gradients are averaged over processes, the count is global
        loss = loss / num_items_in_batch
        return (loss, outputs) if return_outputs else loss


class RunLog(TrainerCallback):
    """Writes metrics.jsonl, marks whole checkpoints, stops on a loss that is not finite, and prints a line a step."""

    def __init__(self, run: RunFolder, examples: Examples) -> None:
        self.run = run
        self.tokens_per_example = examples.tokens / len(examples)
        self.started, self.first_step = time.perf_counter(), 0

    def on_train_begin(self, args, state, control, **kwargs):
        """Start the clock of this process; a resumed run starts at its checkpoint's step."""
        self.started, self.first_step = time.perf_counter(), state.global_step

    def on_log(self, args, state, control, logs: dict[str, Any] | None = None, **kwargs):
        """Record and print one step."""
        if not logs or "loss" not in logs:
            return
        seconds = time.perf_counter() - self.started
        done = state.global_step - self.first_step
        examples = done * args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        row = {
            "step": state.global_step,
            "epoch": round(state.epoch or 0.0, 4),
            "loss": logs["loss"],
            "grad_norm": logs.get("grad_norm"),
            "lr": logs.get("learning_rate"),
            "tokens_per_s": round(examples * self.tokens_per_example / seconds, 1),
            "seconds": round(seconds, 2),
        }
        self.run.append_metrics(row)
        if not math.isfinite(row["loss"]):
            raise UserError(f"the loss is {row['loss']} at step {row['step']}: lower lr, or use precision=fp32")
        if state.is_world_process_zero:
            left = seconds / done * (state.max_steps - state.global_step)
            print(
                f"step {row['step']:>4}/{state.max_steps}  loss {row['loss']:.4f}  lr {row['lr']:.2e}  "
                f"grad {row['grad_norm'] or 0:.2f}  {row['tokens_per_s']:.0f} tok/s  {_clock(left)} left",
                flush=True,
            )

    def on_save(self, args, state, control, **kwargs):
        """Mark the checkpoint that has just been written as whole."""
        if state.is_world_process_zero:
            (self.run.path / f"checkpoint-{state.global_step}" / COMPLETED).touch()


def build_trainer(
    config: TrainConfig,
    model: str,
    tokenizer: PreTrainedTokenizerBase,
    examples: Examples,
    run: RunFolder,
    callbacks=(),
) -> SelectorTrainer:
    """Return the trainer of a run; ``model`` is a hub name or folder, which TRL loads after seeding.

    Raises:
        UserError: a batch that the processes cannot share, or a precision that the launcher contradicts.
    """
    arguments = sft_arguments(config, run)
    trainer = SelectorTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_dict(examples.columns),
        processing_class=tokenizer,
        quantization_config=_quantization(config),
        peft_config=_adapter(config),
        callbacks=[RunLog(run, examples), *callbacks],
    )
    trainer.remove_callback(PrinterCallback)
    if config.adapter == "qlora":
        _check_quantised(trainer.model)
    return trainer


def sft_arguments(config: TrainConfig, run: RunFolder) -> SFTConfig:
    """Return TRL's arguments with nothing that matters left to a default."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    per_step = config.micro_batch * world
    if config.batch_size % per_step:
        raise UserError(
            f"batch_size={config.batch_size} is not a multiple of micro_batch={config.micro_batch} x {world} processes"
        )
    on_cpu = not torch.cuda.is_available()
    if world == 1 and torch.cuda.device_count() > 1:
        raise UserError(
            f"{torch.cuda.device_count()} GPUs are visible and one process runs: start with accelerate launch "
            "--config_file accelerate_configs/ddp.yaml, or set CUDA_VISIBLE_DEVICES to one"
        )
    return SFTConfig(
        output_dir=str(run.path),
        run_name=run.path.name,
        # Data: encoded already; length is checked, never cut.
        dataset_kwargs={"skip_prepare_dataset": True},
        max_length=None,
        packing=False,
        eval_packing=False,
        shuffle_dataset=False,
        dataloader_num_workers=0,
        # Model
        model_init_kwargs={
            "dtype": getattr(torch, config.dtype),
            "attn_implementation": config.attention,
            "trust_remote_code": False,
        },
        use_cpu=on_cpu,
        bf16=computes_in_bf16(config, on_cpu),
        activation_checkpointing=config.activation_checkpointing,
        activation_checkpointing_kwargs={"use_reentrant": config.adapter != "full"},
        ddp_find_unused_parameters=False,
        # Optimisation
        optim="adamw_torch",
        learning_rate=config.lr,
        adam_beta1=config.beta1,
        adam_beta2=config.beta2,
        weight_decay=config.weight_decay,
        lr_scheduler_type="cosine",
        warmup_steps=config.warmup,
        max_grad_norm=config.max_grad_norm,
        num_train_epochs=config.epochs,
        max_steps=config.max_steps or -1,
        per_device_train_batch_size=config.micro_batch,
        gradient_accumulation_steps=config.batch_size // per_step,
        train_sampling_strategy="group_by_length" if config.group_by_length else "random",
        average_tokens_across_devices=True,
        seed=config.seed,
        data_seed=config.seed,
        # Run
        save_strategy=config.save,
        save_steps=config.save_steps,
        save_total_limit=config.keep_checkpoints,
        logging_steps=config.log_steps,
        logging_first_step=True,
        logging_nan_inf_filter=False,
        include_num_input_tokens_seen="no",
        eval_strategy="no",
        disable_tqdm=not sys.stderr.isatty(),
        report_to=config.report_to or "none",
        push_to_hub=False,
    )


def computes_in_bf16(config: TrainConfig, on_cpu: bool) -> bool:
    """Whether to compute in bfloat16: as asked, or where the device has the instructions.

    Raises:
        UserError: ``precision=fp32`` under a launcher that sets bf16, which would win without a word.
    """
    launcher = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if config.precision == "fp32":
        if launcher != "no":
            raise UserError(f"precision=fp32, but the launcher sets mixed_precision={launcher}: change one of the two")
        return False
    if config.precision == "bf16" or launcher == "bf16":
        return True
    if launcher != "no":
        raise UserError(f"the launcher sets mixed_precision={launcher}: only bf16 and no are supported")
    # Without tile instructions a CPU is slower in bf16: 0.6 times the tokens/s of fp32 on a machine with AVX512-BF16.
    return torch.cpu._is_amx_tile_supported() if on_cpu else torch.cuda.is_bf16_supported()


def _adapter(config: TrainConfig):
    if config.adapter == "full":
        return None
    from peft import LoraConfig

    return LoraConfig(
        r=config.lora_r,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )


def _quantization(config: TrainConfig):
    if config.adapter != "qlora":
        return None
    try:
        import bitsandbytes  # noqa: F401 - transformers would fail later and less clearly
    except ImportError:
        raise UserError("adapter=qlora needs bitsandbytes: pip install 'cad-train[qlora]'") from None
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )


def _check_quantised(model) -> None:
    """A QLoRA run whose base is not in 4 bits would only be found by its memory: look, and say how much is."""
    from bitsandbytes.nn import Linear4bit

    layers = [module for module in model.modules() if isinstance(module, Linear4bit)]
    if not layers:
        raise UserError("adapter=qlora, but no layer of the model was quantised")
    print(f"{len(layers)} layers hold their weights in 4-bit NF4", flush=True)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes}:{seconds:02d}"
