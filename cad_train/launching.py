"""Running a command that takes hours: its output in a log and one live line of it, and a stop that it may answer."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_LAST_LINES = 20
_SECONDS_BETWEEN_LINES = 20.0
# The line on which a traceback or one of our commands says what went wrong; torchrun puts the rank before it.
_REASON = re.compile(r"(?:\[rank\d+\]: ?)?((?:error: |(?:\w+\.)*\w*(?:Error|Exception|Interrupt)(?:: |$)).*)")


@dataclass(frozen=True)
class Outcome:
    """How a command ended. ``reason`` is empty where it ended well; ``last_lines`` are of its output."""

    exit_code: int
    reason: str
    last_lines: list[str]


def launch(command: list[str], log: Path, label: str) -> Outcome:
    """Run a command to its end; append its output to ``log``, and show its newest line on stderr.

    On KeyboardInterrupt the command's processes get SIGTERM, on which a recipe saves a checkpoint; the exception goes
    on when they have ended. A second one kills them.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    last: deque[str] = deque(maxlen=_LAST_LINES)
    with log.open("a", encoding="utf-8") as file, _live_line(label) as show:
        file.write(f"$ {shlex.join(command)}\n")
        file.flush()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
            start_new_session=True,  # a group of its own, so that a signal reaches the launcher's children too
        )

        def drain() -> None:
            for line in process.stdout:
                file.write(line)
                file.flush()
                if line.strip():
                    last.append(line.rstrip())
                    show(line.strip())

        try:
            drain()
            process.wait()
        except KeyboardInterrupt:
            _signal_group(process, signal.SIGTERM)
            try:
                drain()  # until the last of its processes has closed the pipe: it saves a checkpoint
            except KeyboardInterrupt:
                _signal_group(process, signal.SIGKILL)
            process.wait()
            raise
    reason = "" if process.returncode == 0 else _reason(last) or f"exit code {process.returncode} without output"
    return Outcome(process.returncode, reason, list(last))


def _reason(lines: deque[str]) -> str:
    """The last line that names an error, or else the last line."""
    named = [match[1] for match in map(_REASON.match, lines) if match]
    return (named or list(lines) or [""])[-1].removeprefix("error: ")


def _signal_group(process: subprocess.Popen, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


@contextlib.contextmanager
def _live_line(label: str) -> Iterator[Callable[[str], None]]:
    """Yield what shows the newest line: in place on a terminal, now and then elsewhere."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.text import Text

        with Console(stderr=True).status(Text(label)) as status:
            yield lambda line: status.update(Text(f"{label}: {line}", no_wrap=True, overflow="ellipsis"))
        return
    shown = time.monotonic()

    def show(line: str) -> None:
        nonlocal shown
        if time.monotonic() - shown >= _SECONDS_BETWEEN_LINES:
            print(f"{label}: {line}", file=sys.stderr, flush=True)
            shown = time.monotonic()

    yield show
