"""The sandbox against programs that are wrong, endless, greedy or sly."""

import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import river_llm
from river_llm.errors import UserError
from river_llm.grading import sandbox, sandbox_levels
from river_llm.grading.sandbox import ExecutionResult, check_sandbox, run_program

TEST = "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(3) == 9\n"
RIGHT = "def square(x):\n    return x * x\n"
TIMEOUT_S = 20.0
WRITES_EVERYWHERE = """
import os
for descriptor in range(3, 20):
    try:
        os.write(descriptor, b"passed\\n")
    except OSError:
        pass
"""


def run(program: str, timeout_s: float = TIMEOUT_S, test: str = TEST) -> ExecutionResult:
    return run_program(program, test, "square", timeout_s, level="process")


def wait_until_gone(pid: int) -> bool:
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state == "Z":  # dead, and not yet collected by the system's first process
            return True
        time.sleep(0.05)
    return False


def test_right_program_passes() -> None:
    assert run(RIGHT) == ExecutionResult("passed", "")
    assert run(RIGHT).passed


@pytest.mark.parametrize(
    ("program", "detail"),
    [
        ("def square(x):\n    return 4\n", "AssertionError"),
        ("def square(x) return x\n", "SyntaxError"),
        ("def square(x):\n    return y\n", "NameError"),
        ("x = 1\n", "square is not defined"),
        ("raise RuntimeError('at import')\n" + RIGHT, "RuntimeError: at import"),
        ("def square(x):\n    return bytearray(6 << 30)\n", "MemoryError"),
        ("def square(x):\n    return input()\n", "EOFError"),
        ("def square(x):\n    return square(x)\n", "RecursionError"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n", "killed by signal 11"),
        ("x = '\ud800'\n" + RIGHT, "UnicodeError"),
        ("x = '\x00'\n" + RIGHT, "null"),
        ("class E(Exception):\n    def __str__(self):\n        raise E\nraise E\n", "E"),
    ],
)
def test_fault_of_the_program_is_failed(program: str, detail: str) -> None:
    result = run(program)
    assert result.status == "failed"
    assert detail in result.detail
    assert not result.passed


@pytest.mark.parametrize(
    "program",
    [
        "exit()",
        "import sys\nsys.exit(0)",
        "import os\nos._exit(0)",
        "def square(x):\n    import os\n    os._exit(0)",
        "def square(x):\n    raise SystemExit(0)",
        "print('passed', flush=True)\nimport os\nos._exit(0)",
        WRITES_EVERYWHERE,
        "import os\nos.closerange(0, 100)\n" + RIGHT,
    ],
)
def test_exit_or_printed_word_is_no_pass_and_ends_nothing_else(program: str) -> None:
    assert run(program).status == "failed"
    assert run(RIGHT).passed


def test_program_that_kills_its_supervisor_has_failed_and_does_not_live_on() -> None:
    program = "import os, signal, time\nos.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(600)\n"
    for _ in range(20):  # at whatever moment the supervisor is hit
        begin = time.monotonic()
        assert run(program) == ExecutionResult("failed", "the program ended its supervisor")
        assert time.monotonic() - begin < 10.0


@pytest.mark.parametrize(
    "program",
    [
        "while True:\n    pass\n",
        "def square(x):\n    import time\n    time.sleep(600)\n",
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)\n",
        "import os, time\nos.fork()\nos.fork()\ntime.sleep(600)\n",
    ],
)
def test_endless_program_is_a_timeout(program: str) -> None:
    begin = time.monotonic()
    assert run(program, timeout_s=0.5).status == "timeout"
    assert time.monotonic() - begin < 10.0


DETACHED = """
import os, subprocess, sys
process = subprocess.Popen(
    [sys.executable, "-c", "import time; time.sleep(600)"],
    start_new_session=True, env={{}}, cwd="/", stdout=subprocess.DEVNULL,
)
first = os.fork()
if first == 0:
    os.setsid()
    second = os.fork()
    if second == 0:
        import time
        time.sleep(600)
    with open({path!r}, "a") as file:
        file.write(f"{{second}}\\n")
    os._exit(0)
os.waitpid(first, 0)
with open({path!r}, "a") as file:
    file.write(f"{{process.pid}}\\n")
"""


@pytest.mark.parametrize(
    ("end", "status"), [("", "passed"), ("while True:\n    pass\n", "timeout")]
)
def test_nothing_the_program_started_lives_on(tmp_path: Path, end: str, status: str) -> None:
    pids = tmp_path / "pids"
    program = DETACHED.format(path=str(pids)) + RIGHT + end
    assert run(program, timeout_s=3.0).status == status
    started = [int(line) for line in pids.read_text().split()]
    assert len(started) == 2
    for pid in started:
        assert wait_until_gone(pid)


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_nothing_lives_on_when_the_harness_itself_is_ended(
    tmp_path: Path, ending: signal.Signals
) -> None:
    pids = tmp_path / "pids"
    program = DETACHED.format(path=str(pids)) + "while True:\n    pass\n"
    harness = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from river_llm.grading.sandbox import run_program\n"
            f"run_program({program!r}, {TEST!r}, 'square', 60.0, 'process')",
        ],
        stderr=subprocess.DEVNULL,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(river_llm.__file__).parents[1]),
            "TMPDIR": str(tmp_path),  # a killed harness cannot remove its folder
        },
        # A test run in the background of a shell ignores Ctrl-C, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 30.0
    while not (pids.exists() and len(pids.read_text().split()) == 2):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    harness.send_signal(ending)
    harness.wait(30.0)
    for pid in pids.read_text().split():
        assert wait_until_gone(int(pid))


def test_program_sees_an_empty_folder_and_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_SECRET", "swordfish")
    program = (
        "import os, sys\n"
        "assert os.listdir('.') == []\n"
        "assert 'SOME_SECRET' not in os.environ\n"
        "assert 'swordfish' not in open('/proc/self/environ').read()\n"
        "assert sys.flags.isolated\n"
        "assert os.getcwd() not in sys.path and '' not in sys.path\n"
        "open('left', 'w').write('x')\n"
        "folder = os.getcwd()\n" + RIGHT
    )
    if not Path("/proc/self/environ").exists():
        program = program.replace("open('/proc/self/environ').read()", "''")
    assert run(program) == ExecutionResult("passed")
    assert run(program) == ExecutionResult("passed")  # nothing left of the first


def test_descriptors_of_the_parent_are_closed(tmp_path: Path) -> None:
    with open(tmp_path / "secret", "w") as file:
        os.set_inheritable(file.fileno(), True)
        inode = os.fstat(file.fileno()).st_ino
        program = (
            "import contextlib, os\n"
            "for descriptor in range(256):\n"
            "    with contextlib.suppress(OSError):\n"
            f"        assert os.fstat(descriptor).st_ino != {inode}\n"
        )
        assert run(program + RIGHT) == ExecutionResult("passed")


@pytest.mark.parametrize("name", ["RLIMIT_CPU", "RLIMIT_AS", "RLIMIT_FSIZE", "RLIMIT_CORE"])
def test_resources_are_limited(name: str) -> None:
    program = f"import resource\nassert resource.getrlimit(resource.{name})[0] != -1\n" + RIGHT
    assert run(program) == ExecutionResult("passed")


def test_huge_file_and_endless_output_do_no_harm() -> None:
    big = "def square(x):\n    open('f', 'wb').write(bytes(200 << 20))\n    return x * x\n"
    assert run(big).status == "failed"
    loud = "print('x' * (50 << 20))\n" + RIGHT
    assert run(loud).passed


def test_main_block_is_not_run_and_dataclasses_work() -> None:
    program = (
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "@dataclass\nclass Point:\n    x: int\n"
        "if __name__ == '__main__':\n    raise SystemExit(1)\n"
    )
    assert run(program + RIGHT).passed


@pytest.mark.parametrize("test", ["def check(candidate:\n", "value = 1\n"])
def test_broken_test_is_an_error_and_not_the_program_s_fault(test: str) -> None:
    assert run(RIGHT, test=test).status == "error"


def test_refused_limits_and_missing_timers_do_not_fail_good_programs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "broken_system.py"
    broken.write_text(
        "import resource, runpy, signal\n"
        "def refuse(*_):\n    raise ValueError('not allowed here')\n"
        "resource.setrlimit = refuse\n"
        "del signal.setitimer\n"
        f"runpy.run_path({str(sandbox_levels.WORKER)!r}, run_name='__main__')\n"
    )
    monkeypatch.setattr(sandbox_levels, "WORKER", broken)
    monkeypatch.setattr(sandbox, "_warned", set())
    with caplog.at_level(logging.WARNING):
        assert run(RIGHT) == ExecutionResult("passed")
        first = len(caplog.records)
        assert run("def square(x):\n    return 4\n").status == "failed"
    assert "RLIMIT_AS: not allowed here" in caplog.text
    assert len(caplog.records) == first  # said once


def test_refusals_in_the_parent_do_not_reach_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("not allowed here")

    monkeypatch.setattr(resource, "setrlimit", refuse)
    monkeypatch.delattr(signal, "setitimer")
    assert run(RIGHT) == ExecutionResult("passed")


@pytest.mark.parametrize("executable", ["/nonexistent/python", "/bin/false"])
def test_interpreter_that_does_not_start_is_an_error(
    monkeypatch: pytest.MonkeyPatch, executable: str
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    assert run(RIGHT).status == "error"
    with pytest.raises(UserError, match="sandbox does not work here"):
        check_sandbox(level="process")


def test_sandbox_is_checked_with_a_right_and_a_wrong_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_sandbox(level="process")
    for inert in ("passed", "failed"):
        monkeypatch.setattr(sandbox, "_run", lambda *given, s=inert: ExecutionResult(s))
        with pytest.raises(UserError, match="sandbox does not work here"):
            check_sandbox(level="process")


@pytest.mark.parametrize("level", ["container", "", "PROCESS"])
def test_unknown_level_names_the_known_ones(level: str) -> None:
    with pytest.raises(UserError, match="auto, bubblewrap, namespaces, process"):
        run_program(RIGHT, TEST, "square", TIMEOUT_S, level=level)


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("nan"), float("inf")])
def test_timeout_must_be_a_positive_number(timeout_s: float) -> None:
    with pytest.raises(UserError, match="positive number"):
        run(RIGHT, timeout_s=timeout_s)


def test_programs_run_from_several_threads() -> None:
    wrong = "def square(x):\n    return 4\n"
    assert threading.current_thread() is threading.main_thread()
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(run, [RIGHT, wrong, RIGHT, "import os\nos._exit(0)"] * 4))
    assert [result.status for result in results] == ["passed", "failed", "passed", "failed"] * 4
