"""TRL's SFTTrainer on our ids and labels: arguments spelled out, loss on supervised positions only, a plain log."""

from __future__ import annotations

import ctypes
import importlib.util
import math
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from transformers import EarlyStoppingCallback, TrainerCallback
from transformers.trainer_callback import PrinterCallback
from transformers.utils import is_flash_attn_2_available
from trl import SFTConfig, SFTTrainer

from cad_train.batches import Collator, EpochOrder, with_blanks
from cad_train.config import TrainConfig
from cad_train.documents import attend_by_document, document_arguments
from cad_train.examples import UNSUPERVISED, Examples
from cad_train.loss import COUNTED, IGNORED, region_losses, summarise_regions
from cad_train.run_folder import RunFolder
from cad_train.tied import join_tied_gradients
from decoding.commandline import UserError
from decoding.encoder import REGIONS
from decoding.loading import cannot_load, checkpoint_fault

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class SelectorTrainer(SFTTrainer):
    """SFTTrainer that projects only supervised positions through the output head, and accounts for them by region.

    Prompts are long and programs short: at 150 thousand vocabulary entries the head over the prompt would cost more
    than a layer of the model, and the logits most of the memory.

    Args:
        weights: ``[regions]``, what a supervised token counts for.
        order: of the training examples.

    Attributes:
        by_document: whether the model attends by document where a row holds several (``cad_train.documents``).
    """

    loss_is_scaled_for_ga = True

    def __init__(self, *args, weights: torch.Tensor, order: EpochOrder, **kwargs) -> None:
        self.weights, self.order = weights, order
        self.account = torch.zeros(len(REGIONS), COUNTED)
        self.by_document = False
        super().__init__(*args, **kwargs)

    def _set_signature_columns_if_needed(self) -> None:
        self._signature_columns = ["input_ids", "regions"]

    def create_model_card(self, *args, **kwargs) -> None:
        """Write none: TRL's would name no base and no data; recipes/export.py fills one from the run."""

    def _get_train_sampler(self, train_dataset=None) -> EpochOrder:
        return self.order

    def _run_epoch(self, *args, epoch: int, **kwargs) -> None:
        """Train an epoch; the Trainer would train one step more after a checkpoint at which training was over."""
        if not self.control.should_training_stop:
            self.order.epoch = epoch
            super()._run_epoch(*args, epoch=epoch, **kwargs)

    def _get_num_items_in_batch(self, batch_samples, device):
        """Return the weight of the supervised tokens of an optimiser step, over all processes.

        The Trainer's own counts tokens; with weights of 1 the two are the same number. The loss over it is the weighted
        mean of the step, whatever the micro-batches, processes and accumulation.
        """
        total = sum(self._weight(batch["regions"][:, 1:]) for batch in batch_samples).to(device)
        return self.accelerator.gather(total).sum() if self.args.world_size > 1 else total

    def _weight(self, regions: torch.Tensor) -> torch.Tensor:
        supervised = regions[regions != UNSUPERVISED].long()
        return self.weights.to(supervised.device)[supervised].sum()

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """Weighted mean cross-entropy per supervised token of the whole optimiser step, over all processes."""
        targets, regions = inputs["labels"][:, 1:], inputs["regions"][:, 1:]
        supervised = targets != IGNORED
        predicts = torch.nn.functional.pad(supervised, (0, 1))  # a position predicts the next
        rows = {name: inputs[name] for name in ("input_ids", "attention_mask", "position_ids") if name in inputs}
        if self.by_document and "lengths" in inputs:
            rows |= document_arguments(inputs["lengths"], targets.device)
        head = getattr(model, "module", model).get_output_embeddings()  # what DDP or DeepSpeed wraps
        # logits_to_keep would take the same positions of every row of the micro-batch.
        with head.register_forward_pre_hook(lambda _, hidden: hidden[0][predicts]):
            outputs = model(**rows, use_cache=False)
        weights = self.weights.to(targets.device)
        loss, account = region_losses(outputs.logits, targets[supervised], regions[supervised], weights)
        self.account = self.account.to(account.device) + account
        if num_items_in_batch is None:
            num_items_in_batch = self._weight(regions)
        else:
            loss = loss * self.accelerator.num_processes  # gradients are averaged over processes, the weight is global
        loss = loss / num_items_in_batch.clamp(min=1e-9)  # a step whose tokens all weigh 0 has no loss
        return (loss, outputs) if return_outputs else loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add loss and accuracy by region since the last log, over all processes."""
        logs.update(summarise_regions(self._take_account()))
        super().log(logs, start_time)

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix: str = "eval") -> dict[str, float]:
        """Return held-out loss and accuracy by region, each over all tokens: not a mean of batch means.

        Callbacks get the dictionary, and what they add to it may choose the best checkpoint. Training does not notice:
        the random state and the account of the current step are as before.
        """
        training, self.account = self.account, torch.zeros_like(self.account)
        with torch.random.fork_rng(), torch.no_grad():
            evaluation_mode(self.model)
            for inputs in self.get_eval_dataloader(eval_dataset):
                with self.compute_loss_context_manager():
                    self.compute_loss(self.model_wrapped, self._prepare_inputs(inputs))
            metrics = {f"eval_{name}": value for name, value in summarise_regions(self._take_account()).items()}
            self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
            self.model.train()
        self.account = training
        return metrics

    def _take_account(self) -> torch.Tensor:
        """The account of all processes since it was last taken."""
        account, self.account = self.account, torch.zeros_like(self.account)
        return self.accelerator.reduce(account.to(self.accelerator.device), "sum")


def evaluation_mode(model: torch.nn.Module) -> None:
    """Put ``model`` in evaluation mode, such that training can go on after it."""
    model.eval()
    for module in model.modules():
        # On a CPU, bitsandbytes 0.50 repacks 4-bit weights in place for inference, and does not undo it for training.
        if type(module).__module__.startswith("bitsandbytes"):
            module.train()


class RunLog(TrainerCallback):
    """Writes metrics.jsonl, marks whole checkpoints and removes old ones, stops on a loss that is not finite.

    Args:
        run: the run folder.
        tokens_per_example: their mean, for tokens per second.
        checkpoints: how many of the newest to keep, beside the best.
    """

    def __init__(self, run: RunFolder, tokens_per_example: float, checkpoints: int) -> None:
        self.run, self.tokens_per_example, self.checkpoints = run, tokens_per_example, checkpoints
        self.started, self.first_step = time.perf_counter(), 0

    def on_train_begin(self, args, state, control, **kwargs):
        """Start the clock of this process; a resumed run starts at its checkpoint's step, which may be the last."""
        self.started, self.first_step = time.perf_counter(), state.global_step
        control.should_training_stop |= state.global_step >= state.max_steps
        if state.best_global_step:  # the run folder may have been moved
            best = self.run.path / f"checkpoint-{state.best_global_step}"
            state.best_model_checkpoint = str(best)
            if fault := checkpoint_fault(best):
                raise UserError(f"{best} is the best so far, and {fault}: put it back, or start anew with resume=none")

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
        } | {key: value for key, value in logs.items() if key.startswith(("nll", "accuracy"))}
        self.run.append_metrics(row)
        if not math.isfinite(row["loss"]):
            raise UserError(f"the loss is {row['loss']} at step {row['step']}: lower lr, or use precision=fp32")
        if state.is_world_process_zero:
            left = seconds / done * (state.max_steps - state.global_step)
            regions = "  ".join(f"{name} {row[key]:.2f}" for name, key in _SHOWN.items() if key in row)
            print(
                f"step {row['step']:>4}/{state.max_steps}  loss {row['loss']:.4f}  {regions}  lr {row['lr']:.2e}  "
                f"grad {row['grad_norm'] or 0:.2f}  {row['tokens_per_s']:.0f} tok/s  {_clock(left)} left",
                flush=True,
            )

    def on_evaluate(self, args, state, control, metrics: dict[str, float], **kwargs):
        """Record and print one evaluation."""
        self.run.append_metrics({"step": state.global_step, "epoch": round(state.epoch or 0.0, 4), **metrics})
        if not math.isfinite(metrics["eval_nll"]):
            raise UserError(f"the held-out loss is {metrics['eval_nll']} at step {state.global_step}")
        if state.is_world_process_zero:
            matched = f"  EM {metrics['eval_exact_match']:.1%}" if "eval_exact_match" in metrics else ""
            regions = "  ".join(
                f"{name} {metrics[f'eval_{key}']:.2f}" for name, key in _SHOWN.items() if f"eval_{key}" in metrics
            )
            print(
                f"held out at step {state.global_step}: loss {metrics['eval_nll']:.4f}  {regions}{matched}", flush=True
            )

    def on_save(self, args, state, control, **kwargs):
        """Mark the checkpoint that has just been written as whole; only then may older ones go."""
        if args.world_size > 1:
            torch.distributed.barrier()  # each process writes a part
        self.run.mark_checkpoint(state.global_step)
        self.run.keep_checkpoints(self.checkpoints, state.best_model_checkpoint)

    def on_train_end(self, args, state, control, **kwargs):
        """Remove what a run that died may have left."""
        self.run.keep_checkpoints(self.checkpoints, state.best_model_checkpoint)


_SHOWN = {"starts": "nll_start_digits", "ends": "nll_end_digits", "text": "nll_gen_text"}


class Patience(EarlyStoppingCallback):
    """Stops after so many evaluations without a better exact match; checkpoints keep the count."""

    def on_train_begin(self, args, state, control, **kwargs):
        """Stop where the run had stopped at the checkpoint that this one goes on from."""
        super().on_train_begin(args, state, control, **kwargs)
        control.should_training_stop |= self.early_stopping_patience_counter >= self.early_stopping_patience


_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class StopOnSignal(TrainerCallback):
    """On SIGTERM, as schedulers send before they kill: finishes the step, saves a checkpoint, and stops.

    A launcher of one process dies of the signal without passing it on; its death is then the signal here.

    Attributes:
        stopped: whether training was stopped and saved; after the last step a signal changes nothing.
    """

    def __init__(self) -> None:
        self.received = self.stopped = False
        self._before: Any = None

    def on_train_begin(self, args, state, control, **kwargs):
        """Listen from now on."""
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, lambda *_: setattr(self, "received", True))
            if sys.platform == "linux" and "ACCELERATE_MIXED_PRECISION" in os.environ:  # under accelerate launch
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

    def on_step_end(self, args, state, control, **kwargs):
        """Save and stop if any process was told to; they agree after every step."""
        if args.world_size > 1:
            told = torch.tensor([float(self.received)], device=args.device)
            torch.distributed.all_reduce(told, torch.distributed.ReduceOp.MAX)
            self.received = bool(told.item())
        if self.received:
            self.stopped = control.should_save = control.should_training_stop = True
        return control

    def on_train_end(self, args, state, control, **kwargs):
        """Leave the signal to whoever had it."""
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)


def build_trainer(
    config: TrainConfig,
    model: str,
    tokenizer: PreTrainedTokenizerBase,
    examples: Examples,
    held_out: Examples | None,
    run: RunFolder,
    callbacks=(),
) -> SelectorTrainer:
    """Return the trainer of a run; ``model`` is a hub name or folder, which TRL loads after seeding.

    Without ``evaluation.every``, two batches of ``held_out`` are evaluated before the first step, so that a mistake
    there shows at once; with it, all of them then and every so many steps.

    Raises:
        UserError: a batch that the processes cannot share, a precision that the launcher contradicts, a model that
            cannot be read, or one that cannot do without padding.
    """
    arguments = sft_arguments(config, run)
    together = config.micro_batch * arguments.world_size
    evaluated = held_out.dataset if held_out is not None and len(held_out) else None
    if evaluated is None and config.evaluation.every:
        raise UserError("evaluation.every needs held-out edits, and there are none: raise data.heldout")
    if evaluated is not None and not config.evaluation.every:
        evaluated = evaluated.select(range(min(len(evaluated), 2 * config.batch_size)))
    arguments.eval_on_start = evaluated is not None
    weights = torch.tensor([getattr(config.loss.weights, region) for region in REGIONS])
    stopping = [Patience(config.evaluation.patience)] if config.evaluation.patience else []
    lengths = [len(input_ids) for input_ids in examples.dataset["input_ids"]]
    blanks = -len(examples) % together
    group = config.batch_size if config.group_by_length else 0
    try:
        trainer = SelectorTrainer(
            model=model,
            args=arguments,
            weights=weights,
            order=EpochOrder(lengths, blanks, group, config.seed),
            data_collator=Collator(_pad(tokenizer), config.padding_free),
            train_dataset=with_blanks(examples.dataset, together),
            eval_dataset=evaluated and with_blanks(evaluated, together),
            processing_class=tokenizer,
            quantization_config=_quantization(config),
            peft_config=_adapter(config),
            callbacks=[*callbacks, RunLog(run, sum(lengths) / len(lengths), config.keep_checkpoints), *stopping],
        )
    except (OSError, SafetensorError) as error:  # of the model's files: it reads no others
        raise UserError(cannot_load("model", config.model, error)) from None
    trainer.remove_callback(PrinterCallback)
    if config.padding_free and trainer.model._is_stateful:
        raise UserError(
            f"padding_free=true, but {config.model} has recurrent layers, which would read across examples: use false"
        )
    if config.padding_free:
        trainer.by_document = attend_by_document(trainer.model)
    if sharding() is None:
        join_tied_gradients(trainer.model)
    if config.adapter != "full":
        trainer.model.create_or_update_model_card = lambda folder: None  # PEFT's, with nothing filled in but the base
    if config.adapter == "qlora":
        _check_quantised(trainer.model)
        # TRL casts the adapters to bfloat16, where steps of 2e-5 round to nothing, and a resume would not.
        for parameter in trainer.model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.float()
    return trainer


def _pad(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return an id to pad with; masked out of attention and loss, so that any will do."""
    return tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id


def sft_arguments(config: TrainConfig, run: RunFolder) -> SFTConfig:
    """Return TRL's arguments with nothing that matters left to a default."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    per_step = config.micro_batch * world
    if config.batch_size % per_step:
        raise UserError(
            f"batch_size={config.batch_size} is not a multiple of micro_batch={config.micro_batch} x {world} processes"
        )
    on_cpu = not torch.cuda.is_available()
    if config.attention == "flash_attention_2" and not is_flash_attn_2_available():
        raise UserError("attention=flash_attention_2 needs a GPU and the package flash-attn: install it, or use sdpa")
    if sharding() == "FSDP" and os.environ.get("FSDP_ACTIVATION_CHECKPOINTING") == "true":
        raise UserError(
            "fsdp_activation_checkpointing=true draws dropout anew when it recomputes, and saves adapters empty: set "
            "it to false in the launcher's configuration; activation_checkpointing=true does it here"
        )
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
        optim=_optimizer(config),
        learning_rate=config.lr,
        adam_beta1=config.beta1,
        adam_beta2=config.beta2,
        weight_decay=config.weight_decay,
        lr_scheduler_type="cosine",
        warmup_steps=config.warmup,  # below 1: a share
        max_grad_norm=config.max_grad_norm,
        num_train_epochs=config.epochs,
        max_steps=config.max_steps or -1,
        per_device_train_batch_size=config.micro_batch,
        gradient_accumulation_steps=config.batch_size // per_step,
        per_device_eval_batch_size=config.micro_batch,
        average_tokens_across_devices=True,
        seed=config.seed,
        data_seed=config.seed,
        # Run
        save_strategy=config.save,
        save_steps=config.save_steps,
        save_total_limit=None,  # it would remove a checkpoint before its successor is marked as whole
        restore_callback_states_from_checkpoint=True,
        logging_steps=config.log_steps,
        logging_first_step=True,
        logging_nan_inf_filter=False,
        include_num_input_tokens_seen="no",
        eval_strategy="steps" if config.evaluation.every else "no",
        eval_steps=config.evaluation.every,
        load_best_model_at_end=config.evaluation.every is not None and config.save != "no",
        metric_for_best_model="eval_exact_match" if config.evaluation.every else None,
        greater_is_better=True if config.evaluation.every else None,
        disable_tqdm=not sys.stderr.isatty(),
        report_to=config.report_to or "none",
        push_to_hub=False,
    )


def sharding() -> str | None:
    """Return how the launcher spreads training state over processes, None where each has all of it."""
    if os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
        return f"DeepSpeed ZeRO-{os.environ.get('ACCELERATE_DEEPSPEED_ZERO_STAGE', '?')}"
    return "FSDP" if os.environ.get("ACCELERATE_USE_FSDP") == "true" else None


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
    # Without tile instructions a CPU gains little (1.1 to 1.4 times the tokens/s with AVX512-BF16), and small updates
    # would be lost to the rounding of weights.
    return torch.cpu._is_amx_tile_supported() if on_cpu else torch.cuda.is_bf16_supported()


_OPTIMIZERS = {"paged_adamw": "paged_adamw_32bit", "adamw": "adamw_torch_fused"}


def _optimizer(config: TrainConfig) -> str:
    if config.optimizer != "adamw" and importlib.util.find_spec("bitsandbytes") is None:
        raise UserError(f"optimizer={config.optimizer} needs bitsandbytes: pip install 'cad-train[qlora]'")
    return _OPTIMIZERS.get(config.optimizer, config.optimizer)


def _adapter(config: TrainConfig):
    if config.adapter == "full":
        return None
    from peft import LoraConfig

    return LoraConfig(
        r=config.lora_r,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        use_dora=config.dora,
        use_rslora=config.rslora,
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
    weights = sum(layer.in_features * layer.out_features for layer in layers)
    stored = sum(layer.weight.nbytes for layer in layers)
    if not layers or 2 * stored > weights + len(layers) or {layer.weight.quant_type for layer in layers} != {"nf4"}:
        raise UserError(f"adapter=qlora, but {len(layers)} layers hold {weights} weights in {stored} bytes, not as NF4")
    if int(os.environ.get("RANK", "0")) == 0:
        print(
            f"{len(layers)} layers hold their weights in 4-bit NF4: {weights} in {stored} bytes, "
            f"{stored / weights:.2f} each",
            flush=True,
        )


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes}:{seconds:02d}"
