"""Resume: killed at any moment, a run goes on to the weights it would have had; what differs is refused by name."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import safetensors.torch
import torch
from small_models import save_model
from training_runs import ROOT, await_text, finish, metrics, recipe_line, run, send, start, weight_bytes

from cad_train.run_folder import RunFolder
from decoding.loading import COMPLETED, checkpoint_step, newest_checkpoint

EVERY_STEP = ["max_steps=2", "save=steps", "save_steps=1"]
OF_THE_CLOCK = ("seconds", "tokens_per_s")


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"), "qwen2", tied=True)


@pytest.fixture
def line(tmp_path: Path, model_folder: Path):
    """Return the command line of a run in the folder ``name`` with some settings."""

    def line(name: str, *settings: str) -> list[str]:
        return recipe_line(model_folder, tmp_path / "oracles", tmp_path / name, *settings)

    return line


def log_of(folder: Path) -> list[dict]:
    """All rows of metrics.jsonl, without what the clock says."""
    return [{key: row[key] for key in row if key not in OF_THE_CLOCK} for row in metrics(folder, of="step")]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# Every write


def photograph(folder: Path, copies: Path) -> None:
    """From now on, copy ``folder`` before each of this process's writes, and with the file of the write half-written.

    What a kill leaves is what is on disk at that moment, so that the copies are what is left of a run that dies there.
    """
    copying = False

    def copy(cut: Path | None = None) -> None:
        nonlocal copying
        copying = True
        target = copies / f"{len(list(copies.iterdir())):03}"
        shutil.copytree(folder, target) if folder.exists() else target.mkdir()
        if cut is not None:
            half = target / cut.relative_to(folder)
            half.parent.mkdir(parents=True, exist_ok=True)
            half.write_bytes(half.read_bytes()[: half.stat().st_size // 2] if half.exists() else b"")
        copying = False

    def inside(path, directory: int = -1) -> Path | None:
        if copying or not isinstance(path, (str, os.PathLike)):
            return None
        path = Path(f"/proc/self/fd/{directory}").readlink() / path if directory != -1 else Path(path)
        return path if path.is_relative_to(folder) else None

    def before(event: str, arguments: tuple) -> None:
        if event == "open":
            path, mode, flags = arguments
            if flags & (os.O_WRONLY | os.O_RDWR) and (path := inside(path)):
                copy()
                if not flags & os.O_APPEND:
                    copy(cut=path)
        elif event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir"):
            directory = arguments[1] if event in ("os.remove", "os.rmdir") else -1
            if inside(arguments[0], directory):
                copy()

    def halving(write, position: int):
        def photographed(*arguments, **options):
            path = inside(arguments[position])
            if path:
                copy()
            result = write(*arguments, **options)
            if path:
                copy(cut=path)
            return result

        return photographed

    # Written in C++ and in Rust, which Python's audit events do not see.
    torch.save = halving(torch.save, 1)
    safetensors.torch.serialize_file = halving(safetensors.torch.serialize_file, 1)
    sys.addaudithook(before)


def test_whatever_write_a_run_dies_at_it_ends_with_the_same_weights(tmp_path, line):
    whole, copies, log = tmp_path / "whole", tmp_path / "copies", tmp_path / "log"
    copies.mkdir()
    run(line("oracles-only", "max_steps=1", "save=no"), log)  # prepares the data
    assert finish(start(line("whole", *EVERY_STEP), log, partial(photograph, whole, copies))) == 0, log.read_text()
    written = {path.relative_to(copy).parts[0] for copy in copies.iterdir() for path in copy.rglob("*")}
    assert {"run.json", "checkpoint-1", "checkpoint-2", ".final", "final", "metrics.jsonl"} <= written
    expected = weight_bytes(whole), log_of(whole)
    newest, different, resumed = 0, [], set()
    for copy in sorted(copies.iterdir()):
        checkpoint = newest_checkpoint(copy)
        step = checkpoint_step(checkpoint) if checkpoint else 0
        assert step >= newest, f"{copy}: a whole checkpoint is lost"
        newest = step
        # What is half-written goes first, and these files are always written anew: then equal folders go the same way.
        RunFolder(copy, main_process=True).open_checkpoint(resume=True)
        found = contents(copy)
        for always in ("config.yaml", "data.json", "env.json"):
            found.pop(always, None)
        if found not in different:
            different.append(found)
            run(line(f"copies/{copy.name}", *EVERY_STEP), log)
            assert (weight_bytes(copy), log_of(copy)) == expected, copy
            assert {path.name for path in copy.iterdir() if path.is_dir()} == {"checkpoint-2", "final"}, copy
            assert not list(copy.glob("*.part")), copy
            resumed.add(json.loads((copy / "summary.json").read_text())["resumed_from"])
    assert resumed == {None, "checkpoint-1", "checkpoint-2"}


# Any moment

ADAPTERS = {
    "full": [],
    "lora": ["adapter=lora", "lora_dropout=0.1", "activation_checkpointing=true"],
    "qlora": ["adapter=qlora", "lora_dropout=0.1", "optimizer=adamw_8bit"],
}


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_killed_again_and_again_a_run_ends_with_the_same_weights(adapter, tmp_path, line):
    if adapter == "qlora":
        pytest.importorskip("bitsandbytes")
    # Three steps an epoch: checkpoints fall inside epochs and between them, and the order must be drawn again.
    settings = ["max_steps=9", "save=steps", "save_steps=2", "group_by_length=true", *ADAPTERS[adapter]]
    run(line("whole", *settings), tmp_path / "whole.log")
    moment, codes = random.Random(adapter), []
    for attempt, step in enumerate((1, 4, 6, 9)):
        log = tmp_path / f"{attempt}.log"
        log.touch()
        process = start(line("killed", *settings), log)
        await_text(f"step {step:>4}/", log, process)
        time.sleep(moment.uniform(0, 0.15))
        send(process, signal.SIGKILL)
        codes.append(finish(process))
    run(line("killed", *settings), tmp_path / "last.log")
    assert codes[0] == -signal.SIGKILL and set(codes) <= {-signal.SIGKILL, 0}
    assert weight_bytes(tmp_path / "killed") == weight_bytes(tmp_path / "whole")
    assert log_of(tmp_path / "killed") == log_of(tmp_path / "whole")


def cut_back(folder: Path, step: int) -> None:
    """Leave of a finished run what it was right after the checkpoint of ``step``."""
    (folder / "summary.json").unlink()
    shutil.rmtree(folder / "final")
    for path in folder.glob("checkpoint-*"):
        if checkpoint_step(path) > step:
            shutil.rmtree(path)


def test_evaluations_patience_and_the_best_checkpoint_outlast_a_kill(tmp_path, line):
    settings = ["data.heldout=0.3", "save=steps", "save_steps=2", "evaluation.every=2", "evaluation.cases=2"]
    settings += [
        "evaluation.max_tokens=12",
        "evaluation.patience=2",
        "max_steps=40",
        "keep_checkpoints=9",
        "micro_batch=4",
    ]
    whole, log = tmp_path / "whole", tmp_path / "log"
    run(line("whole", *settings), log)
    expected = weight_bytes(whole), log_of(whole)
    steps = [row["step"] for row in metrics(whole, of="eval_exact_match")]
    assert steps == [0, 2, 4, 6]  # nothing is matched: the first evaluation is the best, and two more are no better
    assert weight_bytes(whole) == (whole / "checkpoint-2" / "model.safetensors").read_bytes()
    for step in (2, 4, 6):
        shutil.copytree(whole, tmp_path / f"from-{step}")
        cut_back(tmp_path / f"from-{step}", step)
    shutil.rmtree(whole)  # whose checkpoints the moved folders must not look for
    for step in (2, 4, 6):
        resumed = tmp_path / f"from-{step}"
        run(line(resumed.name, *settings), log)
        assert json.loads((resumed / "summary.json").read_text())["resumed_from"] == f"checkpoint-{step}"
        assert (weight_bytes(resumed), log_of(resumed)) == expected, step


def test_a_run_over_epochs_is_not_trained_on_after_its_last_checkpoint(tmp_path, line):
    log = tmp_path / "log"
    for name, length in (("steps", ["max_steps=4", "save=steps", "save_steps=4"]), ("epochs", ["epochs=1.5"])):
        length = [*length, "micro_batch=4"]  # what trains one micro-batch too many trains a step too many
        run(line(name, *length), log)
        expected = weight_bytes(tmp_path / name), log_of(tmp_path / name)
        cut_back(tmp_path / name, 99)
        run(line(name, *length), log)
        assert (weight_bytes(tmp_path / name), log_of(tmp_path / name)) == expected, name


# Signals


def test_sigterm_saves_the_step_and_the_same_command_goes_on(tmp_path, line):
    settings = ["max_steps=25", "save=no", "adapter=lora", "lora_dropout=0.1"]
    run(line("whole", *settings), tmp_path / "whole.log")
    log, stopped = tmp_path / "log", tmp_path / "stopped"
    log.touch()
    process = start(line("stopped", *settings), log)
    await_text("step    2/", log, process)
    send(process, signal.SIGTERM)
    assert finish(process) == 128 + signal.SIGTERM
    [checkpoint] = stopped.glob("checkpoint-*")
    step = checkpoint_step(checkpoint)
    assert (checkpoint / COMPLETED).exists() and not (stopped / "final").exists()
    assert f"stopped by SIGTERM after step {step}, which is saved" in log.read_text()
    assert metrics(stopped)[-1]["step"] == step
    run(line("stopped", *settings), log)
    assert json.loads((stopped / "summary.json").read_text())["resumed_from"] == f"checkpoint-{step}"
    assert weight_bytes(stopped) == weight_bytes(tmp_path / "whole")
    assert log_of(stopped) == log_of(tmp_path / "whole")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a launcher of one process leaves the run behind")
def test_sigterm_to_accelerate_launch_reaches_the_run(tmp_path, line):
    accelerate = [str(Path(sys.executable).with_name("accelerate")), "launch"]
    command = [*accelerate, "--config_file", "accelerate_configs/cpu.yaml", *line("run", "max_steps=2000", "save=no")]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as launcher:
        printed = ""
        while "step    2/" not in printed:
            printed += launcher.stdout.readline() or pytest.fail(printed)
        launcher.send_signal(signal.SIGTERM)
        printed = launcher.stdout.read()  # to its end: the run has ended too
    assert "stopped by SIGTERM after step" in printed
    assert newest_checkpoint(tmp_path / "run") is not None


# What is refused


def test_two_runs_in_one_folder_at_once_are_refused(tmp_path, line):
    first, second = tmp_path / "first.log", tmp_path / "second.log"
    first.touch()
    process = start(line("run", "max_steps=3000", "save=no"), first)
    await_text("step    2/", first, process)
    try:
        assert finish(start(line("run", "max_steps=3000", "save=no"), second)) == 2
    finally:
        send(process, signal.SIGKILL)
        finish(process)
    assert "is being trained by another process: wait for it, or choose another out=" in second.read_text()
    # The lock is gone with its process: what stops the next one is that it is another run.
    assert finish(start(line("run", "max_steps=1"), second)) == 2
    assert "holds another run (max_steps was 3000, now 1" in second.read_text()


def test_another_tokenizer_config_or_data_is_refused_by_name(tmp_path):
    model, log = save_model(tmp_path / "model", "qwen2"), tmp_path / "log"
    edits = tmp_path / "edits.jsonl"
    row = {"instruction": "Change it.", "before": "one\ntwo\n", "after": "one\n2\n"}
    edits.write_text("".join(json.dumps(row | {"after": f"one\n{number}\n"}) + "\n" for number in range(8)))
    settings = ["data.corpora=[jsonl]", f"data.jsonl=[{edits}]", "max_steps=1"]
    line = recipe_line(model, tmp_path / "oracles", tmp_path / "run", *settings)
    run(line, log)
    kept = contents(tmp_path / "run")

    def refusal(line: list[str]) -> str:
        log.write_bytes(b"")
        assert finish(start(line, log)) == 2, log.read_text()
        assert contents(tmp_path / "run") == kept
        return log.read_text()

    assert "holds another run (lora_r was 16, now 8; seed was 0, now 1)" in refusal([*line, "seed=1", "lora_r=8"])
    as_it_was = edits.read_text()
    edits.write_text(as_it_was.replace("one\\n7\\n", "one\\n8\\n"))
    assert "holds oracles of other settings (data.jsonl_sha256" in refusal(line)
    assert "holds another run (the training data differ" in refusal([*line, f"data.out={tmp_path / 'new'}"])
    edits.write_text(as_it_was)
    template = model / "chat_template.jinja"
    template.write_text(template.read_text().replace("<|im_start|>", "<|im_start|> "))
    assert "holds another run (the tokenizer differs)" in refusal(line)


def test_resume_none_starts_anew_and_says_what_it_removes(tmp_path, line):
    log, settings = tmp_path / "log", ["max_steps=4", "save=steps", "save_steps=2", "keep_checkpoints=9"]
    run(line("run", *settings), log)
    expected = weight_bytes(tmp_path / "run")
    cut_back(tmp_path / "run", 4)
    printed = run(line("run", *settings, "resume=none"), log)
    for step in (2, 4):
        assert f"removing {tmp_path / 'run' / f'checkpoint-{step}'}: resume=none" in printed
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["resumed_from"] is None
    assert weight_bytes(tmp_path / "run") == expected
    assert [row["step"] for row in metrics(tmp_path / "run")] == [1, 2, 3, 4]


def test_a_half_written_checkpoint_is_removed_whatever_its_step(tmp_path, line):
    """Left there, it would count as newer than the whole ones and push them out."""
    log, folder, settings = tmp_path / "log", tmp_path / "run", ["max_steps=4", "save=steps", "save_steps=2"]
    run(line("run", *settings), log)
    expected = weight_bytes(folder)
    cut_back(folder, 4)
    (folder / "checkpoint-9").mkdir()
    assert f"removing {folder / 'checkpoint-9'}: half-written" in run(line("run", *settings), log)
    assert [path.name for path in folder.glob("checkpoint-*")] == ["checkpoint-4"]
    assert weight_bytes(folder) == expected


def test_a_checkpoint_is_not_whole_from_the_moment_its_removal_starts(tmp_path, monkeypatch):
    (tmp_path / "checkpoint-2").mkdir()
    (tmp_path / "checkpoint-2" / COMPLETED).touch()
    monkeypatch.setattr("shutil.rmtree", lambda _: pytest.fail("killed"))
    with pytest.raises(pytest.fail.Exception, match="killed"):
        RunFolder(tmp_path, main_process=True).open_checkpoint(resume=False)
    assert newest_checkpoint(tmp_path) is None


def test_a_line_of_the_log_that_was_being_written_is_written_anew(tmp_path):
    log = tmp_path / "metrics.jsonl"
    for step, kept in ((2, 2), (1, 1), (None, 0)):
        log.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"st')
        RunFolder(tmp_path, main_process=True).truncate_metrics(step)
        assert len(log.read_text().splitlines()) == kept
