"""Real edits to measure decoding on: single functions, files of many functions, commits, standard-library fixes.

    hevalfix-py, hevalfix-js    HumanEvalPack: the body of one function, with a bug
    py-4, py-16, py-48          a Python file of that many HumanEvalPack functions, one of them with a bug
    js-4, js-16, js-48          the same in JavaScript
    commits                     single-file commits: FOLDER/commits/*.jsonl with instruction, before, after
    pyfix                       functions of the running Python's standard library; needs no data folder

A function of a file is its declaration and its body, without docstring: what the instruction says of it does not stand
in the document too.
"""

from __future__ import annotations

import os
import random
import re
from dataclasses import dataclass, replace
from pathlib import Path

from data_prep.humanevalpack import LANGUAGES, load_humanevalpack
from data_prep.pairs import EditPair, collect
from data_prep.pyfix import PyFixConfig
from data_prep.pyfix import generate as generate_pyfix
from data_prep.rows import RowError, read_rows
from data_prep.user_pairs import read_user_pairs
from decoding.commandline import UserError

_FILES = {f"{short}-{size}": (short, size) for short in ("py", "js") for size in (4, 16, 48)}
WORKLOADS = ("hevalfix-py", "hevalfix-js", *_FILES, "commits", "pyfix")

_BETWEEN = {"py": "\n\n\n", "js": "\n\n"}
_DEFINED = re.compile(r"^(?:def|const) (\w+)", re.MULTILINE)


def load_workload(name: str, data_dir: Path | None = None, limit: int | None = None, seed: int = 0) -> list[EditPair]:
    """Return the edits of one workload (a name of ``WORKLOADS``) in an order drawn by ``seed``, at most ``limit``.

    The same data and seed give the same edits, and fewer are the first of more. HumanEvalPack problems come in one
    order whatever the language and the size of the file. ``data_dir`` is by default the environment variable
    CAD_DATA_DIR.

    Raises:
        UserError: an unknown name, a data folder that is needed and not there, a damaged file.
    """
    if name not in WORKLOADS:
        raise UserError(f"there is no workload {name!r}: choose from {', '.join(WORKLOADS)}")
    if limit is not None and limit < 1:
        raise UserError(f"limit={limit}: must be at least 1")
    try:
        if name == "pyfix":
            return generate_pyfix(PyFixConfig() if limit is None else PyFixConfig(cases=limit), seed)
        folder = _data_dir(name, data_dir)
        if name == "commits":
            return _drawn(_commits(folder), limit, seed)
        short, size = _FILES.get(name, (name.removeprefix("hevalfix-"), None))
        functions = _functions(short, folder)
        drawn = _drawn(functions, limit, seed)
        if size is None:
            return [function.pair for function in drawn]
        return [_file(name, function, functions, seed) for function in drawn]
    except (RowError, ValueError) as error:
        raise UserError(str(error)) from None


def _data_dir(name: str, given: Path | None) -> Path:
    named = given or os.environ.get("CAD_DATA_DIR")
    if not named:
        raise UserError(
            f"workload {name} needs real data: set CAD_DATA_DIR to the folder that has humanevalpack/ and commits/ "
            "(pyfix needs none)"
        )
    if not Path(named).is_dir():
        raise UserError(f"{'data_dir' if given else 'CAD_DATA_DIR'}: there is no folder {named}")
    return Path(named)


def _drawn(items: list, limit: int | None, seed: int) -> list:
    return random.Random(f"workload:{seed}").sample(items, len(items))[:limit]


def _commits(folder: Path) -> list[EditPair]:
    paths = sorted((folder / "commits").glob("*.jsonl"))
    if not paths:
        raise UserError(
            f"workload commits: no file {folder / 'commits'}/*.jsonl; set CAD_DATA_DIR to a folder with some"
        )
    pairs, rejected = collect(read_user_pairs(paths))
    if rejected:
        first = rejected[0]
        raise UserError(f"{first['file']}, row {first['row']}: {first['reason']} ({first['detail']})")
    places = [(Path(pair.meta["file"]).name, pair.meta["row"]) for pair in pairs]
    return [
        replace(pair, id=f"commits/{file}:{row}", corpus="commits", meta={"file": file, "row": row})
        for pair, (file, row) in zip(pairs, places, strict=True)
    ]


# ---------------------------------------------------------------------------------------------------------------------
# HumanEvalPack, and files made of it


@dataclass(frozen=True)
class _Function:
    """A problem: the fix of its body, what stands above the body, and the names that it defines."""

    pair: EditPair
    declaration: str
    names: frozenset[str]

    def text(self, body: str) -> str:
        return (self.declaration + body).strip("\n")


def _functions(short: str, folder: Path) -> list[_Function]:
    path = folder / "humanevalpack" / f"{LANGUAGES[short]}.jsonl"
    if not path.is_file():
        raise UserError(f"there is no file {path}; set CAD_DATA_DIR to the folder that has humanevalpack/")
    functions = []
    for number, (pair, row) in enumerate(zip(load_humanevalpack(short, folder), read_rows(path), strict=True), start=1):
        declaration = row.get("declaration")
        if not isinstance(declaration, str):
            raise RowError(f"{path}, row {number}: no text in declaration")
        names = frozenset({row["entry_point"], *_DEFINED.findall(declaration)})
        functions.append(_Function(pair, declaration, names))
    return functions


def _file(name: str, fixed: _Function, functions: list[_Function], seed: int) -> EditPair:
    """Return the fix of one function within a file of others, of which none defines a name that another one has."""
    short, size = _FILES[name]
    rng = random.Random(f"{name}:{seed}:{fixed.pair.id}")
    members, taken = [fixed], fixed.names
    for function in rng.sample(functions, len(functions)):
        if len(members) < size and taken.isdisjoint(function.names):
            members.append(function)
            taken |= function.names
    if len(members) < size:
        raise UserError(f"workload {name}: only {len(members)} functions of different names; the data are incomplete")
    rng.shuffle(members)
    others = [member.text(member.pair.after) for member in members]
    place = members.index(fixed)

    def document(body: str) -> str:
        return _BETWEEN[short].join([*others[:place], fixed.text(body), *others[place + 1 :]]) + "\n"

    return replace(
        fixed.pair,
        id=f"{name}/{fixed.pair.id.rpartition('/')[2]}",
        corpus=name,
        before=document(fixed.pair.before),
        after=document(fixed.pair.after),
        meta={**fixed.pair.meta, "functions": [member.pair.meta["task_id"] for member in members]},
    )
