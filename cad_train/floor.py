"""What an optimiser step costs at least: its floating-point operations in matrix products, over the machine's rate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from decoding.commandline import UserError

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig

_TIMED_S = 0.2  # of every product, at least
_MOST_TOKENS = 2048  # rows of a timed product


@dataclass(frozen=True)
class Architecture:
    """The sizes of a causal LM that its matrix products come from.

    Attributes:
        products: how many matrices of ``(in, out)`` the body multiplies a token with, the output head apart.
        final: weights of the last matrix of every layer: checkpointing need not multiply with it again.
        head: ``(in, out)`` of the output head.
        attention: for every layer with softmax attention, operations per pair of query and key in a forward, and its
            window or None.
    """

    products: Counter[tuple[int, int]]
    final: int
    head: tuple[int, int]
    attention: tuple[tuple[int, int | None], ...]

    @property
    def body(self) -> int:
        """Weights of the body that every token is multiplied with."""
        return sum(count * rows * columns for (rows, columns), count in self.products.items())

    def adapters(self, rank: int) -> int:
        """Weights of LoRA adapters of ``rank`` on every matrix of the body."""
        return sum(count * rank * (rows + columns) for (rows, columns), count in self.products.items())


@dataclass(frozen=True)
class StepFlops:
    """Floating-point operations of the matrix products of one optimiser step, by part; a multiply-add is two.

    Attributes:
        body: the layers' products with weights (and adapters), forward and backward.
        attention: queries with keys, and weights with values, over the pairs that the causal mask leaves.
        recomputed: what activation checkpointing computes again.
        head: the output head over supervised positions.
        full_head: the head over every position instead; not part of ``total``.
    """

    body: int
    attention: int
    recomputed: int
    head: int
    full_head: int

    @property
    def total(self) -> int:
        """The least that the step needs."""
        return self.body + self.attention + self.recomputed + self.head


def architecture(config: PretrainedConfig) -> Architecture:
    """Return the sizes of the model of ``config``, from modules without memory.

    Raises:
        UserError: a mixture of experts, where the products depend on the text.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.modeling_layers import GradientCheckpointingLayer
    from transformers.pytorch_utils import Conv1D

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    text = config.get_text_config()
    if any(getattr(text, name, None) for name in ("num_experts", "num_local_experts", "n_routed_experts")):
        raise UserError(f"{config.model_type} is a mixture of experts: the floor of a step is counted for dense models")

    def matrix(module: torch.nn.Module) -> tuple[int, int]:
        return tuple(module.weight.shape) if isinstance(module, Conv1D) else (module.in_features, module.out_features)

    head = model.get_output_embeddings()
    linear = {name: m for name, m in model.named_modules() if isinstance(m, torch.nn.Linear | Conv1D) and m is not head}
    layers = [name for name, module in model.named_modules() if isinstance(module, GradientCheckpointingLayer)]
    last = [[m for name, m in linear.items() if name.startswith(f"{layer}.")][-1] for layer in layers]
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    window = getattr(text, "sliding_window", None)
    kinds = getattr(text, "layer_types", None) or ["sliding_attention" if window else "full_attention"] * len(layers)
    windows = {"full_attention": None, "sliding_attention": window}
    return Architecture(
        products=Counter(map(matrix, linear.values())),
        final=sum(module.weight.numel() for module in last),
        head=matrix(head),
        # Two products, a multiply and an add for every channel of every head.
        attention=tuple((4 * text.num_attention_heads * size, windows[kind]) for kind in kinds if kind in windows),
    )


def step_flops(
    model: Architecture,
    lengths: Sequence[int],
    supervised: int,
    *,
    lora_rank: int | None = None,
    activation_checkpointing: bool = False,
) -> StepFlops:
    """Count an optimiser step over examples of ``lengths`` tokens with ``supervised`` targets in all.

    A product y = Wx takes 2 operations per weight and token; its backward takes 2 for the gradient of x and 2 for that
    of W, which a frozen W does not need. Attention's backward takes twice its forward. Checkpointing runs every layer
    forward again, without its last product where all weights are trained (what follows from it is not needed); under
    adapters, reentrant checkpointing repeats that too. Embeddings, norms, softmax and the optimiser count nothing.

    Args:
        lora_rank: of adapters on every matrix of the body, which is frozen then, as is the head; None trains all.
    """
    tokens = sum(lengths)
    pairs = {window: sum(map(lambda n, w=window: _pairs(n, w), lengths)) for _, window in model.attention}
    attention = sum(cost * pairs[window] for cost, window in model.attention)
    head = 2 * model.head[0] * model.head[1]
    if lora_rank is None:
        body, passes, again = 2 * model.body * 3, 3, model.body - model.final
    else:
        adapters = model.adapters(lora_rank)
        body, passes, again = 2 * (model.body * 2 + adapters * 3), 2, model.body + adapters
    return StepFlops(
        body=body * tokens,
        attention=3 * attention,
        recomputed=(2 * again * tokens + attention) if activation_checkpointing else 0,
        head=passes * head * supervised,
        full_head=passes * head * tokens,
    )


def _pairs(length: int, window: int | None) -> int:
    """Pairs of a query and a key that is not after it, nor ``window`` or more before it."""
    full = min(length, window or length)
    return full * (full + 1) // 2 + (length - full) * full


def matmul_rate(model: Architecture, tokens: int, dtype: torch.dtype, device: str = "cpu") -> float:
    """Return floating-point operations per second of the model's own products over ``tokens`` tokens, as measured.

    Each shape of the body is timed in its three products (forward, and the gradients of input and weight), the best of
    several, and counts by its share of the operations.
    """
    import torch

    tokens = min(max(tokens, 1), _MOST_TOKENS)
    operations = seconds = 0.0
    for (rows, columns), count in model.products.items():
        x, w, y = (
            torch.randn(shape, dtype=dtype, device=device)
            for shape in ((tokens, rows), (columns, rows), (tokens, columns))
        )
        for left, right in ((x, w.t()), (y, w), (y.t(), x)):
            seconds += count * _best_seconds(left, right)
        operations += count * 6 * tokens * rows * columns
    return operations / seconds


def _best_seconds(left: torch.Tensor, right: torch.Tensor) -> float:
    import torch
    from torch.utils.benchmark import Timer

    product = Timer("left @ right", globals={"left": left, "right": right}, num_threads=torch.get_num_threads())
    return min(product.blocked_autorange(min_run_time=_TIMED_S).times)
