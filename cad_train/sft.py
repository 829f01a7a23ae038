"""One supervised fine-tuning run of a span selector, from settings to a finished run folder."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from cad_train.config import NOT_RESUMED, TrainConfig, check_trackers
from cad_train.examples import (
    check_refused,
    check_supervised,
    encode_rows,
    prepare_oracles,
    show_example,
    tokenizer_fingerprint,
)
from cad_train.run_folder import RunFolder, open_run
from cad_train.trainer import StopOnSignal, build_trainer, sharding
from data_prep.prepared import read_split
from decoding.commandline import UserError
from decoding.encoder import ProgramEncoder
from decoding.loading import base_identity, checkpoint_step, load_encoder, local_name


def train_selector(config: TrainConfig, recipe: str, callbacks=()) -> Path:
    """Train and return the run folder (see ``cad_train.run_folder`` for what is in it).

    A finished run is left as it is; an interrupted one goes on from its newest whole checkpoint (``resume=auto``).

    Args:
        recipe: names the default run folder, ``runs/RECIPE-seedSEED``.
        callbacks: transformers callbacks, such as an evaluation in the loop.

    Raises:
        UserError: settings, data, model or run folder that cannot be used, and what to do.
    """
    check_trackers(config.report_to)
    state = PartialState(cpu=not torch.cuda.is_available())
    config.out = config.out or f"runs/{recipe}-seed{config.seed}"
    run = RunFolder(Path(config.out), state.is_main_process)
    _on_main_process(run.take)  # before the work of preparing data
    try:
        _train(config, recipe, callbacks, state, run)
    finally:
        run.release()
    return run.path


def _on_main_process(make: Callable[[], Any]) -> Any:
    """Call ``make`` on the main process alone; return on every process what it returns, and raise its UserError."""
    found = [None, None]
    if PartialState().is_main_process:
        try:
            found[0] = make()
        except UserError as error:
            found[1] = str(error)
    value, fault = broadcast_object_list(found)
    if fault is not None:
        raise UserError(fault)
    return value


def _train(config: TrainConfig, recipe: str, callbacks, state: PartialState, run: RunFolder) -> None:
    say = print if state.is_main_process else lambda *_, **__: None
    finished = (run.path / "summary.json").exists()
    if finished and config.resume == "none":
        raise UserError(f"{run.path} is finished: to train anew, remove it or choose another out=")

    # 1. Data: prepared once, encoded with the model's own tokenizer, refusals counted.
    manifest = prepare_oracles(config.data, announce=say)
    with state.main_process_first():  # a GGUF file is converted once
        folder = local_name(config.model)
    encoder = load_encoder(config.model)
    oracles = Path(config.data.out)
    rows, held_out_rows = (read_split(oracles, config.data.corpora, split) for split in ("train", "heldout"))
    with state.main_process_first():  # encoded once, read from there by the others
        examples, held_out = (
            encode_rows(encoder, part, config.style, config.splice, config.max_length, oracles / "encoded")
            for part in (rows, held_out_rows)
        )
    check_refused(examples, config.allow_drop, config.max_length)
    check_supervised(examples, rows, encoder)
    if held_out.refused:
        say(f"held-out loss leaves out {len(held_out.refused)} of {len(held_out_rows)} examples: too long, or not text")

    # 2. Run folder: new, or the same run again.
    data = {
        "fingerprint": manifest["fingerprint"],
        "tokenizer": tokenizer_fingerprint(encoder),
        "base": _on_main_process(lambda: base_identity(config.model)),
        "oracles": str(Path(config.data.out).resolve()),
        "corpora": {name: manifest["corpora"][name] for name in config.data.corpora},
        **examples.report(),
    }
    sharded = sharding()
    launch = {"sharding": sharded, **({"processes": state.num_processes} if sharded else {})}
    _on_main_process(lambda: open_run(run, config, data, launch, NOT_RESUMED))
    if finished:
        say(f"{run.path} is finished: nothing to do")
        return
    checkpoint = _on_main_process(lambda: run.open_checkpoint(resume=config.resume == "auto"))
    run.truncate_metrics(checkpoint_step(checkpoint) if checkpoint else None)
    _announce(say, config, run, data, examples, encoder)
    if checkpoint:
        say(f"going on from {checkpoint}")

    # 3. Train, save, and only then call the run finished.
    stop = StopOnSignal()
    trainer = build_trainer(config, folder, encoder.tokenizer, examples, held_out, run, [*callbacks, stop])
    if config.adapter != "full":
        trained, total = trainer.model.get_nb_trainable_parameters()
        say(f"trained: {trained:,} of {total:,} parameters ({trained / total:.2%})")
    if checkpoint:  # it has been looked at
        trainer.args.eval_on_start = False
    started = time.perf_counter()
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if stop.stopped:
        say(
            f"stopped by SIGTERM after step {trainer.state.global_step}, which is saved: the same command goes on from "
            "it"
        )
        raise SystemExit(128 + signal.SIGTERM)
    outcome = trainer.state
    best = outcome.best_global_step if trainer.args.load_best_model_at_end else None
    patience = config.evaluation.patience
    stopped_early = bool(patience) and outcome.global_step < outcome.max_steps
    if stopped_early:
        evaluations = f"{patience} evaluation" + "s" * (patience != 1)
        say(f"stopped after step {outcome.global_step}: no better exact match in {evaluations}")
    if best:
        say(f"final is checkpoint-{best}, which has the best exact match (EM {outcome.best_metric:.1%})")
    trainer.save_model(str(run.unfinished))
    state.wait_for_everyone()
    run.publish_final()
    run.write_json(
        "summary.json",
        {
            "recipe": recipe,
            "steps": outcome.global_step,
            "best_step": best,  # of final, where it is not that of the last step
            "best_exact_match": outcome.best_metric if best else None,
            "stopped_early": stopped_early,
            "train_loss": run.mean_loss(),
            "seconds": round(time.perf_counter() - started, 1),  # of this process
            "resumed_from": checkpoint.name if checkpoint else None,
        },
    )
    say(f"trained {run.final}; score it with: python eval/heldout.py --ckpt {run.path}")
    trainer.end()


def _announce(say, config: TrainConfig, run: RunFolder, data: dict, examples, encoder: ProgramEncoder) -> None:
    say(f"run {run.path}: {config.model}, {config.adapter} parameters, splice={config.splice}, style={config.style}")
    lengths = data["lengths"]
    say(
        f"data {config.data.out} ({data['fingerprint'][:12]}): {data['examples']} examples of {lengths['min']} to "
        f"{lengths['max']} tokens (median {lengths['p50']}, 95 % up to {lengths['p95']}), {data['tokens']} in all; "
        f"none cut, {data['fully_masked']} without a supervised token, {data['missing_end']} without an end"
    )
    regions = ", ".join(f"{count} {name}" for name, count in data["supervised_by_region"].items())
    say(f"supervised: {data['supervised_tokens']} tokens, {data['supervised_share']:.1%} ({regions})")
    if data["refused"]:
        say("left out: " + ", ".join(f"{count} {reason}" for reason, count in data["refused"].items()))
    say("the first example (what is trained is marked):")
    shown = show_example(encoder, *examples.dataset[0].values(), color=sys.stdout.isatty())
    say("  " + shown.replace("\n", "\n  "), flush=True)
