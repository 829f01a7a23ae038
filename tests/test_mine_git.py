"""Mining git: every row holds the committed bytes, every refusal has a name, and interruption leaves no trace."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.build import OracleConfig, build_oracles, content_settings
from data_prep.commit_filters import (
    EMAIL_MASK,
    SECRET_KINDS,
    Document,
    GitConfig,
    changed_lines,
    decode,
    edit_tags,
    examine,
    instruction_of,
    language_of,
    mask_emails,
    mask_secrets,
    secret_kinds,
)
from data_prep.git_commits import licence_files, without_credentials
from data_prep.mine_git import mine
from data_prep.prepared import read_split
from data_prep.rows import read_rows
from decoding.commandline import UserError

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.skipif(not shutil.which("git"), reason="needs git")
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")} | {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
}

# Assembled here so that no token stands in this file.
SECRETS = {
    "aws_access_key": "AKIA" + "Q3EXAMPLEKEY7ABC",
    "aws_secret_key": "aws_secret_access_key = " + "wJalr/K7MDENG+bPxRfiCYzzzz" * 2,
    "github_token": "ghp_" + "a1B2" * 9,
    "gitlab_token": "glpat-" + "x" * 20,
    "slack_token": "xoxb-" + "1234567890-abc",
    "private_key": "-----BEGIN RSA PRIVATE " + "KEY-----\nMIIB\n-----END RSA PRIVATE KEY-----",
    "openai_key": "sk-" + "aB3d" * 12,
    "anthropic_key": "sk-ant-" + "api03-" + "z9" * 20,
    "google_api_key": "AIza" + "S" * 35,
    "stripe_key": "sk_live_" + "4" * 24,
    "npm_token": "npm_" + "b" * 36,
    "huggingface_token": "hf_" + "c" * 34,
    "jwt": "eyJ" + "hbGciOiJIUzI1NiJ9." + "eyJ" + "zdWIiOiIxMjM0In0." + "s" * 20,
    "sendgrid_key": "SG" + "." + "d" * 22 + "." + "-_e" * 14 + "e",
    "digitalocean_token": "dop_v1_" + "0f" * 32,
    "azure_storage_key": "AccountKey=" + "Zz/+9" * 17 + "Z==",
    "url_password": "postgres://admin:" + "Sup3rS3cret@localhost:5432/x",
}
SECRETS["aws_secret_key"] = SECRETS["aws_secret_key"][: len("aws_secret_access_key = ") + 40]


def git(repository: Path, *arguments: str | bytes, **more) -> bytes:
    line = ["git", "-C", str(repository), *arguments]
    return subprocess.run(line, env=ENVIRONMENT, check=True, capture_output=True, **more).stdout


class History:
    """A bare repository written with fast-import: one stream of commits on one branch, unless told otherwise."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True)
        git(path, "init", "--quiet", "--bare", "--initial-branch=main")
        self.count = 0
        self.branches: set[str] = set()

    def add(self, *commits: dict) -> History:
        """Each commit: message, encoding (that it says it has), files {path: bytes, None to delete, or (mode, bytes)},
        moves [(old, new)], author, branch, start (the branch it begins at), merge (a branch)."""
        stream, begun = [], set()
        for commit in commits:
            self.count += 1
            ref = f"refs/heads/{commit.get('branch', 'main')}"
            author = commit.get("author", "A U Thor <author@corp.example.net>")
            message = commit.get("message", f"Commit number {self.count} of the test")
            message = message.encode() if isinstance(message, str) else message
            stream.append(
                f"commit {ref}\nmark :{self.count}\ncommitter {author} {1_600_000_000 + self.count} +0000\n".encode()
            )
            stream.append(f"encoding {commit['encoding']}\n".encode() if "encoding" in commit else b"")
            stream.append(_data(message))
            if "start" in commit:
                stream.append(f"from refs/heads/{commit['start']}\n".encode())
            elif ref in self.branches - begun:
                stream.append(f"from {ref}^0\n".encode())
            begun.add(ref)
            if "merge" in commit:
                stream.append(f"merge refs/heads/{commit['merge']}\n".encode())
            for old, new in commit.get("moves", ()):
                stream.append(b"R " + _quoted(old) + b" " + _quoted(new) + b"\n")
            for path, content in commit.get("files", {}).items():
                mode, data = content if isinstance(content, tuple) else ("100644", content)
                if data is None:
                    stream.append(b"D " + _quoted(path) + b"\n")
                elif mode == "160000":
                    stream.append(b"M 160000 " + data + b" " + _quoted(path) + b"\n")
                else:
                    stream.append(f"M {mode} inline ".encode() + _quoted(path) + b"\n" + _data(data))
            stream.append(b"\n")
        git(self.path, "fast-import", "--quiet", input=b"".join(stream))
        self.branches |= begun
        return self


def _data(data: bytes) -> bytes:
    return b"data %d\n" % len(data) + data + b"\n"


def _quoted(path: str | bytes) -> bytes:
    raw = path.encode() if isinstance(path, str) else path
    return b'"' + b"".join(b"\\%03o" % byte for byte in raw) + b'"'


def mined(history: History | Path, out: Path, **settings) -> tuple[list[dict], list[dict], dict]:
    """Mine one repository; return its rows, what was rejected, and the report, with the counts checked."""
    path = history.path if isinstance(history, History) else history
    [one] = mine(GitConfig(repo=[str(path)], out=str(out), **settings))
    rows, rejected = list(read_rows(one.rows)), list(read_rows(one.rejected))
    report = json.loads(one.rows.with_suffix(".report.json").read_text())
    files, commits = report["files"], report["commits"]
    assert files["rows"] == len(rows)
    assert files["seen"] == len(rows) + sum(report["files_dropped"].values())
    assert commits["seen"] == sum(report["commits_dropped"].values()) + commits["with_rows"] + commits["without_rows"]
    assert commits["with_rows"] == len({row["commit"] for row in rows})
    assert Counter(row["reason"] for row in rejected if "path" in row) == report["files_dropped"]
    assert Counter(row["reason"] for row in rejected if "path" not in row) == report["commits_dropped"]
    return rows, rejected, report


def contents(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(out.iterdir())}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "data_prep/mine_git.py", *arguments]


def edits(count: int, start: int = 0) -> list[dict]:
    """Commits that each change two of twenty files."""
    return [
        {
            "files": {
                f"f{(i + j) % 20}.txt": "".join(f"line {k} of {i * k}\n" for k in range(9)).encode() for j in (0, 7)
            }
        }
        for i in range(start, start + count)
    ]


# ---------------------------------------------------------------------------------------------------------------------
# Documents are the committed bytes

TEXTS = {
    "lf": b"a\nb\nc\n",
    "no-final-newline": b"a\nb",
    "crlf": b"a\r\nb\r\n",
    "mixed": b"a\r\nb\nc\r\n\n",
    "bom": b"\xef\xbb\xbfa\nb\n",
    "bom-crlf": b"\xef\xbb\xbfa\r\nb\r\n",
    "lone-cr": b"a\rb\rc\n",
    "nul": b"a\x00b\nc\n",
    "u2028": "a\u2028b\u2029c\x85d\n".encode(),
    "form-feed": b"a\x0cb\x0b\x1c\n",
    "not-bmp": "naïve \U0001f600\n".encode(),
    "tabs": b"\ta\t\n \n",
    "only-newlines": b"\n\n\n",
}
NAMES = [
    "plain.txt",
    "a b.txt",
    'quo"te.txt',
    "back\\slash",
    "new\nline",
    "tab\t",
    "ü.txt",
    b"latin\xe9.txt",
    ":a",
    "-x",
]


def test_documents_are_the_committed_bytes(tmp_path):
    history = History(tmp_path / "r")
    history.add({"files": TEXTS})
    history.add({"files": {name: data + b"new\r\n" for name, data in TEXTS.items()}})
    history.add({"files": dict.fromkeys(TEXTS, b"")})
    history.add({"files": TEXTS})
    rows, _, _ = mined(history, tmp_path / "out", max_files=99)
    assert len(rows) == 3 * len(TEXTS)
    for row in rows:
        assert row["after"].encode() == git(history.path, "show", f"{row['commit']}:{row['path']}")
        assert row["before"].encode() == git(history.path, "show", f"{row['commit']}^:{row['path']}")


def test_any_file_name_is_mined_and_shown_as_text(tmp_path):
    history = History(tmp_path / "r")
    history.add({"files": dict.fromkeys(NAMES, b"one\n")}, {"files": dict.fromkeys(NAMES, b"two\n")})
    rows, _, _ = mined(history, tmp_path / "out")
    raw = [name if isinstance(name, bytes) else name.encode() for name in NAMES]
    assert sorted(row["path"] for row in rows) == sorted(name.decode("utf-8", "backslashreplace") for name in raw)
    assert len({row["group"] for row in rows}) == len(NAMES)


@given(st.binary() | st.text().map(str.encode))
def test_decoding_gives_every_byte_back_or_a_fault(data):
    text, fault = decode(data)
    assert fault in ("utf16", "binary", "not_utf8") if fault else text.encode() == data


@given(
    st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=2), st.sampled_from(["utf-16-le", "utf-16-be"])
)
def test_utf16_is_refused_by_name_with_and_without_a_mark(text, encoding):
    assert decode(text.encode(encoding)) == ("", "utf16")
    assert decode(("\ufeff" + text + "é").encode(encoding)) == ("", "utf16")


# ---------------------------------------------------------------------------------------------------------------------
# What is left out, and why

OLD = b"".join(b"line %d\n" % i for i in range(8))
NEW = OLD.replace(b"line 3", b"row 3")
REFUSED = {
    "utf16": {"u.txt": ("héé\n".encode("utf-16"), "hé\n".encode("utf-16"))},
    "not_utf8": {"latin.txt": (b"caf\xe9\n", b"caf\xe8\n"), "from-utf8.txt": (OLD, OLD + b"\xff\n")},
    "binary": {"b.dat": (b"\x00\xff\x01", b"\x00\xff\x02"), "c.dat": (bytes(range(9)) * 9, bytes(range(8)) * 9)},
    "symlink": {"link": (("120000", b"a"), ("120000", b"b"))},
    "submodule": {"sub": (("160000", b"1" * 40), ("160000", b"2" * 40))},
    "type_change": {"was-file": (OLD, ("120000", b"a"))},
    "mode_only": {"run.sh": (OLD, ("100755", OLD))},
    "added": {"added.txt": (None, OLD)},
    "deleted": {"deleted.txt": (b"gone\n", None)},
    "too_large": {"large.txt": (OLD, b"y" * 99 + b"\n" + OLD * 20)},
    "too_many_lines": {"long.txt": (b"\n" * 21, b"\n" * 22)},
    "long_line": {"wide.txt": (OLD, b"x" * 61 + b"\n")},
    "vendored": {"vendor/a.py": (OLD, NEW), "x/node_modules/b.js": (OLD, NEW), "third_party/c.c": (OLD, NEW)},
    "generated": {
        "package-lock.json": (OLD, NEW),
        "poetry.lock": (OLD, NEW),
        "app.min.js": (OLD, NEW),
        "api_pb2.py": (OLD, NEW),
        "header.go": (b"// Code generated by x. DO NOT EDIT.\n" + OLD, b"// Code generated by x. DO NOT EDIT.\n" + NEW),
    },
    "email": {"mail.txt": (OLD, NEW + b"joe@corp.co\n")},
    "excluded": {"docs/x.txt": (OLD, NEW)},
}


def test_every_refusal_is_counted_and_listed_by_name(tmp_path):
    history = History(tmp_path / "r")
    before = {path: old for files in REFUSED.values() for path, (old, _) in files.items() if old is not None}
    history.add({"files": before | {"kept.txt": OLD}})
    for files in REFUSED.values():
        history.add({"files": {path: new for path, (_, new) in files.items()}})
    history.add({"moves": [("kept.txt", "moved.txt")]}, {"files": {"moved.txt": NEW}})
    untouched = fingerprint_of(history.path)
    limits = {"max_bytes": 200, "max_lines": 20, "max_line_chars": 60, "max_files": 6}
    rows, rejected, _ = mined(history, tmp_path / "out", exclude=["docs/*"], emails="drop", **limits)
    assert [(row["path"], row["before"].encode(), row["after"].encode()) for row in rows] == [("moved.txt", OLD, NEW)]
    found = {(row["path"], row["reason"]) for row in rejected if "path" in row}
    assert found == {(path, reason) for reason, files in REFUSED.items() for path in files} | {
        ("moved.txt", "pure_rename")
    }
    assert fingerprint_of(history.path) == untouched


def fingerprint_of(folder: Path) -> dict[str, str]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def of_languages(tmp_path: Path, **settings) -> set[str]:
    history = History(tmp_path / "r")
    names = ["a.py", "b.PYI", "c.js", "tests/d.py", "Makefile"]
    history.add({"files": dict.fromkeys(names, OLD)}, {"files": dict.fromkeys(names, NEW)})
    return {row["path"] for row in mined(history, tmp_path / "out", **settings)[0]}


def test_languages_and_globs_choose_files(tmp_path):
    assert of_languages(tmp_path / "1", languages=["python"]) == {"a.py", "b.PYI", "tests/d.py"}
    assert of_languages(tmp_path / "2", include=["*.py"], exclude=["tests/*"]) == {"a.py"}
    assert (language_of(b"x/a.rs"), language_of(b"Makefile")) == ("rust", "")


COMMITS = {
    "merge": {"message": "Merge the side branch", "merge": "side", "files": {"a.txt": b"merged\n" + OLD}},
    "revert": {"message": 'Revert "Name the rows"\n\nThis reverts commit ' + "0" * 40},
    "bot": {"author": "dependabot[bot] <1+dependabot[bot]@users.noreply.github.com>"},
    "junk_message": {"message": "wip"},
}
LEFT_OUT = {
    "message_not_utf8": {"message": b"caf\xe9"},
    "empty_message": {"message": "Signed-off-by: A <a@b.co>\n"},
    "too_many_files": {"files": {f"n{i}.txt": OLD for i in range(5)}},
    "no_files": {"files": {}},
    "secret_github_token": {"message": "Use " + SECRETS["github_token"]},
}


def commits_of_every_kind(tmp_path: Path) -> History:
    history = History(tmp_path / "r").add({"files": {"a.txt": OLD}})
    history.add({"branch": "side", "start": "main", "files": {"side.txt": OLD}})
    for number, commit in enumerate([*COMMITS.values(), *LEFT_OUT.values()]):
        history.add({"files": {"a.txt": b"%d\n" % number + OLD}} | commit)
    for message in ("fixup! Name the rows", "Update a.txt", "fix", "...", "Fix the bounds of the second loop"):
        number += 1
        history.add({"message": message, "files": {"a.txt": b"%d\n" % number + OLD}})
    return history


def test_commits_are_left_out_by_reason_unless_asked_for(tmp_path):
    history = commits_of_every_kind(tmp_path)
    rows, _, report = mined(history, tmp_path / "out", max_files=4)
    assert [row["instruction"] for row in rows] == ["Fix the bounds of the second loop"]
    assert report["commits_dropped"] == dict.fromkeys(COMMITS, 1) | dict.fromkeys(LEFT_OUT, 1) | {"junk_message": 5}
    rows, _, report = mined(history, tmp_path / "out", max_files=4, keep=list(COMMITS))
    assert report["commits_dropped"] == dict.fromkeys(LEFT_OUT, 1)
    assert len(rows) == len(COMMITS) + 5
    [merge] = [row for row in rows if row["instruction"] == "Merge the side branch"]
    assert merge["before"].encode() == OLD  # of the first parent
    assert not any("dependabot" in json.dumps(row) for row in rows)


def test_a_message_that_is_utf16_by_its_commit_alone_is_counted_as_not_utf8(tmp_path):
    history = History(tmp_path / "r").add({"files": {"a.txt": OLD}})
    history.add({"files": {"a.txt": NEW}, "message": "Name the rows of the table", "encoding": "UTF-16"})
    assert mined(history, tmp_path / "out")[2]["commits_dropped"] == {"message_not_utf8": 1}


def test_a_message_becomes_an_instruction():
    message = (
        "Read the file once\nand no more\n\nIt was read twice.\n\n\n\nFixes #3\n"
        "Signed-off-by: A <a@b.co>\nCo-authored-by: B <b@b.co>\n(cherry picked from commit 0123abc)\n"
    )
    assert instruction_of(message, "full") == "Read the file once\nand no more\n\nIt was read twice.\n\nFixes #3"
    assert instruction_of(message, "subject") == "Read the file once and no more"


def test_a_row_says_where_it_is_from_and_nobody_is_named(tmp_path):
    history = History(tmp_path / "r")
    git(history.path, "remote", "add", "origin", "https://joe:token@host.example.com/team/tool.git?key=1")
    history.add({"files": {"a.py": OLD, "b.py": OLD}})
    history.add({"message": "Rename the row, as joe@corp.co asked", "files": {"a.py": NEW, "b.py": NEW}})
    history.add({"files": {"LICENSE": OLD, "COPYING.md": OLD, "src/LICENSE": OLD}}, {"files": {"a.py": OLD}})
    rows, _, report = mined(history, tmp_path / "out")
    commit = git(history.path, "rev-parse", "main~2").decode().strip()
    assert {key: value for key, value in rows[0].items() if key not in ("before", "after", "group")} == {
        "instruction": f"Rename the row, as {EMAIL_MASK} asked",
        "repo": "https://host.example.com/team/tool.git",
        "commit": commit,
        "path": "a.py",
        "old_path": None,
        "licence_files": [],
        "date": "2020-09-13T12:26:42+00:00",
        "language": "python",
        "files": 2,
        "tags": [],
        "masked": {"emails": 1, "secrets": 0},
    }
    assert rows[2]["licence_files"] == ["COPYING.md", "LICENSE"]
    assert b"joe" not in b"".join(contents(tmp_path / "out").values())
    assert b"Thor" not in b"".join(contents(tmp_path / "out").values())
    assert report["masked"] == {"emails": 2}


def test_urls_lose_credentials_and_local_paths():
    assert without_credentials("git@host.org:team/tool.git") == "host.org:team/tool.git"
    assert without_credentials("ssh://joe@host.org:22/tool") == "ssh://host.org:22/tool"
    for url in ("/home/joe/tool", "file:///home/joe/tool", "../tool", "", "https://[x"):
        assert without_credentials(url) == ""


def test_licence_files_are_read_from_a_raw_tree():
    entries = [b"LICENSE-MIT", b"Licence", b"COPYING", b"UNLICENSE", b"a.py", b"relicense.py"]
    tree = b"".join(b"100644 " + name + b"\0" + bytes(range(20)) for name in entries)
    assert licence_files(tree, 20) == ["LICENSE-MIT", "Licence", "COPYING", "UNLICENSE"]


def test_linguist_attributes_at_the_tip_name_generated_and_vendored_files(tmp_path):
    history = History(tmp_path / "r")
    names = ["api/a.py", "lib/b.py", "c.py"]
    history.add({"files": dict.fromkeys(names, OLD)}, {"files": dict.fromkeys(names, NEW)})
    history.add({"files": {".gitattributes": b"api/* linguist-generated\nlib/** linguist-vendored=true\n"}})
    rows, _, report = mined(history, tmp_path / "out")
    assert [row["path"] for row in rows] == ["c.py"]
    assert report["files_dropped"] == {"generated": 1, "vendored": 1, "added": 4}
    rows, _, _ = mined(history, tmp_path / "out", keep=["generated"])
    assert [row["path"] for row in rows] == ["api/a.py", "c.py"]


def test_edits_of_nothing_but_whitespace_are_tagged():
    assert edit_tags("a b\nc", "a  b\nc\n") == ["whitespace_only"]
    assert edit_tags("a\r\nb\r\n", "a\nb\n") == ["whitespace_only"]
    assert edit_tags("a\nb", "a\nb\n") == ["edge_newline"]
    assert edit_tags("a b", "ab") == edit_tags("ab c", "a b c") == edit_tags("a", "b") == []


@given(st.text("ab \n\r"), st.text("ab \n\r"))
def test_only_edits_of_nothing_but_whitespace_are_tagged(before, after):
    if before != after:
        blank = before.split() == after.split()
        edge = before.strip("\n") == after.strip("\n")
        assert edit_tags(before, after) == (["edge_newline"] if edge else ["whitespace_only"] if blank else [])


# ---------------------------------------------------------------------------------------------------------------------
# Secrets and addresses


@pytest.mark.parametrize("kind", SECRETS)
def test_secrets_are_dropped_by_kind_and_stand_nowhere(tmp_path, kind):
    secret = SECRETS[kind]
    history = History(tmp_path / "r").add({"files": {"a.txt": OLD, "b.txt": OLD}})
    history.add({"files": {"a.txt": NEW + f"x = '{secret}'\n".encode(), "b.txt": NEW}}, {"files": {"a.txt": OLD}})
    rows, rejected, _ = mined(history, tmp_path / "out")
    assert [row["path"] for row in rows] == ["b.txt"]
    assert [row["reason"] for row in rejected if row.get("path") == "a.txt"][1:] == [f"secret_{kind}"] * 2
    assert secret.splitlines()[-1].encode() not in b"".join(contents(tmp_path / "out").values())
    rows, _, report = mined(history, tmp_path / "out", secrets="mask")
    assert [(row["path"], row["masked"]["secrets"]) for row in rows] == [("a.txt", 1), ("b.txt", 0), ("a.txt", 1)]
    assert report["masked"] == {"secrets": 2}
    assert secret.splitlines()[-1].encode() not in b"".join(contents(tmp_path / "out").values())


def test_what_only_looks_like_a_secret_is_kept():
    for text in (
        "task-force-of-the-very-long-named-kind-of-thing",
        "AKIAX",
        "sk-button-primary-large-outline-rounded-x",
    ):
        assert secret_kinds(text) == []


@pytest.mark.parametrize(
    "text, masked",
    [
        ("DB=postgres://admin:Sup3rS3cret@localhost:5432/x", "DB=postgres://admin:<secret>@localhost:5432/x"),
        ("redis://:p4ssw0rd@redis:6379", "redis://:<secret>@redis:6379"),
        ("clone https://bob:hunter22@git.corp.com/x.git", "clone https://bob:<secret>@git.corp.com/x.git"),
        ("mongodb+srv://u:p@ss:w0rd@h.net/db?x=y", "mongodb+srv://u:<secret>@h.net/db?x=y"),
        ("jdbc:mysql://root:%40bcd@h", "jdbc:mysql://root:<secret>@h"),
        ("https://joe@corp.co:Secr3t@corp.co", "https://joe@corp.co:<secret>@corp.co"),
        ("https://u:$ecretPass9@h.io", "https://u:<secret>@h.io"),
        ("https://u:{notabrace9@h.io", "https://u:<secret>@h.io"),
        ("https://u:(notabrace9@h.io", "https://u:<secret>@h.io"),
        ("https://u:[notabrace9@h.io", "https://u:<secret>@h.io"),
    ],
)
def test_a_password_in_a_url_is_a_secret_and_nothing_else_of_it_is_masked(text, masked):
    assert secret_kinds(text) == ["url_password"]
    assert mask_secrets(text) == (masked, 1)
    assert mask_emails(masked) == mask_secrets(masked) == (masked, 0)


@pytest.mark.parametrize(
    "password",
    [
        *("password", "pass", "passwd2", "DB_PASSWORD", "your-password-here", "mysecretpassword", "changeme", "user"),
        *(
            "${PASS}",
            "$PASS",
            "$_pass1",
            "$password",
            "$(cat)",
            "{password}",
            "{x.y}{z}",
            "(see)",
            "%s",
            "%(pw)s",
            "%DB_PASS%",
            "<password>",
            "[pw]",
            "****",
            "xxxxx",
            "...",
            "a",
        ),
    ],
)
def test_what_stands_in_for_a_password_in_a_url_is_kept(password):
    text = f"https://user:{password}@corp.co/x.git"
    assert secret_kinds(text) == [] and mask_emails(text) == (text, 0)


@pytest.mark.parametrize(
    "text",
    [
        *("ssh://git@host/x", "https://joe@corp.co/x", "git@corp.co:x.git", "http://host:8080/", "//host:80@x"),
        *("docker://alpine:3.18.4@sha256:0f", "url(http://x:8080)@media", "http://h:8080, joe@corp.co"),
    ],
)
def test_a_url_without_a_password_has_no_secret(text):
    assert secret_kinds(text) == []


PIECES = st.sampled_from(
    [*"ab@:/.,'\" \n${}()[]?", "://", "x://", "joe@corp.co", "git", "corp.co", "passw0rd", "sha256:", "<secret>"]
)


@given(st.lists(PIECES, max_size=12).map("".join))
def test_masking_secrets_and_addresses_twice_is_masking_once(text):
    once, _ = mask_secrets(text)
    assert mask_secrets(once) == (once, 0)
    masked, _ = mask_emails(once)
    assert mask_emails(masked) == mask_secrets(masked) == (masked, 0)


def test_the_help_names_every_kind_of_secret():
    done = subprocess.run(command("--help"), cwd=ROOT, capture_output=True, text=True)
    assert set(SECRETS) <= set(SECRET_KINDS) <= set(done.stdout.replace(",", " ").split())


LINES = st.lists(st.sampled_from(["a", "b", "", "x" * 9, *SECRETS.values()]), max_size=6).map("\n".join)


@given(LINES, LINES)
def test_what_differs_from_a_clean_document_is_enough_to_find_secrets(before, after):
    config = GitConfig()
    earlier = examine(len(before), before.encode(), config)
    assert examine(len(after), after.encode(), config, earlier) == examine(len(after), after.encode(), config)


@given(st.text("ab\n"), st.text("ab\n"))
def test_changed_lines_are_all_that_differs(before, after):
    old, new = changed_lines(before, after)
    assert any(
        before == start + old + end and after == start + new + end
        for start in [before[: len(before) - len(old) - cut] for cut in range(len(before) - len(old) + 1)]
        for end in [before[len(start) + len(old) :]]
        if (not start or start.endswith("\n")) and (not end or end.startswith("\n"))
    )


@pytest.mark.parametrize(
    "text, masked",
    [
        ("mail joe@corp.co.", f"mail {EMAIL_MASK}."),
        ("<joe.o'hara+x@sub.corp-a.co>", f"<{EMAIL_MASK}>"),
        ("jörg@münchen.de", EMAIL_MASK),
        ("git@github.com:team/tool", "git@github.com:team/tool"),
        ("a@example.org icon@2x.png @app.route x@y.dot(z)", "a@example.org icon@2x.png @app.route x@y.dot(z)"),
        ("a@b.co@c.org", f"{EMAIL_MASK}@c.org"),
        ("joe@corp.co.x..joe@corp.co", f"{EMAIL_MASK}@example.com"),
        ("1@-.1@1.aa, a@b.co", f"{EMAIL_MASK}@example.com, {EMAIL_MASK}"),
        ("https://joe@corp.co/x ssh://git@corp.co", "https://joe@corp.co/x ssh://git@corp.co"),
        ("https://$U:$P@corp.co {u}://%(user)s:%(pw)s@a.co", "https://$U:$P@corp.co {u}://%(user)s:%(pw)s@a.co"),
        ("https://u:pa/user@corp.co http://u:a?b#c@d/e@a.co", "https://u:pa/user@corp.co http://u:a?b#c@d/e@a.co"),
        ("http://h:80/joe@corp.co http://u:p/x joe@corp.co", f"http://h:80/{EMAIL_MASK} http://u:p/x {EMAIL_MASK}"),
        ("Joe,https://joe.co,joe@corp.co", f"Joe,https://joe.co,{EMAIL_MASK}"),
        ("https://corp.co/joe@corp.co?to=joe@corp.co", f"https://corp.co/{EMAIL_MASK}?to={EMAIL_MASK}"),
    ],
)
def test_addresses_are_masked_and_code_is_not(text, masked):
    assert mask_emails(text)[0] == masked


@given(st.text("ab@.- \n1") | st.lists(st.sampled_from(["joe@corp.co", "x", " ", "\n", "@", "."])).map("".join))
def test_masking_twice_is_masking_once(text):
    once, _ = mask_emails(text)
    assert mask_emails(once) == (once, 0)


def test_addresses_are_masked_alike_on_both_sides(tmp_path):
    mail = b"ask joe@corp.co\n"
    history = History(tmp_path / "r").add({"files": {"a.txt": mail + OLD}})
    history.add({"files": {"a.txt": mail + NEW}}, {"files": {"a.txt": b"ask ann@corp.co\n" + NEW}})
    rows, rejected, report = mined(history, tmp_path / "out")
    assert [(row["before"], row["after"]) for row in rows] == [
        (f"ask {EMAIL_MASK}\n" + OLD.decode(), f"ask {EMAIL_MASK}\n" + NEW.decode())
    ]
    assert rejected[-1]["reason"] == "no_op_after_masking"
    assert report["masked"] == {"emails": 2}
    assert len(mined(history, tmp_path / "out", emails="keep")[0]) == 2


# ---------------------------------------------------------------------------------------------------------------------
# Renames and groups


def test_a_renamed_file_stays_in_its_group(tmp_path):
    history = History(tmp_path / "r").add({"files": {"a.txt": OLD, "other.txt": b"else\n"}}, {"files": {"a.txt": NEW}})
    history.add({"moves": [("a.txt", "b/c.txt")], "files": {"b/c.txt": NEW + b"more\n"}})
    history.add({"files": {"b/c.txt": OLD, "other.txt": b"more\n"}})
    rows, _, _ = mined(history, tmp_path / "out")
    assert [(row["old_path"], row["path"]) for row in rows] == [
        (None, "a.txt"),
        ("a.txt", "b/c.txt"),
        (None, "b/c.txt"),
        (None, "other.txt"),
    ]
    assert (rows[1]["before"].encode(), rows[1]["after"].encode()) == (NEW, NEW + b"more\n")
    assert [row["group"] == rows[0]["group"] for row in rows] == [True, True, True, False]


@pytest.mark.parametrize("steps", [1, 2])
def test_files_that_trade_names_become_one_group_in_rows_already_written(tmp_path, steps):
    other = OLD.replace(b"line", b"text of another kind")
    history = History(tmp_path / "r").add({"files": {"a.txt": OLD, "b.txt": other}})
    history.add({"files": {"a.txt": NEW, "b.txt": b"x\n" + other, "b2.txt": OLD}})
    if steps == 2:  # the rows are those of an earlier run
        assert len({row["group"] for row in mined(history, tmp_path / "out")[0]}) == 2
    history.add({"files": {"b.txt": None}}, {"moves": [("a.txt", "b.txt")]}, {"files": {"b.txt": OLD}})
    rows, _, _ = mined(history, tmp_path / "out")
    assert [row["path"] for row in rows] == ["a.txt", "b.txt", "b.txt"]
    assert len({row["group"] for row in rows}) == 1


# ---------------------------------------------------------------------------------------------------------------------
# Again, and after an interruption


def test_new_commits_are_appended_and_nothing_else_changes(tmp_path):
    history = History(tmp_path / "r").add(*edits(30))
    first, _, _ = mined(history, tmp_path / "out")
    assert mined(history, tmp_path / "out")[0] == first
    history.add(*edits(15, 30))
    mined(history, tmp_path / "out")
    mined(history, tmp_path / "whole")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert (tmp_path / "out" / "r.jsonl").read_bytes().startswith("".join(map(as_line, first)).encode())


def as_line(row: dict) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"


def test_a_branch_that_is_merged_later_gives_the_rows_of_the_whole(tmp_path):
    history = History(tmp_path / "r").add(*edits(12))
    history.add({"branch": "side", "start": "main", "files": {"side.txt": OLD}})
    history.add({"branch": "side", "files": {"side.txt": NEW}})
    history.add(*edits(5, 12))
    mined(history, tmp_path / "out")
    history.add({"merge": "side", "message": "Merge side", "files": {"side.txt": NEW}}, *edits(4, 17))
    rows, _, _ = mined(history, tmp_path / "out")
    whole, _, _ = mined(history, tmp_path / "whole")
    assert "side.txt" in {row["path"] for row in rows}
    assert sorted(map(as_line, rows)) == sorted(map(as_line, whole))


def anew(path: Path, out: Path, **settings) -> str:
    [one] = mine(GitConfig(repo=[str(path)], out=str(out), **settings))
    return one.started_anew


def test_other_settings_and_rewritten_history_start_anew_and_say_so(tmp_path):
    history = History(tmp_path / "r").add(*edits(20))
    assert anew(history.path, tmp_path / "out") == ""
    assert "max_files was 10 and is 9" in anew(history.path, tmp_path / "out", max_files=9)
    git(history.path, "update-ref", "refs/heads/main", "main~2")
    assert "HEAD does not descend" in anew(history.path, tmp_path / "out", max_files=9)
    assert anew(history.path, tmp_path / "out", max_files=9) == ""
    (tmp_path / "out" / "r.jsonl").unlink()
    assert "r.jsonl is shorter" in anew(history.path, tmp_path / "out", max_files=9)
    mined(history, tmp_path / "out", max_files=9)
    mined(history, tmp_path / "whole", max_files=9)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.fixture(scope="module")
def long_history(tmp_path_factory) -> tuple[History, dict[str, bytes]]:
    """A repository of thousands of commits, and the files that mining it without interruption gives."""
    folder = tmp_path_factory.mktemp("long")
    renames = [{"moves": [(f"f{i}.txt", f"moved/f{i}.txt")]} for i in range(3)]
    history = History(folder / "r").add(*edits(1000), *renames, *edits(1000, 1000))
    mined(history, folder / "whole")
    return history, contents(folder / "whole")


@pytest.mark.parametrize("reports", [0, 2])
def test_a_killed_run_goes_on_to_the_files_of_a_whole_one(tmp_path, long_history, reports):
    history, whole = long_history
    out = tmp_path / "out"
    line = command(f"repo={history.path}", f"out={out}")
    process = subprocess.Popen(line, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    killed = False
    while process.poll() is None and not killed:
        if done_of(out) >= 500 * reports:
            process.send_signal(signal.SIGKILL)
            killed = True
        time.sleep(0.001)
    process.wait()
    assert killed and contents(out) != whole
    # What a kill in the middle of a write leaves: half a row, half a report.
    with (out / "r.jsonl").open("ab") as file:
        file.write(b'{"group": "0123')
    (out / f".r.report.json.{process.pid}.part").write_text("{")
    assert subprocess.run(line, cwd=ROOT, capture_output=True).returncode == 0
    assert contents(out) == whole


def done_of(out: Path) -> int:
    """How many commits the report of an unfinished walk counts; -1 before there is one."""
    try:
        walk = json.loads((out / "r.report.json").read_text())["walk"]
    except OSError:
        return -1
    return walk["done"] if walk else 0


def test_a_walk_that_was_cut_off_ends_where_it_was_to_end_before_newer_commits(tmp_path):
    history = History(tmp_path / "r").add(*edits(40))
    out = tmp_path / "out"

    def stop_after(items: Iterable, _: str) -> Iterable:
        for number, item in enumerate(items):
            if number == 25:
                raise KeyboardInterrupt
            yield item

    with pytest.raises(KeyboardInterrupt):
        mine(GitConfig(repo=[str(history.path)], out=str(out)), stop_after)
    history.add(*edits(10, 40))
    mined(history, out)
    mined(history, tmp_path / "whole")
    assert contents(out) == contents(tmp_path / "whole")


# ---------------------------------------------------------------------------------------------------------------------
# Repositories of every kind, and mistakes


def refusal(path: Path | str, out: Path, **settings) -> str:
    with pytest.raises(UserError) as error:
        mine(GitConfig(repo=[str(path)], out=str(out), **settings))
    assert not out.exists() or not list(out.glob("*.jsonl"))
    return str(error.value)


def test_what_is_no_repository_is_refused_by_name(tmp_path):
    history = History(tmp_path / "bare")
    assert "no folder" in refusal(tmp_path / "absent", tmp_path / "out")
    (tmp_path / "plain").mkdir()
    assert f"{tmp_path / 'plain'} is not a git repository" in refusal(tmp_path / "plain", tmp_path / "out")
    assert "has no commit HEAD; is it empty?" in refusal(history.path, tmp_path / "out")
    git(tmp_path, "clone", "--quiet", str(history.add(*edits(3)).path), "work")
    (tmp_path / "work" / "inner").mkdir()
    assert "is inside the repository" in refusal(tmp_path / "work" / "inner", tmp_path / "out")
    assert "is not a git repository" in refusal(history.path / "objects", tmp_path / "out")
    assert refusal(history.path, tmp_path / "out", refs=["branch"]).endswith("has no commit branch")
    assert "named twice" in str(pytest.raises(UserError, mine, GitConfig(repo=[str(history.path)] * 2)).value)
    (tmp_path / "file").write_text("")
    assert f"{tmp_path / 'file'} is a file: name a folder" in refusal(tmp_path / "file", tmp_path / "out")
    assert "file is a file: name a folder" in refusal(history.path, tmp_path / "file")


def test_two_repositories_of_one_name_are_refused_with_what_works(tmp_path):
    paths = [str(History(tmp_path / folder / "r").add(*edits(30)).path) for folder in "ab"]
    with pytest.raises(UserError, match=r"a/r and .*b/r have one name.* out= of its own, and .*corpora=\[jsonl\]"):
        mine(GitConfig(repo=paths, out=str(tmp_path / "out")))
    rows = [str(one.rows) for path in paths for one in mine(GitConfig(repo=[path], out=str(Path(path).parent / "out")))]
    config = OracleConfig(corpora=["jsonl"], jsonl=rows, out=str(tmp_path / "built"))
    entry = build_oracles(config)["corpora"]["jsonl"]
    assert entry["offered"] == 2 * sum(1 for _ in read_rows(Path(rows[0]))) > 0


def test_mistakes_are_one_line_and_exit_code_2(tmp_path):
    for arguments in ([f"repo={tmp_path}"], [], ["repo=.", "keep=[merges]"], ["repo=.", "languages=[cobol]"]):
        result = subprocess.run(command(*arguments), cwd=ROOT, capture_output=True, text=True)
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1


def test_files_of_another_repository_are_never_overwritten(tmp_path):
    history, other = History(tmp_path / "1" / "r").add(*edits(3)), History(tmp_path / "2" / "r").add(*edits(4))
    mined(history, tmp_path / "out")
    before = contents(tmp_path / "out")
    with pytest.raises(UserError, match="is of .*1/r: .* remove r.jsonl, r.rejected.jsonl, r.report.json"):
        mined(other, tmp_path / "out")
    assert contents(tmp_path / "out") == before
    (tmp_path / "out" / "r.report.json").unlink()
    with pytest.raises(UserError, match="out has r.jsonl, r.rejected.jsonl without r.report.json: move"):
        mined(history, tmp_path / "out")
    (tmp_path / "out" / "r.report.json").write_text("{")
    with pytest.raises(UserError, match="damaged: remove r.jsonl, r.rejected.jsonl, r.report.json, or"):
        mined(history, tmp_path / "out")
    (tmp_path / "out" / "r.report.json").unlink()
    (tmp_path / "out" / "r.jsonl").unlink()
    with pytest.raises(UserError, match="out has r.rejected.jsonl without r.report.json: move"):
        mined(history, tmp_path / "out")


def test_a_work_tree_its_git_folder_and_a_bare_repository_give_the_same_rows(tmp_path):
    history = History(tmp_path / "r").add(*edits(8))
    git(tmp_path, "clone", "--quiet", str(history.path), "w/r".replace("/", "-"))
    rows = [
        [{**row, "group": "", "repo": ""} for row in mined(path, tmp_path / f"out{i}")[0]]
        for i, path in enumerate([history.path, tmp_path / "w-r", tmp_path / "w-r" / ".git"])
    ]
    assert rows[0] == rows[1] == rows[2] != []


def test_a_shallow_clones_first_commits_are_told_from_added_files(tmp_path):
    history = History(tmp_path / "r").add(*edits(30))
    git(tmp_path, "clone", "--quiet", "--bare", "--depth=5", f"file://{history.path}", "shallow")
    rows, rejected, report = mined(tmp_path / "shallow", tmp_path / "out")
    assert report["commits_dropped"] == {"shallow_boundary": 1}
    assert len(rows) == 8
    git(tmp_path / "shallow", "fetch", "--quiet", "--unshallow")
    assert "shallow was" in anew(tmp_path / "shallow", tmp_path / "out")


def test_a_partial_clone_is_refused_and_nothing_is_fetched(tmp_path):
    history = History(tmp_path / "r").add(*edits(20))
    git(history.path, "config", "uploadpack.allowFilter", "true")
    git(tmp_path, "clone", "--quiet", "--bare", "--filter=blob:none", f"file://{history.path}", "partial")
    before = fingerprint_of(tmp_path / "partial")
    with pytest.raises(UserError, match="partial clone"):
        mined(tmp_path / "partial", tmp_path / "out")
    assert fingerprint_of(tmp_path / "partial") == before


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a folder away")
def test_a_repository_of_another_user_is_refused_with_the_remedy(tmp_path, monkeypatch):
    history = History(tmp_path / "r").add(*edits(2))
    for path in [history.path, *history.path.rglob("*")]:
        os.chown(path, 12345, 12345)
    monkeypatch.delenv("SUDO_UID", raising=False)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    assert "git config --global --add safe.directory" in refusal(history.path, tmp_path / "out")


def test_settings_and_environment_neither_run_programs_nor_change_the_rows(tmp_path, monkeypatch):
    history = History(tmp_path / "r").add(*edits(8), {"moves": [("f3.txt", "g.txt")]}, {"files": {"g.txt": OLD}})
    git(tmp_path, "clone", "--quiet", str(history.path), "w")
    plain, _, _ = mined(tmp_path / "w", tmp_path / "plain")
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path / 'sprung'}\n")
    trap.chmod(0o755)
    for key in ("core.fsmonitor", "core.pager", "diff.external", "gpg.program", "filter.x.smudge", "diff.x.textconv"):
        git(tmp_path / "w", "config", key, str(trap))
    for key, value in {
        "log.showSignature": "true",
        "diff.renames": "false",
        "core.autocrlf": "true",
        "core.quotePath": "true",
        "core.abbrev": "7",
        "diff.noprefix": "true",
        "log.date": "relative",
        "color.ui": "always",
        "i18n.logOutputEncoding": "latin1",
    }.items():
        git(tmp_path / "w", "config", key, value)
    (tmp_path / "w" / ".git" / "info" / "attributes").write_text("* filter=x diff=x text eol=crlf\n")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", str(trap))
    monkeypatch.setenv("GIT_TRACE", "1")
    assert mined(tmp_path / "w", tmp_path / "odd")[0] == plain != []
    assert not (tmp_path / "sprung").exists()


def test_several_refs_are_mined_once_each_commit(tmp_path):
    history = History(tmp_path / "r").add(*edits(6))
    history.add({"branch": "side", "start": "main", "files": {"f1.txt": NEW}})
    rows, _, report = mined(history, tmp_path / "out", refs=["main", "side"])
    assert report["commits"]["seen"] == 7
    assert report["tips"] == {ref: git(history.path, "rev-parse", ref).decode().strip() for ref in ("main", "side")}


def test_a_repository_whose_name_is_not_utf8_is_mined(tmp_path):
    history = History(tmp_path / os.fsdecode(b"r\xff")).add(*edits(20))
    line = command(f"repo={os.fsdecode(os.fsencode(history.path))}", f"out={tmp_path / 'out'}")
    result = subprocess.run(line, cwd=ROOT, capture_output=True)
    assert (result.returncode, result.stderr) == (0, b"")
    assert {row["repo"] for row in mined(history, tmp_path / "out")[0]} == {"r\\xff"}


def test_a_missing_blob_is_counted_and_the_rest_is_mined(tmp_path):
    history = History(tmp_path / "r").add({"files": {"a.txt": OLD, "b.txt": OLD}}, {"files": {"a.txt": NEW}})
    blob = git(history.path, "rev-parse", "HEAD:a.txt").decode().strip()
    history.add({"files": {"b.txt": b"new\n"}})
    (history.path / "objects" / blob[:2] / blob[2:]).unlink()
    rows, rejected, _ = mined(history, tmp_path / "out")
    assert [row["path"] for row in rows] == ["b.txt"]
    assert rejected[-1]["reason"] == "missing_blob"


def test_a_repository_of_sha256_is_mined(tmp_path):
    git(tmp_path, "init", "--quiet", "--object-format=sha256", "r")
    for text in (OLD, NEW):
        (tmp_path / "r" / "a.txt").write_bytes(text)
        (tmp_path / "r" / "LICENSE").write_bytes(OLD)
        git(tmp_path / "r", "add", ".")
        git(tmp_path / "r", "-c", "user.name=A", "-c", "user.email=a@b.co", "commit", "--quiet", "-m", "Say rows")
    [row], _, _ = mined(tmp_path / "r", tmp_path / "out")
    assert (row["before"].encode(), row["after"].encode(), row["licence_files"]) == (OLD, NEW, ["LICENSE"])
    assert len(row["commit"]) == 64


# ---------------------------------------------------------------------------------------------------------------------
# The corpus git


def test_mined_commits_are_a_corpus(tmp_path):
    history = History(tmp_path / "r").add(*edits(40), {"message": "Again", "files": {"f0.txt": NEW}})
    history.add({"message": "Again", "files": {"f0.txt": OLD}}, {"message": "Again", "files": {"f0.txt": NEW}})
    history.add({"message": "Again", "files": {"f0.txt": OLD}})
    settings = GitConfig(repo=[str(history.path)], out=str(tmp_path / "git"))
    config = OracleConfig(corpora=["git"], git=settings, out=str(tmp_path / "out"))
    entry = build_oracles(config)["corpora"]["git"]
    mined_rows, _, _ = mined(history, tmp_path / "git")
    assert entry["offered"] == len(mined_rows)
    assert entry["rejected"] == {"duplicate": 1}
    train, heldout = (read_split(tmp_path / "out", ["git"], split) for split in ("train", "heldout"))
    assert len(train) + len(heldout) == len(mined_rows) - 1
    assert {row.group for row in train}.isdisjoint({row.group for row in heldout})
    by_place = {(row["commit"], row["path"]): row for row in mined_rows}
    for row in train + heldout:
        source = by_place[row.meta["commit"], row.meta["path"]]
        assert (row.before, row.after, row.instruction) == (source["before"], source["after"], source["instruction"])
        assert row.meta == {key: source[key] for key in row.meta} and {"repo", "licence_files", "date"} < set(row.meta)


def test_folders_prepared_without_the_git_corpus_keep_their_settings(tmp_path):
    assert "git" not in content_settings(OracleConfig())
    with_git = OracleConfig(corpora=["git"], git=GitConfig(repo=["r"]))
    assert content_settings(with_git)["git"]["repo"] == ["r"]
    with pytest.raises(ValueError, match="git.repo"):
        OracleConfig(corpora=["git"])


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no git checkout: there is no history to mine")
def test_this_projects_own_history_is_mined_exactly(tmp_path):
    rows, _, report = mined(ROOT, tmp_path / "out", emails="keep")
    assert report["commits"]["seen"] == int(git(ROOT, "rev-list", "--count", "HEAD")) or report["settings"]["shallow"]
    for row in rows[:20]:
        assert row["after"].encode() == git(ROOT, "show", f"{row['commit']}:{row['path']}")
        assert row["before"].encode() == git(ROOT, "show", f"{row['commit']}^:{row['old_path'] or row['path']}")


def test_a_document_refused_has_no_text():
    assert examine(5, b"\xff\xfea\0", GitConfig()) == Document("", "utf16")
