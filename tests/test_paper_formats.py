"""Edit formats of Table 3: writers and round trips, agreement with git, the figures, and the paper's arithmetic."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import encoder_of, qwen_tokenizer, tokenizer_of

from data_prep.build import OracleConfig, prepare_corpora
from data_prep.oracle import build_oracle
from data_prep.prepared import OracleRow
from decoding.formats import (
    DIFF_HEADER,
    DIVIDER,
    REPLACE,
    SEARCH,
    FormatError,
    apply_search_replace,
    apply_unified_diff,
    write_unified_diff,
)
from decoding.grammar import render
from eval.paper_tables.edit_formats import (
    EDIT_FORMATS,
    PAPER,
    program_tokens,
    round_trips,
    table_3,
    write_bare_blocks,
    write_short_diff,
)
from eval.paper_tables.inputs import Inputs, PaperConfig
from eval.paper_tables.table import as_json, markdown

needs_data = pytest.mark.skipif(
    not os.environ.get("CAD_DATA_DIR"), reason="set CAD_DATA_DIR to the folder of humanevalpack/"
)
needs_git = pytest.mark.skipif(not shutil.which("git"), reason="needs git")
FULL, BARE, BARE_UNIQUE, ABOVE, UNIQUE, DIFF, DIFF_1, PROGRAM = EDIT_FORMATS
LINES = [
    "",
    "a",
    "b",
    "    return x",
    "a\r",
    "b\r",
    "\r",
    "}",
    "- a",
    "+",
    "@@ -1 +1 @@",
    "\\ No newline at end of file",
]
# Documents with and without a final newline, of either line end or both.
DOCUMENTS = st.lists(st.sampled_from(LINES), max_size=9).map("\n".join) | st.lists(
    st.sampled_from(["a", "b", ""]), max_size=9
).map("\r\n".join)
EDITS = st.tuples(DOCUMENTS, DOCUMENTS).filter(lambda edit: edit[0] != edit[1])
ANY_LINES = st.sampled_from([*LINES, DIVIDER, REPLACE, SEARCH, "</gen>", "<copy"])
ANY_EDITS = st.tuples(*[st.lists(ANY_LINES, max_size=8).map("\n".join) | st.text(max_size=12)] * 2)


def row_of(before: str, after: str) -> OracleRow:
    program = render(build_oracle(before, after))
    return OracleRow("one", "jsonl", "train", "", "Edit.", before, after, program, [], {})


def block(search: str, replace: str) -> str:
    return f"{SEARCH}\n{search}{DIVIDER}\n{replace}{REPLACE}"


# --- writers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "alone", "anchored"),
    [
        ("a\nb\nc\n", "a\nx\nc\n", block("b\n", "x\n"), block("b\n", "x\n")),
        ("a\nb\nc\n", "a\nc\n", block("b\n", ""), block("b\n", "")),
        ("a\nb\n", "a\nx\nb\n", block("", "x\n"), block("a\n", "a\nx\n")),
        ("a\nb\n", "x\na\nb\n", block("", "x\n"), block("a\n", "x\na\n")),
        ("a\nb\nc\n", "x\nb\ny\n", block("a\n", "x\n") + "\n" + block("c\n", "y\n"), None),
        ("a\n", "a\n", "", ""),
    ],
)
def test_bare_blocks_search_for_the_changed_lines_alone(before, after, alone, anchored):
    assert write_bare_blocks(before, after) == alone
    assert write_bare_blocks(before, after, anchor_insertions=True) == (alone if anchored is None else anchored)


def test_a_bare_anchor_that_occurs_twice_is_taken_at_the_wrong_place_or_refused():
    before, after = "x = 0\nif a:\n    x = 0\n", "x = 0\nif a:\n    x = 1\n"
    assert apply_search_replace(write_bare_blocks(before, after), before, "unique") == after
    before, after = "x\na\nx\n", "x\na\ny\n"
    assert apply_search_replace(write_bare_blocks(before, after), before, "first") == "y\na\nx\n"
    found = round_trips(row_of(before, after), encoder_of("byte_level"))
    failures = {name: edit.failure for name, edit in found.items()}
    assert failures == dict.fromkeys(EDIT_FORMATS) | {
        BARE: "wrong_text",
        BARE_UNIQUE: "anchor_ambiguous",
        ABOVE: "wrong_text",
    }


def test_an_insertion_without_an_anchor_is_refused():
    found = round_trips(row_of("a\nb\n", "a\nx\nb\n"), encoder_of("byte_level"))
    failures = {name: edit.failure for name, edit in found.items()}
    assert failures == dict.fromkeys(EDIT_FORMATS) | {BARE: "empty_anchor", BARE_UNIQUE: "empty_anchor"}


@settings(max_examples=250, deadline=None)
@given(ANY_EDITS)
def test_every_edit_comes_back_in_every_format_that_can_say_it(edit):
    found = round_trips(row_of(*edit), encoder_of("byte_level"))
    assert list(found) == list(EDIT_FORMATS)
    for name in (FULL, DIFF, DIFF_1, PROGRAM):
        assert found[name].failure is None
    assert found[UNIQUE].failure in (None, "inexpressible")
    assert (found[UNIQUE].text is None) == (found[UNIQUE].failure is not None)
    # What is right at the only place is right at the first.
    assert found[BARE].failure is None or found[BARE_UNIQUE].failure is not None
    for written in found.values():
        assert (written.tokens is None) == (written.text is None)


@settings(max_examples=150, deadline=None)
@given(ANY_EDITS, st.sampled_from(["byte_level", "three_digits", "metaspace"]))
def test_the_tokens_of_a_program_spell_it(edit, kind):
    row, encoder = row_of(*edit), encoder_of(kind)
    program = build_oracle(row.before, row.after)
    segments = encoder.segments(program, row.before, "none")
    ids = [index for segment in segments[:-1] for index in segment.ids]
    assert segments[-1].kind == "end"
    assert encoder.text.decode(ids) == row.program.encode()
    assert program_tokens(encoder, program, row.before) == len(ids)


# --- git -------------------------------------------------------------------------------------------------------------


def git_apply(edits: list[tuple[str, str]]) -> list[str] | None:
    """Return what git makes of documents by their diffs, or None where it refuses."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        patch = ""
        for number, (document, diff) in enumerate(edits):
            (folder / str(number)).write_bytes(document.encode())
            patch += diff.replace(DIFF_HEADER, f"--- a/{number}\n+++ b/{number}\n", 1)
        alone = {
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CEILING_DIRECTORIES": str(folder.parent),
        }
        line = ["git", "apply", "--whitespace=nowarn", "--unidiff-zero", "-"]
        done = subprocess.run(
            line, cwd=folder, env={**os.environ, **alone}, input=patch.encode(), capture_output=True, check=False
        )
        if done.returncode:
            return None
        return [(folder / str(number)).read_bytes().decode() for number in range(len(edits))]


@needs_git
@settings(max_examples=25, deadline=None)
@given(st.lists(EDITS, min_size=10, max_size=30))
def test_git_makes_of_every_diff_what_our_applier_makes(edits):
    for write in (write_unified_diff, write_short_diff):
        diffs = [(before, write(before, after)) for before, after in edits]
        assert git_apply(diffs) == [apply_unified_diff(diff, before) for before, diff in diffs]
        assert git_apply(diffs) == [after for _, after in edits]


@needs_git
@settings(max_examples=60, deadline=None)
@given(EDITS, DOCUMENTS)
def test_git_takes_what_our_applier_takes_on_another_document(edit, document):
    diff = write_unified_diff(*edit)
    try:
        made = apply_unified_diff(diff, document)
    except FormatError:
        return  # git looks for another place, and may find one
    assert git_apply([(document, diff)]) == [made]


@needs_git
@needs_data
def test_git_makes_the_gold_of_every_real_pair():
    corpora = prepare_corpora(OracleConfig(corpora=["hevalfix-py", "hevalfix-js", "probeedit"]))
    rows = [row for corpus in corpora.values() for row in corpus.rows]
    for write in (write_unified_diff, write_short_diff):
        diffs = [(row.before, write(row.before, row.after)) for row in rows]
        assert git_apply(diffs) == [apply_unified_diff(diff, before) for before, diff in diffs]
        assert git_apply(diffs) == [row.after for row in rows]


# --- the table -------------------------------------------------------------------------------------------------------


def test_the_table_runs_on_own_edits(tmp_path):
    edits = [
        ("a\nb\nc\n", "a\nx\nc\n"),
        ("a\nb\n", "a\ny\nb\n"),
        ("x\na\nx\n", "x\na\ny\n"),
        ("=======\nx", "=======\ny\nx"),
    ]
    edits += [(f"line {n}\nend", f"line {n + 1}\nend") for n in range(6)]
    path = tmp_path / "edits.jsonl"
    rows = [{"instruction": "Edit.", "before": before, "after": after} for before, after in edits]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer_of("byte_level").save_pretrained(tmp_path / "tokenizer")
    inputs = Inputs(PaperConfig(corpora=["jsonl"], jsonl=[str(path)], tokenizer=str(tmp_path / "tokenizer")))
    table = table_3(inputs)
    figures = {row.labels[1:]: row.figures for row in table.rows}
    assert {labels[0] for labels in figures} == {"held out", "all"}
    every = {name: figures["all", name] for name in EDIT_FORMATS}
    assert every[FULL][4].ours == sum(len(inputs.text.encode(after)) for _, after in edits)
    assert every[BARE][6].ours == 3 and every[BARE][8].ours == "2 empty_anchor, 1 wrong_text"
    assert every[BARE_UNIQUE][8].ours == "1 anchor_ambiguous, 2 empty_anchor"
    assert every[PROGRAM][5].ours == 1.0 and every[PROGRAM][7].ours is None
    ratio = every[FULL][7]
    assert ratio.ours == every[FULL][4].ours / every[PROGRAM][4].ours
    assert ratio.interval[0] <= ratio.ours <= ratio.interval[1]
    assert not any(figure.paper is not None for row in table.rows for figure in row.figures)
    assert "empty_anchor" in markdown(table) and json.dumps(as_json(table))


def test_what_is_not_written_is_counted_and_not_averaged(tmp_path):
    path = tmp_path / "edits.jsonl"
    edits = [("a\n", "b\n"), ("a\n", f"a\n{REPLACE}\n")]  # a line that ends a block stands in none
    path.write_text("".join(json.dumps({"instruction": "E", "before": a, "after": b}) + "\n" for a, b in edits))
    tokenizer_of("byte_level").save_pretrained(tmp_path / "tokenizer")
    inputs = Inputs(PaperConfig(corpora=["jsonl"], jsonl=[str(path)], tokenizer=str(tmp_path / "tokenizer")))
    figures = next(row.figures for row in table_3(inputs).rows if row.labels[1:] == ("all", UNIQUE))
    alone = [len(inputs.text.encode(text)) for text in (block("a\n", "b\n"), render(build_oracle("a\n", "b\n")))]
    assert [figure.ours for figure in figures] == [
        2, alone[0], alone[0], alone[0], alone[0], 0.5, 1, alone[0] / alone[1], "1 inexpressible"
    ]  # fmt: skip


@needs_data
def test_the_figures_on_the_papers_corpora(tmp_path):
    qwen_tokenizer().save_pretrained(tmp_path)
    table = table_3(Inputs(PaperConfig(tokenizer=str(tmp_path))))
    ours = {row.labels: [figure.ours for figure in row.figures] for row in table.rows}
    assert [ours[title, "held out", FULL][0] for title in ("ProbeEdit", "HEvalFix-Py", "HEvalFix-JS", "Pooled")] == [
        31, 33, 33, 97
    ]  # fmt: skip
    formats = (FULL, BARE, ABOVE, UNIQUE, DIFF, DIFF_1, PROGRAM)
    totals = {
        "HEvalFix-Py": (8_872, 5_534, 5_677, 5_752, 11_639, 9_411, 6_727),
        "HEvalFix-JS": (14_876, 7_180, 7_638, 7_636, 15_402, 12_035, 7_824),
    }
    for title, expected in totals.items():
        assert tuple(ours[title, "all", name][4] for name in formats) == expected
    fails = {
        "HEvalFix-Py": ("10 empty_anchor, 1 wrong_text", "2 anchor_ambiguous, 10 empty_anchor", "2 wrong_text"),
        "HEvalFix-JS": ("17 empty_anchor, 1 wrong_text", "2 anchor_ambiguous, 17 empty_anchor", "2 wrong_text"),
    }
    for title, reasons in fails.items():
        assert tuple(ours[title, "all", name][8] for name in (BARE, BARE_UNIQUE, ABOVE)) == reasons
        for name in (FULL, UNIQUE, DIFF, DIFF_1, PROGRAM):
            assert ours[title, "all", name][6] == 0
    theirs = {row.labels: [figure.paper for figure in row.figures] for row in table.rows}
    assert theirs["Pooled", "held out", BARE][4:7] == [4640, 0.89, 11]
    assert theirs["Pooled", "all", BARE][4] is None


# --- the paper's arithmetic ------------------------------------------------------------------------------------------


def test_the_papers_blocks_add_up_and_its_pooled_means_and_percentages_do_not():
    corpora = [PAPER[name] for name in ("probeedit", "hevalfix-py", "hevalfix-js")]
    for name, (n, mean, _, _, total, em, fails, _) in PAPER["pooled"].items():
        assert total == sum(paper[name][4] for paper in corpora)
        assert (n, fails) == (97, sum(paper[name][6] for paper in corpora))
        assert round((n - fails) / n, 2) == em
        assert (round(total / n, 1) == mean) == (name in (BARE, DIFF))
    for paper in corpora:
        for n, mean, _, _, total, em, fails, _ in paper.values():
            assert round(total / n, 1) == mean
            assert round((n - fails) / n, 2) == em
    total = {name: figures[4] for name, figures in PAPER["pooled"].items()}
    assert (round(total[FULL] / 97, 1), round(total[PROGRAM] / 97, 1)) == (275.6, 45.4)
    more = {name: round(100 * (total[name] / total[PROGRAM] - 1), 1) for name in (FULL, BARE, DIFF)}
    assert more == {FULL: 507.3, BARE: 5.4, DIFF: 50.9}
    assert [PAPER["pooled"][name][7] for name in (FULL, BARE, DIFF)] == [1.734, 0.994, 1.423]


def test_the_papers_percentages_and_claims_against_its_totals():
    def more(corpus: str, name: str) -> float:
        return round(100 * (PAPER[corpus][name][4] / PAPER[corpus][PROGRAM][4] - 1), 1)

    assert more("probeedit", BARE) == -1.1 and PAPER["probeedit"][BARE][7] == 0.990
    assert more("hevalfix-js", FULL) == 104.5 and PAPER["hevalfix-js"][FULL][7] == 2.047
    assert round(more("probeedit", FULL) / 100, 1) == 14.3
    diffs = [more(corpus, DIFF) for corpus in ("probeedit", "hevalfix-py", "hevalfix-js")]
    assert (round(min(diffs)), round(max(diffs))) == (37, 64)
    cheaper = [c for c in ("probeedit", "hevalfix-py", "hevalfix-js") if PAPER[c][BARE][4] < PAPER[c][PROGRAM][4]]
    assert cheaper == ["probeedit", "hevalfix-py"]
