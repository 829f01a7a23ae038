"""The pyfix corpus: bug fixes made offline, one injected bug per function of Python code.

    python data_prep/build_oracles.py corpora=[pyfix]                      # this Python's standard library
    python data_prep/build_oracles.py corpora=[pyfix] pyfix.source=click pyfix.cases=null  # all of a package

A source is an installed package, a folder, or a file.

The fixed document is a function as its file has it, dedented to column 0; the broken one differs from it by one bug in
one run of lines. Nothing is imported, executed or downloaded, so a bug is a bug by construction and not by a failing
test: a few changes may leave the behaviour as it was, and a few can only be guessed from the text. The text of the
standard library is the Python Software Foundation's, under the PSF licence. Other languages: data_prep/bugs.py.

Bug kinds, each a function below that lists the places where its bug can be put:
    operator     ``+`` for ``-``, ``*`` for ``/``, ``and`` for ``or`` ...
    comparison   ``<`` for ``<=``, ``==`` for ``!=``, ``in`` for ``not in``, ``is`` for ``is not`` ...
    off_by_one   a decimal integer, a bound of ``range`` or a bound of a slice, one too high or too low
    variable     a local name in place of another one that is bound on an earlier line
    dropped      a simple statement that fills its line is gone
    swapped      two neighbouring positional arguments trade places
    negated      ``if x`` for ``if not x`` and the reverse
    constant     ``True`` for ``False``, ``None`` for an empty string ...
    method       ``startswith`` for ``endswith``, ``min`` for ``max`` ...

Left out: functions inside functions (their text is part of the outer one) and test folders; and, counted by reason
(``generate_counted``), generated files, files that Python or UTF-8 refuses, and functions out of the limits, whose text
dedenting would alter, that are there twice, or that no bug fits.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import platform
import random
import re
import sysconfig
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.machinery import PathFinder
from itertools import pairwise
from pathlib import Path

from data_prep.bugs import DESCRIPTIONS, BugReport, one_change
from data_prep.pairs import EditPair


@dataclass
class PyFixConfig:
    """What ``generate`` makes; every field is a ``key=value`` of the command line."""

    cases: int | None = 400  # functions to use (one bug each); null for all there are
    min_lines: int = 4  # shortest function body taken, in lines (docstring, comments and blank lines count)
    max_lines: int = 40  # longest function body taken, in lines
    max_docstring_lines: int = 3  # functions with a longer docstring are left out; 0 leaves out every docstring
    describe: bool = False  # say in the instruction what kind of bug it is
    source: str | None = None  # a folder, a .py file, or an installed package; else this Python's standard library


# ---------------------------------------------------------------------------------------------------------------------
# The functions of the source

SKIPPED_FOLDERS = {
    "test", "tests", "idlelib", "lib2to3", "turtledemo", "__pycache__", "site-packages", "dist-packages"
}  # fmt: skip
_GENERATED = re.compile(
    r"auto-?generated|automatically generated|generated from|(file|module) (is|was) generated", re.IGNORECASE
)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A function of the source as a document, with where it came from."""

    text: str
    module: str
    qualname: str


def source_path(source: str) -> Path:
    """The folder or file of a source that was named. A package is found where it lies, and not imported."""
    path = Path(source).expanduser()
    if path.exists():
        return path
    package, *inner = source.split(".")
    # Of the standard library, some modules are also frozen into the interpreter, without a file.
    spec = (PathFinder.find_spec(package) or importlib.util.find_spec(package)) if package.isidentifier() else None
    if spec is not None:
        folders = spec.submodule_search_locations or []
        for place in [Path(folder, *inner) for folder in folders] or [Path(spec.origin or "")]:
            if place.is_dir() or place.suffix == ".py":
                return place
            if place.with_suffix(".py").is_file():
                return place.with_suffix(".py")
    raise ValueError(f"pyfix: source={source}: there is no such folder or file, and this Python finds no such package")


def _paths(root: Path, is_library: bool) -> Iterator[Path]:
    for folder, subfolders, files in os.walk(root):
        # In the library, a folder that is no identifier (lib-dynload, config-3.11-x86_64-linux-gnu) is no package.
        subfolders[:] = sorted(
            name
            for name in subfolders
            if name not in SKIPPED_FOLDERS and (name.isidentifier() if is_library else not name.startswith("."))
        )
        yield from (Path(folder, name) for name in sorted(files) if name.endswith(".py"))


def _modules(source: str | None, files: Counter) -> Iterator[tuple[str, str]]:
    """Yield (module name, text) for every module of a source, in sorted order; count what is no text or generated."""
    root = Path(sysconfig.get_paths()["stdlib"]) if source is None else source_path(source)
    prefix = () if source is None else (root.resolve().stem,)
    for path in [root] if root.is_file() else _paths(root, source is None):
        files["seen"] += 1
        try:
            # Universal newlines, as Python's own tokenizer reads it: a Windows install gives the same documents.
            text = path.read_text(encoding="utf-8-sig")
        except (UnicodeDecodeError, OSError) as error:
            files["not_utf8" if isinstance(error, UnicodeDecodeError) else "unreadable"] += 1
            continue
        if _GENERATED.search(text[:1000]):
            files["generated"] += 1
            continue
        parts = prefix if root.is_file() else (*prefix, *path.relative_to(root).with_suffix("").parts)
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), text


def _parse(source: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an invalid escape in somebody else's string is not this run's news
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield (qualified name, node) of functions and methods, not of functions inside functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _FUNCTIONS):
            yield prefix + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")
        elif isinstance(child, (ast.stmt, ast.excepthandler, ast.match_case)):
            yield from _functions(child, prefix)


def _has_docstring(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return ast.get_docstring(node, clean=False) is not None


def _constants(node: ast.AST) -> list:
    return [child.value for child in ast.walk(node) if isinstance(child, ast.Constant)]


def _document(node: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> str | None:
    """The function's lines at column 0, ending with one newline; None where dedenting would alter the function."""
    first = min([node.lineno] + [decorator.lineno for decorator in node.decorator_list])
    body = lines[first - 1 : node.end_lineno]
    indent = body[0][: len(body[0]) - len(body[0].lstrip())]
    if not indent:
        return "\n".join(body) + "\n"
    if _has_docstring(node) and node.body[0].end_lineno > node.body[0].lineno:
        return None
    if any(line.strip() and not line.startswith(indent) for line in body):
        return None
    text = "\n".join(line.removeprefix(indent) if line.strip() else line[len(indent) :] for line in body) + "\n"
    # A string over several lines loses its indentation with the code. Strings that only stand on several lines
    # ("a" "b" in brackets) lose nothing, so the values decide; few functions get here, and only they are parsed again.
    if any(
        isinstance(child, (ast.Constant, ast.JoinedStr)) and child.end_lineno > child.lineno for child in ast.walk(node)
    ):
        tree = _parse(text)
        if tree is None or _constants(tree) != _constants(node):
            return None
    return text


def _candidates(config: PyFixConfig, report: BugReport) -> list[_Candidate]:
    """Every function within the limits, in the order of modules and lines; one of each text."""
    found: dict[str, _Candidate] = {}
    for module, source in _modules(config.source, report.files):
        tree = _parse(source)
        report.files["syntax_error" if tree is None else "read"] += 1
        lines = source.split("\n")
        for qualname, node in _functions(tree) if tree else ():
            report.functions["seen"] += 1
            fault = _fault(node, config)
            text = None if fault else _document(node, lines)
            if text is None or text in found:
                report.functions[fault or ("dedent" if text is None else "duplicate")] += 1
            else:
                found[text] = _Candidate(text, module, qualname)
    return list(found.values())


def _fault(node: ast.FunctionDef | ast.AsyncFunctionDef, config: PyFixConfig) -> str:
    length = node.end_lineno - node.body[0].lineno + 1
    if not config.min_lines <= length <= config.max_lines:
        return "too_short" if length < config.min_lines else "too_long"
    docstring_lines = node.body[0].end_lineno - node.body[0].lineno + 1 if _has_docstring(node) else 0
    return "long_docstring" if docstring_lines > config.max_docstring_lines else ""


# ---------------------------------------------------------------------------------------------------------------------
# A function with positions, and where each kind of bug can be put

Edit = tuple[int, int, str]  # (start, end, replacement), positions in characters of the document
_NESTED_SCOPES = (*_FUNCTIONS, ast.Lambda, ast.ClassDef, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class _Source:
    """A document that is one function: its text, its tree, and the way from tree positions to text positions."""

    def __init__(self, text: str, node: ast.FunctionDef | ast.AsyncFunctionDef):
        self.text = text
        self.node = node
        self.body = node.body[1:] if _has_docstring(node) else node.body
        self.lines = text.split("\n")
        self._starts = [0]
        for line in self.lines:
            self._starts.append(self._starts[-1] + len(line) + 1)
        self.nodes = [pair for statement in self.body for pair in self._walk(statement, node)]

    def _walk(self, node: ast.AST, parent: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        # f-strings are left alone: before Python 3.12 the positions inside them are wrong.
        if isinstance(node, ast.JoinedStr):
            return
        yield node, parent
        for name, value in ast.iter_fields(node):
            if name not in ("annotation", "returns"):
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        yield from self._walk(child, node)

    def own_scope(self) -> Iterator[tuple[ast.AST, ast.AST]]:
        """The (node, parent) pairs that belong to the function's own scope."""
        nested: set[ast.AST] = set()
        for node, parent in self.nodes:
            if parent in nested or isinstance(node, _NESTED_SCOPES):
                nested.add(node)
            else:
                yield node, parent

    def _offset(self, lineno: int, column: int) -> int:
        line = self.lines[lineno - 1]
        if not line.isascii():  # the tree counts columns in UTF-8 bytes
            column = len(line.encode()[:column].decode())
        return self._starts[lineno - 1] + column

    def start(self, node: ast.AST) -> int:
        return self._offset(node.lineno, node.col_offset)

    def end(self, node: ast.AST) -> int:
        return self._offset(node.end_lineno, node.end_col_offset)

    def line_span(self, lineno: int) -> tuple[int, int]:
        """Positions of a line, its newline included."""
        return self._starts[lineno - 1], self._starts[lineno]

    def segment(self, node: ast.AST) -> str:
        return self.text[self.start(node) : self.end(node)]

    def between(self, left: ast.AST, right: ast.AST, pattern: str) -> tuple[int, int] | None:
        """Where ``pattern`` stands between two nodes, comments aside; None unless it does so exactly once."""
        start = self.end(left)
        gap = re.sub(r"#[^\n]*", lambda comment: " " * len(comment[0]), self.text[start : self.start(right)])
        found = list(re.finditer(pattern, gap))
        return (start + found[0].start(), start + found[0].end()) if len(found) == 1 else None

    def apply(self, edits: list[Edit]) -> str:
        text = self.text
        for start, end, replacement in sorted(edits, reverse=True):
            text = text[:start] + replacement + text[end:]
        return text


_OPERATORS = {
    ast.Add: ("+", ("-",)),
    ast.Sub: ("-", ("+",)),
    ast.Mult: ("*", ("/", "+")),
    ast.Div: ("/", ("*", "//")),
    ast.FloorDiv: ("//", ("/", "*")),
    ast.Mod: ("%", ("//",)),
    ast.Pow: ("**", ("*",)),
    ast.LShift: ("<<", (">>",)),
    ast.RShift: (">>", ("<<",)),
    ast.BitAnd: ("&", ("|",)),
    ast.BitOr: ("|", ("&",)),
    ast.BitXor: ("^", ("|",)),
}


def _sequence(node: ast.AST) -> bool:
    """Whether an expression is plainly text or a list: nobody divides or subtracts those by mistake."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (str, bytes))
    if isinstance(node, ast.BinOp):
        return _sequence(node.left) or _sequence(node.right)
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute):
            return node.func.attr in ("join", "format")
        return isinstance(node.func, ast.Name) and node.func.id in ("str", "repr", "bytes", "list", "tuple")
    return isinstance(node, (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp))


def _operator(source: _Source) -> Iterator[list[Edit]]:
    for node, _ in source.nodes:
        if isinstance(node, ast.BoolOp):
            old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            for left, right in pairwise(node.values):
                if where := source.between(left, right, old):
                    yield [(*where, new)]
        elif isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in _OPERATORS:
            old, choices = _OPERATORS[type(node.op)]
            left, right = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.target, node.value)
            if not _sequence(left) and not _sequence(right) and (where := source.between(left, right, re.escape(old))):
                for new in choices:
                    yield [(*where, new)]


_COMPARISONS = {
    ast.Lt: ("<", ("<=", ">")),
    ast.LtE: ("<=", ("<", ">=")),
    ast.Gt: (">", (">=", "<")),
    ast.GtE: (">=", (">", "<=")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.In: (r"in", ("not in",)),
    ast.NotIn: (r"not\s+in", ("in",)),
    ast.Is: (r"is", ("is not",)),
    ast.IsNot: (r"is\s+not", ("is",)),
}


def _comparison(source: _Source) -> Iterator[list[Edit]]:
    for node, _ in source.nodes:
        if isinstance(node, ast.Compare):
            for (left, right), operator in zip(pairwise([node.left, *node.comparators]), node.ops, strict=True):
                old, choices = _COMPARISONS[type(operator)]
                if where := source.between(left, right, old):
                    for new in choices:
                        yield [(*where, new)]


def _off_by_one(source: _Source) -> Iterator[list[Edit]]:
    for node, parent in source.nodes:
        if isinstance(node, ast.Constant) and type(node.value) is int and source.segment(node) == str(node.value):
            # Never below zero, and never the -0 that is 0 again: the sign is the parent's.
            lowest = 1 if isinstance(parent, ast.UnaryOp) else 0
            for value in (node.value - 1, node.value + 1):
                if value >= lowest:
                    yield [(source.start(node), source.end(node), str(value))]
        elif isinstance(node, ast.Slice):
            yield from _bounds(source, [node.lower, node.upper], "+1", "-1")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range":
            yield from _bounds(source, node.args[:2], " + 1", " - 1")


def _bounds(source: _Source, bounds: list[ast.expr | None], *shifts: str) -> Iterator[list[Edit]]:
    for bound in bounds:
        if isinstance(bound, ast.BinOp) and isinstance(bound.op, (ast.Add, ast.Sub)):
            if isinstance(bound.right, ast.Constant) and bound.right.value == 1:
                yield [(source.end(bound.left), source.end(bound), "")]
        elif isinstance(bound, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
            for shift in shifts:
                yield [(source.end(bound), source.end(bound), shift)]


def _variable(source: _Source) -> Iterator[list[Edit]]:
    arguments = source.node.args
    bound = {argument.arg: 0 for argument in arguments.posonlyargs + arguments.args + arguments.kwonlyargs}
    loads: list[ast.Name] = []
    excluded = {"self", "cls", "_"}
    aliases: set[frozenset[str]] = set()  # after y = x, one in place of the other changes nothing
    for node, parent in source.own_scope():
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            excluded.update(node.names)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            aliases.update(frozenset((t.id, node.value.id)) for t in node.targets if isinstance(t, ast.Name))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Del):
            excluded.add(node.id)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound[node.id] = min(bound.get(node.id, node.lineno), node.lineno)
        elif isinstance(node, ast.Name) and not (isinstance(parent, ast.Call) and parent.func is node):
            loads.append(node)
    names = {name: line for name, line in bound.items() if name not in excluded}
    for node in loads:
        if node.id in names:
            for name, line in names.items():
                if name != node.id and line < node.lineno and frozenset((name, node.id)) not in aliases:
                    yield [(source.start(node), source.end(node), name)]


_DROPPABLE = (ast.Assign, ast.AugAssign, ast.Expr, ast.Return, ast.Raise, ast.Delete, ast.Break, ast.Continue)


def _dropped(source: _Source) -> Iterator[list[Edit]]:
    blocks = [source.body]
    for node, _ in source.nodes:
        fields = (getattr(node, name, None) for name in ("body", "orelse", "finalbody"))
        blocks += [block for block in fields if isinstance(block, list)]
    for block in blocks:
        # A docstring or an ellipsis does nothing: it neither counts as a statement of the block nor is one to miss.
        statements = [s for s in block if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
        for statement in statements if len(statements) > 1 else ():
            if not isinstance(statement, _DROPPABLE) or statement.end_lineno > statement.lineno:
                continue
            if statement is source.body[-1] and isinstance(statement, ast.Return) and _is_none(statement.value):
                continue  # the function would return None all the same
            start, end = source.line_span(statement.lineno)
            rest = source.text[start : source.start(statement)] + source.text[source.end(statement) : end]
            if not rest.split("#")[0].strip():  # alone on its line: no semicolon, no "else:" before it
                yield [(start, end, "")]


def _is_none(value: ast.expr | None) -> bool:
    return value is None or (isinstance(value, ast.Constant) and value.value is None)


# Calls whose first two arguments nobody takes for each other, or whose order does not count.
_UNSWAPPED = {"isinstance", "issubclass", "hasattr", "getattr", "setattr", "delattr", "super", "min", "max"}


def _but_for_strings(value: object) -> object:
    """A syntax tree as nested lists in which all strings are equal."""
    if isinstance(value, ast.JoinedStr) or (isinstance(value, ast.Constant) and isinstance(value.value, (str, bytes))):
        return "a string"
    if isinstance(value, ast.AST):
        return [type(value), *(_but_for_strings(child) for _, child in ast.iter_fields(value))]
    return [_but_for_strings(child) for child in value] if isinstance(value, list) else value


def _swapped(source: _Source) -> Iterator[list[Edit]]:
    for node, _ in source.nodes:
        if isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id in _UNSWAPPED):
            for left, right in pairwise(node.args):
                if isinstance(left, ast.Starred) or isinstance(right, ast.Starred):
                    continue
                # replace("-", "_"): nothing but the text of the strings could tell which comes first.
                if _but_for_strings(left) != _but_for_strings(right):
                    first, second = source.segment(left), source.segment(right)
                    yield [
                        (source.start(left), source.end(left), second),
                        (source.start(right), source.end(right), first),
                    ]


def _negated(source: _Source) -> Iterator[list[Edit]]:
    for node, _ in source.nodes:
        if isinstance(node, (ast.If, ast.While, ast.IfExp, ast.Assert)):
            tests = [node.test]
        elif isinstance(node, ast.comprehension):
            tests = node.ifs
        else:
            continue
        for test in tests:
            start, end = source.start(test), source.end(test)
            if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
                yield [(start, re.compile(r"not[ \t]*").match(source.text, start).end(), "")]
            elif isinstance(test, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
                yield [(start, start, "not ")]
            elif isinstance(test, ast.BoolOp):
                yield [(start, start, "not ("), (end, end, ")")]
            # A comparison is left to its own kind: "not a == b" would give the bug away by its style.


def _constant(source: _Source) -> Iterator[list[Edit]]:
    for node, parent in source.nodes:
        if not isinstance(node, ast.Constant) or isinstance(parent, ast.Expr):
            continue
        where = source.start(node), source.end(node)
        if node.value is True or node.value is False:
            yield [(*where, str(not node.value))]
        elif isinstance(parent, (ast.Return, ast.Assign, ast.IfExp, ast.BoolOp, ast.keyword)):
            if node.value is None:
                yield [(*where, "False")]
            elif source.segment(node) in ("''", '""', "b''", 'b""'):
                yield [(*where, "None")]


_METHOD_PAIRS = """
    startswith/endswith lstrip/rstrip strip/rstrip find/rfind index/rindex partition/rpartition lower/upper keys/values
    items/keys append/extend add/discard pop/popleft appendleft/append acquire/release encode/decode readline/read
    readlines/readline sort/reverse setdefault/get search/match isdigit/isalpha isfile/isdir exists/isdir
    dirname/basename floor/ceil union/intersection write/writelines insert/append group/groups
"""
_FUNCTION_PAIRS = "min/max any/all ord/chr"


def _both_ways(pairs: str) -> dict[str, list[str]]:
    table: dict[str, list[str]] = {}
    for pair in pairs.split():
        left, right = pair.split("/")
        table.setdefault(left, []).append(right)
        table.setdefault(right, []).append(left)
    return table


_METHODS, _BUILTINS = _both_ways(_METHOD_PAIRS), _both_ways(_FUNCTION_PAIRS)


def _method(source: _Source) -> Iterator[list[Edit]]:
    for node, _ in source.nodes:
        if isinstance(node, ast.Call):
            end = source.end(node.func)
            if isinstance(node.func, ast.Attribute):
                old, choices = node.func.attr, _METHODS.get(node.func.attr, [])
            elif isinstance(node.func, ast.Name):
                old, choices = node.func.id, _BUILTINS.get(node.func.id, [])
            else:
                continue
            for new in choices:
                yield [(end - len(old), end, new)]


_PLACES: dict[str, Callable[[_Source], Iterator[list[Edit]]]] = {
    "operator": _operator,
    "comparison": _comparison,
    "off_by_one": _off_by_one,
    "variable": _variable,
    "dropped": _dropped,
    "swapped": _swapped,
    "negated": _negated,
    "constant": _constant,
    "method": _method,
}
# kind -> (where it can be put, what the instruction says of it)
KINDS = {kind: (places, DESCRIPTIONS[kind]) for kind, places in _PLACES.items()}


# ---------------------------------------------------------------------------------------------------------------------
# Pairs


def _broken(
    source: _Source, kind: str, original: str, taken: set[str], rng: random.Random, bugs: Counter
) -> str | None:
    """The document with one bug of this kind, a text not in ``taken``; None where there is no place for one."""
    sites = list(KINDS[kind][0](source))
    rng.shuffle(sites)
    for edits in sites:
        before = source.apply(edits)
        fault = _bug_fault(source, before, original, taken)
        bugs["tried"] += 1
        if not fault:
            return before
        bugs[fault] += 1
    return None


def _bug_fault(source: _Source, before: str, original: str, taken: set[str]) -> str:
    tree = _parse(before)
    if before in taken:
        return "not_distinct"
    if tree is None:
        return "does_not_parse"
    if not before.split("\n")[-2].strip():
        return "blank_end"  # the last statement is gone, and a blank line before it ends the text
    if ast.dump(tree) == original:
        return "same_syntax"
    return "" if one_change(before, source.text) else "several_runs"


def _group(tree: ast.Module) -> str:
    """A name for everything that is this function again, under another name, layout, comments or docstring."""
    node = tree.body[0]
    node.name = ""
    node.body = node.body[1:] if _has_docstring(node) else node.body
    return "pyfix/" + hashlib.sha256(ast.dump(node).encode()).hexdigest()[:16]


def _check(config: PyFixConfig) -> None:
    for name, lowest in (("cases", 1), ("min_lines", 1), ("max_lines", config.min_lines), ("max_docstring_lines", 0)):
        value = getattr(config, name)
        if name == "cases" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
            floor = f"min_lines={lowest}" if name == "max_lines" else lowest
            raise ValueError(f"pyfix: {name}={value!r} is not allowed: a whole number from {floor} up")
    if not isinstance(config.describe, bool):
        raise ValueError(f"pyfix: describe={config.describe!r} is not allowed: true or false")


def generate(config: PyFixConfig, seed: int) -> list[EditPair]:
    """Return the pairs of ``generate_counted``."""
    return generate_counted(config, seed)[0]


def generate_counted(config: PyFixConfig, seed: int) -> tuple[list[EditPair], BugReport]:
    """Make ``config.cases`` pairs (function with one bug, function), with None one of every function that can be used.

    No two have the same text on either side. The same source, interpreter, limits and seed give the same pairs, and
    fewer cases are the first of more. Bug kinds come out as even as the functions allow: each function takes the kind
    used least so far that fits it. ``group`` is a hash of the function's syntax without its name and docstring, so
    copies of one function in several modules stay together. The report counts what was not used.

    Raises ValueError for a bad field (its name, its value and what is allowed) and for more cases than there are usable
    functions (how many there are, and which field to change).
    """
    _check(config)
    rng = random.Random(f"pyfix:{seed}")
    report = BugReport()
    candidates = _candidates(config, report)
    rng.shuffle(candidates)
    uses = dict.fromkeys(KINDS, 0)
    texts = {candidate.text for candidate in candidates}  # a broken function must not be another one's fixed text
    pairs: list[EditPair] = []
    for candidate in candidates:
        if len(pairs) == config.cases:
            report.functions["over_cases"] += 1
            continue
        tree = _parse(candidate.text)
        if tree is None or len(tree.body) != 1 or not isinstance(tree.body[0], _FUNCTIONS):
            report.functions["dedent"] += 1
            continue
        source, original = _Source(candidate.text, tree.body[0]), ast.dump(tree)
        for kind in sorted(KINDS, key=lambda kind: (uses[kind], rng.random())):
            before = _broken(source, kind, original, texts, rng, report.bugs)
            if before is None:
                continue
            texts.add(before)
            uses[kind] += 1
            report.count_kind("python", kind)
            report.functions["used"] += 1
            name = candidate.qualname.rpartition(".")[2]
            pairs.append(
                EditPair(
                    id=f"pyfix/{len(pairs):04d}",
                    corpus="pyfix",
                    instruction=f"Fix bugs in {name}: {KINDS[kind][1]}." if config.describe else f"Fix bugs in {name}.",
                    before=before,
                    after=candidate.text,
                    group=_group(tree),
                    meta={
                        "kind": kind,
                        "module": candidate.module,
                        "function": candidate.qualname,
                        "python": platform.python_version(),
                    },
                )
            )
            break
        else:
            report.functions["no_place"] += 1
    if len(pairs) < max(config.cases or 0, 1):
        library = f"the standard library of Python {platform.python_version()} ({sysconfig.get_paths()['stdlib']})"
        where = config.source or library
        if not report.files["seen"]:
            raise ValueError(f"pyfix: no .py file in {where}")
        asked = f"cases={config.cases}, but " if config.cases else ""
        count = f"are only {len(pairs)} usable functions" if pairs else "is no usable function"
        raise ValueError(
            f"pyfix: {asked}there {count} with min_lines={config.min_lines}, max_lines={config.max_lines} and "
            f"max_docstring_lines={config.max_docstring_lines} in {where}: "
            f"{'lower cases, take them all with pyfix.cases=null, or ' if pairs else ''}widen these limits"
        )
    return pairs, report
