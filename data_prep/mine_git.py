"""Mine the commits of local git repositories for edits: before, after, and the commit message as instruction.

    python data_prep/mine_git.py repo=../flask
    python data_prep/mine_git.py repo=[../flask,../click] languages=[python] exclude=["tests/*"] message=subject
    python data_prep/build_oracles.py corpora=[git] git.repo=[../flask] out=data/flask    # mine and prepare

Writes OUT/NAME.jsonl, a row for each changed file that is kept: instruction, before, after, and where it is from (repo,
commit, path, old_path of a rename, licence_files at that commit, date, language, number of files in the commit). Never
an author's name or address; addresses in messages are masked. The rows of one file share a group, renames followed.
OUT/NAME.rejected.jsonl names every commit and file that was not kept, with its reason; OUT/NAME.report.json counts
them. Documents are the committed bytes read as UTF-8, nothing normalised; what is not UTF-8 is refused by name.

The same command again adds only commits that are new. Other settings, a history that was rewritten, or other
linguist attributes at the tip start anew, and it says so. A run that was killed goes on where it was, and ends with
the files of a run that was not. Nothing is written to the repository, run in it, or fetched.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from data_prep.commit_filters import (
    Document,
    GitConfig,
    change_fault,
    commit_fault,
    edit_tags,
    examine,
    instruction_of,
    language_of,
    mask_emails,
    mask_secrets,
    secret_kinds,
)
from data_prep.git_commits import Attributes, Change, Commit, ObjectReader, Repository, licence_files, shown
from data_prep.pairs import EditPair
from data_prep.rows import read_rows, write_text
from decoding.commandline import UserError, run
from decoding.console import markdown_table, track

FORMAT_VERSION = 2  # of rows and rules: another one starts anew
_OBJECTS = 200  # read together, so that git and this process work at the same time
_COMMITS_BETWEEN_REPORTS = 500
_CACHED_CHARACTERS = 128 << 20  # of documents: what one commit leaves is mostly what the next one changes
_MAX_TREE_BYTES = 1 << 22
_PROVENANCE = ("repo", "commit", "path", "old_path", "licence_files", "date", "language", "files", "tags", "masked")
# Every row starts with its group, of one length, so that groups found to be one can be renamed in place.
_GROUP_START, _GROUP_CHARACTERS = len('{"group": "'), 16


@dataclass
class Config(GitConfig):
    """What to mine, and what to keep."""


@dataclass
class Report:
    """NAME.report.json: what was mined so far, counted, and where to go on. ``bytes`` are of rows and rejected rows.

    commits: seen = with_rows + without_rows + all dropped. files (of commits that were not dropped): seen = rows + all
    dropped. ``walk`` is there while a walk over new commits is unfinished. ``groups`` maps groups that renames joined.
    """

    repository: dict[str, str]
    settings: dict[str, Any]  # and what else determines the rows: linguist attributes, where a shallow clone ends
    format: int = FORMAT_VERSION
    tips: dict[str, str] = field(default_factory=dict)  # last commit mined, by ref
    walk: dict[str, Any] | None = None
    bytes: list[int] = field(default_factory=lambda: [0, 0])
    commits: dict[str, Any] = field(default_factory=lambda: {"seen": 0, "with_rows": 0, "without_rows": 0})
    commits_dropped: Counter = field(default_factory=Counter)
    files: dict[str, int] = field(default_factory=lambda: {"seen": 0, "rows": 0})
    files_dropped: Counter = field(default_factory=Counter)
    tags: Counter = field(default_factory=Counter)
    masked: Counter = field(default_factory=Counter)  # addresses and secrets in the rows
    groups: dict[str, str] = field(default_factory=dict)
    groups_to_rename: bool = False

    def write(self, path: Path) -> None:
        """Write the report as a whole or not at all."""
        write_text(path, json.dumps(vars(self), indent=1, sort_keys=True) + "\n")


@dataclass(frozen=True, slots=True)
class Mined:
    """What ``mine`` leaves: the files, the report, how many commits were new, and why it started anew, if it did."""

    name: str
    rows: Path
    rejected: Path
    report: Report
    new_commits: int
    started_anew: str


Progress = Callable[[Iterable, str], Iterable]


def main(config: Config) -> None:
    """Mine every repository, then say what came of it."""
    if not config.repo:
        raise UserError("repo: name the folder of a git repository, repo=PATH")
    try:
        mined = mine(config, track)
    except OSError as error:
        raise UserError(f"cannot write the edits: {error}") from None
    print(summarise(mined))


def mine(config: GitConfig, progress: Progress = lambda items, _: items) -> list[Mined]:
    """Bring the files of every repository of ``config`` up to its refs.

    Raises:
        UserError: no repository, no such ref, two repositories of one name, an ``out`` that is a file or has files that
            are not ours.
    """
    if Path(config.out).exists() and not Path(config.out).is_dir():
        raise UserError(f"out={config.out} is a file: name a folder")
    repositories = [Repository(Path(path)) for path in config.repo]
    first: dict[str, Repository] = {}
    for repository in repositories:
        other = first.setdefault(repository.name, repository)
        if other is not repository and other.path == repository.path:
            raise UserError(f"repo: {repository.path} is named twice")
        if other is not repository:
            raise UserError(
                f"repo: {other.path} and {repository.path} have one name, and so would their files: mine each with an "
                "out= of its own, and prepare what that writes with corpora=[jsonl] jsonl=[OUT1/NAME.jsonl,...]"
            )
    # Whatever is wrong with one is said before another is mined.
    tips = [{ref: repository.tip(ref) for ref in config.refs} for repository in repositories]
    return [_mine_one(repository, tip, config, progress) for repository, tip in zip(repositories, tips, strict=True)]


def read_commits(mined: Iterable[Mined]) -> Iterator[EditPair | dict]:
    """Yield the edits of mined files, and rows that repeat an earlier one (a cherry-pick, say) as rejected.

    Raises:
        RowError: a file that is damaged.
    """
    seen: set[str] = set()
    for source in mined:
        file = _shown(source.rows)
        for number, row in enumerate(read_rows(source.rows), start=1):
            content = json.dumps([row["instruction"], row["before"], row["after"]])
            digest = _digest(content.encode())
            if digest in seen:
                detail = "the same instruction, before, and after stand in an earlier row"
                yield {"file": file, "row": number, "reason": "duplicate", "detail": detail}
                continue
            seen.add(digest)
            name = f"git/{source.name}/{row['commit'][:12]}/{row['path']}"
            meta = {key: row[key] for key in _PROVENANCE}
            texts = (row["instruction"], row["before"], row["after"])
            yield EditPair(name, "git", *texts, row["group"], meta)


def row_settings(config: GitConfig) -> dict[str, Any]:
    """The settings that determine the rows of a repository."""
    return {key: value for key, value in asdict(config).items() if key not in ("repo", "out")}


def summarise(mined: list[Mined]) -> str:
    """Return what a person reads after mining: counts, reasons, and where the rows are."""
    rows = []
    for one in mined:
        commits, files = one.report.commits, one.report.files
        rows.append([one.name, commits["seen"], one.new_commits, commits["with_rows"], files["seen"], files["rows"]])
    text = [markdown_table(["repository", "commits", "new", "with edits", "files", "edits"], rows)]
    for one in mined:
        if one.started_anew:
            text.append(f"{one.name}: started anew, because {one.started_anew}")
        if one.report.settings["shallow"]:
            text.append(f"{one.name}: a shallow clone, so its older commits are not there")
        counts = [("commits left out", one.report.commits_dropped), ("files left out", one.report.files_dropped)]
        for label, reasons in (*counts, ("tagged", one.report.tags), ("masked", one.report.masked)):
            if reasons:
                text.append(f"{one.name}: {label}: " + ", ".join(f"{n} {key}" for key, n in sorted(reasons.items())))
        text.append(f"wrote {_shown(one.rows)}; what was left out is in {_shown(one.rejected)}")
    return "\n".join(text)


# ---------------------------------------------------------------------------------------------------------------------
# One repository: go on where the report says


def _mine_one(repository: Repository, tips: dict[str, str], config: GitConfig, progress: Progress) -> Mined:
    out = Path(config.out)
    paths = [out / f"{repository.name}{end}" for end in (".jsonl", ".rejected.jsonl", ".report.json")]
    new = 0
    with ExitStack() as stack:
        attributes = repository.attributes(next(iter(tips.values())))
        if attributes:
            stack.callback(attributes.close)
        settings = row_settings(config) | {
            "attributes": attributes.digest if attributes else None,
            "shallow": _digest("\n".join(sorted(repository.shallow)).encode()) if repository.shallow else None,
        }
        names = {"path": str(repository.path), "label": repository.label}
        report, why = _go_on(Report(names, settings), paths, repository, tips)
        report.write(paths[2])  # before the files: they are never there without it
        files = [stack.enter_context(path.open("r+b" if path.exists() else "w+b")) for path in paths[:2]]
        for file, size in zip(files, report.bytes, strict=True):
            file.truncate(size)  # what was written after the last report is written again
            file.seek(size)
        objects = stack.enter_context(ObjectReader(repository))
        miner = _Miner(repository, objects, attributes, config, report, files)
        while report.tips != tips:  # a walk that was cut off goes to its own end first
            walk = report.walk or {"tips": tips, "known": sorted(set(report.tips.values())), "done": 0}
            order = repository.order(walk["tips"].values(), walk["known"])
            report.walk = walk | {"order": _digest(order)}
            commits = order.splitlines(keepends=True)[walk["done"] :]
            stream = _Counted(repository.commits(b"".join(commits), "merge" in config.keep), len(commits))
            for count in miner.take(progress(stream, repository.name)):
                new += count
                report.walk["done"] += count
                _save(report, files, paths[2])
            report.tips, report.walk = walk["tips"], None
            _save(report, files, paths[2])
        if report.groups_to_rename:
            _rename_groups(files[0], report.groups)
            report.groups_to_rename = False
            _save(report, files, paths[2])
    return Mined(shown(os.fsencode(repository.name)), paths[0], paths[1], report, new, why)


def _go_on(fresh: Report, paths: list[Path], repository: Repository, tips: dict[str, str]) -> tuple[Report, str]:
    """Return the report to go on from, or ``fresh`` with what makes it necessary to start anew.

    Raises:
        UserError: files that no run for this repository wrote.
    """
    for stray in paths[2].parent.glob(f".{paths[2].name}.*.part"):
        stray.unlink()  # of a run that was killed while it wrote
    found = [path for path in paths if path.exists()]
    if not found:
        return fresh, ""
    names = ", ".join(path.name for path in found)  # of all at once: one that is left would be refused next
    if not paths[2].exists():
        folder = paths[2].parent
        raise UserError(f"{folder} has {names} without {paths[2].name}: move that away, or choose another out=")
    try:
        there = json.loads(paths[2].read_text(encoding="utf-8"))
        path, version = there["repository"]["path"], there["format"]
    except (ValueError, TypeError, KeyError):
        raise UserError(f"{paths[2]} is damaged: remove {names}, or choose another out=") from None
    if path != fresh.repository["path"]:
        raise UserError(f"{paths[2]} is of {path}: choose another out=, or remove {names}")
    if version != FORMAT_VERSION:
        return fresh, "this version makes other rows"
    for key in sorted(there["settings"].keys() | fresh.settings.keys()):
        before, now = there["settings"].get(key), fresh.settings.get(key)
        if before != now:
            return fresh, f"{key} was {before} and is {now}"
    if there["repository"]["label"] != fresh.repository["label"]:
        return fresh, "the remote has another URL"
    for ref, tip in [*there["tips"].items(), *(there["walk"] or {"tips": {}})["tips"].items()]:
        if not repository.is_ancestor(tip, tips[ref]):
            return fresh, f"{ref} does not descend from {tip[:12]} any more"
    if (walk := there["walk"]) and walk["order"] != _digest(repository.order(walk["tips"].values(), walk["known"])):
        return fresh, "git lists the commits in another order"
    for path, size in zip(paths, there["bytes"], strict=False):
        if size and (not path.exists() or path.stat().st_size < size):
            return fresh, f"{path.name} is shorter than it was left"
    counters = {"commits_dropped", "files_dropped", "tags", "masked"}
    return Report(**{key: Counter(value) if key in counters else value for key, value in there.items()}), ""


def _save(report: Report, files: list[IO[bytes]], path: Path) -> None:
    """Record how far the files are: what is beyond it does not count."""
    for file in files:
        file.flush()
    report.bytes = [file.tell() for file in files]
    report.write(path)


@dataclass(frozen=True, slots=True)
class _Counted:
    """A stream whose length is known, for showing progress."""

    items: Iterator
    count: int

    def __iter__(self) -> Iterator:
        return self.items

    def __len__(self) -> int:
        return self.count


class _Miner:
    """Commits to rows: reads objects in batches, keeps recent documents, appends to the files, counts in the report."""

    def __init__(
        self,
        repository: Repository,
        objects: ObjectReader,
        attributes: Attributes | None,
        config: GitConfig,
        report: Report,
        files: list[IO[bytes]],
    ) -> None:
        self._repository, self._objects, self._attributes = repository, objects, attributes
        self._config, self._report = config, report
        self._rows, self._rejected = files
        self._documents: OrderedDict[str, Document] = OrderedDict()  # by blob, the one used longest ago first
        self._characters = 0
        self._written_before = report.bytes[0] > 0
        self._groups_written: set[str] = set()

    def take(self, commits: Iterable[Commit]) -> Iterator[int]:
        """Write what the commits yield; yield, whenever a report may be written, how many commits that was."""
        batch: list[tuple[Commit, list[Change]]] = []
        wanted = since = 0
        for commit in commits:
            changes = self._candidates(commit)
            batch.append((commit, changes))
            wanted += 2 * len(changes) + bool(changes)
            since += 1
            if wanted >= _OBJECTS or since >= _COMMITS_BETWEEN_REPORTS:
                self._write(batch)
                batch, wanted = [], 0
            if since >= _COMMITS_BETWEEN_REPORTS:
                yield since
                since = 0
        self._write(batch)
        yield since

    def _candidates(self, commit: Commit) -> list[Change]:
        """Return the changes of a commit whose blobs must be read; everything else is counted and listed here."""
        report, config = self._report, self._config
        report.commits["seen"] += 1
        for change in commit.changes:
            if change.status == "R":
                self._join(change)
        fault = commit_fault(commit, config, self._repository.shallow)
        if not fault and config.secrets == "drop" and (kinds := secret_kinds(commit.message)):
            fault = f"secret_{kinds[0]}"
        if fault:
            report.commits_dropped[fault] += 1
            self._reject({"commit": commit.id, "reason": fault})
            return []
        report.files["seen"] += len(commit.changes)
        kept = []
        for change in commit.changes:
            fault = change_fault(change, config)
            if not fault and self._attributes:
                marked = self._attributes.of(change.path) - set(config.keep)
                fault = min(marked, default="")
            if fault:
                self._drop(commit, change, fault)
            else:
                kept.append(change)
        if not kept:
            report.commits["without_rows"] += 1
        return kept

    def _write(self, batch: list[tuple[Commit, list[Change]]]) -> None:
        """Read the blobs and root trees of a batch and write its rows."""
        blobs = dict.fromkeys(blob for _, changes in batch for change in changes for blob in _blobs(change))
        missing = [blob for blob in blobs if blob not in self._documents]
        read = dict(zip(missing, self._objects.read(missing, self._config.max_bytes), strict=True))
        documents: dict[str, Document] = {}
        for change in (change for _, changes in batch for change in changes):
            earlier = None
            for blob in _blobs(change):
                if blob not in documents:
                    documents[blob] = self._recall(blob) or examine(*read.pop(blob), self._config, earlier)
                earlier = documents[blob]
        self._remember(documents)
        with_changes = [commit.id for commit, changes in batch if changes]
        trees = self._objects.read([f"{commit}^{{tree}}" for commit in with_changes], _MAX_TREE_BYTES)
        licences = {
            commit: licence_files(tree or b"", len(commit) // 2)
            for commit, (_, tree) in zip(with_changes, trees, strict=True)
        }
        for commit, changes in batch:
            if changes:
                self._write_commit(commit, changes, documents, licences[commit.id])

    def _write_commit(
        self, commit: Commit, changes: list[Change], documents: dict[str, Document], licences: list[str]
    ) -> None:
        instruction = instruction_of(commit.message, self._config.message)
        instruction, secrets = mask_secrets(instruction)  # none is left to mask where they are dropped
        instruction, emails = mask_emails(instruction)
        rows = 0
        for change in changes:
            before, after = (documents[blob] for blob in _blobs(change))
            fault = before.fault or after.fault or ("no_op_after_masking" if before.text == after.text else "")
            if fault:
                self._drop(commit, change, fault)
                continue
            rows += 1
            group = self._group(change.path)
            self._groups_written.add(group)
            tags = edit_tags(before.text, after.text)
            masked = {
                "emails": emails + before.emails + after.emails,
                "secrets": secrets + before.secrets + after.secrets,
            }
            start = {"group": group, "instruction": instruction}
            provenance = {
                "repo": self._repository.label,
                "commit": commit.id,
                "path": shown(change.path),
                "old_path": shown(change.old_path) if change.status == "R" else None,
                "licence_files": licences,
                "date": commit.date,
                "language": language_of(change.path),
                "files": len(commit.changes),
                "tags": tags,
                "masked": masked,
            }
            row = f'{_json(start)[:-1]}, "before": {before.quoted}, "after": {after.quoted}, {_json(provenance)[1:]}\n'
            self._rows.write(row.encode())
            self._report.tags.update(tags)
            self._report.masked.update({key: count for key, count in masked.items() if count})
        self._report.files["rows"] += rows
        self._report.commits["with_rows" if rows else "without_rows"] += 1

    def _drop(self, commit: Commit, change: Change, fault: str) -> None:
        self._report.files_dropped[fault] += 1
        self._reject({"commit": commit.id, "path": shown(change.path), "reason": fault})

    def _reject(self, row: dict[str, str]) -> None:
        self._rejected.write(_json(row).encode() + b"\n")

    def _recall(self, blob: str) -> Document | None:
        document = self._documents.pop(blob, None)
        if document is not None:
            self._characters -= _cost(document)
        return document

    def _remember(self, documents: dict[str, Document]) -> None:
        """Keep the documents of a batch, and of earlier ones what there is room for."""
        self._documents.update(documents)
        self._characters += sum(_cost(document) for document in documents.values())
        while self._characters > _CACHED_CHARACTERS:
            _, oldest = self._documents.popitem(last=False)
            self._characters -= _cost(oldest)

    def _group(self, path: bytes) -> str:
        """The group of a path: a digest of repository and path, or the group that renames joined it to."""
        group = _digest(self._repository.label.encode() + b"\0" + path)[:_GROUP_CHARACTERS]
        return _root(group, self._report.groups)

    def _join(self, rename: Change) -> None:
        old, new = self._group(rename.old_path), self._group(rename.path)
        if old != new:
            self._report.groups[new] = old
            # Rows of an earlier run may have it; to look is cheaper than to remember every group.
            self._report.groups_to_rename |= self._written_before or new in self._groups_written


def _cost(document: Document) -> int:
    return 100 + 2 * len(document.text)  # as text and as JSON; a refused one has neither


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False)


def _blobs(change: Change) -> tuple[str, str]:
    return change.old_blob, change.new_blob


def _shown(path: Path) -> str:
    return shown(os.fsencode(path))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _root(group: str, joined: dict[str, str]) -> str:
    while group in joined:
        group = joined[group]
    return group


def _rename_groups(rows: IO[bytes], joined: dict[str, str]) -> None:
    """Give rows whose group was joined to another that group's name. In place, and the same again if it is repeated."""
    rows.flush()
    rows.seek(0)
    start = 0
    renamed = []
    for line in rows:
        group = line[_GROUP_START : _GROUP_START + _GROUP_CHARACTERS].decode()
        if group in joined:
            renamed.append((start + _GROUP_START, _root(group, joined)))
        start += len(line)
    for position, group in renamed:
        rows.seek(position)
        rows.write(group.encode())
    rows.seek(start)


if __name__ == "__main__":
    run(main, Config, description=__doc__)
