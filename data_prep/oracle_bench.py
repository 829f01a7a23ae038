"""Time the oracle's line matcher beside difflib, on real edits and on documents that are hard to align.

    python data_prep/oracle_bench.py                                # real edits from CAD_DATA_DIR or data_dir=
    python data_prep/oracle_bench.py edits=[] sizes=[2000,64000]    # hard documents alone need no data

Real edits: pairs a second of build_oracle and of the same with difflib's blocks, on one core, and of build_oracle in
processes= that have the pairs already and share them out. They take turns within one run; each shows its best of
repeats=. Hard documents: seconds to find the blocks. difflib takes part up to difflib_lines= lines, for some of these
documents cost it minutes. All seconds are of CPU time, of the busiest process where there are several, so that other
work on the machine does not count.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import Path

from data_prep.humanevalpack import LANGUAGES, load_humanevalpack
from data_prep.oracle import LineMatcher, build_oracle
from data_prep.pairs import collect
from data_prep.rows import RowError
from data_prep.user_pairs import read_user_pairs
from decoding.commandline import UserError, run
from decoding.console import markdown_table
from decoding.grammar import Copy, Gen, Op, Program, split_lines

Texts = list[tuple[str, str]]  # before, after
Lines = list[str]


@dataclass
class Config:
    """What to time."""

    edits: list[str] = field(
        default_factory=lambda: ["commits", "hevalfix-py", "hevalfix-js", "hevalfix-java"]
    )  # real edits: commits, or hevalfix- and a language
    data_dir: str | None = None  # folder with commits/ and humanevalpack/; default CAD_DATA_DIR
    processes: int = 2  # of the last two columns
    repeats: int = 9  # how often each is timed
    sizes: list[int] = field(default_factory=lambda: [500, 2000, 4000, 8000, 16000, 20000])  # lines of hard documents
    difflib_lines: int = 500  # up to how many lines difflib is timed on them


def main(config: Config) -> None:
    """Time, and print two tables."""
    for name in ("processes", "repeats"):
        if getattr(config, name) < 1:
            raise UserError(f"{name}={getattr(config, name)}: must be at least 1")
    if config.sizes and min(config.sizes) < 2:
        raise UserError(f"sizes={config.sizes}: must be at least 2")
    if config.edits:
        texts = {name: load_texts(name, config.data_dir) for name in config.edits}  # all errors before all work
        print(real_edits(texts, config), end="\n\n", flush=True)
    print(hard_documents(config))


# Real edits


def load_texts(name: str, data_dir: str | None) -> Texts:
    """Return the pairs (before, after) of ``commits``, or of ``hevalfix-`` and a key of ``LANGUAGES``.

    Raises:
        UserError: an unknown name, no data folder, no or a damaged file.
    """
    short = name.removeprefix("hevalfix-")
    if name != "commits" and (short == name or short not in LANGUAGES):
        known = ", ".join(["commits", *(f"hevalfix-{short}" for short in LANGUAGES)])
        raise UserError(f"edits: there is no {name!r}: choose from {known}")
    named = data_dir or os.environ.get("CAD_DATA_DIR")
    if not named:
        raise UserError(f"{name} needs real edits: set CAD_DATA_DIR to a folder with commits/ and humanevalpack/")
    paths = sorted(
        Path(named).glob("commits/*.jsonl" if name == "commits" else f"humanevalpack/{LANGUAGES[short]}.jsonl")
    )
    if not paths:
        raise UserError(f"{name}: there is no file of it under {named}; set CAD_DATA_DIR or data_dir= to its folder")
    if name == "commits":
        pairs, rejected = collect(read_user_pairs(paths))
        if rejected:
            first = rejected[0]
            raise UserError(f"{first['file']}, row {first['row']}: {first['reason']} ({first['detail']})")
    else:
        try:
            pairs = load_humanevalpack(short, Path(named))
        except RowError as error:
            raise UserError(str(error)) from None
    return [(pair.before, pair.after) for pair in pairs]


def difflib_oracle(before: str, after: str) -> Program:
    """Return what ``build_oracle`` does, by difflib."""
    a, b = split_lines(before), split_lines(after)
    ops: list[Op] = []
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if tag == "equal":
            ops.append(Copy(i1 + 1, i2))
        elif tag != "delete":
            ops.append(Gen.of("\n".join(b[j1:j2])))
    return Program(ops)


def real_edits(texts: dict[str, Texts], config: Config) -> str:
    """Return the table of pairs a second; "differ" counts the pairs whose program is not that of difflib's blocks."""
    rows = []
    for name, pairs in texts.items():
        with multiprocessing.Pool(config.processes, _keep, (pairs,)) as pool:
            shares = [(first, config.processes) for first in range(config.processes)]
            turns = [
                (
                    _seconds(lambda pairs=pairs: [difflib_oracle(*pair) for pair in pairs]),
                    _seconds(lambda pairs=pairs: [build_oracle(*pair) for pair in pairs]),
                    max(pool.map(_seconds_of_share, shares, chunksize=1)),
                )
                for _ in range(config.repeats)
            ]
        difflib, ours, shared = (min(seconds) for seconds in zip(*turns, strict=True))
        lines = statistics.median(len(split_lines(before)) for before, _ in pairs)
        differ = sum(build_oracle(*pair) != difflib_oracle(*pair) for pair in pairs)
        speeds = [f"{len(pairs) / seconds:,.0f}" for seconds in (difflib, ours, shared)]
        ratios = [f"{difflib / seconds:.1f}x" for seconds in (ours, shared)]
        rows.append([name, len(pairs), f"{lines:g}", differ, *speeds[:2], ratios[0], speeds[2], ratios[1]])
    many = f"{config.processes} processes"
    columns = ["real edits", "pairs", "median lines", "differ", "difflib: pairs/s", "ours", "ratio", many, "ratio"]
    return markdown_table(columns, rows)


_kept: Texts = []  # of a worker process


def _keep(pairs: Texts) -> None:
    _kept[:] = pairs


def _seconds_of_share(share: tuple[int, int]) -> float:
    first, step = share
    pairs = _kept[first::step]
    return _seconds(lambda: [build_oracle(*pair) for pair in pairs])


def _seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


# Hard documents


def _identical(n: int) -> tuple[Lines, Lines]:
    return [f"line {i}" for i in range(n)], [f"line {i}" for i in range(n)]


def _blank_but_one(n: int) -> tuple[Lines, Lines]:
    after = [""] * n
    after[n // 2] = "x"
    return [""] * n, after


def _every_other_changed(n: int) -> tuple[Lines, Lines]:
    before, after = ([text for i in range(n // 2) for text in (f"line {i}", f"{name} {i}")] for name in "xy")
    return before, after


def _blank_and_changed(n: int) -> tuple[Lines, Lines]:
    before, after = ([text for i in range(n // 2) for text in ("", f"{name} {i}")] for name in "xy")
    return before, after


def _edited(n: int) -> tuple[Lines, Lines]:
    """Two lines in five are of the sort that repeats, two in a hundred are changed."""
    rng = random.Random(0)
    before = [rng.choice(["", "    }", "    return x"]) if rng.random() < 0.4 else f"line {i}" for i in range(n)]
    return before, [f"changed {i}" if rng.random() < 0.02 else line for i, line in enumerate(before)]


def _two_kinds(n: int) -> tuple[Lines, Lines]:
    rng = random.Random(0)
    return rng.choices("ab", k=n), rng.choices("ab", k=n)


def _reversed(n: int) -> tuple[Lines, Lines]:
    before, after = _identical(n)
    return before, after[::-1]


def _all_sizes(n: int) -> tuple[Lines, Lines]:
    """Blocks of 1, 2, 3, ... blank lines: the most different sizes there can be, the worst that is known."""
    before: Lines = []
    after: Lines = []
    size = 1
    while len(before) + size < n:
        before += [""] * size + [f"x {size}"]
        after += [""] * size + [f"y {size}"]
        size += 1
    return before, after


DOCUMENTS: dict[str, Callable[[int], tuple[Lines, Lines]]] = {
    "identical": _identical,
    "blank, one line changed": _blank_but_one,
    "blank and changed lines in turn": _blank_and_changed,
    "unique and changed lines in turn": _every_other_changed,
    "2 % of lines changed": _edited,
    "random lines of two kinds": _two_kinds,
    "reversed": _reversed,
    "blocks of every size": _all_sizes,
}


def hard_documents(config: Config) -> str:
    """Return the table of seconds by document and number of lines, and the ratio to difflib where it took part."""
    rows = [["one line of 200,000 characters", 1, *_against_difflib(["x" * 200_000], ["x" * 199_999 + "y"], config)]]
    for name, make in DOCUMENTS.items():
        for n in config.sizes:
            a, b = make(n)
            rows.append([name, f"{len(a):,}", *_against_difflib(a, b, config)])
    return markdown_table(["hard documents", "lines", "difflib: seconds", "ours", "ratio"], rows)


def _against_difflib(a: Lines, b: Lines, config: Config) -> list[str]:
    ours = min(_seconds(lambda: LineMatcher(a, b).get_matching_blocks()) for _ in range(3))
    if len(a) > config.difflib_lines:
        return ["-", f"{ours:.4f}", "-"]
    difflib = _seconds(lambda: SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks())
    return [f"{difflib:.4f}", f"{ours:.4f}", f"{difflib / ours:.1f}x"]


if __name__ == "__main__":
    run(main, Config, description=__doc__)
