"""Timing rows to figures, a Markdown report, and a plot."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from decoding.console import markdown_table

_COLUMNS = [
    "system",
    "n",
    "ids written",
    "forwards",
    "positions",
    "head rows",
    "wall ms (median, quartiles)",
    "mean ms",
    "doc tokens/s",
    "x AR",
    "x best lookup",
    "end to end: x AR",
    "x best lookup",
]


def figures(rows: list[dict[str, Any]], document_tokens: list[int], bound: float) -> dict[str, Any]:
    """Aggregate the batch-1 rows of one workload.

    A ratio compares two systems over the cases that both ran, by mean wall clock: x AR above 1 is faster than
    autoregression. ``best lookup`` is the prompt-lookup setting with the least mean wall clock. ``bound`` is bnd_exact.
    """
    by_system: dict[str, dict[int, dict[str, Any]]] = {}
    kinds: dict[str, str] = {}
    inexpressible: dict[str, int] = {}
    for row in rows:
        kinds[row["system"]] = row["kind"]
        if row.get("inexpressible"):
            inexpressible[row["system"]] = inexpressible.get(row["system"], 0) + 1
        else:
            by_system.setdefault(row["system"], {})[row["case"]] = row
    autoregressive = next((name for name in by_system if kinds[name] == "ar"), None)
    lookups = [name for name in by_system if kinds[name] == "lookup"]
    best = min(lookups, key=lambda name: _mean(by_system[name], "wall_s"), default=None)
    systems = {}
    for name, cases in by_system.items():
        walls = [row["wall_s"] for row in cases.values()]
        entry: dict[str, Any] = {"kind": kinds[name], "n": len(cases), "inexpressible": inexpressible.get(name, 0)}
        entry |= {key: _mean(cases, key) for key in ("written", "forwards", "fed", "heads", "wall_s", "total_s")}
        quartiles = statistics.quantiles(walls, n=4) if len(walls) > 1 else [walls[0]] * 3
        entry["wall_s_quartiles"] = quartiles
        entry["tokens_per_s"] = sum(document_tokens[case] for case in cases) / sum(walls)
        for label, other in (("ar", autoregressive), ("lookup", best)):
            for key in ("wall_s", "total_s"):
                entry[f"{key}_x_{label}"] = other and _ratio(by_system[other], cases, key)
        if kinds[name] in ("splice", "fused", "paper") and entry["wall_s_x_ar"]:
            entry["realised_of_bound"] = entry["wall_s_x_ar"] / bound
        systems[name] = entry
    return {"bnd_exact": bound, "best_lookup": best, "document_tokens": statistics.mean(document_tokens)} | {
        "systems": systems
    }


def report(summary: dict[str, Any]) -> str:
    """Return the Markdown report."""
    lines = [
        "# Decoding speed",
        "",
        f"- command: `{summary['command']}`",
        f"- model: {summary['model']}{', random weights' if summary['random_weights'] else ''}; {summary['device']}, "
        f"{summary['dtype']}, {summary['threads']} threads",
        "- programs are forced from the oracle: every system does its full work and writes the gold edit",
        "- wall clock is decoding after the prompt has been fed; end to end has the prompt; x is times faster, by "
        "means, over the cases both ran",
    ]
    for name, workload in summary["workloads"].items():
        lines += [
            "",
            f"## {name}: {workload['document_tokens']:.0f} tokens a document",
            "",
            f"Best prompt lookup by wall clock: {workload['best_lookup']}. bnd_exact with this machine's s(N): "
            f"{workload['bnd_exact']:.2f}x; realised/bound: {_realised(workload)}.",
            "",
            markdown_table(_COLUMNS, [_line(label, entry) for label, entry in workload["systems"].items()]),
        ]
    if summary["batches"]:
        lines += [
            "",
            "## Batches",
            "",
            "Edits per second of decoding (prompts apart), and end to end; x against batch 1 of the same system.",
            "",
            markdown_table(
                ["workload", "system", "batch", "edits", "edits/s", "x batch 1", "end to end edits/s", "x batch 1"],
                [_batch_line(row, summary["batches"]) for row in summary["batches"]],
            ),
        ]
    if summary["constraints"]:
        lines += [
            "",
            "## What the grammar costs",
            "",
            "Per forward, as a share of a forward over one token:",
            "",
            markdown_table(
                ["workload", "choices", "state machine", "masked choice", "drafting"],
                [_constraint_line(name, row) for name, row in summary["constraints"].items()],
            ),
        ]
    return "\n".join(lines) + "\n"


def plot(summary: dict[str, Any], path: Path) -> None:
    """Draw wall clock and forwards per edit against document length, one line a kind of system, as ``path`` (SVG)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    workloads = sorted(summary["workloads"].values(), key=lambda workload: workload["document_tokens"])
    labels = dict.fromkeys(
        "best lookup" if entry["kind"] == "lookup" else name
        for workload in workloads
        for name, entry in workload["systems"].items()
    )
    figure, axes = pyplot.subplots(1, 2, figsize=(12, 4.8), layout="constrained")
    for axis, key, title in ((axes[0], "wall_s", "seconds after the prompt"), (axes[1], "forwards", "forwards")):
        for label in labels:
            points = [
                (workload["document_tokens"], entry[key])
                for workload in workloads
                if (entry := workload["systems"].get(workload["best_lookup"] if label == "best lookup" else label))
            ]
            if points:
                axis.plot(*zip(*points, strict=True), marker="o", markersize=3, label=label)
        axis.set(xscale="log", yscale="log", xlabel="tokens of the edited document", ylabel=f"{title}, mean per edit")
        axis.grid(alpha=0.3)
    axes[1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path)
    pyplot.close(figure)


def _mean(cases: dict[int, dict[str, Any]], key: str) -> float:
    return statistics.mean(row[key] for row in cases.values())


def _ratio(other: dict[int, dict[str, Any]], cases: dict[int, dict[str, Any]], key: str) -> float | None:
    both = other.keys() & cases.keys()
    if not both:
        return None
    return sum(other[case][key] for case in both) / sum(cases[case][key] for case in both)


def _line(name: str, entry: dict[str, Any]) -> list[str]:
    low, middle, high = (1e3 * value for value in entry["wall_s_quartiles"])
    lost = f" (+{entry['inexpressible']} not expressible)" if entry["inexpressible"] else ""
    return [
        name,
        f"{entry['n']}{lost}",
        f"{entry['written']:.1f}",
        f"{entry['forwards']:.2f}",
        f"{entry['fed']:.1f}",
        f"{entry['heads']:.1f}",
        f"{middle:.0f} [{low:.0f}, {high:.0f}]",
        f"{1e3 * entry['wall_s']:.0f}",
        f"{entry['tokens_per_s']:.1f}",
        _times(entry["wall_s_x_ar"]),
        _times(entry["wall_s_x_lookup"]),
        _times(entry["total_s_x_ar"]),
        _times(entry["total_s_x_lookup"]),
    ]


def _realised(workload: dict[str, Any]) -> str:
    parts = [
        f"{name} {entry['realised_of_bound']:.2f}"
        for name, entry in workload["systems"].items()
        if "realised_of_bound" in entry
    ]
    return ", ".join(parts) or "no autoregressive run to hold it against"


def _batch_line(row: dict[str, Any], batches: list[dict[str, Any]]) -> list[str]:
    of_system = (r for r in batches if (r["workload"], r["system"]) == (row["workload"], row["system"]))
    one = next((r for r in of_system if r["batch_size"] == 1), None)
    cells = [row["workload"], row["system"], str(row["batch_size"]), str(row["edits"])]
    for key in ("wall_s", "total_s"):
        cells += [f"{row['edits'] / row[key]:.2f}", _times(one and one[key] / row[key])]
    return cells


def _constraint_line(name: str, row: dict[str, float]) -> list[str]:
    shares = [
        f"{1e6 * row[key]:.0f} us, {row[key] / row['forward_s']:.2%}"
        for key in ("state_machine_s", "masked_choice_s", "draft_s")
    ]
    return [name, f"{row['choices_per_forward']:.1f}", *shares]


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}x"
