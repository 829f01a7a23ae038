"""What of a repository's history becomes an edit, and why the rest does not: every refusal has one named reason.

Of a commit: merge, revert, bot, shallow_boundary, message_not_utf8, empty_message, junk_message, secret_KIND,
too_many_files, no_files.
Of a file: added, deleted, type_change, symlink, submodule, mode_only, pure_rename, excluded, language, vendored,
generated, missing_blob, utf16, not_utf8, binary, too_large, too_many_lines, long_line, secret_KIND, email,
no_op_after_masking.
"""

from __future__ import annotations

import fnmatch
import functools
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from data_prep.git_commits import Change, Commit, shown

LANGUAGES = {
    "c": ("c", "h"),
    "cpp": ("cc", "cpp", "cxx", "hh", "hpp", "hxx"),
    "csharp": ("cs",),
    "css": ("css", "less", "scss"),
    "go": ("go",),
    "html": ("htm", "html", "vue", "svelte"),
    "java": ("java",),
    "javascript": ("cjs", "js", "jsx", "mjs"),
    "json": ("json",),
    "kotlin": ("kt", "kts"),
    "markdown": ("markdown", "md"),
    "php": ("php",),
    "python": ("py", "pyi"),
    "rst": ("rst",),
    "ruby": ("rake", "rb"),
    "rust": ("rs",),
    "scala": ("scala",),
    "shell": ("bash", "sh", "zsh"),
    "sql": ("sql",),
    "swift": ("swift",),
    "text": ("txt",),
    "toml": ("toml",),
    "typescript": ("cts", "mts", "ts", "tsx"),
    "xml": ("xml",),
    "yaml": ("yaml", "yml"),
}
_LANGUAGE_OF = {extension: language for language, extensions in LANGUAGES.items() for extension in extensions}
# Reasons that a person may switch off.
OPTIONAL = ("merge", "revert", "bot", "junk_message", "vendored", "generated")

# What ends the user, password and host of a URL; a comma or a bar does too, for rows of tables hold URLs.
_URL_ENDS = r"\s/?#,;|\"'`<>\\"
# What stands in for a password: a variable or a gap, the user's name again, a word for a password.
_PLACEHOLDER = (
    rf"(?:\$[A-Z_{{(]|\{{[^{_URL_ENDS}@}}]*\}}|\([^{_URL_ENDS}@)]*\)|\[[^{_URL_ENDS}@\]]*\]"
    r"|%(?![0-9A-Fa-f]{2})|%\w+%@|(?P=user)@|(?:\*+|\.+|(?i:x+))@|\$?(?i:(?:[a-z]+[_.-])*"
    r"(?:(?:my|your|the|some|db|api|access|auth)?(?:pass(?:w(?:or)?d|phrase)?|pwd|pw|secret|token|key){1,2}\d?(?:[_-]here)?"
    r"|change[_-]?me|example|redacted|hidden)@))"
)
# Kind, patterns of which one must be there (so that most documents cost one search, not one for each), and the pattern.
# What a pattern calls "kept" stays where the secret is masked.
_SECRETS = [
    ("aws_access_key", ("AKIA", "ASIA"), r"\b(?:AKIA|ASIA)[A-Z2-7]{16}\b"),
    (
        "aws_secret_key",
        ("aws_secret", "AWS_SECRET", "awsSecret", "AwsSecret", "secretAccessKey"),
        r"(?i)(?:aws_?secret(?:_?access)?_?key|secretAccessKey)[\"' \t:=]{1,10}[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+])",
    ),
    ("azure_storage_key", ("AccountKey=",), r"\bAccountKey=[A-Za-z0-9+/]{86}=="),
    (
        "github_token",
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
        r"\b(?:gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{22,255})",
    ),
    ("gitlab_token", ("glpat-", "gldt-", "glptt-", "glrt-"), r"\bgl(?:pat|dt|ptt|rt)-[\w-]{20,}"),
    ("slack_token", ("xox",), r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}"),
    ("slack_webhook", (r"hooks\.slack\.com",), r"hooks\.slack\.com/(?:services|workflows)/[A-Za-z0-9+/]{40,}"),
    (
        "private_key",
        ("PRIVATE KEY",),
        r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----"
        r"(?:[\s\S]{0,20000}?-----END (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----)?",
    ),
    (
        "openai_key",
        ("sk-",),
        r"\bsk-(?:[A-Za-z0-9]{48}\b|(?:proj|svcacct|admin)-[\w-]{40,}|[\w-]{0,100}T3BlbkFJ[\w-]+)",
    ),
    ("anthropic_key", ("sk-ant-",), r"\bsk-ant-[\w-]{24,}"),
    ("google_api_key", ("AIza",), r"\bAIza[\w-]{35}(?![\w-])"),
    ("stripe_key", ("k_live_",), r"\b[sr]k_live_[A-Za-z0-9]{20,}"),
    ("sendgrid_key", (r"SG\.",), r"\bSG\.[\w-]{22}\.[\w-]{43}(?![\w-])"),
    ("digitalocean_token", ("do[opr]_v1_",), r"\bdo[opr]_v1_[0-9a-f]{64}\b"),
    ("npm_token", ("npm_",), r"\bnpm_[A-Za-z0-9]{36}\b"),
    ("pypi_token", ("pypi-AgE",), r"\bpypi-AgE[\w-]{50,}"),
    ("huggingface_token", ("hf_",), r"\bhf_[A-Za-z0-9]{34,}\b"),
    ("jwt", ("eyJ",), r"\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{10,}"),
    (
        "url_password",  # the last: a token has its own kind there too. docker://image:tag@sha256:... is none
        (r"://[^\s/:]*:[^\s/]*@",),
        rf"(?<=\w)(?P<kept>://(?P<user>[^{_URL_ENDS}:]*):)(?!{_PLACEHOLDER})[^{_URL_ENDS})\]]{{4,}}(?=@(?!sha256:))",
    ),
]
_SECRETS = [(kind, hints, re.compile(pattern)) for kind, hints, pattern in _SECRETS]
_HINT = re.compile("|".join(hint for _, hints, _ in _SECRETS for hint in hints))
SECRET_KINDS = [kind for kind, _, _ in _SECRETS]


@dataclass
class GitConfig:
    """Which repositories to mine, and what to keep of their commits."""

    repo: list[str] = field(default_factory=list)  # folders of local repositories
    out: str = "data/git"  # the folder of NAME.jsonl, NAME.rejected.jsonl and NAME.report.json for each
    refs: list[str] = field(default_factory=lambda: ["HEAD"])  # branches, tags or commits whose history is mined
    message: Literal["full", "subject"] = "full"  # the instruction: the whole commit message, or its first paragraph
    include: list[str] = field(default_factory=list)  # globs of paths to keep, all where empty; * crosses /
    exclude: list[str] = field(default_factory=list)  # globs of paths to leave out
    languages: list[str] = field(default_factory=list)  # such as python, by file extension; every text file where empty
    max_files: int = 10  # commits that change more files are left out
    max_bytes: int = 100_000  # longest document, before and after
    max_lines: int = 2_000  # most lines of a document
    max_line_chars: int = 2_000  # longest line of a document: minified code and data have longer ones
    keep: list[str] = field(default_factory=list)  # of merge, revert, bot, junk_message, vendored, generated
    secrets: Literal["drop", "mask"] = field(
        default="drop", metadata={"help": f"edits that hold a secret of a known form: {', '.join(SECRET_KINDS)}"}
    )
    emails: Literal["mask", "drop", "keep"] = "mask"  # addresses in documents; in messages they are masked always

    def __post_init__(self) -> None:
        for key, given, choices in (("languages", self.languages, LANGUAGES), ("keep", self.keep, OPTIONAL)):
            if unknown := [name for name in given if name not in choices]:
                raise ValueError(f"{key}: unknown {', '.join(unknown)}; choose from {', '.join(choices)}")
        if not self.refs:
            raise ValueError("refs=[]: name at least one, such as HEAD")
        for key in ("max_files", "max_bytes", "max_lines", "max_line_chars"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key}={getattr(self, key)}: must be at least 1")


# ---------------------------------------------------------------------------------------------------------------------
# Commits and their messages

# Lines for machines and of people's names, wherever they stand in a message.
_TRAILER = re.compile(
    r"(?:[a-z]+(?:-[a-z]+)*-by|cc|change-id|git-svn-id|gerrit-[a-z-]+|reviewed-on|differential revision)[ \t]*:.*"
    r"|\(cherry picked from commit [0-9a-f]+\)",
    re.IGNORECASE,
)
_REVERT = re.compile(r'revert(?:ed|s|ing)?\b[ :"]|.*^this reverts commit [0-9a-f]{7,}', re.I | re.M | re.S)
_AUTOSQUASH = re.compile(r"(?:fixup|squash|amend)! ")
_JUNK = re.compile(
    r"(?:wip|tmp|temp|todo|test(?:s|ing)?|update[sd]?|fix(?:e[sd])?|change[sd]?|changes? (?:made|files?)|edit(?:s|ed)?|"
    r"minor(?: (?:fix(?:es)?|changes?|updates?|edits?))?|misc|stuff|typos?|save|commit|checkpoint|snapshot|"
    r"(?:initial|first) commit|work in progress|no message|more|oops|asdf|)\W*",
    re.IGNORECASE,
)
_DEFAULT_MESSAGE = re.compile(r"(?:update|create|rename|delete|add(?:ed)? files? via upload)(?: (\S+))?", re.IGNORECASE)


def instruction_of(message: str, part: str) -> str:
    """Return a commit message without trailers: all of it, or the ``subject``, its first paragraph on one line."""
    lines = [line.rstrip() for line in message.split("\n") if not _TRAILER.fullmatch(line.strip())]
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()
    return " ".join(text.split("\n\n")[0].split("\n")) if part == "subject" else text


def commit_fault(commit: Commit, config: GitConfig, shallow: frozenset[str]) -> str:
    """Return why no file of a commit can be used, or an empty string. Secrets are looked for elsewhere."""
    keep = config.keep
    if commit.id in shallow:
        return "shallow_boundary"  # its parents are not here, so every file looks added
    if len(commit.parents) > 1 and "merge" not in keep:
        return "merge"
    if commit.message is None:
        return "message_not_utf8"
    if "[bot]" in commit.author and "bot" not in keep:
        return "bot"
    if _REVERT.match(commit.message) and "revert" not in keep:
        return "revert"
    if not commit.changes:
        return "no_files"
    if len(commit.changes) > config.max_files:
        return "too_many_files"
    instruction = instruction_of(commit.message, config.message)
    if not instruction:
        return "empty_message"
    if "junk_message" not in keep and _is_junk(instruction, commit.changes):
        return "junk_message"
    return ""


def _is_junk(instruction: str, changes: list[Change]) -> bool:
    """Whether a message says nothing of the edit: fixup!, "wip", or what a web form writes ("Update README.md")."""
    if _AUTOSQUASH.match(instruction) or _JUNK.fullmatch(instruction):
        return True
    default = _DEFAULT_MESSAGE.fullmatch(instruction)
    names = {None} | {name for change in changes for name in (shown(change.path), file_name(change.path))}
    return default is not None and default[1] in names


# ---------------------------------------------------------------------------------------------------------------------
# Files, by what git says of them and by path

_VENDORED = re.compile(
    r"(?:^|/)(?:_?vendor(?:s|ed)?|node_modules|bower_components|third[_-]?party|3rd[_-]?party|site-packages|"
    r"godeps/_workspace|\.yarn/(?:releases|plugins|sdks)|externals?/[^/]+/|carthage/checkouts|pods)/"
    r"|(?:^|/)(?:jquery|bootstrap|modernizr|d3|angular)(?:[.-][\w.-]*)?\.(?:js|css)$",
    re.IGNORECASE,
)
_GENERATED_NAMES = re.compile(
    r"(?:^|/)(?:package-lock\.json|npm-shrinkwrap\.json|pnpm-lock\.yaml|bun\.lockb?|go\.(?:sum|work\.sum)|"
    r"gradle\.lockfile|package\.resolved|[\w.-]+\.lock|gradlew(?:\.bat)?)$"
    r"|\.min\.(?:js|css|mjs)$|\.(?:js|css|mjs)\.map$|_pb2(?:_grpc)?\.pyi?$|\.pb\.(?:go|cc|h)$|\.g\.dart$|\.designer\.cs$"
    r"|(?:^|/)__generated__/|\.snap$",
    re.IGNORECASE,
)
_GENERATED_TEXT = re.compile(
    r"@generated\b|\bdo not (?:edit|modify)\b|\b(?:auto-?|automatically )generated\b"
    r"|\bgenerated (?:by|from|using|with)\b|\b(?:file|code|module) (?:is|was) generated\b",
    re.IGNORECASE,
)
_FIRST_LINES, _FIRST_CHARACTERS = 10, 2000


def file_name(path: bytes) -> str:
    """Return the last part of a path, as text."""
    return shown(path.rpartition(b"/")[2])


def language_of(path: bytes) -> str:
    """Return the language of a path by its extension, empty where it is in no row of ``LANGUAGES``."""
    return _LANGUAGE_OF.get(file_name(path).rpartition(".")[2].lower(), "")


def change_fault(change: Change, config: GitConfig) -> str:
    """Return why a changed file cannot be used, by what its entry says: nothing is read for it."""
    faults = {"A": "added", "D": "deleted", "T": "type_change"}
    if change.status in faults:
        return faults[change.status]
    modes = (change.old_mode, change.new_mode)
    if "160000" in modes:
        return "submodule"
    if "120000" in modes:
        return "symlink"
    if change.old_blob == change.new_blob:
        return "pure_rename" if change.status == "R" else "mode_only"
    path = shown(change.path)
    if config.include and not _matches(path, config.include) or _matches(path, config.exclude):
        return "excluded"
    if config.languages and language_of(change.path) not in config.languages:
        return "language"
    return next((kind for kind in _kinds_of(path) if kind not in config.keep), "")


@functools.lru_cache(1 << 16)
def _kinds_of(path: str) -> list[str]:
    patterns = {"vendored": _VENDORED, "generated": _GENERATED_NAMES}
    return [kind for kind, pattern in patterns.items() if pattern.search(path)]


def _matches(path: str, globs: list[str]) -> bool:
    return any(fnmatch.fnmatchcase(path, glob) for glob in globs)


# ---------------------------------------------------------------------------------------------------------------------
# Documents


@dataclass(frozen=True, slots=True)
class Document:
    """A blob as text, or why it is none (``fault``); ``emails`` and ``secrets`` count what was masked in it.

    ``quoted`` is the text as JSON: what one commit leaves is what the next one changes, so it is written twice.
    """

    text: str
    fault: str = ""
    emails: int = 0
    secrets: int = 0
    quoted: str = ""


def examine(size: int, data: bytes | None, config: GitConfig, earlier: Document | None = None) -> Document:
    """Return a blob as a document: decoded strictly, nothing normalised, secrets and addresses masked as asked.

    ``size`` is -1 where the blob is missing, and ``data`` None where it is missing or above ``max_bytes``. Only what
    differs from ``earlier``, where that has no secrets, is searched for them: a secret, or the line by which a longer
    one is known, stands in one line.
    """
    if data is None:
        return Document("", "missing_blob" if size < 0 else "too_large")
    text, fault = decode(data)
    if fault or (fault := _text_fault(text, config)):
        return Document("", fault)
    is_clean = earlier is not None and not earlier.fault and not earlier.secrets
    kinds = secret_kinds(changed_lines(earlier.text, text)[1] if is_clean else text)
    if kinds and config.secrets == "drop":
        return Document("", f"secret_{kinds[0]}")
    text, secrets = mask_secrets(text) if kinds else (text, 0)
    masked, emails = (text, 0) if config.emails == "keep" else mask_emails(text)
    if emails and config.emails == "drop":
        return Document("", "email")
    return Document(masked, "", emails, secrets, json.dumps(masked, ensure_ascii=False))


_CONTROLS = bytes(byte for byte in range(32) if byte not in b"\t\n\v\f\r\x1b") + b"\x7f"


def decode(data: bytes) -> tuple[str, str]:
    """Return (text, "") of UTF-8 with or without a byte-order mark, which stays in the text, or ("", fault).

    utf16: a byte-order mark of UTF-16 or UTF-32, or NULs as ASCII has them there. binary: mostly control characters,
    or not UTF-8 and with a NUL. not_utf8: anything else that UTF-8 refuses. UTF-8 with a few NULs is text.
    """
    if data.startswith((b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff")):
        return "", "utf16"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return "", "binary" if b"\0" in data else "not_utf8"
    controls = len(data) - len(data.translate(None, _CONTROLS))
    if controls > 0.3 * len(data):  # the share at which perl's -B says binary
        nuls = data.count(0)
        at_one_parity = max(data[::2].count(0), data[1::2].count(0))
        return "", "utf16" if nuls and len(data) % 2 == 0 and at_one_parity >= 0.9 * nuls else "binary"
    return text, ""


def _text_fault(text: str, config: GitConfig) -> str:
    if text.count("\n") >= config.max_lines:
        return "too_many_lines"
    if _has_long_line(text, config.max_line_chars):
        return "long_line"
    head = "\n".join(text[:_FIRST_CHARACTERS].split("\n", _FIRST_LINES)[:_FIRST_LINES])
    if "generated" in config.keep or not any(word in head.lower() for word in ("generated", "do not")):
        return ""
    return "generated" if _GENERATED_TEXT.search(head) else ""


def _has_long_line(text: str, limit: int) -> bool:
    """Whether a line has more than ``limit`` characters; looks at one place in so many, not at every line."""
    start = 0
    while len(text) - start > limit:
        end = text.rfind("\n", start, start + limit + 1)
        if end < 0:
            return True
        start = end + 1
    return False


def edit_tags(before: str, after: str) -> list[str]:
    """Name what is odd of an edit: edge_newline (only newlines at the ends), whitespace_only (only blanks and ends)."""
    if before.strip("\n") == after.strip("\n"):
        return ["edge_newline"]
    first = _longest(min(len(before), len(after)), lambda low, high: before[low:high] == after[low:high])
    if not any(character.isspace() for character in before[first : first + 1] + after[first : first + 1]):
        return []  # two words differ there, as in nearly every edit
    return ["whitespace_only"] if before.split() == after.split() else []


def changed_lines(before: str, after: str) -> tuple[str, str]:
    """Return the lines of each text without those that both start with and then those that both end with."""
    shorter = min(len(before), len(after))
    start = _longest(shorter, lambda low, high: before[low:high] == after[low:high])
    start = before.rfind("\n", 0, start) + 1
    # From the end, and not over what was taken from the start; index 0 is the last character.
    ends = len(before), len(after)
    same = _longest(
        shorter - start,
        lambda low, high: before[ends[0] - high : ends[0] - low] == after[ends[1] - high : ends[1] - low],
    )
    line = before.find("\n", ends[0] - same)
    kept = ends[0] - line if line >= 0 else 0
    return before[start : ends[0] - kept], after[start : ends[1] - kept]


def _longest(limit: int, same: Callable[[int, int], bool]) -> int:
    """Return the largest n up to ``limit`` with ``same(0, n)``, where that says whether a range is the same."""
    low = 0
    while low < limit:
        middle = (low + limit + 1) // 2
        if same(low, middle):
            low = middle
        else:
            limit = middle - 1
    return low


# ---------------------------------------------------------------------------------------------------------------------
# Secrets and addresses

SECRET_MASK = "<secret>"
EMAIL_MASK = "user@example.com"  # an address that parses as one and is nobody's (RFC 2606)


def secret_kinds(text: str) -> list[str]:
    """Return the kinds of secrets that stand in a text; the secrets themselves are never returned.

    A password in a URL (scheme://user:password@host) is one unless it plainly stands in for another, as in
    documentation: a variable or a gap (``$PASS``, ``{password}``, ``%s``, ``<password>``, ``****``, ``xxx``; a bracket
    has to be closed, and small letters after a dollar sign a word for a password), the user's name again
    (``postgres:postgres``), a word for a password (``pass``, ``DB_PASSWORD``, ``changeme``), or fewer than four
    characters. A user without a password (``ssh://git@host``) is none.
    """
    return [kind for kind, _, pattern in _SECRETS if pattern.search(text)] if _HINT.search(text) else []


def mask_secrets(text: str) -> tuple[str, int]:
    """Return ``text`` with every secret as ``SECRET_MASK``, and their number."""
    count = 0
    for _, _, pattern in _SECRETS if _HINT.search(text) else ():
        text, found = pattern.subn(lambda secret: secret.groupdict().get("kept", "") + SECRET_MASK, text)
        count += found
    return text, count


# The domain is looked for first, from its "@": a search for the part before it would start at every character.
_DOMAIN = re.compile(r"@(?!\dx\.)((?:[\w-]{1,63}\.){1,8}[^\W\d_]{2,24})(?![\w(\[])")  # icon@2x.png; a@b.method(
_LOCAL = re.compile(r"\w[\w.%+'-]*\Z")
# What is before "@" after this is the user of a URL, or its password; that may have a raw "/", which a port ends at.
_USER_INFO = re.compile(rf"://[^{_URL_ENDS}:]*(?::(?!\d+[/?#])[^\s,;|\"'`<>\\]*)?\Z")
_NOBODY = re.compile(r"(?:.*\.)?(?:example\.(?:com|org|net)|example|invalid|test|localhost)", re.IGNORECASE)


def mask_emails(text: str) -> tuple[str, int]:
    """Return ``text`` with every e-mail address as ``EMAIL_MASK``, and their number.

    A function of the text alone, so an address that an edit leaves is masked alike on both sides. Addresses at the
    domains that RFC 2606 reserves stay, and ``git@HOST`` of a remote; ``user@host`` of a URL is no address.
    """
    text, count = _mask_once(text)
    again = count
    while again:  # a mask can end a domain that had no end before: x@-.a@b.co
        text, again = _mask_once(text)
    return text, count


def _mask_once(text: str) -> tuple[str, int]:
    parts, end, count = [], 0, 0
    for domain in _DOMAIN.finditer(text):
        local = _LOCAL.search(text, max(end, domain.start() - 64), domain.start())
        if local is None:
            continue
        in_url = _USER_INFO.search(text, max(0, local.start() - 256), local.start())
        if not _NOBODY.fullmatch(domain[1]) and local[0] != "git" and not in_url:
            parts += [text[end : local.start()], EMAIL_MASK]
            count += 1
        else:
            parts.append(text[end : domain.end()])
        end = domain.end()
    return "".join(parts) + text[end:], count
