"""Scores: intervals against known values, one outcome per case, endpoints with missing and superfluous copies."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data_prep.oracle import build_oracle
from decoding.grammar import Copy, Gen, Program, split_lines
from decoding.resolver import ResolveError, resolve
from eval.metrics import (
    OUTCOMES,
    Endpoints,
    Rate,
    changed_outside,
    endpoints,
    exact_match,
    out_of_range,
    outcome,
    rate,
    risk_coverage,
    trimmed_match,
    wilson,
)
from eval.text_faults import TEXT_FAULTS, text_faults

COPIES = st.builds(Copy, st.integers(0, 6), st.integers(0, 6))
PROGRAMS = st.lists(COPIES | st.sampled_from("ab").map(Gen.of), min_size=1, max_size=5).map(Program)
DOCUMENTS = st.lists(st.sampled_from(["a", "b", "c", ""]), min_size=1, max_size=5).map("\n".join)


def copies(*ranges: tuple[int, int]) -> Program:
    return Program([Copy(first, last) for first, last in ranges])


def score(program: Program | None, document: str, gold: str) -> str:
    """Return the outcome of a case as the evaluation does; None stands for text that did not parse."""
    try:
        output = resolve(program, document) if program else None
    except ResolveError:
        output = None
    return outcome(output, gold, endpoints(program, build_oracle(document, gold)), parsed=program is not None)


# --- intervals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(0, 33, 0.0, 0.10427), (12, 99, 0.07072, 0.20001), (17, 99, 0.11007, 0.25789), (5, 10, 0.23659, 0.76341)],
)
def test_wilson_gives_known_values(successes, n, low, high):
    assert wilson(successes, n) == pytest.approx((low, high), abs=6e-6)


@pytest.mark.parametrize(("successes", "low", "high"), [(12, 0.070, 0.201), (17, 0.110, 0.260)])
def test_wilson_is_as_near_to_the_papers_table_6_as_the_formula_is(successes, low, high):
    # The formula gives [0.0707, 0.2000] and [0.1101, 0.2579]; the table's upper ends are a little higher.
    assert wilson(successes, 99) == pytest.approx((low, high), abs=2.2e-3)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 10**4).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_bounds_are_where_the_score_test_just_rejects(counts):
    k, n = counts
    for bound in wilson(k, n):
        assert (k / n - bound) ** 2 == pytest.approx(1.959963984540054**2 * bound * (1 - bound) / n, abs=1e-12)


@pytest.mark.parametrize("n", [1, 33, 38, 77, 164, 10**9])
def test_wilson_ends_exactly_at_0_and_1(n):
    low, high = wilson(0, n)
    assert low == 0.0 < high < 1.0
    low, high = wilson(n, n)
    assert 0.0 < low < high == 1.0


def test_wilson_has_no_interval_without_data():
    assert wilson(0, 0) is None


@pytest.mark.parametrize(("successes", "n"), [(-1, 3), (4, 3), (1, 0), (0, -1), (-2, -1), (float("nan"), 3)])
def test_wilson_refuses_counts_that_cannot_be(successes, n):
    with pytest.raises(ValueError, match=" of "):
        wilson(successes, n)


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 10**9).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
@example((10**9 - 1, 10**9))
def test_wilson_lies_within_0_and_1_around_the_proportion(counts):
    k, n = counts
    low, high = wilson(k, n)
    assert 0.0 <= low <= k / n <= high <= 1.0 and low < high
    mirrored = wilson(n - k, n)
    assert (1 - mirrored[1], 1 - mirrored[0]) == pytest.approx((low, high), abs=1e-9)


def test_a_rate_carries_its_counts_and_its_interval():
    made = rate([True, False, True])
    assert made == Rate(2, 3) and str(made) == "2/3 = 66.7% [20.8%, 93.9%]"
    assert made.as_json() == {"k": 2, "n": 3, "rate": 2 / 3, "wilson95": wilson(2, 3)}
    assert str(rate([])) == "no data" and rate([]).as_json() == {"k": 0, "n": 0, "rate": None, "wilson95": None}


# --- matches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "gold", "expected"),
    [
        ("a", "a", True),
        ("a\n", "a", True),
        ("a", "a\n", True),
        ("a\n", "a\n", True),
        ("", "\n", True),
        ("a\n\n", "a", False),
        ("a", "a\n\n", False),
        ("a\n\n", "a\n", False),  # each side loses one at most, and one is left
        ("\na", "a", False),
        ("a\r\n", "a\n", False),
        ("a ", "a", False),
        ("caf\xe9", "cafe\u0301", False),
        ("", "a", False),
        (None, "", False),
    ],
)
def test_exact_match_forgives_one_final_newline(output, gold, expected):
    assert exact_match(output, gold) is expected


@pytest.mark.parametrize(
    ("output", "gold", "expected"),
    [(" \na\n\n", "a", True), ("a b", "a  b", False), ("", " \n", True), (None, "", False)],
)
def test_trimmed_match_forgives_white_space_at_the_ends(output, gold, expected):
    assert trimmed_match(output, gold) is expected


# --- endpoints -------------------------------------------------------------------------------------------------------

ORACLE = copies((1, 2), (4, 5), (7, 7))


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (ORACLE, Endpoints(oracle=3, predicted=3, starts=3, ends=3)),
        (copies((1, 2), (4, 5)), Endpoints(3, 2, 2, 2)),  # missing at the end
        (copies((1, 2), (7, 7)), Endpoints(3, 2, 1, 1)),  # missing in the middle shifts the rest
        (copies((1, 2), (4, 5), (7, 7), (9, 9)), Endpoints(3, 4, 3, 3)),  # superfluous
        (copies((1, 3), (3, 5), (7, 7)), Endpoints(3, 3, 2, 2)),
        (Program([Gen.of("x"), Copy(1, 2), Gen.of("y"), Copy(4, 5), Copy(7, 7)]), Endpoints(3, 3, 3, 3)),
        (Program([Gen.of("x")]), Endpoints(3, 0, 0, 0)),
        (None, Endpoints(3, 0, 0, 0)),
    ],
)
def test_copies_are_compared_in_order(program, expected):
    assert endpoints(program, ORACLE) == expected


def test_a_case_is_right_at_an_end_when_no_copy_is_wrong_there():
    assert Endpoints(3, 3, 3, 2).starts_right and not Endpoints(3, 3, 3, 2).ends_right
    assert not Endpoints(3, 3, 2, 3).starts_right and Endpoints(3, 3, 2, 3).ends_right
    # 99 of 100 still counts as right, 98 does not.
    assert Endpoints(100, 100, 99, 98).starts_right and not Endpoints(100, 100, 99, 98).ends_right


def test_an_oracle_without_copies_has_no_endpoint_to_miss():
    spans = endpoints(copies((1, 1)), Program([Gen.of("x")]))
    assert spans == Endpoints(0, 1, 0, 0) and spans.starts_right and spans.ends_right


# --- outcomes --------------------------------------------------------------------------------------------------------

DOCUMENT, GOLD = "a\nb\nc\nd", "a\nB\nc\nd"


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (Program([Copy(1, 1), Gen.of("B"), Copy(3, 4)]), "exact_match"),
        (Program([Gen.of("a\nB\nc\nd\n")]), "exact_match"),  # another program for the same document
        (Program([Copy(1, 1), Gen.of("b"), Copy(3, 4)]), "spans_right_text_wrong"),
        (Program([Copy(1, 1), Gen.of("B"), Copy(3, 3)]), "start_right_end_off"),
        (Program([Copy(1, 1), Gen.of("B"), Copy(3, 9)]), "start_right_end_off"),  # no document at all
        (Program([Copy(1, 1), Gen.of("B"), Copy(2, 4)]), "end_right_start_off"),
        (Program([Copy(1, 4)]), "both_off"),
        (Program([Gen.of("no")]), "both_off"),
        (None, "parse_failure"),
    ],
)
def test_each_failure_has_its_outcome(program, expected):
    assert score(program, DOCUMENT, GOLD) == expected


def test_what_did_not_parse_is_a_parse_failure_whatever_came_out():
    assert outcome(GOLD, GOLD, endpoints(None, ORACLE), parsed=False) == "parse_failure"


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.none() | PROGRAMS, DOCUMENTS, DOCUMENTS), max_size=8))
def test_the_outcomes_are_a_partition(cases):
    counts = Counter(score(*case) for case in cases)
    assert set(counts) <= set(OUTCOMES) and sum(counts.values()) == len(cases)
    assert len(set(OUTCOMES)) == len(OUTCOMES) == 6


@settings(max_examples=200, deadline=None)
@given(DOCUMENTS, DOCUMENTS)
def test_the_oracle_itself_is_an_exact_match(document, gold):
    assert score(build_oracle(document, gold), document, gold) == "exact_match"


# --- ranges ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "document", "count"),
    [
        (copies((1, 2), (3, 3)), "a\nb\n", 0),  # the empty last line is one
        (copies((0, 1), (1, 4), (4, 4), (2, 1), (1, 3)), "a\nb\n", 4),
        (copies((1, 1), (1, 2)), "", 1),
        (Program([Gen.of("x")]), "a", 0),
        (None, "a", 0),
    ],
)
def test_copies_outside_the_document_or_backwards_are_counted(program, document, count):
    assert out_of_range(program, document) == count


@given(PROGRAMS, DOCUMENTS)
def test_a_program_has_no_copy_out_of_range_exactly_when_it_resolves(program, document):
    try:
        resolve(program, document)
        resolved = True
    except ResolveError:
        resolved = False
    assert (out_of_range(program, document) == 0) is resolved
    assert out_of_range(program, document) == sum(
        not (1 <= op.first <= op.last <= len(split_lines(document))) for op in program.copies
    )


# --- lines changed outside ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "gold", "expected"),
    [
        ("a\nb\nX\nd\ne\n", "a\nb\nC\nd\ne\n", 0),  # another text in the right place
        ("a\nb\nd\ne\n", "a\nb\nC\nd\ne\n", 0),
        ("a\nb\nX\nY\nZ\nd\ne\n", "a\nb\nC\nd\ne\n", 0),  # as many lines as it likes there
        ("A\nb\nC\nd\ne\n", "a\nb\nC\nd\ne\n", 1),
        ("a\nb\nC\nd\n", "a\nb\nC\nd\ne\n", 1),
        ("a\nX\nY\nC\nd\ne\n", "a\nb\nC\nd\ne\n", 1),  # b is replaced; the line more touches the hunk
        ("X\nY\na\nb\nC\nd\ne\n", "a\nb\nC\nd\ne\n", 2),
        ("a\nb\nC\nd\nX\ne\n", "a\nb\nC\nd\ne\n", 1),
        ("a\nb\nX\nc\nd\ne\n", "a\nb\nc\nC\nd\ne\n", 1),  # an insertion beside that of the gold
        ("a\nb\nc\nX\nd\ne\n", "a\nb\nc\nC\nd\ne\n", 0),
        ("a\nb\nX\nd\ne\n", "a\nb\nc\nC\nd\ne\n", 1),  # the gold keeps c
        ("", "a\nb\nC\nd\ne\n", 4),
        ("a\nb\nc\nd\ne", "a\nb\nC\nd\ne\n", 0),  # a final newline is not counted
        ("a\nB\nc\nd\ne\nf\n", "a\nb\nc\nd\ne\n", 2),  # a gold that changes nothing
        (None, "a\nb\nC\nd\ne\n", None),
    ],
)
def test_lines_changed_outside_the_golds_hunks_are_counted(output, gold, expected):
    assert changed_outside(output, gold, "a\nb\nc\nd\ne\n") == expected


@settings(max_examples=200, deadline=None)
@given(DOCUMENTS, DOCUMENTS)
def test_the_gold_and_the_unchanged_document_change_nothing_outside(document, gold):
    assert changed_outside(document, gold, document) == changed_outside(gold, gold, document) == 0
    assert changed_outside(gold.removesuffix("\n") + "\n", gold, document) == 0  # an exact match, too


@settings(max_examples=200, deadline=None)
@given(DOCUMENTS, DOCUMENTS, DOCUMENTS)
def test_no_more_lines_change_outside_than_change_at_all(output, gold, document):
    everywhere = changed_outside(output, document, document)
    assert 0 <= changed_outside(output, gold, document) <= everywhere
    assert (everywhere == 0) is exact_match(output, document)


@st.composite
def edits_beside_the_gold(draw) -> tuple[str, str, str, int]:
    """A document of different lines, a gold that replaces some, an output that also edits lines away from these."""
    lines = [f"line {number}" for number in range(draw(st.integers(3, 12)))]
    first = draw(st.integers(0, len(lines) - 1))
    last = draw(st.integers(first + 1, len(lines)))
    gold_text = draw(st.lists(st.sampled_from(["gold 1", "gold 2"]), max_size=3))
    made = draw(st.lists(st.sampled_from(["made 1", "made 2"]), max_size=3))
    output, count = [], 0
    for number, line in enumerate(lines):
        if number == first:
            output += made
        if first <= number < last:
            continue
        # The lines on either side of the hunk are kept, so that edits beyond them are edits of their own.
        near = number in (first - 1, last)
        action = "keep" if near else draw(st.sampled_from(["keep", "delete", "replace"]))
        output += {"keep": [line], "delete": [], "replace": [f"new {number}"]}[action]
        count += action != "keep"
    return "\n".join(lines), "\n".join(lines[:first] + gold_text + lines[last:]), "\n".join(output), count


@settings(max_examples=200, deadline=None)
@given(edits_beside_the_gold())
def test_every_line_lost_beside_the_golds_hunk_counts_and_none_within(edit):
    document, gold, output, count = edit
    assert changed_outside(output, gold, document) == count


# --- text faults ------------------------------------------------------------------------------------------------------

LINED = "a\nb\nc\n"


def faults(output: str | None, gold: str, document: str = LINED, program: Program | None = None) -> list[str]:
    return text_faults(output, gold, document, program)


@pytest.mark.parametrize(
    ("output", "gold", "document", "expected"),
    [
        ("a\n", "\ufeffA\n", "\ufeffa\n", ["bom_lost"]),
        ("a\n", "A\n", "\ufeffa\n", []),  # the gold takes it away
        ("a\n", "\ufeffA\n", "a\n", []),  # the gold adds it: not lost
        ("\ufeffa\n", "\ufeffA\n", "\ufeffa\n", []),
        ("a\r\nB\n", "a\r\nC\r\n", "a\r\nb\r\n", ["eol_mismatch"]),
        ("a\nB\r\n", "a\nC\n", "a\nb\n", ["eol_mismatch"]),
        ("a\rB\n", "a\nC\n", "a\nb\n", ["eol_mismatch"]),  # a lone CR
        ("a\r\r\nB\r\n", "a\r\nC\r\n", "a\r\nb\r\n", ["eol_mismatch"]),
        ("a\r\nB\n", "a\r\nC\n", "a\r\nb\r\n", []),  # a gold of both
        ("a\r\nB\n", "a\r\nC\r\n", "a\r\nb\n", []),  # a document of both
        ("a\nB", "C", "b", []),  # documents without line ends use no kind
        ("1|A\nb\n", "A\nb\n", "a\nb\n", ["gutter_leak"]),
        ("  12 | A\nb\n", "A\nb\n", "a\nb\n", ["gutter_leak"]),
        ("1 | x = 1\n2 | y = 4\n", "1 | x = 1\n2 | y = 3\n", "1 | x = 1\n2 | y = 2\n", []),
        ("7 | B\n", "A\n", "1 | a\n", []),  # a document that has a gutter
        ("7 | B\n", "1 | A\n", "a\n", []),
        ("1 || 2\nx | 1|\n0|\n", "A\n", "a\n", []),
        ("a\x1bB\n", "aB\n", "a\n", ["control_char"]),
        ("a\x85\n", "A\n", "a\n", ["control_char"]),
        ("a\x1bB\n", "a\n", "a\x1bb\n", []),
        ("a\x1bB\n", "a\x1bC\n", "a\n", []),
        ("a\tB\u2028\u200b\n", "aB\n", "a\n", []),  # separators and format characters are no controls
        ("\0\r\n# ...\n", "b\n", "a\n", ["eol_mismatch", "control_char", "lazy_placeholder"]),
    ],
)
def test_a_fault_is_what_neither_the_gold_nor_the_document_has(output, gold, document, expected):
    assert faults(output, gold, document) == expected


@pytest.mark.parametrize(
    "line",
    [
        "# ... existing code ...",
        "// ... rest of the file unchanged",
        "    # ...",
        "/* \u2026 */",
        "-- remaining rows ...",
    ]
    + ["<!-- ... existing content ... -->", "{/* ... existing props ... */}", "... rest of the text unchanged ..."]
    + ["# [... code omitted ...]", "// same as before ..."],
)
def test_a_line_that_stands_for_what_it_leaves_out_is_a_placeholder(line):
    assert faults(f"a\n{line}\n", "a\nB\n") == ["lazy_placeholder"]
    assert faults(f"x\n{line}\n", "a\nB\n", document=f"a\n{line}\n") == []
    assert faults(f"x\n{line}\n", f"a\n{line}\n") == []


@pytest.mark.parametrize(
    "line",
    [
        "    ...",
        "def f(): ...",
        "return [...existing, item]",
        "{...rest}",
        "print('loading existing ...')",
        "# existing",
    ]
    + ["# wait ...", "He kept the rest of it...", "# " + "existing " * 20 + "..."],
)
def test_code_and_prose_with_an_ellipsis_are_no_placeholder(line):
    assert faults(f"a\n{line}\n", "a\nB\n") == []


@pytest.mark.parametrize(
    ("ops", "expected"),
    [
        ([Copy(1, 2), Gen.of("b\nX"), Copy(3, 4)], ["boundary_duplicate"]),  # what is before
        ([Copy(1, 1), Gen.of("X\nc"), Copy(3, 4)], ["boundary_duplicate"]),  # what is after
        ([Copy(1, 2), Gen.of("a\nb\nX"), Copy(3, 4)], ["boundary_duplicate"]),  # several lines
        ([Gen.of("X"), Gen.of("X"), Copy(3, 4)], ["boundary_duplicate"]),
        ([Copy(1, 2), Gen.of("a\nX"), Copy(3, 4)], []),  # not where they meet
        ([Copy(1, 2), Copy(2, 4)], []),  # spans that overlap are no text of the model
        ([Copy(1, 4), Gen.of("\nX")], []),  # blank lines
        ([Gen.of("X")], []),
    ],
)
def test_a_gen_that_restates_its_neighbour_is_a_duplicate(ops, expected):
    program = Program(ops)
    output = resolve(program, LINED)
    assert faults(output, "a\nX\nc\n", program=program) == expected
    assert faults(output, output + "z", program=program) == []  # a gold that has them twice running
    assert faults(output, output, program=program) == []


TEXTS = st.lists(
    st.sampled_from(["a", "b", "", "1|a", "2 | b", "# ...", "\0", "\r", "a\r", "\ufeff", "... existing ..."]),
    max_size=6,
).map("\n".join)


@settings(max_examples=300, deadline=None)
@given(TEXTS, TEXTS)
def test_the_gold_the_document_and_no_output_have_no_fault(document, gold):
    assert faults(gold, gold, document, build_oracle(document, gold)) == []
    assert faults(document, gold, document, build_oracle(document, document)) == []
    assert faults(None, gold, document) == []


@settings(max_examples=300, deadline=None)
@given(TEXTS, TEXTS, TEXTS)
def test_faults_are_named_and_in_one_order(output, gold, document):
    found = faults(output, gold, document, build_oracle(document, output))
    assert found == [name for name in TEXT_FAULTS if name in found]
    assert not (found and exact_match(output, gold))


# --- risk against coverage ------------------------------------------------------------------------------------------


def test_risk_falls_with_coverage_where_confidence_is_right():
    curve = risk_coverage([0.9, 0.8, 0.2, 0.1], [True, True, False, False], (0.25, 0.5, 0.75, 1.0))
    assert curve.points == [(0.25, 0.9, 1, 1), (0.5, 0.8, 2, 2), (0.75, 0.2, 3, 2), (1.0, 0.1, 4, 2)]
    assert curve.aurc == pytest.approx((0 + 0 + 1 / 3 + 1 / 2) / 4)


def test_a_threshold_takes_all_edits_of_its_confidence():
    curve = risk_coverage([0.5, 0.5, 0.5, 0.1], [True, False, False, True], (0.25, 1.0))
    assert curve.points == [(0.25, 0.5, 3, 1), (1.0, 0.1, 4, 2)]


@given(st.lists(st.booleans(), min_size=1, max_size=20))
def test_a_confidence_that_says_nothing_has_the_plain_error_as_area(exact):
    curve = risk_coverage([0.5] * len(exact), exact)
    assert curve.aurc == pytest.approx(1 - sum(exact) / len(exact))
    assert all(point[2] == len(exact) for point in curve.points)


def test_no_edits_have_no_curve():
    assert risk_coverage([], []) is None
