"""The tables as one self-contained HTML file: nothing is loaded from elsewhere, and the plots are inline SVG.

Plots need matplotlib, the extra ``report``; without it the report says so in their place.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING, Any

from eval.paper_tables.table import Plot, Table, difference, lines_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

_TITLE = "The tables of Copy-as-Decode, measured again"
_COMPARED = (
    "Where the paper has a figure, it stands below ours with the difference: absolute for counts and accuracies, in "
    "percentage points (pp) for shares, relative to the paper's otherwise; = where both read alike. Brackets are "
    "intervals. Figures that were not measured are shown as -."
)
_INK = "#010203"  # while drawn; the page's own text colour afterwards, light or dark
# At least 3:1 against the light and the dark page, and told apart by colour-blind eyes; dashes tell them apart too.
_COLOURS = ("#0f7fc9", "#d55e00", "#009f76", "#c45f9c", _INK)
_DASHES = ((), (6, 2), (2, 1.5), (6, 2, 2, 2))
_INTERVALS = {"line": " Shaded: intervals.", "groups": " Whiskers: intervals.", "bars": ""}

_CSS = """
:root { color-scheme: light dark; --page: #fff; --ink: #1b1e23; --muted: #636a75; --line: #d5d9df; --plate: #f4f5f7;
  --link: #0b62a4; --differs: #8a5200; }
@media (prefers-color-scheme: dark) { :root { --page: #15171b; --ink: #e3e5e8; --muted: #979eaa; --line: #383d46;
  --plate: #1f2228; --link: #78b7ec; --differs: #e2ac63; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-padding-top: 1rem; }
body { margin: 0 auto; max-width: 72rem; padding: 1.5rem 1rem 4rem; background: var(--page); color: var(--ink);
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .5rem; }
h2 { font-size: 1.25rem; line-height: 1.3; margin: 0 0 .5rem; }
p, ul, dl { margin: .6rem 0; max-width: 48rem; }
ul { padding-left: 1.2rem; }
a { color: var(--link); }
code { font: .87em/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; overflow-wrap: anywhere; }
section { margin-top: 2.5rem; padding-top: 1.5rem; border-top: 1px solid var(--line); }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .3rem 1rem; }
dt, .muted, figcaption, .sources { color: var(--muted); }
dd { margin: 0; }
dd ul { margin: 0; padding: 0; list-style: none; }
.contents { list-style: none; padding: 0; }
.contents li { display: flex; flex-wrap: wrap; gap: 0 1rem; justify-content: space-between; padding: .2rem 0;
  border-bottom: 1px solid var(--line); }
.sources, figcaption, .contents .muted { font-size: .87rem; overflow-wrap: anywhere; }
.wide { overflow-x: auto; margin: 1rem 0; border: 1px solid var(--line); border-radius: 6px; width: fit-content;
  max-width: 100%; }
table { border-collapse: separate; border-spacing: 0; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .22rem .7rem; text-align: right; vertical-align: top; white-space: nowrap; }
thead th { background: var(--plate); color: var(--muted); font-weight: 600; vertical-align: bottom; }
tbody th { font-weight: 600; }
.text { text-align: left; white-space: normal; min-width: 6rem; max-width: 20rem; }
.which { text-align: left; color: var(--muted); }
tbody th, thead .text { min-width: 0; }
tr > .text:first-child { position: sticky; left: 0; z-index: 1; max-width: min(16rem, 38vw);
  border-right: 1px solid var(--line); overflow-wrap: break-word; }
tbody .text:first-child { background: var(--page); }
tbody > tr:first-child > * { border-top: 1px solid var(--line); }
.compared .ours td:not(.which) { font-weight: 650; }
td .muted { font-weight: 400; }
.difference td { font-size: .82rem; color: var(--differs); }
.difference td.same, .difference td.which { color: var(--muted); }
figure { margin: 1.5rem 0; max-width: 36rem; }
figure > div > svg { display: block; width: 100%; height: auto; }
figure svg text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif !important; }
figcaption strong { color: var(--ink); }
.legend { list-style: none; padding: 0; margin: .3rem 0; display: flex; flex-wrap: wrap; gap: .1rem 1.2rem;
  font-size: .87rem; }
.swatch { width: 1.7rem; height: .7rem; margin-right: .4rem; }
@media print {
  :root { color-scheme: light; --page: #fff; --ink: #000; --muted: #444; --line: #bbb; --plate: #f0f0f0;
    --link: #000; --differs: #6b3f00; }
  body { max-width: none; padding: 0; font-size: 10pt; }
  table { font-size: 7.5pt; }
  th, td { padding: .1rem .3rem; white-space: normal; }
  .wide { overflow: visible; border: 0; }
  tr > .text:first-child { position: static; }
  figure, tbody, h2 { break-inside: avoid; }
  h2 { break-after: avoid; }
}
"""


def html(tables: list[Table], record: dict[str, Any], notes: list[str]) -> str:
    """Return the report: what it is of, its contents, and every table with its plots and what it rests on.

    ``record`` is what eval/paper.py writes as paper.json, ``notes`` what was refused or left out and why. The text has
    no date: equal input gives equal bytes.
    """
    contents = "".join(
        f'<li><a href="#{_anchor(table)}">{escape(table.heading)}</a><span class="muted">{_agreement(table)}</span></li>\n'
        for table in tables
    )
    sections = "".join(_section(table, record["command"]) for table in tables)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{_TITLE}</title>
<style>{_CSS}</style>
</head>
<body>
<header>
<h1>{_TITLE}</h1>
{_header(record, notes)}
<p>{_COMPARED}</p>
</header>
<nav aria-label="Contents">
<ul class="contents">
{contents}</ul>
</nav>
<main>
{sections}</main>
</body>
</html>
"""


def _header(record: dict[str, Any], notes: list[str]) -> str:
    found = record["environment"]
    versions = {"Python": found["python"], **found["versions"], "revision": found["revision"]}
    environment = [f"{name} {version}" for name, version in versions.items() if version]
    environment += [str(found["device"]), f"{found['threads']} CPU threads"]
    corpora = [
        f"{escape(name)}: n={corpus['n']}, fingerprint <code>{escape(corpus['fingerprint'])}</code>"
        for name, corpus in record["corpora"].items()
    ]
    terms = {
        "Paper": escape(record["paper"]),
        "Command": f"<code>{escape(record['command'])}</code>",
        "Environment": escape(", ".join(environment)),
        "Corpora": _list(corpora) if corpora else "none",
        "Left out": _list(map(_prose, notes)) if notes else "nothing",
    }
    return "<dl>\n" + "".join(f"<dt>{name}</dt><dd>{value}</dd>\n" for name, value in terms.items()) + "</dl>"


def _section(table: Table, command: str) -> str:
    sources = "; ".join(f"{name} {value}" for name, value in table.sources.items())
    parts = [
        f'<section id="{_anchor(table)}">',
        f"<h2>{escape(table.heading)}</h2>",
        f"<p>{_prose(table.method)}</p>",
        _table(table),
        _list(map(_prose, table.findings)) if table.findings else "",
        f'<p class="sources">Rests on: {escape(sources)}.</p>',
        *_plots(table, sources, command),
        "</section>\n",
    ]
    return "\n".join(part for part in parts if part)


def _table(table: Table) -> str:
    header, lines = lines_of(table)
    width = len(table.labels)
    compared = len(header) > width + len(table.columns)
    kinds = ["text"] * width + ["which"] * compared + ["text" if c.kind == "text" else "" for c in table.columns]
    head = "".join(
        f'<th scope="col"{_class(kind)}>{escape(name)}</th>' for name, kind in zip(header, kinds, strict=True)
    )
    bodies = []
    for row, group in zip(table.rows, _groups(lines, width, compared), strict=True):
        labels = "".join(
            f'<th scope="rowgroup" class="text" rowspan="{len(group)}">{escape(label)}</th>' for label in row.labels
        )
        body = ""
        for which, line in group:
            cells = "".join(_cell(cell, kind, which) for cell, kind in zip(line[width:], kinds[width:], strict=True))
            body += f'<tr class="{which}">{labels}{cells}</tr>\n'
            labels = ""
        bodies.append(f"<tbody>\n{body}</tbody>\n")
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(table.heading)}">\n'
        f"<table{_class('compared' if compared else '')}>\n<thead><tr>{head}</tr></thead>\n{''.join(bodies)}</table>\n</div>"
    )


def _groups(lines: list[list[str]], width: int, compared: bool) -> list[list[tuple[str, list[str]]]]:
    """The lines of each row with what they are: ours, the paper's, the difference."""
    groups: list[list[tuple[str, list[str]]]] = []
    for line in lines:
        which = line[width] if compared else "ours"
        if which == "ours":
            groups.append([])
        groups[-1].append((which, line))
    return groups


def _cell(cell: str, kind: str, which: str) -> str:
    if which == "difference" and cell == "=":
        return '<td class="same">=</td>'
    value, bracket, interval = cell.partition(" [")
    shown = escape(value) + (f' <span class="muted">[{escape(interval)}</span>' if bracket else "")
    return f"<td{_class(kind)}>{shown}</td>"


def _agreement(table: Table) -> str:
    """How many of the paper's figures ours read like."""
    found = [difference(f, c.kind) for row in table.rows for f, c in zip(row.figures, table.columns, strict=True)]
    found = [text for text in found if text]
    return f"{found.count('=')} of {len(found)} figures as in the paper" if found else "nothing to compare"


def _anchor(table: Table) -> str:
    return "table-" + re.sub(r"[^\w.-]", "-", table.number)


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""


def _list(items: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{item}</li>" for item in items) + "</ul>"


def _prose(text: str) -> str:
    """Escape a text whose `code` is marked as in Markdown."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))


def _plots(table: Table, sources: str, command: str) -> list[str]:
    if not table.plots:
        return []
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        count = f"{len(table.plots)} plot" + "s" * (len(table.plots) > 1)
        return [
            f'<p class="muted">{count} not drawn: this needs matplotlib, '
            "<code>pip install 'cad-train[report]'</code>; the command then draws.</p>"
        ]
    return [
        f'<figure>\n<div role="img" aria-label="{escape(f"{plot.title}: {plot.y} by {plot.x}")}">'
        f"{_svg(plot, f'{_anchor(table)}-plot{index}-')}</div>\n{_legend(plot)}"
        f"<figcaption><strong>{escape(plot.title)}</strong>, {escape(table.heading)}."
        f"{_INTERVALS[plot.kind] if any(series.band for series in plot.series) else ''} "
        f"Rests on: {escape(sources)}. <code>{escape(command)}</code></figcaption>\n</figure>"
        for index, plot in enumerate(table.plots)
    ]


def _legend(plot: Plot) -> str:
    """The names of the series, as text of the page: it wraps, and does not shrink with the plot."""
    width = 10 if plot.kind == "groups" else 2
    swatches = [
        f'<svg class="swatch" viewBox="0 0 24 10" aria-hidden="true"><line x1="0" y1="5" x2="24" y2="5" stroke="{colour}" '
        f'stroke-width="{width}" stroke-dasharray="{" ".join(map(str, dash)) or "none"}"/></svg>{escape(series.name)}'
        for series, (colour, dash) in zip(plot.series, _looks(plot), strict=True)
    ]
    return _list(swatches).replace(_INK, "currentColor").replace("<ul>", '<ul class="legend">') + "\n"


def _looks(plot: Plot) -> list[tuple[str, tuple[float, ...]]]:
    """The colour and the dashes of each series."""
    dashes = ((),) if plot.kind == "groups" else _DASHES
    return [(_COLOURS[i % len(_COLOURS)], dashes[i % len(dashes)]) for i in range(len(plot.series))]


def _svg(plot: Plot, prefix: str) -> str:
    """Return the plot as an SVG element whose ids start with ``prefix``; titles and legend are the page's."""
    import matplotlib
    from matplotlib.figure import Figure

    settings = {
        "svg.fonttype": "none",  # text stays text
        "svg.hashsalt": "paper",  # the same ids on every run
        "text.parse_math": False,
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "grid.alpha": 0.15,
    } | dict.fromkeys(
        ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color"), _INK
    )
    with matplotlib.rc_context(settings):
        height = 0.8 + 0.2 * sum(len(series.points) for series in plot.series) if plot.kind == "groups" else 3
        figure = Figure(figsize=(5, height), layout="constrained")
        _DRAW[plot.kind](figure.add_subplot(), plot)
        file = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor")
    # Within tags only: a label may hold anything.
    named = re.compile(r'(?<=\sid=")|(?<=url\(#)|(?<=href="#)')
    return re.sub("<[^>]*>", lambda tag: named.sub(prefix, tag[0]), svg)


def _draw_line(axes: Axes, plot: Plot) -> None:
    for series, (colour, dash) in zip(plot.series, _looks(plot), strict=True):
        x, y = _split(series.points)
        marker = "o" if len(x) <= 40 else ""
        axes.plot(x, y, color=colour, linestyle=(0, dash), marker=marker, markersize=3.5)
        if series.band:
            axes.fill_between(x, *_split(series.band), color=colour, alpha=0.18, linewidth=0)
    _scale(axes.xaxis, plot.x, plot.log_x)
    _scale(axes.yaxis, plot.y, plot.log_y)


def _draw_bars(axes: Axes, plot: Plot) -> None:
    for series, (colour, dash) in zip(plot.series, _looks(plot), strict=True):
        edges, heights = _split(series.points)
        axes.stairs(heights[:-1], edges, fill=True, color=colour, alpha=0.18)
        axes.stairs(heights[:-1], edges, color=colour, linestyle=(0, dash))
    _scale(axes.xaxis, plot.x, plot.log_x)
    _scale(axes.yaxis, plot.y, plot.log_y)


def _draw_groups(axes: Axes, plot: Plot) -> None:
    """Draw the bars lying: labels may be long, and stay readable on a narrow page."""
    thickness = 0.8 / len(plot.series)
    for index, (series, (colour, _)) in enumerate(zip(plot.series, _looks(plot), strict=True)):
        places, values = _split(series.points)
        places = [place + thickness * (index - (len(plot.series) - 1) / 2) for place in places]
        whiskers = None
        if series.band:
            lows, highs = _split(series.band)
            whiskers = (
                [max(value - low, 0.0) for value, low in zip(values, lows, strict=True)],
                [max(high - value, 0.0) for value, high in zip(values, highs, strict=True)],
            )
        bars = axes.barh(places, values, thickness, color=colour, xerr=whiskers, ecolor=_INK, capsize=2)
        axes.bar_label(bars, fmt=lambda value: f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}", padding=3)
    axes.margins(x=0.15)  # room for the figures at the bars' ends
    _scale(axes.xaxis, plot.y, plot.log_y)
    axes.set_ylabel(plot.x)
    axes.set_yticks(range(len(plot.labels)), [textwrap.fill(label, 24) for label in plot.labels])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()


def _scale(axis: Axis, label: str, log: bool) -> None:
    """Name an axis and set its scale, with plain numbers at its ticks."""
    from matplotlib.ticker import AutoLocator, LogLocator, NullFormatter, StrMethodFormatter

    axis.set_label_text(label)
    if log:
        axis._set_axes_scale("log")
        low, high = axis.get_view_interval()
        # Powers of ten alone would leave an axis of one or two decades almost without ticks.
        axis.set_major_locator(
            LogLocator(subs=(1, 2, 5) if high / low < 1000 else (1,)) if high / low > 10 else AutoLocator()
        )
        axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
    axis.grid(True)


def _split(points: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    first, second = zip(*points, strict=True)
    return list(first), list(second)


_DRAW = {"line": _draw_line, "bars": _draw_bars, "groups": _draw_groups}
