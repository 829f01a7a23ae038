"""ProbeEdit: the instruction alone determines the gold, the paper's counts hold, and a seed gives the same bytes."""

from __future__ import annotations

import difflib
import hashlib
import os
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.build import OracleConfig, prepare_corpora
from data_prep.pairs import EditPair
from data_prep.prepared import fingerprint
from data_prep.probeedit import KINDS, ProbeEditConfig, generate, stream
from data_prep.probeedit_documents import SOURCES, VALUES

SHORT = ProbeEditConfig(cases=2000, min_lines=6, max_lines=12)


@pytest.fixture(scope="module")
def paper() -> list[EditPair]:
    return generate(ProbeEditConfig(), seed=0)


@pytest.fixture(scope="module")
def short() -> list[EditPair]:
    return generate(SHORT, seed=0)


# --- a reader that knows only the instruction and the document -------------------------------------------------------

Q = r'"([^"]*)"'
WHERE = r'(the line(?: that starts with| that contains)? "[^"]*")'
WHAT = r'(the line "[^"]*"|the lines "[^"]*" and "[^"]*")'
SENTENCE = r'((?:[^"]|"[^"]*")*?\.)'


def find(where: str, lines: list[str]) -> int:
    """The index of the one line that the phrase names; the quote may occur in no other line, whatever the phrase."""
    phrase, quote = re.fullmatch(rf"(.*?) {Q}", where).groups()
    matching = [i for i, line in enumerate(lines) if quote in line]
    assert len(matching) == 1, f"{quote!r} is in lines {matching}"
    line = lines[matching[0]]
    holds = {"the line": line == quote, "the line that starts with": line.startswith(quote)}
    assert holds.get(phrase, True), f"{where} is not true of {line!r}"
    return matching[0]


def follow_sentence(sentence: str, lines: list[str]) -> list[str]:
    def match(pattern: str) -> tuple[str, ...] | None:
        found = re.fullmatch(pattern, sentence[0].upper() + sentence[1:])
        return found and found.groups()

    def put(start: int, stop: int, new: list[str]) -> list[str]:
        return lines[:start] + new + lines[stop:]

    def change(index: int, old: str, new: str) -> list[str]:
        assert lines[index].count(old) == 1, f"{old!r} is not exactly once in {lines[index]!r}"
        return put(index, index + 1, [lines[index].replace(old, new)])

    if m := match(rf"In {WHERE}, (?:change|replace) {Q} (?:to|with) {Q}\."):
        return change(find(m[0], lines), m[1], m[2])
    if m := match(rf"Change {Q} to {Q} in {WHERE}\."):
        return change(find(m[2], lines), m[0], m[1])
    if m := match(rf"Change {Q} to {Q}\."):
        return change(find(f'anywhere "{m[0]}"', lines), m[0], m[1])
    if m := match(rf"(?:Replace|Rewrite|Change) {WHERE} (?:with the line|as|so that it reads) {Q}\."):
        index = find(m[0], lines)
        return put(index, index + 1, [m[1]])
    if m := match(rf"(?:Add|Insert) {WHAT} (after|below|before|above) {WHERE}\."):
        index = find(m[2], lines) + (m[1] in ("after", "below"))
        return put(index, index, re.findall(Q, m[0]))
    if m := match(rf"(After|Before) {WHERE}, insert {WHAT}\."):
        index = find(m[1], lines) + (m[0] == "After")
        return put(index, index, re.findall(Q, m[2]))
    if m := match(rf"Add {WHAT} at the end of the section {Q}\.") or match(rf"In the section {Q}, append {WHAT}\."):
        what, heading = m if m[0].startswith("the line") else (m[1], m[0])
        end = find(f'the line "{heading}"', lines)
        while end < len(lines) and lines[end]:
            end += 1
        return put(end, end, re.findall(Q, what))
    if m := match(rf"Add {WHAT} at the end of the document\.") or match(
        rf"At the very end of the document, append {WHAT}\."
    ):
        return put(len(lines), len(lines), re.findall(Q, m[0]))
    if m := match(rf"(?:Delete|Remove) {WHERE}\."):
        index = find(m[0], lines)
        return put(index, index + 1, [])
    if m := match(rf"(?:Delete|Remove) {WHERE} and the (line|two lines) after it\."):
        index = find(m[0], lines)
        return put(index, index + {"line": 2, "two lines": 3}[m[1]], [])
    if m := match(rf"(?:Delete|Remove) everything from {WHERE} through {WHERE}\."):
        return put(find(m[0], lines), find(m[1], lines) + 1, [])
    raise AssertionError(f"no reading of {sentence!r}")


def follow(pair: EditPair) -> str:
    lines = pair.before.removesuffix("\n").split("\n")
    if pair.meta["kind"] == "compound":
        first, second = re.fullmatch(
            rf"(?:\(1\) )?{SENTENCE} (?:\(2\)|Then|Also,) {SENTENCE}", pair.instruction
        ).groups()
        result = follow_sentence(second, follow_sentence(first, lines))
        assert result == follow_sentence(first, follow_sentence(second, lines)), "the order of the two edits matters"
    else:
        result = follow_sentence(pair.instruction, lines)
    return "\n".join(result) + "\n"


def line_opcodes(pair: EditPair) -> list[tuple[str, int, int, int, int]]:
    a, b = pair.before.split("\n"), pair.after.split("\n")
    return difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes()


# --- the gold --------------------------------------------------------------------------------------------------------


def test_the_instruction_alone_determines_the_gold(paper, short):
    for pair in [*paper, *generate(ProbeEditConfig(), seed=1), *short]:
        assert follow(pair) == pair.after, pair.instruction
        assert pair.after != pair.before, pair.instruction


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(), low=st.integers(4, 40), spread=st.integers(0, 60))
def test_any_limits_and_seed_give_documents_of_that_size_and_readable_instructions(seed, low, spread):
    for pair in generate(ProbeEditConfig(cases=12, min_lines=low, max_lines=low + spread), seed):
        assert low <= pair.before.count("\n") <= low + spread
        assert follow(pair) == pair.after != pair.before


def test_instructions_vary_in_wording_and_never_give_line_numbers(short):
    skeletons = {kind: Counter() for kind in KINDS}
    for pair in short:
        skeleton = re.sub(Q, "Q", pair.instruction)
        skeletons[pair.meta["kind"]][skeleton] += 1
        assert not re.search(r"\d", skeleton.removeprefix("(1) ").replace("(2) ", "")), pair.instruction
    assert all(len(seen) >= 8 for seen in skeletons.values()), {kind: len(seen) for kind, seen in skeletons.items()}


def test_a_kind_is_what_its_name_says(paper):
    for pair in paper:
        changes = [tag for tag, *_ in line_opcodes(pair) if tag != "equal"]
        if pair.meta["kind"] == "compound":
            assert len(changes) == 2, pair.instruction
        else:
            assert changes == [pair.meta["kind"]], pair.instruction


def test_lines_end_with_newlines_only_and_nothing_needs_quoting_twice(paper, short):
    for pair in [*paper, *short]:
        for text in (pair.before, pair.after):
            assert text.endswith("\n")
            assert not text.endswith("\n\n")
            assert len(text.splitlines()) == text.count("\n")
            assert not re.search(r'"|</gen>|<copy|\{\w+:', text), "a quote, a reserved tag or an unfilled slot"


# --- the paper's corpus ----------------------------------------------------------------------------------------------


def test_defaults_give_the_papers_counts(paper):
    assert len(paper) == 154
    assert Counter(pair.meta["kind"] for pair in paper) == {"replace": 72, "insert": 29, "delete": 27, "compound": 26}
    assert sorted(Counter(pair.meta["genre"] for pair in paper).values()) == [38, 38, 39, 39]
    assert {pair.corpus for pair in paper} == {"probeedit"}
    assert paper[7].id == "probeedit/0007"


def test_defaults_edit_four_fixed_documents_whatever_the_seed(paper):
    documents = {pair.meta["genre"]: pair.before for pair in paper}
    assert set(documents) == set(SOURCES)
    for pair in [*paper, *generate(ProbeEditConfig(), seed=3)]:
        assert pair.before == documents[pair.meta["genre"]]


def test_every_case_is_its_own_group_and_no_two_are_the_same_edit(paper):
    assert len({pair.group for pair in paper}) == 154
    assert len({(pair.before, pair.instruction) for pair in paper}) == 154
    assert len({(pair.before, pair.after) for pair in paper}) == 154


def test_the_copied_share_and_the_number_of_spans_are_near_the_papers(paper):
    """Shares by characters, to need no tokenizer; the paper has 97.8 % of tokens and 321 spans."""
    copied = total = spans = 0
    for pair in paper:
        lines = pair.after.split("\n")
        total += len(pair.after)
        for tag, _, _, start, stop in line_opcodes(pair):
            if tag == "equal":
                spans += 1
                copied += len("\n".join(lines[start:stop]))
    assert 0.971 < copied / total < 0.985, copied / total
    assert 300 <= spans <= 340, spans


def test_the_kinds_keep_their_proportions_by_largest_remainder():
    def counts(cases: int) -> Counter:
        pairs = generate(ProbeEditConfig(cases=cases, min_lines=6, max_lines=12), seed=0)
        return Counter(pair.meta["kind"] for pair in pairs)

    assert counts(308) == {"replace": 144, "insert": 58, "delete": 54, "compound": 52}
    assert counts(10) == {"replace": 4, "insert": 2, "delete": 2, "compound": 2}  # of 4.68, 1.88, 1.75, 1.69
    assert counts(1) == {"replace": 1}


# --- varied documents ------------------------------------------------------------------------------------------------


def test_two_thousand_short_cases_are_all_different(short):
    assert len({pair.before for pair in short}) == 2000
    assert len({pair.instruction for pair in short}) > 1900
    assert len({pair.before.split("\n")[0] for pair in short}) > 500, "titles hardly vary"
    assert all(6 <= pair.before.count("\n") <= 12 for pair in short)
    assert {pair.before.count("\n") for pair in short} == set(range(6, 13))


def test_short_cases_are_compact(short):
    words = [len(line.split()) for pair in short for line in pair.before.split("\n") if line]
    assert max(words) <= 20
    assert sum(len(pair.instruction.split()) for pair in short) / len(short) < 30


def test_the_smallest_size_still_gives_every_kind():
    pairs = generate(ProbeEditConfig(cases=154, min_lines=4, max_lines=4), seed=0)
    assert {pair.before.count("\n") for pair in pairs} == {4}
    assert Counter(pair.meta["kind"] for pair in pairs) == KINDS


def test_documents_longer_than_their_source_repeat_sections_under_other_headings():
    for pair in generate(ProbeEditConfig(cases=8, min_lines=400, max_lines=500), seed=0):
        assert 400 <= pair.before.count("\n") <= 500
        headings = [line for line in pair.before.split("\n") if line.startswith("#")]
        assert len(set(headings)) == len(headings)
        assert follow(pair) == pair.after


def test_long_documents_have_edits_that_can_be_found():
    """Text comes again every 40 lines or so; with other values in it, so that quotes are of one line all the same."""
    pairs = generate(ProbeEditConfig(cases=8, min_lines=1800, max_lines=2000), seed=1)
    assert {pair.meta["kind"] for pair in pairs} == {"replace", "insert", "delete", "compound"}
    for pair in pairs:
        assert 1800 <= pair.before.count("\n") <= 2000
        assert follow(pair) == pair.after


def test_a_stream_yields_the_same_edits_one_by_one():
    many = stream(ProbeEditConfig(cases=100_000, min_lines=6, max_lines=12), seed=0)
    first = [next(many) for _ in range(50)]
    assert [pair.id for pair in first] == [f"probeedit/{i:04d}" for i in range(50)]
    assert all(follow(pair) == pair.after for pair in first)
    config = ProbeEditConfig(cases=40, min_lines=6, max_lines=30)
    assert list(stream(config, 5)) == generate(config, 5)


# --- determinism and errors ------------------------------------------------------------------------------------------


def digest(pairs: list[EditPair]) -> str:
    return hashlib.sha256("\0".join(repr(pair) for pair in pairs).encode()).hexdigest()


def test_a_seed_gives_the_same_bytes_in_any_process_and_another_seed_gives_others(paper):
    config = ProbeEditConfig(cases=40, min_lines=6, max_lines=30)
    expected = digest(generate(config, 5))
    random.seed(1)
    state = random.getstate()
    assert digest(generate(config, 5)) == expected
    assert random.getstate() == state, "the global generator was used"
    assert digest(generate(config, 6)) != expected
    assert digest(generate(ProbeEditConfig(), 0)) == digest(paper)
    program = (
        "import hashlib; from data_prep.probeedit import *;"
        "pairs = generate(ProbeEditConfig(cases=40, min_lines=6, max_lines=30), 5);"
        "print(hashlib.sha256('\\0'.join(repr(pair) for pair in pairs).encode()).hexdigest())"
    )
    root = str(Path(__file__).resolve().parents[1])
    for hash_seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": root}
        run = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
        assert run.stdout.strip() == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [  # of the corpora that earlier versions prepared
        (ProbeEditConfig(), "ede9a43cc11d1bf865905b96d3971935ce62496add07160eadce2b5abb58a605"),
        (SHORT, "77a8bbd529d2479a26d794165f674345629f2b36b777285e504305923354bc3c"),
        (ProbeEditConfig(20, 400, 500), "ba05ddc04504d0a1bb4c4ca5daf4bf3a84f243fb44b5c4f12d74843f8a8cbfc9"),
    ],
)
def test_a_corpus_has_the_fingerprint_it_always_had(config, expected):
    prepared = prepare_corpora(OracleConfig(corpora=["probeedit"], probeedit=config))
    assert fingerprint(prepared["probeedit"].rows) == expected


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (ProbeEditConfig(cases=0), r"cases=0: must be 1 or more"),
        (ProbeEditConfig(min_lines=3, max_lines=9), r"min_lines=3: must be 4 or more"),
        (ProbeEditConfig(max_lines=9), r"min_lines=0: must be 4 or more .*max_lines=0"),
        (ProbeEditConfig(min_lines=12, max_lines=6), r"max_lines=6: must be at least min_lines=12"),
        (ProbeEditConfig(min_lines=12), r"max_lines=0: must be at least min_lines=12"),
    ],
)
def test_a_config_out_of_range_is_refused_by_name(config, message):
    with pytest.raises(ValueError, match=message):
        generate(config, seed=0)


def test_asking_the_fixed_documents_for_too_many_edits_says_what_to_do():
    with pytest.raises(ValueError, match=r"cases=20000: no further .* after \d+ of them, .* min_lines and max_lines"):
        next(stream(ProbeEditConfig(cases=20000), seed=0))


def test_the_config_is_an_omegaconf_structured_config():
    omegaconf = pytest.importorskip("omegaconf")
    config = omegaconf.OmegaConf.structured(ProbeEditConfig)
    config.merge_with_dotlist(["cases=3", "min_lines=6", "max_lines=8"])
    assert len(generate(config, seed=0)) == 3


# --- the sources -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("genre", SOURCES)
def test_a_source_is_well_formed(genre):
    source = SOURCES[genre]
    assert '"' not in source
    for kind, value in re.findall(r"\{(\w+):([^}]*)\}", source):
        assert value in VALUES[kind] if kind != "n" else re.search(r"\d", value), f"{kind}:{value}"
    blocks = source.strip("\n").split("\n\n")
    for i, block in enumerate(blocks):
        heading, *rest = block.split("\n")
        assert heading.startswith("# " if i == 0 else "## ")
        assert len(rest) >= (3 if i == 0 else 7), f"{heading}: a drawn section takes six lines and leaves a spare"
        assert any(line.startswith("+ ") for line in rest), f"{heading} has no spare"
        assert all(line.strip() == line for line in rest)
