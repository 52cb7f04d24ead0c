"""Run an untrusted program with its tests in a process that is limited, watched and killed.

HumanEval's convention: the program, then the test, which defines ``check``, then
``check(entry_point)``.

Levels: ``bubblewrap`` and ``namespaces`` keep a program from the user's files, the network and
other processes; ``process`` only limits, watches and kills it, and is used by the user's explicit
choice alone; ``auto`` is the strongest of the first two that a trial shows to work here. On every
level the tests run in another process than the program, and a pass is a fresh random token written
behind the last assertion. ``docs/sandbox.md`` says what each level stops and what not.
"""

import contextlib
import functools
import json
import logging
import math
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from river_llm.errors import UserError
from river_llm.grading.sandbox_levels import CONTAINING, containment, missing, shown_paths

LEVELS = ("auto", *CONTAINING, "process")
Status = Literal["passed", "failed", "timeout", "error"]

_RUNNER = Path(__file__).with_name("sandbox_runner.py")
_START_SECONDS = 120.0  # for the interpreter, on a busy machine
_CLEANUP_SECONDS = 15.0
_GONE_SECONDS = 2.0
_REPORT_BYTES = 65536
_logger = logging.getLogger(__name__)
_warned: set[str] = set()


@dataclass(frozen=True)
class ExecutionResult:
    """Verdict on one program.

    Attributes:
        status: ``passed``; ``failed`` (the program's fault: wrong, exception, syntax error, exit,
            memory); ``timeout``; ``error`` (the harness's fault: says nothing about the program).
        detail: One line with the reason; empty for a pass.
    """

    status: Status
    detail: str = ""

    @property
    def passed(self) -> bool:
        """Whether the program passed its tests."""
        return self.status == "passed"


def run_program(
    program: str, test: str, entry_point: str, timeout_s: float, level: str = "auto"
) -> ExecutionResult:
    """Run a program against its test. May be called from several threads.

    Args:
        program: Python source, for example of ``humaneval.extract_program``.
        test: Python source that defines ``check(candidate)``.
        entry_point: Name in the program that is handed to ``check``.
        timeout_s: Limit in seconds of wall-clock time, from the start of the program (the start
            of the interpreter not counted).
        level: How the program is contained: one of `LEVELS`.

    Raises:
        UserError: Unknown level, or one that does not work here; a timeout that is not a positive
            number; no POSIX system.
    """
    level = usable_level(level)
    if not (isinstance(timeout_s, int | float) and math.isfinite(timeout_s) and timeout_s > 0):
        raise UserError(f"the sandbox's timeout must be a positive number, not {timeout_s!r}")
    if not hasattr(os, "fork"):
        raise UserError(f"programs cannot be run on {sys.platform}; grade them on a POSIX system")
    request = {
        "program": program,
        "test": test,
        "entry_point": entry_point,
        "timeout_s": float(timeout_s),
    }
    return _attempt(request, level)


def usable_level(level: str = "auto") -> str:
    """The level that `level` comes to here, shown by a trial to hold what it claims.

    Raises:
        UserError: Unknown level, or one that does not work here, with the reason.
    """
    if level not in LEVELS:
        raise UserError(f"unknown sandbox level {level!r}; choose one of {', '.join(LEVELS)}")
    if level == "process":
        return level
    reasons = {}
    for wanted in CONTAINING if level == "auto" else (level,):
        reason = fault_of(wanted)
        if reason is None:
            return wanted
        reasons[wanted] = reason
    raise UserError(
        f"exp.sandbox={level}: model-written programs cannot be contained here ("
        + "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        + "): install bubblewrap, or choose the weaker exp.sandbox=process (docs/sandbox.md)"
    )


_PROBE = """
import os, socket
def probe(secret, port, folders):
    found = []
    if os.path.exists(secret):
        found.append("a file of the user is seen")
    for folder in folders:
        try:
            open(os.path.join(folder, "river-llm-probe"), "x").close()
            found.append(folder + " can be written to")
        except OSError:
            pass
    with socket.socket() as client:
        client.settimeout(2)
        if client.connect_ex(("127.0.0.1", port)) == 0:
            found.append("the network is reached")
    if os.getppid() != 1:
        found.append("other processes are seen")
    open("own", "w").write("x")
    return found
"""


@functools.cache
def fault_of(level: str) -> str | None:
    """Why a containing level cannot be claimed here; None: a trial showed that it holds.

    The trial is a program that tries to see a file of this user, to write where it must not, to
    reach a listener of this process, and to see processes outside. It is made once.
    """
    if (reason := missing(level)) is not None:
        return reason
    with (
        tempfile.NamedTemporaryFile(prefix="river-llm-") as secret,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        places = ["/", *(place for _, place in shown_paths() if os.path.isdir(place))]
        given = (secret.name, listener.getsockname()[1], places)
        test = f"def check(c):\n    found = c(*{given!r})\n    assert not found, found\n"
        request = {"program": _PROBE, "test": test, "entry_point": "probe", "timeout_s": 30.0}
        result = _attempt(request, level)
    return None if result.passed else result.detail


def _attempt(request: dict[str, Any], level: str) -> ExecutionResult:
    try:
        return _run(request, level)
    except OSError as error:
        return ExecutionResult("error", f"the sandbox cannot be set up: {error}")


def check_sandbox(timeout_s: float = 30.0, level: str = "auto") -> None:
    """Refuse to score with a sandbox that does not tell a right program from a wrong one.

    Call it once before a run: on a machine where nothing can be executed every program would fail,
    and with tests that never run every program would pass.

    Raises:
        UserError: The right solution of a toy task did not pass, or the wrong one did not fail.
    """
    test = "def check(candidate):\n    assert candidate(2) == 4\n"
    for body, expected in (("x * x", "passed"), ("x * 3", "failed")):
        program = f"def square(x):\n    return {body}\n"
        result = run_program(program, test, "square", timeout_s, level)
        if result.status != expected:
            raise UserError(
                f"the sandbox does not work here: a toy program that must be {expected} was "
                f"{result.status} ({result.detail or 'no detail'}); see what {sys.executable} -I "
                "cannot do, or leave exp.allow_code_execution off"
            )


def _run(request: dict[str, Any], level: str) -> ExecutionResult:
    how = containment(level)
    request = {
        **request,
        **{key: getattr(how, key) for key in ("wrapper", "worker", "user", "processes")},
    }
    # A socket, since a pipe or a file could be opened by others of this user through /proc.
    ours, theirs = socket.socketpair()
    with _scratch_folder() as scratch, tempfile.TemporaryFile() as stderr, ours:
        with theirs:
            supervisor = subprocess.Popen(
                [sys.executable, "-I", str(_RUNNER)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                cwd=scratch,
                env=_environment(how.home or scratch),
                start_new_session=True,
            )
        return _verdict(supervisor, ours, stderr, request)


@contextlib.contextmanager
def _scratch_folder() -> Iterator[str]:
    """A fresh folder, removed at the end whatever a program has made in it."""
    folder = tempfile.mkdtemp(prefix="river-llm-")
    try:
        yield folder
    finally:
        try:
            shutil.rmtree(folder, ignore_errors=True)
        except RecursionError:  # folders nested a thousand deep
            subprocess.run(["rm", "-rf", "--", folder], stderr=subprocess.DEVNULL, check=False)


def _environment(home: str) -> dict[str, str]:
    """All that a program sees of the environment; threads of numeric libraries cost memory."""
    return {
        "PATH": os.defpath,
        "LANG": "C.UTF-8",
        "HOME": home,
        "TMPDIR": home,
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def _verdict(
    supervisor: subprocess.Popen[bytes],
    channel: socket.socket,
    stderr: IO[bytes],
    request: dict[str, Any],
) -> ExecutionResult:
    """Hand the request over, read the reports until the supervisor ends, and see that it does."""
    started: int | None = None
    verdict: ExecutionResult | None = None
    in_time = False
    try:
        channel.settimeout(_START_SECONDS)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it could not start
            channel.sendall(json.dumps(request).encode("ascii"))
            channel.shutdown(socket.SHUT_WR)
        for report in _reports(channel, request["timeout_s"]):
            if "started" in report:
                started = report["started"]
                _warn(report["refused"])
            else:
                verdict = ExecutionResult(report["status"], report["detail"])
        in_time = True
    except TimeoutError:
        pass
    finally:
        _end(supervisor, started)
    if verdict is not None:
        return verdict
    if started is not None:
        if in_time:
            return ExecutionResult("failed", "the program ended its supervisor")
        return ExecutionResult("timeout", "the program stopped its supervisor")
    stderr.seek(0)
    lines = stderr.read(_REPORT_BYTES).decode(errors="replace").strip().splitlines()
    reason = lines[-1] if lines else f"exit status {supervisor.returncode}"
    return ExecutionResult("error", f"the sandbox's interpreter did not start: {reason}")


def _end(supervisor: subprocess.Popen[bytes], program: int | None) -> None:
    """Let the supervisor clean up if it still can (after Ctrl-C, say), then kill what is left."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        if supervisor.poll() is None:
            supervisor.terminate()
            supervisor.send_signal(signal.SIGCONT)
        supervisor.wait(_CLEANUP_SECONDS)
    groups = [group for group in (supervisor.pid, program) if group is not None]
    for group in groups:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    supervisor.wait()
    # A killed process takes a moment to go; the verdict waits for that.
    deadline = time.monotonic() + _GONE_SECONDS
    for group in groups:
        with contextlib.suppress(OSError):
            while time.monotonic() < deadline:
                os.killpg(group, signal.SIGKILL)
                time.sleep(0.002)


def _reports(channel: socket.socket, timeout_s: float) -> Iterator[dict[str, Any]]:
    """JSON lines up to the end of the stream.

    Raises:
        TimeoutError: The supervisor outlived all that it is allowed.
    """
    received = b""
    deadline = time.monotonic() + _START_SECONDS
    with selectors.DefaultSelector() as selector:
        selector.register(channel, selectors.EVENT_READ)
        while True:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise TimeoutError
            try:
                part = channel.recv(4096)
            except ConnectionResetError:  # it ended with a request unread
                part = b""
            if not part:
                return
            *lines, received = (received + part).split(b"\n")
            for report in map(json.loads, lines):
                if "started" in report:
                    deadline = time.monotonic() + timeout_s + _CLEANUP_SECONDS
                yield report


def _warn(refused: list[str]) -> None:
    """Say once per process which limits the system did not grant."""
    for reason in refused:
        if reason not in _warned:
            _warned.add(reason)
            _logger.warning("the sandbox runs without a limit: %s", reason)
