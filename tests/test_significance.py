"""Paired tests and intervals: against statsmodels, scipy, enumeration, and a slow bootstrap."""

from __future__ import annotations

import itertools
import math
import random
import statistics

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import bootstrap
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.proportion import proportion_confint

from eval.metrics import wilson
from eval.significance import exact_paired_test, percentile_interval, resampled_ratios

COUNTS = st.integers(0, 300)


@given(COUNTS, COUNTS, COUNTS)
@example(0, 0, 5)
@example(3, 3, 0)
@example(0, 300, 0)
def test_with_one_attempt_a_case_the_exact_test_is_mcnemars(only_a, only_b, ties):
    table = [[ties, only_a], [only_b, 0]]
    p = exact_paired_test([1] * only_b + [-1] * only_a + [0] * ties)
    assert p == pytest.approx(float(mcnemar(table, exact=True).pvalue), rel=1e-9)


@given(st.lists(st.integers(-4, 4), min_size=1, max_size=9))
def test_with_several_attempts_a_case_it_is_the_share_of_sign_patterns_as_far_from_zero(differences):
    patterns = list(itertools.product((-1, 1), repeat=len(differences)))
    sums = [abs(sum(sign * d for sign, d in zip(signs, differences, strict=True))) for signs in patterns]
    expected = sum(value >= abs(sum(differences)) for value in sums) / len(patterns)
    assert exact_paired_test(differences) == pytest.approx(expected, rel=1e-12)


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=60), st.integers(1, 5))
def test_the_exact_test_knows_neither_sides_nor_units(differences, unit):
    p = exact_paired_test(differences)
    assert 0 < p <= 1
    assert exact_paired_test([-unit * d for d in differences]) == p


def test_attempts_that_repeat_each_other_are_no_further_evidence():
    # Three seeds that agree on every case: McNemar over the attempts would see three times the cases.
    one_seed = [1] * 6 + [-1]
    assert exact_paired_test([3 * d for d in one_seed]) == exact_paired_test(one_seed) > 0.05
    assert exact_paired_test(3 * one_seed) < 0.01


@given(st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_is_statsmodels(counts):
    assert wilson(*counts) == pytest.approx(proportion_confint(*counts, method="wilson"), abs=1e-12)


def made(seed: int, cases: int, attempts: int) -> tuple[np.ndarray, np.ndarray]:
    """Successes and tries of two systems on some cases; a case's attempts are alike, and tries differ by case."""
    rng = random.Random(seed)
    tops, bottoms = [], []
    for _ in range(cases):
        chance, copies = rng.random(), rng.randint(1, 3)
        tries = attempts * copies
        tops.append([sum(rng.random() < p for _ in range(tries)) for p in (chance, min(1, chance + 0.2))])
        bottoms.append([tries, tries])
    return np.array(tops), np.array(bottoms)


def interval_of_difference(tops, bottoms, resamples=10_000, seed=0):
    ratios = resampled_ratios(tops, bottoms, resamples, seed)
    return percentile_interval(ratios[:, 1] - ratios[:, 0])


def test_the_paired_bootstrap_agrees_with_scipy():
    tops, _ = made(0, 60, 1)
    a, b = (tops > 1).astype(int).T
    ours = interval_of_difference(np.stack([a, b], axis=1), np.ones((60, 2)))
    theirs = bootstrap(
        (a, b),
        lambda x, y, axis: y.mean(axis=axis) - x.mean(axis=axis),
        paired=True,
        method="percentile",
        n_resamples=10_000,
        rng=np.random.default_rng(1),
    ).confidence_interval
    assert ours == pytest.approx((theirs.low, theirs.high), abs=1.01 / 60)  # one step of a difference of 60 cases


@pytest.mark.parametrize("attempts", [1, 3])
def test_ratios_over_clusters_agree_with_a_slow_bootstrap(attempts):
    tops, bottoms = made(1, 40, attempts)
    rng = random.Random(2)
    values = []
    for _ in range(4000):
        drawn = [rng.randrange(40) for _ in range(40)]
        a, b = (sum(tops[i][side] for i in drawn) / sum(bottoms[i][side] for i in drawn) for side in (0, 1))
        values.append(b - a)
    cuts = statistics.quantiles(values, n=40)
    assert interval_of_difference(tops, bottoms) == pytest.approx((cuts[0], cuts[-1]), abs=0.012)


def test_attempts_that_repeat_each_other_do_not_narrow_the_interval():
    tops, bottoms = made(3, 30, 1)
    assert interval_of_difference(5 * tops, 5 * bottoms) == interval_of_difference(tops, bottoms)


SIDES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(3, 6)), min_size=1, max_size=20)


@settings(max_examples=50)
@given(SIDES, st.integers(0, 5), st.integers(1, 400))
def test_the_other_way_round_the_interval_is_mirrored(cases, seed, resamples):
    tops, bottoms = np.array([case[:2] for case in cases]), np.array([(case[2], case[2]) for case in cases])
    low, high = interval_of_difference(tops, bottoms, resamples, seed)
    assert interval_of_difference(tops[:, ::-1], bottoms, resamples, seed) == (-high, -low)
    assert low <= high
    same = tops[:, [0, 0]]
    assert interval_of_difference(same, bottoms, resamples, seed) == (0.0, 0.0)


def test_blocks_of_resamples_are_drawn_one_after_the_other(monkeypatch):
    tops, bottoms = made(4, 10, 1)
    whole = resampled_ratios(tops, bottoms, 100, seed=0)
    monkeypatch.setattr("eval.significance._DRAWS_AT_ONCE", 70)
    assert np.array_equal(resampled_ratios(tops, bottoms, 100, seed=0), whole)


def test_samples_without_anything_to_be_right_are_no_data():
    tops, bottoms = np.array([[1, 0], [0, 0]]), np.array([[1, 1], [0, 0]])
    ratios = resampled_ratios(tops, bottoms, 200, seed=0)
    undefined = np.isnan(ratios).any(axis=1)
    assert 20 < undefined.sum() < 80  # a quarter draws the second case twice
    assert percentile_interval(ratios[:, 0]) == (1.0, 1.0)
    assert percentile_interval(np.array([math.nan])) is None
