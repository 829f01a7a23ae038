"""Decoding and scoring a held-out split: checkpoints to case rows, case rows to a summary. Torch loads on first use."""

from __future__ import annotations

import hashlib
import json
import shlex
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cad_train.run_folder import environment
from data_prep.prepared import OracleRow, fingerprint, read_manifest, read_split
from data_prep.rows import read_rows, read_rows_tolerant, write_rows, write_text
from decoding.commandline import UserError
from decoding.console import track
from decoding.grammar import parse, render
from eval.checkpoints import Checkpoint, differing_settings, find_checkpoint, model_identity
from eval.execution import check_sandbox, execute_cases
from eval.metrics import changed_outside, endpoints, exact_match, out_of_range, outcome, trimmed_match
from eval.processes import Processes
from eval.tables import report, summarise
from eval.text_faults import text_faults

if TYPE_CHECKING:
    from decoding.decoder import Edit
    from decoding.encoder import ProgramEncoder

Strategy = Literal["fsm", "monotone", "vote", "prompt", "full", "search_replace", "unified_diff"]


@dataclass
class ScoreConfig:
    """What to score, and how. The keys of eval/heldout.py."""

    ckpt: list[str]  # run folders, model or adapter folders, GGUF files, or hub names
    corpus: list[str] = field(default_factory=list)  # corpora to score; default those the run was trained on
    data: str | None = None  # folder of prepared oracles; default the run's
    split: Literal["heldout", "train"] = "heldout"  # train shows how far a run has overfitted
    limit: int | None = None  # at most so many cases of each corpus
    strategy: Strategy = "fsm"  # how the checkpoint decodes
    baseline: list[Strategy] = field(default_factory=list)  # strategies of the untrained model to score beside it
    base: str | None = None  # the untrained model, and the base of adapters; default the run's
    style: Literal["numbered", "plain"] | None = None  # default the run's, else numbered
    splice: Literal["none", "full"] | None = None  # default the run's, else none
    min_span: int = 1  # the fewest lines of a copy, under the grammar
    temperature: float = 0.0  # of the strategies under the grammar; 0 is greedy, and 0.7 where a vote needs samples
    samples: int = 8  # programs of a vote
    seed: int = 0  # of sampling
    max_ops: int = 64  # operations an edit may have
    max_tokens: int | None = None  # tokens of an answer; default twice the document's plus 256
    batch_size: int = 1  # edits that share each forward; wall clock of an edit then includes its neighbours
    backend: Literal["packed", "graphs", "eager"] | None = None  # default by device; see decoding/forward.py
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: bfloat16 on an accelerator, float32 on a CPU
    device: str | None = None  # default the accelerator if there is one
    execute: bool = False  # run HumanEvalPack's tests on the edits: this runs model-written code, in limited processes
    execute_isolated: bool = True  # false runs them with the network too, where namespaces cannot be had
    out: str | None = None  # default RUN/heldout, or results/NAME for a model without a run

    def __post_init__(self) -> None:
        if not self.ckpt:
            raise ValueError("ckpt names nothing to score: give --ckpt PATH")
        for key in ("limit", "batch_size", "min_span", "samples", "max_ops"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise ValueError(f"{key}={value}: must be at least 1")
        if self.temperature < 0:
            raise ValueError(f"temperature={self.temperature}: must be at least 0")
        if len(set(self.ckpt)) < len(self.ckpt):
            raise ValueError(f"ckpt={self.ckpt}: the same checkpoint twice would pool a result with itself")


@dataclass(frozen=True)
class System:
    """One model under one strategy: what a table row aggregates, for one seed."""

    label: str
    checkpoint: str
    model: str
    strategy: str
    seed: int | None


def score_checkpoints(config: ScoreConfig) -> str | None:
    """Score every checkpoint and baseline of ``config``; return the report, which is also written to the out folder.

    Under a launcher each process decodes its share of the cases; only the main one reports, the others return None.
    """
    from decoding.decoder import EditRequest

    processes = Processes()
    if config.execute:
        check_sandbox(config.execute_isolated)  # what cannot work is refused before hours of decoding
    checkpoints = [find_checkpoint(name) for name in config.ckpt]
    style = _common(config.style, checkpoints, "style", "numbered")
    splice = _common(config.splice, checkpoints, "splice", "none")
    rows, source = _heldout_rows(config, checkpoints)
    base = config.base or next((c.config.model for c in checkpoints if c.config), None)
    if config.baseline and base is None:
        raise UserError("baseline= needs the untrained model: name it with base=")
    systems = [
        System(f"{_label(c, checkpoints)}, {config.strategy}", c.name, c.model, config.strategy, c.seed)
        for c in checkpoints
    ]
    systems += [System(f"untrained, {name}", base, base, name, None) for name in config.baseline]

    out = Path(config.out or _default_out(checkpoints))
    kept = ("min_span", "temperature", "samples", "seed", "max_ops", "max_tokens", "dtype")
    settings = {"format": 3, "rows": fingerprint(rows), "style": style, "splice": splice}
    settings |= {key: getattr(config, key) for key in kept}
    if processes.main:
        _collect(out, settings)
    processes.wait()
    done = {_key(row): row for row in read_rows(out / "cases.jsonl")}
    with processes.file(out / "cases.jsonl").open("a", encoding="utf-8") as file:
        for system in systems:
            identity = model_identity(system.model)
            # A case keeps its number, and with it its sampling noise, wherever and whenever it is decoded.
            todo = [(n, row) for n, row in enumerate(rows) if (system.strategy, identity, row.id) not in done]
            todo = processes.share(todo)
            if not todo:
                continue
            decoder = _decoder(system, config, base, style, splice, processes.device(config.device))
            requests = [(number, EditRequest(row.instruction, row.before)) for number, row in todo]
            label = f"{system.label} {system.checkpoint}{processes.suffix}"
            for number, edit in track(decoder.stream(requests), label, total=len(todo)):
                case = {"identity": identity} | asdict(system) | _case(edit, decoder.encoder, rows[number])
                file.write(json.dumps(case, ensure_ascii=False) + "\n")
                file.flush()
            del decoder
    processes.wait()
    if not processes.main:
        return None
    keys = {(s.strategy, model_identity(s.model), r.id): asdict(s) for s in systems for r in rows}
    cases = _collect(out, settings, keys)
    unchanged = [_identity_case(row) for row in rows]
    execution = {}
    if config.execute:
        data_dir = next((c.config.data.data_dir for c in checkpoints if c.config), None)
        execution = {"execution": execute_cases(cases + unchanged, rows, data_dir, config.execute_isolated)}
        with (out / "cases.jsonl").open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(case, ensure_ascii=False) + "\n" for case in cases)
        cases = _collect(out, settings, keys)  # a case's last row counts
    else:
        cases = [{key: value for key, value in case.items() if key != "tests"} for case in cases]
    summary = {
        "command": shlex.join(["python", *sys.argv]),
        "checkpoints": [
            {"name": c.name, "seed": c.seed, "training_data": c.data["fingerprint"] if c.data else None}
            for c in checkpoints
        ],
        "base": base,
        "data": source,
        "settings": settings | {"batch_size": config.batch_size},
        "environment": environment(),
        **execution,
        "systems": summarise(cases + unchanged),
    }
    write_text(out / "summary.json", json.dumps(summary, indent=2, ensure_ascii=False) + "\n")
    text = report(summary)
    write_text(out / "report.md", text)
    return f"{text}\nwrote {out}/report.md, summary.json, cases.jsonl"


def score_edit(edit_text: str | None, program, parsed: bool, row: OracleRow) -> dict[str, Any]:
    """Return the quality fields of one case."""
    oracle = parse(row.program)
    spans = endpoints(program, oracle)
    return {
        "exact": exact_match(edit_text, row.after),
        "trimmed": trimmed_match(edit_text, row.after),
        "program_exact": parsed and program is not None and render(program) == row.program,
        "parsed": parsed,
        "outcome": outcome(edit_text, row.after, spans, parsed),
        **{f"copies_{key}": value for key, value in asdict(spans).items()},
        "out_of_range": out_of_range(program, row.before),
        "changed_outside": changed_outside(edit_text, row.after, row.before),
        "text_faults": text_faults(edit_text, row.after, row.before, program),
    }


def _case(edit: Edit, encoder: ProgramEncoder, row: OracleRow) -> dict[str, Any]:
    # Free text has no program, but an answer that ended is read as what it is: the document.
    parsed = edit.complete and (edit.program is not None or edit.text is not None)
    gens = edit.program.gens if edit.program else []
    body_tokens = sum(len(encoder.text.encode(op.content)) for op in gens)
    return {
        **_about(row),
        **score_edit(edit.text, edit.program, parsed, row),
        **asdict(edit.stats),
        "confidence": edit.confidence,
        "output_tokens": edit.stats.copied + body_tokens if edit.program else len(edit.ids),
        "program": render(edit.program) if edit.program else None,
        "output": edit.text,
    }


def _identity_case(row: OracleRow) -> dict[str, Any]:
    system = System("identity (document unchanged)", "-", "-", "identity", None)
    return {**asdict(system), **_about(row), **score_edit(row.before, None, True, row), "output": row.before}


def _about(row: OracleRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "corpus": row.corpus,
        "document_sha256": _sha(row.before),
        "instruction_sha256": _sha(row.instruction),
        "gold_sha256": _sha(row.after),
    }


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _common(given, checkpoints: list[Checkpoint], key: str, default: str) -> str:
    """The setting to decode with: as given, else what the runs were trained with, which must then be one."""
    if given is not None:
        return given
    values = {getattr(c.config, key) for c in checkpoints if c.config}
    if len(values) > 1:
        raise UserError(f"the checkpoints were trained with different {key} ({', '.join(sorted(values))}): give {key}=")
    return values.pop() if values else default


def _heldout_rows(config: ScoreConfig, checkpoints: list[Checkpoint]) -> tuple[list[OracleRow], dict[str, Any]]:
    """The rows to score, and where they come from; data other than the runs' is an error unless asked for."""
    trained = {c.data["fingerprint"]: c for c in checkpoints if c.data}
    if config.data is None and not trained:
        raise UserError(
            f"{', '.join(c.name for c in checkpoints)}: no run folder here, so no held-out data of its own; "
            "check the path, or give data=FOLDER to score a model without a run"
        )
    folder = Path(config.data or next(iter(trained.values())).data["oracles"])
    manifest = read_manifest(folder)
    if manifest is None:
        raise UserError(
            f"{folder} holds no prepared oracles: build them with data_prep/build_oracles.py, or give data="
        )
    if config.data is None and set(trained) != {manifest["fingerprint"]}:
        raise UserError(
            f"the oracles in {folder} are not those that {' and '.join(c.name for c in trained.values())} trained on: "
            "their held-out split may overlap the training set. Rebuild them, or give data= to score on others"
        )
    first = next((c for c in checkpoints if c.config), None)
    corpora = config.corpus or (first.config.data.corpora if first else list(manifest["corpora"]))
    rows = []
    for name in corpora:
        found = read_split(folder, [name], config.split)
        rows += found[: config.limit]
    if not rows:
        raise UserError(f"the {config.split} split of {', '.join(corpora)} in {folder} is empty")
    return rows, {
        "folder": str(folder),
        "fingerprint": manifest["fingerprint"],
        "corpora": corpora,
        "split": config.split,
    }


def _default_out(checkpoints: list[Checkpoint]) -> Path:
    first = checkpoints[0]
    if len(checkpoints) == 1 and first.run:
        return first.run / "heldout"
    return Path("results") / "+".join(Path(c.name).name for c in checkpoints)


def _key(case: dict[str, Any]) -> tuple[str, str, str]:
    return case["strategy"], case["identity"], case["id"]


def _collect(
    out: Path, settings: dict[str, Any], asked: dict[tuple[str, str, str], dict[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """Gather the rows that calls with these settings, finished or not, left in ``out``; rewrite them as cases.jsonl.

    Rows of other settings are removed. ``asked`` has the keys of the cases in question, with what this call names their
    systems: these come first, under those names, and are returned.
    """
    out.mkdir(parents=True, exist_ok=True)
    cases, record = out / "cases.jsonl", out / "settings.json"
    files = [file for file in (cases, *sorted(out.glob("cases-*.jsonl"))) if file.exists()]
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    if record.exists() and json.loads(record.read_text(encoding="utf-8")) == settings:
        for file in files:
            # A last row that was cut off is dropped, and not followed by another on its line.
            rows |= {_key(row): row for _, row, problem in read_rows_tolerant(file) if not problem}
    named = [rows.pop(key) | system for key, system in (asked or {}).items() if key in rows]
    write_rows(cases, [*named, *rows.values()])
    write_text(record, json.dumps(settings, indent=2) + "\n")
    for file in files:
        if file != cases:
            file.unlink()
    return named


def _label(checkpoint: Checkpoint, checkpoints: list[Checkpoint]) -> str:
    """The same label, and so a pooled row, for runs that differ in nothing but the seed."""
    if len(checkpoints) == 1:
        return "checkpoint"
    if any(c.config is None for c in checkpoints):
        return checkpoint.name
    return checkpoint.name if differing_settings([c.config for c in checkpoints]) else "checkpoint"


def _decoder(system: System, config: ScoreConfig, base: str | None, style: str, splice: str, device: str | None):
    import torch

    from decoding.baselines import TextDecoder
    from decoding.decoder import SpliceDecoder
    from decoding.loading import load_encoder, load_model
    from decoding.voting import VotingDecoder

    dtype = None if config.dtype == "auto" else getattr(torch, config.dtype)
    model = load_model(system.model, dtype=dtype, device=device, base=base)
    encoder = load_encoder(system.model)
    shared = {"batch_size": config.batch_size, "backend": config.backend, "max_tokens": config.max_tokens}
    try:
        if system.strategy in ("prompt", "full", "search_replace", "unified_diff"):
            return TextDecoder(model, encoder, system.strategy, style=style, **shared)
        voting = system.strategy == "vote"
        decoder = SpliceDecoder(
            model,
            encoder.tokenizer,
            encoder=encoder,
            splice=splice,
            style=style,
            monotone=system.strategy == "monotone",
            min_span=config.min_span,
            temperature=config.temperature or (0.7 if voting else 0.0),
            seed=config.seed,
            max_ops=config.max_ops,
            **shared,
        )
        return VotingDecoder(decoder, config.samples) if voting else decoder
    except ValueError as error:  # a setting that this model, or this strategy, does not allow
        raise UserError(str(error)) from None
