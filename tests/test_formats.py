"""Search/replace blocks and unified diffs: round trips for every pair, errors by reason, agreement with git."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import edit_cases
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data_prep.rows import read_rows
from decoding.formats import (
    DIFF_HEADER,
    DIVIDER,
    FORMATS,
    REPLACE,
    SEARCH,
    FormatError,
    apply_search_replace,
    apply_unified_diff,
    write_search_replace,
    write_unified_diff,
)
from decoding.grammar import split_lines

ROOT = Path(__file__).resolve().parents[1]
DATA_DIR = os.environ.get("CAD_DATA_DIR")
COMMITS = sorted(Path(DATA_DIR, "commits").glob("*.jsonl")) if DATA_DIR else []
needs_git = pytest.mark.skipif(not shutil.which("git"), reason="needs git")

# Lines that the formats themselves are made of, and lines that text handling likes to lose; none ends a block.
PLAIN = ["", " ", "a", "b", "}", "\r", "a\r", "\0", "\x0b", "\u2028", "\ufeff", "\\ No newline at end of file", SEARCH]
PLAIN += ["@@ -1 +1 @@", "-- a", "++ b", "-", "+", "...", "```"]
DELIMITERS = [DIVIDER, REPLACE, DIVIDER + "\r", REPLACE + " "]


def documents(lines: list[str]) -> st.SearchStrategy[str]:
    """Documents of few different lines, so that every anchor and alignment has rivals, and of many."""
    few = st.lists(st.sampled_from(lines), min_size=1, max_size=3).flatmap(
        lambda some: st.lists(st.sampled_from(some), max_size=14)
    )
    return (few | st.lists(st.sampled_from(lines), max_size=14)).map("\n".join)


@st.composite
def edits(draw, texts: st.SearchStrategy[str]) -> tuple[str, str]:
    """Return two documents, most often the second made of the first by changing some runs of lines."""
    before = draw(texts)
    if draw(st.integers(0, 3)) == 0:
        return before, draw(texts)
    lines = split_lines(before)
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(lines)))
        lines[start : start + draw(st.integers(0, 2))] = draw(st.lists(st.sampled_from(PLAIN), max_size=2))
    return before, "\n".join(lines)


PLAIN_EDITS = edits(documents(PLAIN))
ANY_EDITS = edits(documents(PLAIN + DELIMITERS + ["\ud800"]) | st.text(st.characters(), max_size=30))


def reason(apply, *arguments) -> str:
    with pytest.raises(FormatError) as caught:
        apply(*arguments)
    assert str(caught.value).startswith(caught.value.reason)
    return caught.value.reason


def block(search: str, replace: str) -> str:
    """Return a block of whole lines; an empty text is no line."""
    return f"{SEARCH}\n{search}{DIVIDER}\n{replace}{REPLACE}\n"


# --- every format ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=400, deadline=None)
@given(PLAIN_EDITS)
@example(("", "a\n"))
@example(("", "a"))
@example(("", "\n"))
@example(("\n", ""))
@example(("a\n", "a"))
@example(("a", "a\n"))
@example(("a\na\na", "a\na"))
def test_what_is_written_applies_to_the_edited_document(name, edit):
    before, after = edit
    assert FORMATS[name].apply(FORMATS[name].write(before, after), before) == after


@pytest.mark.parametrize("case", edit_cases.ROUND_TRIPS, ids=lambda case: case.id)
@pytest.mark.parametrize("name", FORMATS)
def test_edits_that_other_tools_got_wrong_round_trip(name, case):
    assert FORMATS[name].apply(FORMATS[name].write(case.before, case.after), case.before) == case.after


@pytest.mark.parametrize("name", ["search_replace", "unified_diff"])
@given(document=documents(PLAIN + DELIMITERS), blank=st.sampled_from(["", "\n", " \n\n"]))
def test_blank_text_is_the_edit_that_changes_nothing(name, document, blank):
    assert FORMATS[name].write(document, document) == ""
    assert FORMATS[name].apply(blank, document) == document


@pytest.mark.parametrize("name", ["search_replace", "unified_diff"])
@settings(max_examples=300, deadline=None)
@given(
    document=documents(PLAIN),
    rows=st.lists(st.sampled_from(PLAIN + DELIMITERS + ["@@ -1,2 +1 @@", "@@ -0,0 +1 @@", "+++ b", " a", "-a", "+"])),
)
def test_text_that_is_wrong_is_refused_and_nothing_else_goes_wrong(name, document, rows):
    try:
        assert isinstance(FORMATS[name].apply("\n".join(rows), document), str)
    except FormatError as error:
        assert error.reason and error.reason != "inexpressible"


@pytest.mark.parametrize("name", ["search_replace", "unified_diff"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (edit_cases.LARGE_UNCHANGED, edit_cases.LARGE_UNCHANGED.replace("row 7", "line 7")),
        (edit_cases.BLANK_LINES, edit_cases.BLANK_LINES[:3000] + "x" + edit_cases.BLANK_LINES[3000:]),
        (edit_cases.LONG_LINE, edit_cases.LONG_LINE + "1,"),
        ("Title\n=======\ntext\n" * 1500, "Title\n=======\ntext\n" * 1500 + "end"),
    ],
    ids=["1000 of 20000 rows", "blank lines", "one long line", "delimiters all over"],
)
def test_large_documents_round_trip(name, before, after):
    assert FORMATS[name].apply(FORMATS[name].write(before, after), before) == after


@pytest.mark.skipif(not DATA_DIR, reason="set CAD_DATA_DIR to the folder of humanevalpack/ and commits/")
@pytest.mark.parametrize("path", COMMITS, ids=lambda path: path.stem)
@pytest.mark.parametrize("name", FORMATS)
def test_every_edit_of_real_commits_round_trips(name, path):
    write, apply = FORMATS[name]
    for row in read_rows(path):
        assert apply(write(row["before"], row["after"]), row["before"]) == row["after"], row["commit"]


def test_the_module_imports_no_torch():
    code = "import sys, decoding.formats; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


# --- search/replace blocks -------------------------------------------------------------------------------------------


@settings(max_examples=500, deadline=None)
@given(ANY_EDITS)
@example(("=======\n", "a\n"))
@example(("a\n", ">>>>>>> REPLACE"))
@example(("a\n=======\na\n", "a\n=======\nb\na\n"))
def test_blocks_give_the_same_under_both_rules_or_are_refused(edit):
    before, after = edit
    try:
        text = write_search_replace(before, after)
    except FormatError as error:
        assert error.reason == "inexpressible"
        assert any(line.rstrip(" \t\r") in (DIVIDER, REPLACE) for line in split_lines(before) + split_lines(after))
    else:
        assert apply_search_replace(text, before, "first") == after
        assert apply_search_replace(text, before, "unique") == after


@pytest.mark.parametrize(
    ("before", "after", "blocks"),
    [
        ("a\nb\nc\n", "a\nx\ny\nc\n", [("b\n", "x\ny\n")]),  # unique lines need no context
        ("a\nb\nc\n", "a\nc\n", [("b\n", "")]),
        ("a\nb\nc\n", "a\nx\nb\nc\n", [("a\n", "a\nx\n")]),  # new lines stand below the line they are anchored on
        ("a\na\nb\nc\n", "a\na\nx\nb\nc\n", [("b\n", "x\nb\n")]),  # ... or above it, where only that is unique
        ("p\na\nq\na\nr\n", "p\na\nq\nb\nr\n", [("q\na\n", "q\nb\n")]),
        ("a\na\na\nb\n", "a\na\nx\nb\n", [("a\nb\n", "x\nb\n")]),
        # The first block makes a second "n", so the next one needs context for it.
        ("o\nz\nn\n", "n\nz\nm\n", [("o\n", "n\n"), ("z\nn\n", "z\nm\n")]),
        # A heading's underline would end the search.
        ("One\n=======\na\nTwo\n", "One\n=======\nx\na\nTwo\n", [("a\n", "x\na\n")]),
        ("p\nu\na\n=======\nu\na\n", "p\nu\nb\n=======\nu\na\n", [("p\nu\na\n", "p\nu\nb\n")]),
        # Documents without their final newline, or without a line.
        ("a\n", "a", [("\n", "")]),
        ("", "a\nb\n", [("", "a\nb\n")]),
        ("", "a", [("\n", "a\n")]),
    ],
)
def test_a_block_has_the_changed_lines_and_no_context_to_spare(before, after, blocks):
    assert write_search_replace(before, after) + "\n" == "".join(block(*texts) for texts in blocks)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("=======\na\n", "a\n"),  # the removed line would end the search
        ("a\n", "a\n>>>>>>> REPLACE\n"),  # the new line would end the block
        ("=======\nx\n=======\nx\n=======\n", "=======\nx\n=======\ny\n=======\n"),  # only that tells the two x apart
    ],
)
def test_an_edit_that_needs_a_delimiter_in_a_block_is_inexpressible(before, after):
    assert reason(write_search_replace, before, after) == "inexpressible"


@pytest.mark.parametrize(
    ("text", "document", "expected"),
    [
        (block("a\n", "b\n"), "a\nx\na\n", "b\nx\na\n"),  # the first place
        (block("a\n", "b\n"), "aa\na\n", "aa\nb\n"),  # whole lines
        (block("a\n", "b\n"), "x\na", "x\nb"),  # no final newline is invented
        (block("a\n", "b\n") * 2, "a\na\n", "b\nb\n"),  # in turn
        (block("a\n", "b\n") + block("b\n", "c\n"), "a\n", "c\n"),  # on what the one before left
        ("Sure:\n```\n" + block("a\n", "b\n") + "```\nDone.", "a\n", "b\n"),
        (block("a\n", "b\n").replace("\n", "\r\n"), "a\r\n", "b\r\n"),  # delimiters may end in CR as the lines do
        (block("a\n<<<<<<< SEARCH\n", "=======\n"), "a\n<<<<<<< SEARCH\n", "=======\n"),  # not due, so text
        (block("a\nb\n", ""), "a\nb", ""),
        (block("a\n", "") + block("\n", "x\n"), "a", "x"),  # what is left is the empty document
        (block("", "a\n"), "", "a\n"),
        (block("a\u2028b\n", "c\x0bd\n"), "a\u2028b\n", "c\x0bd\n"),
    ],
)
def test_blocks_are_applied(text, document, expected):
    assert apply_search_replace(text, document) == expected


@pytest.mark.parametrize(
    ("text", "document", "expected"),
    [
        ("b\n", "a\n", "no_block"),
        (DIVIDER, "a\n", "no_block"),
        (f"a\n{DIVIDER}\nb\n{REPLACE}", "a\n", "unopened_block"),
        (f"{SEARCH}\na\n", "a\n", "unclosed_block"),
        (f"{SEARCH}\na\n{DIVIDER}\nb\n", "a\n", "unclosed_block"),
        (block("a\n", "b\n") + f"{SEARCH}\nb", "a\n", "unclosed_block"),  # nothing is applied in part
        (block("", "b\n"), "a\n", "empty_anchor"),
        (block("c\n", "b\n"), "a\n", "anchor_missing"),
        (block(" a\n", "b\n"), "a\n", "anchor_missing"),
        (block("a\n", "b\n") * 2, "a\n", "anchor_missing"),
    ],
)
def test_blocks_that_do_not_fit_are_refused_by_reason(text, document, expected):
    for rule in ("first", "unique"):
        assert reason(apply_search_replace, text, document, rule) == expected


def test_an_ambiguous_anchor_is_refused_by_the_unique_rule_alone():
    text = block("x\n", "x\n") + block("a\n\na\n", "b\n")
    document = "x\na\n\na\n\na\n"  # the two places overlap
    assert apply_search_replace(text, document) == "x\nb\n\na\n"
    with pytest.raises(FormatError, match="hunk 2") as caught:
        apply_search_replace(text, document, "unique")
    assert (caught.value.reason, caught.value.hunk) == ("anchor_ambiguous", 1)


def test_an_unknown_rule_is_refused():
    with pytest.raises(ValueError, match="nearest"):
        apply_search_replace("", "", "nearest")


# --- unified diffs ---------------------------------------------------------------------------------------------------


@settings(max_examples=500, deadline=None)
@given(ANY_EDITS)
def test_every_pair_of_strings_can_be_written_as_a_diff(edit):
    before, after = edit
    assert apply_unified_diff(write_unified_diff(before, after), before) == after


def test_a_diff_is_written_as_diff_writes_it():
    before = "".join(f"{n}\n" for n in range(1, 21))
    after = before.replace("2\n", "two\n", 1).replace("19\n20\n", "19\n20")
    assert write_unified_diff(before, after) == (
        "--- a/document\n+++ b/document\n@@ -1,5 +1,5 @@\n 1\n-2\n+two\n 3\n 4\n 5\n"
        "@@ -17,4 +17,4 @@\n 17\n 18\n 19\n-20\n+20\n\\ No newline at end of file\n"
    )
    apart = before.replace("2\n", "two\n", 1).replace("9\n", "nine\n", 1)  # six lines between the changes, then seven
    assert write_unified_diff(before, apart).count("@@ -") == 1
    assert write_unified_diff(before, apart.replace("nine\n10\n", "9\nten\n")).count("@@ -") == 2
    assert write_unified_diff("", "a\n") == f"{DIFF_HEADER}@@ -0,0 +1 @@\n+a\n"
    assert write_unified_diff("a\nb", "") == f"{DIFF_HEADER}@@ -1,2 +0,0 @@\n-a\n-b\n\\ No newline at end of file\n"


@pytest.mark.parametrize(
    ("text", "document", "expected"),
    [
        ("@@ -2 +2 @@\n-a\n+b", "a\na\na\n", "a\nb\na\n"),  # a header or a final newline may be missing
        ("Sure:\n```diff\n--- x\n+++ x\n@@ -1 +1 @@ def f():\n-a\n+b\n```\n- done", "a\n", "b\n"),
        ("@@ -1,3 +1,3 @@\n a\n\n-b\n+c\n", "a\n\nb\n", "a\n\nc\n"),  # a blank row is an empty line
        ("@@ -1 +9 @@\n-a\n+b\n", "a\n", "b\n"),  # where it lands follows from where it stood
        ("@@ -1,0 +2,2 @@\n+b\n+c\n@@ -2 +4,0 @@\n-x\n", "a\nx\n", "a\nb\nc\n"),
        ("@@ -1 +1 @@\n-a\n+b\n@@ -1,0 +2 @@\n+c\n", "a\n", "b\nc\n"),  # one hunk ends where the next begins
        ("@@ -0,0 +1 @@\n+b\n", "a\n", "b\na\n"),
        ("@@ -1 +1 @@\n-a\r\n+b\u2028\r\n", "a\r\n", "b\u2028\r\n"),
        ("@@ -1 +1 @@\n-a\n\\ Kein Zeilenumbruch am Dateiende.\n+a\n", "a", "a\n"),
    ],
)
def test_hunks_are_applied(text, document, expected):
    assert apply_unified_diff(text, document) == expected


@pytest.mark.parametrize(
    ("text", "document", "expected"),
    [
        ("b\n", "a\n", "no_hunk"),
        ("@@ ... @@\n-a\n+b\n", "a\n", "bad_hunk"),
        ("@@ -1 +1 @@\n-a\n", "a\n", "bad_hunk"),  # it ends early
        ("@@ -1 +1 @@\n-a\n\n", "a\n", "bad_hunk"),
        ("@@ -1,2 +1,2 @@\n-a\n+b\n", "a\n\n", "bad_hunk"),  # its final newline is no blank row
        ("@@ -1 +1 @@\n-a\n+b\n+c\n", "a\n", "bad_hunk"),  # it goes on
        ("@@ -1 +1 @@\n-a\n+b\n\n+c\n", "a\n", "bad_hunk"),
        ("@@ -1,2 +1 @@\n-a\n+b\n+c\n-d\n", "a\nd\n", "bad_hunk"),
        ("@@ -1 +1 @@\n?a\n+b\n", "a\n", "bad_hunk"),
        ("@@ -1 +1 @@\n\\ No newline at end of file\n-a\n+b\n", "a\n", "bad_hunk"),
        ("@@ -0,1 +1 @@\n-a\n+b\n", "a\n", "bad_hunk"),
        ("@@ -2 +2 @@\n-b\n+c\n@@ -1 +1 @@\n-a\n+c\n", "a\nb\n", "bad_hunk"),
        ("--- a\n+++ b\n+c\n@@ -1 +1 @@\n-a\n+b\n", "a\n", "bad_hunk"),  # a line before its @@ line
        ("@@ -1 +1 @@\n-a\n+b\ndiff\n--- c\n+++ c\n@@ -2 +2 @@\n-b\n+c\n", "a\nb\n", "bad_hunk"),  # a second file
        ("@@ -1 +1 @@\n-a\n+b\n\\ No newline at end of file\n", "a\nc\n", "bad_hunk"),  # it is not the last line
        ("@@ -3 +3 @@\n-a\n+b\n", "a\n", "out_of_range"),
        ("@@ -2,0 +3 @@\n+b\n", "a\n", "out_of_range"),
        ("@@ -999999999999999999 +1 @@\n-a\n+b\n", "a\n", "out_of_range"),
        ("@@ -9999999999999999999 +1 @@\n-a\n+b\n", "a\n", "bad_hunk"),
        ("@@ -2 +2 @@\n-a\n+b\n", "a\nx\n", "context_mismatch"),  # no search for another place
        ("@@ -1 +1 @@\n-a\n+b\n", "a", "context_mismatch"),  # the missing newline counts
    ],
)
def test_diffs_that_do_not_fit_are_refused_by_reason(text, document, expected):
    assert reason(apply_unified_diff, text, document) == expected


def test_an_error_says_which_hunk_it_concerns():
    with pytest.raises(FormatError, match="hunk 2: line 3 is 'c") as caught:
        apply_unified_diff("@@ -1 +1 @@\n-a\n+b\n@@ -3 +3 @@\n-x\n+y\n", "a\nb\nc\n")
    assert caught.value.hunk == 1


def git(folder: Path, *arguments: str, text: str = "") -> subprocess.CompletedProcess:
    """Run git in a folder that is no repository, with nobody's settings."""
    alone = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    line = ["git", *arguments]
    return subprocess.run(line, cwd=folder, env={**os.environ, **alone}, input=text.encode(), capture_output=True)


GIT_EDITS = PLAIN_EDITS.filter(lambda edit: edit[0] != edit[1])


@needs_git
@settings(max_examples=100, deadline=None)
@given(GIT_EDITS)
@example(("", "a"))
@example(("a", ""))
def test_git_applies_what_is_written(edit):
    before, after = edit
    with tempfile.TemporaryDirectory() as name:
        file = Path(name).resolve() / "document"
        file.write_bytes(before.encode())
        done = git(file.parent, "apply", "--whitespace=nowarn", "-", text=write_unified_diff(before, after))
        assert done.returncode == 0, done
        assert file.read_bytes().decode() == after


@needs_git
@settings(max_examples=100, deadline=None)
@given(GIT_EDITS, st.sampled_from([0, 1, 3, 100]))
def test_what_git_writes_is_applied(edit, context):
    before, after = edit
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        (folder / "a").write_bytes(before.encode())
        (folder / "b").write_bytes(after.encode())
        done = git(folder, "diff", "--no-index", "--text", f"-U{context}", "a", "b")
        assert apply_unified_diff(done.stdout.decode(), before) == after
