"""Section 4.3 and Appendix I: the fuzz strings, both escapes, and the table."""

from __future__ import annotations

import json
import os
from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from decoding.escape import encode_gen_body
from eval.paper_tables.inputs import Inputs, PaperConfig
from eval.paper_tables.losslessness import (
    PAPER_ENTITIES,
    RESERVED,
    Family,
    fault,
    fuzz_strings,
    paper_decode,
    paper_encode,
    paper_fault,
    table_4_3,
)
from eval.paper_tables.table import markdown

needs_data = pytest.mark.skipif(
    not os.environ.get("CAD_DATA_DIR"), reason="set CAD_DATA_DIR to the folder of humanevalpack/"
)
FAMILIES = Family.__args__
GOLDS = ["def f():\n    return 1\n", "\u27e8x\u27e9 \u2024\n", "", "a\r\nb"]
PIECES = st.sampled_from([*RESERVED, *PAPER_ENTITIES, *PAPER_ENTITIES.values(), "<", "</", "\\", ">", "gen", "a", "\n"])
STRINGS = st.lists(PIECES | st.text(max_size=3), max_size=12).map("".join)


@settings(max_examples=500)
@given(STRINGS)
@example("\n")
@example("")
@example("</ge</gen>n>")
def test_no_string_is_wrong_in_a_gen(text):
    assert fault(text) is None


@settings(max_examples=500)
@given(STRINGS)
def test_the_papers_escape_holds_just_on_strings_without_its_entities(text):
    holds = paper_decode(paper_encode(text)) == text
    assert holds == (not any(entity in text for entity in PAPER_ENTITIES.values()))
    assert "</gen>" not in paper_encode(text)
    assert (paper_fault(text) is None) == holds


def test_the_papers_escape_takes_two_strings_to_one():
    assert paper_encode("</gen>") == paper_encode("\u27e8\u2024gen\u27e9") == "\u27e8\u2024gen\u27e9"
    assert encode_gen_body("</gen>") != encode_gen_body("\u27e8\u2024gen\u27e9")
    assert paper_fault("\u27e8\u2024gen\u27e9") == "changed"


def test_an_escape_that_loses_text_is_found_out(monkeypatch):
    from eval.paper_tables import losslessness

    monkeypatch.setattr(losslessness, "encode_gen_body", lambda text: text)
    assert fault("</gen") == "ends_early"
    assert fault("<\\gen") == "changed"
    monkeypatch.setattr(losslessness, "encode_gen_body", encode_gen_body)
    monkeypatch.setattr(losslessness, "render", lambda program: "<gen>\nother\n</gen>")
    assert fault("text") == "program_changed"


def test_fuzz_strings_are_their_seeds_and_take_families_in_turn():
    strings = list(fuzz_strings(GOLDS, 403, seed=3))
    assert strings == list(fuzz_strings(GOLDS, 403, seed=3))
    assert strings != list(fuzz_strings(GOLDS, 403, seed=4))
    assert strings[:50] == list(fuzz_strings(GOLDS, 50, seed=3))
    assert [family for family, _ in strings[:6]] == [*FAMILIES, FAMILIES[0]]
    assert sorted(Counter(family for family, _ in strings).values()) == [80, 80, 81, 81, 81]


def test_each_family_has_what_it_says():
    strings = [(family, text.replace("_", "")) for family, text in fuzz_strings(["_" * 99], 2_000, seed=0)]
    by_family = {family: [text for of, text in strings if of == family] for family in FAMILIES}

    def literals(text: str) -> int:
        return sum(text.count(literal) for literal in RESERVED)

    literal = {f"{opening}{end}" for opening in RESERVED for end in ("", ">")}
    assert set(by_family["one literal"]) == literal
    assert {literals(text) for text in by_family["several literals"]} >= {2, 3, 4, 5}
    joined = [text for text in by_family["parts of literals"] if literals(text)]
    assert joined and len(joined) < len(by_family["parts of literals"])
    backslashes = by_family["backslashes"]
    assert any("<\\\\\\\\/gen" in text for text in backslashes) and any("\\</gen" in text for text in backslashes)
    characters = {character for text in by_family["the paper's entities"] for character in text}
    assert {"\u27e8", "\u27e9", "\u2024"} <= characters


def jsonl_inputs(tmp_path, edits: list[tuple[str, str]], **settings) -> Inputs:
    path = tmp_path / "edits.jsonl"
    rows = [{"instruction": "Edit.", "before": before, "after": after} for before, after in edits]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Inputs(PaperConfig(corpora=["jsonl"], jsonl=[str(path)], **settings))


def test_the_table_runs_on_own_edits_and_names_what_their_golds_hold(tmp_path):
    edits = [("a\nb\n", "a\n</gen>\n"), ("a\n", "<copy x\n<gen\n"), ("a\n", "b\n"), ("x", "\u27e8copy"), ("a\n", "a")]
    table = table_4_3(jsonl_inputs(tmp_path, edits, fuzz=100))
    figures = {row.labels: [figure.ours for figure in row.figures] for row in table.rows}
    held = {(check, escape): (n, k) for (check, on, escape), (n, k, *_) in figures.items() if on == "jsonl"}
    assert list(held.values()) == [(5, 5), (5, 5), (5, 5), (5, 3), (5, 3), (5, 5), (5, 4)]
    assert "Reserved openings in the golds of jsonl: `<copy` in 1, `<gen` in 1, `</gen` in 1." in table.findings
    fuzz = {labels[0::2]: row[:2] for labels, row in figures.items() if labels[0].startswith("fuzz")}
    assert all(fuzz[f"fuzz: {family}", "ours"] == [20, 20] for family in FAMILIES)
    assert fuzz["fuzz: the paper's entities", "the paper's"][1] < 20
    assert markdown(table).startswith("## Section 4.3:")
    assert not any(figure.paper is not None for row in table.rows for figure in row.figures)


@needs_data
def test_the_figures_on_the_papers_corpora():
    table = table_4_3(Inputs(PaperConfig()))
    figures = {row.labels: row.figures for row in table.rows}
    for (check, on, _), (n, k, *_) in figures.items():
        if on == "Pooled":
            assert (n.ours, k.ours) == (482, 482), check
            assert (n.paper, k.paper) in ((482, 482), (None, None))
    for family in FAMILIES:
        assert [figure.ours for figure in figures[f"fuzz: {family}", "golds of all corpora", "ours"]][:2] == [
            2_000,
            2_000,
        ]
    lost = {family: figures[f"fuzz: {family}", "golds of all corpora", "the paper's"][3].ours for family in FAMILIES}
    entities = lost.pop("the paper's entities")
    assert set(lost.values()) == {0} and 1_000 < entities < 2_000
