"""From case rows to figures, and from figures to the Markdown tables a person reads."""

from __future__ import annotations

import statistics
from collections import Counter
from typing import Any

from decoding.console import markdown_table
from eval.execution import TEST_OUTCOMES
from eval.metrics import OUTCOMES, Rate, rate, risk_coverage
from eval.text_faults import TEXT_FAULTS

_OUTCOME_NAMES = {
    "exact_match": "EM",
    "spans_right_text_wrong": "spans right, text wrong",
    "start_right_end_off": "start right, end off",
    "end_right_start_off": "end right, start off",
    "both_off": "both ends off",
    "parse_failure": "parse failure",
}
_FAULT_NAMES = {
    "bom_lost": "byte-order mark lost",
    "eol_mismatch": "other line ends",
    "gutter_leak": "line-number gutter",
    "control_char": "control character",
    "boundary_duplicate": "neighbour repeated",
    "lazy_placeholder": "placeholder",
}


def summarise(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Aggregate case rows by system and corpus; checkpoints of one label pool, and are listed one by one too.

    A label with several corpora also gets a row over all of them.
    """
    out = []
    for label in dict.fromkeys(case["label"] for case in cases):
        of_label = [case for case in cases if case["label"] == label]
        corpora = list(dict.fromkeys(case["corpus"] for case in of_label))
        for corpus in corpora + (["all"] if len(corpora) > 1 else []):
            group = of_label if corpus == "all" else [case for case in of_label if case["corpus"] == corpus]
            by_checkpoint = {
                name: [c for c in group if c["checkpoint"] == name]
                for name in dict.fromkeys(c["checkpoint"] for c in group)
            }
            entry = {"label": label, "corpus": corpus, **_figures(group)}
            if len(by_checkpoint) > 1:
                entry["checkpoints"] = {name: _figures(rows) for name, rows in by_checkpoint.items()}
            out.append(entry)
    return out


def _figures(rows: list[dict[str, Any]]) -> dict[str, Any]:
    outcomes = Counter(row["outcome"] for row in rows)
    oracle_copies = sum(row["copies_oracle"] for row in rows)
    figures: dict[str, Any] = {
        "n": len(rows),
        "exact_match": rate(row["exact"] for row in rows).as_json(),
        "trimmed_match": rate(row["trimmed"] for row in rows).as_json(),
        "program_match": rate(row["program_exact"] for row in rows).as_json(),
        "parsed": rate(row["parsed"] for row in rows).as_json(),
        "start_accuracy": sum(row["copies_starts"] for row in rows) / oracle_copies if oracle_copies else None,
        "end_accuracy": sum(row["copies_ends"] for row in rows) / oracle_copies if oracle_copies else None,
        "oracle_copies": oracle_copies,
        "out_of_range": sum(row["out_of_range"] for row in rows),
        "outcomes": {name: outcomes[name] for name in OUTCOMES},
        "changed_outside": _changed_outside(rows),
    }
    if examined := [row["text_faults"] for row in rows if "text_faults" in row]:  # rows of earlier versions have none
        counts = Counter(name for faults in examined for name in faults)
        figures["text_faults"] = {"n": len(examined)} | {name: counts[name] for name in TEXT_FAULTS}
    if any("tests" in row for row in rows):
        figures["tests"] = _tests([row["tests"] for row in rows if "tests" in row])
    decoded = [row for row in rows if "forwards" in row]
    if decoded:
        output_tokens = sum(row["output_tokens"] for row in decoded)
        figures |= {
            "copied_share": sum(row["copied"] for row in decoded) / output_tokens if output_tokens else None,
            "forwards": statistics.mean(row["forwards"] for row in decoded),
            "decoded": statistics.mean(row["decoded"] for row in decoded),
            "wall_s_median": statistics.median(row["wall_s"] for row in decoded),
            "wall_s_mean": statistics.mean(row["wall_s"] for row in decoded),
            "stops": dict(Counter(row["stop"] for row in decoded)),
        }
        curve = risk_coverage([row["confidence"] for row in decoded], [row["exact"] for row in decoded])
        figures["risk_coverage"] = {
            "aurc": curve.aurc,
            "points": [
                {"coverage": coverage, "threshold": threshold, "exact_match": Rate(exact, accepted).as_json()}
                for coverage, threshold, accepted, exact in curve.points
            ],
        }
    return figures


def _changed_outside(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Lines changed outside the gold's hunks: the mean over edits that gave a document, and how many changed any."""
    counts = [row["changed_outside"] for row in rows if row.get("changed_outside") is not None]
    return {"mean": statistics.mean(counts) if counts else None, "edits": rate(count > 0 for count in counts).as_json()}


def _tests(results: list[dict[str, str]]) -> dict[str, Any]:
    """How the tests ended: the rate is over what was executed, and what was not is counted by reason."""
    executed = [result for result in results if result["outcome"] in TEST_OUTCOMES]
    outcomes = Counter(result["outcome"] for result in executed)
    return {
        "passed": rate(result["outcome"] == "passed" for result in executed).as_json(),
        "outcomes": {name: outcomes[name] for name in TEST_OUTCOMES},
        "not_executed": dict(Counter(result["detail"] for result in results if result["outcome"] not in TEST_OUTCOMES)),
    }


def report(summary: dict[str, Any]) -> str:
    """Return the Markdown report of a summary."""
    data = summary["data"]
    seeds = [str(c["seed"]) for c in summary["checkpoints"] if c["seed"] is not None]
    lines = [
        "# Held-out report",
        "",
        f"- command: `{summary['command']}`",
        f"- checkpoints: {', '.join(c['name'] for c in summary['checkpoints'])}"
        + (f"; seeds {', '.join(seeds)}" if seeds else ""),
        f"- untrained model: {summary['base'] or 'none named'}",
        f"- data: {data['folder']}, {data['split']} split, fingerprint {data['fingerprint'][:16]}",
        f"- decoding: style={summary['settings']['style']}, splice={summary['settings']['splice']}, "
        f"temperature={summary['settings']['temperature']}",
        *_execution(summary.get("execution")),
        "",
        *sections(summary["systems"]),
    ]
    return "\n".join(lines) + "\n"


def sections(systems: list[dict[str, Any]]) -> list[str]:
    """Return the lines of the tables of a report on the entries that ``summarise`` returns."""
    decoded = [entry for entry in systems if "forwards" in entry]
    tested = [entry for entry in systems if "tests" in entry]
    quality = [*_QUALITY, "tests passed"] if tested else _QUALITY
    lines = [
        "Exact match (EM) is byte equality up to one final newline; brackets are Wilson 95 % intervals. Start and end "
        "are over the oracles' copy operations. Changed outside is the mean number of lines that an edit changes where "
        "the gold changes none, and how many edits change any there.",
        "",
        markdown_table(quality, [_quality(entry)[: len(quality)] for entry in systems]),
        "",
        "What an edit costs (means; wall clock is the median):",
        "",
        markdown_table(_COST, [_cost(entry) for entry in decoded]),
        "",
        "Where attempts end (every attempt is in one column; the classes of the paper's Table 7), and what stopped "
        "them: the end token, or a limit:",
        "",
        markdown_table(
            ["system", "corpus", *_OUTCOME_NAMES.values(), "total", "stopped by"],
            [[e["label"], e["corpus"], *_outcomes(e), e["n"], _stops(e)] for e in decoded],
        ),
        "",
        "EM among the edits with the highest confidence, by the share of all that is accepted (risk against coverage); "
        "AURC is the mean error over all such shares, to be held against the error at 100 %:",
        "",
        markdown_table(
            ["system", "corpus", *_COVERAGES, "AURC"],
            [_coverage(entry) for entry in decoded],
        ),
    ]
    if faulty := [entry for entry in systems if any(_faults(entry))]:
        lines += [
            "",
            "Faults in the text of edits that are not exact, of kinds that neither the gold nor the document has (an "
            "edit may have several):",
            "",
            markdown_table(
                ["system", "corpus", *_FAULT_NAMES.values(), "attempts"],
                [[e["label"], e["corpus"], *_faults(e), e["text_faults"]["n"]] for e in faulty],
            ),
        ]
    if tested:
        lines += [
            "",
            "How the tests of the edited programs ended (an edit that gave no document has failed):",
            "",
            markdown_table(
                ["system", "corpus", *TEST_OUTCOMES, "not executed"],
                [[e["label"], e["corpus"], *e["tests"]["outcomes"].values(), _not_executed(e)] for e in tested],
            ),
        ]
    seeds_rows = [
        [
            entry["label"],
            entry["corpus"],
            name,
            rate_cell(figures["exact_match"]),
            decimal(figures["start_accuracy"]),
            decimal(figures["end_accuracy"]),
        ]
        for entry in systems
        for name, figures in entry.get("checkpoints", {}).items()
    ]
    if seeds_rows:
        lines += [
            "",
            "Checkpoint by checkpoint:",
            "",
            markdown_table(["system", "corpus", "checkpoint", "EM", "start", "end"], seeds_rows),
        ]
    return lines


_QUALITY = ["system", "corpus", "n", "EM", "trimmed EM", "program EM", "parsed", "start", "end"]
_QUALITY += ["out of range", "changed outside"]
_COVERAGES = ["10 %", "25 %", "50 %", "75 %", "100 %"]
_COST = ["system", "corpus", "forwards", "decided tokens", "copied share", "wall (s)"]


def _quality(entry: dict[str, Any]) -> list[str]:
    identity = "forwards" not in entry
    return [
        entry["label"],
        entry["corpus"],
        str(entry["n"]),
        rate_cell(entry["exact_match"]),
        rate_cell(entry["trimmed_match"]),
        "-" if identity else _count(entry["program_match"]),
        "-" if identity else _count(entry["parsed"]),
        "-" if identity else _spread(entry, "start_accuracy"),
        "-" if identity else _spread(entry, "end_accuracy"),
        "-" if identity else str(entry["out_of_range"]),
        _outside(entry["changed_outside"]),
        rate_cell(entry["tests"]["passed"]) if "tests" in entry else "-",
    ]


def _outside(figure: dict[str, Any]) -> str:
    return f"{decimal(figure['mean'])} ({_count(figure['edits'])})"


def _execution(record: dict[str, Any] | None) -> list[str]:
    """The line of the report's head on what ran the tests."""
    if record is None:
        return []
    versions = ", ".join(f"{name} {version}" for name, version in record["interpreters"].items())
    how = "isolated" if record["isolated"] else "with the network, not isolated"
    return [f"- tests: HumanEvalPack's own, on the edited documents, run by {versions}; {how}"]


def _not_executed(entry: dict[str, Any]) -> str:
    return "; ".join(f"{count}: {reason}" for reason, count in entry["tests"]["not_executed"].items()) or "0"


def _cost(entry: dict[str, Any]) -> list[str]:
    share = "-" if entry["copied_share"] is None else f"{entry['copied_share']:.1%}"
    return [
        entry["label"],
        entry["corpus"],
        f"{entry['forwards']:.1f}",
        f"{entry['decoded']:.1f}",
        share,
        f"{entry['wall_s_median']:.2f}",
    ]


def _outcomes(entry: dict[str, Any]) -> list[str]:
    return [f"{count} ({count / entry['n']:.1%})" for count in entry["outcomes"].values()]


def _stops(entry: dict[str, Any]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in sorted(entry["stops"].items()))


def _faults(entry: dict[str, Any]) -> list[int]:
    """The counts under ``_FAULT_NAMES``; empty for an entry of an earlier version."""
    figures = entry.get("text_faults", {})
    return [figures[name] for name in _FAULT_NAMES if figures]


def _coverage(entry: dict[str, Any]) -> list[str]:
    curve = entry["risk_coverage"]
    cells = [_count(point["exact_match"]) for point in curve["points"]]
    return [entry["label"], entry["corpus"], *cells, f"{curve['aurc']:.2f}"]


def _spread(entry: dict[str, Any], key: str) -> str:
    """The pooled accuracy, with the standard deviation over checkpoints where there are several."""
    values = [figures[key] for figures in entry.get("checkpoints", {}).values() if figures[key] is not None]
    text = decimal(entry[key])
    return f"{text} ± {statistics.stdev(values):.2f}" if len(values) > 1 else text


def decimal(value: float | None) -> str:
    """Two decimals; None is a figure without data."""
    return "no data" if value is None else f"{value:.2f}"


def _count(figure: dict[str, Any]) -> str:
    return f"{figure['k']}/{figure['n']}"


def rate_cell(figure: dict[str, Any]) -> str:
    """A proportion with its counts and its interval, as ``Rate.as_json`` gives them."""
    if figure["wilson95"] is None:
        return "no data"
    low, high = figure["wilson95"]
    return f"{figure['k']}/{figure['n']} = {figure['rate']:.1%} [{low:.1%}, {high:.1%}]"
