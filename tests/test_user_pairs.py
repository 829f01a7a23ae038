"""Rows of a user: an edit that says nothing is refused, and a file that holds no rows is named as what it is."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from data_prep.hub import HubConfig, load_hub
from data_prep.pairs import EditPair, collect, pair_fault
from data_prep.user_pairs import read_user_pairs
from decoding.commandline import UserError

ROW = {"instruction": "Change a.", "before": "a\n", "after": "b\n"}


def write(path: Path, *rows: dict) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("instruction", ["", " \t\n"])
def test_a_blank_instruction_is_refused_and_counted_unless_one_is_made(tmp_path, instruction):
    file = write(tmp_path / "e.jsonl", ROW | {"instruction": instruction}, ROW | {"instruction": instruction}, ROW)
    pairs, faults = collect(read_user_pairs([file]))
    assert [pair.instruction for pair in pairs] == ["Change a."]
    assert [(fault["row"], fault["reason"]) for fault in faults] == [(1, "empty"), (2, "empty")]
    assert "synthesize_instructions=true" in faults[0]["detail"]
    made, faults = collect(read_user_pairs([file], synthesize_instructions=True))
    without = write(tmp_path / "without.jsonl", {"before": "a\n", "after": "b\n"})
    [same], _ = collect(read_user_pairs([without], synthesize_instructions=True))
    assert made[0].instruction == same.instruction and [fault["reason"] for fault in faults] == ["duplicate"]


def test_every_corpus_keeps_an_edit_that_fills_or_empties_a_document_and_refuses_one_that_says_nothing(tmp_path):
    rows = [ROW | {"before": ""}, ROW | {"after": ""}, ROW | {"instruction": " "}]
    file = write(tmp_path / "e.jsonl", *rows)
    for stream in (read_user_pairs([file]), load_hub(HubConfig(data_files=[str(file)]))):
        pairs, faults = collect(stream)
        assert [(pair.before, pair.after) for pair in pairs] == [("", "b\n"), ("a\n", "")]
        assert [pair_fault(pair) for pair in pairs] == ["", ""]
        assert [(fault["row"], fault["reason"]) for fault in faults] == [(3, "empty")]
    assert pair_fault(EditPair("id", "git", "\n", "a", "b", "g")) == "empty"  # whatever the corpus


def test_a_group_of_any_kind_keeps_its_edits_together(tmp_path):
    groups = [1, 1, "1", True, None, {"a": 1}]
    rows = [ROW | {"before": f"{n}\n", "group": group, "repos": "r"} for n, group in enumerate(groups)]
    rows += [ROW | {"before": "4\n", "after": "c"}]
    pairs, faults = collect(read_user_pairs([write(tmp_path / "e.jsonl", *rows)]))
    assert [pair.group for pair in pairs[:4]] == ["1", "1", "1", "True"] and pairs[5].group == "{'a': 1}"
    assert pairs[4].group == pairs[6].group and len(pairs[4].group) == 16 and faults == []


LINE = json.dumps(ROW) + "\n"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (LINE.encode("utf-16"), "is in UTF-16: save it as UTF-8"),
        (b"\xfe\xff" + LINE.encode("utf-16-be"), "is in UTF-16"),
        (LINE.encode("utf-32"), "is in UTF-32: save it as UTF-8"),
        (b"\x00\x00\xfe\xff" + LINE.encode("utf-32-be"), "is in UTF-32"),
        (gzip.compress(LINE.encode()), "is packed by gzip: unpack it"),
        (json.dumps([ROW], indent=1).encode(), "is a JSON array: write its objects one a line"),
        (b"\xef\xbb\xbf \n[]", "is a JSON array"),
    ],
    ids=["utf-16", "utf-16-be", "utf-32", "utf-32-be", "gzip", "array", "array after a mark"],
)
def test_a_file_of_another_kind_is_one_error(tmp_path, data, message):
    good = write(tmp_path / "good.jsonl", ROW)
    (tmp_path / "e.jsonl").write_bytes(data)
    with pytest.raises(UserError, match=f"e.jsonl {message}"):
        next(read_user_pairs([good, tmp_path / "e.jsonl"]))


def test_an_array_in_a_later_line_spoils_only_its_row(tmp_path):
    (tmp_path / "e.jsonl").write_text("\ufeff" + LINE + "[1]\n", encoding="utf-8")
    pairs, faults = collect(read_user_pairs([tmp_path / "e.jsonl"]))
    assert len(pairs) == 1 and [fault["reason"] for fault in faults] == ["not_json"]


def test_a_folder_and_a_glob_are_named_as_such(tmp_path):
    with pytest.raises(UserError, match="is a folder: name its files"):
        next(read_user_pairs([tmp_path]))
    with pytest.raises(UserError, match=r"no file .*\*\.jsonl; name each file, globs are not expanded"):
        next(read_user_pairs([tmp_path / "*.jsonl"]))
    with pytest.raises(UserError, match=r"no file .*absent\.jsonl$"):
        next(read_user_pairs([tmp_path / "absent.jsonl"]))
