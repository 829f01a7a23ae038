"""The HTML report: whole, valid, self-contained, safe with hostile text, the same bytes for the same input."""

from __future__ import annotations

import re
import sys
import warnings
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.paper_tables.html import html
from eval.paper_tables.table import Column, Figure, Plot, Row, Series, Table, lines_of

HOSTILE = '<script src="http://evil.example/x.js">&amp; "quoted" $x_1$ url(#a) id="b" </defs></svg></table>'
LOADS = {"src", "srcset", "href", "xlink:href", "data", "action", "poster", "style", "fill", "clip-path"}
VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """A page read: its elements, its text by element, its tables' cells. Every element must be closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[tuple[str, str]] = []
        self.cells: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), (tag, attrs)
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, (tag, self.open)
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.text.append((self.open[-1] if self.open else "", data))
        if {"td", "th"} & set(self.open):
            self.cells[-1] += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)


def record(command: str = "python eval/paper.py table=2") -> dict:
    return {
        "paper": "arXiv 2604.18170 v1 (withdrawn)",
        "command": command,
        "environment": {
            "command": [command],
            "python": "3.11.7",
            "versions": {"torch": "2.13.0", "bitsandbytes": None},
            "revision": None,
            "device": "x86_64",
            "threads": 2,
        },
        "corpora": {"probeedit": {"n": 154, "fingerprint": "ab" * 32}},
    }


def plots(text: str = "of") -> list[Plot]:
    """A plot of every kind, linear and logarithmic, with ``text`` in every place that takes some."""
    line = [Series(f"{text} {i}", [(float(2**k), 1.5 + i + k) for k in range(9)]) for i in range(7)]
    line[0] = replace(line[0], band=[(y - 0.5, y + 0.5) for _, y in line[0].points])
    histogram = [Series(text, [(1.0, 3.0), (2.0, 5.0), (4.0, 0.0)]), Series("b", [(1.0, 2.0), (2.0, 1.0), (4.0, 0.0)])]
    groups = [
        Series(text, [(0, 12.0), (1, 3400.0)], band=[(10.0, 11.0), (3000.0, 3600.0)]),
        Series("paper", [(1, 3000.0)]),
        Series("no points", []),
        *(Series(f"{text} {i}", [(0, 2.0), (1, 3.0)]) for i in range(5)),
    ]
    return [
        Plot(text, text, text, line),
        Plot(text, text, text, line, log_x=True, log_y=True),
        Plot(text, text, text, [Series("short axis", [(2.0, 3.0), (4.0, 5.0)])], log_x=True),
        Plot(text, text, text, histogram, kind="bars", log_x=True),
        Plot(text, text, text, groups, kind="groups", labels=[text, "b"]),
        Plot(text, text, text, groups, kind="groups", labels=[text, "b"], log_y=True),
        Plot(text, text, text, [Series("no points", [])], kind="groups", labels=[]),
    ]


def table(text: str = "of", number: str = "2", drawn: bool = True) -> Table:
    kinds = ("count", "mean", "share", "accuracy", "ratio", "ms", "text")
    ours = (1234, 12.5, 0.741, 0.55, 3.45, 1234.5, text)
    paper = (1230, 12.5, 0.75, 0.5, 3.0, 12.5, "as ours")
    return Table(
        number=number,
        title=text,
        labels=(text, "n"),
        columns=tuple(Column(f"{kind} {text}", kind) for kind in kinds),
        rows=[
            Row((text, "1"), tuple(map(Figure, ours, paper))),
            Row((text, "2"), tuple(Figure(x, None, None if isinstance(x, str) else (x / 2, x * 2)) for x in ours)),
            Row(("", ""), tuple(Figure(None, x) for x in paper)),
            Row(("none", ""), tuple(Figure() for _ in ours)),
        ],
        method=f"Of {text}, with `{text}`.",
        sources={text: text},
        findings=[text, "`code` in a finding"],
        plots=plots(text) if drawn else [],
    )


def cells_of(made: Table) -> list[str]:
    header, lines = lines_of(made)
    return [cell for line in [header, *lines] for cell in line if cell]


def test_every_line_of_every_table_is_there():
    tables = [table(drawn=False), table("<b>", "4.3", drawn=False), replace(table(drawn=False), rows=[], number="9")]
    page = Page(html(tables, record(), []))
    assert list(filter(None, page.cells)) == [cell for made in tables for cell in cells_of(made)]
    assert [text for tag, text in page.text if tag == "h2"] == [made.heading for made in tables]
    targets = [attrs["href"].removeprefix("#") for tag, attrs in page.elements if tag == "a"]
    assert targets == [attrs["id"] for tag, attrs in page.elements if tag == "section"]


def test_the_header_says_what_the_report_is_of():
    text = html(
        [table(drawn=False)], record("python eval/paper.py table=[2,5]"), ["Table 5 is left out: it runs a `model`."]
    )
    for said in ("arXiv 2604.18170 v1 (withdrawn)", "table=[2,5]", "Python 3.11.7", "torch 2.13.0", "n=154", "ab" * 32):
        assert said in text
    assert "Table 5 is left out: it runs a <code>model</code>." in text
    assert "bitsandbytes" not in text and "None" not in text


def test_how_many_figures_are_as_in_the_paper():
    assert "1 of 7 figures as in the paper" in html([table(drawn=False)], record(), [])
    alone = replace(table(drawn=False), rows=[Row(("a", "b"), table().rows[1].figures)])
    assert "nothing to compare" in html([alone], record(), [])


@pytest.mark.parametrize("text", ["plain", HOSTILE])
def test_nothing_is_loaded_and_no_id_is_there_twice(text):
    pytest.importorskip("matplotlib")
    page = Page(html([table(text), table(text, "12")], record(text), [text]))
    assert page.count("figure") == page.count("figcaption") == 2 * len(plots())
    assert not {"script", "link", "img", "iframe", "object", "embed"} & {tag for tag, _ in page.elements}
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    for _, attrs in page.elements:
        assert not any(name.startswith("on") for name in attrs)
        for name in LOADS & attrs.keys():
            assert "//" not in attrs[name]
            references = re.findall(r"url\(#?([^)]*)\)", attrs[name]) + re.findall("^#(.*)", attrs[name])
            assert set(references) <= set(ids)
    style = " ".join(text for tag, text in page.text if tag == "style")
    assert page.count("style") == 1 and "url(" not in style and "@import" not in style


def test_hostile_text_is_shown_as_it_is():
    pytest.importorskip("matplotlib")
    page = Page(html([table(HOSTILE)], record(HOSTILE), [HOSTILE]))
    assert page.count("script") == 0
    for tag in ("h2", "code", "p", "th", "td", "li", "strong", "text"):  # the last is an axis' label
        assert any(HOSTILE in text for name, text in page.text if name == tag), tag


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=30))
@settings(deadline=None, max_examples=50)
def test_any_text_leaves_the_page_whole(text):
    made = table(text, drawn=False)
    page = Page(html([made], record(text), [text]))
    assert page.count("tr") == 1 + len(lines_of(made)[1])
    assert list(filter(None, page.cells)) == cells_of(made)


def test_the_same_input_gives_the_same_bytes():
    first, again = (html([table()], record(), ["note"]) for _ in range(2))
    assert first == again
    assert not re.search(r"20\d\d-\d\d-\d\d", first)


def test_drawing_warns_of_nothing_and_leaves_the_settings_alone():
    matplotlib = pytest.importorskip("matplotlib")
    before = dict(matplotlib.rcParams)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        html([table(HOSTILE)], record(), [])
    assert dict(matplotlib.rcParams) == before


def test_without_matplotlib_the_report_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page = Page(html([table()], record(), []))
    assert page.count("figure") == page.count("svg") == 0
    said = " ".join(text for _, text in page.text)
    assert f"{len(plots())} plots not drawn: that needs matplotlib" in said and "cad-train[report]" in said
