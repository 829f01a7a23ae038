"""Measure what an edit costs to decode: ours beside autoregression, prompt lookup, other formats, the paper's decoder.

    python eval/decode_bench.py model=Qwen/Qwen2.5-Coder-0.5B-Instruct
    python eval/decode_bench.py model=Qwen/Qwen2.5-Coder-7B-Instruct random_weights=true dtype=bfloat16
    python eval/decode_bench.py workloads=[pyfix] limit=10 ar_limit=10 batch_workloads=[]      # needs no data folder

The gold edit is forced on every system, so that quality plays no part and weights may be random: speed does not depend
on them. Workloads are real documents (eval/workloads.py); all but pyfix come from data_dir= or CAD_DATA_DIR.

Systems: autoregressive (regenerates the document), lookup (the same with prompt lookup, each setting of lookups=),
search_replace and unified_diff (plain, and with the widest lookup setting), the paper's decoder (every literal and span
a forward of its own), and ours without and with drafts, for each setting of splice=.

Writes to out=: rows.jsonl (a row per case and system, as it is timed; the same command goes on where it stopped),
summary.json, report.md, and plot.svg.
"""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from cad_train.run_folder import environment
from data_prep.rows import read_rows_tolerant, write_rows, write_text
from decoding.commandline import UserError, run
from decoding.console import track
from eval.workloads import load_workload


@dataclass
class Config:
    """What to time, and on what."""

    model: str = "HuggingFaceTB/SmolLM2-135M-Instruct"  # hub name, model folder, or GGUF file
    random_weights: bool = False  # make the model from its configuration alone
    workloads: list[str] = field(default_factory=lambda: ["hevalfix-py", "hevalfix-js", "py-4", "py-16", "py-48"])
    limit: int = 20  # edits of each workload
    ar_limit: int = 5  # of these, how many plain autoregression decodes; ratios to it are over these
    systems: list[Literal["ar", "lookup", "format", "paper", "fused", "splice"]] = field(
        default_factory=lambda: ["ar", "lookup", "format", "paper", "fused", "splice"]
    )  # which to time: autoregressive, prompt lookup, other formats, the paper's decoder, ours without and with drafts
    lookups: list[str] = field(
        default_factory=lambda: [
            f"{n}:{k}:{which}" for which in ("first", "recent") for n, k in ((2, 10), (3, 20), (3, 64))
        ]
    )  # prompt lookup settings, longest n-gram : ids to draft : which occurrence
    splice: list[Literal["none", "full"]] = field(default_factory=lambda: ["none", "full"])  # what follows a copy tag
    batch_workloads: list[str] = field(default_factory=lambda: ["hevalfix-py"])  # workloads to time batches on
    batch_sizes: list[int] = field(default_factory=lambda: [1, 16])  # edits in flight
    batch_limit: int = 64  # edits of each of these workloads
    data_dir: str | None = None  # folder with humanevalpack/ and commits/; default CAD_DATA_DIR
    seed: int = 0  # of the order in which edits are drawn
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: bfloat16 on an accelerator, float32 on a CPU
    device: str | None = None  # default the accelerator if there is one
    backend: Literal["packed", "graphs", "eager"] | None = None  # default by device; see decoding/forward.py
    threads: int | None = None  # CPU threads; default torch's
    out: str = "results/decode_bench"  # where to write

    def __post_init__(self) -> None:
        for key in ("limit", "ar_limit", "batch_limit"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key}={getattr(self, key)}: must be at least 1")
        if any(size < 1 for size in self.batch_sizes):
            raise ValueError(f"batch_sizes={self.batch_sizes}: must be at least 1")


def main(config: Config) -> None:
    """Time, print, and write."""
    import torch

    from decoding.loading import load_encoder, load_model
    from eval.speed import (
        constraint_costs,
        exact_bound,
        forward_costs,
        speedup,
        systems_of,
        time_batch,
        time_one_by_one,
    )
    from eval.speed_report import figures, plot, report

    data_dir = Path(config.data_dir) if config.data_dir else None
    names = list(dict.fromkeys(config.workloads + config.batch_workloads))
    edits = {name: load_workload(name, data_dir, max(config.limit, config.batch_limit), config.seed) for name in names}
    if config.threads:
        torch.set_num_threads(config.threads)
    dtype = None if config.dtype == "auto" else getattr(torch, config.dtype)
    model = load_model(config.model, dtype=dtype, device=config.device, random_weights=config.random_weights)
    encoder = load_encoder(config.model)
    try:
        systems = systems_of(model, encoder, config.lookups, config.splice, config.backend)
    except ValueError as error:
        raise UserError(str(error)) from None
    systems = [system for system in systems if system.kind in config.systems]

    out = Path(config.out)
    rows = _kept_rows(out, config)
    kernel = forward_costs(model)
    curve = speedup(kernel)
    summary = {
        "command": shlex.join(["python", *sys.argv]),
        "model": config.model,
        "random_weights": config.random_weights,
        "device": torch.cuda.get_device_name() if model.device.type == "cuda" else model.device.type,
        "dtype": str(model.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "environment": environment(),
        "settings": asdict(config),
        "kernel": [
            {"N": n, "forward_s": seconds, "s": s}
            for n, seconds, s in zip(kernel.widths, kernel.seconds, curve.values, strict=True)
        ],
        "workloads": {},
        "batches": [],
        "constraints": {},
    }
    with (out / "rows.jsonl").open("a", encoding="utf-8") as file:
        for name in config.workloads:
            pairs = edits[name][: config.limit]
            done = {(row["system"], row["case"]) for row in rows if row["workload"] == name}
            timed = time_one_by_one(
                systems, pairs, config.ar_limit, lambda system, case, done=done: (system, case) in done
            )
            ar_cases = min(config.ar_limit, len(pairs))
            total = sum(ar_cases if system.kind == "ar" else len(pairs) for system in systems) - len(done)
            for row in track(timed, name, total=total):
                rows.append({"workload": name} | row)
                file.write(json.dumps(rows[-1]) + "\n")
                file.flush()
            tokens = [len(encoder.text.encode(pair.after)) for pair in pairs]
            own = [row for row in rows if row["workload"] == name]
            summary["workloads"][name] = figures(own, tokens, exact_bound(encoder, pairs, curve))
            if ours := next((system for system in systems if system.kind == "splice"), None):
                costs = constraint_costs(ours, pairs[:10])
                summary["constraints"][name] = costs | {"forward_s": kernel.seconds[0]}
    batched = [system for system in systems if system.kind in ("ar", "splice")]
    for name in config.batch_workloads:
        best = summary["workloads"].get(name, {}).get("best_lookup")
        chosen = batched + [system for system in systems if system.name == best]
        for system in chosen:
            for size in config.batch_sizes:
                if (row := time_batch(system, edits[name][: config.batch_limit], size)) is not None:
                    summary["batches"].append({"workload": name} | row)
    write_text(out / "summary.json", json.dumps(summary, indent=2, ensure_ascii=False) + "\n")
    text = report(summary)
    write_text(out / "report.md", text)
    plot(summary, out / "plot.svg")
    print(f"{text}\nwrote {out}/report.md, summary.json, rows.jsonl, plot.svg")


def _kept_rows(out: Path, config: Config) -> list[dict]:
    """Rows of an earlier, interrupted call with the same settings; others are removed."""
    out.mkdir(parents=True, exist_ok=True)
    record, path = out / "settings.json", out / "rows.jsonl"
    settings = {key: value for key, value in asdict(config).items() if key != "out"}
    rows = []
    if path.exists() and record.exists() and json.loads(record.read_text(encoding="utf-8")) == settings:
        rows = [row for _, row, problem in read_rows_tolerant(path) if not problem]
    write_rows(path, rows)
    write_text(record, json.dumps(settings, indent=2) + "\n")
    return rows


if __name__ == "__main__":
    run(main, Config, description=__doc__)
