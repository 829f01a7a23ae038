"""The loss of a selector: cross-entropy over supervised positions, weighted and counted by region of the program."""

from __future__ import annotations

import torch

from decoding.encoder import REGIONS

IGNORED = -100  # the label of a token without loss
COUNTED = 3  # sum of losses, right choices, tokens


def region_losses(
    logits: torch.Tensor, labels: torch.Tensor, regions: torch.Tensor, weights: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weighted sum of cross-entropies and, by region, [sum of losses, right choices, tokens].

    Args:
        logits: ``[supervised, vocabulary]``; computed on in float32.
        labels: ``[supervised]``, the ids to predict there.
        regions: ``[supervised]``, indices of ``REGIONS``.
        weights: ``[regions]``, what a token of each region counts for.
    """
    logits, regions = logits.float(), regions.long()
    losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    with torch.no_grad():
        right = (logits.argmax(-1) == labels).to(losses)
        counted = torch.stack([losses.detach(), right, torch.ones_like(losses)], dim=1)
        account = torch.zeros(len(REGIONS), COUNTED, device=losses.device).index_add_(0, regions, counted)
    return (losses * weights[regions]).sum(), account


def summarise_regions(account: torch.Tensor) -> dict[str, float]:
    """Return mean loss and accuracy over all tokens and by region, from a sum of accounts; empty ones are left out."""
    rows = {"": account.sum(0), **{f"_{region}": account[index] for index, region in enumerate(REGIONS)}}
    out = {}
    for suffix, (losses, right, tokens) in ((name, row.tolist()) for name, row in rows.items()):
        if tokens:
            out[f"nll{suffix}"] = losses / tokens
            out[f"accuracy{suffix}"] = right / tokens
    return out
