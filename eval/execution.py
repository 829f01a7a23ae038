"""Running HumanEvalPack's tests on edited documents, in limited processes. This runs model-written code.

What holds a program, on Linux with util-linux (``unshare``, ``prlimit``, ``setpriv``):

- its own network namespace with nothing in it, its own process and IPC namespaces, and a ``/proc`` that shows only it;
  when it ends, every process it left behind is killed;
- limits on CPU time, wall clock, memory, processes, the size of a file, output, and no core dumps;
- a working directory of its own, removed afterwards, an environment without anything of the caller's, an empty stdin;
- where the caller is root, a user id of its own that can read files but write only what everybody may. An ordinary
  user's files are not protected from that user's programs: a container protects them.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from data_prep.humanevalpack import HumanEvalTest, load_tests
from data_prep.prepared import OracleRow
from data_prep.rows import RowError
from decoding.commandline import UserError
from decoding.console import track

Outcome = Literal["passed", "failed", "timeout", "crashed"]
TEST_OUTCOMES: tuple[Outcome, ...] = Outcome.__args__

WALL_S = 20.0
CPU_S = 10
MEMORY_BYTES = 1 << 30
FILE_BYTES = 1 << 20
OUTPUT_BYTES = 1 << 20
PROCESSES = 64  # threads included; Node starts about a dozen
_WORKERS = min(os.cpu_count() or 1, 16)
_DETAIL_CHARACTERS = 200
_USER_IDS = itertools.count(1_000_000_000)  # for programs of root: one each, as the limit on processes is per user

# The harness says that it started, runs the program and then the tests, each compiled by itself, so that neither an
# open bracket nor a return can swallow the tests, and says that it is done. Both words are random, and the second is
# written after the tests only: a program that exits early, with whatever code, has not passed.
_HARNESS = {
    "py": """
def main():
    import json, os, sys
    job = json.load(sys.stdin.buffer)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.write(1, job["started"].encode())
    space = {"__name__": "__main__"}
    try:
        for part in ("program", "test"):
            exec(compile(job[part], part, "exec"), space)
    except BaseException as error:
        sys.stdout.flush()
        first = (str(error).strip().splitlines() or [""])[0]
        os.write(1, f"\\n{type(error).__name__}: {first}".rstrip(": ").encode(errors="replace"))
        os._exit(1)
    sys.stdout.flush()
    os.write(1, job["done"].encode())
    os._exit(0)
main()
""",
    "js": """
(() => {
  const fs = require('fs'), vm = require('vm'), write = fs.writeSync, exit = process.exit;
  const job = JSON.parse(fs.readFileSync(0, 'utf8'));
  fs.closeSync(0);
  fs.openSync('/dev/null');
  write(1, job.started);
  console.assert = (right, ...words) => {
    if (!right) throw new Error(['assertion failed', ...words].join(' '));
  };
  try {
    vm.runInThisContext(job.program, 'program');
    vm.runInThisContext(job.test, 'test');
  } catch (error) {
    write(1, '\\n' + String(error).split('\\n')[0]);
    exit(1);
  }
  write(1, job.done);
  exit(0);
})();
""",
}


@dataclass(frozen=True, slots=True)
class TestResult:
    """How the tests of one program ended; ``detail`` says in one line why they did not pass."""

    __test__ = False  # nothing that pytest should collect
    outcome: Outcome
    detail: str = ""


def interpreters() -> dict[str, list[str]]:
    """The commands that run programs here, by the short name of the language: py, and js where ``node`` is on PATH."""
    found = {"py": [sys.executable, "-I", "-c", _HARNESS["py"]]}
    if node := shutil.which("node"):
        found["js"] = [node, f"--max-old-space-size={MEMORY_BYTES >> 21}", "-e", _HARNESS["js"]]
    return found


def check_sandbox(isolated: bool = True) -> dict[str, str]:
    """Run a harmless program in every language there is an interpreter for, and return their versions by language.

    Raises:
        UserError: the limits, or the isolation if asked for, cannot be had here.
    """
    network = "import socket\nassert {name for _, name in socket.if_nameindex()} == {'lo'}, 'there is a network'\n"
    probes = {
        "py": HumanEvalTest("py", network if isolated else "", "import sys; print(sys.version.split()[0])"),
        "js": HumanEvalTest("js", "", "console.log(process.version)"),
    }
    versions = {}
    for short in interpreters():
        result, output = _run(probes[short], "", isolated)
        if result.outcome != "passed":
            raise _refusal(f"{result.outcome}: {result.detail}", isolated)
        versions[short] = output.strip()
    return versions


def run_test(test: HumanEvalTest, body: str, isolated: bool = True) -> TestResult:
    """Run ``test`` on the function with this body.

    ``isolated=False`` leaves the namespaces out, and with them the user id of its own and the limit on processes: the
    network can be reached, the environment of the caller's processes can be read from ``/proc``, and a process that
    leaves the program's session outlives it.

    Raises:
        UserError: the program could not be started under its limits, which says nothing about the program.
    """
    return _run(test, body, isolated)[0]


def run_tests(jobs: list[tuple[HumanEvalTest, str]], isolated: bool = True) -> Iterator[TestResult]:
    """Yield the results of ``(test, body)`` pairs in order, as many at once as there are processors."""
    with ThreadPoolExecutor(_WORKERS) as pool:
        try:
            yield from pool.map(lambda job: run_test(*job, isolated), jobs)
        finally:
            pool.shutdown(cancel_futures=True)


def execute_cases(
    cases: list[dict[str, Any]], rows: list[OracleRow], data_dir: str | None, isolated: bool = True
) -> dict[str, Any]:
    """Run the tests of every case row that has not been tested, and set its ``tests`` to outcome and detail.

    The outcome is one of ``TEST_OUTCOMES``, or not_executed, and the detail then says why: the corpus has no tests that
    can be run here, or the gold itself fails them here (a package is missing, say). A case without output has failed.

    Args:
        cases: rows with ``id`` and ``output``.
        rows: the prepared edits that the cases are of.
        data_dir: the folder of HumanEvalPack's files; default CAD_DATA_DIR, else the hub.
        isolated: as ``run_test``.

    Returns what ran the programs, for the record.

    Raises:
        UserError: the sandbox does not work here, or HumanEvalPack cannot be read.
    """
    record = {"isolated": isolated, "interpreters": check_sandbox(isolated)}
    tests, reasons = _tests_of(rows, data_dir)
    golds = {row.id: row.after for row in rows}
    results = run_tests([(test, golds[name]) for name, test in tests.items()], isolated)
    for name, result in zip(list(tests), results, strict=True):
        if result.outcome != "passed":
            reasons[name] = f"the gold does not pass here ({result.detail})"
    todo = []
    for case in cases:
        if case.get("tests", {}).get("outcome") in TEST_OUTCOMES:
            continue
        if case["id"] in reasons:
            case["tests"] = {"outcome": "not_executed", "detail": reasons[case["id"]]}
        elif case["output"] is None:
            case["tests"] = asdict(TestResult("failed", "no document"))
        else:
            todo.append(case)
    results = run_tests([(tests[case["id"]], case["output"]) for case in todo], isolated)
    for case, result in zip(todo, track(results, "tests", total=len(todo)), strict=True):
        case["tests"] = asdict(result)
    return record


def _tests_of(rows: list[OracleRow], data_dir: str | None) -> tuple[dict[str, HumanEvalTest], dict[str, str]]:
    """The tests by row id, and why the other rows have none that can be run here."""
    folder = data_dir or os.environ.get("CAD_DATA_DIR")
    runnable = interpreters()
    tests, reasons = {}, {}
    for corpus in dict.fromkeys(row.corpus for row in rows):
        family, _, short = corpus.partition("-")
        of_corpus = [row for row in rows if row.corpus == corpus]
        by_task: dict[str, HumanEvalTest] = {}
        reason = "HumanEvalPack has no tests of this id"
        if family != "hevalfix":
            reason = f"{corpus} has no tests"
        elif short not in runnable:
            reason = "node not found" if short == "js" else f"the tests of {corpus} cannot be run"
        else:
            try:
                by_task = load_tests(short, Path(folder) if folder else None)
            except (RowError, ValueError, OSError) as error:
                first = (str(error).splitlines() or [""])[0]
                raise UserError(
                    f"execute=true: cannot load the tests of {corpus} ({first}); without the hub, point CAD_DATA_DIR "
                    "at the folder of humanevalpack/*.jsonl"
                ) from None
        for row in of_corpus:
            if test := by_task.get(row.meta.get("task_id")):
                tests[row.id] = test
            else:
                reasons[row.id] = reason
    return tests, reasons


def _run(test: HumanEvalTest, body: str, isolated: bool) -> tuple[TestResult, str]:
    """Run one program; return its result and what it printed."""
    started, done = secrets.token_hex(16), secrets.token_hex(16)
    job = {"started": started, "done": done, "program": test.prefix + body, "test": test.test}
    with (
        tempfile.TemporaryDirectory(prefix="program-", ignore_cleanup_errors=True) as folder,
        tempfile.TemporaryFile() as stdin,
    ):
        stdin.write(json.dumps(job).encode())
        stdin.seek(0)
        command = _command(test.language, folder, isolated)
        process = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={"HOME": folder, "TMPDIR": folder, "LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        try:
            output, stop = _read(process, done.encode())
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.stdout.close()
            status = process.wait()
    before, start, text = output.decode(errors="replace").partition(started)
    if not start:
        raise _refusal(_last_line(before) or stop or f"exit code {status}", isolated)
    return _result(text, done, stop, status), text.replace(done, "")


def _read(process: subprocess.Popen, done: bytes) -> tuple[bytes, str]:
    """Read what the process prints until it is done, ends, or must be stopped; the reason for a stop comes second."""
    deadline = time.monotonic() + WALL_S
    output = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            ended = process.poll() is not None  # before the look at the pipe: what is in it now is all there is
            if selector.select(0 if ended else 0.05):
                chunk = os.read(process.stdout.fileno(), 1 << 16)
                output += chunk
                if done in output[-len(chunk) - len(done) :]:
                    return bytes(output), ""
                if len(output) > OUTPUT_BYTES:
                    return bytes(output), f"printed more than {OUTPUT_BYTES >> 20} MiB"
                if chunk:
                    continue
                with contextlib.suppress(subprocess.TimeoutExpired):  # the pipe is closed, the end is near
                    process.wait(max(0.0, deadline - time.monotonic()))
                    return bytes(output), ""
            elif ended:
                return bytes(output), ""
            if time.monotonic() >= deadline:
                return bytes(output), f"longer than {WALL_S:g} s"


def _result(text: str, done: str, stop: str, status: int) -> TestResult:
    if done in text:
        return TestResult("passed")
    if stop:
        return TestResult("timeout" if stop.startswith("longer") else "failed", stop)
    killed_by = status - 128 if status > 128 else max(0, -status)  # the shell's way, and Python's
    if killed_by == signal.SIGXCPU:
        return TestResult("timeout", f"more than {CPU_S} s of CPU time")
    line = _last_line(text)
    if killed_by:
        return TestResult("crashed", f"killed by signal {killed_by}")
    if line.startswith("MemoryError"):
        return TestResult("crashed", line)
    return TestResult("failed", line if status else "ended before its tests did")


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1].strip()[:_DETAIL_CHARACTERS]


def _command(short: str, folder: str, isolated: bool) -> list[str]:
    """The command line that runs a program of this language under its limits."""
    limits = ["--core=0", f"--cpu={CPU_S}:{CPU_S + 1}", f"--fsize={FILE_BYTES}"]
    # V8 reserves far more addresses than it uses, so that Node's limit is on writable memory.
    limits.append(f"--{'data' if short == 'js' else 'as'}={MEMORY_BYTES}")
    namespaces, user = [], []
    if isolated:
        limits.append(f"--nproc={PROCESSES}")
        namespaces = [_tool("unshare"), "--net", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
        if os.geteuid() == 0:
            # The kernel does not limit root's processes. Reading stays allowed: the interpreter may be root's own.
            number = next(_USER_IDS)
            os.chown(folder, number, number)
            caps = "-all,+dac_read_search"
            user = [_tool("setpriv"), f"--reuid={number}", f"--regid={number}", "--clear-groups", "--no-new-privs"]
            user += [f"--{kind}={caps}" for kind in ("bounding-set", "inh-caps", "ambient-caps")]
        else:
            namespaces += ["--user", "--map-current-user"]
    # A shell stands before the program, as the first process of a namespace is deaf to most signals.
    shell = ["/bin/sh", "-c", '"$@"; exit $?', "sh"]
    return [*namespaces, *user, *shell, _tool("prlimit"), *limits, "--", *interpreters()[short]]


def _tool(name: str) -> str:
    if path := shutil.which(name):
        return path
    raise UserError(f"execute=true needs {name} of util-linux (Linux) to limit what model-written code can do")


def _refusal(reason: str, isolated: bool) -> UserError:
    if not isolated:
        return UserError(f"execute=true cannot run a program here: {reason}")
    return UserError(
        f"execute=true cannot isolate programs here ({reason}): it needs the right to make namespaces. In a container "
        "of its own, without secrets, execute_isolated=false runs them with the network and limits only"
    )
