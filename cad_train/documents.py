"""Attention within each document of a row that holds several, for batches without padding and without flash-attn.

Under a mask, attention over a row costs the square of the whole row; document by document, it costs the sum of squares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_ATTENTION = "sdpa_by_document"


def attend_by_document(model: PreTrainedModel) -> bool:
    """Let ``model`` take ``document_arguments``; called without them, it attends as before.

    Returns:
        Whether it takes them: it attends with sdpa, to all before or to a window, and passes its attention on.
    """
    text = model.config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ())
    if text._attn_implementation != "sdpa" or kinds - {"full_attention", "sliding_attention"}:
        return False
    if not model._supports_attention_backend:
        return False
    model.set_attn_implementation(_ATTENTION)
    return True


def document_arguments(lengths: tuple[int, ...], device: torch.device) -> dict[str, object]:
    """Return what a forward of one row of documents of ``lengths`` tokens is called with, beside ids and positions."""
    # Models return a mask of four dimensions as it is, and so make none of their own.
    return {"document_lengths": lengths, "attention_mask": torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device)}


def _attention(module, query, key, value, attention_mask, document_lengths=None, **kwargs):
    """Attention of queries ``[rows, heads, tokens, size]``; transformers' attention interface."""
    if document_lengths is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    documents = zip(*(tensor.split(document_lengths, dim=2) for tensor in (query, key, value)), strict=True)
    window, outputs = kwargs.get("sliding_window"), []
    for own, length in zip(documents, document_lengths, strict=True):
        mask = None  # causal
        if window and length > window:
            at = torch.arange(length, device=query.device)
            back = at[:, None] - at
            mask = ((back >= 0) & (back < window))[None, None]
        outputs.append(sdpa_attention_forward(module, *own, mask, **kwargs)[0])
    return torch.cat(outputs, dim=1), None


AttentionInterface.register(_ATTENTION, _attention)
AttentionMaskInterface.register(_ATTENTION, sdpa_mask)
