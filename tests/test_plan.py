"""Plans: operations of a step against a counter, memory by part against real tensors, and the command line."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from small_models import save_model, tiny_model
from torch.utils.flop_counter import FlopCounterMode
from transformers import MixtralConfig

from cad_train.config import TrainConfig
from cad_train.documents import attend_by_document, document_arguments
from cad_train.floor import architecture, matmul_rate, step_flops
from decoding.commandline import UserError, parse_config
from recipes.plan import (
    Memory,
    MicroBatch,
    Sharding,
    alternatives,
    kept_for_backward,
    longest_micro_batch,
    measured_examples,
    memory_parts,
    memory_text,
    parameters,
    saved_bytes,
    schema_of,
)

ROOT = Path(__file__).resolve().parent.parent
VOCABULARY = 700


# Operations


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("rank", [None, 4])
@pytest.mark.parametrize("kind", ["qwen2", "llama", "mistral"])
def test_a_steps_operations_are_what_a_counter_counts(kind, rank, checkpointing):
    """The counter sees attention over every pair of positions; the floor counts the causal half."""
    model = tiny_model(kind, VOCABULARY, seed=0).train()
    sizes = architecture(model.config)
    model.set_attn_implementation("eager")
    if rank:
        model = get_peft_model(model, LoraConfig(r=rank, target_modules="all-linear", task_type="CAUSAL_LM"))
        model.enable_input_require_grads()  # as TRL does under checkpointing
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": rank is not None})
    length, supervised = 37, torch.arange(30, 36)
    with FlopCounterMode(display=False) as counter:
        output = model(input_ids=torch.arange(length)[None], use_cache=False, logits_to_keep=supervised)
        output.logits.logsumexp(-1).sum().backward()
    counted = step_flops(sizes, [length], 6, lora_rank=rank, activation_checkpointing=checkpointing)
    pairs, all_pairs = length * (length + 1) // 2, length**2
    forwards = 4 if checkpointing else 3  # the backward is two
    masked_out = counted.attention // 3 // pairs * (all_pairs - pairs) * forwards
    assert counter.get_total_flops() == counted.total + masked_out
    assert counted.full_head * 6 == counted.head * length


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(1, 20))
def test_a_window_leaves_the_pairs_that_its_mask_leaves(lengths, window):
    full = architecture(tiny_model("mistral", VOCABULARY, seed=0).config)
    windowed = architecture(tiny_model("mistral", VOCABULARY, seed=0, window=window).config)
    ((cost, _), _) = windowed.attention
    assert windowed.products == full.products
    pairs = 0
    for length in lengths:
        query, key = torch.arange(length)[:, None], torch.arange(length)
        pairs += int(((key <= query) & (query - key < window)).sum())
    assert step_flops(windowed, lengths, 0).attention == 3 * 2 * cost * pairs  # two layers


def test_a_mixture_of_experts_has_no_floor():
    config = MixtralConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=2,
    )
    with pytest.raises(UserError, match="mixtral is a mixture of experts"):
        architecture(config)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_machines_rate_is_measured_on_the_models_own_products(dtype):
    assert matmul_rate(architecture(tiny_model("qwen2", VOCABULARY, seed=0).config), 8, dtype) > 0


# Memory


def settings(**changes) -> TrainConfig:
    return TrainConfig(activation_checkpointing=False, precision="fp32", **changes)


ONE_ROW = MicroBatch(rows=1, width=40, supervised=7)


@pytest.mark.parametrize("adapter", ["full", "lora"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_gradients_and_optimiser_are_the_bytes_of_the_tensors(adapter, dtype):
    model = tiny_model("qwen2", VOCABULARY, seed=0).to(getattr(torch, dtype)).train()
    config = model.config
    if adapter == "lora":
        model = get_peft_model(model, LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM"))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained)
    model(input_ids=torch.arange(8)[None]).logits.float().sum().backward()
    optimizer.step()
    plan = memory_parts(config, settings(adapter=adapter, dtype=dtype), ONE_ROW, in_bf16=False)
    states = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    assert plan.weights == sum(parameter.nbytes for parameter in model.parameters())
    assert plan.gradients == sum(parameter.grad.nbytes for parameter in trained)
    assert plan.optimiser == sum(state.nbytes for state in states)
    counts = sum(parameter.numel() for parameter in model.parameters()), sum(weight.numel() for weight in trained)
    assert parameters(config, settings(adapter=adapter)) == counts


@pytest.mark.parametrize("in_bf16", [False, True])
@pytest.mark.parametrize("heads", [(2, 1), (2, 2)])
@pytest.mark.parametrize("rows", [1, 3])
def test_activations_are_what_real_tensors_keep(rows, heads, in_bf16):
    model = tiny_model("qwen2", VOCABULARY, seed=0, heads=heads).train()
    batch = MicroBatch(rows, 40, supervised=7)
    ids = torch.zeros(rows, 40, dtype=torch.long)
    mask = torch.ones_like(ids)
    mask[1:, 30:] = 0

    def forward() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=in_bf16):
            return model.base_model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state

    assert saved_bytes(model.config, 2, batch, in_bf16, settings()) == kept_for_backward(model, forward)
    plan = memory_parts(model.config, settings(micro_batch=1), batch, in_bf16)
    assert plan.activations == kept_for_backward(model, forward)


@pytest.mark.parametrize("kind", ["qwen2", "mistral"])
def test_activations_of_documents_in_one_row_are_what_real_tensors_keep(kind):
    model = tiny_model(kind, VOCABULARY, seed=0, window=20 if kind == "mistral" else None).train()
    documents = (15, 30, 5)
    given = {"input_ids": torch.zeros(1, 50, dtype=torch.long), "use_cache": False}
    batch = MicroBatch(1, 50, supervised=7, documents=documents)
    config = copy.deepcopy(model.config)
    assert attend_by_document(model)
    given |= document_arguments(documents, model.device)
    kept = kept_for_backward(model, lambda: model.base_model(**given).last_hidden_state)
    assert saved_bytes(config, 2, batch, False, settings()) == kept


def test_settings_that_save_memory_do():
    config = tiny_model("qwen2", 50_000, seed=0).config
    given_settings = settings(batch_size=4, micro_batch=4)
    sizes = [(300, 20), (200, 10), (100, 5), (50, 5)]

    def total(other: TrainConfig, sharding: Sharding):
        return memory_parts(config, other, longest_micro_batch(sizes, other), False, sharding)

    base = total(given_settings, Sharding())
    others = alternatives(given_settings, 8)
    assert others.keys() >= {"activation_checkpointing=true", "optimizer=adamw_8bit", "micro_batch=1", "adapter=qlora"}
    for name, (other, sharding) in others.items():
        if name == "as given":
            continue
        changed = total(other, sharding)
        assert changed.total < base.total, name
    assert total(given_settings, Sharding(2, 4)).optimiser == base.optimiser // 4
    assert total(given_settings, Sharding(2, 4)).weights == base.weights
    assert total(given_settings, Sharding(3, 4)).weights == base.weights // 4


def test_one_example_a_micro_batch_is_an_alternative_to_several_without_padding():
    others = alternatives(settings(micro_batch=2, padding_free=True), 8)
    assert others["micro_batch=1 padding_free=false"][0].micro_batch == 1


def test_what_is_measured_decides_whether_a_run_fits():
    plans = {"as given": Memory(1, 1, 2, 1, 1, process=2), "other": Memory(1, 1, 2, 1, 1, process=1)}
    assert [memory.total for memory in plans.values()] == [8, 7]

    def verdicts(peak: int | None) -> list[str]:
        rows = [line.split(" | ") for line in memory_text(plans, peak, 8, on_cpu=True).splitlines()]
        return [row[-1].rstrip(" |") for row in rows if len(row) > 1][1:]

    assert verdicts(None) == verdicts(8) == ["yes", "yes"]
    assert verdicts(9) == ["no", "yes"]
    assert "will not fit" not in memory_text(plans, 8, 8, on_cpu=True)
    assert "By the estimate these do: other." in memory_text(plans, 9, 8, on_cpu=True)


def test_the_longest_micro_batch_comes_first():
    from datasets import Dataset

    from cad_train.examples import Examples

    lengths = [5, 9, 3, 7, 8, 2, 4]
    columns = {"input_ids": [[0] * n for n in lengths], "regions": [[-1] * (n - 1) + [4] for n in lengths]}
    examples = Examples(Dataset.from_dict(columns), max(lengths), [])

    class Plan(TrainConfig):
        steps = 2

    chosen = measured_examples(examples, Plan(batch_size=2))
    assert [len(row["input_ids"]) for row in chosen[:2]] == [9, 8]
    assert len(chosen) == 3 * 2
    sizes = [(length, 1) for length in lengths]
    assert longest_micro_batch(sizes, settings(micro_batch=2)) == MicroBatch(2, 9, 2)
    packed = settings(micro_batch=2, padding_free=True)
    assert longest_micro_batch(sizes, packed) == MicroBatch(1, 17, 2, (9, 8))


# The command line


def plan(*arguments: str) -> subprocess.CompletedProcess:
    env = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "recipes/plan.py", *arguments]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    probeedit = [f"data.probeedit.{key}" for key in ("cases=10", "min_lines=4", "max_lines=6")]
    return ["data.corpora=[probeedit]", *probeedit, f"data.out={tmp_path_factory.mktemp('oracles')}", "max_length=2048"]


def test_a_plan_without_weights_measures_real_steps(tmp_path, data):
    folder = save_model(tmp_path / "model", "qwen2")
    (folder / "model.safetensors").unlink()
    done = plan("recipe=sft_combined", f"model={folder}", "batch_size=2", "steps=1", *data)
    assert done.returncode == 0, done.stderr
    assert "8 examples, 24 steps of 2" in done.stdout
    for part in ("has no weights", "Measured peak", "its floor is", "for 24 steps", "| as given"):
        assert part in done.stdout
    assert sorted(path.name for path in folder.iterdir() if path.suffix == ".safetensors") == []


def test_a_plan_that_does_not_fit_says_what_would(tmp_path, data):
    folder = save_model(tmp_path / "model", "qwen2")
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "layer_types": None}
    config = json.loads((folder / "config.json").read_text()) | sizes
    (folder / "config.json").write_text(json.dumps(config))
    memory = "memory=7.3"  # GB; about 8.0 as given, 6.7 with checkpointing
    done = plan("recipe=sft_py", f"model={folder}", "activation_checkpointing=false", "measure=false", memory, *data)
    assert done.returncode == 0, done.stderr
    assert "The run as given will not fit" in done.stdout
    assert "activation_checkpointing=true" in done.stdout.partition("these do: ")[2]
    assert "64 steps" not in done.stdout and "8 steps of 8" in done.stdout  # sft_py's own 8 epochs


def test_a_plans_own_settings_are_checked_before_data_are_made():
    for memory in ("nan", "inf", "0"):
        with pytest.raises(UserError, match="memory=.*: must be above 0, and finite"):
            parse_config(schema_of("sft_combined"), [f"memory={memory}"])


def test_an_unknown_model_is_refused_by_name(tmp_path):
    done = plan("model=foo/bar", f"data.out={tmp_path / 'oracles'}")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "cannot load the model 'foo/bar': there is no folder foo/bar here" in done.stderr
    assert not (tmp_path / "oracles").exists()


def test_an_unknown_recipe_is_refused_by_name():
    done = plan("recipe=sft_combine")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "recipe=sft_combine: choose from" in done.stderr and "sft_combined" in done.stderr
    assert issubclass(schema_of("qlora_7b"), TrainConfig)
