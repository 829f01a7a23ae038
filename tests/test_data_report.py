"""The data report: numbers equal to those counted by hand, hostile text shown as it is, files that are whole."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import encoder_of, tokenizer_of
from test_paper_html import HOSTILE, Page

from cad_train.examples import encode_row
from data_prep.build import OracleConfig, build_oracles
from data_prep.data_report import Part, ReportConfig, html, inspect, language, markdown, measure
from data_prep.inspect_data import Config, main
from data_prep.prepared import OracleRow, read_split
from data_prep.rows import Joined, Picked, StoredRows, write_rows
from decoding.commandline import UserError

ROOT = Path(__file__).parent.parent
DATA = os.environ.get("CAD_DATA_DIR")
LINES = "".join(f"line {number} of the text\n" for number in range(8))
EDITS = [
    {"instruction": "new third line", "before": LINES, "after": LINES.replace("line 2 of the text", "new")},
    {"instruction": "all new", "before": "one\ntwo", "after": "three"},
    {"instruction": "all new but the end", "before": "five\nsix\n", "after": "seven\n"},
    {"instruction": "no newline at the end", "before": "a\nb\n", "after": "a\nb"},
    {"instruction": "a newline more", "before": "c\nd\n", "after": "c\ne"},
    {"instruction": "indent", "before": "f\ng\nh\n", "after": "f\n  g\nh\n"},
    {"instruction": "windows", "before": "i\r\nj\r\n", "after": "i\r\nk\r\n"},
    {"instruction": "nothing", "before": "same\n", "after": "same\n"},
    {"instruction": "nothing again", "before": "same\n", "after": "same\n"},
    {"instruction": "no gold", "before": "same\n"},
]


def prepare(folder: Path, edits: list[dict], **settings_of: object) -> Path:
    write_rows(folder / "edits.jsonl", edits)
    out = folder / "prepared"
    build_oracles(
        OracleConfig(corpora=["jsonl"], jsonl=[str(folder / "edits.jsonl")], out=str(out), **settings_of),
        lambda it, _: it,
    )
    return out


def report_on(data: Path, **keys: object):
    return inspect(ReportConfig(data=str(data), out="unused", **keys))


def part(report, anchor: str) -> Part:
    return next(each for each in report.parts if each.anchor == anchor)


def cells(found: Part) -> list[dict[str, str]]:
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows]


def test_numbers_are_those_counted_by_hand(tmp_path):
    report = report_on(prepare(tmp_path, EDITS, heldout=0.0))
    [offered] = cells(part(report, "offered"))
    assert [offered[name] for name in ("offered", "refused", "train", "held out")] == ["10", "3", "7", "0"]
    refused = {row["reason"]: row["edits"] for row in cells(part(report, "refused"))}
    assert refused == {"missing_field": "1", "no_op": "2"}
    assert cells(part(report, "refused"))[0]["first"] == f"{tmp_path}/edits.jsonl, row 10: no after"
    [tags] = cells(part(report, "tags"))
    assert tags == {
        "corpus": "jsonl",
        "edits": "7",
        "no_op": "2",
        "zero_copy": "1",
        "copies_only_empty_lines": "1",
        "edge_newline_artifact": "2",
        "edge_newline": "1",
        "whitespace_only": "1",
        "crlf": "1",
    }
    ops = {row["of"]: [row[name] for name in ("min", "p50", "max")] for row in cells(part(report, "ops"))}
    # The first edit: copy, gen, copy; all new: gen; the end kept: gen, copy; a, b kept: copy; c kept: copy, gen.
    assert ops == {"ops": ["1", "2", "3"], "copies": ["0", "1", "2"], "gens": ["0", "1", "1"]}
    [copied] = cells(part(report, "copied"))
    # all that is kept of no newline at the end; nothing of the two that are all new
    assert (copied["edits"], copied["min"], copied["max"]) == ("7", "0.0%", "100.0%")
    lines = {row["of"]: (row["min"], row["max"], row["mean"]) for row in cells(part(report, "sizes"))}
    assert lines["document, lines"] == ("2", "9", "3.9")  # 9, 2, 3, 3, 3, 4, 3
    assert part(report, "duplicates").note == "0 exact, 0 near"
    assert [row["training edits"] for row in cells(part(report, "leakage"))] == ["0", "0", "0", "-", "-", "-"]
    assert report.findings == []


def test_histograms_add_up_and_agree_with_the_rows(tmp_path):
    report = report_on(prepare(tmp_path, EDITS, heldout=0.0))
    plots = {plot.title: plot for each in report.parts for plot in each.plots}
    for title in ("Copied share of the gold", "Ops a program", "Lines a document"):
        [series] = plots[title].series
        assert sum(height for _, height in series.points) == pytest.approx(100), title
    ops = dict(plots["Ops a program"].series[0].points)
    assert ops == pytest.approx({1: 200 / 7, 2: 200 / 7, 3: 300 / 7, 4: 0})  # the last closes the bin from 3 on
    text = markdown(report)
    assert re.search(r"^3 +#{40} 42\.9%$", text, re.MULTILINE) and re.search(r"^no_op +#{40} 2$", text, re.MULTILINE)


def test_duplicates_and_leaks_are_named(tmp_path):
    (tmp_path / "other").mkdir()
    edits = [
        {"instruction": "edit", "before": LINES, "after": LINES.replace("3", "three")},
        {
            "instruction": "edit the copy",
            "before": LINES + "and\nmore",
            "after": LINES.replace("3", "three") + "and\nmore",
        },
        {"instruction": "the same again", "before": LINES, "after": LINES.replace("3", "three")},
    ]
    data = prepare(tmp_path, edits, heldout=0.0)
    unseen = {"instruction": "x", "before": "nothing of it", "after": "was seen"}
    other = prepare(tmp_path / "other", [{**edits[0], "instruction": "held out"}, unseen], heldout=0.99)
    report = report_on(data, held_out=[str(other)])
    ids = [f"jsonl/{tmp_path}/edits.jsonl:{row}" for row in (1, 2, 3)]
    first = f"jsonl/{tmp_path}/other/edits.jsonl:1"
    found = {(row["finding"], row.get("kind"), row["id"]): row for row in report.findings}
    assert found["near_duplicate", None, ids[1]]["kept"] == found["duplicate", None, ids[2]]["kept"] == ids[0]
    leaks = {(kind, name) for finding, kind, name in found if finding == "leak"}
    assert leaks == {
        *(("same_gold", name) for name in (ids[0], ids[2])),
        *(("same_document", name) for name in (ids[0], ids[2])),
        *(("near_document", name) for name in ids),
    }
    assert {row["held_out"] for row in report.findings if row["finding"] == "leak"} == {first}
    assert len(report.findings) == 2 + 7
    table = {(row["held-out set"], row["kind"]): row for row in cells(part(report, "leakage"))}
    row = table[str(other), "near_document"]
    assert (row["training edits"], row["held-out edits"]) == ("3", "1")
    assert table["its own held-out split", "near_document"]["training edits"] == "0"


def test_rows_with_more_programs_are_not_edits_more(tmp_path):
    moved = LINES.split("\n")
    moved = "\n".join([moved[3], *moved[:3], *moved[4:]])
    data = prepare(tmp_path, [{"instruction": "move", "before": LINES, "after": moved}], heldout=0.0, equivalents=3)
    assert len((data / "jsonl" / "train.jsonl").read_text().splitlines()) > 1
    report = report_on(data)
    [offered] = cells(part(report, "offered"))
    assert offered["train"] == "1" and int(offered["more programs"]) >= 1
    assert part(report, "duplicates").note == "0 exact, 0 near"
    assert cells(part(report, "tags"))[0]["edits"] == "1"


def test_tokens_are_those_that_are_trained_on(tmp_path):
    rows = read_split(prepare(tmp_path, EDITS, heldout=0.0), ["jsonl"], "train")
    encoder = encoder_of("byte_level")
    lengths = {
        splice: [len(encode_row(encoder, row, "numbered", splice)[0]) for row in rows] for splice in ("none", "full")
    }
    limit = sorted(lengths["full"])[-2]
    found = measure(rows, encoder, limit)
    assert list(found.example_tokens) == lengths["none"] and list(found.example_tokens_full) == lengths["full"]
    assert list(found.document_tokens) == [len(encoder.text.encode(row.before)) for row in rows]
    assert list(found.gold_tokens) == [len(encoder.text.encode(row.after)) for row in rows]
    [longest] = found.overlong
    place = lengths["full"].index(max(lengths["full"]))
    assert longest == {
        "id": rows[place].id,
        "split": "train",
        "tokens": lengths["none"][place],
        "tokens_full": lengths["full"][place],
    }


def test_text_that_the_tokenizer_cannot_express_is_counted(tmp_path):
    rows = read_split(prepare(tmp_path, EDITS[:1], heldout=0.0), ["jsonl"], "train")
    half = replace(rows[0], instruction="half a character: \ud800")
    found = measure([*rows, half], encoder_of("byte_level"), 10_000)
    assert len(found.ops) == 2 and found.not_encoded == {"lone_surrogate": 1}
    assert len(found.document_tokens) == len(found.example_tokens) == 1


def test_the_command_writes_whole_files_and_names_what_is_too_long(tmp_path, capsys):
    data = prepare(tmp_path, EDITS, heldout=0.0)
    tokenizer_of("byte_level").save_pretrained(tmp_path / "tokenizer")
    main(Config(data=str(data), out=str(tmp_path / "out"), tokenizer=str(tmp_path / "tokenizer"), max_length=100))
    assert "10 edits offered" in capsys.readouterr().out
    out = tmp_path / "out"
    assert sorted(path.name for path in out.iterdir()) == ["findings.jsonl", "report.html", "report.md"]
    overlong = [json.loads(line) for line in (out / "findings.jsonl").read_text().splitlines()]
    assert {row["finding"] for row in overlong} == {"overlong"} and all(row["tokens_full"] > 100 for row in overlong)
    said = re.search(
        r"(\d+) examples are longer than max_length=100, with splice=full (\d+)", (out / "report.md").read_text()
    )
    assert int(said[1]) == sum(row["tokens"] > 100 for row in overlong) and int(said[2]) == len(overlong)
    Page((out / "report.html").read_text())  # every element is closed in order
    first = (out / "report.html").read_bytes()
    main(Config(data=str(data), out=str(out), tokenizer=str(tmp_path / "tokenizer"), max_length=100))
    assert (out / "report.html").read_bytes() == first


def hostile(tmp_path: Path) -> Path:
    text = HOSTILE + " ``` | ` \u2028"
    folder = tmp_path / "<b>`x`|&amp;"
    folder.mkdir()
    edits = [
        {"instruction": text, "before": f"{text}\nb\n", "after": f"{text}\n```\n<script>c()</script>\n"},
        {"instruction": text, "before": 1, "after": text},
        {"instruction": text, "before": f"other {text}\n", "after": f"{text}\n"},
    ]
    return prepare(folder, edits, heldout=0.5)


def test_hostile_text_is_shown_as_it_is(tmp_path):
    report = report_on(hostile(tmp_path))
    page = Page(html(report))
    assert not {"script", "link", "img", "b", "iframe"} & {tag for tag, _ in page.elements}
    shown = [text for tag, text in page.text if tag == "pre"]
    assert any("+<script>c()</script>" in text for text in shown) and any(f" {HOSTILE}" in text for text in shown)
    assert any("<b>`x`|&amp;" in text for text in page.cells)
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert not any(name.startswith("on") for _, attrs in page.elements for name in attrs)
    assert all(attrs["href"].startswith("#") for tag, attrs in page.elements if tag == "a")

    lines = markdown(report).splitlines()
    fence, outside = None, []
    for line in lines:
        if fence is None and (found := re.fullmatch("`{3,}", line)):
            fence = found[0]
        elif line == fence:
            fence = None
        elif fence is None:
            outside.append(re.sub("`[^`]*`", "", line.replace("\\`", "")))
    assert fence is None
    assert not any(re.search(r"(?<!\\)<", line) for line in outside)
    for start, line in enumerate(outside):
        if line.startswith("|-"):
            columns = line.count("|")
            for row in outside[start + 1 :]:
                if not row.startswith("|"):
                    break
                assert len(re.findall(r"(?<!\\)\|", row)) == columns, row


@given(st.lists(st.integers(0, 4), max_size=5), st.data())
@settings(deadline=None)
def test_joined_rows_are_the_parts_in_order(sizes, data):
    parts = [[f"{place}:{number}" for number in range(size)] for place, size in enumerate(sizes)]
    whole = [row for each in parts for row in each]
    joined = Joined(parts)
    assert len(joined) == len(whole) and list(joined) == whole
    start, stop = data.draw(st.integers(0, 12)), data.draw(st.integers(0, 12))
    assert joined[start:stop] == whole[start:stop]
    for number, row in enumerate(whole):
        part, place = joined.locate(number)
        assert parts[part][place] == row
    places = data.draw(st.lists(st.sampled_from(range(len(whole))))) if whole else []
    picked = Picked(joined, places)
    assert list(picked) == [whole[place] for place in places] == picked[:]


def test_rows_on_disk_are_the_rows(tmp_path):
    data = prepare(tmp_path, EDITS, heldout=0.3)
    path = data / "jsonl" / "train.jsonl"
    rows = read_split(data, ["jsonl"], "train")
    stored = StoredRows(path, OracleRow, len(rows))
    assert list(stored) == rows and stored[1:3] == rows[1:3] and stored[-1] == rows[-1]
    assert list(StoredRows(path, OracleRow, 2)) == rows[:2]


def test_a_folder_that_is_none_or_damaged_is_refused(tmp_path):
    with pytest.raises(UserError, match="has no manifest.json: prepare it"):
        report_on(tmp_path)
    data = prepare(tmp_path, EDITS, heldout=0.0)
    path = data / "jsonl" / "train.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines).replace('"three"', '"thr33"', 1))
    for use in (report_on, lambda folder: read_split(folder, ["jsonl"], "train")):
        with pytest.raises(UserError, match=r"train.jsonl is not as it was prepared: build the folder again"):
            use(data)
    manifest = json.loads((data / "manifest.json").read_text())
    del manifest["corpora"]["jsonl"]["sha256"]  # as earlier versions wrote it
    (data / "manifest.json").write_text(json.dumps(manifest))
    path.write_text("".join(lines[:-1]))
    with pytest.raises(UserError, match="has 6 rows, its manifest says 7"):
        report_on(data)
    path.write_text("".join([*lines[:2], '{"id": 1}\n', *lines[3:]]))
    with pytest.raises(UserError, match="row 3: no prepared edit"):
        report_on(data)
    path.unlink()
    with pytest.raises(UserError, match="cannot be read"):
        report_on(data)


@pytest.mark.parametrize("keys", [{"threshold": 0.0}, {"threshold": 1.1}, {"max_length": 0}])
def test_settings_that_cannot_be_are_refused(keys):
    with pytest.raises(ValueError, match=next(iter(keys))):
        ReportConfig(data="a", out="b", **keys)


@pytest.mark.parametrize(
    ("corpus", "meta", "expected"),
    [
        ("git", {"language": "go", "path": "a.py"}, "go"),
        ("git", {"path": "src/App.TSX"}, "typescript"),
        ("git", {"path": "LICENSE"}, "unknown"),
        ("jsonl", {"file": "edits.py", "row": 1}, "unknown"),
        ("jsonl", {"file": "edits.jsonl", "path": "a/b.go"}, "go"),
        ("hub", {"lang": "JavaScript", "new_file": "a.py"}, "javascript"),
        ("hub", {"old_file": "a.go", "new_file": "a.py"}, "python"),
        ("formatter", {"file": "a/b.py"}, "python"),
        ("bugs", {"language": "js", "file": "a.mjs"}, "javascript"),
        ("hevalfix-js", {"task_id": "1"}, "javascript"),
        ("hevalfix-rust", {}, "rust"),
        ("pyfix", {"module": "json"}, "python"),
        ("probeedit", {}, "prose"),
    ],
)
def test_languages(corpus, meta, expected):
    row = OracleRow("a", corpus, "train", "g", "i", "b", "a", "<program>\n</program>", [], meta)
    assert language(row) == expected


def test_help_says_what_it_does_and_loads_no_torch():
    code = "import sys, data_prep.inspect_data; print({'torch', 'datasketch', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
    line = [sys.executable, "data_prep/inspect_data.py", "--help"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "held_out" in done.stdout and "(required)" in done.stdout


@pytest.mark.skipif(not DATA or not Path(DATA, "humanevalpack").is_dir(), reason="CAD_DATA_DIR has no humanevalpack")
def test_on_humanevalpack_the_figures_are_those_of_the_manifest(tmp_path):
    manifest = build_oracles(OracleConfig(corpora=["hevalfix-py", "hevalfix-js"], data_dir=DATA, out=str(tmp_path)))
    report = report_on(tmp_path)
    rows = {row["corpus"]: row for row in cells(part(report, "offered"))}
    assert [rows[name]["train"] for name in ("hevalfix-py", "hevalfix-js", "all")] == ["131", "131", "262"]
    for name, copies in (("hevalfix-py", 295), ("hevalfix-js", 311)):
        edits = read_split(tmp_path, [name], "train") + read_split(tmp_path, [name], "heldout")
        found = measure(edits, None, 1)
        assert sum(found.copies) == manifest["corpora"][name]["statistics"]["copy_ops"] == copies
        share = sum(a * len(row.after) for a, row in zip(found.copied, edits, strict=True))
        assert (
            round(share / sum(len(row.after) for row in edits), 4)
            == manifest["corpora"][name]["statistics"]["copied_share"]
        )
    assert [row["training edits"] for row in cells(part(report, "leakage"))][:3] == ["0", "0", "0"]
