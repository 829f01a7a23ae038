"""Reading a git repository: its commits in order, what each changed, and the bytes of its objects. Torch-free.

Nothing is written to the repository, checked out, fetched or run: no hooks, filters, text conversion, signatures or
pager. Blobs come from ``git cat-file --batch``, so they are the bytes that were committed.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from decoding.commandline import UserError

# Settings of the person, the repository, or the system that would run a program or change what git prints.
_SAFE = ("--no-pager", "--no-replace-objects") + tuple(
    part
    for setting in (
        f"core.hooksPath={os.devnull}",
        f"core.attributesFile={os.devnull}",
        "core.fsmonitor=false",
        "log.showSignature=false",
    )
    for part in ("-c", setting)
)
_RENAME_LIMIT = 1000  # above so many added or deleted files in a commit, only exact renames are found
_REQUESTS = 200  # objects asked for at once: so many lines fit a pipe, so neither side waits for the other
# Where git keeps its settings is the person's choice (a container names its safe folders there); the rest is not ours.
_KEPT_VARIABLES = re.compile(r"GIT_(?:CONFIG_.*|EXEC_PATH)")
_LICENCE = re.compile(rb"(?i)(?:un)?licen[cs]e|copying|copyright\b")


@dataclass(frozen=True, slots=True)
class Change:
    """One file of a commit: status (A, D, M, R, T), modes, blob ids, and paths as bytes (old and new for a rename)."""

    status: str
    old_mode: str
    new_mode: str
    old_blob: str
    new_blob: str
    old_path: bytes
    path: bytes


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit; ``message`` is None where git cannot give it in UTF-8, ``author`` is name and address, never to be
    written, ``date`` is the author's, in ISO 8601."""

    id: str
    parents: tuple[str, ...]
    date: str
    author: str
    message: str | None
    changes: list[Change]


class Repository:
    """A local repository: its work tree's top folder, its ``.git`` folder, or a bare repository.

    Attributes:
        path: the folder.
        name: the folder's name, for files and ids.
        label: the remote's URL without credentials, else the folder's name.
        shallow: the commits at which a shallow clone was cut off.

    Raises:
        UserError: no git, no such folder, no repository there, one that git refuses to read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().resolve()
        if not self.path.is_dir():
            what = f"{path} is a file: name a folder" if self.path.exists() else f"there is no folder {path}"
            raise UserError(f"repo: {what}")
        git_dir = Path(self.text("rev-parse", "--absolute-git-dir"))
        if git_dir.resolve() != self.path:
            top = self.text("rev-parse", "--show-toplevel")
            if Path(top).resolve() != self.path:
                raise UserError(f"repo: {path} is inside the repository {top}: name that")
        top = self.path.parent if self.path.name == ".git" else self.path
        self.name = top.name.removesuffix(".git") or "repository"
        self.label = self._label()
        shallow = self.path / self.text("rev-parse", "--git-path", "shallow")
        self.shallow = frozenset(shallow.read_text().split()) if shallow.is_file() else frozenset()

    def tip(self, ref: str) -> str:
        """Return the id of the commit that ``ref`` names.

        Raises:
            UserError: no such commit, as in a repository without any for HEAD.
        """
        found = self._run("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
        if found.returncode:
            raise UserError(f"repo: {self.path} has no commit {ref}" + ("; is it empty?" if ref == "HEAD" else ""))
        return found.stdout.decode().strip()

    def is_ancestor(self, old: str, new: str) -> bool:
        """Say whether ``old`` is still there and ``new`` is it or descends from it."""
        return self._run("merge-base", "--is-ancestor", old, new).returncode == 0

    def order(self, tips: Iterable[str], known: Iterable[str]) -> bytes:
        """Return the commits reachable from ``tips`` and not from ``known``, parents first, one id a line."""
        revisions = [*tips, *(f"^{commit}" for commit in known)]
        return self.output("rev-list", "--topo-order", "--reverse", *revisions, "--")

    def commits(self, order: bytes, merges: bool) -> Iterator[Commit]:
        """Yield the commits of ``order`` with their changes against the only parent.

        A merge has no changes, or with ``merges`` those against its first parent. Renames are followed.

        Raises:
            UserError: git stops, as over an object that is missing.
        """
        command = ["diff-tree", "--stdin", "--root", "--always", "-r", "-z", "--raw", "--no-abbrev", "--encoding=UTF-8"]
        command += ["-M", f"-l{_RENAME_LIMIT}", "--no-rename-empty", "--no-ext-diff", "--no-textconv"]
        command += ["--diff-merges=first-parent"] * merges
        command.append("--format=tformat:%H%x00%P%x00%aI%x00%an %ae%x00%e%x00%B%x00")
        with tempfile.TemporaryFile() as ids, tempfile.TemporaryFile() as errors:
            ids.write(order)
            ids.seek(0)
            process = self._start(*command, stdin=ids, stdout=subprocess.PIPE, stderr=errors)
            try:
                yield from _parse_commits(_tokens(process.stdout))
                if process.wait():
                    raise UserError(self._failure(errors))
            finally:
                _stop(process)

    def attributes(self, tip: str) -> Attributes | None:
        """Return what ``.gitattributes`` at ``tip`` say of paths, or None where none speaks of linguist."""
        listed = self.output("ls-tree", "-r", "-z", tip).split(b"\0")
        files = sorted(line for line in listed if line.rpartition(b"/")[2].rpartition(b"\t")[2] == b".gitattributes")
        with ObjectReader(self) as reader:
            texts = reader.read([line.split()[2].decode() for line in files], 1 << 20)
        if not any(b"linguist-" in (data or b"") for _, data in texts):
            return None
        return Attributes(self, tip, hashlib.sha256(b"\0".join(files)).hexdigest()[:16])

    def output(self, *arguments: str) -> bytes:
        """Return what a git command prints.

        Raises:
            UserError: it fails.
        """
        result = self._run(*arguments)
        if result.returncode:
            raise UserError(self._refusal(result.stderr.decode("utf-8", "replace")))
        return result.stdout

    def text(self, *arguments: str) -> str:
        """Return one line that a git command prints, as a path may be written."""
        return os.fsdecode(self.output(*arguments).rstrip(b"\n"))

    def _label(self) -> str:
        remotes = self.output("remote").decode("utf-8", "replace").split()
        url = ""
        if remotes:
            remote = "origin" if "origin" in remotes else remotes[0]
            url = self._run("config", "--get", f"remote.{remote}.url").stdout.decode("utf-8", "replace").strip()
        return without_credentials(url) or shown(os.fsencode(self.name))

    def _run(self, *arguments: str) -> subprocess.CompletedProcess:
        process = self._start(*arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        output, errors = process.communicate()
        return subprocess.CompletedProcess(arguments, process.returncode, output, errors)

    def _start(self, *arguments: str, index: Path | None = None, **pipes) -> subprocess.Popen:
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("GIT_") or _KEPT_VARIABLES.fullmatch(name)
        }
        # A missing object of a partial clone would be fetched: older versions of git know only the second of these.
        environment |= {"GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none", "GIT_TERMINAL_PROMPT": "0"}
        environment |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_ATTR_NOSYSTEM": "1", "LC_ALL": "C"}
        if index is not None:
            environment["GIT_INDEX_FILE"] = str(index)
        try:
            return subprocess.Popen(["git", "-C", str(self.path), *_SAFE, *arguments], env=environment, **pipes)
        except FileNotFoundError:
            raise UserError("there is no git on PATH: install it") from None

    def _failure(self, errors: IO[bytes]) -> str:
        errors.seek(0)
        return self._refusal(errors.read().decode("utf-8", "replace"))

    def _refusal(self, errors: str) -> str:
        """What git's own message means for the person."""
        if "dubious ownership" in errors:
            return (
                f"repo: {self.path} belongs to another user, so git refuses it; if you trust it: "
                f"git config --global --add safe.directory {self.path}"
            )
        if "not a git repository" in errors or "must be run in a work tree" in errors:
            return f"repo: {self.path} is not a git repository"
        if "promisor remote" in errors:
            return f"repo: {self.path} is a partial clone without all its objects: clone it again without --filter"
        lines = [line for line in errors.splitlines() if line.startswith(("fatal:", "error:"))] or [errors.strip()]
        return f"repo: git cannot read {self.path}: {lines[0]}"


class ObjectReader:
    """One ``git cat-file --batch`` process. A context manager."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed in __exit__)
        pipe = subprocess.PIPE
        self._process = repository._start("cat-file", "--batch", stdin=pipe, stdout=pipe, stderr=self._errors)

    def __enter__(self) -> ObjectReader:
        return self

    def __exit__(self, *_) -> None:
        _stop(self._process)
        self._errors.close()

    def read(self, names: list[str], max_bytes: int) -> list[tuple[int, bytes | None]]:
        """Return (size, bytes) of each object, in order; no bytes above ``max_bytes``, size -1 where it is missing.

        Raises:
            UserError: git stops.
        """
        found = []
        for start in range(0, len(names), _REQUESTS):
            asked = names[start : start + _REQUESTS]
            with suppress(BrokenPipeError):  # why it stopped is read below
                self._process.stdin.write("".join(f"{name}\n" for name in asked).encode())
                self._process.stdin.flush()
            found += [self._answer(max_bytes) for _ in asked]
        return found

    def _answer(self, max_bytes: int) -> tuple[int, bytes | None]:
        output = self._process.stdout
        header = output.readline()
        if not header:
            self._process.wait()
            raise UserError(self._repository._failure(self._errors))
        if header.endswith(b" missing\n"):
            return -1, None
        size = int(header.split()[2])
        if size <= max_bytes:
            return size, output.read(size + 1)[:-1]
        left = size + 1
        while left:
            left -= len(output.read(min(left, 1 << 20)))
        return size, None


class Attributes:
    """What the ``.gitattributes`` of one commit say, by ``git check-attr`` over an index of our own. A context manager.

    ``read-tree`` writes only that index, and works where there is no work tree. ``digest`` is of the files.
    """

    NAMES = ("linguist-generated", "linguist-vendored")

    def __init__(self, repository: Repository, tip: str, digest: str) -> None:
        self.digest = digest
        self._folder = tempfile.TemporaryDirectory()
        index, pipe, null = Path(self._folder.name) / "index", subprocess.PIPE, subprocess.DEVNULL
        repository._start("read-tree", tip, index=index, stdin=null, stderr=null).wait()
        command = ("check-attr", "--cached", "-z", "--stdin", *self.NAMES)
        self._process = repository._start(*command, index=index, stdin=pipe, stdout=pipe, stderr=null)
        self._output = _tokens(self._process.stdout)
        self._known: dict[bytes, set[str]] = {}

    def close(self) -> None:
        """End the process and remove the index."""
        _stop(self._process)
        self._folder.cleanup()

    def of(self, path: bytes) -> set[str]:
        """Return those of ``NAMES`` that are set for ``path``, without their "linguist-"."""
        if path not in self._known:
            self._process.stdin.write(path + b"\0")
            self._process.stdin.flush()
            answers = [[next(self._output) for _ in range(3)] for _ in self.NAMES]
            self._known[path] = {
                name.decode().removeprefix("linguist-") for _, name, value in answers if value in (b"set", b"true")
            }
        return self._known[path]


def licence_files(tree: bytes, id_bytes: int) -> list[str]:
    """Return the licence files and folders in a raw root tree: LICENSE, LICENCE.md, COPYING, UNLICENSE, LICENSES ..."""
    names, at = [], 0
    while at < len(tree):
        end = tree.index(b"\0", at)
        name = tree[tree.index(b" ", at) + 1 : end]
        if _LICENCE.match(name):
            names.append(shown(name))
        at = end + 1 + id_bytes
    return names


def shown(path: bytes) -> str:
    """Return a path as text; bytes that are not UTF-8 are written as backslash escapes."""
    return path.decode("utf-8", "backslashreplace")


def without_credentials(url: str) -> str:
    """Return a remote's URL without user, password, and query; nothing for a path on this machine."""
    if "://" in url:
        try:
            parts = urlsplit(url)
        except ValueError:  # brackets that are no IPv6 address
            return ""
        host = parts.netloc.rpartition("@")[2]
        return f"{parts.scheme}://{host}{parts.path}" if host and parts.scheme != "file" else ""
    host, colon, path = url.partition(":")  # scp's form, user@host:path
    return f"{host.rpartition('@')[2]}:{path}" if colon and len(host) > 1 and "/" not in host else ""


def _tokens(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield what stands before each NUL of a stream, as it comes."""
    rest = b""
    while piece := stream.read1(1 << 20):
        *whole, rest = (rest + piece).split(b"\0")
        yield from whole


def _parse_commits(tokens: Iterator[bytes]) -> Iterator[Commit]:
    token = next(tokens, None)
    while token is not None:
        commit = token.decode()
        parents, date = next(tokens).decode().split(), next(tokens).decode("utf-8", "replace")
        author, encoding, message = next(tokens).decode("utf-8", "replace"), next(tokens), next(tokens)
        next(tokens)  # the empty one that ends the format
        changes = []
        while (token := next(tokens, None)) is not None and token.lstrip(b"\n")[:1] == b":":
            old_mode, new_mode, old_blob, new_blob, status = token.lstrip(b"\n:").decode().split()
            old_path = next(tokens)
            path = next(tokens) if status[0] in "RC" else old_path
            changes.append(Change(status[0], old_mode, new_mode, old_blob, new_blob, old_path, path))
        try:
            # A message holds no NUL, so it is not in UTF-16 whatever its commit says, and git converts it to nonsense.
            text = None if encoding.lower().startswith((b"utf-16", b"utf16")) else message.decode()
        except UnicodeDecodeError:
            text = None
        yield Commit(commit, tuple(parents), date, author, text, changes)


def _stop(process: subprocess.Popen) -> None:
    """End a process of ours whether or not it has finished."""
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(BrokenPipeError):
                stream.close()
    if process.poll() is None:
        process.terminate()
    process.wait()
