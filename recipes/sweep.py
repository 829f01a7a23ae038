"""Repeat a recipe over seeds and a grid of settings, score every run, and put all in one table.

    python recipes/sweep.py recipe=sft_py seeds=[0,1,2]                            # the paper's three seeds
    python recipes/sweep.py recipe=sft_py seeds=[0,1,2] lr=[1e-5,2e-5] splice=[none,full] baseline=lr=2e-5,splice=none
    python recipes/sweep.py recipe=sft_combined launcher=accelerate_configs/ddp.yaml seeds=[0,1] \\
        data.corpora=[[hevalfix-py],[hevalfix-py,hevalfix-js]] heldout.corpus=[hevalfix-py]
    python recipes/sweep.py recipe=sft_combined recipes/configs/quickstart.yaml max_steps=50 lr=[1e-3,2e-3]

Settings of the recipe are written as on its own command line, YAML files and key=value (`python recipes/RECIPE.py
--help` lists them), with one addition: a list, key=[a,b], is an axis of the grid. For a key that is itself a list, such
as data.corpora, [a,b] is one value and [[a],[b,c]] an axis of two. Every point of the grid is parsed as the recipe will
parse it before the first one runs. What a YAML file says is not an axis. Where an axis is of the data (data.KEY), every
choice has its oracles in a folder of its own, named after it: DATA.OUT-data.KEY=VALUE.

Runs follow one another, each as `accelerate launch recipes/RECIPE.py ...`; launcher= names a file of
accelerate_configs/, which is how several GPUs share a run. All points run with the first seed before any with the
second. A run lies in out=/KEY=VALUE,.../seedS, its output in log.txt there. The same seed gives the same losses,
initialisation of adapters included, with the same number of processes and threads; on a GPU up to rounding, since some
of its kernels add in no fixed order.

A run that fails is recorded, and the others go on. The same command again skips finished runs, goes on with interrupted
ones from their newest checkpoint, and tries failed ones again; more seeds or values may be added. Ctrl-C or SIGTERM
lets the run at hand save a checkpoint and stops.

Then every finished run is scored as eval/heldout.py does, with the same settings, into RUN/heldout. heldout.KEY=VALUE
passes its keys, such as heldout.limit=20; heldout.baseline=[fsm] scores each untrained model once. Points are compared
case by case with baseline=KEY=VALUE,... (as much of it as tells one point from the others), by default the first.

Writes to out=: sweep.md, the table and what it rests on, and sweep.json, with the state of every run while it goes on.
The exit code is 1 if a run was not trained or not scored, with one line for each.
"""

from __future__ import annotations

import json
import re
import shlex
import signal
import sys
import time
import traceback
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from cad_train.grid import Recipe, Run, load_recipe, make_grid
from cad_train.launching import launch
from data_prep.rows import write_text
from decoding.commandline import UserError, parse_config, run
from decoding.console import markdown_table
from eval.report import render
from eval.results import Results, read_results
from eval.scoring import ScoreConfig, score_checkpoints
from eval.sweep_report import aggregate, results_table


@dataclass
class Config:
    """What to repeat, and how."""

    recipe: str  # a script of recipes/, such as sft_py, or a path
    settings: list[str] = field(default_factory=list)  # key=value of the recipe or heldout.KEY=VALUE; may stand alone
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])  # training seeds; the paper has three
    baseline: str | None = None  # the point that others are compared with; default the first
    launcher: str | None = None  # a file of accelerate_configs/; default what accelerate launch chooses
    out: str | None = None  # folder of the sweep; default runs/sweep-RECIPE

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds={self.seeds}: give each seed once, and at least one")


class Sweep:
    """The runs of a grid and how far each is, kept in sweep.json."""

    def __init__(self, config: Config, recipe: Recipe, runs: list[Run], path: Path) -> None:
        self.path, self.runs = path, runs
        self.states: list[dict[str, Any]] = [
            {
                "point": run.point,
                "seed": run.seed,
                "folder": str(run.folder),
                "training": "finished" if run.finished else "waiting",
                "scoring": "waiting",
            }
            for run in runs
        ]
        self.head = {
            "command": shlex.join(["python", *sys.argv]),
            "recipe": str(recipe.path),
            "launcher": config.launcher,
            "settings": config.settings,
            "seeds": config.seeds,
        }
        self.results: dict[str, Any] = {}

    def update(self, number: int, **changes: Any) -> None:
        """Note how far a run is."""
        self.states[number] |= changes
        self.write()

    def write(self) -> None:
        """Write sweep.json."""
        content = {**self.head, "runs": self.states, **self.results}
        write_text(self.path / "sweep.json", json.dumps(content, indent=2, ensure_ascii=False) + "\n")

    def label(self, number: int) -> str:
        """How lines on a run begin."""
        run = self.runs[number]
        return f"[{number + 1}/{len(self.runs)}] {run.point} seed {run.seed}"

    def failures(self) -> list[str]:
        """One line for each run that was not trained or not scored."""
        lines = []
        for state in self.states:
            for what in ("training", "scoring"):
                if state[what] == "failed":
                    code = f" (exit code {state['exit_code']})" if what == "training" else ""
                    which = f"{state['point']} seed {state['seed']}"
                    lines.append(f"{which}: {what} failed{code}: {state['error']}; see {state['log']}")
        return lines


def main(config: Config) -> None:
    """Check the grid, train, score, compare, and write."""
    sys.argv[1:] = [text.removeprefix("settings=") for text in sys.argv[1:]]  # as typed, for the reports
    recipe = load_recipe(config.recipe)
    score = _score_config(config.settings)
    settings = [text for text in config.settings if not _is_of_scoring(text)]
    if config.launcher and not Path(config.launcher).is_file():
        raise UserError(f"launcher={config.launcher}: there is no such file; accelerate_configs/ has some")
    out = Path(config.out or f"runs/sweep-{recipe.name}")
    runs = make_grid(recipe, settings, config.seeds, out)
    points = list(dict.fromkeys(run.point for run in runs))
    baseline = _choose_baseline(config.baseline, points)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a scheduler's stop is the same as Ctrl-C

    sweep = Sweep(config, recipe, runs, out)
    done = sum(run.finished for run in runs)
    seeds = ", ".join(map(str, config.seeds))
    print(f"{len(points)} points with seeds {seeds}: {len(runs)} runs in {out}, {done} of them finished", flush=True)
    try:
        sweep.write()
        _train(sweep, recipe, config.launcher)
        _score(sweep, score)
        _report(sweep, points, baseline)
    except OSError as error:
        raise UserError(f"cannot go on: {error}") from None
    if failures := sweep.failures() + sweep.results["problems"]:
        print("\n".join(f"failed: {line}" for line in failures), file=sys.stderr)
        raise SystemExit(1)


def _train(sweep: Sweep, recipe: Recipe, launcher: str | None) -> None:
    """Run what is not finished, one after another."""
    accelerate = [sys.executable, "-m", "accelerate.commands.launch", "--quiet"]
    accelerate += ["--config_file", launcher] if launcher else []
    for number, one in enumerate(sweep.runs):
        if one.finished:
            continue
        log, label = one.folder / "log.txt", sweep.label(number)
        print(f"{label}: training, {log}", flush=True)
        sweep.update(number, training="running", log=str(log))
        started = time.monotonic()
        try:
            outcome = launch([*accelerate, str(recipe.path), *one.arguments], log, label)
        except KeyboardInterrupt:
            sweep.update(number, training="interrupted")
            print(f"{label}: stopped; the same command goes on from here", flush=True)
            raise
        took = round(time.monotonic() - started, 1)
        if outcome.exit_code == 0 and one.finished:
            sweep.update(number, training="finished", seconds=took)
            print(f"{label}: finished in {took:.0f} s", flush=True)
            continue
        sweep.update(
            number,
            training="failed",
            scoring="none",
            seconds=took,
            exit_code=outcome.exit_code,
            error=outcome.reason or "the recipe wrote no summary.json",
            last_lines=outcome.last_lines,
        )
        print(f"{label}: FAILED: {sweep.states[number]['error']}", flush=True)


def _score(sweep: Sweep, score: ScoreConfig) -> None:
    """Score the finished runs, all alike, and every untrained model once."""
    untrained: set[tuple] = set()
    for number, one in enumerate(sweep.runs):
        if not one.finished:
            continue
        log, label = one.folder / "heldout" / "log.txt", sweep.label(number)
        try:
            kind = _untrained(score, one.config)
            baseline = [] if kind in untrained else score.baseline
            print(f"{label}: scoring", flush=True)
            score_checkpoints(replace(score, ckpt=[str(one.folder)], baseline=baseline))
            untrained.add(kind)
            sweep.update(number, scoring="scored")
        except Exception as error:  # out of memory, say: the other runs are scored all the same
            write_text(log, traceback.format_exc())
            reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            sweep.update(number, scoring="failed", error=" ".join(reason.split()), log=str(log))
            print(f"{label}: FAILED: {sweep.states[number]['error']}", flush=True)


def _untrained(score: ScoreConfig, config: Any) -> tuple:
    """What the answers of an untrained model depend on: settings of the scoring, or else of the run."""
    keys = {"base": "model", "style": "style", "splice": "splice"}
    return tuple(getattr(score, key) or getattr(config, of_run, None) for key, of_run in keys.items())


def _report(sweep: Sweep, points: list[str], baseline: str) -> None:
    """Pool, compare, print and write."""
    results: dict[str, list[Results]] = {point: [] for point in points}
    problems = []
    try:
        for one, state in zip(sweep.runs, sweep.states, strict=True):
            if state["scoring"] == "scored":
                results[one.point].append(read_results(str(one.folder)))
        found = aggregate(results, baseline)
    except UserError as error:
        problems.append(f"the results cannot be put together: {error}")
        found = {"pooled": None, "baseline": baseline, "comparisons": {}}
    if found["pooled"] and not results[baseline]:
        problems.append(f"the baseline {baseline} has no results: nothing is compared with it")
    sweep.results = {**found, "problems": problems}
    sweep.write()
    table = "\n".join(results_table(found))
    rows = [_run_row(state) for state in sweep.states]
    lines = [
        f"# Sweep of {Path(sweep.head['recipe']).stem}",
        "",
        f"- command: `{sweep.head['command']}`",
        f"- runs: {len(sweep.runs)}, of which {sum(one.finished for one in sweep.runs)} are finished",
        *(f"- failed: {line}" for line in sweep.failures() + problems),
        "",
        table,
        "",
        "The runs:",
        "",
        markdown_table(["point", "seed", "training", "scoring", "training loss", "run"], rows),
    ]
    if found["pooled"]:
        pooled = render({"command": sweep.head["command"], **found["pooled"]})
        lines += ["", re.sub("^#", "##", pooled, flags=re.MULTILINE).rstrip("\n")]
    write_text(sweep.path / "sweep.md", "\n".join(lines) + "\n")
    print(f"\n{table}\n\nwrote {sweep.path}/sweep.md, sweep.json", flush=True)


def _run_row(state: dict[str, Any]) -> list[str]:
    loss = "-"
    if state["training"] == "finished":
        summary = json.loads((Path(state["folder"]) / "summary.json").read_text(encoding="utf-8"))
        loss = f"{summary['train_loss']:.4f}" if "train_loss" in summary else "-"
    return [state["point"], str(state["seed"]), state["training"], state["scoring"], loss, state["folder"]]


def _is_of_scoring(text: str) -> bool:
    return text.removeprefix("--").startswith("heldout.")


def _score_config(settings: list[str]) -> ScoreConfig:
    """The scoring settings, as eval/heldout.py would read them."""
    given = [text.removeprefix("--").removeprefix("heldout.") for text in settings if _is_of_scoring(text)]
    for text in given:
        if text.partition("=")[0] in ("ckpt", "out"):
            raise UserError(f"heldout.{text}: the sweep says what is scored, and the results lie in RUN/heldout")
    try:
        return parse_config(ScoreConfig, ["ckpt=RUN", *given])
    except UserError as error:
        raise UserError(f"heldout: {error}") from None


def _choose_baseline(word: str | None, points: list[str]) -> str:
    """The one point that has all of ``word``'s settings; the first without a word."""
    if word is None:
        return points[0]
    wanted = set(word.split(","))
    found = [point for point in points if point == word] or [p for p in points if wanted <= set(p.split(","))]
    if len(found) != 1:
        what = "no point is that" if not found else f"{len(found)} points are that"
        raise UserError(f"baseline={word}: {what}; choose from {' '.join(points)}")
    return found[0]


def settings_to_key(argv: list[str]) -> list[str]:
    """Return a command line with what is not a key of the sweep as values of its key ``settings``."""
    names = {key.name for key in fields(Config)}
    out: list[str] = []
    words_follow = False  # those of --seeds 0 1 2
    for token in argv:
        name, sign, _ = token.removeprefix("--").partition("=")
        own = name in names or token in ("-h", "--help", "--print-config")
        words_follow = (own and token.startswith("--") and not sign) or (words_follow and not own and not sign)
        out.append(token if own or (words_follow and not token.startswith("--")) else f"settings={token}")
    return out


if __name__ == "__main__":
    sys.argv[1:] = settings_to_key(sys.argv[1:])
    run(main, Config, description=__doc__, usage="recipe=RECIPE [FILE.yaml ...] [key=value ...]")
