"""Training: which tokens are supervised, what is refused, the loss, the run folder, and resuming."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from small_models import encoder_of, save_model, tiny_model

from cad_train.batches import Collator
from cad_train.config import EvaluationConfig, LossConfig, RegionWeights, TrainConfig
from cad_train.examples import UNSUPERVISED, check_refused, encode_row, encode_rows, show_example
from cad_train.loss import IGNORED
from cad_train.sft import train_selector
from cad_train.trainer import SelectorTrainer, computes_in_bf16
from data_prep.build import OracleConfig, OracleRow, build_oracles
from data_prep.oracle import build_oracle
from data_prep.probeedit import ProbeEditConfig
from decoding.commandline import UserError
from decoding.encoder import REGIONS
from decoding.fsm import ProgramFSM
from decoding.grammar import render
from decoding.loading import COMPLETED, newest_checkpoint
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
    trainer = SimpleNamespace(weights=weights, account=torch.zeros(5, 3))
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


def test_a_run_folder_is_whole_and_a_second_call_changes_nothing(config, capsys):
    run = train_selector(config, "sft_combined")
    for name in ("config.yaml", "env.json", "data.json", "metrics.jsonl", "summary.json", "final/config.json"):
        assert (run / name).exists(), name
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


def test_oracles_of_other_settings_are_refused_by_key(config):
    build_oracles(config.data)
    other = replace(config.data, probeedit=ProbeEditConfig(cases=12, min_lines=4, max_lines=6))
    with pytest.raises(UserError, match=r"data.probeedit.cases there 10, wanted 12"):
        train_selector(replace(config, data=other), "sft_combined")


def test_lora_trains_an_adapter_that_names_its_base(config, model_folder):
    run = train_selector(replace(config, adapter="lora", max_steps=2, activation_checkpointing=True), "sft_combined")
    adapter = json.loads((run / "final" / "adapter_config.json").read_text())
    assert adapter["base_model_name_or_path"] == str(model_folder)
    assert adapter["r"] == 16 and adapter["lora_alpha"] == 32


def test_qlora_holds_its_base_in_four_bits_on_a_cpu(config, capsys):
    pytest.importorskip("bitsandbytes")
    config = replace(config, adapter="qlora", max_steps=2)
    run = train_selector(config, "qlora_7b")
    assert "layers hold their weights in 4-bit NF4" in capsys.readouterr().out
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
    data = OracleConfig(corpora=["jsonl"], jsonl=[str(tmp_path / "edits.jsonl")], out=str(tmp_path / "one-group"))
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


def test_training_stops_when_exact_match_gets_no_better(config):
    config = evaluated(replace(config, max_steps=40), patience=1)
    run = train_selector(config, "sft_combined", [HeldOutMatch(config)])
    summary = json.loads((run / "summary.json").read_text())
    assert summary["steps"] == 4  # the first evaluation counts as the best so far, the next is no better
    assert (run / "checkpoint-2").exists()


def test_adapters_are_evaluated_with_the_base_they_sit_in(config):
    config = evaluated(replace(config, adapter="lora", max_steps=2))
    run = train_selector(config, "sft_combined", [HeldOutMatch(config)])
    assert [row["step"] for row in metrics_of(run) if "eval_exact_match" in row] == [0, 2]


def test_the_best_checkpoint_needs_checkpoints_where_it_is_evaluated(config):
    with pytest.raises(ValueError, match="save=steps save_steps=N"):
        replace(config, evaluation=EvaluationConfig(every=3))
    with pytest.raises(ValueError, match=r"patience=2 counts evaluations"):
        EvaluationConfig(patience=2)
