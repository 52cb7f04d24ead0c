"""Child side of ``sandbox``: a supervisor that runs one program in a process of its own.

Started by path as ``python -I sandbox_runner.py FD``; imports the standard library only. The
request comes as JSON on stdin (program, test, entry_point, timeout_s); reports go as JSON lines to
the descriptor FD, which the program never gets.

The supervisor forks. The child limits itself, runs the program and its tests, and writes a fresh
random token behind the last assertion. The supervisor, to which orphans are handed over on Linux,
waits for the token, the child's end or the deadline, and then kills everything that is left of the
program, also what moved to another session or process group.
"""

import contextlib
import json
import os
import secrets
import select
import signal
import sys
import time
import types
from typing import Any, NoReturn

_ADDRESS_SPACE_BYTES = 4 << 30
_FILE_BYTES = 64 << 20
_PROCESSES = 64  # above what the user already runs; the kernel does not apply it to root
_DETAIL_CHARACTERS = 300
_START_SECONDS = 60.0
_POLL_SECONDS = 0.02
_CLEANUP_SECONDS = 10.0
_PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    """Read the request, run the program, report the verdict."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # still cleans up
    report = os.fdopen(int(sys.argv[1]), "w", encoding="utf-8")
    os.set_inheritable(report.fileno(), False)
    request = json.load(sys.stdin)
    try:
        test = compile(request["test"], "<test>", "exec")
    except (SyntaxError, ValueError) as error:
        _send(report, status="error", detail=f"the test does not compile: {error}")
        return
    _adopt_orphans()
    token = secrets.token_hex(16)
    read_end, write_end = os.pipe()
    gate, gate_key = os.pipe()
    child = os.fork()
    if child == 0:
        report.close()
        os.close(read_end)
        os.close(gate_key)
        _run(request, test, token, write_end, gate)
    os.close(write_end)
    os.close(gate)
    try:
        _supervise(report, child, read_end, gate_key, token, request["timeout_s"])
    finally:
        _kill_all(child)


def _supervise(
    report: Any, child: int, channel: int, gate_key: int, token: str, timeout_s: float
) -> None:
    """Wait for the child's verdict, its end or the deadline, and report which it was.

    The program starts only when the parent has been told its process: a program that ends this
    supervisor at once is then neither taken for a fault of the harness nor left running.
    """
    parent = os.getppid()
    received = b""
    started = False
    deadline = time.monotonic() + _START_SECONDS
    while os.getppid() == parent:  # else nobody is waiting any more
        readable, _, _ = select.select([channel], [], [], _POLL_SECONDS)
        part = os.read(channel, 65536) if readable else b""
        received = (received + part)[-65536:]
        if not started and b"\n" in received:
            line, _, received = received.partition(b"\n")
            _send(report, started=child, refused=json.loads(line))
            started = True
            deadline = time.monotonic() + timeout_s
            os.close(gate_key)
        ended, code = os.waitpid(child, os.WNOHANG) if not part else (0, 0)
        if started and (b"\n" in received or ended):
            message = received.partition(b"\n")[0].decode("utf-8", "replace")
            _send(report, **_verdict(message, token, code if ended else None))
            return
        if ended:
            _send(report, status="error", detail=f"the runner {_ending(code)}")
            return
        if time.monotonic() > deadline:
            if started:
                _send(report, status="timeout", detail=f"no verdict after {timeout_s:g} s")
            else:
                _send(report, status="error", detail="the runner did not start")
            return
        if readable and not part:
            time.sleep(_POLL_SECONDS)  # the program closed its end


def _verdict(message: str, token: str, code: int | None) -> dict[str, str]:
    """Turn the child's message into a report; only a message with the token is the runner's."""
    if message.startswith(token):
        verdict: dict[str, str] = json.loads(message[len(token) :])
        return verdict
    if code is None:
        return {"status": "failed", "detail": "the program wrote to the verdict channel"}
    if os.WIFSIGNALED(code) and os.WTERMSIG(code) == getattr(signal, "SIGXCPU", None):
        return {"status": "timeout", "detail": "CPU time used up"}
    return {"status": "failed", "detail": f"{_ending(code)} before the last assertion"}


def _ending(code: int) -> str:
    if os.WIFSIGNALED(code):
        number = os.WTERMSIG(code)
        return f"killed by signal {number} ({signal.strsignal(number)})"
    return f"exited with status {os.WEXITSTATUS(code)}"


def _send(report: Any, **message: Any) -> None:
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(message), file=report, flush=True)


def _run(
    request: dict[str, Any], test: types.CodeType, token: str, channel: int, gate: int
) -> NoReturn:
    """In the child: run program and tests, write the token or the reason of the failure."""
    verdict = {"status": "passed", "detail": ""}
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.setsid()
    silent = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(silent, descriptor)
    refused = limit_resources(request["timeout_s"])
    os.write(channel, json.dumps(refused).encode() + b"\n")
    os.read(gate, 1)  # ends when the supervisor closes its end
    os.close(gate)
    module = types.ModuleType("program")  # not __main__: a main block is not under test
    sys.modules["program"] = module
    sys.argv = [""]
    try:
        exec(compile(request["program"], "<program>", "exec"), module.__dict__)
        exec(test, module.__dict__)
        check = module.__dict__.get("check")
        if not callable(check):
            verdict = {"status": "error", "detail": "the test defines no function check"}
        else:
            check(module.__dict__[request["entry_point"]])
    except KeyError as error:
        missing = error.args == (request["entry_point"],)
        detail = f"{request['entry_point']} is not defined" if missing else _describe(error)
        verdict = {"status": "failed", "detail": detail}
    except BaseException as error:
        verdict = {"status": "failed", "detail": _describe(error)}
    os.write(channel, (token + json.dumps(verdict) + "\n").encode())
    os._exit(0)


def _describe(error: BaseException) -> str:
    text = type(error).__name__
    with contextlib.suppress(Exception):  # the program's own __str__
        text = f"{text}: {error}" if str(error) else text
    return " ".join(text[:_DETAIL_CHARACTERS].split())


def limit_resources(timeout_s: float) -> list[str]:
    """Limit this process; return what the system refused, as readable lines.

    Args:
        timeout_s: Wall-clock limit of the program in seconds; its CPU time may be a second more.
    """
    try:
        import resource
    except ImportError:
        return ["no resource limits on this system"]
    seconds = int(timeout_s) + 2
    wanted = {
        "RLIMIT_CPU": seconds,
        "RLIMIT_AS": _ADDRESS_SPACE_BYTES,
        "RLIMIT_FSIZE": _FILE_BYTES,
        "RLIMIT_CORE": 0,
    }
    tasks = _tasks_of_user()
    if tasks is not None:
        wanted["RLIMIT_NPROC"] = tasks + _PROCESSES
    refused = [] if tasks is not None else ["RLIMIT_NPROC: processes cannot be counted here"]
    for name, value in wanted.items():
        try:
            kind = getattr(resource, name)
            ceiling = resource.getrlimit(kind)[1]
            # Behind the soft CPU limit, which sends SIGXCPU, the hard one kills.
            hard = value + 1 if name == "RLIMIT_CPU" else value
            hard = hard if ceiling == resource.RLIM_INFINITY else min(hard, ceiling)
            resource.setrlimit(kind, (min(value, hard), hard))
        except (AttributeError, ValueError, OSError) as error:
            refused.append(f"{name}: {error}")
    return refused


def _tasks_of_user() -> int | None:
    """Number of threads that this user runs; None without /proc."""
    count = 0
    try:
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError):  # it may end while we look
                if name.isdigit() and os.stat(f"/proc/{name}").st_uid == os.getuid():
                    count += len(os.listdir(f"/proc/{name}/task"))
    except OSError:
        return None
    return count


def _adopt_orphans() -> None:
    """Become the parent of orphaned descendants (Linux), so that none can slip away."""
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _kill_all(child: int) -> None:
    """Kill the child's process group, then every other descendant, until none is left."""
    deadline = time.monotonic() + _CLEANUP_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            os.killpg(child, signal.SIGKILL)
        for descendant in _descendants():
            with contextlib.suppress(OSError):
                os.kill(descendant, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.001)


def _descendants() -> set[int]:
    parents: dict[int, int] = {}
    with contextlib.suppress(OSError):
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as stat:
                # The name in brackets may hold anything; the parent is the second field behind it.
                parents[int(name)] = int(stat.read().rpartition(b")")[2].split()[1])
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {os.getpid()}


if __name__ == "__main__":
    main()
