"""Section 4.3 and Appendix I: oracle programs give every gold back, and so does the escape, of any string."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Literal

from decoding.console import track
from decoding.escape import decode_gen_body, encode_gen_body
from decoding.grammar import Gen, Program, parse, render
from decoding.resolver import resolve
from eval.metrics import exact_match, trimmed_match, wilson
from eval.paper_tables.inputs import Corpus, Inputs
from eval.paper_tables.table import Column, Figure, Row, Table

RESERVED = ("<copy", "</copy", "<gen", "</gen", "<program", "</program")  # openings that our escape guards
_AUDITED = ("</gen>", "<copy")  # what the paper looks for in golds (section 4.3)
# Longest first, as in Appendix I: < and > of the five literals become U+27E8 and U+27E9, the slash U+2024.
PAPER_ENTITIES = {
    literal: literal.replace("<", "\u27e8").replace(">", "\u27e9").replace("/", "\u2024")
    for literal in ("</program>", "</copy>", "</gen>", "<copy", "<gen>")
}
Family = Literal["one literal", "several literals", "parts of literals", "backslashes", "the paper's entities"]
_ENTITIES: Family = "the paper's entities"
_PARTS = tuple(sorted({literal[:n] for literal in RESERVED for n in range(1, len(literal))})) + (
    "/gen>",
    "gen>",
    "n>",
    ">",
    'copy lines="1-2"/>',
)
_ENTITY_PARTS = (
    *PAPER_ENTITIES.values(),
    "\u27e8",
    "\u27e9",
    "\u2024",
    "\u27e8gen",
    "\u2024gen\u27e9",
    "<gen>",
    "</gen>",
)
_SHARE = 2  # the column of shares


def paper_encode(text: str) -> str:
    """Return ``text`` under the paper's scheme: each of five literals gives way to its entity (Appendix I)."""
    for literal, entity in PAPER_ENTITIES.items():
        text = text.replace(literal, entity)
    return text


def paper_decode(body: str) -> str:
    """Return what the paper's resolver makes of a body: every entity becomes its literal."""
    for literal, entity in PAPER_ENTITIES.items():
        body = body.replace(entity, literal)
    return body


def fault(text: str) -> str | None:
    """Return what goes wrong with ``text`` in a gen under our escape, or None.

    ``changed``: decoding the encoded text gives another; ``ends_early``: the encoded body holds ``</gen``;
    ``program_changed``: a program with that gen, rendered, parsed and resolved, gives another.
    """
    body = encode_gen_body(text)
    if decode_gen_body(body) != text:
        return "changed"
    if "</gen" in body:
        return "ends_early"
    if resolve(parse(render(Program([Gen.of(text)]))), "") != text:
        return "program_changed"
    return None


def paper_fault(text: str) -> str | None:
    """Return ``changed`` or ``ends_early`` under the paper's escape, whose bodies end at ``</gen>``, or None."""
    body = paper_encode(text)
    if paper_decode(body) != text:
        return "changed"
    return "ends_early" if "</gen>" in body else None


def fuzz_strings(golds: list[str], count: int, seed: int) -> Iterator[tuple[Family, str]]:
    """Yield ``count`` strings made of golds, each family in turn; equal arguments give equal strings.

    one literal: a reserved literal at a random place, the paper's population. several literals: two to five.
    parts of literals: two to six pieces of them, some next to each other, so that they may join to whole ones.
    backslashes: one to three literals with up to four backslashes before or after their ``<``. the paper's entities:
    one to three of its entities, their characters, and literals.
    """
    random = Random(f"{seed} fuzz")
    families: tuple[Family, ...] = Family.__args__
    for number in range(count):
        family, text = families[number % len(families)], random.choice(golds)
        for piece in _pieces(family, random):
            at = random.randint(0, len(text))
            text = text[:at] + piece + text[at:]
        yield family, text


def _pieces(family: Family, random: Random) -> list[str]:
    if family == "one literal":
        return [_literal(random)]
    if family == "several literals":
        return [_literal(random) for _ in range(random.randint(2, 5))]
    if family == "parts of literals":
        return ["".join(random.choices(_PARTS, k=random.randint(1, 3))) for _ in range(random.randint(1, 2))]
    if family == "backslashes":
        return [_backslashed(random) for _ in range(random.randint(1, 3))]
    return ["".join(random.choices(_ENTITY_PARTS, k=random.randint(1, 2))) for _ in range(random.randint(1, 3))]


def _literal(random: Random) -> str:
    return random.choice(RESERVED) + random.choice(("", ">"))


def _backslashed(random: Random) -> str:
    before, after = ("\\" * random.randint(0, 4) for _ in range(2))
    return f"{before}<{after}{_literal(random)[1:]}"


def table_4_3(inputs: Inputs) -> Table:
    """Return round trips of every pair, the audit of the golds, and the fuzz test of both escapes."""
    rows, findings = [], []
    for corpus in inputs.with_pooled:
        rows += _corpus_rows(corpus, inputs.as_in_paper("pooled") and corpus.name == "pooled")
        if corpus.name != "pooled":
            counted = {literal: sum(literal in row.after for row in corpus.rows) for literal in RESERVED}
            shown = ", ".join(f"`{literal}` in {count}" for literal, count in counted.items() if count) or "none"
            findings.append(f"Reserved openings in the golds of {corpus.title}: {shown}.")
    golds = [row.after for corpus in inputs.corpora for row in corpus.rows]
    counts: Counter[Family] = Counter()
    ours: Counter[tuple[Family, str]] = Counter()
    theirs: Counter[tuple[Family, str]] = Counter()
    strings = fuzz_strings(golds, inputs.config.fuzz, inputs.config.seed)
    for family, text in track(strings, "fuzz strings", total=inputs.config.fuzz):
        counts[family] += 1
        for faults, found in ((ours, fault(text)), (theirs, paper_fault(text))):
            if found:
                faults[family, found] += 1
    in_paper = inputs.as_in_paper("pooled")
    for escape, faults in (("ours", ours), ("the paper's", theirs)):
        for family, n in counts.items():
            reasons = {reason: count for (of, reason), count in faults.items() if of == family}
            k = n - sum(reasons.values())
            figures = _figures(k, n, reasons=reasons)
            if in_paper and family == "one literal" and escape != "ours":
                figures[_SHARE] = replace(figures[_SHARE], paper=1.0)  # of 10,000 strings, however many ours are
            rows.append(Row((f"fuzz: {family}", "golds of all corpora", escape), tuple(figures)))
    return Table(
        number="4.3",
        title="losslessness of oracle programs and of the escape",
        labels=("check", "on", "escape"),
        columns=(
            Column("n", "count"),
            Column("hold", "count"),
            Column("share", "share"),
            Column("fail", "count"),
            Column("fail by reason", "text"),
        ),
        rows=rows,
        method="Every oracle program is parsed and resolved (strict), and compared with its gold: byte for byte, up to "
        "one final newline (what the paper calls byte-exact), and trimmed. Golds are searched for the openings that "
        "the grammar reserves, and for the two literals that the paper audits, `</gen>` and `<copy`. Fuzz: "
        f"{inputs.config.fuzz:,} strings (seed {inputs.config.seed}), each a gold with pieces at random places. A "
        "string holds where decoding what was encoded gives it back, no body holds what would end it early, and (ours) "
        "a program with it in a gen gives it back. The paper's escape is written from its Appendix I. Wilson intervals "
        "at 95 %.",
        sources=inputs.sources | {"seed": str(inputs.config.seed)},
        findings=[
            *findings,
            "The paper claims its escape for strings without its entities, and fuzzes it with such strings. On strings "
            f"that may have them it fails {_failed(theirs, _ENTITIES):,} of {counts[_ENTITIES]:,} times, ours "
            f"{_failed(ours, _ENTITIES):,}.",
            "What the paper calls byte-exact tolerates one final newline (section 3); the first rows here do not.",
        ],
    )


def _failed(faults: Counter[tuple[Family, str]], family: Family) -> int:
    return sum(count for (of, _), count in faults.items() if of == family)


def _corpus_rows(corpus: Corpus, in_paper: bool) -> list[Row]:
    outputs = [(resolve(parse(row.program), row.before), row.after) for row in corpus.rows]
    golds = [row.after for row in corpus.rows]
    n = len(golds)
    paper = (482, 482) if in_paper else None
    checks = [
        ("resolves to the gold, byte for byte", "ours", sum(a == b for a, b in outputs), None),
        ("... up to one final newline", "ours", sum(exact_match(*pair) for pair in outputs), paper),
        ("... trimmed", "ours", sum(trimmed_match(*pair) for pair in outputs), paper),
        ("gold without a reserved opening", "ours", sum(not any(s in gold for s in RESERVED) for gold in golds), None),
        (
            "gold without the paper's two literals",
            "the paper's",
            sum(not any(literal in gold for literal in _AUDITED) for gold in golds),
            paper,
        ),
        ("gold as a gen comes back", "ours", sum(fault(gold) is None for gold in golds), None),
        ("gold comes back", "the paper's", sum(paper_fault(gold) is None for gold in golds), paper),
    ]
    return [
        Row((check, corpus.title, escape), tuple(_figures(k, n, *(theirs or ()))))
        for check, escape, k, theirs in checks
    ]


def _figures(
    k: int, n: int, their_k: int | None = None, their_n: int | None = None, reasons: dict[str, int] | None = None
) -> list[Figure]:
    share = None if their_n is None else their_k / their_n
    shown = ", ".join(f"{count:,} {reason}" for reason, count in sorted((reasons or {}).items()))
    return [
        Figure(n, their_n),
        Figure(k, their_k),
        Figure(k / n, share, wilson(k, n)),
        Figure(n - k, None if their_n is None else their_n - their_k),
        Figure(shown),
    ]
