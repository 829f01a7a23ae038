"""Draw loss and held-out exact match of training runs: a line for the mean over seeds, a band from lowest to highest.

    python recipes/plot.py runs/sft_py-seed0                                    # writes runs/sft_py-seed0/plot.svg
    python recipes/plot.py runs/sft_py-seed*                                    # seeds together: results/plot.svg
    python recipes/plot.py runs/sweep-sft_py/*/seed* out=results/lr.png smooth=10

Runs that differ in nothing but the seed, by their config.yaml and training data, are one line with its band; each seed
is a thin line besides. Others are lines of their own, named by the settings in which they differ. Drawn are training
loss, held-out loss, held-out exact match (EM) and training loss by region, as far as they were logged: with
evaluation.every=N a run logs held-out loss and EM every N steps, otherwise held-out loss once, before the first. A
diamond is the EM of a run's results of eval/heldout.py, which are of more cases.

Runs that logged at different steps are put side by side by step, interpolated between their own; a run that ended
earlier does not count beyond its end. A run that is not finished is drawn as far as it has come, and said to be so.
Needs matplotlib: pip install 'cad-train[report]'.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from decoding.commandline import UserError, run
from eval.curves import PANELS, Group, RunCurves, draw, group_runs, read_run
from eval.results import words_to_key


@dataclass
class Config:
    """What to draw."""

    runs: list[str]  # run folders
    smooth: int = 1  # training losses are means over so many logged values
    out: str | None = None  # an .svg or .png file; default RUN/plot.svg, or results/plot.svg for several runs

    def __post_init__(self) -> None:
        if self.smooth < 1:
            raise ValueError(f"smooth={self.smooth}: must be at least 1")
        if self.out and Path(self.out).suffix not in (".svg", ".png"):
            raise ValueError(f"out={self.out}: name a file that ends in .svg or .png")
        folders = [Path(name).resolve() for name in self.runs]
        if len(set(folders)) < len(folders):
            raise ValueError("a run is named twice: it would count twice")


def main(config: Config) -> None:
    """Read, draw, write, and say what was drawn."""
    try:
        import matplotlib
    except ImportError:
        raise UserError("drawing needs matplotlib: pip install 'cad-train[report]'") from None

    found = [read_run(name) for name in config.runs]
    runs = [one for one in found if isinstance(one, RunCurves)]
    if not runs:
        raise UserError("; ".join(str(one) for one in found))
    for one in found:
        notes = [one] if isinstance(one, str) else [f"{one.folder}: {note}" for note in one.notes]
        for note in notes:
            print(note, file=sys.stderr)
    groups = group_runs(runs)
    out = Path(config.out or (runs[0].folder / "plot.svg" if len(config.runs) == 1 else "results/plot.svg"))
    settings = {"svg.fonttype": "none", "svg.hashsalt": "curves", "text.parse_math": False, "font.size": 9}
    with matplotlib.rc_context(settings):
        figure = draw(groups, config.smooth)
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            dated = {"Date": None} if out.suffix == ".svg" else {}  # equal runs give equal files
            figure.savefig(out, dpi=150, metadata=dated)
        except OSError as error:
            raise UserError(f"cannot write {out}: {error}") from None
    for group in groups:
        print(_describe(group))
    if not any("eval_exact_match" in one.curves or one.scored is not None for one in runs):
        print("no EM: train with evaluation.every=N, or score the runs with eval/heldout.py", file=sys.stderr)
    print(f"wrote {out}")


def _describe(group: Group) -> str:
    """A group in one line: its runs, and the last value of the first panels, mean and range over seeds."""
    parts = [f"{len(group.runs)} run{'s' * (len(group.runs) > 1)}, up to step {max(r.last_step for r in group.runs)}"]
    for key in ("loss", "eval_nll", "eval_exact_match"):
        last = [one.curves[key][-1][1] for one in group.runs if key in one.curves]
        if last:
            spread = f" ({min(last):.4g} to {max(last):.4g})" if len(last) > 1 else ""
            parts.append(f"last {PANELS[key]} {sum(last) / len(last):.4g}{spread}")
    return f"{group.label}: " + "; ".join(parts)


if __name__ == "__main__":
    sys.argv[1:] = words_to_key(sys.argv[1:], "runs", Config)
    run(main, Config, description=__doc__, usage="RUN [RUN ...] [key=value ...]")
