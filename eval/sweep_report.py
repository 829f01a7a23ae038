"""The results of a sweep as one table: each grid point over its seeds, and beside a baseline, case by case."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from decoding.console import markdown_table
from eval.compare import compare
from eval.report import OVER_SEEDS, over_seeds_row, pool
from eval.results import UNTRAINED, Results, ScoredSystem, choose_system

_RESAMPLES, _SEED = 10_000, 0  # of the bootstrap, as eval/report.py and eval/compare.py have them
_PAIRED = ["minus baseline (pp)", "only baseline", "only this", "p (exact)"]


def aggregate(points: dict[str, list[Results]], baseline: str) -> dict[str, Any]:
    """Return the pooled results of a grid, and every point's paired comparison with one of them.

    Args:
        points: by grid point, the results of its runs; a point without any is left out.
        baseline: the point that the others are compared with; without results nothing is compared.

    Returns:
        ``pooled``, what ``eval.report.pool`` returns with the rows named by point, and ``comparisons``, by point what
        ``eval.compare.compare`` returns, the baseline as A.

    Raises:
        UserError: results that cannot be pooled or paired, such as of different cases.
    """
    points = {point: list(map(_last_scored, results)) for point, results in points.items() if results}
    if not points:
        return {"pooled": None, "baseline": baseline, "comparisons": {}}
    pooled = pool([result for results in points.values() for result in results], _RESAMPLES, _SEED)
    point_of = {str(result.folder): point for point, results in points.items() for result in results}
    names = {}
    for row in pooled["rows_of_the_report"]:
        if not row["label"].startswith(UNTRAINED):
            names[row["label"]] = row["label"] = point_of[row["attempts"][0]["folder"]]
    for entry in pooled["systems"]:
        entry["label"] = names.get(entry["label"], entry["label"])
    systems = {point: _system(point, results) for point, results in points.items()}
    comparisons = {
        point: compare(systems[baseline], system, _RESAMPLES, _SEED)
        for point, system in systems.items()
        if baseline in systems and point != baseline
    }
    return {"pooled": pooled, "baseline": baseline, "comparisons": comparisons}


def _last_scored(results: Results) -> Results:
    """Without systems that the last scoring did not ask for: a folder keeps those of earlier ones."""
    asked = {entry["label"] for entry in results.summary["systems"]}
    return replace(results, systems={label: system for label, system in results.systems.items() if label in asked})


def _system(point: str, results: list[Results]) -> ScoredSystem:
    """The runs of a point as checkpoints of one system."""
    found = [choose_system(result, None) for result in results]
    return ScoredSystem(point, found[0].strategy, {name: rows for one in found for name, rows in one.rows.items()})


def results_table(aggregated: dict[str, Any]) -> list[str]:
    """Return the lines of the table, and what its columns mean."""
    pooled, comparisons, baseline = (aggregated[key] for key in ("pooled", "comparisons", "baseline"))
    if pooled is None:
        return ["No run has been scored."]
    compared = {(point, entry["corpus"]): entry for point, entries in comparisons.items() for entry in entries}
    rows = []
    for entry in pooled["systems"]:
        if "over_seeds" not in entry:
            continue
        cells = over_seeds_row(entry)
        if comparisons:
            cells += _paired_cells(compared.get((entry["label"], entry["corpus"])), entry["label"] == baseline)
        rows.append(cells)
    lines = [markdown_table([*OVER_SEEDS, *(_PAIRED if comparisons else [])], rows), ""]
    lines.append(
        "EM of all attempts with its Wilson 95 % interval; *cases drawn*: its bootstrap 95 % interval, which draws "
        "cases with all their attempts. By seed: mean ± standard deviation, and of EM the range."
    )
    if comparisons:
        lines.append(
            f"The baseline is {baseline}. *Minus baseline* is in percentage points of EM, with its paired bootstrap "
            "95 % interval; *only* counts the pairs of attempts on a case that only one of the two got right, paired "
            "by seed where both have the same seeds. p is the exact two-sided paired test with the case as the unit, "
            "McNemar's for one seed each, and approximate where the numbers of seeds differ; it is not corrected for "
            f"{len(comparisons)} comparison" + ("s." if len(comparisons) > 1 else ".")
        )
    return lines


def _paired_cells(entry: dict[str, Any] | None, is_baseline: bool) -> list[str]:
    if entry is None:
        return ["baseline" if is_baseline else "-", "-", "-", "-"]
    figure = entry["exact_match"]
    # Adding 0 turns a minus zero into a plain one.
    value, low, high = (f"{round(100 * v, 1) + 0:+.1f}" for v in (figure["difference"], *figure["bootstrap95"]))
    pairs = entry["pairs"]
    return [f"{value} [{low}, {high}]", str(pairs["only_A"]), str(pairs["only_B"]), f"{entry['p']:.2g}"]
