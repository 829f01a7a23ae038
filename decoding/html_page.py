"""A report as one self-contained HTML page: nothing is loaded from elsewhere, and the plots are inline SVG.

Plots need matplotlib, the extra ``report``; without it the page says so in their place. No torch.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from html import escape
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

_INK = "#010203"  # while drawn; the page's own text colour afterwards, light or dark
# At least 3:1 against the light and the dark page, and told apart by colour-blind eyes; dashes tell them apart too.
_COLOURS = ("#0f7fc9", "#d55e00", "#009f76", "#c45f9c", _INK)
_DASHES = ((), (6, 2), (2, 1.5), (6, 2, 2, 2))

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
p, ul { max-width: 48rem; }
p, ul, dl { margin: .6rem 0; }
ul { padding-left: 1.2rem; }
a { color: var(--link); }
code { font: .87em/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; overflow-wrap: anywhere; }
pre { max-height: 24rem; margin: .3rem 0 1rem; padding: .6rem .8rem; overflow: auto; background: var(--plate);
  border-radius: 6px; font: .8rem/1.45 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
summary { cursor: pointer; overflow-wrap: anywhere; }
section { margin-top: 2.5rem; padding-top: 1.5rem; border-top: 1px solid var(--line); }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .3rem 1rem; }
dt, .muted, figcaption, .sources { color: var(--muted); }
dd { margin: 0; }
dd ul { margin: 0; padding: 0; max-width: none; list-style: none; }
.contents { list-style: none; padding: 0; }
.contents li { display: flex; flex-wrap: wrap; gap: 0 1rem; justify-content: space-between; padding: .2rem 0;
  border-bottom: 1px solid var(--line); }
.sources, figcaption, .contents .muted { font-size: .87em; overflow-wrap: anywhere; }
.wide { overflow-x: auto; margin: 1rem 0; border: 1px solid var(--line); border-radius: 6px; width: fit-content;
  max-width: 100%; }
table { border-collapse: separate; border-spacing: 0; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .22rem .55rem; text-align: right; vertical-align: top; white-space: nowrap; }
thead th { background: var(--plate); color: var(--muted); font-weight: 600; vertical-align: bottom;
  white-space: normal; }
tbody th { font-weight: 600; }
.text { text-align: left; }
.long { white-space: normal; min-width: 12rem; max-width: 20rem; overflow-wrap: anywhere; }
.which { text-align: left; color: var(--muted); }
tbody tr:not(:last-child) { height: 1px; } /* a tall label makes room below its lines, not between them */
tr > .text:first-child { position: sticky; left: 0; z-index: 1; border-right: 1px solid var(--line); }
tbody .text:first-child { background: var(--page); }
@media (max-width: 40rem) { dl { display: block; } dd { margin-bottom: .5rem; }
  tr > .text:first-child { white-space: normal; min-width: 0; max-width: 38vw;
  overflow-wrap: break-word; } }
tbody > tr:first-child > * { border-top: 1px solid var(--line); }
.compared .ours td:not(.which) { font-weight: 650; }
td .muted { font-weight: 400; }
.difference td { font-size: .92em; color: var(--differs); }
.difference td.same, .difference td.which { color: var(--muted); }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(28rem, 100%), 1fr)); gap: 1.5rem 2rem; }
figure { margin: 0; }
figure > svg { display: block; width: 100%; stroke-linejoin: round; }
figure svg text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif !important; }
figcaption strong { color: var(--ink); }
.legend { list-style: none; padding: 0; margin: .3rem 0; display: flex; flex-wrap: wrap; gap: .1rem 1.2rem;
  font-size: .87em; }
.swatch { width: 1.7rem; height: .7rem; margin-right: .4rem; }
@media print {
  :root { color-scheme: light; --page: #fff; --ink: #000; --muted: #444; --line: #bbb; --plate: #f0f0f0;
    --link: #000; --differs: #6b3f00; }
  body { max-width: none; padding: 0; font-size: 10pt; }
  table { font-size: 7.5pt; }
  th, td { padding: .1rem .3rem; white-space: normal; }
  .long { min-width: 0; }
  .wide { overflow: visible; border: 0; }
  tr > .text:first-child { position: static; }
  .plots { grid-template-columns: 1fr 1fr; }
  figure, tbody, h2 { break-inside: avoid; }
  h2 { break-after: avoid; }
}
"""


@dataclass(frozen=True, slots=True)
class Series:
    """A line or set of bars of a plot: (x, y) points; ``band`` is (low, high) at each of them."""

    name: str
    points: list[tuple[float, float]]
    band: list[tuple[float, float]] | None = None


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot of a table's figures.

    ``bars`` is a histogram: x is a bin's left edge, and the last point closes the last bin with y 0. ``groups`` are
    bars side by side: x counts from 0 along ``labels``.
    """

    title: str
    x: str
    y: str
    series: list[Series]
    kind: Literal["line", "bars", "groups"] = "line"
    log_x: bool = False
    log_y: bool = False
    labels: list[str] = field(default_factory=list)


def page(title: str, header: str, contents: str, main: str) -> str:
    """Return a whole page; ``title`` is text, the rest HTML: under the title, the contents' ``li``, and sections."""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{_CSS}</style>
</head>
<body>
<header>
<h1>{escape(title)}</h1>
{header}
</header>
<nav aria-label="Contents">
<ul class="contents">
{contents}</ul>
</nav>
<main>
{main}</main>
</body>
</html>
"""


def contents_entry(anchor: str, heading: str, note: str) -> str:
    """Return the line of the contents for the section with the id ``anchor``; heading and note are text."""
    return f'<li><a href="#{anchor}">{escape(heading)}</a> <span class="muted">{escape(note)}</span></li>\n'


def terms(values: dict[str, str]) -> str:
    """Return a list of terms with what is said of each, in HTML."""
    return "<dl>\n" + "".join(f"<dt>{name}</dt><dd>{value}</dd>\n" for name, value in values.items()) + "</dl>"


def items(of: Iterable[str]) -> str:
    """Return a list of HTML items."""
    return "<ul>" + "".join(f"<li>{item}</li>" for item in of) + "</ul>"


def prose(text: str) -> str:
    """Escape a text whose `code` is marked as in Markdown."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))


def of_class(name: str) -> str:
    """Return the attribute of an element of class ``name``, nothing for no class."""
    return f' class="{name}"' if name else ""


def wide(heading: str, table: str) -> str:
    """Return an HTML table in a frame that scrolls by itself where the page is narrow; ``heading`` is its label."""
    return f'<div class="wide" tabindex="0" role="region" aria-label="{escape(heading)}">\n{table}\n</div>'


def figures(plots: list[Plot], anchor: str, caption: Callable[[Plot], str]) -> str:
    """Return the plots of the section ``anchor`` side by side, each with its legend and its caption in HTML."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        count = f"{len(plots)} plot" + "s" * (len(plots) > 1)
        return (
            f'<p class="muted">{count} not drawn: that needs matplotlib, '
            "<code>pip install 'cad-train[report]'</code>.</p>"
        )
    # A series may have no points, as the paper's on a corpus of one's own.
    plots = [replace(plot, series=[series for series in plot.series if series.points]) for plot in plots]
    drawn = [
        f"<figure>\n{_svg(plot, f'{anchor}-plot{index}-')}\n{_legend(plot)}"
        f"<figcaption>{caption(plot)}</figcaption>\n</figure>\n"
        for index, plot in enumerate(plots)
    ]
    return f'<div class="plots">\n{"".join(drawn)}</div>'


def _legend(plot: Plot) -> str:
    """The names of the series, as text of the page: it wraps, and does not shrink with the plot."""
    width = 10 if plot.kind == "groups" else 2
    swatches = [
        '<svg class="swatch" viewBox="0 0 24 10" aria-hidden="true"><path d="M0 5h24" '
        f'stroke="{colour}" stroke-width="{width}" stroke-dasharray="{" ".join(map(str, dash)) or "none"}"/></svg>'
        + escape(series.name)
        for series, (colour, dash) in zip(plot.series, _looks(plot), strict=True)
    ]
    return items(swatches).replace(_INK, "currentColor").replace("<ul>", '<ul class="legend">') + "\n"


def _looks(plot: Plot) -> list[tuple[str, tuple[float, ...]]]:
    """The colour and the dashes of each series; bars are dashed, that is hatched, where the colours come again."""
    step = len(_COLOURS) if plot.kind == "groups" else 1
    return [(_COLOURS[i % len(_COLOURS)], _DASHES[i // step % len(_DASHES)]) for i in range(len(plot.series))]


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
        figure = Figure(figsize=(5, 3), layout="constrained")
        _DRAW[plot.kind](figure.add_subplot(), plot)
        file = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    # Matplotlib's style for all elements would hold for the whole page.
    _, _, drawn = file.getvalue().replace(_INK, "currentColor").partition("</defs>")
    # Within tags only: a label may hold anything.
    named = re.compile(r'(?<=\sid=")|(?<=url\(#)|(?<=href="#)')
    drawn = re.sub("<[^>]*>", lambda tag: named.sub(prefix, tag[0]), drawn)
    what = escape(f"{plot.title}: {plot.y} by {plot.x}")
    return f'<svg viewBox="0 0 360 {72 * figure.get_figheight():.0f}" role="img" aria-label="{what}">{drawn}'


def _draw_line(axes: Axes, plot: Plot) -> None:
    for series, (colour, dash) in zip(plot.series, _looks(plot), strict=True):
        x, y = _split(series.points)
        marker = "o" if len(x) <= 40 else ""
        axes.plot(x, y, color=colour, linestyle=(0, dash), marker=marker, markersize=3.5)
        if series.band:
            axes.fill_between(x, *_split(series.band), color=colour, alpha=0.18, linewidth=0)
    _label(axes, plot)


def _draw_bars(axes: Axes, plot: Plot) -> None:
    for series, (colour, dash) in zip(plot.series, _looks(plot), strict=True):
        edges, heights = _split(series.points)
        axes.stairs(heights[:-1], edges, fill=True, color=colour, alpha=0.18)
        axes.stairs(heights[:-1], edges, color=colour, linestyle=(0, dash))
    _label(axes, plot)


def _draw_groups(axes: Axes, plot: Plot) -> None:
    """Draw the bars lying: labels may be long, and stay readable on a narrow page."""
    thickness = 0.8 / max(len(plot.series), 1)
    for index, (series, (colour, dash)) in enumerate(zip(plot.series, _looks(plot), strict=True)):
        places, values = _split(series.points)
        places = [place + thickness * (index - (len(plot.series) - 1) / 2) for place in places]
        whiskers = None
        if series.band:
            lows, highs = _split(series.band)
            whiskers = (
                [max(value - low, 0.0) for value, low in zip(values, lows, strict=True)],
                [max(high - value, 0.0) for value, high in zip(values, highs, strict=True)],
            )
        look = {"edgecolor": colour, "fill": False, "hatch": "//////"} if dash else {"color": colour}
        bars = axes.barh(places, values, thickness, **look, xerr=whiskers, ecolor=_INK, capsize=2)
        axes.bar_label(bars, fmt=lambda value: f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}", padding=3)
    axes.margins(x=0.15)  # room for the figures at the bars' ends
    axes.set(xlabel=plot.y, ylabel=plot.x, xscale=_scale(plot.log_y))
    _tick(axes.xaxis)
    labels = [textwrap.fill(label, 24) for label in plot.labels]
    axes.set_yticks(range(len(labels)), labels)
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    room = max([0.2 * len(plot.series) + 0.05, *(0.15 * (label.count("\n") + 1) for label in labels)])
    axes.get_figure().set_figheight(0.8 + room * len(labels))


def _label(axes: Axes, plot: Plot) -> None:
    axes.set(xlabel=plot.x, ylabel=plot.y, xscale=_scale(plot.log_x), yscale=_scale(plot.log_y))
    _tick(axes.xaxis)
    _tick(axes.yaxis)


def _scale(log: bool) -> str:
    return "log" if log else "linear"


def _tick(axis: Axis) -> None:
    """Mark an axis with plain numbers."""
    from matplotlib.ticker import AutoLocator, LogLocator, NullFormatter, StrMethodFormatter

    if axis.get_scale() == "log":
        low, high = axis.get_view_interval()
        # Powers of ten alone would leave an axis of one or two decades almost without marks.
        powers = LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,))
        axis.set_major_locator(powers if high > 10 * low else AutoLocator())
        axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
    axis.grid(True)


def _split(points: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [first for first, _ in points], [second for _, second in points]


_DRAW = {"line": _draw_line, "bars": _draw_bars, "groups": _draw_groups}
