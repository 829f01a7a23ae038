"""Pool the held-out results of several runs in one report: intervals over cases, spread over seeds, failures.

    python eval/report.py runs/sft_py-seed0 runs/sft_py-seed1 runs/sft_py-seed2
    python eval/report.py runs/sft_py-seed* results/combined-seed* out=results/pilot   # the paper's Tables 6 and 7

Each word is a result folder that eval/heldout.py wrote, or a run that has one (RUN stands for RUN/heldout). All must
have been scored on the same cases.

Runs that differ in nothing but the seed, by their config.yaml and their training data, are one row when they were
decoded alike; others are rows of their own, and a table says in which settings they differ. A checkpoint whose run is
not found is a row of its own. Untrained models and the unchanged document stand beside them, once.

Writes report.md and report.json to out=.
"""

from __future__ import annotations

import shlex
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cad_train.config import TrainConfig
from cad_train.run_folder import flat
from decoding.commandline import UserError, from_yaml, run
from decoding.console import markdown_table
from eval.checkpoints import differing_settings
from eval.results import (
    IDENTITY,
    UNTRAINED,
    Results,
    check_complete,
    check_same_cases,
    check_same_data,
    read_results,
    words_to_key,
    write_report,
)
from eval.significance import percentile_interval, resampled_ratios
from eval.tables import decimal, rate_cell, sections, summarise

OVER_SEEDS = ["system", "corpus", "cases", "seeds", "EM", "cases drawn", "EM by seed", "start by seed", "end by seed"]


@dataclass
class Config:
    """What to pool, and how."""

    runs: list[str]  # result folders, or runs that have one
    resamples: int = 10_000  # bootstrap samples of the cases
    seed: int = 0  # of the bootstrap
    out: str = "results/report"  # folder to write

    def __post_init__(self) -> None:
        if self.resamples < 1:
            raise ValueError(f"resamples={self.resamples}: must be at least 1")
        if self.seed < 0:
            raise ValueError(f"seed={self.seed}: must be at least 0")


@dataclass(frozen=True)
class Attempt:
    """One checkpoint's pass over the cases. ``config`` is its run's, None where that is not known."""

    folder: Path
    checkpoint: str
    label: str
    strategy: str
    seed: int | None
    decoding: dict[str, Any]
    config: TrainConfig | None
    training_data: str | None
    rows: dict[str, dict[str, Any]]

    @property
    def untrained(self) -> bool:
        """Whether this is an untrained model."""
        return self.label.startswith(UNTRAINED)


def main(config: Config) -> None:
    """Read, pool, print and write."""
    results = [read_results(path) for path in config.runs]
    summary = pool(results, config.resamples, config.seed)
    summary = {"command": shlex.join(["python", *sys.argv]), **summary}
    text = render(summary)
    print(text)
    print(f"wrote {write_report(config.out, 'report', summary, text, 'report')}")


def pool(results: list[Results], resamples: int, seed: int) -> dict[str, Any]:
    """Return the pooled report of result folders as JSON-ready figures.

    Raises:
        UserError: folders that name one result twice or were scored on different cases; two results of one seed that
            would pool; a checkpoint that lacks cases.
    """
    folders = [result.folder.resolve() for result in results]
    for number, folder in enumerate(folders):
        if folder in folders[:number]:
            raise UserError(f"{results[number].folder} is given twice: it would be pooled with itself")
    for other in results[1:]:
        check_same_data(results[0], other)
    attempts = [attempt for result in results for attempt in _attempts(result)]
    for attempt in attempts[1:]:
        check_same_cases(attempts[0].rows, attempt.rows, f"{attempts[0].folder} and {attempt.folder}")

    pools: list[list[Attempt]] = []
    for attempt in attempts:
        group = next((group for group in pools if _pools_with(attempt, group[0])), None)
        if group is None:
            pools.append([attempt])
        elif attempt.untrained:
            group.append(attempt)  # the same answers, from another folder
        else:
            for other in group:
                if other.seed == attempt.seed:
                    raise UserError(
                        f"{other.folder} ({other.checkpoint}) and {attempt.folder} ({attempt.checkpoint}) are results "
                        f"of the same settings and seed {attempt.seed}: pooled, one would count twice; leave one out"
                    )
            group.append(attempt)
    pools.sort(key=lambda group: group[0].untrained)
    labels = _labels(pools)

    cases = []
    for label, group in zip(labels, pools, strict=True):
        for attempt, name in _counted(group):
            cases += [row | {"label": label, "checkpoint": name} for row in attempt.rows.values()]
    entries = summarise(cases)
    for entry in entries:
        own = [row for row in cases if row["label"] == entry["label"] and entry["corpus"] in (row["corpus"], "all")]
        entry["over_seeds"] = _over_seeds(entry, own, resamples, seed)
    identity = [entry for entry in results[0].summary["systems"] if entry["label"].startswith(IDENTITY)]
    return {
        "rows": results[0].fingerprint,
        "oracles": {str(result.folder): result.summary["data"]["fingerprint"] for result in results},
        "rows_left_out": {str(result.folder): result.left_out for result in results if result.left_out},
        "resamples": resamples,
        "seed": seed,
        "rows_of_the_report": [
            {
                "label": label,
                "decoding": group[0].decoding,
                "strategy": group[0].strategy,
                "trained": _trained(group[0].config),
                "attempts": [
                    {
                        "folder": str(attempt.folder),
                        "checkpoint": attempt.checkpoint,
                        "seed": attempt.seed,
                        "training_data": attempt.training_data,
                    }
                    for attempt in group
                ],
                "differs": differs,
            }
            for label, group, differs in zip(labels, pools, _differences(pools), strict=True)
        ],
        "systems": entries + identity,
    }


def _attempts(results: Results) -> list[Attempt]:
    decoding = {key: value for key, value in results.decoding.items() if key != "seed"}  # of sampling
    data = {checkpoint["name"]: checkpoint["training_data"] for checkpoint in results.summary["checkpoints"]}
    attempts = []
    for system in results.systems.values():
        check_complete(results, system)
        for (name, rows), seed in zip(system.rows.items(), system.seeds, strict=True):
            config = None if system.untrained else _run_config(results, name)
            attempts.append(
                Attempt(
                    results.folder,
                    name,
                    system.label,
                    system.strategy,
                    seed,
                    decoding,
                    config,
                    None if system.untrained else data[name],
                    rows,
                )
            )
    return attempts


def _run_config(results: Results, checkpoint: str) -> TrainConfig | None:
    """The settings of a checkpoint's run: by the path it was scored under, or where its results lie in the run."""
    path = Path(checkpoint).expanduser()
    places = [path, path.parent]
    if len(results.summary["checkpoints"]) == 1:
        places.insert(0, results.folder.parent)
    for place in places:
        if (place / "config.yaml").is_file() and (place / "data.json").is_file():
            return from_yaml(TrainConfig, place / "config.yaml")
    return None


def _pools_with(attempt: Attempt, other: Attempt) -> bool:
    """Whether two results make one row: decoded alike, and trained with the same data and settings, seed apart."""
    alike = ("untrained", "strategy", "decoding", "training_data")
    if any(getattr(attempt, key) != getattr(other, key) for key in alike):
        return False
    if attempt.untrained:
        return attempt.checkpoint == other.checkpoint
    return None not in (attempt.config, other.config) and not differing_settings([attempt.config, other.config])


def _counted(group: list[Attempt]) -> list[tuple[Attempt, str]]:
    """The attempts of a row that its figures count, each with a name of its own; of an untrained model the first."""
    counted = group[:1] if group[0].untrained else group
    names = [attempt.checkpoint for attempt in counted]
    if len(set(names)) < len(names):
        names = [f"{attempt.checkpoint} ({attempt.folder})" for attempt in counted]
    return list(zip(counted, names, strict=True))


def _labels(pools: list[list[Attempt]]) -> list[str]:
    """Name each row by its model, its strategy, and the settings of decoding in which rows differ."""
    decoding = [group[0].decoding for group in pools]
    varied = [key for key in decoding[0] if any(other.get(key) != decoding[0][key] for other in decoding)]
    models = {group[0].checkpoint for group in pools if group[0].untrained}
    labels = []
    for group in pools:
        first = group[0]
        if first.untrained:
            name = first.label if len(models) == 1 else f"{UNTRAINED}{first.checkpoint}, {first.strategy}"
        else:
            others = f" and {len(group) - 1} more" if len(group) > 1 else ""
            name = f"{first.checkpoint}{others}, {first.strategy}"
        name += "".join(f", {key}={first.decoding.get(key)}" for key in varied)
        labels.append(name if name not in labels else f"{name} ({first.folder})")
    return labels


def _trained(config: TrainConfig | None) -> dict[str, Any] | None:
    """What was trained, of a row whose run is known."""
    if config is None:
        return None
    return {"model": config.model, "adapter": config.adapter, "corpora": config.data.corpora, "epochs": config.epochs}


def _differences(pools: list[list[Attempt]]) -> list[dict[str, Any] | None]:
    """For each row, its value of every training setting in which rows differ; None where its run is not known."""
    configs = [group[0].config for group in pools]
    known = [config for config in configs if config]
    keys = differing_settings(known) if known else []
    out: list[dict[str, Any] | None] = []
    for group, config in zip(pools, configs, strict=True):
        if config is None:
            out.append(None)
            continue
        settings = flat(asdict(config))
        out.append({key: settings[key] for key in keys} | {"training data": (group[0].training_data or "")[:16]})
    return out


def _over_seeds(entry: dict[str, Any], rows: list[dict[str, Any]], resamples: int, seed: int) -> dict[str, Any]:
    """The spread of an entry's figures over its seeds, and the interval of its EM over cases with all their seeds."""
    by_case: dict[str, list[bool]] = {}
    for row in rows:
        by_case.setdefault(row["id"], []).append(row["exact"])
    exact = [by_case[case] for case in sorted(by_case)]
    tops, attempts = (np.array([[count(flags)] for flags in exact]) for count in (sum, len))
    by_seed = list(entry.get("checkpoints", {"": entry}).values())
    rates = [figures["exact_match"]["rate"] for figures in by_seed]
    return {
        "seeds": list(dict.fromkeys(row["seed"] for row in rows)),
        "cases": len(by_case),
        "exact_match_bootstrap95": percentile_interval(resampled_ratios(tops, attempts, resamples, seed)[:, 0]),
        "exact_match": _spread(rates),
        "exact_match_range": [min(rates), max(rates)],
        "start_accuracy": _spread([figures["start_accuracy"] for figures in by_seed]),
        "end_accuracy": _spread([figures["end_accuracy"] for figures in by_seed]),
    }


def _spread(values: list[float | None]) -> dict[str, float | None]:
    """Mean and standard deviation (of a sample: over n - 1); the latter null for one value, both for none."""
    known = [value for value in values if value is not None]
    return {
        "mean": statistics.mean(known) if known else None,
        "sd": statistics.stdev(known) if len(known) > 1 else None,
    }


def render(summary: dict[str, Any]) -> str:
    """Return the pooled report as Markdown."""
    rows, oracles = summary["rows_of_the_report"], summary["oracles"]
    lines = [
        "# Pooled held-out report",
        "",
        f"- command: `{summary['command']}`",
        f"- cases: fingerprint {summary['rows'][:16]}; oracles: "
        + ", ".join(dict.fromkeys(value[:16] for value in oracles.values())),
    ]
    for row in rows:
        attempts = row["attempts"]
        if row["label"].startswith(UNTRAINED):
            again = f"; scored in {len(attempts) - 1} more folders, not counted" if len(attempts) > 1 else ""
            lines.append(f"- {row['label']}: {attempts[0]['folder']}{again}")
        else:
            seeds = [f"{attempt['folder']} (seed {attempt['seed']})" for attempt in attempts]
            lines.append(f"- {row['label']}: {', '.join(seeds)}")
            if row["differs"] is None:
                lines.append("  - its run is not found, so that nothing is pooled with it")
    for folder, count in summary["rows_left_out"].items():
        lines.append(f"- {count} rows of {folder} are of earlier models, and left out")
    differing = [row for row in rows if row["differs"]]
    keys = [key for key in (differing[0]["differs"] if differing else ()) if _varies(key, differing)]
    if keys:
        lines += ["", "Settings in which the rows differ:", ""]
        lines.append(
            markdown_table(
                ["system", *keys], [[row["label"], *(row["differs"][key] for key in keys)] for row in differing]
            )
        )
    decoded = [entry for entry in summary["systems"] if "over_seeds" in entry]
    lines += [
        "",
        "EM of all attempts: with its Wilson 95 % interval, which takes attempts of several seeds on one case for "
        "independent, and with its bootstrap 95 % interval, which draws cases with all their attempts "
        f"({summary['resamples']} samples, seed {summary['seed']}; it says nothing where no attempt is exact, or every "
        "one). EM, start and end accuracy by seed: mean ± "
        "standard deviation, as in the paper's Table 6, and of EM the range:",
        "",
        markdown_table(OVER_SEEDS, [over_seeds_row(entry) for entry in decoded]),
        "",
        *sections(summary["systems"]),
    ]
    return "\n".join(lines) + "\n"


def _varies(key: str, rows: list[dict[str, Any]]) -> bool:
    return any(row["differs"][key] != rows[0]["differs"][key] for row in rows)


def over_seeds_row(entry: dict[str, Any]) -> list[str]:
    """Return the cells of the columns ``OVER_SEEDS`` for one of the systems that ``pool`` returns."""
    spread = entry["over_seeds"]
    low, high = spread["exact_match_bootstrap95"]
    return [
        entry["label"],
        entry["corpus"],
        str(spread["cases"]),
        ", ".join(str(seed) for seed in spread["seeds"] if seed is not None) or "-",
        rate_cell(entry["exact_match"]),
        f"[{low:.1%}, {high:.1%}]",
        _mean_sd(spread["exact_match"], "{:.1%}") + _range(spread["exact_match_range"], len(spread["seeds"])),
        _mean_sd(spread["start_accuracy"], "{:.2f}"),
        _mean_sd(spread["end_accuracy"], "{:.2f}"),
    ]


def _range(ends: list[float], seeds: int) -> str:
    return f" ({ends[0]:.1%} to {ends[1]:.1%})" if seeds > 1 else ""


def _mean_sd(spread: dict[str, float | None], form: str) -> str:
    if spread["mean"] is None:
        return decimal(None)
    text = form.format(spread["mean"])
    return text if spread["sd"] is None else f"{text} ± {form.format(spread['sd'])}"


if __name__ == "__main__":
    sys.argv[1:] = words_to_key(sys.argv[1:], "runs", Config)
    run(main, Config, description=__doc__, usage="RUN [RUN ...] [key=value ...]")
