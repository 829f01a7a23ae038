"""Table 18: into how many tokens each tokenizer cuts the grammar's literals, and whether the decoder runs on it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from data_prep.prepared import OracleRow
from decoding.commandline import UserError
from decoding.console import track
from decoding.grammar import parse
from decoding.resolver import resolve
from eval.paper_tables.inputs import Inputs, Missing
from eval.paper_tables.table import Column, Figure, Row, Table

if TYPE_CHECKING:
    from decoding.encoder import ProgramEncoder
    from decoding.tokens import TextTokenizer

SHORT_LITERALS = ("<", "</", ">", "copy", "gen", "program", " lines", '="', "/>", '"')
LITERALS = (*SHORT_LITERALS, "</gen>", "</program>", '<copy lines="1-3"/>', "<gen>content</gen>")
REPLAYED = "replayed"
PAPER_IDS = {  # Qwen2.5's ids by the paper's Appendix A
    27: "<",
    522: "</",
    29: ">",
    8560: "copy",
    4370: "gen",
    14906: "program",
    5128: " lines",
    428: '="',
    9685: '"/>',
    2577: "/>",
}
_PAPER = {  # pieces of each of LITERALS, by what is in the tokenizer's name
    "qwen": (1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3, 3, 8, 7),
    "deepseek": (1, 2, 1, 1, 1, 1, 1, 2, 2, 1, 4, 4, 10, 8),
    "codellama": (1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3, 3, 8, 7),
}


def pieces(text: TextTokenizer) -> dict[str, int]:
    """Return the number of tokens of each of ``LITERALS``, encoded by itself as plain text."""
    return {literal: len(text.encode(literal)) for literal in LITERALS}


def replay(rows: list[OracleRow], encoder: ProgramEncoder) -> Counter[str]:
    """Send the ids of each row's program through the decoder's state machine, and count what happens.

    ``REPLAYED``: every id is legal, the program ends, reads back as it was, and resolves to the gold. Otherwise the
    reason: that of a ``TokenizerError``, or what was not so.
    """
    from decoding.fsm import ProgramFSM

    outcomes: Counter[str] = Counter()
    for row in track(rows, f"programs under {encoder.text.name}"):
        program, fsm = parse(row.program), ProgramFSM(encoder, row.before)
        state = fsm.start
        try:
            ids = [token for segment in encoder.segments(program, row.before, "none") for token in segment.ids]
            for token in ids:
                state = fsm.advance(state, token)
        except ValueError as error:
            outcomes[getattr(error, "reason", "an id is not legal")] += 1
            continue
        read, _ = fsm.program(state, ids)
        if not state.finished:
            outcomes["it does not end"] += 1
        elif read != program or resolve(read, row.before) != row.after:
            outcomes["it reads back as another program"] += 1
        else:
            outcomes[REPLAYED] += 1
    return outcomes


def wrong_ids(text: TextTokenizer) -> dict[int, bytes | None]:
    """Return those of ``PAPER_IDS`` that stand for something else in this vocabulary, with what they stand for."""
    found = {token: text.decode([token]) or None for token in PAPER_IDS}
    return {token: piece for token, piece in found.items() if piece != PAPER_IDS[token].encode()}


def table_18(inputs: Inputs) -> Table:
    """Return the pieces of each literal and the replay of all oracle programs, for each of ``tokenizers=``.

    A tokenizer that the toolkit refuses is a row with the reason; one that cannot be loaded is a finding.

    Raises:
        Missing: none can be loaded.
    """
    from decoding.encoder import ProgramEncoder
    from decoding.loading import load_tokenizer
    from decoding.tokens import TextTokenizer, TokenizerError

    programs = [row for corpus in inputs.corpora for row in corpus.rows]
    rows, findings, absent = [], [], []
    for name in inputs.config.tokenizers:
        try:
            tokenizer = load_tokenizer(name)
        except UserError as error:
            absent.append(f"{name} could not be loaded: {error}")
            continue
        family = next((family for family in _PAPER if family in Path(name).name.lower()), None)
        counts: dict[str, int] = {}
        try:
            text = TextTokenizer(tokenizer)
            counts = pieces(text)
            findings += _of_tokenizer(name, family, text, counts)
            outcomes = replay(programs, ProgramEncoder(tokenizer))
            said = f"{outcomes.pop(REPLAYED, 0)} of {len(programs)}"
            findings += [f"{name}: {count} programs do not go through: {reason}." for reason, count in outcomes.items()]
        except TokenizerError as error:
            said = f"refused: {error}"
        paper = _PAPER.get(family, (None,) * len(LITERALS))
        figures = [Figure(counts.get(literal), theirs) for literal, theirs in zip(LITERALS, paper, strict=True)]
        rows.append(Row((name,), (*figures, Figure(said))))
    if not rows:
        raise Missing("none of tokenizers= could be loaded; " + "; ".join(absent))
    return Table(
        number="18",
        title="literals of the grammar under several tokenizers",
        labels=("tokenizer",),
        columns=(
            *(Column(f"`{'_lines' if literal == ' lines' else literal}`", "count") for literal in LITERALS),
            Column("programs replayed", "text"),
        ),
        rows=rows,
        method="Tokens of each literal encoded by itself as plain text (`_lines` begins with a blank). Replayed: all "
        "ids of an oracle program go through the decoder's state machine, which reads back the same program; it "
        "resolves to the gold. A tokenizer that the toolkit refuses has the reason there.",
        sources=inputs.sources | {"tokenizers": ", ".join(row.labels[0] for row in rows)},
        findings=[
            "The paper prices a further piece of a literal at one mask, 0.02 ms. Its gen bodies run free to the end of "
            "`</gen>`, so DeepSeek's fourth piece there is one more decoding step: 26.8 ms by its Table 11 (7B, N=1).",
            "The paper calls its third family CodeLlama / Llama-3. They are two: CodeLlama has Llama 2's SentencePiece "
            "vocabulary and writes each digit as a token, Llama 3 has a byte-level one and joins up to three digits.",
            *findings,
            *absent,
        ],
    )


def _of_tokenizer(name: str, family: str | None, text: TextTokenizer, counts: dict[str, int]) -> list[str]:
    """What the pieces of one tokenizer say."""
    cut = [f"`{literal}`" for literal in SHORT_LITERALS if counts[literal] > 1]
    findings = [f"{name}: " + (f"cuts {', '.join(cut)}." if cut else "every short literal is one token.")]
    if family:
        other = [literal for literal, paper in zip(LITERALS, _PAPER[family], strict=True) if counts[literal] != paper]
        findings.append(
            f"{name}: "
            + (
                f"not the paper's count: {', '.join(f'`{literal}`' for literal in other)}."
                if other
                else "all 14 counts are the paper's."
            )
        )
    if family == "qwen":
        for token, piece in wrong_ids(text).items():
            literal = PAPER_IDS[token]
            means = "nothing" if piece is None else f"`{piece.decode(errors='replace')}`"
            findings.append(
                f"{name}: the paper's Appendix A calls id {token} `{literal}`; it is {means}, and `{literal}` is "
                f"{' '.join(map(str, text.encode(literal)))}."
            )
    return findings
