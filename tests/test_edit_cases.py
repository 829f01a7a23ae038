"""Every case of edit_cases.py: the edits round trip, the programs give their document or their named error."""

from __future__ import annotations

import json
from pathlib import Path

import edit_cases
import pytest
from edit_cases import Error, Text

from data_prep.build import OracleConfig, build_oracles
from data_prep.oracle import build_oracle
from data_prep.rows import read_rows
from decoding.grammar import Copy, Gen, Program, ProgramError, parse, render, split_lines
from decoding.prompt import number_lines, render_prompt, strip_gutter
from decoding.resolver import resolve
from eval.metrics import wilson


def copied_lines(program: Program) -> int:
    return sum(op.last - op.first + 1 for op in program.copies)


def result(program: str, document: str) -> Text | Error:
    try:
        return Text(resolve(parse(program), document))
    except ProgramError as error:
        return Error(error.reason)


def prepare(tmp_path: Path, before: str, after: str) -> tuple[dict, list[dict], list[dict]]:
    """Build one pair through the jsonl corpus; return its manifest entry, the kept rows and the refused ones."""
    source, out = tmp_path / "pairs.jsonl", tmp_path / "out"
    source.write_text(json.dumps({"instruction": "Edit.", "before": before, "after": after}) + "\n", encoding="utf-8")
    manifest = build_oracles(OracleConfig(corpora=["jsonl"], jsonl=[str(source)], out=str(out), heldout=0.0))
    kept, refused = (list(read_rows(out / name)) for name in ("jsonl/train.jsonl", "rejected.jsonl"))
    return manifest["corpora"]["jsonl"], kept, refused


@pytest.mark.parametrize("case", edit_cases.ROUND_TRIPS, ids=lambda case: case.id)
def test_the_oracle_of_an_edit_resolves_to_its_gold(case):
    program = build_oracle(case.before, case.after)
    assert resolve(program, case.before) == case.after
    assert resolve(parse(render(program)), case.before) == case.after
    assert copied_lines(program) >= case.min_copy_share * len(split_lines(case.after))


@pytest.mark.parametrize("case", edit_cases.RESOLVED, ids=lambda case: case.id)
def test_a_program_gives_its_document_or_its_named_error(case):
    assert result(case.program, case.before) in case.expected


@pytest.mark.parametrize(("before", "after", "reason"), [case[1:] for case in edit_cases.REFUSED])
def test_an_edit_that_changes_nothing_is_refused_and_counted(tmp_path, before, after, reason):
    entry, kept, refused = prepare(tmp_path, before, after)
    assert (entry["offered"], entry["rejected"], entry["train"], entry["heldout"]) == (1, {reason: 1}, 0, 0)
    assert kept == [] and [row["reason"] for row in refused] == [reason]


@pytest.mark.parametrize(
    ("before", "after", "tag"),
    [case[1:] for case in edit_cases.TAGGED],
    ids=[case[0] for case in edit_cases.TAGGED],
)
def test_an_edit_that_gains_or_loses_edge_newlines_is_kept_under_a_tag(tmp_path, before, after, tag):
    entry, kept, _ = prepare(tmp_path, before, after)
    assert tag in kept[0]["tags"] and entry["tags"][tag] == 1
    assert (kept[0]["before"], kept[0]["after"]) == (before, after)


def test_an_edit_within_a_file_has_no_tag(tmp_path):
    _, kept, _ = prepare(tmp_path, "\na\nb\n\n", "\na\nB\n\n")
    assert kept[0]["tags"] == []


def test_two_equal_large_documents_are_one_copy():
    document = edit_cases.LARGE_UNCHANGED
    assert build_oracle(document, document).ops == (Copy(1, 20001),)


def test_thousands_of_equal_lines_are_copied_around_the_change():
    before, after = edit_cases.BLANK_LINES + "x\n", edit_cases.BLANK_LINES + "y\n"
    program = build_oracle(before, after)
    assert program.ops == (Copy(1, 8000), Gen.of("y"), Copy(8002, 8002))
    assert resolve(program, before) == after


def test_a_change_within_one_huge_line_copies_nothing_and_says_so(tmp_path):
    before, after = edit_cases.LONG_LINE + "0];", edit_cases.LONG_LINE + "9];"
    assert build_oracle(before, after).ops == (Gen.of(after),)
    entry, kept, _ = prepare(tmp_path, before, after)
    assert kept[0]["tags"] == ["zero_copy"] and entry["statistics"]["copied_share"] == 0
    assert kept[0]["after"] == after


def test_the_numbered_view_gives_the_document_back():
    document = edit_cases.PROMPT_DOCUMENT
    numbered = number_lines(document)
    assert numbered in render_prompt("Edit.", document, "numbered")[-1]["content"]
    assert strip_gutter(numbered) == document


def test_wilson_bounds_stay_within_0_and_1():  # eval-05
    assert wilson(0, 77)[0] == 0.0 and wilson(38, 38)[1] == 1.0


def test_none_of_n_still_has_an_interval_with_a_width():  # eval-06
    assert wilson(0, 33)[1] == pytest.approx(0.104, abs=5e-4)


def test_an_empty_stratum_has_no_interval():  # eval-07
    assert wilson(0, 0) is None


def test_every_case_has_a_name_of_its_own():
    named = [*edit_cases.ROUND_TRIPS, *edit_cases.RESOLVED, *edit_cases.REFUSED, *edit_cases.TAGGED]
    assert len({case[0] for case in named}) == len(named)
