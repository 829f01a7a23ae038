"""Program text, escape, resolver, oracle and prompt gutter: round trips for every string, errors by reason."""

from __future__ import annotations

import itertools
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data_prep.oracle import build_oracle
from decoding.escape import decode_gen_body, encode_gen_body
from decoding.grammar import Copy, Gen, GrammarError, Program, ProgramError, parse, render, split_lines
from decoding.prompt import number_lines, render_few_shot_prompt, render_prompt, strip_gutter
from decoding.resolver import ClippedRange, ResolveError, resolve

ROOT = Path(__file__).resolve().parents[1]
RESERVED = ("<copy", "</copy", "<gen", "</gen", "<program", "</program")

# Text made of what the grammar reserves and of what text handling likes to lose. st.characters() has lone surrogates.
PIECES = st.sampled_from(
    ["<", "</", "<\\", "\\", "\\\\", "/", ">", "gen", "gen>", "/gen>", "copy", "/copy", "program", "<gen>", "</gen>"]
    + [
        "</program>",
        '<copy lines="1-1"/>',
        "\n",
        "\r",
        "\r\n",
        "\0",
        "\x0b",
        "\u2028",
        "\ufeff",
        "\U0001f600",
        "\ud800",
    ]
    + [" ", "a", "1|"]
)
TEXTS = st.lists(PIECES, max_size=15).map("".join) | st.text(st.characters(), max_size=30)
# Few different lines, many times: every alignment has rivals.
FEW_LINES = st.lists(st.sampled_from(["", "a", "b", "}", "\r", "</gen>", "\udfff"]), max_size=12).map("\n".join)
DOCUMENTS = FEW_LINES | TEXTS


@st.composite
def programs_on_documents(draw) -> tuple[Program, str]:
    document = draw(DOCUMENTS)
    n = len(split_lines(document))
    ranges = st.tuples(st.integers(1, n), st.integers(1, n)).map(sorted).map(lambda ends: Copy(*ends))
    return Program(draw(st.lists(ranges | TEXTS.map(Gen) | TEXTS.map(Gen.of), min_size=1, max_size=6))), document


def reason(text: str) -> str:
    with pytest.raises(GrammarError) as caught:
        parse(text)
    return caught.value.reason


# --- the escape ------------------------------------------------------------------------------------------------------


@settings(max_examples=400, deadline=None)
@given(TEXTS)
@example("<\\gen><\\\\/copy></gen></gen\\>")
def test_the_escape_round_trips_every_string(text):
    body = encode_gen_body(text)
    assert decode_gen_body(body) == text
    assert not any(literal in body for literal in RESERVED)


@given(TEXTS)
def test_text_without_a_reserved_opening_is_not_changed_by_the_escape(text):
    plain = text.replace("<", "(")
    assert encode_gen_body(plain) == plain and decode_gen_body(plain) == plain


def test_no_two_short_texts_share_an_escaped_form():
    pieces = ("<", "\\", "/", "gen", "copy", ">")
    texts = {"".join(parts) for size in range(6) for parts in itertools.product(pieces, repeat=size)}
    assert len({encode_gen_body(text) for text in texts}) == len(texts)


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ("</gen>", "<\\/gen>"),
        ("<\\/gen>", "<\\\\/gen>"),
        ("a<copy b", "a<\\copy b"),
        ("<<program", "<<\\program"),
        ("<GEN> < gen> <\\ gen>", "<GEN> < gen> <\\ gen>"),
        ("<generic>", "<\\generic>"),
    ],
)
def test_a_reserved_opening_gets_one_backslash_more(text, body):
    assert encode_gen_body(text) == body


# --- programs as text ------------------------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(programs_on_documents())
def test_a_rendered_program_parses_to_one_that_emits_the_same(case):
    program, document = case
    text = render(program)
    again = parse(text)
    assert resolve(again, document) == resolve(program, document)
    assert again.copies == program.copies and len(again.ops) == len(program.ops)
    assert render(again) == text


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("<gen></gen>", ""),
        ("<gen>\n</gen>", ""),
        ("<gen>\n\n</gen>", ""),
        ("<gen>\n\n\n</gen>", "\n"),
        ("<gen>a</gen>", "a"),
        ("<gen>\na\n</gen>", "a"),
        ("<gen>\n\na\n\n</gen>", "\na\n"),
        ("<gen>\r\na\r\n</gen>", "\r\na\r"),
        ("<gen> \na\n </gen>", " \na\n "),
        ("<gen><gen><copy></gen>", "<gen><copy>"),  # an unescaped opening in a body is text
    ],
)
def test_a_gen_emits_its_body_less_one_newline_at_either_end(text, content):
    assert parse(text).ops[0].content == content and resolve(parse(text), "x") == content


@given(TEXTS)
def test_a_canonical_gen_emits_exactly_its_content(content):
    assert Gen.of(content).content == content


@pytest.mark.parametrize(
    "text",
    [
        '<program>\n<copy lines="1-2"/>\n<gen>\nx\n</gen>\n<copy lines="3-3"/>\n</program>',
        '<program><copy lines="1-2"/><gen>x</gen><copy lines="3-3"/></program>',
        '<copy lines="1-2"/><gen>x</gen><copy lines="3-3"/>',
        ' \t\r\n<program> <copy lines="1-2"/>\r\n\r\n<gen>x\n</gen>\t<copy lines="3-3"/>\n\n</program>\n ',
        '\n<copy lines="1-2"/> <gen>\nx</gen> <copy lines="3-3"/>\n',
    ],
)
def test_the_outer_tags_and_blanks_between_operations_are_optional(text):
    program = parse(text)
    assert program.copies == [Copy(1, 2), Copy(3, 3)] and resolve(program, "a\nb\nc") == "a\nb\nx\nc"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Not one of our tags, or cut off within one.
        ("<copy>", "bad_tag"),
        ('<copy lines="1-2">', "bad_tag"),
        ('<copy lines="1-2" />', "bad_tag"),
        ('<copy  lines="1-2"/>', "bad_tag"),
        ('<copy lines="1 - 2"/>', "bad_tag"),
        ('<copy lines="-1-2"/>', "bad_tag"),
        ('<copy lines="+1-2"/>', "bad_tag"),
        ('<copy lines="01-2"/>', "bad_tag"),
        ('<copy lines="1-02"/>', "bad_tag"),
        ('<copy lines="\u0661-\u0662"/>', "bad_tag"),  # Arabic-Indic digits
        ('<copy lines="\xb2-3"/>', "bad_tag"),
        ("<Gen>x</Gen>", "bad_tag"),
        ("<gen >x</gen>", "bad_tag"),
        ("</gen>", "bad_tag"),
        ("<gen>a</gen></gen>", "bad_tag"),
        ("<gen>a</gen></program>", "bad_tag"),
        ("<program><program><gen>a</gen></program></program>", "bad_tag"),
        ("<", "bad_tag"),
        ("<program", "bad_tag"),
        ("<ge", "bad_tag"),
        ('<copy lines="1-2"/', "bad_tag"),
        # Text that stands outside a tag.
        ("Here you are: <gen>a</gen>", "stray_text"),
        ("<gen>a</gen> done", "stray_text"),
        ("<gen>a</gen>,<gen>b</gen>", "stray_text"),
        ("<program>a</program>", "stray_text"),
        ("<program><gen>a</gen></program> done", "stray_text"),
        ("<program><gen>a</gen></program><gen>b</gen>", "stray_text"),
        ("\ufeff<gen>a</gen>", "stray_text"),
        ("<gen>a</gen>\u2028<gen>b</gen>", "stray_text"),
        ("<gen>a</gen>\xa0", "stray_text"),
        ("<gen>a</gen>\x0c", "stray_text"),
        # Cut off.
        ("<gen>", "unclosed_gen"),
        ("<gen>a</gen", "unclosed_gen"),
        ("<gen>a</ gen>", "unclosed_gen"),
        ("<gen>a<\\/gen>", "unclosed_gen"),
        ("<program>", "unclosed_program"),
        ("<program><gen>a</gen>", "unclosed_program"),
        ('<program>\n<copy lines="1-1"/>\n', "unclosed_program"),
        # Nothing there.
        ("", "empty_program"),
        (" \n", "empty_program"),
        ("<program></program>", "empty_program"),
        ("<program>\n\n</program>\n", "empty_program"),
        # Numbers that no document has.
        (f'<copy lines="1-{10**18}"/>', "out_of_range"),
        (f'<copy lines="{"9" * 5000}-1"/>', "out_of_range"),
    ],
)
def test_text_that_is_no_program_is_refused_by_reason(text, expected):
    assert reason(text) == expected


FRAGMENTS = st.sampled_from(
    ["<program>", "</program>", "<gen>", "</gen>", '<copy lines="', "1", "0", "-", '"/>', "<", "x", "\n", " ", "\xa0"]
    + ['<copy lines="1-1"/>', "<gen>x</gen>"]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(FRAGMENTS, max_size=12).map("".join) | TEXTS)
def test_any_text_parses_or_is_refused_by_a_known_reason(text):
    try:
        program = parse(text)
    except GrammarError as error:
        assert error.reason in {"bad_tag", "stray_text", "unclosed_gen", "unclosed_program", "empty_program"}
    else:
        assert program.ops and render(parse(render(program))) == render(program)


def test_an_error_names_the_operation():
    with pytest.raises(GrammarError, match="operation 3") as caught:
        parse('<copy lines="1-1"/><gen>a</gen><copy lines="x"/>')
    assert caught.value.op == 2
    with pytest.raises(ResolveError, match="operation 2") as caught:
        resolve(Program([Copy(1, 1), Copy(1, 3)]), "a\nb")
    assert caught.value.op == 1 and isinstance(caught.value, ProgramError)
    with pytest.raises(GrammarError) as caught:
        parse("")
    assert caught.value.op is None
    assert isinstance(caught.value, ValueError) and str(caught.value).startswith("empty_program: ")


# --- the resolver ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (0, 0, "out_of_range"),
        (0, 1, "out_of_range"),
        (-1, 1, "out_of_range"),
        (1, 4, "out_of_range"),
        (4, 4, "out_of_range"),
        (10**17, 10**17, "out_of_range"),
        (2, 1, "reversed_range"),
        (3, 2, "reversed_range"),
    ],
)
def test_a_range_that_does_not_fit_is_refused_by_reason(first, last, expected):
    with pytest.raises(ResolveError) as caught:
        resolve(Program([Gen("x"), Copy(first, last)]), "a\nb\nc")
    assert (caught.value.reason, caught.value.op) == (expected, 1)


def test_a_program_without_operations_is_refused():
    for mode in ("strict", "clipped"):
        with pytest.raises(ResolveError) as caught:
            resolve(Program([]), "a", mode)
        assert caught.value.reason == "empty_program"


@pytest.mark.parametrize(
    ("first", "last", "text"),
    [(2, 9, "b\nc"), (0, 1, "a"), (7, 9, "c"), (0, 0, "a"), (0, 10**17, "a\nb\nc")],
)
def test_clipped_mode_clips_and_warns_at_the_caller(first, last, text):
    with pytest.warns(ClippedRange, match="operation 1: ") as record:
        assert resolve(Program([Copy(first, last)]), "a\nb\nc", mode="clipped") == text
    assert [Path(warning.filename).name for warning in record] == ["test_program.py"]


def test_clipped_mode_is_silent_where_nothing_is_clipped_and_refuses_a_reversed_range():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert resolve(Program([Copy(1, 3)]), "a\nb\nc", mode="clipped") == "a\nb\nc"
    with pytest.raises(ResolveError) as caught:
        resolve(Program([Copy(9, 8)]), "a", mode="clipped")
    assert caught.value.reason == "reversed_range"


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="mode='lenient'"):
        resolve(Program([Copy(1, 1)]), "a", mode="lenient")


@given(DOCUMENTS)
def test_copying_every_line_gives_the_document(document):
    n = len(split_lines(document))
    assert resolve(Program([Copy(1, n)]), document) == document
    assert resolve(Program([Copy(i, i) for i in range(1, n + 1)]), document) == document


# --- the oracle ------------------------------------------------------------------------------------------------------


@settings(max_examples=400, deadline=None)
@given(DOCUMENTS, DOCUMENTS)
@example("", "\n")
@example("a\n\ud800\n", "\ud800\na")
def test_the_oracle_resolves_to_its_gold_for_every_pair(before, after):
    program = build_oracle(before, after)
    assert resolve(program, before) == after
    assert resolve(parse(render(program)), before) == after


@given(DOCUMENTS)
def test_the_oracle_of_no_change_is_one_copy(document):
    assert build_oracle(document, document).ops == (Copy(1, len(split_lines(document))),)


@given(DOCUMENTS, DOCUMENTS)
def test_copies_of_an_oracle_run_forward_and_its_gens_never_touch(before, after):
    ops = build_oracle(before, after).ops
    copies = [op for op in ops if isinstance(op, Copy)]
    assert all(left.last < right.first for left, right in itertools.pairwise(copies))
    assert not any(isinstance(left, Gen) and isinstance(right, Gen) for left, right in itertools.pairwise(ops))


# --- the prompt ------------------------------------------------------------------------------------------------------


@given(DOCUMENTS | st.lists(st.sampled_from(["", "1|x", "2|", "10|3|y", " 1|z"]), max_size=12).map("\n".join))
def test_the_gutter_comes_off_again(document):
    assert strip_gutter(number_lines(document)) == document


def test_the_gutter_counts_every_addressable_line():
    assert number_lines("a\n\n\tb\r\n") == "1|a\n2|\n3|\tb\r\n4|"
    assert number_lines("") == "1|"


@given(DOCUMENTS, TEXTS, st.sampled_from(["numbered", "plain"]))
def test_a_prompt_holds_document_and_instruction_unchanged(document, instruction, style):
    *_, user = render_prompt(instruction, document, style)
    shown = number_lines(document) if style == "numbered" else document
    assert user["role"] == "user" and shown in user["content"] and user["content"].endswith(instruction)
    assert render_few_shot_prompt(instruction, document, style)[-1] == user


def test_an_unknown_style_is_refused():
    with pytest.raises(ValueError, match="numbered, plain"):
        render_prompt("x", "y", "fancy")


# --- what these modules import ---------------------------------------------------------------------------------------


def test_grammar_data_preparation_and_metrics_load_without_torch():
    modules = "decoding.grammar decoding.escape decoding.resolver decoding.prompt decoding.commandline"
    modules += " data_prep.build data_prep.build_oracles eval.metrics"
    script = f"import sys, {modules.replace(' ', ', ')}; print({{'torch', 'transformers'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
