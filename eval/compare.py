"""Compare two scored systems case by case: exact match and endpoints, with an exact paired test and intervals.

    python eval/compare.py runs/sft_combined-seed0 runs/sft_combined-seed1      # A and B: result folders, or their runs
    python eval/compare.py results/py results/combined                          # several seeds in each
    python eval/heldout.py --ckpt runs/sft_combined-seed0 corpus=[hevalfix-py] out=results/combined
    python eval/compare.py runs/sft_py-seed0 results/combined                   # once both are scored on the same cases
    python eval/compare.py RUN RUN systems=[untrained,checkpoint]               # two systems of one folder
    python eval/compare.py RUN RUN systems=[fsm,monotone] out=results/monotone  # also writes compare.json, compare.md

A result folder is what eval/heldout.py writes; RUN stands for RUN/heldout. Both must have been scored on the same
cases. A word of systems= is a label of the reports, its strategy, or the part before the strategy; without it the
trained checkpoints are compared.

The case is the unit of every interval and test: attempts of several seeds on one case stay together. They speak of
these checkpoints on other such cases, not of other training runs.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cad_train.run_folder import differing
from decoding.commandline import run
from decoding.console import markdown_table
from eval.execution import TEST_OUTCOMES
from eval.metrics import Rate
from eval.results import (
    Results,
    ScoredSystem,
    check_same_cases,
    check_same_data,
    choose_system,
    read_results,
    words_to_key,
    write_report,
)
from eval.significance import exact_paired_test, percentile_interval, resampled_ratios
from eval.tables import rate_cell

# What is compared: what was right in a case row, and what could have been.
_FIGURES: dict[str, tuple[Callable[[dict], int], Callable[[dict], int]]] = {
    "exact_match": (lambda row: row["exact"], lambda row: 1),
    "parsed": (lambda row: row["parsed"], lambda row: 1),
    "start_accuracy": (lambda row: row["copies_starts"], lambda row: row["copies_oracle"]),
    "end_accuracy": (lambda row: row["copies_ends"], lambda row: row["copies_oracle"]),
    "changed_outside": (
        lambda row: row.get("changed_outside") or 0,
        lambda row: row.get("changed_outside") is not None,
    ),
    "tests_passed": (
        lambda row: row.get("tests", {}).get("outcome") == "passed",
        lambda row: row.get("tests", {}).get("outcome") in TEST_OUTCOMES,
    ),
}
_NAMES = {
    "parsed": "parsed",
    "start_accuracy": "start",
    "end_accuracy": "end",
    "changed_outside": "lines changed outside",
    "tests_passed": "tests passed",
}


@dataclass
class Config:
    """What to compare, and how."""

    folders: list[str]  # A and B: two result folders, or runs that have one
    systems: list[str] = field(default_factory=list)  # of A and of B; default the trained checkpoints
    resamples: int = 10_000  # bootstrap samples of the cases
    seed: int = 0  # of the bootstrap
    out: str | None = None  # folder for compare.json and compare.md; default none is written

    def __post_init__(self) -> None:
        if len(self.folders) != 2:
            raise ValueError(f"name two folders, A and B (one may be both): {len(self.folders)} given")
        if len(self.systems) not in (0, 2):
            raise ValueError(f"systems={self.systems}: name two, one of A and one of B")
        if self.resamples < 1:
            raise ValueError(f"resamples={self.resamples}: must be at least 1")
        if self.seed < 0:
            raise ValueError(f"seed={self.seed}: must be at least 0")


def main(config: Config) -> None:
    """Read, pair, print, and write where asked."""
    results = [read_results(folder) for folder in config.folders]
    check_same_data(*results)
    words = config.systems or [None, None]
    systems = [choose_system(result, word) for result, word in zip(results, words, strict=True)]
    if results[0].folder == results[1].folder and systems[0].label == systems[1].label:
        print(f"A and B are both '{systems[0].label}' of {results[0].folder}; systems= chooses others", file=sys.stderr)
    comparison = {
        "command": shlex.join(["python", *sys.argv]),
        "sides": {name: _about(*side) for name, side in zip("AB", zip(results, systems, strict=True), strict=True)},
        "rows": results[0].fingerprint,
        "settings_that_differ": {key: [a, b] for key, a, b in differing(results[0].decoding, results[1].decoding)},
        "paired_by": "seed" if _same_seeds(*systems) else "case",
        "resamples": config.resamples,
        "seed": config.seed,
        "corpora": compare(*systems, config.resamples, config.seed),
    }
    text = render(comparison)
    print(text, end="")
    if config.out:
        print(f"\nwrote {write_report(config.out, 'compare', comparison, text, 'comparison')}")


def compare(a: ScoredSystem, b: ScoredSystem, resamples: int, seed: int) -> list[dict[str, Any]]:
    """Return the figures of both systems and B minus A, by corpus, and over all where there are several.

    Raises:
        UserError: the case rows, of either side or of two checkpoints, are not of the same cases.
    """
    rows = [*a.rows.items(), *b.rows.items()]
    first_name, first = rows[0]
    for name, other in rows[1:]:
        check_same_cases(first, other, f"{first_name} and {name}")
    corpora: dict[str, list[str]] = {}
    for case, row in sorted(first.items()):  # in an order that does not depend on which side is A
        corpora.setdefault(row["corpus"], []).append(case)
    if len(corpora) > 1:
        corpora["all"] = sorted(first)
    return [
        {"corpus": corpus, "cases": len(cases), **_compare_cases(a, b, cases, resamples, seed)}
        for corpus, cases in corpora.items()
    ]


def _compare_cases(a: ScoredSystem, b: ScoredSystem, cases: list[str], resamples: int, seed: int) -> dict[str, Any]:
    # [cases, figures x sides], summed over the attempts of a side on each case.
    tops, bottoms = (
        np.array(
            [
                [
                    sum(int(count[part](rows[case])) for rows in side.rows.values())
                    for count in _FIGURES.values()
                    for side in (a, b)
                ]
                for case in cases
            ]
        )
        for part in (0, 1)
    )
    resampled = resampled_ratios(tops, bottoms, resamples, seed)
    out: dict[str, Any] = {}
    for at, key in zip(range(0, tops.shape[1], 2), _FIGURES, strict=True):
        counts = [(int(tops[:, i].sum()), int(bottoms[:, i].sum())) for i in (at, at + 1)]
        rates = [k / n if n else None for k, n in counts]
        differences = resampled[:, at + 1] - resampled[:, at]
        out[key] = {
            **{side: {"k": k, "n": n, "rate": r} for side, (k, n), r in zip("AB", counts, rates, strict=True)},
            "difference": None if None in rates else rates[1] - rates[0],
            "bootstrap95": percentile_interval(differences),
            "samples_without_data": int(np.isnan(differences).sum()),
        }
    for side in "AB":  # of the rest, copies of one program, say, are no independent trials
        out["exact_match"][side] = Rate(out["exact_match"][side]["k"], out["exact_match"][side]["n"]).as_json()
    # In units that count the attempts of both sides alike.
    signed = tops[:, 1] * len(a.rows) - tops[:, 0] * len(b.rows)
    return {**out, "pairs": _pairs(a, b, cases), "p": exact_paired_test(signed.tolist())}


def _pairs(a: ScoredSystem, b: ScoredSystem, cases: list[str]) -> dict[str, int]:
    """Count who was right over the pairs of attempts: of the same seed, or all pairs on a case."""
    if _same_seeds(a, b):
        of_seed = dict(zip(b.seeds, b.rows.values(), strict=True))
        paired = [(rows, of_seed[seed]) for seed, rows in zip(a.seeds, a.rows.values(), strict=True)]
    else:
        paired = [(ours, theirs) for ours in a.rows.values() for theirs in b.rows.values()]
    counts = {"both": 0, "only_A": 0, "only_B": 0, "neither": 0}
    names = {(True, True): "both", (True, False): "only_A", (False, True): "only_B", (False, False): "neither"}
    for ours, theirs in paired:
        for case in cases:
            counts[names[ours[case]["exact"], theirs[case]["exact"]]] += 1
    return counts


def _same_seeds(a: ScoredSystem, b: ScoredSystem) -> bool:
    return len(set(a.seeds)) == len(a.seeds) == len(b.seeds) and set(a.seeds) == set(b.seeds)


def _about(results: Results, system: ScoredSystem) -> dict[str, Any]:
    return {
        "folder": str(results.folder),
        "system": system.label,
        "checkpoints": list(system.rows),
        "seeds": system.seeds,
        "oracles": results.summary["data"]["fingerprint"],
        "rows_left_out": results.left_out,
    }


def render(comparison: dict[str, Any]) -> str:
    """Return the comparison as Markdown."""
    corpora, sides = comparison["corpora"], comparison["sides"]
    lines = ["# Paired comparison", "", f"- command: `{comparison['command']}`"]
    for name, side in sides.items():
        seeds = [str(seed) for seed in side["seeds"] if seed is not None]
        lines.append(
            f"- {name}: {side['system']}, of {side['folder']} ({', '.join(side['checkpoints'])})"
            + (f"; seeds {', '.join(seeds)}" if seeds else "")
        )
    lines.append(f"- cases: fingerprint {comparison['rows'][:16]}")
    oracles = [side["oracles"] for side in sides.values()]
    if oracles[0] != oracles[1]:
        lines.append(f"- the same cases, out of different oracles: {oracles[0][:16]} and {oracles[1][:16]}")
    if comparison["settings_that_differ"]:
        differences = [f"{key} {a} and {b}" for key, (a, b) in comparison["settings_that_differ"].items()]
        lines.append(f"- decoded differently: {'; '.join(differences)}")
    for name, side in sides.items():
        if side["rows_left_out"]:
            lines.append(f"- {side['rows_left_out']} rows of {name}'s folder are of earlier models, and left out")
    lines += [
        "",
        "Exact match (EM), with Wilson 95 % intervals; B - A in percentage points, with its paired bootstrap 95 % "
        f"interval ({comparison['resamples']} samples of the cases, seed {comparison['seed']}):",
        "",
        markdown_table(
            ["corpus", "cases", "EM of A", "EM of B", "B - A", "both", "only A", "only B", "neither", "p (exact)"],
            [_exact_row(entry) for entry in corpora],
        ),
        "",
        _rule(comparison),
        "",
        "Parsed answers; endpoints of the oracles' copy operations that were right; lines changed outside the gold's "
        "hunks, by edits that gave a document; B - A as above:",
        "",
        markdown_table(
            ["corpus", "figure", "A", "B", "B - A"],
            [
                [entry["corpus"], name, *_figure_cells(entry[key])]
                for entry in corpora
                for key, name in _NAMES.items()
                if key != "tests_passed" or entry[key]["difference"] is not None
            ],
        ),
    ]
    counts = [entry[key]["samples_without_data"] for entry in corpora for key in _FIGURES]
    if undefined := max(count for count in counts if count < comparison["resamples"]):
        lines += ["", f"Up to {undefined} samples drew nothing to be right (no copies, say); intervals leave them out."]
    return "\n".join(lines) + "\n"


def _rule(comparison: dict[str, Any]) -> str:
    """What the counts and p stand for, given how many attempts each side has."""
    attempts = [len(side["checkpoints"]) for side in comparison["sides"].values()]
    if attempts == [1, 1]:
        return "p is McNemar's exact two-sided test."
    paired = "by seed" if comparison["paired_by"] == "seed" else "every one of A with every one of B on a case"
    text = (
        f"Counts are of attempts, paired {paired}. Attempts of several seeds on one case are not independent, so that "
        "McNemar's test and Wilson's interval over attempts overstate what they show; p is the exact two-sided paired "
        "test with the case as the unit (McNemar's where each side has one attempt)"
    )
    return text + (", approximate where A and B have different numbers of seeds." if len(set(attempts)) > 1 else ".")


def _exact_row(entry: dict[str, Any]) -> list[str]:
    figure = entry["exact_match"]
    return [
        entry["corpus"],
        str(entry["cases"]),
        rate_cell(figure["A"]),
        rate_cell(figure["B"]),
        _difference(figure, percent=True),
        *map(str, entry["pairs"].values()),
        f"{entry['p']:.2g}",
    ]


def _figure_cells(figure: dict[str, Any]) -> list[str]:
    sides = [figure[side] for side in "AB"]
    cells = [f"{s['k']}/{s['n']} = {s['rate']:.2f}" if s["n"] else "no data" for s in sides]
    return [*cells, _difference(figure, percent=False)]


def _difference(figure: dict[str, Any], percent: bool) -> str:
    values = [figure["difference"], *(figure["bootstrap95"] or ())]
    if values[0] is None:
        return "no data"
    # Adding 0 turns a minus zero into a plain one.
    value, *interval = (f"{round(100 * v, 1) + 0:+.1f}" if percent else f"{round(v, 2) + 0:+.2f}" for v in values)
    return f"{value} [{', '.join(interval)}]" if interval else value


if __name__ == "__main__":
    sys.argv[1:] = words_to_key(sys.argv[1:], "folders", Config)
    run(main, Config, description=__doc__, usage="A B [key=value ...]")
