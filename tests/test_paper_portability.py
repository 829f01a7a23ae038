"""Pieces of the grammar's literals, replay of programs, refusals, and the paper's table of Qwen ids (Table 18)."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest
from small_models import encoder_of, lossy_tokenizer, qwen_encoder, tokenizer_of

from decoding.tokens import TextTokenizer
from eval.paper_tables import portability
from eval.paper_tables.inputs import Inputs, Missing, PaperConfig
from eval.paper_tables.portability import LITERALS, REPLAYED, SHORT_LITERALS, pieces, replay, table_18, wrong_ids
from eval.paper_tables.table import as_json, markdown

EDITS = [
    ("def add(a, b):\n    return a - b\n", "def add(a, b):\n    return a + b\n"),
    ("one\ntwo\nthree\n" * 8, "one\ntwo\nthree\n" * 7 + "</gen> café\r\n"),
    ("gone\n", ""),
]


def inputs_for(tmp_path, tokenizers):
    path = tmp_path / "edits.jsonl"
    rows = [{"instruction": f"Edit {i}.", "before": a, "after": b} for i, (a, b) in enumerate(EDITS)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Inputs(PaperConfig(corpora=["jsonl"], jsonl=[str(path)], tokenizers=tokenizers))


@pytest.fixture
def folder_of(tmp_path):
    """A function that saves a tokenizer in a folder of a name, and returns the folder."""

    def save(tokenizer, name):
        tokenizer.save_pretrained(tmp_path / name)
        return str(tmp_path / name)

    return save


def test_tokenizers_that_run_that_are_refused_and_that_are_not_there(tmp_path, folder_of):
    no_end = copy.deepcopy(tokenizer_of("byte_level"))
    no_end.eos_token = None
    names = [
        folder_of(tokenizer_of("byte_level"), "Qwen-small"),
        folder_of(tokenizer_of("split_slash"), "deepseek-small"),
        folder_of(tokenizer_of("metaspace"), "llama-small"),
        folder_of(lossy_tokenizer(), "bert-small"),
        folder_of(no_end, "no-end"),
        str(tmp_path / "nowhere"),
    ]
    table = table_18(inputs_for(tmp_path, names))
    assert [row.labels[0] for row in table.rows] == names[:5]
    (*last,) = (row.figures[-1].ours for row in table.rows)
    assert last[:3] == ["3 of 3"] * 3
    assert last[3].startswith("refused: tokenizer_lossy")
    assert "no end-of-sequence token" in last[4]

    counts = [[figure.ours for figure in row.figures[:-1]] for row in table.rows]
    assert counts[3] == [None] * len(LITERALS)
    assert counts[4] == counts[0]  # it can count, though it cannot decode
    assert counts[0][LITERALS.index("</")] == 1
    assert counts[1][LITERALS.index("</")] == 2

    papers = [[figure.paper for figure in row.figures[:-1]] for row in table.rows]
    assert papers[0] == list(portability._PAPER["qwen"])
    assert papers[1] == list(portability._PAPER["deepseek"])
    assert papers[2] == papers[3] == papers[4] == [None] * len(LITERALS)

    said = "\n".join(table.findings)
    assert f"{names[5]} could not be loaded: there is no model folder" in said
    assert any(f.startswith(f"{names[1]}: cuts ") and "`</`" in f for f in table.findings)
    json.dumps(as_json(table))
    assert "3 of 3" in markdown(table)


def test_without_any_tokenizer_the_table_is_left_out(tmp_path):
    with pytest.raises(Missing, match="nowhere could not be loaded"):
        table_18(inputs_for(tmp_path, [str(tmp_path / "nowhere")]))


@pytest.mark.parametrize("kind", ["byte_level", "split_slash", "three_digits", "metaspace"])
def test_pieces_are_those_of_the_text_and_oracles_replay(tmp_path, kind):
    encoder = encoder_of(kind)
    counted = pieces(encoder.text)
    assert tuple(counted) == LITERALS
    for literal, count in counted.items():
        ids = encoder.text.encode(literal)
        assert len(ids) == count
        assert encoder.text.decode(ids).decode() == literal
    rows = inputs_for(tmp_path, []).corpora[0].rows
    assert replay(rows, encoder) == {REPLAYED: 3}


def test_programs_that_do_not_go_through_are_counted_by_reason(tmp_path):
    rows = inputs_for(tmp_path, []).corpora[0].rows
    beyond = replace(rows[0], program='<program>\n<copy lines="1-9"/>\n</program>')
    surrogate = replace(rows[0], program="<program>\n<gen>\n\ud800\n</gen>\n</program>")
    other = replace(rows[0], after="another text")
    assert replay([*rows, beyond, surrogate, other], encoder_of("byte_level")) == {
        REPLAYED: 3,
        "an id is not legal": 1,
        "lone_surrogate": 1,
        "it reads back as another program": 1,
    }


def test_the_papers_counts_of_qwen_are_right_and_two_of_its_ids_are_not():
    text = qwen_encoder().text
    assert tuple(pieces(text).values()) == portability._PAPER["qwen"]
    assert wrong_ids(text) == {9685: b"/>", 2577: b"af"}
    assert text.encode("/>") == [9685]
    assert text.encode('"/>') == [13123]
    found = " ".join(portability._of_tokenizer("Qwen", "qwen", text, pieces(text)))
    assert 'calls id 9685 `"/>`; it is `/>`, and `"/>` is 13123.' in found
    assert "calls id 2577 `/>`; it is `af`, and `/>` is 9685." in found


def test_ids_beyond_a_small_vocabulary_mean_nothing():
    text = TextTokenizer(tokenizer_of("byte_level"))
    wrong = wrong_ids(text)
    assert wrong[14906] is None
    assert 2577 in wrong


def test_the_papers_counts_agree_with_what_it_says_of_them():
    at = {literal: index for index, literal in enumerate(LITERALS)}
    for family, counts in portability._PAPER.items():
        assert len(counts) == len(LITERALS) == 14
        assert sum(count == 1 for count in counts) >= 7  # section 8: at least 7 of 14 are single tokens
        cut = [literal for literal in SHORT_LITERALS if counts[at[literal]] > 1]
        assert cut == (["</", '="', "/>"] if family == "deepseek" else [])
        assert counts[at["</gen>"]] == counts[at["</"]] + 2
