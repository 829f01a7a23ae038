"""Corpora by name: each as a stream of edits, and of rows that are none with the reason."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_prep.bugs import generate as generate_bugs
from data_prep.formatter_pairs import generate as generate_formatter
from data_prep.git_commits import Repository
from data_prep.hub import load_hub, matches
from data_prep.humanevalpack import LANGUAGES, load_humanevalpack
from data_prep.mine_git import mine, read_commits
from data_prep.pairs import EditPair, pair_fault
from data_prep.probeedit import stream as stream_probeedit
from data_prep.pyfix import generate_counted as generate_pyfix
from data_prep.pyfix import source_path
from data_prep.rows import RowError
from data_prep.user_pairs import read_user_pairs
from decoding.commandline import UserError

if TYPE_CHECKING:
    from data_prep.build import OracleConfig

CORPORA = (
    *(f"hevalfix-{short}" for short in LANGUAGES),
    *("probeedit", "pyfix", "bugs", "formatter", "jsonl", "git", "hub", "datatrove"),
)
Progress = Callable[[Iterable, str], Iterable]


def load_pairs(
    name: str, config: OracleConfig, progress: Progress, found: dict[str, dict[str, Any]]
) -> Iterator[EditPair | dict]:
    """Yield the edits of a corpus in its order, and a dictionary with file, row, reason and detail for what is none.

    Edits that no oracle is built for are among the latter: empty, no_op, lone_surrogate. ``found[name]`` is set to what
    a generator of bugs says of its source.

    Raises:
        UserError: a file that is missing or damaged, a generator that cannot make what was asked for.
    """
    try:
        for item in _load(name, config, progress, found):
            reason = pair_fault(item) if isinstance(item, EditPair) else None
            if reason:
                file, row = item.meta.get("file") or item.meta.get("dataset", item.id), item.meta.get("row")
                item = {"file": file, "row": row, "reason": reason, "detail": ""}
            yield item
    except (RowError, ValueError) as error:
        raise UserError(str(error)) from None
    except OSError as error:
        hint = "; without the hub, point data_dir= at JSON Lines files" if name.startswith("hevalfix") else ""
        said = next(iter(str(error).splitlines()), "")
        raise UserError(f"{name}: cannot load ({type(error).__name__}: {said}){hint}") from None


def source_stamps(config: OracleConfig) -> dict[str, list]:
    """Return, by corpus, what shows that something it is read from has changed since.

    Of repositories these are the commits that are mined, of files and folders the sizes and times. What a corpus is
    named on the hub has nothing of the kind here.

    Raises:
        UserError: no such repository or ref, no such package.
    """
    stamps: dict[str, list] = {}
    for name in config.corpora:
        if name == "git":
            repositories = [Repository(Path(path)) for path in config.git.repo]
            stamps[name] = [{ref: each.tip(ref) for ref in config.git.refs} for each in repositories]
        else:
            try:
                stamps[name] = [_stamp(Path(path).expanduser()) for path in _paths(name, config)]
            except ValueError as error:  # from the search for a package
                raise UserError(str(error)) from None
    return stamps


def _paths(name: str, config: OracleConfig) -> list[str | Path]:
    if name.startswith("hevalfix"):
        folder = config.data_dir or os.environ.get("CAD_DATA_DIR")
        return [Path(folder) / "humanevalpack" / f"{LANGUAGES[name.removeprefix('hevalfix-')]}.jsonl"] if folder else []
    if name == "hub":
        folder = Path(config.hub.path).expanduser() if config.hub.path else None
        files = [path for pattern in config.hub.data_files for path in matches(pattern, folder)]
        return [*filter(None, [folder]), *files]
    if name == "pyfix" and config.pyfix.source:
        return [source_path(config.pyfix.source)]
    named = {
        "jsonl": config.jsonl,
        "bugs": config.bugs.source,
        "formatter": config.formatter.source,
    }
    return [*named.get(name, ())]


def _stamp(path: Path) -> str:
    files = (Path(folder, name) for folder, _, names in os.walk(path) for name in names) if path.is_dir() else [path]
    seen = hashlib.sha256()
    for file in sorted(files):
        if file.is_file():
            stat = file.stat()
            seen.update(f"{os.fsencode(file)!r} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return seen.hexdigest()


def _load(name: str, config: OracleConfig, progress: Progress, found: dict[str, dict]) -> Iterator[EditPair | dict]:
    if name == "jsonl":
        yield from read_user_pairs([Path(path).expanduser() for path in config.jsonl], config.synthesize_instructions)
    elif name == "git":
        yield from read_commits(mine(config.git, progress))
    elif name == "hub":
        yield from load_hub(config.hub)
    elif name == "datatrove":
        raise UserError(f"{config.out} has no corpus datatrove: data_prep/datatrove_pipeline.py makes it")
    elif name == "probeedit":
        yield from stream_probeedit(config.probeedit, config.seed)
    elif name in ("pyfix", "bugs"):
        if name == "pyfix":
            pairs, report = generate_pyfix(config.pyfix, config.seed)
        else:
            pairs, report = generate_bugs(config.bugs, config.seed, progress)
        found[name] = report.as_dict()
        yield from pairs
    elif name == "formatter":
        pairs, faults = generate_formatter(config.formatter, config.seed)
        yield from faults
        yield from pairs
    else:
        short = name.removeprefix("hevalfix-")
        yield from load_humanevalpack(short, _data_dir(short, config), config.tests_in_prompt)


def _data_dir(short: str, config: OracleConfig) -> Path | None:
    """The folder to read HumanEvalPack from, None for the hub. A folder that was named must have the file."""
    named = config.data_dir or os.environ.get("CAD_DATA_DIR")
    if not named:
        return None
    if not Path(named).is_dir():
        raise UserError(f"{'data_dir' if config.data_dir else 'CAD_DATA_DIR'}: there is no folder {named}")
    file = Path(named) / "humanevalpack" / f"{LANGUAGES[short]}.jsonl"
    if config.data_dir and not file.is_file():
        raise UserError(f"data_dir: there is no file {file}")
    return Path(named)
