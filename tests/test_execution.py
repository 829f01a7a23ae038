"""Executing model-written programs: what passes, and what a program cannot do. Needs Linux with namespaces."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import time
from pathlib import Path

import pytest

from data_prep.humanevalpack import HumanEvalTest, load_humanevalpack, load_tests
from decoding.commandline import UserError
from eval import execution
from eval.execution import TestResult, check_sandbox, execute_cases, interpreters, run_test, run_tests

DATA_DIR = os.environ.get("CAD_DATA_DIR")
needs_data = pytest.mark.skipif(not DATA_DIR, reason="set CAD_DATA_DIR to the folder of humanevalpack/")
needs_node = pytest.mark.skipif(not shutil.which("node"), reason="node is not on PATH")
JS = pytest.param("js", marks=needs_node)
FAILS_TO_LOAD = {"JavaScript/162"}  # its gold requires the package js-md5


def sandbox_fault() -> str:
    try:
        check_sandbox()
    except UserError as error:
        return str(error)
    return ""


FAULT = sandbox_fault()
pytestmark = pytest.mark.skipif(bool(FAULT), reason=FAULT)


def python(body: str, test: str = "assert f() == 1") -> TestResult:
    return run_test(HumanEvalTest("py", "def f():\n", test), "".join(f"    {line}\n" for line in body.splitlines()))


def node(body: str, test: str = "console.assert(f() === 1)") -> TestResult:
    return run_test(HumanEvalTest("js", "const f = () => {\n", test), body + "\n}\n")


def processes_with(mark: str) -> list[str]:
    """The processes of this machine that have ``mark`` in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:  # it ended meanwhile
            continue
    return found


# --- passing and failing ---------------------------------------------------------------------------------------------


def test_a_right_program_passes_and_a_wrong_one_fails_with_its_error():
    assert python("return 1") == TestResult("passed")
    assert python("return 2") == TestResult("failed", "AssertionError")
    assert python("return x") == TestResult("failed", "NameError: name 'x' is not defined")
    assert python("return (") == TestResult("failed", "SyntaxError: '(' was never closed (program, line 2)")


@needs_node
def test_javascript_assertions_count():
    assert node("return 1") == TestResult("passed")
    assert node("return 2") == TestResult("failed", "Error: assertion failed")
    assert node("return x") == TestResult("failed", "ReferenceError: x is not defined")
    assert node("return 1 }; return; {").detail.startswith("SyntaxError")


@pytest.mark.parametrize(
    "body",
    [
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
        "import os; os.close(1)",
        "raise KeyboardInterrupt",
        'return 1\n"""',
        "print('passed'); print(input())",
        "import os; os.lseek(0, 0, 0); print(os.read(0, 9999)); os._exit(0)",
    ],
)
def test_a_program_that_ends_before_its_tests_has_not_passed(body):
    result = python(body, "assert f() == 1, 'not reached'")
    assert result.outcome in ("failed", "crashed") and result.detail


def test_leaving_when_loaded_does_not_pass():
    early = HumanEvalTest("py", "def f():\n", "f()")
    assert run_test(early, "    return 1\nimport os\nos._exit(0)\n").detail == "ended before its tests did"
    assert run_test(early, "    return 1\nraise SystemExit\n").detail == "SystemExit"


@needs_node
@pytest.mark.parametrize("body", ["process.exit(0)", "process.reallyExit(0)", "process.kill(process.pid)"])
def test_a_javascript_program_that_ends_before_its_tests_has_not_passed(body):
    assert node(body).outcome in ("failed", "crashed")


def test_a_program_runs_as_the_main_one_with_nothing_to_read_and_a_folder_of_its_own():
    assert python("import sys; return len(sys.stdin.read()) + (__name__ == '__main__')") == TestResult("passed")
    assert python("open('a', 'w').write('b'); return len(open('a').read())") == TestResult("passed")
    assert python("import os; return 1 + len(os.listdir())") == TestResult("passed")


# --- limits ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def short_limits(monkeypatch):
    monkeypatch.setattr(execution, "CPU_S", 1)
    monkeypatch.setattr(execution, "WALL_S", 2.0)


def test_an_endless_loop_is_a_timeout(short_limits):
    assert python("while True: pass") == TestResult("timeout", "more than 1 s of CPU time")


@needs_node
def test_an_endless_loop_of_javascript_is_a_timeout(short_limits):
    assert node("while (true) {}").outcome == "timeout"


def test_a_program_that_sleeps_is_a_timeout(short_limits):
    assert python("import time; time.sleep(60)") == TestResult("timeout", "longer than 2 s")


def test_a_loop_that_ignores_the_signal_is_stopped(short_limits):
    result = python("import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass")
    assert result.outcome in ("timeout", "crashed")


def test_memory_is_limited():
    assert python("return len(bytearray(3 << 30))") == TestResult("crashed", "MemoryError")


@needs_node
@pytest.mark.parametrize(
    ("body", "outcome"),
    [("const a = []; for (;;) a.push(new Array(1e6).fill(1))", "crashed"), ("Buffer.alloc(1 << 29, 1)", "failed")],
)
def test_memory_of_javascript_is_limited(body, outcome, monkeypatch):
    monkeypatch.setattr(execution, "MEMORY_BYTES", 1 << 28)
    assert node(body).outcome == outcome


def test_a_crash_is_told_from_a_failure():
    assert python("import ctypes; ctypes.string_at(0)") == TestResult("crashed", "killed by signal 11")


def test_processes_are_limited():
    # A bounded bomb: at most 300 children, which would all be there at once without the limit.
    bomb = """
import os, time
made = 0
try:
    for _ in range(300):
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
        made += 1
except BlockingIOError:
    return 1 if made < 64 else made
return made"""
    assert python(bomb) == TestResult("passed")


def test_files_are_limited():
    assert python("open('big', 'wb').write(bytes(2 << 20))").detail == "OSError: [Errno 27] File too large"


def test_endless_output_is_stopped():
    assert python("while True: print('x' * 1000)") == TestResult("failed", "printed more than 1 MiB")


# --- isolation -------------------------------------------------------------------------------------------------------


def test_there_is_no_network():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        server.settimeout(0.2)
        socket.create_connection(("127.0.0.1", port)).close()
        server.accept()[0].close()  # from here it can be reached
        result = python(f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)")
        assert result.outcome == "failed" and result.detail.startswith(("OSError", "ConnectionRefusedError"))
        with pytest.raises(TimeoutError):
            server.accept()


def test_the_callers_environment_is_not_there(monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "abc")
    seen = """
import os, pathlib
assert 'SECRET_TOKEN' not in os.environ
for path in pathlib.Path('/proc').glob('[0-9]*/environ'):
    try:
        assert b'SECRET' not in path.read_bytes()
    except PermissionError:
        pass
return 1"""
    assert python(seen) == TestResult("passed")


def test_only_its_own_processes_are_there_and_none_can_be_signalled():
    body = f"import os, signal; os.kill({os.getpid()}, signal.SIGTERM)"
    assert python(body).detail == "ProcessLookupError: [Errno 3] No such process"


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's programs may write that user's files")
def test_programs_of_root_cannot_write_its_files(tmp_path):
    assert python(f"open({str(tmp_path / 'x')!r}, 'w')").detail.startswith("PermissionError")


@pytest.mark.parametrize("ending", ["return 1", "import os; os._exit(1)"])
def test_what_a_program_leaves_behind_is_killed(ending, tmp_path):
    mark = f"left-behind-{tmp_path.name}-{os.getpid()}"
    body = f"""
import os, subprocess, sys
child = 'import time; print("here", flush=True); time.sleep(60)'
made = subprocess.Popen([sys.executable, '-c', child, '{mark}'], start_new_session=True, stdout=subprocess.PIPE)
assert made.stdout.readline() == b'here\\n'
{ending}"""
    assert python(body).outcome == ("passed" if ending == "return 1" else "failed")
    deadline = time.monotonic() + 10
    while processes_with(mark) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert processes_with(mark) == []


def test_the_working_folder_is_removed(tmp_path, monkeypatch):
    tmp_path.chmod(0o755)
    monkeypatch.setattr(execution.tempfile, "tempdir", str(tmp_path))
    assert python("open('a', 'w').close(); return 1") == TestResult("passed")
    assert list(tmp_path.iterdir()) == []


def test_a_sandbox_that_does_not_work_is_refused_and_says_nothing_about_the_program(monkeypatch):
    monkeypatch.setattr(execution, "MEMORY_BYTES", 1 << 20)  # too little for an interpreter to start
    with pytest.raises(UserError, match="execute_isolated=false"):
        python("return 1")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="util-linux"):
        python("return 1")


def test_without_isolation_the_limits_still_hold(short_limits):
    test = HumanEvalTest("py", "def f():\n", "assert f() == 1")
    assert run_test(test, "    return 1\n", isolated=False) == TestResult("passed")
    assert run_test(test, "    while True: pass\n", isolated=False).outcome == "timeout"
    assert run_test(test, "    return len(bytearray(3 << 30))\n", isolated=False).outcome == "crashed"


# --- HumanEvalPack ---------------------------------------------------------------------------------------------------


@needs_data
@pytest.mark.parametrize("short", ["py", JS])
def test_golds_pass_and_buggy_documents_fail(short):
    tests = load_tests(short, Path(DATA_DIR))
    pairs = [pair for pair in load_humanevalpack(short, Path(DATA_DIR)) if pair.meta["task_id"] not in FAILS_TO_LOAD]
    some = pairs[26:130:8]  # none of these bugs runs into a limit, which would take long
    assert len(some) == 13
    for side, right in (("after", True), ("before", False)):
        results = list(run_tests([(tests[pair.meta["task_id"]], getattr(pair, side)) for pair in some]))
        assert [pair.id for pair, each in zip(some, results, strict=True) if (each.outcome == "passed") != right] == []


def row(corpus: str, number: int, after: str, task: str | None = None):
    from data_prep.prepared import OracleRow

    name = f"{corpus}/{number}"
    meta = {"task_id": task} if task else {}
    return OracleRow(name, corpus, "heldout", name, "fix", "    return 0\n", after, "", [], meta)


def test_every_case_gets_an_outcome_and_what_is_not_executed_a_reason(tmp_path, monkeypatch):
    (tmp_path / "humanevalpack").mkdir()
    fields = {"entry_point": "f", "prompt": "", "buggy_solution": "", "canonical_solution": ""}
    problem = {"declaration": "def f():\n", "test": "assert f() == math.sqrt(1)", **fields}
    problems = [problem | {"task_id": f"Python/{number}"} for number in range(3)]
    text = "".join(json.dumps(problem) + "\n" for problem in problems)
    (tmp_path / "humanevalpack" / "python.jsonl").write_text(text)
    monkeypatch.setattr(execution, "interpreters", lambda: {"py": interpreters()["py"]})  # as where node is missing
    rows = [
        row("hevalfix-py", 0, "    return 1\n", "Python/0"),
        row("hevalfix-py", 1, "    import no_such_package\n", "Python/1"),
        row("hevalfix-py", 9, "    return 1\n", "Python/9"),
        row("hevalfix-js", 0, "return 1 }", "JavaScript/0"),
        row("hevalfix-java", 0, "return 1; }", "Java/0"),
        row("probeedit", 0, "x"),
    ]
    cases = [{"id": name.id, "output": name.before} for name in rows]
    cases += [{"id": rows[0].id, "output": output} for output in (rows[0].after, None)]
    cases += [{"id": rows[0].id, "output": "", "tests": {"outcome": "timeout", "detail": "as found"}}]
    record = execute_cases(cases, rows, str(tmp_path))
    assert record == {"isolated": True, "interpreters": {"py": ".".join(map(str, sys.version_info[:3]))}}
    assert [(case["tests"]["outcome"], case["tests"]["detail"]) for case in cases] == [
        ("failed", "AssertionError"),
        ("not_executed", "the gold does not pass here (ModuleNotFoundError: No module named 'no_such_package')"),
        ("not_executed", "HumanEvalPack has no tests of this id"),
        ("not_executed", "node not found"),
        ("not_executed", "the tests of hevalfix-java cannot be run"),
        ("not_executed", "probeedit has no tests"),
        ("passed", ""),
        ("failed", "no document"),
        ("timeout", "as found"),
    ]


def test_tests_that_cannot_be_loaded_are_an_error_of_the_person(tmp_path):
    (tmp_path / "humanevalpack").mkdir()
    (tmp_path / "humanevalpack" / "python.jsonl").write_text('{"task_id": "Python/0"}\n')
    with pytest.raises(UserError, match="cannot load the tests of hevalfix-py .*no text in"):
        execute_cases([], [row("hevalfix-py", 0, "", "Python/0")], str(tmp_path))
