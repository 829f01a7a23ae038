"""A matrix that embeds and projects gets the gradient that autograd would give it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import tiny_model
from torch import nn

from cad_train.tied import join_tied_gradients

VOCABULARY = 9


class Tied(nn.Module):
    """Embedding, something in between, head."""

    def __init__(self, embedding: nn.Embedding, bias: bool = False) -> None:
        super().__init__()
        self.embedding, self.head = embedding, nn.Linear(embedding.embedding_dim, VOCABULARY, bias=bias)
        self.head.weight = embedding.weight

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(ids).tanh())


def embedding(**settings) -> nn.Embedding:
    torch.manual_seed(0)
    return nn.Embedding(VOCABULARY, 4, **settings)


@settings(max_examples=50, deadline=None)
@given(
    batches=st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=6), min_size=1, max_size=3),
    padding=st.none() | st.integers(0, VOCABULARY - 1),
    bias=st.booleans(),
    in_bf16=st.booleans(),
)
def test_the_gradient_is_autograds_over_batches_repeated_tokens_and_padding(batches, padding, bias, in_bf16):
    models = [Tied(embedding(padding_idx=padding), bias) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    assert join_tied_gradients(models[0])
    for ids in map(torch.tensor, batches):
        for model in models:
            with torch.autocast("cpu", torch.bfloat16, enabled=in_bf16):
                logits = model(ids[None])
            (logits.float() ** 2).sum().backward()
    for ours, autograds in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(ours.grad, autograds.grad)


@pytest.fixture
def threads():
    """Two threads; the other tests have one."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
def test_the_gradient_is_the_same_bit_for_bit_every_time():
    torch.manual_seed(0)
    model = Tied(nn.Embedding(VOCABULARY, 512))
    assert join_tied_gradients(model)
    ids = torch.randint(VOCABULARY, (1, 800))  # enough to be divided over threads
    targets = torch.randn(1, 800, VOCABULARY)  # so that no two positions add the same
    gradients = []
    for _ in range(10):
        model.zero_grad()
        (model(ids) * targets).sum().backward()
        gradients.append(model.head.weight.grad)
    assert all(torch.equal(gradients[0], other) for other in gradients)


def test_one_of_the_two_may_be_called_alone_and_nothing_of_a_graph_is_used_twice():
    model = Tied(embedding())
    assert join_tied_gradients(model)
    hidden = torch.ones(2, 4)
    model.head(hidden).sum().backward()
    assert torch.equal(model.head.weight.grad, torch.full((VOCABULARY, 4), 2.0))
    model.head.weight.grad = None
    rows = model.embedding(torch.tensor([3, 3]))
    with torch.no_grad():
        expected = nn.functional.linear(hidden, model.head.weight)
        assert torch.equal(model.head(hidden), expected)
    rows.sum().backward()
    assert torch.equal(model.head.weight.grad.sum(1), torch.tensor([0.0] * 3 + [8.0] + [0.0] * 5))
    model.head(hidden).sum().backward()
    assert model.head.weight.grad.sum() == 8 + 2 * 4 * VOCABULARY


class Scaled(nn.Embedding):
    """As Gemma has it: more than a look-up."""


@pytest.mark.parametrize(
    "model",
    [
        Tied(Scaled(VOCABULARY, 4)),
        Tied(embedding(max_norm=1.0)),
        Tied(embedding(scale_grad_by_freq=True)),
        Tied(embedding()).requires_grad_(False),
        tiny_model("qwen2", VOCABULARY, seed=0),
    ],
    ids=["another class", "renormalised", "scaled by frequency", "frozen", "two matrices"],
)
def test_what_is_not_plainly_tied_and_trained_is_left_alone(model):
    modules = model.get_input_embeddings(), model.get_output_embeddings()
    assert not join_tied_gradients(model)
    assert not any("forward" in vars(module) for module in modules)
