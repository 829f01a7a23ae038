"""Examples to batches: padded rows, or, without padding, one row in which each example is its own document."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cad_train.examples import UNSUPERVISED
from cad_train.loss import IGNORED


@dataclass(frozen=True)
class Collator:
    """Makes a batch of examples: ``input_ids``, ``labels``, ``regions``, all ``[rows, width]``.

    Padded, each example is a row, with an ``attention_mask``. With ``padding_free`` all examples stand in one row, and
    ``position_ids`` that start again at 0 keep them apart; no label crosses from one to the next.
    """

    pad: int
    padding_free: bool = False

    def __call__(self, examples: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        """Return the batch of ``examples`` with their columns ``input_ids`` and ``regions``."""
        if self.padding_free:
            ids = [token for example in examples for token in example["input_ids"]]
            # The first token of a document has no context here to be predicted from.
            regions = [r for example in examples for r in (UNSUPERVISED, *example["regions"][1:])]
            batch = {"input_ids": torch.tensor([ids]), "regions": torch.tensor([regions])}
            positions = [at for example in examples for at in range(len(example["input_ids"]))]
            batch["position_ids"] = torch.tensor([positions])
        else:
            width = max(len(example["input_ids"]) for example in examples)
            batch = {
                name: torch.tensor([example[name] + [fill] * (width - len(example[name])) for example in examples])
                for name, fill in (("input_ids", self.pad), ("regions", UNSUPERVISED))
            }
            lengths = torch.tensor([len(example["input_ids"]) for example in examples])
            batch["attention_mask"] = (torch.arange(width) < lengths[:, None]).long()
        batch["labels"] = batch["input_ids"].masked_fill(batch["regions"] == UNSUPERVISED, IGNORED)
        return batch
