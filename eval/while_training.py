"""Held-out exact match and endpoint accuracy while training: a callback that decodes with the real decoder."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import TrainerCallback

from cad_train.config import TrainConfig
from cad_train.trainer import evaluation_mode
from data_prep.prepared import OracleRow, read_split
from decoding.commandline import UserError
from decoding.decoder import EditRequest, SpliceDecoder
from decoding.encoder import ProgramEncoder
from eval.scoring import score_edit


class HeldOutMatch(TrainerCallback):
    """Adds eval_exact_match, eval_start_accuracy and eval_end_accuracy to every evaluation of a run.

    Decodes ``evaluation.cases`` held-out edits under the grammar, greedily, with the run's own prompt style and splice
    setting; processes share them. Does nothing without ``evaluation.every``.
    """

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self._rows: list[OracleRow] | None = None
        self._encoder: ProgramEncoder | None = None

    def on_train_begin(self, args, state, control, **kwargs):
        """Refuse weights that are spread over processes: no process has a model to decode with."""
        if self.config.evaluation.every and _sharded(args):
            raise UserError(
                "evaluation.every cannot decode with weights that ZeRO-3 or FSDP spreads over processes: leave it out, "
                "and score checkpoints with eval/heldout.py"
            )

    def on_evaluate(self, args, state, control, metrics: dict[str, float], model=None, processing_class=None, **kwargs):
        """Decode, and add to ``metrics``, which also chooses the best checkpoint."""
        if not self.config.evaluation.every:
            return
        if self._rows is None:
            self._rows = held_out_sample(self.config)[args.process_index :: args.world_size]
            self._encoder = ProgramEncoder(processing_class)
        with torch.autocast(args.device.type, torch.bfloat16, enabled=args.bf16):
            scores = score_rows(model, self._encoder, self._rows, self.config)
        totals = torch.tensor(scores, dtype=torch.float64, device=args.device)
        if args.world_size > 1:
            torch.distributed.all_reduce(totals)
        cases, exact, copies, starts, ends = totals.tolist()
        metrics["eval_cases"] = int(cases)
        metrics["eval_exact_match"] = exact / cases
        if copies:
            metrics["eval_start_accuracy"], metrics["eval_end_accuracy"] = starts / copies, ends / copies


def held_out_sample(config: TrainConfig) -> list[OracleRow]:
    """Return ``evaluation.cases`` held-out edits, taken from the corpora in turn."""
    folder = Path(config.data.out)
    queues = [read_split(folder, [name], "heldout") for name in config.data.corpora]
    longest = max(map(len, queues), default=0)
    rows = [queue[at] for at in range(longest) for queue in queues if at < len(queue)]
    return rows[: config.evaluation.cases]


def score_rows(
    model: torch.nn.Module, encoder: ProgramEncoder, rows: list[OracleRow], config: TrainConfig
) -> tuple[int, int, int, int, int]:
    """Return cases, exact matches, oracle copies, right starts and right ends of a model's edits of ``rows``."""
    if not rows:
        return 0, 0, 0, 0, 0
    was_training = model.training
    evaluation_mode(model)
    decoder = SpliceDecoder(
        model.get_base_model() if hasattr(model, "peft_config") else model,  # in which the adapters are
        encoder.tokenizer,
        encoder=encoder,
        splice=config.splice,
        style=config.style,
        max_tokens=config.evaluation.max_tokens,
        backend="packed",  # graphs would hold the memory that training needs
    )
    edits = decoder.decode([EditRequest(row.instruction, row.before) for row in rows])
    model.train(was_training)
    scores = [score_edit(edit.text, edit.program, edit.complete, row) for edit, row in zip(edits, rows, strict=True)]
    return (
        len(rows),
        sum(score["exact"] for score in scores),
        sum(score["copies_oracle"] for score in scores),
        sum(score["copies_starts"] for score in scores),
        sum(score["copies_ends"] for score in scores),
    )


def _sharded(args) -> bool:
    plugin = getattr(args, "deepspeed_plugin", None)
    return bool(args.fsdp) or (plugin is not None and plugin.zero_stage == 3)
