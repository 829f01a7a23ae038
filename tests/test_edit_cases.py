"""Every case of edit_cases.py: the edits round trip, the programs give their document or their named error."""

from __future__ import annotations

import json
import re
from pathlib import Path

import edit_cases
import pytest
from edit_cases import MINIFIED, Error, Text
from small_decoders import decoder_of, program_ids, scripted
from small_models import encoder_of

from cad_train.examples import check_refused, encode_rows
from data_prep.build import OracleConfig, build_oracles
from data_prep.oracle import build_oracle
from data_prep.prepared import OracleRow
from data_prep.rows import read_rows
from decoding.commandline import UserError
from decoding.decoder import EditRequest
from decoding.grammar import Copy, Gen, Program, ProgramError, parse, render, split_lines
from decoding.prompt import number_lines, render_prompt, strip_gutter
from decoding.resolver import resolve
from eval.metrics import wilson
from eval.scoring import _case as case_row
from eval.scoring import score_edit
from eval.tables import sections, summarise


def copied_lines(program: Program) -> int:
    return sum(op.last - op.first + 1 for op in program.copies)


def result(program: str, document: str) -> Text | Error:
    try:
        return Text(resolve(parse(program), document))
    except ProgramError as error:
        return Error(error.reason)


def oracle_row(id: str, before: str, after: str) -> OracleRow:
    return OracleRow(id, "jsonl", "heldout", "", "Edit.", before, after, render(build_oracle(before, after)), [], {})


def prepare(tmp_path: Path, *pairs: tuple[str, str]) -> tuple[dict, list[dict], list[dict]]:
    """Build pairs through the jsonl corpus; return its manifest entry, the kept rows and the refused ones."""
    source, out = tmp_path / "pairs.jsonl", tmp_path / "out"
    rows = ({"instruction": "Edit.", "before": before, "after": after} for before, after in pairs)
    source.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
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
    assert result(case.program, case.before) == case.expected


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("cut-03", "the text ends inside the tag '<copy lines=\"1-'"),
        ("num-08", "needs two line numbers i-j in plain decimal"),
        ("num-10", "needs two line numbers i-j in plain decimal"),
        ("num-19", "needs two line numbers i-j in plain decimal"),
        ("num-20", "without signs, blanks or leading zeros"),
        ("del-14", 'is neither <copy lines="i-j"/> nor <gen>'),
    ],
)
def test_a_bad_tag_says_what_is_wrong_with_it(case, said):
    [program] = [made.program for made in edit_cases.RESOLVED if made.id == case]
    with pytest.raises(ProgramError, match=f"^bad_tag: operation 1: .*{re.escape(said)}"):
        parse(program)


@pytest.mark.parametrize(
    ("before", "ops", "written", "whole"),
    [
        pytest.param(
            "a\nb\n", [Copy(1, 1), Gen.of("half a line")], '<copy lines="1-1"/>\n<gen>\nhalf a li', 1, id="cut-01"
        ),
        pytest.param("a\nb\nc\n", [Copy(1, 2), Gen.of("C"), Copy(4, 4)], '<copy lines="1-2"/>\n', 1, id="cut-02"),
        pytest.param("a\nb\n", [Copy(1, 2), Gen.of("x")], '<copy lines="1-', 0, id="cut-03"),
    ],
)
def test_an_edit_that_a_limit_cut_off_gives_no_document_and_says_which_limit(before, ops, written, whole):
    program = Program(ops)
    row = oracle_row("x", before, resolve(program, before))
    decoder = decoder_of()
    encoder, end = decoder.encoder, decoder.encoder.table.end_of_sequence
    ids = program_ids(decoder, program, before)
    cut = next(size for size in range(len(ids)) if written in encoder.text.decode(ids[:size]).decode())
    finished, stopped = (
        scripted(decoder_of(max_tokens=limit), {0: [*ids, end]}).decode_one(EditRequest("Edit.", before))
        for limit in (len(ids) + 1, cut)
    )
    assert (finished.text, finished.stats.stop) == (row.after, "end")
    assert (stopped.text, stopped.stats.stop) == (None, "max_tokens")
    assert stopped.program == (Program(ops[:whole]) if whole else None)  # that of cut-02 resolves: only the stop tells
    cases = [case_row(edit, encoder, row) for edit in (finished, stopped)]
    assert [case["outcome"] for case in cases] == ["exact_match", "parse_failure"]
    [entry] = summarise([case | {"label": "x", "checkpoint": "x"} for case in cases])
    assert entry["stops"] == {"end": 1, "max_tokens": 1}
    assert "end 1, max_tokens 1" in "\n".join(sections([entry]))


@pytest.mark.parametrize("case", edit_cases.SCORED, ids=lambda case: case.id)
def test_the_evaluation_calls_a_fault_by_its_name(case):
    [made] = [made for made in edit_cases.RESOLVED if made.id == case.id]
    row = oracle_row(case.id, made.before, case.gold)
    score = score_edit(made.expected.document, parse(made.program), True, row)
    assert not score["exact"]
    assert (score["outcome"], score["text_faults"]) == (case.outcome, case.text_faults)


@pytest.mark.parametrize(("before", "after", "reason"), [case[1:] for case in edit_cases.REFUSED])
def test_an_edit_that_changes_nothing_is_refused_and_counted(tmp_path, before, after, reason):
    entry, kept, refused = prepare(tmp_path, (before, after), ("a", "b"))
    assert (entry["offered"], entry["rejected"], entry["train"], entry["heldout"]) == (2, {reason: 1}, 1, 0)
    assert [row["before"] for row in kept] == ["a"] and [row["reason"] for row in refused] == [reason]


@pytest.mark.parametrize(
    ("before", "after", "tag"),
    [case[1:] for case in edit_cases.TAGGED],
    ids=[case[0] for case in edit_cases.TAGGED],
)
def test_an_edit_that_gains_or_loses_edge_newlines_is_kept_under_a_tag(tmp_path, before, after, tag):
    entry, kept, _ = prepare(tmp_path, (before, after))
    assert tag in kept[0]["tags"] and entry["tags"][tag] == 1
    assert (kept[0]["before"], kept[0]["after"]) == (before, after)


def test_an_edit_within_a_file_has_no_tag(tmp_path):
    _, kept, _ = prepare(tmp_path, ("\na\nb\n\n", "\na\nB\n\n"))
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
    entry, kept, _ = prepare(tmp_path, (before, after))
    assert kept[0]["tags"] == ["zero_copy"] and entry["statistics"]["copied_share"] == 0
    assert kept[0]["after"] == after


def test_a_line_longer_than_the_context_is_refused_by_name_and_never_cut():  # perf-04
    rows = [oracle_row("short", "a\n", "b\n"), oracle_row("minified", MINIFIED, MINIFIED.replace("head", "HEAD"))]
    examples = encode_rows(encoder_of("byte_level"), rows, "numbered", "none", max_length=1024)
    account = examples.report()
    assert (account["examples"], account["refused"], account["truncated"]) == (1, {"overlong": 1}, 0)
    with pytest.raises(
        UserError, match=r"1 of 2 examples are overlong \(longest \d+ tokens, max_length=1024\): minified"
    ):
        check_refused(examples, [], 1024)

    edit = decoder_of(positions=1024).decode_one(EditRequest("Edit.", MINIFIED))
    assert (edit.stats.stop, edit.text, edit.stats.forwards) == ("context", None, 0)


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
