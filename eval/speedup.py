"""The paper's speed model: s(N), how much faster N tokens are in one forward than one by one, and the bound from it."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SpeedupCurve:
    """s(N) = T_AR(N) / T_PP(N) at ``lengths`` (ascending), log-linear in between and flat beyond (paper Table 2)."""

    lengths: tuple[int, ...]
    values: tuple[float, ...]

    def __call__(self, n: float) -> float:
        """Return s at ``n`` > 0 tokens."""
        if n <= self.lengths[0]:
            return self.values[0]
        if n >= self.lengths[-1]:
            return self.values[-1]
        at = bisect_left(self.lengths, n)
        left, right = self.lengths[at - 1], self.lengths[at]
        share = math.log(n / left) / math.log(right / left)
        return self.values[at - 1] + share * (self.values[at] - self.values[at - 1])


def bound(total: int, spans: Iterable[int], curve: SpeedupCurve) -> float:
    """Return T / (T_gen + sum N_k / s(N_k)) for copy spans of N_k tokens (paper equation 3); spans may be empty.

    It counts one forward for each token that is not copied, and nothing for tags.
    """
    lengths = [n for n in spans if n]
    return total / max(total - sum(lengths) + sum(n / curve(n) for n in lengths), 1e-9)
