"""Paired tests and intervals over cases: the exact paired test and the bootstrap. Numpy, no torch.

A case is the unit. Several seeds of one recipe attempt the same cases, and attempts on one case are alike: the paper
counts them as independent (its chi-square over 3 x 33 attempts, section 5), which makes differences look surer than
they are. Here all attempts on a case stay together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

_TAIL = 0.025  # on either side of a 95 % interval
_DRAWS_AT_ONCE = 4_000_000  # cases drawn per block of resamples: bounds memory, not the result


def exact_paired_test(differences: Sequence[int]) -> float:
    """Return the two-sided p-value of the exact paired test over cases.

    Under the null hypothesis the two systems are exchangeable on every case, so each difference could as well have the
    other sign; p is the share of all sign patterns whose sum is at least as far from 0 as the one seen. For differences
    of -1, 0 and 1 (one attempt a case on either side) it is McNemar's exact test (McNemar 1947); for sums over several
    seeds it is Fisher's randomisation test with the case as the unit.

    Args:
        differences: successes of one system minus those of the other, one integer a case.
    """
    unit = math.gcd(*differences)
    if unit == 0:
        return 1.0
    sizes = [abs(difference) // unit for difference in differences if difference]
    total, observed = sum(sizes), abs(sum(differences)) // unit
    if observed == 0:
        return 1.0
    # probability[k]: the positive differences sum to k; the sum of all is then 2 k - total.
    probability = np.zeros(total + 1)
    probability[0] = 1.0
    for size in sizes:
        probability[size:] = (probability[size:] + probability[:-size]) / 2
        probability[:size] /= 2
    return min(1.0, 2 * float(probability[: (total - observed) // 2 + 1].sum()))


def resampled_ratios(tops: np.ndarray, bottoms: np.ndarray, resamples: int, seed: int) -> np.ndarray:
    """Return ratios of sums over bootstrap samples of the cases, [resamples, columns]; all columns share each sample.

    Args:
        tops: numerators, [cases, columns]: right answers on a case, over all its attempts.
        bottoms: denominators, [cases, columns]: what could have been right. A sample whose denominators sum to 0 gives
            NaN.
        resamples: bootstrap samples; each draws as many cases as there are, with replacement.
        seed: the same seed and number of cases give the same samples.
    """
    n, columns = tops.shape
    both = np.concatenate([tops, bottoms], axis=1).astype(float)
    random = np.random.default_rng(seed)
    block = max(1, _DRAWS_AT_ONCE // n)
    sums = []
    for start in range(0, resamples, block):
        size = min(block, resamples - start)
        drawn = random.integers(n, size=(size, n)) + n * np.arange(size)[:, None]
        times = np.bincount(drawn.ravel(), minlength=size * n).reshape(size, n)
        sums.append(times.astype(float) @ both)
    sums = np.concatenate(sums)
    with np.errstate(invalid="ignore"):
        return sums[:, :columns] / sums[:, columns:]


def percentile_interval(values: np.ndarray) -> tuple[float, float] | None:
    """Return the 95 % percentile interval of bootstrap ``values``, or None where all are NaN; single NaNs are left out.

    As many values lie below it as above it, so that values of the other sign give the interval mirrored.
    """
    values = values[~np.isnan(values)]
    if not len(values):
        return None
    cut = int(len(values) * _TAIL)
    ordered = np.sort(values)
    return float(ordered[cut]), float(ordered[len(ordered) - 1 - cut])
