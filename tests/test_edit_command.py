"""The editor command: what it keeps of a file, what it refuses, its diff, and how its command line is read."""

from __future__ import annotations

import io
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import encoder_of, save_model, tiny_model, tokenizer_of

from decoding import edit as command
from decoding import textfile
from decoding.commandline import UserError, parse_config
from decoding.edit import Config, decode_edit, edit_file, read_words, run_settings, unified_diff
from decoding.loading import EXPORTED_SETTINGS, find_model
from decoding.textfile import check_replaceable, read_text_file, replace_text

ROOT = Path(__file__).resolve().parent.parent
MARKS = {"utf-8": b"\xef\xbb\xbf", "utf-16-le": b"\xff\xfe", "utf-16-be": b"\xfe\xff", "utf-32-le": b"\xff\xfe\0\0"}


def python(*arguments: str, **options) -> subprocess.CompletedProcess:
    """Run the command in the checkout, or in ``cwd``, on one thread, away from the hub."""
    env = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    arguments = (sys.executable, str(ROOT / "decoding" / "edit.py"), *arguments)
    return subprocess.run(
        arguments, env=env, capture_output=True, timeout=300, check=False, **({"cwd": ROOT, "text": True} | options)
    )


def decoder_that_writes(text: str | None, *, stop: str = "end", confidence: float = 1.0, broken_utf8: int = 0):
    """A decoder whose every edit has this outcome; it keeps the documents it was shown."""
    stats = SimpleNamespace(stop=stop, prompt_tokens=7, broken_utf8=broken_utf8)
    edit = SimpleNamespace(text=text, ids=[1, 2, 3], stats=stats, confidence=confidence)
    shown = []

    def decode(requests):
        shown.extend(request.document for request in requests)
        return [edit for _ in requests]

    return SimpleNamespace(decode=decode, shown=shown)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder that the examples of a property test share."""
    return tmp_path_factory.mktemp("files")


@pytest.fixture
def note(tmp_path) -> Path:
    path = tmp_path / "note.txt"
    path.write_bytes(b"one\ntwo\n")
    return path


def config_for(path: Path, **settings) -> Config:
    return Config(ckpt="-", file=str(path), instruction="Edit.", **settings)


def only_entry(path: Path) -> bool:
    return list(path.parent.iterdir()) == [path]


# --- reading and writing back -----------------------------------------------------------------------------------------

BYTES = st.one_of(
    st.binary(max_size=40),
    st.lists(st.sampled_from([b"a", b"\r", b"\n", b"\r\n", b"\xe9", b"\xc3\xa9", b"\0", *MARKS.values()])).map(
        b"".join
    ),
    st.text(max_size=12).map(lambda text: text.encode("utf-16", "surrogatepass")),
)
ENCODINGS = [None, "utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "cp1252", "latin-1", "cp932", "gb18030"]
ODD_ENCODINGS = ["utf-7", "iso2022_jp", "hz", "cp037", "unicode_escape", "punycode", "idna", "hex", "rot13", "no-such"]


@pytest.mark.filterwarnings("ignore:invalid escape sequence")
@settings(max_examples=300, deadline=None)
@given(data=BYTES, encoding=st.sampled_from(ENCODINGS + ODD_ENCODINGS))
def test_every_file_that_is_accepted_gives_its_bytes_back(folder, data, encoding):
    path = folder / "any"
    path.write_bytes(data)
    try:
        file = read_text_file(path, encoding)
    except UserError:
        return
    assert file.encode(file.text) == data


TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\n\ufeff"), max_size=6))


@settings(max_examples=200, deadline=None)
@given(lines=TEXTS, codec=st.sampled_from([*MARKS, None]), crlf=st.booleans(), data=st.data())
def test_an_edited_line_leaves_the_bytes_of_the_others(folder, lines, codec, crlf, data):
    path = folder / "lines"
    mark, codec = (MARKS[codec], codec) if codec else (b"", "utf-8")
    end = "\r\n" if crlf else "\n"
    path.write_bytes(mark + end.join(lines).encode(codec))
    file = read_text_file(path)
    if crlf or "\r" not in "".join(lines):  # a "\r" at the end of every line makes CRLF
        assert file.text == "\n".join(lines)
    shown = file.text.split("\n")
    number = data.draw(st.integers(0, len(shown) - 1))
    shown[number] = "new"
    written = file.encode("\n".join(shown))
    before, after = (file.newline.join(part) for part in (shown[:number], shown[number + 1 :]))
    assert written.startswith(mark + before.encode(codec))
    assert written.endswith(after.encode(codec))


@pytest.mark.parametrize(
    ("data", "text", "edited", "written"),
    [
        (b"a\r\nb\r\n", "a\nb\n", "a\nnew\nb\n", b"a\r\nnew\r\nb\r\n"),  # new lines get CRLF
        (b"a\r\nb", "a\nb", "a\nb\n", b"a\r\nb\r\n"),  # a final newline is what the text says
        (b"a\r\nb\r\n", "a\nb\n", "a\nb", b"a\r\nb"),
        (b"a\r\nb\nc\r\n", "a\r\nb\nc\r\n", "a\r\nB\nc\r\n", b"a\r\nB\nc\r\n"),  # mixed: "\r" is content
        (b"a\r\r\nb\r\n", "a\r\nb\n", "a\r\nB\n", b"a\r\r\nB\r\n"),  # "\r" within a line of a CRLF file, too
        (b"a\rb\r", "a\rb\r", "a\rb\rc\n", b"a\rb\rc\n"),  # "\r" alone ends no line
        (b"\xef\xbb\xbfa\n", "a\n", "b\n", b"\xef\xbb\xbfb\n"),
        (b"\xef\xbb\xbf\xef\xbb\xbfa", "\ufeffa", "\ufeffb", b"\xef\xbb\xbf\xef\xbb\xbfb"),  # the second is text
        (b"\xff\xfea\0\r\0\n\0", "a\n", "\u4e16\n", b"\xff\xfe\x16\x4e\r\0\n\0"),
        (b"\xfe\xff\0a\0\n", "a\n", "a", b"\xfe\xff\0a"),
        (b"\xff\xfe\0\0a\0\0\0", "a", "b", b"\xff\xfe\0\0b\0\0\0"),
        (b"", "", "a\n", b"a\n"),
    ],
)
def test_encoding_mark_and_line_ends_are_kept(tmp_path, data, text, edited, written):
    path = tmp_path / "f"
    path.write_bytes(data)
    file = read_text_file(path)
    assert file.text == text
    replace_text(file, edited)
    assert path.read_bytes() == written
    assert only_entry(path)


@pytest.mark.parametrize(
    ("data", "encoding", "message"),
    [
        (b"let n = 1\n// caf\xe9 \n", None, r"not UTF-8 text: byte 16 \(0xe9\): invalid continuation byte; name its"),
        (b"\xef\xbb\xbfab\xff", None, r"byte 5 \(0xff\)"),  # counted from the start of the file
        (b"\xff\xfea\0\0\xd8", None, r"not UTF-16-LE text: byte 4 \(0x00\)"),  # half of a surrogate pair
        (b"\xff\xfea\0b", None, r"byte 4 \(0x62\): truncated data"),
        (b"\xed\xa0\x80", None, r"byte 0 \(0xed\)"),
        (b"PK\3\4\0\0", None, "a NUL at byte 4: it is binary, or text in an encoding to be named"),
        (b"\xff\xfea\0\0\0", None, "a NUL at byte 4"),
        (b"a\0b\0", "utf-16", "utf-16 would not give byte 0 back as it is: name the exact encoding="),
        (b"\x81", "cp1252", r"not CP1252 text: byte 0 \(0x81\): .*; name the right encoding="),
        (b"\x87\x90", "cp932", "cp932 would not give byte 0 back as it is"),  # two codes for one character
        (b"a", "no-such", "encoding=no-such: no such encoding"),
        (b"6161", "hex", "encoding=hex: 'hex' is not a text encoding"),
        (b"", "hex", "encoding=hex: 'hex' is not a text encoding"),
    ],
)
def test_what_is_not_text_is_refused_with_the_place(tmp_path, data, encoding, message):
    path = tmp_path / "f"
    path.write_bytes(data)
    with pytest.raises(UserError, match=message):
        read_text_file(path, encoding)


def test_a_named_encoding_reads_what_is_refused_without(tmp_path):
    path = tmp_path / "f"
    for data, encoding, text in [
        (b"caf\xe9\r\n", "cp1252", "caf\xe9\n"),
        (b"a\0b\0", "utf-16-le", "ab"),
        (b"a\0b", "utf-8", "a\0b"),
        (b"\xfe\xff\0a", "utf-16", "a"),  # its own mark says the byte order
        (b"\xef\xbb\xbfa", "latin-1", "\xef\xbb\xbfa"),  # no mark in Latin-1
    ]:
        path.write_bytes(data)
        file = read_text_file(path, encoding)
        assert (file.text, file.encode(text)) == (text, data)


def test_what_cannot_be_opened_is_refused(tmp_path, note):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for name, message in [
        ("nothing", "there is no file .*nothing"),
        ("note.txt/x", "cannot read .*Not a directory"),
        (".", "is a folder"),
        ("pipe", "is not a regular file"),
        ("loop", "cannot read .*loop: Too many levels"),
    ]:
        with pytest.raises(UserError, match=message):
            read_text_file(tmp_path / name)


# --- replacing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o755, 0o640, 0o600, 0o4755])
def test_mode_and_owner_are_kept_and_the_time_is_new(note, mode):
    if os.geteuid() == 0:
        os.chown(note, 12345, 54321)
    note.chmod(mode)
    os.utime(note, (1, 1))
    before = note.stat()
    replace_text(read_text_file(note), "new\n")
    after = note.stat()
    assert note.read_bytes() == b"new\n" and only_entry(note)
    assert stat.S_IMODE(after.st_mode) == mode
    assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)
    assert after.st_mtime > 1


def test_extended_attributes_are_kept(note):
    try:
        os.setxattr(note, "user.origin", b"elsewhere")
    except OSError:
        pytest.skip("the file system has no extended attributes")
    replace_text(read_text_file(note), "new\n")
    assert os.getxattr(note, "user.origin") == b"elsewhere"


def test_a_symbolic_link_stays_and_its_file_is_replaced(tmp_path):
    real = tmp_path / "real" / "note.txt"
    real.parent.mkdir()
    real.write_bytes(b"one\n")
    link = tmp_path / "link"
    link.symlink_to(Path("real") / "note.txt")
    replace_text(read_text_file(link), "two\n")
    assert link.is_symlink() and not real.is_symlink() and real.read_bytes() == b"two\n"
    assert only_entry(real)


def refused_and_untouched(note: Path, match: str, text: str = "new\n", file=None) -> None:
    data, status = note.read_bytes(), note.stat()
    entries = sorted(note.parent.iterdir())
    with pytest.raises(UserError, match=match):
        replace_text(file or read_text_file(note), text)
    after = note.stat()
    assert (note.read_bytes(), after.st_ino, after.st_mtime_ns) == (data, status.st_ino, status.st_mtime_ns)
    assert sorted(note.parent.iterdir()) == entries


def test_a_read_only_file_is_refused_even_to_the_superuser(note):
    note.chmod(0o444)
    refused_and_untouched(note, "is read-only: make it writable first")


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write in any folder")
def test_a_read_only_folder_is_refused(note):
    note.parent.chmod(0o555)
    try:
        refused_and_untouched(note, "takes no new file")
    finally:
        note.parent.chmod(0o755)


def test_a_file_with_hard_links_is_refused(note):
    os.link(note, note.with_name("other"))
    refused_and_untouched(note, "one of 2 hard links")


def test_a_file_that_changed_since_it_was_read_is_refused(note):
    file = read_text_file(note)
    note.write_bytes(b"one\nthree\n")
    refused_and_untouched(note, "has changed since it was read", file=file)
    note.unlink()
    with pytest.raises(UserError, match="cannot write .*: No such file"):
        replace_text(file, "new\n")
    assert not note.exists()


def test_a_character_that_the_encoding_lacks_is_refused(note):
    note.write_bytes(b"caf\xe9\r\n")
    file = read_text_file(note, "cp1252")
    refused_and_untouched(note, r"line 2 of the edited text has U\+4E16 \('世'\), which cp1252", "a\nx世\n", file)
    note.write_bytes(b"a\n")
    refused_and_untouched(note, r"U\+D800 .*, which utf-8 cannot write", "a\ud800\n")


@pytest.mark.parametrize("failing", ["fsync", "fdopen", "utime"])
def test_a_failure_on_the_way_leaves_the_file_and_no_other(note, monkeypatch, failing):
    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    file = read_text_file(note)
    with monkeypatch.context() as patch:
        patch.setattr(textfile.os, failing, fail)
        refused_and_untouched(note, "cannot write .*: No space left on device; it is as it was", file=file)


@pytest.mark.parametrize("error", [OSError(16, "Device or resource busy"), KeyboardInterrupt()])
def test_a_failure_of_the_rename_leaves_the_file_and_no_other(note, monkeypatch, error):
    def fail(*_):
        raise error

    file = read_text_file(note)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", fail)
        with pytest.raises((UserError, KeyboardInterrupt)):
            replace_text(file, "new\n")
    assert note.read_bytes() == b"one\ntwo\n" and only_entry(note)


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can give the file away first")
def test_an_owner_that_cannot_be_kept_is_refused(note, monkeypatch):
    def forbid(*_):
        raise PermissionError(1, "Operation not permitted")

    os.chown(note, 12345, 54321)
    monkeypatch.setattr(textfile.os, "chown", forbid)
    refused_and_untouched(note, "belongs to an owner or group")


def test_a_full_disk_in_the_midst_of_writing_leaves_the_file(tmp_path):
    """A limit on the size of files, in a process of its own, fails the write itself half-way."""
    note = tmp_path / "note.txt"
    note.write_bytes(b"one\n")
    script = (
        "import resource, signal, sys; from pathlib import Path; from decoding.textfile import *\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "file = read_text_file(Path(sys.argv[1]))\n"
        "try: replace_text(file, 'x' * 5000)\n"
        "except UserError as error: print(error)\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script, str(note)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"cannot write {note}: File too large; it is as it was\n"
    assert note.read_bytes() == b"one\n" and only_entry(note)


# --- cases of the field (kind "io") -----------------------------------------------------------------------------------


def test_latin_1_is_refused_and_kept_where_its_encoding_is_named(tmp_path):  # enc-01
    path = tmp_path / "main.rs"
    before = bytes.fromhex("6c6574206e203d20310a2f2f20636166e9200a")
    path.write_bytes(before)
    with pytest.raises(UserError, match="not UTF-8"):
        read_text_file(path)
    assert path.read_bytes() == before
    file = read_text_file(path, "latin-1")
    edit_file(decoder_that_writes(file.text.replace("1", "2")), file, config_for(path, write=True))
    assert path.read_bytes() == before.replace(b"1", b"2")


def test_shift_jis_is_refused_and_stays_shift_jis_where_it_is_named(tmp_path):  # enc-02
    path = tmp_path / "readme.txt"
    path.write_bytes(bytes.fromhex("8365835883670a61"))
    with pytest.raises(UserError, match="not UTF-8"):
        read_text_file(path)
    file = read_text_file(path, "cp932")
    edit_file(decoder_that_writes(file.text + "\n日本語\n"), file, config_for(path, write=True))
    assert path.read_bytes().decode("cp932") == "テスト\na\n日本語\n"


def test_utf_16_with_a_mark_is_text(tmp_path):  # enc-03
    path = tmp_path / "strings.txt"
    path.write_bytes(bytes.fromhex("fffe61000a006200"))
    file = read_text_file(path)
    assert file.text == "a\nb"
    edit_file(decoder_that_writes("a\nc"), file, config_for(path, write=True))
    assert path.read_bytes() == bytes.fromhex("fffe61000a006300")


# --- what an edit does ------------------------------------------------------------------------------------------------


def test_without_write_the_diff_is_printed_and_nothing_is_written(note, capfdbinary, monkeypatch):
    monkeypatch.chdir(note.parent)
    decoder = decoder_that_writes("one\n2", confidence=0.51249)
    edit_file(decoder, read_text_file(Path("note.txt")), config_for(note))
    out, err = capfdbinary.readouterr()
    assert out == b"--- a/note.txt\n+++ b/note.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n\\ No newline at end of file\n"
    assert err == b"not written: note.txt, +1 -1 lines, confidence 0.512\n"
    assert decoder.shown == ["one\ntwo\n"]
    assert note.read_bytes() == b"one\ntwo\n" and only_entry(note)


def test_with_write_the_file_is_changed_and_stderr_says_so(note, capsys):
    edit_file(decoder_that_writes("one\n2\n3\n"), read_text_file(note), config_for(note, write=True))
    assert capsys.readouterr() == ("", f"wrote {note}, +2 -1 lines, confidence 1\n")
    assert note.read_bytes() == b"one\n2\n3\n"


@pytest.mark.parametrize("write", [False, True])
def test_an_edit_that_changes_nothing_says_so_and_leaves_the_file(note, capsys, write):
    before = note.stat()
    edit_file(decoder_that_writes("one\ntwo\n"), read_text_file(note), config_for(note, write=write))
    assert capsys.readouterr() == ("", f"no change: the edit leaves {note} as it is\n")
    assert (note.stat().st_ino, note.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        ({"text": None, "stop": "max_tokens"}, "was not done after max_tokens, 3 tokens: raise max_tokens="),
        ({"text": None, "stop": "max_ops"}, "more than max_ops operations: raise max_ops="),
        ({"text": None, "stop": "context"}, "prompt and program, 7 and 3 tokens, fill .*: split the document"),
        ({"text": None, "stop": "a reason to come"}, "no edit of .*note.txt: a reason to come"),
        ({"text": "x\ufffd\n", "broken_utf8": 1}, "ends inside a character"),
        ({"text": "x\n", "confidence": 0.25}, "confidence is 0.25, below min_confidence=0.5"),
    ],
)
def test_an_edit_that_is_incomplete_or_unsure_is_refused(note, capsys, outcome, message):
    for write in (False, True):
        with pytest.raises(UserError, match=message):
            config = config_for(note, write=write, min_confidence=0.5)
            edit_file(decoder_that_writes(**outcome), read_text_file(note), config)
    assert capsys.readouterr().out == ""
    assert note.read_bytes() == b"one\ntwo\n" and only_entry(note)


@pytest.mark.parametrize(
    ("document", "instruction", "stop", "message"),
    [
        (
            "a\n\u2581\n",
            "Edit.",
            "tokenizer_lossy",
            r"in the document, .*'\u2581' \(character 2, line 2\): take another",
        ),
        (
            "a\n",
            "Put \u2581.",
            "tokenizer_lossy",
            r"in the instruction, .*'\u2581' \(character 4, line 1\): take another",
        ),
        ("a\n", "Put \ud800.", "lone_surrogate", r"in the instruction, character 4 .* is half of a surrogate pair"),
        (
            "a\n",
            "Edit.",
            "tokenizer_lossy",
            "the tokenizer refuses the prompt, though neither the document nor the instruction alone",
        ),
    ],
)
def test_a_text_that_the_tokenizer_refuses_is_named_with_the_place(note, document, instruction, stop, message):
    note.write_text(document, encoding="utf-8")
    decoder = decoder_that_writes(None, stop=stop)
    decoder.encoder = encoder_of("metaspace")
    with pytest.raises(UserError, match=f"^no edit of .*note.txt: {message}"):
        decode_edit(decoder, read_text_file(note), instruction)


def test_every_reason_to_stop_has_its_remedy():
    from decoding.engine import StopReason

    assert set(get_args(StopReason)) - {"end"} == set(command._STOPS)


def test_confidence_is_compared_only_where_it_is_asked_for(note):
    decoder = decoder_that_writes("x\n", confidence=0.25)
    assert decode_edit(decoder, read_text_file(note), "Edit.").text == "x\n"
    assert decode_edit(decoder, read_text_file(note), "Edit.", 0.25).text == "x\n"


# --- the diff ---------------------------------------------------------------------------------------------------------

needs_git = pytest.mark.skipif(not shutil.which("git"), reason="needs git")
needs_patch = pytest.mark.skipif(not shutil.which("patch"), reason="needs patch")
GIT = ["git", "apply", "--whitespace=nowarn", "-"]
PATCH = ["patch", "-p1", "--binary", "--quiet"]


def applies(tool: list[str], path: Path, before: bytes, text: str, encoding: str | None = None) -> None:
    """Check that ``tool``, run in the working folder, makes of the file what the command would have written."""
    path.write_bytes(before)
    file = read_text_file(path, encoding)
    diff = b"".join(unified_diff(file, text))
    env = os.environ | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CEILING_DIRECTORIES": str(path.parent)}
    done = subprocess.run(tool, input=diff, cwd=path.parent, env=env, capture_output=True, check=False)
    assert done.returncode == 0, (diff, done.stderr)
    assert path.read_bytes() == file.encode(text), diff


DIFFS = [
    (b"a\nb\nc\n", "a\nB\nc\n", None),
    (b"a\nb", "a\nb\n", None),
    (b"a\nb\n", "a\nb", None),
    (b"a\nb", "a\nc", None),
    (b"x\nb\nc", "y\nb\nc", None),  # the last line, without a newline, as context
    (b"", "a\n", None),
    (b"", "a", None),
    (b"a\n", "", None),
    (b"a", "", None),
    (b"\n", "\n\n", None),
    (b"a\r\nb\r\nc", "a\nB\nc", None),
    (b"a\r\nb\nc\rd\n", "a\r\nB\nc\rd\n", None),
    (b"-- x\n++ y\n@@ z\n", "-- X\n++ Y\n@@ Z\n", None),
    (b"a\x0bb\x0cc\x1cd\n", "a\x0bb\x0cc\x1cD\n", None),
    ("a\u2028b\x85c\n".encode(), "a\u2028b\x85C\n", None),
    (b"\xef\xbb\xbfa\n", "b\n", None),
    (b"caf\xe9\nb\n", "caf\xe9\n\xe0\n", "latin-1"),
    (b"\n".join(b"%d" % i for i in range(60)), "\n".join(str(i * (i not in (3, 50))) for i in range(60)), None),
]


@pytest.mark.parametrize("tool", [pytest.param(GIT, marks=needs_git), pytest.param(PATCH, marks=needs_patch)], ids=str)
def test_git_and_patch_apply_the_diff(tmp_path, monkeypatch, tool):
    monkeypatch.chdir(tmp_path)
    for before, text, encoding in DIFFS:
        applies(tool, tmp_path / "f.txt", before, text, encoding)


@needs_git
@settings(max_examples=25, deadline=None)
@given(st.lists(st.text("ab\r\\+-@ ", max_size=3), max_size=9), st.lists(st.text("ab\r\\+-@ ", max_size=3), max_size=9))
def test_git_applies_every_diff(folder, before, after):
    here = Path.cwd()
    os.chdir(folder)
    try:
        if before != after:
            path, data = folder / "any.txt", "\n".join(before).encode()
            path.write_bytes(data)
            text = "\n".join(after)
            if read_text_file(path).encode(text) != data:  # equal where only CRLF for LF makes the difference
                applies(GIT, path, data, text)
    finally:
        os.chdir(here)


@pytest.mark.parametrize("tool", [pytest.param(GIT, marks=needs_git), pytest.param(PATCH, marks=needs_patch)], ids=str)
@pytest.mark.parametrize("name", ["two words.txt", 'quo"te.txt', "back\\slash", "tab\tname", "caf\xe9 日.txt", "-w"])
def test_every_name_is_one_that_git_and_patch_read(tmp_path, monkeypatch, tool, name):
    monkeypatch.chdir(tmp_path)
    applies(tool, tmp_path / name, b"a\n", "b\n")


@needs_git
def test_in_a_folder_of_a_repository_the_diff_applies_from_there(tmp_path, monkeypatch):
    below = tmp_path / "below"
    below.mkdir()
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    monkeypatch.chdir(below)
    applies(GIT, below / "f.txt", b"a\n", "b\n")


def test_a_file_elsewhere_is_named_from_the_root_and_a_link_by_its_file(note, monkeypatch):
    monkeypatch.chdir(ROOT)
    header = unified_diff(read_text_file(note), "x\n")[0]
    assert header == f"--- a/{str(note.resolve())[1:]}\n".encode()
    note.with_name("link").symlink_to(note)
    monkeypatch.chdir(note.parent)
    assert unified_diff(read_text_file(Path("link")), "x\n")[0] == b"--- a/note.txt\n"


def test_the_diff_of_utf_16_can_be_read(note):
    note.write_bytes("\ufeffa\r\n世\r\n".encode("utf-16-le"))
    diff = unified_diff(read_text_file(note), "a\n界\n")
    assert b"".join(diff[2:]).decode() == "@@ -1,2 +1,2 @@\n \ufeffa\r\n-世\r\n+界\r\n"


class Terminal(io.TextIOWrapper):
    def isatty(self):
        return True


@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": ""}, {"TERM": "dumb"}])
def test_only_a_terminal_gets_colours(note, monkeypatch, environment):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    note.write_bytes(b"-- caf\xe9\n")
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", Terminal(shown, encoding="utf-8"))
    file = read_text_file(note, "latin-1")
    edit_file(decoder_that_writes("++ caf\xe9"), file, config_for(note))
    lines = shown.getvalue().split(b"\n")
    if environment:
        assert lines[2:] == [b"@@ -1 +1 @@", b"--- caf\xe9", b"+++ caf\xe9", b"\\ No newline at end of file", b""]
        return
    assert lines[0].startswith(b"\x1b[1m--- a/") and lines[1].startswith(b"\x1b[1m+++ b/")
    expected = "\x1b[36m@@ -1 +1 @@\x1b[m \x1b[31m--- café\x1b[m \x1b[32m+++ café\x1b[m"
    assert b" ".join(lines[2:5]).decode() == expected  # in the terminal's encoding, not the file's
    assert lines[5:] == [b"\\ No newline at end of file", b""]


# --- the model of a checkpoint ----------------------------------------------------------------------------------------


def make_run(path: Path, *models: str, config: str = "style: plain\nsplice: full\nmodel: some/base\nlr: 1.0\n") -> Path:
    path.mkdir()
    (path / "config.yaml").write_text(config)
    (path / "data.json").write_text("{}")
    for name in models:
        (path / name).mkdir()
        (path / name / "config.json").write_text("{}")
    return path


def located(ckpt: str) -> tuple[str, dict[str, str]]:
    model, run = find_model(ckpt)
    return model, run_settings(run, model)


def test_an_exported_folder_says_how_its_model_was_trained(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert located(str(tmp_path)) == (str(tmp_path), {})
    (tmp_path / EXPORTED_SETTINGS).write_text('{"style": "plain", "splice": "full", "model": "some/base", "lr": 1.0}')
    assert located(str(tmp_path)) == (str(tmp_path), TRAINED)
    (tmp_path / EXPORTED_SETTINGS).write_text('{"style": "loud"}')
    with pytest.raises(UserError, match="style is 'loud'"):
        located(str(tmp_path))


TRAINED = {"style": "plain", "splice": "full", "model": "some/base"}


def test_a_run_stands_for_its_final_model_or_its_newest_whole_checkpoint(tmp_path):
    run = make_run(tmp_path / "run", "checkpoint-9", "checkpoint-10", "checkpoint-11")
    with pytest.raises(UserError, match="a run without final/ or a whole checkpoint"):
        located(str(run))
    for step in (9, 10):
        (run / f"checkpoint-{step}" / "COMPLETED").touch()
    assert located(str(run)) == (str(run / "checkpoint-10"), TRAINED)
    (run / "final").mkdir()
    assert located(str(run)) == (str(run / "final"), TRAINED)
    assert located(str(run / "checkpoint-11")) == (str(run / "checkpoint-11"), TRAINED)  # asked for by name


def test_the_command_finds_what_the_evaluation_finds(tmp_path):
    from cad_train.config import TrainConfig
    from decoding.commandline import to_yaml
    from eval.checkpoints import find_checkpoint

    run = make_run(tmp_path / "run", "final", config=to_yaml(TrainConfig(style="plain", splice="none")))
    for name in (run, run / "final"):
        model, trained = located(str(name))
        theirs = find_checkpoint(str(name))
        assert model == theirs.model
        assert trained == {key: getattr(theirs.config, key) for key in ("style", "splice", "model")}


def test_a_model_without_a_run_has_no_settings(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert located(str(tmp_path)) == (str(tmp_path), {})
    assert located("owner/name") == ("owner/name", {})


def test_a_checkpoint_that_cannot_be_is_named(tmp_path):
    for name, message in [(str(tmp_path), "neither a run folder nor a model"), ("./no", "there is no model folder")]:
        with pytest.raises(UserError, match=message):
            located(name)
    for number, (config, message) in enumerate(
        [("style: wide\n", "config.yaml: style is 'wide', not one of numbered, plain"), ("a: [", "cannot read")]
    ):
        with pytest.raises(UserError, match=message):
            located(str(make_run(tmp_path / f"run{number}", "final", config=config)))
    assert located(str(make_run(tmp_path / "old", "final", config="lr: 1.0\n")))[1] == {}


# --- the command line -------------------------------------------------------------------------------------------------


def read(*argv: str) -> Config:
    return parse_config(Config, read_words(list(argv)))


@pytest.mark.parametrize(
    "argv",
    [
        ["--ckpt", "P", "f.py", "x=1 should be x=2", "--write", "dtype=float32"],
        ["--write", "--ckpt=P", "f.py", "x=1 should be x=2", "--dtype", "float32"],
        ["dtype=float32", "f.py", "--write", "--ckpt", "P", "x=1 should be x=2"],
        ["f.py", "ckpt=P", "write=true", "dtype=float32", "x=1 should be x=2"],
        ["f.py", "instruction=x=1 should be x=2", "--write", "ckpt=P", "--dtype=float32"],
        ["file=f.py", "instruction=x=1 should be x=2", "write=true", "ckpt=P", "dtype=float32"],
    ],
)
def test_file_and_instruction_are_words_in_any_place(argv):
    expected = Config(ckpt="P", file="f.py", instruction="x=1 should be x=2", write=True, dtype="float32")
    assert read(*argv) == expected


@pytest.mark.parametrize(
    "instruction",
    [
        "x=1",
        "x=1 should be x=2",
        "style=plain should be style=full",
        "write=false everywhere",
        "dtype",
        "null",
        "colour=red",
        "- [ ] is done",
        "settings.yaml",
        "[a, b]",
        "two\nlines=1",
        "=",
    ],
)
def test_the_word_after_the_file_is_the_instruction(instruction):
    assert read("--ckpt", "P", "f.py", instruction).instruction == instruction


@settings(max_examples=200, deadline=None)
@given(st.text(min_size=1).filter(str.strip))
def test_every_instruction_with_a_blank_is_read_as_it_is(text):
    instruction = f"{text} {text}"
    if not text.startswith("--"):
        assert read("f.py", instruction, "ckpt=P").instruction == instruction
    assert read("f.py", "ckpt=P", f"instruction={text}").instruction == text


def test_a_yaml_file_is_a_document_and_a_path_may_hold_an_equals_sign():
    assert read("conf.yaml", "Set the port.", "--ckpt", "P").file == "conf.yaml"
    assert read("runs/lr=3/notes.md", "Edit.", "--ckpt", "runs/lr=3").file == "runs/lr=3/notes.md"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["f.py", "Edit.", "more"], "unexpected argument 'more': FILE is 'f.py' and the instruction 'Edit.'"),
        (["f.py", "dtyp=float32", "Edit."], "'Edit.': FILE is 'f.py' and the instruction 'dtyp=float32'"),
        (["dtyp=float32", "f.py", "Edit."], "unknown key 'dtyp'; did you mean 'dtype'?"),
        (["f.py", "Edit.", "--colour"], "unknown key 'colour'"),
        (["--write", "false", "f.py", "Edit."], "unexpected argument 'Edit.': FILE is 'false'"),
        (["f.py", "file=g.py", "Edit."], "file is given twice: as file= and as the word 'f.py'"),
        (["f.py", "Edit.", "--instruction", "Go."], "instruction is given twice"),
        (["f.py"], "missing instruction"),
        (["f.py", "dtype=float32"], "missing instruction"),
        (["f.py", " "], "the instruction is empty"),
        (["f.py", "Edit.", "min_confidence=0"], "min_confidence=0.0: must be above 0 and at most 1"),
        (["f.py", "Edit.", "max_tokens=0"], "max_tokens=0: must be at least 1"),
        (["f.py", "Edit.", "--dtype", "--write"], "a value is missing after --dtype"),
    ],
)
def test_a_mistake_on_the_command_line_is_named(argv, message):
    with pytest.raises(UserError) as caught:
        read(*argv, "ckpt=P")
    assert message in str(caught.value)


def test_the_limit_on_operations_is_the_decoders_own():
    from decoding.decoder import DEFAULT_MAX_OPS

    assert Config("P", "f", "i").max_ops == DEFAULT_MAX_OPS


def test_help_and_mistakes_need_no_torch():
    script = "import sys, decoding.edit; assert not {'torch', 'transformers'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT).returncode == 0
    shown = python("--help")
    assert shown.returncode == 0 and "FILE is the first word" in shown.stdout and "min_confidence" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "missing ckpt, file, instruction"),
        (["README.md", "Edit.", "more"], "unexpected argument 'more'"),
        (["--ckpt", "no/such/folder", "README.md", "Edit."], "there is no model folder no/such/folder"),
        (["--ckpt", "no/such/folder", "nothing.md", "Edit."], "there is no file nothing.md"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_2(arguments, message):
    done = python(*arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert message in done.stderr and "error: " in done.stderr


# --- the whole command ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"), "llama")


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory) -> Path:
    """A run whose model is random, but inclined to copy and to end its program."""
    from decoding.encoder import ProgramEncoder

    tokenizer = tokenizer_of("byte_level")
    table = ProgramEncoder(tokenizer).table
    model = tiny_model("llama", len(tokenizer), seed=0, favoured=(*table.program_close, *table.copy_head))
    run = make_run(tmp_path_factory.mktemp("runs") / "run", config="style: numbered\nsplice: none\n")
    model.save_pretrained(run / "final")
    tokenizer.save_pretrained(run / "final")
    return run


@needs_git
def test_the_diff_that_is_printed_makes_what_write_writes(tmp_path, run_folder, capsys, monkeypatch):
    before = b"a\r\nb\r\nc\r\nd\r\ne\r\n"
    paths = [tmp_path / name for name in ("shown", "written")]
    for path in paths:
        path.write_bytes(before)
    shown = python("--ckpt", str(run_folder), "shown", "x", cwd=tmp_path, text=False)
    assert shown.returncode == 0, shown.stderr
    assert paths[0].read_bytes() == before and shown.stdout.startswith(b"--- a/shown\n+++ b/shown\n@@ ")
    applied = subprocess.run(GIT, input=shown.stdout, cwd=tmp_path, capture_output=True, check=False)
    assert applied.returncode == 0, applied.stderr
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["edit.py", "--ckpt", str(run_folder), "--write", "written", "x"])
    command._main()
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("wrote written, +")
    assert paths[0].read_bytes() == paths[1].read_bytes() != before
    assert sorted(tmp_path.iterdir()) == paths


def test_a_program_that_a_limit_cuts_off_is_exit_code_2(note, model_folder, capsys, monkeypatch):
    argv = [str(note), "Edit.", "--ckpt", str(model_folder), "--write", "max_tokens=9", "device=cpu"]
    monkeypatch.setattr(sys, "argv", ["edit.py", *argv])
    with pytest.raises(SystemExit) as caught:
        command._main()
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert out == "" and "was not done after max_tokens, 9 tokens: raise max_tokens=" in err
    assert note.read_bytes() == b"one\ntwo\n" and only_entry(note)


def test_a_file_that_cannot_be_written_is_told_before_the_model_loads(note):
    note.chmod(0o444)
    with pytest.raises(UserError, match="read-only"):
        command.main(config_for(note, write=True))
    with pytest.raises(UserError, match="read-only"):
        check_replaceable(read_text_file(note))
