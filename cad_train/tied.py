"""One gradient for a matrix that is both input embedding and output head.

Autograd makes one for each use, both of the whole vocabulary, and sums them into a third. The head's is dense anyway;
the embedding's has a row per token of the batch, which can be added there.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


def join_tied_gradients(model: nn.Module) -> bool:
    """Let the embedding and the head of ``model`` make one gradient, where they train one matrix; values stay the same.

    For a matrix that is whole in each process, not one that ZeRO-3 or FSDP gather for a module at a time. Classes other
    than torch's own may do more than look up and multiply, and are left alone.

    Returns:
        Whether there is such a matrix.
    """
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if type(embedding) is not nn.Embedding or type(head) is not nn.Linear or embedding.weight is not head.weight:
        return False
    if not head.weight.requires_grad or embedding.max_norm is not None or embedding.scale_grad_by_freq:
        return False
    tied = _Tied(embedding, head)
    embedding.forward, head.forward = tied.embed, tied.project
    return True


class _Tied:
    """Forwards of an embedding and a head that share their weight."""

    def __init__(self, embedding: nn.Embedding, head: nn.Linear) -> None:
        self._embedding, self._head = embedding, head
        self._for_head: torch.Tensor | None = None  # the weight, of the graph that the embedding began

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        rows, self._for_head = _OneGradient.apply(self._embedding.weight, ids, self._embedding.padding_idx)
        return rows

    def project(self, hidden: torch.Tensor) -> torch.Tensor:
        weight, self._for_head = self._for_head, None  # a graph goes backward once
        return functional.linear(hidden, self._head.weight if weight is None else weight, self._head.bias)


class _OneGradient(torch.autograd.Function):
    """``weight -> (weight[ids], weight)``; backward, what comes for the first is added to what comes for the second."""

    @staticmethod
    def forward(ctx, weight: torch.Tensor, ids: torch.Tensor, padding_idx: int | None):
        ctx.save_for_backward(ids)
        ctx.padding_idx = padding_idx
        return functional.embedding(ids, weight), weight.view_as(weight)

    @staticmethod
    def backward(ctx, rows: torch.Tensor, gradient: torch.Tensor):
        (ids,) = ctx.saved_tensors
        if ctx.padding_idx is not None:  # as nn.Embedding has it
            rows = rows.masked_fill((ids == ctx.padding_idx)[..., None], 0)
        rows = rows.to(gradient.dtype)
        # The head alone made `gradient`, for this. Each adds in a fixed order on one kind of device only.
        if gradient.is_cuda:
            gradient.index_put_((ids,), rows, accumulate=True)
        else:
            gradient.index_add_(0, ids.flatten(), rows.flatten(0, -2))
        return gradient, None, None
