"""Training curves of runs: what metrics.jsonl says, runs that differ only in the seed as one group, and the drawing."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cad_train.config import TrainConfig
from cad_train.run_folder import flat
from data_prep.rows import read_rows_tolerant
from decoding.commandline import UserError, from_yaml
from eval.checkpoints import differing_settings
from eval.results import choose_system, read_results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_REGIONS = ("structure", "start_digits", "end_digits", "gen_text", "end")
# What is drawn: a key of metrics.jsonl, and the title of its panel.
PANELS = {
    "loss": "training loss",
    "eval_nll": "held-out loss",
    "eval_exact_match": "held-out EM",
    **{f"nll_{region}": f"training loss: {region.replace('_', ' ')}" for region in _REGIONS},
}
_SHARES = ("eval_exact_match",)  # between 0 and 1; the others are in nats per token
# Told apart by colour-blind eyes; dashes tell them apart where the colours come again.
_COLOURS = ("#0f7fc9", "#d55e00", "#009f76", "#c45f9c", "#56606e")
_DASHES = ("-", "--", ":", "-.")


@dataclass(frozen=True)
class RunCurves:
    """One run. ``curves`` holds (step, value) by key of ``PANELS``, in order of steps, finite values only.

    Attributes:
        scored: exact match of its held-out results (RUN/heldout), None where it was not scored.
        notes: what a person should know of it: unfinished, damaged rows, values that are not finite.
    """

    folder: Path
    config: TrainConfig
    training_data: str | None
    curves: dict[str, list[tuple[int, float]]]
    scored: float | None
    notes: list[str]

    @property
    def last_step(self) -> int:
        """The last step of which anything was logged."""
        return max(points[-1][0] for points in self.curves.values())


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but the seed."""

    label: str
    runs: list[RunCurves] = field(default_factory=list)


@dataclass(frozen=True)
class Band:
    """A curve over seeds: arrays of ``[steps]``."""

    steps: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def read_run(path: str) -> RunCurves | str:
    """Read a run folder; return why it cannot be drawn where nothing has been logged yet.

    Raises:
        UserError: a folder that does not exist or is no run.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}")
    if not (folder / "config.yaml").is_file():
        raise UserError(f"{folder} is no run folder (no config.yaml): name folders that a recipe wrote")
    config = from_yaml(TrainConfig, folder / "config.yaml")
    curves: dict[str, dict[int, float]] = {}
    damaged = unbounded = 0
    metrics = folder / "metrics.jsonl"
    for _, row, problem in read_rows_tolerant(metrics) if metrics.is_file() else ():
        if problem or not isinstance(row.get("step"), int):
            damaged += 1
            continue
        for key in PANELS.keys() & row.keys():
            if isinstance(row[key], int | float) and math.isfinite(row[key]):
                curves.setdefault(key, {})[row["step"]] = float(row[key])  # the last row of a step counts
            else:
                unbounded += 1
    if not curves:
        return f"{folder}: nothing has been logged yet, and nothing is drawn"
    notes = [] if (folder / "summary.json").is_file() else ["not finished"]
    notes += [f"{damaged} rows of metrics.jsonl are damaged, and left out"] if damaged else []
    notes += [f"{unbounded} values are not finite, and not drawn"] if unbounded else []
    data = folder / "data.json"
    fingerprint = json.loads(data.read_text(encoding="utf-8")).get("fingerprint") if data.is_file() else None
    points = {key: sorted(values.items()) for key, values in curves.items()}
    return RunCurves(folder, config, fingerprint, points, _scored(folder), notes)


def _scored(folder: Path) -> float | None:
    """Exact match over all cases of the run's held-out results, if it has any that are whole."""
    try:
        rows = choose_system(read_results(str(folder)), None).rows
    except UserError:
        return None
    exact = [row["exact"] for cases in rows.values() for row in cases.values()]
    return sum(exact) / len(exact)


def group_runs(runs: list[RunCurves]) -> list[Group]:
    """Group runs that differ only in the seed, named by the settings in which the groups differ."""
    found: list[list[RunCurves]] = []
    for run in runs:
        for group in found:
            first = group[0]
            if first.training_data == run.training_data and not differing_settings([first.config, run.config]):
                group.append(run)
                break
        else:
            found.append([run])
    keys = differing_settings([group[0].config for group in found])
    groups = []
    for group in found:
        settings = flat(asdict(group[0].config))
        label = ", ".join(f"{key}={settings[key]}" for key in keys) or group[0].folder.name
        if label in [other.label for other in groups]:  # settings alike, other training data
            label = f"{label} ({group[0].folder})"
        groups.append(Group(label, group))
    return groups


def band(curves: list[list[tuple[int, float]]]) -> Band:
    """Return mean and range of several curves at every step that any of them has.

    Between its own steps a curve is interpolated, so that runs which log every so many steps differently line up;
    beyond its ends it does not count.
    """
    steps = np.unique([step for curve in curves for step, _ in curve])
    values = np.array([np.interp(steps, *zip(*curve, strict=True), left=np.nan, right=np.nan) for curve in curves])
    return Band(steps, np.nanmean(values, axis=0), np.nanmin(values, axis=0), np.nanmax(values, axis=0))


def smoothed(curve: list[tuple[int, float]], window: int) -> list[tuple[int, float]]:
    """Return the curve with each value replaced by the mean of the last ``window`` logged ones, itself included."""
    values = [value for _, value in curve]
    means = [np.mean(values[max(0, at + 1 - window) : at + 1]) for at in range(len(values))]
    return [(step, float(mean)) for (step, _), mean in zip(curve, means, strict=True)]


def draw(groups: list[Group], smooth: int) -> Figure:
    """Draw a panel for each of ``PANELS`` that has data: a line for the mean of a group, a band from its lowest to its
    highest seed, and a thin line for each seed. EM of held-out results is a mark at the last step.

    Args:
        groups: as ``group_runs`` returns them.
        smooth: training losses are means over so many logged values.
    """
    from matplotlib.figure import Figure

    runs = [run for group in groups for run in group.runs]
    scored = any(run.scored is not None for run in runs)
    panels = [key for key in PANELS if any(key in run.curves for run in runs) or (key in _SHARES and scored)]
    columns = min(4, len(panels))
    lines = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(3.6 * columns, 2.7 * lines + 0.3 + 0.2 * len(groups)), layout="constrained")
    for index, key in enumerate(panels):
        axes = figure.add_subplot(lines, columns, index + 1)
        for number, group in enumerate(groups):
            look = {
                "color": _COLOURS[number % len(_COLOURS)],
                "linestyle": _DASHES[number // len(_COLOURS) % len(_DASHES)],
            }
            _draw_group(axes, key, group, smooth, look)
        axes.set(title=PANELS[key], xlabel="step", ylabel="share of cases" if key in _SHARES else "nats per token")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(True, alpha=0.15)
        axes.spines[["top", "right"]].set_visible(False)
        if key in _SHARES:
            axes.set_ylim(-0.03, 1.03)
    figure.legend(handles=_legend(groups, scored), loc="outside lower center", frameon=False)
    return figure


def _draw_group(axes: Axes, key: str, group: Group, smooth: int, look: dict[str, str]) -> None:
    curves = [run.curves[key] for run in group.runs if key in run.curves]
    if smooth > 1 and not key.startswith("eval_"):
        curves = [smoothed(curve, smooth) for curve in curves]
    if curves:
        over = band(curves)
        marker = "." if len(over.steps) <= 15 else ""
        if len(curves) > 1:
            axes.fill_between(over.steps, over.low, over.high, color=look["color"], alpha=0.18, linewidth=0)
            for curve in curves:
                axes.plot(*zip(*curve, strict=True), **look, linewidth=0.6, alpha=0.5)
        axes.plot(over.steps, over.mean, **look, linewidth=1.6, marker=marker)
    scored = [(run.last_step, run.scored) for run in group.runs if run.scored is not None]
    if key in _SHARES and scored:
        steps, values = zip(*scored, strict=True)
        middle = np.mean(values)
        whiskers = [[middle - min(values)], [max(values) - middle]]
        axes.errorbar([max(steps)], [middle], yerr=whiskers, color=look["color"], marker="D", markersize=5, capsize=3)


def _legend(groups: list[Group], scored: bool) -> list:
    from matplotlib.lines import Line2D

    handles = []
    for number, group in enumerate(groups):
        seeds = ", ".join(str(run.config.seed) for run in group.runs)
        name = f"{group.label} (seed{'s' if len(group.runs) > 1 else ''} {seeds})"
        line = _DASHES[number // len(_COLOURS) % len(_DASHES)]
        handles.append(Line2D([], [], color=_COLOURS[number % len(_COLOURS)], linestyle=line, label=name))
    if scored:
        mark = {"marker": "D", "markersize": 5, "linestyle": "none", "color": _COLOURS[-1]}
        handles.append(Line2D([], [], **mark, label="EM of the trained model on its held-out results"))
    return handles
