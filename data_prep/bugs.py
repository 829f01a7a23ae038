"""The bugs corpus: fixes made offline, by injecting bugs into the functions of any folder of source code.

    python data_prep/build_oracles.py corpora=[bugs] bugs.source=[../app] bugs.languages=[js,go] out=data/app

JavaScript, Java, Go, C++ and Rust through tree-sitter (pip install 'cad-train[bugs]'); Python has its own corpus,
pyfix. The kinds of bugs and their names are those of pyfix. The fixed document is the lines of a named function as its
file has them, byte for byte; the broken one differs from it in one run of lines. Sources are only read.

Every broken function parses in its file, with the tokens of the original but for the edited ones, and is a text of its
own: no other pair has it on either side. All that was found and not used is counted by its reason (``BugReport``).

Left out: functions inside named functions (their text is part of the outer one); files and folders whose names begin
with a dot, links, and files of other languages, none of which is counted.
"""

from __future__ import annotations

import difflib
import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from data_prep.bug_languages import KINDS, LANGUAGES, Function, Source, functions, parse
from data_prep.commit_filters import GitConfig, _kinds_of, examine
from data_prep.pairs import EditPair

# kind -> what an instruction says of it; the kinds of every language
DESCRIPTIONS = {
    "operator": "an operator is wrong",
    "comparison": "a comparison is wrong",
    "off_by_one": "a number or a bound is off by one",
    "variable": "a wrong variable is used",
    "dropped": "a statement is missing",
    "swapped": "two arguments are swapped",
    "negated": "a condition is inverted",
    "constant": "a constant is wrong",
    "method": "a wrong function or method is called",
}


@dataclass
class BugsConfig:
    """What ``generate`` makes; every field is a ``key=value`` of the command line."""

    source: list[str] = field(default_factory=list)  # folders or files of source code
    languages: list[str] = field(default_factory=list)  # of js, java, go, cpp, rust; all where empty
    cases: int | None = None  # number of functions to use; null for all there are
    bugs: int = 1  # bugs of one function, each in a pair of its own, at most
    min_lines: int = 4  # shortest function taken, in lines
    max_lines: int = 40  # longest function taken, in lines
    max_bytes: int = 200_000  # longest file read
    describe: bool = False  # say in the instruction what kind of bug it is


@dataclass
class BugReport:
    """What came of all that was found, by reason, JSON-ready.

    files: seen = read + every reason. functions (of files read): seen = used + every reason. bugs (places tried):
    tried = made + every reason. kinds: bugs made, by language and kind.
    """

    files: Counter = field(default_factory=Counter)
    functions: Counter = field(default_factory=Counter)
    bugs: Counter = field(default_factory=Counter)
    kinds: dict[str, Counter] = field(default_factory=dict)

    def count_kind(self, language: str, kind: str) -> None:
        """Count a bug that was made."""
        self.kinds.setdefault(language, Counter(dict.fromkeys(DESCRIPTIONS, 0)))[kind] += 1
        self.bugs["made"] += 1

    def as_dict(self) -> dict[str, dict]:
        """The counts as plain dictionaries, for a manifest."""
        return {
            "files": dict(self.files),
            "functions": dict(self.functions),
            "bugs": dict(self.bugs),
            "kinds": {language: dict(counts) for language, counts in sorted(self.kinds.items())},
        }


def one_change(before: str, after: str) -> bool:
    """Whether a line diff of the two is one block, which equal lines around a change can split."""
    matcher = difflib.SequenceMatcher(None, before.split("\n"), after.split("\n"), autojunk=False)
    return sum(tag != "equal" for tag, *_ in matcher.get_opcodes()) == 1


@dataclass(frozen=True, slots=True)
class _Candidate:
    language: str
    path: str
    data: bytes  # the whole file
    function: Function


def generate(
    config: BugsConfig, seed: int, progress: Callable[[Iterable, str], Iterable] = lambda it, _: it
) -> tuple[list[EditPair], BugReport]:
    """Make pairs (function with one bug, function) of ``config.cases`` functions, with None of all, and count the rest.

    The same files, limits and seed give the same pairs, and fewer cases are the first of more. Kinds come out as even
    within a language as its functions allow. ``group`` is a hash of the function's tokens without its name and
    comments, so bugs of one function, and of its copies in other files, stay together.

    Raises:
        ValueError: a bad field, a source that is not there, sources without a file of these languages, without a
            function that could be used, or with fewer than ``config.cases`` (with what there was instead).
        UserError: tree-sitter or a grammar that is not installed.
    """
    _check(config)
    report = BugReport()
    candidates = _candidates(config, report, progress)
    rng = random.Random(f"bugs:{seed}")
    rng.shuffle(candidates)
    # A broken function must not be another one's fixed text.
    texts = {_text(candidate) for candidate in candidates}
    pairs: list[EditPair] = []
    for candidate in candidates:
        if report.functions["used"] == config.cases:
            report.functions["over_cases"] += 1
            continue
        try:
            source = Source(
                candidate.language, candidate.data, parse(candidate.language, candidate.data), candidate.function
            )
            made = _bugs_of(source, config.bugs, texts, report, rng)
        except RecursionError:  # expressions nested hundreds deep
            report.functions["too_deep"] += 1
            continue
        report.functions["used" if made else "no_place"] += 1
        for kind, before in made:
            pairs.append(_pair(len(pairs), candidate, source, kind, before, config))
    if not pairs:
        raise ValueError(f"bugs: no function to use in {', '.join(config.source)}: {_said(report)}")
    if config.cases is not None and (used := report.functions["used"]) < config.cases:
        raise ValueError(
            f"bugs: cases={config.cases}, but there are only {used} functions to use in {', '.join(config.source)}: "
            f"{_said(report)}; lower cases, take them all with bugs.cases=null, or widen min_lines and max_lines"
        )
    return pairs, report


def _check(config: BugsConfig) -> None:
    if not config.source:
        raise ValueError("bugs: no source is named: add bugs.source=[FOLDER,...]")
    if unknown := [name for name in config.languages if name not in LANGUAGES]:
        hint = "; Python has the corpus pyfix" if {"py", "python"} & set(unknown) else ""
        raise ValueError(f"bugs: languages: unknown {', '.join(unknown)}; choose from {', '.join(LANGUAGES)}{hint}")
    for name, lowest in (
        ("cases", 1),
        ("bugs", 1),
        ("min_lines", 1),
        ("max_lines", config.min_lines),
        ("max_bytes", 1),
    ):
        value = getattr(config, name)
        if value is not None and value < lowest:  # None is all cases
            raise ValueError(f"bugs: {name}={value} is not allowed: a whole number from {lowest} up")


def _files(config: BugsConfig) -> Iterator[tuple[Path, str, str]]:
    """Yield (path, path as reported, language) of every file of the languages, in sorted order."""
    languages = config.languages or LANGUAGES
    language_of = {extension: name for name in languages for extension in LANGUAGES[name].extensions}
    for source in config.source:
        root = Path(source).expanduser()
        if not root.exists():
            raise ValueError(f"bugs: source: there is no folder or file {source}")
        for path in [root] if root.is_file() else _walk(root):
            if language := language_of.get(path.suffix[1:].lower()):
                inner = "" if root.is_file() else f"/{path.relative_to(root).as_posix()}"
                yield path, root.resolve().name + inner, language


def _walk(root: Path) -> Iterator[Path]:
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        for name in sorted(names):
            path = Path(folder, name)
            if not name.startswith(".") and path.is_file() and not path.is_symlink():
                yield path


def _candidates(
    config: BugsConfig, report: BugReport, progress: Callable[[Iterable, str], Iterable]
) -> list[_Candidate]:
    """Every function within the limits, in the order of files and lines; one of each text."""
    found: dict[str, _Candidate] = {}
    rules = GitConfig(max_bytes=config.max_bytes, max_lines=config.max_bytes, emails="keep")
    for path, name, language in progress(list(_files(config)), "bugs: files"):
        report.files["seen"] += 1
        # What the source is inside of is not what it holds: only the path below it says what is vendored.
        fault = next(iter(_kinds_of(name.partition("/")[2])), "")
        data = b""
        if not fault:
            try:
                size = path.stat().st_size
                data = path.read_bytes() if size <= config.max_bytes else None
                fault = examine(size, data, rules).fault
            except OSError:
                fault = "unreadable"
        tree = None if fault else parse(language, data)
        if tree is None:
            report.files[fault or "syntax_error"] += 1
            continue
        report.files["read"] += 1
        for function in functions(language, data, tree):
            report.functions["seen"] += 1
            fault = "shares_lines"
            if function is not None:
                candidate = _Candidate(language, name, data, function)
                text = _text(candidate)
                fault = _length_fault(text, config) or ("duplicate" if text in found else "")
            if fault:
                report.functions[fault] += 1
            else:
                found[text] = candidate
    if not report.files["seen"]:
        wanted = ", ".join(LANGUAGES[name].title for name in config.languages or LANGUAGES)
        raise ValueError(f"bugs: no file of {wanted} in {', '.join(config.source)}")
    return list(found.values())


def _text(candidate: _Candidate) -> str:
    return candidate.data[candidate.function.start : candidate.function.end].decode()


def _length_fault(text: str, config: BugsConfig) -> str:
    lines = text.count("\n") + (not text.endswith("\n"))
    return "too_short" if lines < config.min_lines else "too_long" if lines > config.max_lines else ""


def _bugs_of(
    source: Source, wanted: int, taken: set[str], report: BugReport, rng: random.Random
) -> list[tuple[str, str]]:
    """Up to ``wanted`` (kind, broken document), texts not in ``taken``, which gets them; least used kinds first."""
    made: list[tuple[str, str]] = []
    uses = report.kinds.get(source.language, Counter())
    sites = {kind: list(KINDS[kind](source)) for kind in sorted(KINDS, key=lambda kind: (uses[kind], rng.random()))}
    for places in sites.values():
        rng.shuffle(places)
    while len(made) < wanted and any(sites.values()):
        for kind, places in sites.items():
            before = _next_bug(source, places, taken, report) if len(made) < wanted else None
            if before is not None:
                taken.add(before)
                made.append((kind, before))
                report.count_kind(source.language, kind)
    return made


def _next_bug(source: Source, places: list, taken: set[str], report: BugReport) -> str | None:
    """The first broken document that holds to every rule; ``places`` loses what was tried."""
    after = source.document(source.data)
    while places:
        edits = places.pop()
        data = source.apply(edits)
        before = source.document(data)
        report.bugs["tried"] += 1
        if before in taken:
            report.bugs["not_distinct"] += 1
        elif not one_change(before, after):
            report.bugs["several_runs"] += 1
        elif not source.is_function_still(edits, data):
            report.bugs["does_not_parse"] += 1
        else:
            return before
    return None


def _pair(number: int, candidate: _Candidate, source: Source, kind: str, before: str, config: BugsConfig) -> EditPair:
    name = candidate.function.name
    return EditPair(
        id=f"bugs/{number:04d}",
        corpus="bugs",
        instruction=f"Fix bugs in {name}: {DESCRIPTIONS[kind]}." if config.describe else f"Fix bugs in {name}.",
        before=before,
        after=_text(candidate),
        group=f"bugs/{candidate.language}/{source.group()}",
        meta={"kind": kind, "language": candidate.language, "file": candidate.path, "function": name},
    )


def _said(report: BugReport) -> str:
    counts = report.as_dict()
    parts = [
        f"{counts[what]['seen']} {what}" + _reasons(counts[what]) for what in ("files", "functions") if counts[what]
    ]
    return "; ".join(parts)


def _reasons(counts: dict[str, int]) -> str:
    text = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()) if reason != "seen")
    return f" ({text})" if text else ""
