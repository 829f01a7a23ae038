r"""Text files for editing: read as clean text, written back with their encoding, line ends, mode and owner. Torch-free.

    file = read_text_file(Path("notes.txt"))
    replace_text(file, file.text.replace("Monday", "Friday"))

The text is what an editor shows. A byte-order mark is kept aside. Where every line feed follows a carriage return, the
text has ``\n`` alone, and every line gets CRLF when it is written. In a file of mixed ends each ``\r`` stays in the
text as content of its line, so that lines nobody touches come back as they were. Writing back the unchanged text gives
the identical bytes, for every file that is not refused: reading checks it.
"""

from __future__ import annotations

import codecs
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from decoding.commandline import UserError

_MARKS = (  # the mark of little-endian UTF-32 starts with that of UTF-16, so it is tried first
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
    (codecs.BOM_UTF8, "utf-8"),
)


@dataclass(frozen=True)
class TextFile:
    """A text file as it was read.

    Attributes:
        path: as it was named, for messages.
        target: the file itself, symbolic links followed.
        data: its bytes.
        text: what there is to edit.
        encoding: the codec of everything after ``mark``.
        mark: the byte-order mark, or no bytes.
        newline: what the file has where the text has a line feed.
    """

    path: Path
    target: Path
    data: bytes
    text: str
    encoding: str
    mark: bytes
    newline: Literal["\n", "\r\n"]

    def encode(self, text: str) -> bytes:
        """Return ``text`` as this file would hold it.

        Raises:
            UserError: a character that the file's encoding does not have.
        """
        whole = text.replace("\n", self.newline)
        try:
            return self.mark + whole.encode(self.encoding)
        except UnicodeEncodeError as error:
            line = whole.count("\n", 0, error.start) + 1
            character = f"U+{ord(whole[error.start]):04X} ({whole[error.start]!r})"
            message = f"line {line} of the edited text has {character}, which {self.encoding} cannot write"
            raise UserError(f"{self.path}: {message}; the file is as it was") from None


def read_text_file(path: Path, encoding: str | None = None) -> TextFile:
    """Read UTF-8 with or without a byte-order mark, UTF-16 or UTF-32 with one, or text in the named ``encoding``.

    Raises:
        UserError: no such file, not a regular file, not text in the encoding (with the byte offset), a NUL in a file
            whose encoding is not named, an unknown encoding, or one that cannot give the same bytes back.
    """
    target, data = _read(path)
    mark, codec = _detect(data, encoding)
    try:
        content = data[len(mark) :].decode(codec)
    except LookupError as error:
        raise UserError(f"encoding={encoding}: {error}") from None
    except UnicodeError as error:
        problem = str(error)  # punycode and the like do not say where
        if isinstance(error, UnicodeDecodeError):
            offset = len(mark) + error.start
            problem = f"byte {offset} (0x{data[offset]:02x}): {error.reason}"
        remedy = "name the right encoding=" if encoding else "name its encoding with encoding=, cp1252 say"
        raise UserError(f"{path} is not {codec.upper()} text: {problem}; {remedy}") from None
    if encoding is None and "\0" in content:
        offset = len(mark) + len(content[: content.index("\0")].encode(codec))
        message = f"{path} has a NUL at byte {offset}: it is binary, or text in an encoding to be named with encoding="
        raise UserError(message)
    ends = content.count("\n")
    crlf = ends > 0 and content.count("\r\n") == ends
    text = content.replace("\r\n", "\n") if crlf else content
    file = TextFile(path, target, data, text, codec, mark, "\r\n" if crlf else "\n")
    _check_round_trip(file)
    return file


def check_replaceable(file: TextFile) -> None:
    """Check that the file can be replaced by another with the same mode, owner and names.

    Raises:
        UserError: the file is gone, read-only, or has several hard links, or its folder takes no new file.
    """
    try:
        status = file.target.stat()
    except OSError as error:
        raise _cannot_write(file, error) from None
    # The superuser may write anything; a file that nobody is allowed to write is meant to stay even so.
    if not status.st_mode & 0o222 or not os.access(file.target, os.W_OK):
        raise UserError(f"{file.path} is read-only: make it writable first (chmod u+w)")
    if status.st_nlink > 1:
        names = f"{file.path} is one of {status.st_nlink} hard links to the same file"
        raise UserError(f"{names}, which replacing it would part: put a copy of its own in its place first")
    if not os.access(file.target.parent, os.W_OK | os.X_OK):
        raise UserError(f"cannot write {file.path}: its folder {file.target.parent} takes no new file")


def replace_text(file: TextFile, text: str) -> None:
    """Give the file a new text, all of it or nothing: a whole new file is renamed over the old one.

    Mode, owner, group and extended attributes are kept; a symbolic link stays, and the file it leads to is replaced.

    Raises:
        UserError: a character that the encoding does not have, what ``check_replaceable`` refuses, a file that changed
            since it was read, an owner that cannot be kept, or an error of the system. The file is then as it was.
    """
    data = file.encode(text)
    check_replaceable(file)
    try:
        descriptor, name = tempfile.mkstemp(prefix=".edit-", suffix=".part", dir=file.target.parent)
    except OSError as error:
        raise _cannot_write(file, error) from None
    part = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(data)
            out.flush()
            _keep_metadata(file, part)
            os.fsync(out.fileno())
        if file.target.read_bytes() != file.data:
            raise UserError(f"{file.path} has changed since it was read, and is left so: give the command again")
        part.replace(file.target)
    except OSError as error:
        raise _cannot_write(file, error) from None
    finally:
        with suppress(OSError):
            part.unlink()  # after a success the name is gone already
    _sync_folder(file.target.parent)


def _read(path: Path) -> tuple[Path, bytes]:
    """The file that ``path`` leads to, and its bytes."""
    try:
        target = Path(os.path.realpath(path, strict=True))
        mode = target.stat().st_mode
        if stat.S_ISDIR(mode):
            raise UserError(f"{path} is a folder: name a text file")
        if not stat.S_ISREG(mode):  # reading a pipe would wait for ever
            raise UserError(f"{path} is not a regular file")
        return target, target.read_bytes()
    except FileNotFoundError:
        raise UserError(f"there is no file {path}") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


def _detect(data: bytes, encoding: str | None) -> tuple[bytes, str]:
    """The byte-order mark and the codec of what follows it."""
    try:
        family = codecs.lookup(encoding).name.removesuffix("-sig") if encoding else ""
    except (LookupError, ValueError):
        raise UserError(f"encoding={encoding}: no such encoding; utf-8, cp1252 and shift_jis are some") from None
    for mark, codec in _MARKS:
        if data.startswith(mark) and codec.startswith(family):
            return mark, codec
    return b"", encoding or "utf-8"


def _check_round_trip(file: TextFile) -> None:
    """Refuse codecs that read several byte sequences as one text: untouched lines would change."""
    try:
        again = file.encode(file.text)
    except LookupError as error:  # hex and the like, on an empty file
        raise UserError(f"encoding={file.encoding}: {error}") from None
    if again == file.data:
        return
    same = len(os.path.commonprefix([again, file.data]))
    message = f"{file.path}: {file.encoding} would not give byte {same} back as it is: name the exact encoding="
    raise UserError(f"{message} (utf-16-le for UTF-16 without a byte-order mark, say)")


def _keep_metadata(file: TextFile, part: Path) -> None:
    """Give the new file the owner, group, mode and extended attributes of the old one."""
    old, new = file.target.stat(), part.stat()
    if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
        try:
            os.chown(part, old.st_uid, old.st_gid)
        except PermissionError:
            message = f"{file.path} belongs to an owner or group that a new file of yours cannot have"
            raise UserError(f"{message}; it is as it was: let its owner give the command") from None
    shutil.copystat(file.target, part)  # after chown, which clears some mode bits
    os.utime(part)  # the copied times are the old text's


def _sync_folder(folder: Path) -> None:
    """Make the rename last through a power cut, where the file system can: the new text is in place either way."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _cannot_write(file: TextFile, error: OSError) -> UserError:
    return UserError(f"cannot write {file.path}: {error.strerror}; it is as it was")
