"""Training: which tokens are supervised, what is refused, the loss, the run folder, and resuming."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from small_models import encoder_of, save_model, tiny_model

from cad_train.batches import Collator
from cad_train.config import EvaluationConfig, LossConfig, RegionWeights, TrainConfig
from cad_train.examples import UNSUPERVISED, check_refused, encode_row, encode_rows, show_example
from cad_train.export import find_trained
from cad_train.loss import IGNORED
from cad_train.run_folder import RunFolder
from cad_train.sft import train_selector
from cad_train.trainer import SelectorTrainer, computes_in_bf16
from data_prep.build import OracleConfig, build_oracles
from data_prep.oracle import build_oracle
from data_prep.prepared import OracleRow
from data_prep.probeedit import ProbeEditConfig
from decoding.commandline import UserError, parse_config
from decoding.encoder import REGIONS
from decoding.fsm import ProgramFSM
from decoding.grammar import render
from decoding.loading import COMPLETED, checkpoints, load_model, newest_checkpoint
from eval.checkpoints import find_checkpoint
from eval.while_training import HeldOutMatch


def oracle_row(before: str, after: str, name: str = "row") -> OracleRow:
    program = render(build_oracle(before, after))
    return OracleRow(name, "jsonl", "train", name, "Change it.", before, after, program, [], {})


ROW = oracle_row("one\ntwo\nthree\n", "one\n2\nthree\n")


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer Qwen2 with a byte-level tokenizer, saved as a user would have it."""
    return save_model(tmp_path_factory.mktemp("model"), "qwen2")


@pytest.fixture
def config(tmp_path: Path, model_folder: Path) -> TrainConfig:
    """A run of four optimiser steps that takes a few seconds."""
    data = OracleConfig(
        corpora=["probeedit"],
        out=str(tmp_path / "oracles"),
        probeedit=ProbeEditConfig(cases=10, min_lines=4, max_lines=6),
    )
    return TrainConfig(
        data=data,
        model=str(model_folder),
        max_length=2048,
        lr=1e-3,
        max_steps=4,
        batch_size=2,
        activation_checkpointing=False,
        precision="fp32",
        out=str(tmp_path / "run"),
        save="steps",
        save_steps=2,
        keep_checkpoints=5,
    )


@pytest.mark.parametrize("splice", ["none", "full"])
def test_prompt_and_spliced_text_carry_no_loss_and_the_end_of_sequence_does(splice):
    encoder = encoder_of("byte_level")
    input_ids, regions = encode_row(encoder, ROW, "numbered", splice)
    assert len(input_ids) == len(regions)
    assert input_ids[-1] == encoder.table.end_of_sequence
    assert regions[-1] == REGIONS.index("end")

    def text_of(wanted) -> str:
        chosen = [token for token, region in zip(input_ids, regions, strict=True) if wanted(region)]
        return encoder.text.decode(chosen).decode()

    # The supervised text is the bare program under both settings: the splice is context, not target.
    assert text_of(lambda region: region != UNSUPERVISED).removesuffix("<|im_end|>") == ROW.program
    assert text_of(lambda region: region == REGIONS.index("start_digits")) == "13"
    assert text_of(lambda region: region == REGIONS.index("end_digits")) == "14"
    assert text_of(lambda region: region == REGIONS.index("gen_text")) == "2\n"
    context = text_of(lambda region: region == UNSUPERVISED)
    assert context.count("three") == (2 if splice == "full" else 1)


@pytest.mark.parametrize("splice", ["none", "full"])
def test_training_ids_replay_through_the_decoders_grammar(splice):
    encoder = encoder_of("byte_level")
    input_ids, _ = encode_row(encoder, ROW, "numbered", splice)
    fsm = ProgramFSM(encoder, ROW.before, splice=splice, monotone=True)
    program = [
        i for segment in encoder.segments(build_oracle(ROW.before, ROW.after), ROW.before, splice) for i in segment.ids
    ]
    state = fsm.start
    for token in input_ids[-len(program) :]:
        state = fsm.advance(state, token)
    assert state.finished


def test_refused_examples_are_counted_and_stop_the_run_unless_allowed_by_name():
    long_row = oracle_row("x" * 3000 + "\n", "y" * 3000 + "\n", "long")
    broken = replace(ROW, id="broken", instruction="\ud800")
    examples = encode_rows(encoder_of("byte_level"), [ROW, long_row, broken], "numbered", "none", max_length=1000)
    assert len(examples) == 1
    assert examples.report()["refused"] == {"overlong": 1, "lone_surrogate": 1}
    with pytest.raises(UserError, match=r"1 of 3 examples are overlong \(longest \d+ tokens, max_length=1000\): long"):
        check_refused(examples, [], 1000)
    with pytest.raises(UserError, match="1 of 3 examples are lone_surrogate: broken"):
        check_refused(examples, ["overlong"], 1000)
    check_refused(examples, ["overlong", "lone_surrogate"], 1000)
    with pytest.raises(UserError, match="unknown too_long; choose from overlong"):
        check_refused(examples, ["too_long"], 1000)


def test_a_run_that_would_train_on_nothing_stops():
    examples = encode_rows(encoder_of("byte_level"), [ROW], "numbered", "none", max_length=3)
    with pytest.raises(UserError, match="no training examples are left"):
        check_refused(examples, ["overlong"], 3)


def test_the_sample_marks_what_is_trained():
    encoder = encoder_of("byte_level")
    shown = show_example(encoder, *encode_row(encoder, ROW, "numbered", "none"), color=False)
    assert shown.endswith(f"»{ROW.program}<|im_end|>«")
    assert shown.count("»") == 1


@pytest.mark.parametrize("padding_free", [False, True])
def test_loss_on_supervised_positions_equals_plain_cross_entropy(padding_free):
    """A batch of three rows, padded or not, against the model's own loss over all logits, row by row."""
    encoder = encoder_of("byte_level")
    rows = [ROW, oracle_row("a\nb\n", "a\nb\nc\n"), oracle_row("x\n", "y\nz\n")]
    pairs = [encode_row(encoder, row, "numbered", "full") for row in rows]
    model = tiny_model("qwen2", len(encoder.tokenizer), seed=3)
    columns = [{"input_ids": ids, "regions": regions} for ids, regions in pairs]
    batch = Collator(0, padding_free)(columns)
    weights = torch.tensor([1.0, 2.0, 3.0, 0.5, 0.0])
    trainer = SimpleNamespace(weights=weights, account=torch.zeros(5, 3), by_document=False)
    trainer._weight = lambda regions: SelectorTrainer._weight(trainer, regions)
    ours = SelectorTrainer.compute_loss(trainer, model, batch)
    total = weight = 0.0
    for ids, regions in pairs:
        logits = model(input_ids=torch.tensor([ids])).logits[0, :-1]
        targets, regions = torch.tensor(ids[1:]), torch.tensor(regions[1:])
        losses = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
        own = torch.where(regions == UNSUPERVISED, 0.0, weights[regions])
        total, weight = total + (losses * own).sum(), weight + own.sum()
    torch.testing.assert_close(ours, total / weight, rtol=1e-5, atol=1e-6)
    assert trainer.account[:, 2].sum() == (batch["labels"][:, 1:] != IGNORED).sum()


def metrics_of(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def weights_of(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def interrupted(run: Path) -> Path:
    """Leave of a finished run what it was after its last checkpoint."""
    (run / "summary.json").unlink()
    shutil.rmtree(run / "final")
    return run


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_folder_is_whole_and_a_second_call_changes_nothing(config, capsys):
    run = train_selector(config, "sft_combined")
    for name in ("config.yaml", "env.json", "data.json", "metrics.jsonl", "summary.json", "final/config.json"):
        assert (run / name).exists(), name
    assert not list(run.rglob("README.md"))  # a stub; the export writes the card
    assert [row["step"] for row in metrics_of(run)] == [0, 1, 2, 3, 4]  # the first is held-out loss, before training
    assert all((run / f"checkpoint-{step}" / COMPLETED).exists() for step in (2, 4))
    data = json.loads((run / "data.json").read_text())
    assert data["examples"] == 8 and data["supervised_tokens"] == sum(data["supervised_by_region"].values())
    before = (run / "metrics.jsonl").read_bytes()
    train_selector(config, "sft_combined")
    assert "is finished: nothing to do" in capsys.readouterr().out
    assert (run / "metrics.jsonl").read_bytes() == before


def test_an_interrupted_run_goes_on_from_its_newest_whole_checkpoint_to_the_same_weights(config):
    whole = train_selector(config, "sft_combined")
    expected = (whole / "final" / "model.safetensors").read_bytes()
    losses = [row.get("loss") for row in metrics_of(whole)]
    # As if the process had died while it wrote checkpoint-4: no marker, no final model, no summary.
    (whole / "summary.json").unlink()
    (whole / "checkpoint-4" / COMPLETED).unlink()
    (whole / "checkpoint-4" / "model.safetensors").write_bytes(b"half")
    (whole / "final" / "model.safetensors").unlink()
    train_selector(config, "sft_combined")
    assert json.loads((whole / "summary.json").read_text())["resumed_from"] == "checkpoint-2"
    assert [row.get("loss") for row in metrics_of(whole)] == losses
    assert (whole / "final" / "model.safetensors").read_bytes() == expected


def test_another_run_in_the_same_folder_is_refused_by_key(config):
    train_selector(config, "sft_combined")
    with pytest.raises(UserError, match=r"holds another run \(lr was 0.001, now 0.002\)"):
        train_selector(replace(config, lr=2e-3), "sft_combined")


def test_a_failed_first_try_does_not_block_the_folder(config, model_folder, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(model_folder, broken)
    (broken / "model.safetensors").unlink()
    with pytest.raises(UserError, match="cannot load the model"):
        train_selector(replace(config, model=str(broken), lr=5e-3), "sft_combined")
    assert (Path(config.out) / "run.json").exists()
    run = train_selector(config, "sft_combined")
    assert json.loads((run / "run.json").read_text())["settings"]["lr"] == 1e-3


@pytest.mark.parametrize("damage", ["missing", "cut off"])
def test_a_broken_model_folder_is_named_in_one_line(damage, config, model_folder, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(model_folder, broken)
    file = broken / "model.safetensors"
    whole = file.read_bytes()
    file.unlink() if damage == "missing" else file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=f"cannot load the model '{broken}'") as caught:
        train_selector(replace(config, model=str(broken)), "sft_combined")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["checkpoint-500/model.safetensors", "final/config.json", "metrics.jsonl", "config.json", "run.json"]
)
def test_a_folder_of_another_program_is_refused_and_left_as_it_is(name, config):
    file = Path(config.out) / name
    file.parent.mkdir(parents=True)
    file.write_text('"theirs"')
    with pytest.raises(UserError, match=r"out=.*run holds .* and is no run of ours: choose a new"):
        train_selector(config, "sft_combined")
    assert contents(Path(config.out)) == {name: b'"theirs"'}
    assert not Path(config.data.out).exists()  # found out before the work


@pytest.mark.parametrize("name", ["final", ".final/x", "checkpoint-2", "checkpoint-4/deep/er"])
def test_a_run_within_what_another_run_may_remove_is_refused(name, config):
    run = train_selector(config, "sft_combined")
    before = contents(run)
    with pytest.raises(UserError, match=f"out=.*{name} is inside the run {run}, which would remove it: choose another"):
        train_selector(replace(config, out=str(run / name)), "sft_combined")
    assert contents(run) == before


def test_what_a_stopped_run_left_is_put_right_and_nothing_else(config, capsys):
    run = train_selector(config, "sft_combined")
    expected, summary = weights_of(run / "final"), json.loads((run / "summary.json").read_text())
    interrupted(run)
    shutil.rmtree(run / "checkpoint-4")
    (run / ".run.json.77.part").touch()
    (run / ".movie.mp4.part").touch()
    (run / ".exported.77.part").mkdir()
    first, *others = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run / "metrics.jsonl").write_bytes(b"".join([first, b"\0\0\0\n", b"\xff\n", *others]) + b'{"step": 4, "lo')
    train_selector(config, "sft_combined")
    assert "metrics.jsonl: 2 damaged lines are left out" in capsys.readouterr().out
    assert weights_of(run / "final") == expected
    assert json.loads((run / "summary.json").read_text())["train_loss"] == summary["train_loss"] > 0
    assert {path.name for path in run.glob(".*.part")} == {".movie.mp4.part", ".exported.77.part"}


def test_a_trained_model_with_a_changed_bit_is_neither_scored_nor_exported(config):
    run = train_selector(config, "sft_combined")
    file = run / "final" / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 64
    file.write_bytes(data)
    for use in (find_checkpoint, find_trained):
        with pytest.raises(UserError, match=r"final is not whole \(model.safetensors is damaged\)"):
            use(str(run))


def test_what_only_looks_like_a_checkpoint_is_no_part_of_the_run(config):
    run = interrupted(train_selector(config, "sft_combined"))
    for name in ("checkpoint-best", "checkpoint-2-copy"):
        (run / name).mkdir()
    train_selector(replace(config, resume="none", keep_checkpoints=1), "sft_combined")
    assert [path.name for path in checkpoints(run)] == ["checkpoint-4"]
    assert (run / "checkpoint-best").exists() and (run / "checkpoint-2-copy").exists()


@pytest.mark.parametrize(
    ("out", "reason"), [("file", "is a file"), ("file/run", "Not a directory"), ("/proc/run", "cannot be written")]
)
def test_an_out_that_cannot_be_written_is_named_before_the_work(out, reason, config, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=f"out=.*{out}.*{reason}"):
        train_selector(replace(config, out=str(tmp_path / out)), "sft_combined")
    assert not Path(config.data.out).exists()


@pytest.mark.parametrize("text", ['{"settings"', '{"settings": {}, "launch": 1}'])
def test_a_damaged_run_json_is_named(text, config):
    run = train_selector(config, "sft_combined")
    (run / "run.json").write_text(text)
    with pytest.raises(UserError, match=r"run\.json is damaged: put it back, or choose another out="):
        train_selector(config, "sft_combined")


def test_a_finished_run_is_not_trained_anew_without_a_word(config):
    train_selector(config, "sft_combined")
    with pytest.raises(UserError, match="is finished: to train anew, remove it or choose another out="):
        train_selector(replace(config, resume="none"), "sft_combined")


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_prepared_rows_that_were_edited_by_hand_are_refused_by_name(split, config):
    train_selector(config, "sft_combined")
    file = Path(config.data.out) / "probeedit" / f"{split}.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(UserError, match=rf"{split}.jsonl is not as it was prepared: build the folder again"):
        train_selector(config, "sft_combined")


@pytest.mark.parametrize("adapter", ["full", "lora"])
def test_another_base_model_under_the_same_name_is_refused_by_name(adapter, config, model_folder, tmp_path):
    base = tmp_path / "base"
    shutil.copytree(model_folder, base)
    config = replace(config, model=str(base), adapter=adapter)
    run = interrupted(train_selector(config, "sft_combined"))
    before = contents(run)
    tiny_model("qwen2", len(encoder_of("byte_level").tokenizer), seed=1).save_pretrained(base)
    with pytest.raises(UserError, match=r"holds another run \(the base model differs\)"):
        train_selector(config, "sft_combined")
    assert contents(run) == before


def test_a_run_of_an_earlier_version_goes_on(config):
    run = train_selector(config, "sft_combined")
    expected = weights_of(run / "final")
    interrupted(run)
    identity = json.loads((run / "run.json").read_text())
    del identity["base"]
    (run / "run.json").write_text(json.dumps(identity))
    shutil.rmtree(run / "checkpoint-4")
    (run / "checkpoint-2" / COMPLETED).write_text("")
    train_selector(config, "sft_combined")
    assert json.loads((run / "summary.json").read_text())["resumed_from"] == "checkpoint-2"
    assert weights_of(run / "final") == expected


DAMAGES = {
    "model.safetensors": ("damaged", lambda content: content[: len(content) // 2]),
    "optimizer.pt": ("missing", None),
    "scheduler.pt": ("missing", None),
    "rng_state.pth": ("missing", None),
    "trainer_state.json": ("damaged", lambda content: content.replace(b"4", b"5", 1)),
    "config.json": ("damaged", lambda content: content[:-1] + bytes([content[-1] ^ 1])),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory):
    """A place for one run that several tests begin with."""
    return tmp_path_factory.mktemp("finished")


@pytest.fixture
def stopped(config, finished):
    """The settings and the folder of a run with two checkpoints and no final, and the weights it would have."""
    config = replace(config, data=replace(config.data, out=str(finished / "oracles")))
    if not (finished / "run").exists():
        train_selector(replace(config, out=str(finished / "run")), "sft_combined")
    shutil.copytree(finished / "run", config.out)
    return config, interrupted(Path(config.out)), weights_of(finished / "run" / "final")


def damage(checkpoint: Path, name: str) -> str:
    how, change = DAMAGES[name]
    file = checkpoint / name
    content = file.read_bytes()
    file.unlink()
    if change:
        file.write_bytes(change(content))
        assert file.read_bytes() != content
    return f"{name} is {how}"


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_checkpoint_is_skipped_and_said(name, stopped, capsys):
    config, run, expected = stopped
    fault = damage(run / "checkpoint-4", name)
    assert newest_checkpoint(run) == run / "checkpoint-2"  # which is what an evaluation takes
    train_selector(config, "sft_combined")
    assert f"skipping checkpoint-4: {fault}\n" in capsys.readouterr().out
    assert json.loads((run / "summary.json").read_text())["resumed_from"] == "checkpoint-2"
    assert weights_of(run / "final") == expected


def test_a_run_with_nothing_but_damaged_checkpoints_stops_and_keeps_them(stopped, capsys):
    config, run, expected = stopped
    faults = [damage(run / "checkpoint-4", "optimizer.pt"), damage(run / "checkpoint-2", "rng_state.pth")]
    before = [contents(path) for path in checkpoints(run)]
    with pytest.raises(UserError, match="has no whole checkpoint left: put one back, or start anew with resume=none"):
        train_selector(config, "sft_combined")
    said = capsys.readouterr().out
    assert f"skipping checkpoint-4: {faults[0]}\nskipping checkpoint-2: {faults[1]}\n" in said
    assert [contents(path) for path in checkpoints(run)] == before
    train_selector(replace(config, resume="none"), "sft_combined")
    assert weights_of(run / "final") == expected


def test_a_mark_that_is_damaged_vouches_for_nothing(stopped):
    _, run, _ = stopped
    for text in ("{", "[]", '{"config.json": 3}'):
        (run / "checkpoint-4" / COMPLETED).write_text(text)
        assert newest_checkpoint(run) == run / "checkpoint-2"


def test_a_mark_states_every_file_whatever_its_folder(tmp_path):
    part = tmp_path / "checkpoint-7" / "global_step7" / "part.pt"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"part")
    RunFolder(tmp_path, main_process=True).mark_checkpoint(7)
    assert newest_checkpoint(tmp_path) == tmp_path / "checkpoint-7"
    part.write_bytes(b"trap")
    said = []
    assert newest_checkpoint(tmp_path, said.append) is None
    assert said == ["skipping checkpoint-7: global_step7/part.pt is damaged"]


def test_oracles_of_other_settings_are_refused_by_key(config):
    build_oracles(config.data)
    other = replace(config.data, probeedit=ProbeEditConfig(cases=12, min_lines=4, max_lines=6))
    with pytest.raises(UserError, match=r"data.probeedit.cases there 10, wanted 12"):
        train_selector(replace(config, data=other), "sft_combined")


def test_lora_trains_an_adapter_that_names_its_base(config, model_folder, capsys):
    run = train_selector(replace(config, adapter="lora", max_steps=2, activation_checkpointing=True), "sft_combined")
    adapter = json.loads((run / "final" / "adapter_config.json").read_text())
    assert adapter["base_model_name_or_path"] == str(model_folder)
    assert adapter["r"] == 16 and adapter["lora_alpha"] == 32
    assert not list(run.rglob("README.md"))
    model = load_model(str(model_folder))
    layers = [layer for layer in model.model.layers.modules() if isinstance(layer, torch.nn.Linear)]
    trained = sum(16 * (layer.in_features + layer.out_features) for layer in layers)
    total = trained + model.num_parameters()
    assert f"trained: {trained:,} of {total:,} parameters" in capsys.readouterr().out


def test_qlora_holds_its_base_in_four_bits_on_a_cpu(config, capsys):
    pytest.importorskip("bitsandbytes")
    config = replace(config, adapter="qlora", max_steps=2)
    run = train_selector(config, "qlora_7b")
    assert re.search(
        r"14 layers hold their weights in 4-bit NF4: \d+ in \d+ bytes, 0\.5\d? each", capsys.readouterr().out
    )
    assert (run / "final" / "adapter_model.safetensors").exists()


def test_half_written_checkpoints_do_not_count(tmp_path):
    for step in (9, 10):
        (tmp_path / f"checkpoint-{step}").mkdir()
    assert newest_checkpoint(tmp_path) is None
    (tmp_path / "checkpoint-9" / COMPLETED).touch()
    assert newest_checkpoint(tmp_path).name == "checkpoint-9"
    (tmp_path / "checkpoint-10" / COMPLETED).touch()
    assert newest_checkpoint(tmp_path).name == "checkpoint-10"


def test_a_launcher_that_contradicts_the_precision_is_refused(monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    with pytest.raises(UserError, match="precision=fp32, but the launcher sets mixed_precision=bf16"):
        computes_in_bf16(TrainConfig(precision="fp32"), on_cpu=True)
    assert computes_in_bf16(TrainConfig(precision="auto"), on_cpu=True)


@pytest.mark.parametrize("bad", [{"batch_size": 6, "micro_batch": 4}, {"lr": 0.0}, {"epochs": -1.0}, {"max_length": 0}])
def test_settings_out_of_range_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        TrainConfig(**bad)


def test_a_run_without_held_out_edits_trains_and_one_without_training_edits_says_so(config, tmp_path):
    alone = replace(config, data=replace(config.data, heldout=0.0))
    run = train_selector(alone, "sft_combined")
    assert [row["step"] for row in metrics_of(run)] == [1, 2, 3, 4]
    same = {"instruction": "Change it.", "before": "a\nb\n", "group": "one"}
    rows = [same | {"after": f"a\n{n}\n"} for n in range(3)]
    (tmp_path / "edits.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    edits = [str(tmp_path / "edits.jsonl")]
    data = OracleConfig(corpora=["jsonl"], jsonl=edits, heldout=0.9, out=str(tmp_path / "one-group"))
    with pytest.raises(UserError, match="no training examples are left: lower data.heldout"):
        train_selector(replace(config, data=data, out=str(tmp_path / "other")), "sft_combined")


def test_a_finished_run_keeps_the_account_of_its_training(config, monkeypatch):
    run = train_selector(config, "sft_combined")
    before = {path.name: path.read_bytes() for path in run.glob("*.json")}
    monkeypatch.setattr("sys.argv", ["another", "command"])
    train_selector(config, "sft_combined")
    assert {path.name: path.read_bytes() for path in run.glob("*.json")} == before


def test_a_step_whose_tokens_weigh_nothing_has_no_loss(config):
    weights = RegionWeights(structure=0, start_digits=0, end_digits=0, gen_text=1, end=0)
    run = train_selector(replace(config, loss=LossConfig(weights), max_steps=4, batch_size=1), "sft_combined")
    losses = [row["loss"] for row in metrics_of(run) if "loss" in row]
    assert len(losses) == 4 and all(loss >= 0 for loss in losses)


# Evaluating while training


def evaluated(config: TrainConfig, **settings) -> TrainConfig:
    evaluation = EvaluationConfig(**{"every": 2, "cases": 2, "max_tokens": 12} | settings)
    return replace(config, evaluation=evaluation, data=replace(config.data, heldout=0.2))


def test_held_out_edits_are_decoded_and_change_nothing_of_the_training(config, tmp_path):
    plain = train_selector(config, "sft_combined")
    with_it = evaluated(replace(config, out=str(tmp_path / "evaluated")))
    run = train_selector(with_it, "sft_combined", [HeldOutMatch(with_it)])
    losses = [row["loss"] for row in metrics_of(plain) if "loss" in row]
    assert [row["loss"] for row in metrics_of(run) if "loss" in row] == losses
    rows = [row for row in metrics_of(run) if "eval_exact_match" in row]
    assert [row["step"] for row in rows] == [0, 2, 4]
    assert all(row["eval_cases"] == 2 and 0 <= row["eval_end_accuracy"] <= 1 for row in rows)


def test_training_stops_when_exact_match_gets_no_better_and_says_which_weights_are_final(config, capsys):
    config = evaluated(replace(config, max_steps=40), patience=1)
    run = train_selector(config, "sft_combined", [HeldOutMatch(config)])
    summary = json.loads((run / "summary.json").read_text())
    assert summary["steps"] == 4  # the first evaluation counts as the best so far, the next is no better
    assert (summary["stopped_early"], summary["best_step"], summary["best_exact_match"]) == (True, 2, 0.0)
    assert weights_of(run / "final") == weights_of(run / "checkpoint-2")
    assert find_trained(str(run)).steps == 2  # which the card of an export states
    assert (
        "stopped after step 4: no better exact match in 1 evaluation\n"
        "final is checkpoint-2, which has the best exact match (EM 0.0%)\n"
    ) in capsys.readouterr().out


def test_a_run_whose_best_checkpoint_is_damaged_stops_before_it_trains_on(config):
    config = evaluated(replace(config, max_steps=40), patience=2)
    run = interrupted(train_selector(config, "sft_combined", [HeldOutMatch(config)]))
    for remove, fault in (
        (Path.unlink, "model.safetensors is missing"),
        (lambda file: shutil.rmtree(file.parent), "missing"),
    ):
        remove(run / "checkpoint-2" / "model.safetensors")
        with pytest.raises(UserError, match=f"checkpoint-2 is the best so far, and {fault}: put it back"):
            train_selector(config, "sft_combined", [HeldOutMatch(config)])


def test_adapters_are_evaluated_with_the_base_they_sit_in(config):
    config = evaluated(replace(config, adapter="lora", max_steps=2))
    run = train_selector(config, "sft_combined", [HeldOutMatch(config)])
    assert [row["step"] for row in metrics_of(run) if "eval_exact_match" in row] == [0, 2]


def test_the_best_checkpoint_needs_checkpoints_where_it_is_evaluated(config):
    with pytest.raises(ValueError, match="save=steps save_steps=N"):
        replace(config, evaluation=EvaluationConfig(every=3))
    with pytest.raises(ValueError, match=r"patience=2 counts evaluations"):
        EvaluationConfig(patience=2)


# Settings, and what a run says


NUMBERS = {
    "above 0, and finite": {"lr": ["nan", "inf", "0"], "epochs": ["nan", "inf", "-1"]},
    "at least 0, and finite": {
        "weight_decay": ["-1", "nan"],
        "max_grad_norm": ["-1", "nan", "inf"],
        "loss.weights.end_digits": ["nan", "inf", "-1"],
    },
    "at least 0 and below 1": {
        "beta1": ["1"],
        "beta2": ["1.5", "nan"],
        "lora_dropout": ["1", "1.5", "-0.1"],
        "warmup": ["-1", "nan", "1", "2"],
    },
    "at least 0 and below 2**32": {"seed": ["-1", "99999999999999"]},
    "at least 1": {"lora_alpha": ["0", "-8"], "max_steps": ["0"], "evaluation.cases": ["0"]},
}


@pytest.mark.parametrize(
    ("key", "value", "must"),
    [(key, value, must) for must, keys in NUMBERS.items() for key, values in keys.items() for value in values],
)
def test_a_number_out_of_range_is_refused_with_its_range(key, value, must):
    with pytest.raises(UserError, match=rf"{key.rpartition('.')[2]}={value}\S*: must be {must.replace('*', '.')}$"):
        parse_config(TrainConfig, [f"{key}={value}"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["dora=true"], "dora=true is of adapters, and adapter=full has none: give adapter=lora or qlora"),
        (["rslora=true"], "rslora=true is of adapters"),
        (["padding_free=true"], "padding_free=true needs micro_batch above 1"),
        (["model="], "model is empty: name a model of the hub, a folder, or a GGUF file"),
        (["out="], "out is empty: name a folder"),
        ([f"loss.weights.{region}=0" for region in REGIONS], "the weights of all regions are 0"),
    ],
)
def test_a_setting_that_would_do_nothing_is_refused(settings, message):
    with pytest.raises(UserError, match=message):
        parse_config(TrainConfig, settings)


def test_numbers_at_the_ends_of_their_ranges_train(config):
    ends = {"warmup": 0.0, "max_grad_norm": 0.0, "beta1": 0.0, "beta2": 0.0, "seed": 2**32 - 1, "max_steps": 1}
    assert train_selector(replace(config, **ends), "sft_combined")


def test_a_tracker_that_is_not_installed_is_refused_by_name(config, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not there
    with pytest.raises(UserError, match="report_to=wandb needs the package wandb: pip install wandb"):
        train_selector(replace(config, report_to=["wandb"]), "sft_combined")
    assert not Path(config.out).exists()


def test_a_run_whose_examples_are_all_left_out_says_why():
    broken = replace(ROW, id="broken", instruction="\ud800")
    encoder = encoder_of("byte_level")
    examples = encode_rows(encoder, [ROW, ROW, broken], "numbered", "none", max_length=3)
    with pytest.raises(UserError, match=r"are left \(2 overlong, 1 lone_surrogate\): raise max_length=3 \(the longest"):
        check_refused(examples, ["overlong", "lone_surrogate"], 3)
    with pytest.raises(UserError, match=r"are left \(1 lone_surrogate\): add other edits"):
        check_refused(encode_rows(encoder, [broken], "numbered", "none", 3), ["lone_surrogate"], 3)


def test_a_run_shows_no_notices_of_libraries(config, model_folder):
    probeedit = [f"data.probeedit.{key}" for key in ("cases=10", "min_lines=4", "max_lines=6")]
    arguments = ["data.corpora=[probeedit]", *probeedit, f"data.out={config.data.out}", f"out={config.out}"]
    settings = ["max_length=2048", "adapter=lora", "max_steps=1", "save=no"]  # checkpointing: PEFT asks for it
    done = subprocess.run(
        [sys.executable, "recipes/sft_combined.py", *arguments, f"model={model_folder}", *settings],
        cwd=Path(__file__).resolve().parent.parent,
        env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "WARNING" not in done.stdout
