"""Edits and programs that tools in the field got wrong, as a table; test_edit_cases.py holds each of them."""

from typing import NamedTuple


class RoundTrip(NamedTuple):
    """An edit whose oracle program must resolve to ``after``, copying at least ``min_copy_share`` of its lines."""

    id: str
    before: str
    after: str
    min_copy_share: float = 0.0


class Resolved(NamedTuple):
    """A program and what it must give: a document or the reason of an error."""

    id: str
    before: str
    program: str
    expected: "Text | Error"


class Text(NamedTuple):
    """The document that comes out."""

    document: str


class Error(NamedTuple):
    """The ``reason`` of the ProgramError that is raised."""

    reason: str


def resolves(id: str, before: str, program: str, document: str) -> Resolved:
    """Return a case whose program gives ``document``."""
    return Resolved(id, before, program, Text(document))


def fails(id: str, before: str, program: str, reason: str) -> Resolved:
    """Return a case whose program is refused for ``reason``."""
    return Resolved(id, before, program, Error(reason))


def _statements(leave_out: int | None = None) -> str:
    return "".join("pass\n" if i % 2 else f"v{i} = {i}\n" for i in range(300) if i != leave_out)


# Ten characters or pairs that str.splitlines() takes for a line end, and we do not.
OTHER_LINE_ENDS = "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\r"

ROUND_TRIPS = [
    # What a file starts and ends with.
    RoundTrip("bom-01", "\ufeffone\r\ntwo\r\n", "\ufeffone\r\n2\r\n"),  # the mark belongs to line 1
    RoundTrip("bom-03", "\ufeff# t\n", "# t\n"),  # removing the mark alone is an edit
    RoundTrip("emp-01", "", "seed\n"),  # nothing to copy
    RoundTrip("emp-02", "", ""),
    RoundTrip("emp-06", "\n", "x\n"),  # one newline is not an empty file
    RoundTrip("eof-01", "host=alpha\nport=1\nmode=slow\n", "host=alpha\nport=1\nmode=fast\n"),
    RoundTrip("eof-02", "alpha\nbeta", "alpha\ngamma"),  # no final newline is invented
    # Line ends and what only looks like one.
    RoundTrip("crlf-02", "---\r\nkind: draft\r\nzone: north", "---\r\nkind: final\r\nzone: north"),
    RoundTrip("crlf-05", "hi\r\nthere\r\n", "hi\r\r\nthere\r\n"),  # one more CR within the line
    RoundTrip("crlf-06", ".DS_Store\nIcon\r\r\n._*\n", ".DS_Store\nIcon[\r]\n._*\n"),  # CR as data
    RoundTrip("crlf-08", "x\r\ny\nz\r\n", "x\r\ny\nnew\nz\r\n"),  # both kinds in one file
    RoundTrip("sl-05", f"q{OTHER_LINE_ENDS}z\nend", f"q{OTHER_LINE_ENDS}z\nEND"),
    # Text that looks like a program, a fence, or a gutter.
    RoundTrip("del-03", "path:\n", "path: ~/runs/<project>/<id>.log\n"),
    RoundTrip("del-08", "# T\n```sh\nrun\n```\ntail\n", "# T\n```sh\nrun --fast\n```\ntail\n"),
    RoundTrip(
        "del-11",  # documentation of this very grammar
        'Use <copy lines="1-2"/> to keep lines.\nThen <gen>text</gen>.\n',
        'Use <copy lines="1-2"/> to keep lines.\nThen write <gen>text</gen>.\n',
    ),
    RoundTrip("gut-02", "1 | x = 1\n2 | y = 2\n", "1 | x = 1\n2 | y = 3\n"),
    # Repeated and moved lines.
    RoundTrip("diff-02", _statements(), _statements(leave_out=150), min_copy_share=0.9),  # no line is too popular
    RoundTrip(
        "dup-02", "a {\n  b {\n  }\n}\nc {\n  d {\n  }\n}\n", "a {\n  b {\n  }\n}\nc {\n  d {\n  }\n  warn();\n}\n"
    ),
    RoundTrip("dup-03", "n += 1\nlog()\nn += 1\nlog()\nn += 1\n", "n += 1\nlog()\nlog()\nn += 1\n"),
    RoundTrip("move-02", "x\ny\nz\n", "z\nx\ny\n"),
    # Characters that look alike: no normalisation anywhere.
    RoundTrip("uni-02", "print\uff08'ok'\uff09\uff1b\n", "print('ok');\n"),  # full-width punctuation
    RoundTrip("uni-03", "prix : 10\u202f000 \u20ac\n", "prix : 10 000 \u20ac\n"),  # narrow no-break space
    RoundTrip("uni-04", "ca\u0300 phe\u0302\n", "c\xe0 ph\xea\n"),  # decomposed to composed
    RoundTrip("uni-05", "\u0415\u0300\nend\n", "\u0400\nend\n"),  # likewise in Cyrillic
    # White space is content.
    RoundTrip("ws-01", "**A**: 1  \n**B**: 2  \n", "**A**: 1  \n**B**: 3  \n"),
    RoundTrip("ws-04", "a\n    \nb\n", "a\n\nb\n"),
    RoundTrip("ws-05", "x \ny\t\n", "x\ny\n"),
    RoundTrip("ws-06", "func f() {\n\treturn\n}\n", "func f() {\n\treturn 1\n}\n"),
]

RESOLVED = [
    # The resolver is literal: it repairs nothing and strips nothing that it was not told to.
    resolves("bom-02", "\ufeffset X 1\nset Y 2\n", '<gen>set X 9</gen><copy lines="2-3"/>', "set X 9\nset Y 2\n"),
    resolves(
        "crlf-03",  # a line feed among CRLF stays one
        "one\r\ntwo\r\nthree\r\n",
        '<copy lines="1-1"/><gen>TWO</gen><copy lines="3-4"/>',
        "one\r\nTWO\nthree\r\n",
    ),
    resolves("gut-01", "a\nb\n", '<gen>1 | A</gen><copy lines="2-3"/>', "1 | A\nb\n"),
    resolves(
        "lazy-01",  # a placeholder is text
        "import a\nimport b\n\nf()\n",
        "<gen># ... existing code ...\ng()\n</gen>",
        "# ... existing code ...\ng()",
    ),
    resolves("nul-02", "x", "<gen>a\0b</gen>", "a\0b"),
    resolves(
        "num-18",  # new text may restate its neighbour
        "def f():\n    a()\n    b()\n",
        '<copy lines="1-2"/><gen>    a()\n    c()</gen><copy lines="4-4"/>',
        "def f():\n    a()\n    a()\n    c()\n",
    ),
    # Programs that were cut off.
    fails("cut-01", "a\nb\n", '<copy lines="1-1"/><gen>half a li', "unclosed_gen"),
    resolves("cut-02", "a\nb\nc\n", '<copy lines="1-2"/>', "a\nb"),  # between two operations nothing shows it
    fails("cut-03", "a\nb\n", '<copy lines="1-', "bad_tag"),
    # Markup in text is no markup, templates are not expanded.
    resolves("del-05", "x", '<gen>print("usage: tool <file> <n>")</gen>', 'print("usage: tool <file> <n>")'),
    resolves("del-07", "&copy; 2020\nb\n", '<copy lines="1-1"/>', "&copy; 2020"),
    resolves("del-10", "pid=\n", r"<gen>pid=$$ $& $' $` \1 \g<0> \n</gen>", r"pid=$$ $& $' $` \1 \g<0> \n"),
    resolves("del-15", "x", "<gen>\n  <html>\n</gen>", "  <html>"),
    resolves("spec-04", "eos = ''", "<gen>eos = '<|im_end|>'</gen>", "eos = '<|im_end|>'"),
    # One spelling of a tag.
    fails("del-09", "a\n", '```xml\n<copy lines="1-2"/>\n```', "stray_text"),  # a fence around the whole
    fails("del-14", "x\ny", "<COPY LINES='1-2' />", "bad_tag"),
    fails("num-08", "a\nb\nc", '<copy lines="2--1"/>', "bad_tag"),
    fails("num-10", "a\nb\nc", '<copy lines="\uff11-\uff12"/>', "bad_tag"),  # full-width digits
    fails("num-19", "a", '<copy lines="1"/>', "bad_tag"),
    fails("num-20", "a\n" * 9, '<copy lines="08-09"/>', "bad_tag"),
    # Empty documents and empty gens.
    fails("emp-03", "", '<copy lines="1-2"/>', "out_of_range"),
    resolves("emp-04", "abc", "<gen></gen>", ""),
    resolves("emp-05", "a\nb", '<copy lines="1-1"/><gen></gen><copy lines="2-2"/>', "a\n\nb"),
    resolves("eof-10", "a\nb\nc", '<copy lines="1-1"/><gen></gen><copy lines="3-3"/>', "a\n\nc"),
    # Which number a line has.
    resolves("eof-07", "a\nb\n", '<copy lines="1-2"/>', "a\nb"),  # the final newline is line 3
    resolves("eof-08", "a\nb\n", '<copy lines="1-3"/>', "a\nb\n"),
    fails("num-02", "a\nb\nc", '<copy lines="0-1"/>', "out_of_range"),
    resolves("num-03", "a\nb\nc\n", '<copy lines="1-2"/><gen>new</gen><copy lines="3-4"/>', "a\nb\nnew\nc\n"),
    resolves("num-04", "a\nb\nc\n", '<copy lines="1-1"/><gen>new</gen><copy lines="3-4"/>', "a\nnew\nc\n"),
    resolves("num-06", "a\nb\n\n\n", '<copy lines="1-5"/>', "a\nb\n\n\n"),
    resolves("sl-04", "a\x0bb\nc\x1cd\ne\x85f\ng\n", '<copy lines="4-4"/>', "g"),
    resolves("move-03", "x\ny\nz\n", '<copy lines="3-3"/><copy lines="1-2"/><gen></gen>', "z\nx\ny\n"),
]


class Scored(NamedTuple):
    """What the evaluation says of the document of a case of ``RESOLVED``, held against the edit that was wanted."""

    id: str
    gold: str
    outcome: str
    text_faults: list[str]


SCORED = [
    Scored("bom-02", "\ufeffset X 9\nset Y 2\n", "spans_right_text_wrong", ["bom_lost"]),
    Scored("crlf-03", "one\r\nTWO\r\nthree\r\n", "spans_right_text_wrong", ["eol_mismatch"]),
    Scored("gut-01", "A\nb\n", "spans_right_text_wrong", ["gutter_leak"]),
    Scored("lazy-01", "import a\nimport b\n\ng()\n", "both_off", ["lazy_placeholder"]),
    Scored("nul-02", "ab", "spans_right_text_wrong", ["control_char"]),
    Scored("num-18", "def f():\n    a()\n    c()\n", "spans_right_text_wrong", ["boundary_duplicate"]),
    Scored("num-04", "a\nb\nnew\nc\n", "start_right_end_off", []),  # off by one, and valid
]

# Pairs that a data build refuses (reason) or keeps under a tag.
REFUSED = [("eval-03", "class N:\n    pass\n", "class N:\n    pass\n", "no_op")]
TAGGED = [
    (
        "eval-04",
        "\nclass S:\n    def f(self):\n        return j == k+1\n",
        "class S:\n    def f(self):\n        return j == k",
        "edge_newline_artifact",
    ),
    ("eval-08", "def f():\n    return 1\n", "def f():\n    return 2", "edge_newline_artifact"),
]

# Sizes at which a careless matcher takes minutes.
LARGE_UNCHANGED = "".join(f"row {i},{i * 7}\n" for i in range(20000))  # perf-01
BLANK_LINES = "\n" * 8000  # perf-02: every line equals every other
LONG_LINE = "var a=[" + "1," * 100_000  # perf-03: the line goes on with one more number
MINIFIED = "/* head */\n" + "q" * 400_000 + "\n/* tail */\n"  # perf-04: one line alone exceeds the context

PROMPT_DOCUMENT = "\tx\n\n  y\n\nz"  # gut-03: all of this must be recoverable from the numbered view
