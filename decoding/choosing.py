"""The choice of the next id: the best, or a sampled, legal one, for many positions of many sequences at once."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import torch


class State(Protocol):
    """A position in a grammar."""

    length: int  # ids so far

    @property
    def ended(self) -> bool:
        """Whether nothing is left to choose."""


class Grammar(Protocol):
    """What may follow what. States are immutable: a draft that fails is rolled back by forgetting its states."""

    start: State

    def allowed(self, state: State) -> tuple[int, ...] | None:
        """Return the legal next ids; None where a whole mask says, see ``mask_row``."""

    def mask_row(self, state: State) -> int:
        """Return the row of the chooser's masks that holds where ``allowed`` is None."""

    def advance(self, state: State, token: int) -> State:
        """Return the state after ``token``; ValueError if it is not legal."""

    def forced(self, state: State) -> tuple[list[int], State]:
        """Return the ids that must follow, and the state after them."""


class Decision(NamedTuple):
    """One choice to make: which ids are legal, and what its noise depends on."""

    legal: tuple[int, ...] | None
    mask_row: int
    number: int  # of the request
    position: int  # of the id in its program


class Chooser:
    """Chooses legal ids from logits.

    Args:
        masks: bool ``[rows, ids]``, the legal ids of states without a short list; ids beyond are illegal. A last row
            that allows everything is added: ``unmasked``.
        vocabulary: columns of the logits.
        temperature: 0 chooses the best id; above 0 samples from the legal ones.
        seed: of the sampling noise.
    """

    def __init__(
        self, masks: np.ndarray, vocabulary: int, device: torch.device, temperature: float = 0.0, seed: int = 0
    ) -> None:
        self.unmasked = len(masks)
        self.temperature, self.seed = temperature, seed
        # As lists: next to the vocabulary few ids are illegal in text, and only these need touching.
        self._forbidden = []
        for mask in masks:
            forbidden = np.ones(vocabulary, dtype=bool)
            width = min(vocabulary, len(mask))
            forbidden[:width] = ~mask[:width]
            self._forbidden.append(torch.from_numpy(forbidden.nonzero()[0]).to(device))

    @torch.inference_mode()
    def __call__(self, logits: torch.Tensor, decisions: list[Decision]) -> list[tuple[int, float]]:
        """Return for every row of ``logits`` ``[decisions, vocabulary]`` the chosen id and its log-probability.

        Overwrites the logits of illegal ids. The probability is the model's own over the legal ids, whatever the
        temperature. Sampling adds Gumbel noise that depends on seed, request and position alone, so it chooses alike
        however the loop feeds tokens.
        """
        chosen: list[tuple[int, float]] = [(-1, 0.0)] * len(decisions)
        listed = [row for row, decision in enumerate(decisions) if decision.legal is not None]
        masked = [row for row, decision in enumerate(decisions) if decision.legal is None]
        if listed:
            longest = max(len(decisions[row].legal) for row in listed)
            table = torch.tensor(
                [decisions[row].legal + (-1,) * (longest - len(decisions[row].legal)) for row in listed]
            )
            table = table.to(logits.device)
            rows = torch.tensor(listed, device=logits.device)
            scores = logits[rows[:, None], table.clamp(min=0)].float().masked_fill(table < 0, float("-inf"))
            best, logs = self._best(scores, [decisions[row] for row in listed])
            ids = table.gather(1, best[:, None])[:, 0]
            for row, token, log in zip(listed, ids.tolist(), logs.tolist(), strict=True):
                chosen[row] = (token, log)
        if masked:
            scores = logits if len(masked) == len(decisions) else logits[torch.tensor(masked, device=logits.device)]
            scores = scores.float()
            for at, row in enumerate(masked):
                if (kind := decisions[row].mask_row) != self.unmasked:
                    scores[at, self._forbidden[kind]] = float("-inf")
            best, logs = self._best(scores, [decisions[row] for row in masked])
            for row, token, log in zip(masked, best.tolist(), logs.tolist(), strict=True):
                chosen[row] = (token, log)
        return chosen

    def _best(self, scores: torch.Tensor, decisions: list[Decision]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the chosen columns and the log-probabilities of these, both ``[decisions]``."""
        ranked = scores
        if self.temperature > 0:
            ranked = scores / self.temperature
            for row, decision in enumerate(decisions):
                size = scores.shape[1] if decision.legal is None else len(decision.legal)
                ranked[row, :size] += self._gumbel(size, decision).to(scores.device)
        best = ranked.argmax(-1)
        return best, scores.gather(1, best[:, None])[:, 0] - scores.logsumexp(-1)

    def _gumbel(self, size: int, decision: Decision) -> torch.Tensor:
        """Noise that makes argmax a sample (the Gumbel-max trick)."""
        key = hash((self.seed, decision.number, decision.position)) & (2**63 - 1)
        return -torch.empty(size).exponential_(generator=torch.Generator().manual_seed(key)).log()
