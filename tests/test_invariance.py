"""Micro-batches, accumulation, padding and kernels change nothing: the same examples a step, losses and gradients."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from datasets import Dataset, Features, List, Value
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import save_model, tiny_model, tokenizer_of
from torch.utils.data import BatchSampler
from training_runs import finish, metrics, recipe_line, run, start, weights
from transformers.utils import is_flash_attn_2_available

from cad_train.batches import Collator, EpochOrder, with_blanks
from cad_train.documents import attend_by_document
from cad_train.examples import UNSUPERVISED
from cad_train.loss import region_losses, summarise_regions
from cad_train.tied import join_tied_gradients
from cad_train.trainer import SelectorTrainer
from decoding.encoder import REGIONS

FEATURES = Features({"input_ids": List(Value("int32")), "regions": List(Value("int8"))})


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"), "qwen2", tied=True)


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory, model_folder: Path):
    """Train five steps of eight examples over 11, so that an epoch ends in the middle; return the run folder."""
    folder = tmp_path_factory.mktemp("runs")

    @cache
    def train(*settings: str) -> Path:
        out = folder / "-".join(["run", *settings])
        fixed = ["batch_size=8", "max_steps=5", "save=no"]
        run(recipe_line(model_folder, folder / "oracles", out, *fixed, *settings), folder / "log")
        return out

    return train


def assert_same_trajectory(got: Path, expected: Path) -> None:
    """Losses and gradient norms of every step agree, and do not drift to one side; so do the trained weights."""
    for figure in ("loss", "grad_norm", "nll_end_digits", "accuracy", "eval_nll"):
        a, b = (torch.tensor([row[figure] for row in metrics(run, of=figure)]) for run in (got, expected))
        torch.testing.assert_close(a, b, rtol=2e-6, atol=0, msg=lambda text: f"{figure}: {text}")  # noqa: B023
        assert abs(((a - b) / b.clamp(min=1e-9)).mean()) < 1e-6, figure
    ours, theirs = weights(got / "final"), weights(expected / "final")
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        torch.testing.assert_close(weight, theirs[name], rtol=1e-5, atol=1e-5, msg=lambda text: f"{name}: {text}")  # noqa: B023


FREE = ("padding_free=true", "micro_batch=4")
WEIGHTED = ("loss.weights.end_digits=2", "loss.weights.structure=0.5")


@pytest.mark.parametrize(
    ("common", "divided"),
    [
        ((), ("micro_batch=4",)),
        ((), ("micro_batch=1",)),
        (WEIGHTED, ("micro_batch=1",)),
        (("group_by_length=true",), ("micro_batch=2",)),
        ((), FREE),
        ((), (*FREE, "attention=eager")),
        (("splice=full",), (*FREE, "activation_checkpointing=true")),
        (("adapter=lora", "rslora=true", "dora=true"), ("micro_batch=2",)),
    ],
    ids=lambda settings: "+".join(settings) or "plain",
)
def test_a_step_is_the_same_however_its_examples_are_divided(common, divided, train):
    assert_same_trajectory(train(*common, *divided), train(*common, "micro_batch=8"))


def test_the_weights_of_regions_change_what_is_learnt(train):
    plain, weighted = (metrics(train(*settings, "micro_batch=8")) for settings in ((), WEIGHTED))
    assert plain[0]["nll"] == pytest.approx(weighted[0]["nll"], rel=1e-6)  # the account is unweighted
    assert plain[0]["loss"] == pytest.approx(plain[0]["nll"], rel=1e-6)
    assert weighted[0]["loss"] != pytest.approx(weighted[0]["nll"], rel=1e-3)


def test_held_out_loss_does_not_depend_on_the_batch(train):
    runs = (train(f"micro_batch={size}") for size in (1, 4, 8))
    losses = [row["eval_nll"] for run in runs for row in metrics(run, of="eval_nll")]
    assert len(losses) == 3 and max(losses) == pytest.approx(min(losses), rel=1e-6)


@pytest.mark.parametrize("optimizer", ["paged_adamw", "adamw_8bit", "paged_adamw_8bit"])
def test_optimisers_of_bitsandbytes_train_on_a_cpu_too(optimizer, train):
    pytest.importorskip("bitsandbytes")
    got, expected = (
        [row["loss"] for row in metrics(train(*settings, "micro_batch=8"))]
        for settings in ((f"optimizer={optimizer}",), ())
    )
    # 32 bits are AdamW; 8 bits are near it.
    assert got == pytest.approx(expected, rel=1e-2 if "8bit" in optimizer else 1e-5)
    assert got[-1] < got[0]


def test_a_model_that_would_read_across_examples_is_refused_without_padding(tmp_path):
    from transformers import FalconMambaConfig, FalconMambaForCausalLM

    tokenizer = tokenizer_of("byte_level")
    tokenizer.save_pretrained(tmp_path / "model")
    size = {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, "tie_word_embeddings": False}
    FalconMambaForCausalLM(FalconMambaConfig(vocab_size=len(tokenizer), **size)).save_pretrained(tmp_path / "model")
    log = tmp_path / "log"
    settings = ["max_steps=1", "attention=eager", *FREE]
    line = recipe_line(tmp_path / "model", tmp_path / "oracles", tmp_path / "run", *settings)
    assert finish(start(line, log)) == 2
    assert "has recurrent layers, which would read across examples" in log.read_text()


@pytest.mark.skipif(is_flash_attn_2_available(), reason="flash-attn is installed")
def test_a_kernel_that_is_not_there_is_refused(tmp_path, model_folder):
    log = tmp_path / "log"
    line = recipe_line(model_folder, tmp_path / "oracles", tmp_path / "run", "attention=flash_attention_2")
    assert finish(start(line, log)) == 2
    assert "attention=flash_attention_2 needs a GPU and the package flash-attn" in log.read_text()


# The order


@settings(max_examples=50, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=40),
    micro_batch=st.sampled_from([1, 2, 4]),
    processes=st.sampled_from([1, 2]),
    group=st.sampled_from([0, 8]),
    seed=st.integers(0, 3),
)
def test_every_step_sees_the_same_examples_once_whatever_the_processes(lengths, micro_batch, processes, group, seed):
    """What accelerate deals out to processes, put together again by optimiser step, against the order itself."""
    from accelerate.data_loader import BatchSamplerShard

    together = micro_batch * processes
    rows = {"input_ids": [[1] * length for length in lengths], "regions": [[0] * length for length in lengths]}
    dataset = with_blanks(Dataset.from_dict(rows, features=FEATURES), together)
    assert len(dataset) % together == 0
    assert all(row["regions"] == [UNSUPERVISED] for row in list(dataset)[len(lengths) :])

    order = EpochOrder(lengths, len(dataset) - len(lengths), group, seed)
    assert len(order) == len(dataset)
    expected = [list(EpochOrder(lengths, 0, group, seed))[at : at + 8] for at in range(0, len(lengths), 8)]
    assert sorted(sum(expected, [])) == list(range(len(lengths)))
    shares = [
        list(BatchSamplerShard(BatchSampler(order, micro_batch, drop_last=False), processes, index))
        for index in range(processes)
    ]
    accumulation = 8 // together
    steps = []
    for at in range(0, len(shares[0]), accumulation):
        seen = sum((sum(share[at : at + accumulation], []) for share in shares), [])
        steps.append([number for number in seen if number < len(lengths)])
    assert [sorted(step) for step in steps] == [sorted(step) for step in expected]


def test_epochs_and_seeds_have_different_orders():
    orders = set()
    for seed in range(3):
        order = EpochOrder([5] * 20, 0, 0, seed)
        for order.epoch in range(3):
            orders.add(tuple(order))
            assert tuple(order) == tuple(order)
    assert len(orders) == 9


def test_examples_of_similar_length_stand_together():
    lengths = [(number * 37) % 101 for number in range(96)]
    grouped, random = (list(EpochOrder(lengths, 0, group, 0)) for group in (8, 0))

    def spread(order: list[int]) -> int:
        batches = (sorted(lengths[number] for number in order[at : at + 8]) for at in range(0, 96, 8))
        return sum(batch[-1] - batch[0] for batch in batches)

    assert spread(grouped) < spread(random) / 2


# The loss


@settings(max_examples=25, deadline=None)
@given(
    regions=st.lists(
        st.lists(st.integers(UNSUPERVISED, len(REGIONS) - 1), min_size=2, max_size=9), min_size=1, max_size=3
    ),
    seed=st.integers(0, 1000),
    padding_free=st.booleans(),
    by_document=st.booleans(),
    tied=st.booleans(),
    kind=st.sampled_from(["qwen2", "llama", "mistral"]),
)
def test_only_supervised_positions_are_projected_and_the_loss_is_plain_cross_entropy(
    regions, seed, padding_free, by_document, tied, kind
):
    """Against the model's own loss over all logits, for any pattern of supervised tokens, and its gradient."""
    window = 3 if kind == "mistral" else None
    model, plain = (tiny_model(kind, 60, seed=1, window=window, tied=tied) for _ in range(2))
    assert join_tied_gradients(model) == tied
    random = torch.Generator().manual_seed(seed)
    rows = [{"input_ids": torch.randint(60, (len(row),), generator=random).tolist(), "regions": row} for row in regions]
    supervised = sum(region != UNSUPERVISED for row in regions for region in row[1:])
    batch = Collator(0, padding_free)(rows)
    projected = []
    model.lm_head.register_forward_hook(lambda _, inputs, output: projected.append(output.numel() // 60))
    trainer = SelectorTrainer.__new__(SelectorTrainer)
    trainer.weights, trainer.account = torch.ones(len(REGIONS)), torch.zeros(len(REGIONS), 3)
    trainer.by_document = by_document and attend_by_document(model)
    trainer.accelerator = type("One", (), {"num_processes": 1})
    total = torch.tensor(float(max(supervised, 1)))
    ours = SelectorTrainer.compute_loss(trainer, model, batch, num_items_in_batch=total)
    assert projected == [supervised]
    ours.backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters()}

    theirs = torch.zeros(())
    for row in rows:
        ids = torch.tensor([row["input_ids"]])
        labels = ids.masked_fill(torch.tensor([row["regions"]]) == UNSUPERVISED, -100)
        if (labels[:, 1:] != -100).any():
            theirs = theirs + plain(ids, labels=labels, num_items_in_batch=total).loss
    torch.testing.assert_close(ours.detach(), theirs.detach(), rtol=1e-5, atol=1e-6)
    if supervised:
        theirs.backward()
        for name, weight in plain.named_parameters():
            torch.testing.assert_close(gradients[name], weight.grad, rtol=1e-4, atol=1e-5)
    assert trainer.account[:, 2].sum() == supervised


def test_losses_and_choices_are_counted_by_region():
    names = ["structure", "end_digits", "end_digits", "gen_text"]
    regions = torch.tensor([REGIONS.index(name) for name in names])
    logits = torch.zeros(4, 10)
    logits[1, 3] = 5.0
    labels = torch.tensor([0, 3, 4, 9])
    weights = torch.ones(len(REGIONS))
    weights[REGIONS.index("end_digits")] = 2.0
    loss, account = region_losses(logits, labels, regions, weights)
    each = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    torch.testing.assert_close(loss, each[0] + 2 * each[1] + 2 * each[2] + each[3])
    summary = summarise_regions(account)
    assert summary["nll"] == pytest.approx(each.mean().item())
    assert summary["nll_end_digits"] == pytest.approx((each[1] + each[2]).item() / 2)
    assert summary["accuracy_end_digits"] == 0.5
    assert "nll_start_digits" not in summary
