"""The formatter corpus: code as it is, and the same code as a formatter lays it out.

The files are the running Python's standard library, or those under ``source``. The formatter is an installed program of
a fixed list, run as ``PROGRAM -`` on one file at a time in its default style: no settings of the project are read, for
some formatters would execute them, and no file is written. Two text clean-ups need no program at all.

    command              what it does                                        files
    ruff, black          Python, whole layout                                *.py *.pyi
    ruff-imports         Python, sorted imports (whole files only)           *.py *.pyi
    gofmt, rustfmt       Go, Rust                                            *.go, *.rs
    clang-format         C and C++ (LLVM style)                              *.c *.h *.cc *.cpp ...
    prettier             JavaScript, TypeScript, CSS, JSON ...               *.js *.ts *.css *.json ...
    trailing-whitespace  none at line ends, one newline at the end           every file of a language above
    tabs                 four spaces for each tab of the indentation         every file of a language above

A document is a whole file, or one Python function or method as its file has it, with its indentation.
"""

from __future__ import annotations

import ast
import hashlib
import os
import random
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from data_prep.pairs import EditPair
from data_prep.pyfix import SKIPPED_FOLDERS

Command = Literal[
    "ruff", "ruff-imports", "black", "gofmt", "rustfmt", "clang-format", "prettier", "trailing-whitespace", "tabs"
]

_PYTHON = ("py", "pyi")
_C = ("c", "cc", "cpp", "cxx", "h", "hh", "hpp", "hxx")
_WEB = ("cjs", "css", "js", "json", "jsx", "less", "md", "mjs", "scss", "ts", "tsx", "vue", "yaml", "yml")
_ALL = (*_PYTHON, *_C, "go", "rs", *_WEB)
_RUFF = ("--isolated", "--no-cache", "--stdin-filename=x.{ext}", "-")

# command: (program and arguments, extensions of its files)
_PROGRAMS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "ruff": (("ruff", "format", *_RUFF), _PYTHON),
    "ruff-imports": (("ruff", "check", "--select=I", "--fix", *_RUFF), _PYTHON),
    "black": (("black", "--quiet", "--stdin-filename=x.{ext}", "-"), _PYTHON),
    "gofmt": (("gofmt",), ("go",)),
    "rustfmt": (("rustfmt", "--emit=stdout", "--edition=2021", "--quiet"), ("rs",)),
    "clang-format": (("clang-format", "--style=LLVM", "--assume-filename=x.{ext}"), _C),
    "prettier": (("prettier", "--no-config", "--no-editorconfig", "--stdin-filepath=x.{ext}"), _WEB),
}


def _tidy(text: str) -> str:
    lines = [line.removesuffix("\r").rstrip(" \t") + "\r" * line.endswith("\r") for line in text.split("\n")]
    tidy = "\n".join(lines)
    body = tidy.rstrip("\r\n")
    newline = tidy.find("\n", len(body))  # that of the last line with text; where it has none, that of the line before
    newline = tidy.rfind("\n") if newline < 0 else newline
    return body + ("\r\n" if newline > 0 and tidy[newline - 1] == "\r" else "\n")


def _spaces_for_tabs(text: str) -> str:
    return re.sub(r"^\t+", lambda tabs: "    " * len(tabs.group()), text, flags=re.MULTILINE)


_TEXT: dict[str, Callable[[str], str]] = {"trailing-whitespace": _tidy, "tabs": _spaces_for_tabs}
_SAID = {
    "ruff-imports": ("Sort the imports of this {what}.", "Put the imports of this {what} in the order of isort."),
    "trailing-whitespace": (
        "Remove trailing whitespace and end this {what} with one newline.",
        "Clean up this {what}: no whitespace at line ends, one newline at the end.",
    ),
    "tabs": (
        "Indent this {what} with 4 spaces for each tab.",
        "Replace every tab of the indentation by 4 spaces in this {what}.",
    ),
}
_FORMAT_SAID = (
    "Format this {what} with {tool}.",
    "Reformat this {what} the way {tool} does.",
    "Run {tool} on this {what}.",
    "Lay this {what} out in the default style of {tool}.",
)
_TIMEOUT = 30  # seconds that a formatter may take for one file
_POOL = 10  # documents gathered for each one drawn, so that those drawn are of many files


@dataclass
class FormatterConfig:
    """What ``generate`` makes; every field is a ``key=value`` of the command line."""

    source: list[str] = field(default_factory=list)  # files or folders; none: the running Python's standard library
    command: Command = "ruff"  # the formatter, which must be installed, or a text clean-up
    unit: Literal["function", "file"] = "function"  # what a document is; function is for Python formatters
    cases: int | None = 400  # number of pairs; null for all there are
    min_lines: int = 3  # shortest document taken, in lines
    max_lines: int = 60  # longest document taken, in lines


def generate(config: FormatterConfig, seed: int) -> tuple[list[EditPair], list[dict]]:
    """Return pairs (text, formatted text), and what was refused as ``{"file", "row", "reason", "detail"}``.

    ``row`` is the document's first line in its file. Reasons, of files: unreadable, not_utf8, binary, length (of a
    whole file), not_formatted (a syntax error, say), timeout, not_parsed (by this Python), line_ends (the formatter
    changes them); of documents: no_op (already as the formatter leaves it), duplicate. Links, hidden folders and
    functions outside the limits are passed by. Files are visited in an order that the seed chooses, until there are
    enough documents to draw from; what was not visited or not drawn is in neither list. The pairs of a file share a
    group, and so do files of one text. ``meta`` has file, row, function, and the formatter with its version.

    Raises ValueError for a bad setting, a program that is not installed, no file, and more cases than documents.
    """
    _check(config)
    tool = _Tool.of(config.command)
    files = _files(config)
    if not files:
        ends = " or ".join(f".{extension}" for extension in _extensions(config))
        raise ValueError(f"formatter: no {ends} file in {', '.join(config.source)}")
    rng = random.Random(f"formatter:{seed}")
    rng.shuffle(files)
    faults: list[dict] = []
    documents: list[tuple[_Document, str, str]] = []
    seen: set[str] = set()
    for name, read in _read_all(files, config, tool):
        faults += [
            {"file": name, "row": row, "reason": reason, "detail": detail} for row, reason, detail in read.faults
        ]
        for document in read.documents:
            reason = "no_op" if document.before == document.after else "duplicate" if document.before in seen else ""
            if reason:
                faults.append({"file": name, "row": document.row, "reason": reason, "detail": document.function or ""})
            else:
                seen.add(document.before)
                documents.append((document, name, read.group))
        if config.cases is not None and len(documents) >= _POOL * config.cases:
            break
    wanted = len(documents) if config.cases is None else config.cases
    if len(documents) < max(wanted, 1):
        reasons = ", ".join(f"{n} {reason}" for reason, n in sorted(Counter(x["reason"] for x in faults).items()))
        asked = "" if config.cases is None else f"cases={config.cases}, but "
        count = f"only {len(documents)}" if documents else "no"
        fewer = "lower cases, take them all with formatter.cases=null, " if documents else ""
        raise ValueError(
            f"formatter: {asked}{config.command} changes {count} documents "
            f"(unit={config.unit}) of {config.min_lines} to {config.max_lines} lines in {len(files)} files"
            f"{f' ({reasons})' if reasons else ''}: {fewer}widen min_lines and max_lines, or name more in source"
        )
    rng.shuffle(documents)
    pairs = []
    for document, name, group in documents[:wanted]:
        phrasing = rng.choice(_SAID.get(config.command, _FORMAT_SAID))
        pairs.append(
            EditPair(
                id=f"formatter/{len(pairs):04d}",
                corpus="formatter",
                instruction=phrasing.format(what=config.unit, tool="ruff format" if tool.name == "ruff" else tool.name),
                before=document.before,
                after=document.after,
                group=group,
                meta={"file": name, "row": document.row, "function": document.function, "formatter": tool.version},
            )
        )
    return pairs, faults


def _check(config: FormatterConfig) -> None:
    for name, least in (("cases", 1), ("min_lines", 1), ("max_lines", config.min_lines)):
        value = getattr(config, name)
        if value is not None and value < least:
            floor = f"min_lines={least}" if name == "max_lines" else least
            raise ValueError(f"formatter: {name}={value} is not allowed: a whole number from {floor} up")
    of_functions = config.command in _TEXT or (
        config.command != "ruff-imports" and "py" in _PROGRAMS[config.command][1]
    )
    if config.unit == "function" and not of_functions:
        raise ValueError(f"formatter: command={config.command} has no functions to take: set unit=file")
    if not config.source and "py" not in _extensions(config):
        raise ValueError(f"formatter: the standard library has no files for command={config.command}: name a source")


def _extensions(config: FormatterConfig) -> tuple[str, ...]:
    if config.unit == "function":
        return _PYTHON
    return _ALL if config.command in _TEXT else _PROGRAMS[config.command][1]


# --- files -----------------------------------------------------------------------------------------------------------


def _files(config: FormatterConfig) -> list[tuple[str, Path]]:
    """The files to read, in order, with the name to show: relative to what was named."""
    ends = tuple(f".{extension}" for extension in _extensions(config))
    if not config.source:
        return list(_walk(Path(sysconfig.get_paths()["stdlib"]), "", SKIPPED_FOLDERS, ends))
    files: list[tuple[str, Path]] = []
    for source in config.source:
        path = Path(source).expanduser()
        if path.is_dir():
            files += _walk(path, f"{path.resolve().name}/", {"node_modules", "__pycache__", "site-packages"}, ends)
        elif path.is_file() and path.name.endswith(ends):
            files.append((_shown(path.name), path))
        elif path.is_file():
            raise ValueError(f"formatter: source {source} is no file for command={config.command} ({' '.join(ends)})")
        else:
            raise ValueError(f"formatter: there is no source {source}")
    return files


def _walk(root: Path, label: str, skipped: set[str], ends: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = sorted(name for name in subfolders if name not in skipped and not name.startswith("."))
        for name in sorted(names):
            path = Path(folder, name)
            if name.endswith(ends) and path.is_file() and not path.is_symlink():
                yield label + _shown(path.relative_to(root).as_posix()), path


def _shown(name: str) -> str:
    """A file name need not be Unicode."""
    return name.encode("utf-8", "backslashreplace").decode()


# --- one file --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Document:
    row: int
    function: str | None
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class _Read:
    """What one file gave; ``faults`` are (row, reason, detail)."""

    group: str = ""
    documents: list[_Document] = field(default_factory=list)
    faults: list[tuple[int, str, str]] = field(default_factory=list)


class _Refused(Exception):
    """A file that gives no documents: reason and detail."""


@dataclass(frozen=True, slots=True)
class _Tool:
    """A formatter: its name, its version as it says it, and how to run it (no arguments: a text clean-up of ours)."""

    name: str
    version: str
    arguments: tuple[str, ...] = ()

    @classmethod
    def of(cls, command: Command) -> _Tool:
        if command in _TEXT:
            return cls(command, command)
        name, *arguments = _PROGRAMS[command][0]
        beside_python = str(Path(sys.executable).parent)  # of an environment that is used without being activated
        program = shutil.which(name, path=os.pathsep.join((beside_python, os.environ.get("PATH", os.defpath))))
        if program is None:
            raise ValueError(f"formatter: command={command} needs {name}, which is not on PATH: install it")
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=_TIMEOUT)
        version = said.stdout.strip().split("\n")[0] if said.returncode == 0 else ""
        return cls(name, version or name, (program, *arguments))

    def format(self, text: str, extension: str, folder: str) -> str:
        """Return the text formatted; ``folder`` is an empty one to run in, where no settings are found."""
        if not self.arguments:
            return _TEXT[self.name](text)
        arguments = [argument.format(ext=extension) for argument in self.arguments]
        try:
            done = subprocess.run(arguments, input=text.encode(), capture_output=True, cwd=folder, timeout=_TIMEOUT)
        except subprocess.TimeoutExpired:
            raise _Refused("timeout", f"more than {_TIMEOUT} seconds") from None
        if done.returncode:
            message = done.stderr.decode("utf-8", "replace").strip().split("\n")[0]
            raise _Refused("not_formatted", message[:200] or f"exit status {done.returncode}")
        return done.stdout.decode()


def _read_all(files: list[tuple[str, Path]], config: FormatterConfig, tool: _Tool) -> Iterator[tuple[str, _Read]]:
    """Read and format the files a batch at a time, in order; the formatters run side by side."""
    workers = min(8, os.cpu_count() or 1)
    with (
        tempfile.TemporaryDirectory() as folder,
        warnings.catch_warnings(action="ignore"),  # an invalid escape in somebody else's string is not this run's news
        ThreadPoolExecutor(workers) as pool,
    ):
        for start in range(0, len(files), 8 * workers):
            batch = files[start : start + 8 * workers]
            results = pool.map(lambda file: _read(file[1], config, tool, folder), batch)
            yield from zip((name for name, _ in batch), results, strict=True)


def _read(path: Path, config: FormatterConfig, tool: _Tool, folder: str) -> _Read:
    try:
        text = _text(path)
        lines = _lines(text)
        in_range = range(config.min_lines, config.max_lines + 1)
        if config.unit == "file" and len(lines) not in in_range:
            raise _Refused("length", f"{len(lines)} lines")
        formatted = tool.format(text, path.suffix[1:], folder)
        if "\r\n" in text and "\r\n" not in formatted:
            raise _Refused("line_ends", "the formatter writes LF for CRLF")
        group = "formatter/" + hashlib.sha256(text.encode()).hexdigest()[:16]
        if config.unit == "file":
            return _Read(group, [_Document(1, None, text, formatted)])
        documents = []
        old_functions, new_functions = _functions(text), _functions(formatted)
        if [name for name, _, _ in old_functions] != [name for name, _, _ in new_functions]:
            raise _Refused("not_parsed", "the formatted file has other functions")
        new_lines = _lines(formatted)
        for (name, first, last), (_, start, stop) in zip(old_functions, new_functions, strict=True):
            if last - first + 1 in in_range:
                before, after = "".join(lines[first - 1 : last]), "".join(new_lines[start - 1 : stop])
                documents.append(_Document(first, name, before, after))
        return _Read(group, documents)
    except _Refused as refused:
        reason, detail = refused.args
        return _Read(faults=[(1, reason, detail)])


def _text(path: Path) -> str:
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise _Refused("unreadable", error.strerror or "") from None
    except UnicodeDecodeError:
        raise _Refused("not_utf8", "") from None
    if "\0" in text:
        raise _Refused("binary", "it has a null character")
    return text


def _lines(text: str) -> list[str]:
    """The lines with the newlines that end them."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# CPython 3.11 keeps one recursion count for the trees of all threads: two at once can end in a SystemError (gh-106905).
_PARSING = threading.Lock()


def _functions(text: str) -> list[tuple[str, int, int]]:
    """(qualified name, first line, last line) of functions and methods in order, not of functions inside functions."""
    if "\r" in text.replace("\r\n", ""):
        raise _Refused("not_parsed", "a carriage return alone ends a line for Python")
    try:
        with _PARSING:
            tree = ast.parse(text.removeprefix("\ufeff"))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _Refused("not_parsed", str(error)[:200]) from None

    def walk(node: ast.AST, prefix: str) -> Iterator[tuple[str, int, int]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, _FUNCTIONS):
                first = min([child.lineno, *(decorator.lineno for decorator in child.decorator_list)])
                yield prefix + child.name, first, child.end_lineno
            elif isinstance(child, ast.ClassDef):
                yield from walk(child, f"{prefix}{child.name}.")
            elif isinstance(child, (ast.stmt, ast.excepthandler, ast.match_case)):
                yield from walk(child, prefix)

    return list(walk(tree, ""))
