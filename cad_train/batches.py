"""Examples to batches: their order, and padded rows or, without padding, one row in which each is its own document."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from transformers.trainer_pt_utils import get_length_grouped_indices

from cad_train.examples import UNSUPERVISED
from cad_train.loss import IGNORED

if TYPE_CHECKING:
    from datasets import Dataset


class EpochOrder(torch.utils.data.Sampler[int]):
    """The order of examples: of seed and epoch alone, so that no process, micro-batch or resume changes it.

    Args:
        lengths: of every example, in tokens.
        blanks: how many examples without a supervised token follow them; they come last in every epoch.
        group: 0 for any order; else so many examples in a row are of similar length.
        seed: of the order.

    Attributes:
        epoch: the epoch to iterate over.
    """

    def __init__(self, lengths: list[int], blanks: int, group: int, seed: int) -> None:
        self.lengths, self.blanks, self.group, self.seed = lengths, blanks, group, seed
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.lengths) + self.blanks

    def __iter__(self) -> Iterator[int]:
        seed = int(np.random.SeedSequence([self.seed, self.epoch]).generate_state(1)[0])
        random = torch.Generator().manual_seed(seed)
        if self.group:
            yield from get_length_grouped_indices(self.lengths, self.group, generator=random)
        else:
            yield from torch.randperm(len(self.lengths), generator=random).tolist()
        yield from range(len(self.lengths), len(self))


def with_blanks(dataset: Dataset, multiple: int) -> Dataset:
    """Fill ``dataset`` up to a ``multiple`` with examples of one token and no loss.

    Processes take equally many batches; the library would show some of them examples of the first batch again.
    """
    from datasets import Dataset, concatenate_datasets

    missing = -len(dataset) % multiple
    if not missing:
        return dataset
    blank = {"input_ids": [[0]] * missing, "regions": [[UNSUPERVISED]] * missing}
    return concatenate_datasets([dataset, Dataset.from_dict(blank, features=dataset.features)])


@dataclass(frozen=True)
class Collator:
    """Makes a batch of examples: ``input_ids``, ``labels``, ``regions``, all ``[rows, width]``.

    Padded, each example is a row, with an ``attention_mask``. With ``padding_free`` all examples stand in one row, and
    ``position_ids`` that start again at 0 keep them apart, as their ``lengths`` do; no label crosses from one to the
    next.
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
            batch["lengths"] = tuple(len(example["input_ids"]) for example in examples)
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
