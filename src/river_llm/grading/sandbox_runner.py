"""Supervisor of ``sandbox``: starts one contained program, has it checked, and ends all of it.

Started by path as ``python -I sandbox_runner.py``, with a socket as standard input; imports the
standard library only. The request comes through it as JSON (program, test, entry_point, timeout_s,
wrapper, worker, processes, user); reports go back as JSON lines. The program never gets it.

Three processes: this supervisor; the program in an interpreter of its own (``sandbox_worker``)
behind the level's wrapper; and a fork of the supervisor that runs the tests. The tests reach the
program's functions through a channel that carries plain values, so nothing that the program patches
is patched where the assertions stand. Behind the last one the checking process writes a fresh
random token, which the program's process never holds. The supervisor, to which orphans are handed
over on Linux, waits for the token, an end or the deadline, and kills everything that is left.
"""

import builtins
import contextlib
import ctypes
import dis
import importlib
import json
import os
import secrets
import select
import signal
import socket
import sys
import time
import types
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

if __name__ == "__main__":  # -I leaves the package out of the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from river_llm.grading.sandbox_worker import (
    Foreign,
    Unsendable,
    decode,
    encode,
    limit_resources,
    message,
)

_REPLY_BYTES = 64 << 20
_MEMORY_BYTES = 4 << 30  # of all processes of the program together
_START_SECONDS = 60.0
_POLL_SECONDS = 0.02
_WATCH_SECONDS = 0.1
_CLEANUP_SECONDS = 10.0
_END_SECONDS = 2.0
_SET_DUMPABLE, _SET_CHILD_SUBREAPER = 4, 36
_NO_ERRORS = (Exception, StopIteration, StopAsyncIteration)


class ProgramError(Exception):
    """The program raised something that is no exception of Python's own."""


class _Ended(BaseException):
    """The program's process answers no more."""


def main() -> None:
    """Read the request, run the program, report the verdict."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # still cleans up
    report = os.fdopen(os.dup(0), "w", encoding="utf-8")
    request = json.load(sys.stdin)
    silent = os.open(os.devnull, os.O_RDONLY)
    os.dup2(silent, 0)  # of the socket only `report` is left
    os.close(silent)
    try:
        test = compile(request["test"], "<test>", "exec", dont_inherit=True, optimize=0)
    except (SyntaxError, ValueError) as error:
        _send(report, status="error", detail=f"the test does not compile: {error}")
        return
    _prctl(_SET_CHILD_SUBREAPER, 1)
    _prctl(_SET_DUMPABLE, 0)  # no program of this user may look for the token in here
    ours, theirs = socket.socketpair()
    worker = _start_worker(request, theirs.fileno())
    theirs.close()
    try:
        _supervise(report, request, test, worker, ours)
    finally:
        _kill_all(worker)


def _start_worker(request: dict[str, Any], channel: int) -> int:
    settings = {key: request[key] for key in ("timeout_s", "processes", "user")}
    last = json.dumps({**settings, "channel": channel})
    command = [*request["wrapper"], sys.executable, "-I", request["worker"], last]
    child = os.fork()
    if child:
        return child
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setsid()
        silent = os.open(os.devnull, os.O_RDWR)
        os.dup2(silent, 0)
        os.dup2(silent, 1)
        with contextlib.suppress(OSError):  # first to go when memory runs out
            Path("/proc/self/oom_score_adj").write_text("1000")
        os.set_inheritable(channel, True)
        # The wrapper too, which may stay inside as the first process.
        limit_resources(request["timeout_s"], None)
        os.execv(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error}\n".encode())
    os._exit(1)


def _supervise(
    report: Any, request: dict[str, Any], test: types.CodeType, worker: int, channel: socket.socket
) -> None:
    """Wait for the verdict, an end or the deadline, and report which it was.

    The program starts only when the parent has been told its process: a program that ends this
    supervisor at once is then neither taken for a fault of the harness nor left running.
    """
    channel.settimeout(_START_SECONDS)
    replies = channel.makefile("rb")
    try:
        first = replies.readline(65536)
    except TimeoutError:
        first = b""
    channel.settimeout(None)
    if not first:
        return  # the parent reads the reason from stderr
    _send(report, started=worker, refused=json.loads(first)["ready"])
    token = secrets.token_hex(16)
    read_end, write_end = os.pipe()
    checker = os.fork()
    if checker == 0:
        report.close()
        os.close(read_end)
        _check(request, test, token, _Program(channel, replies), write_end)
    os.close(write_end)
    replies.close()
    channel.close()
    outcome = _await(read_end, request["timeout_s"])
    if isinstance(outcome, bytes):
        _send(report, **verdict_of(outcome.decode("utf-8", "replace"), token, worker))
    else:
        _send(report, **outcome)


def _await(verdict: int, timeout_s: float) -> bytes | dict[str, str]:
    """What the checking process wrote to its end, or the report on why nobody waits for it."""
    parent = os.getppid()
    received = b""
    deadline = time.monotonic() + timeout_s
    look = time.monotonic() + _WATCH_SECONDS
    while os.getppid() == parent:  # else nobody is waiting any more
        if select.select([verdict], [], [], _POLL_SECONDS)[0]:
            part = os.read(verdict, 65536)
            if not part:
                return received
            received += part
        if time.monotonic() > deadline:
            return {"status": "timeout", "detail": f"no verdict after {timeout_s:g} s"}
        if time.monotonic() > look:
            if held_bytes() > _MEMORY_BYTES:
                return {"status": "failed", "detail": f"more than {_MEMORY_BYTES >> 30} GiB in sum"}
            look = time.monotonic() + _WATCH_SECONDS
    return {"status": "error", "detail": "nobody waits"}


def verdict_of(text: str, token: str, worker: int) -> dict[str, str]:
    """Turn what was written into a report; only what begins with the token is of the checks.

    Args:
        text: all that came through the pipe of the checking process.
        token: made for this verdict, known to that process alone.
        worker: the program's process, asked for its end where that is what the checks met.
    """
    if not text.startswith(token):
        return {"status": "failed", "detail": "the checks were ended before the last assertion"}
    verdict: dict[str, str] = json.loads(text[len(token) :])
    if verdict["status"] != "ended":
        return verdict
    deadline = time.monotonic() + _END_SECONDS
    while time.monotonic() < deadline:
        ended, status = os.waitpid(worker, os.WNOHANG)
        if ended:
            return _ending(os.waitstatus_to_exitcode(status))
        time.sleep(_POLL_SECONDS)
    return {"status": "failed", "detail": "the program closed its channel"}


def _ending(code: int) -> dict[str, str]:
    """Report on a program that ended; a wrapper tells a signal as 128 and its number."""
    number = -code if code < 0 else code - 128
    if number == getattr(signal, "SIGXCPU", None):
        return {"status": "timeout", "detail": "CPU time used up"}
    if number > 0:
        how = f"killed by signal {number} ({signal.strsignal(number)})"
    else:
        how = f"exited with status {code}"
    return {"status": "failed", "detail": f"{how} before the last assertion"}


def _send(report: Any, **fields: Any) -> None:
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(fields), file=report, flush=True)


class _Program:
    """The program's functions, as the tests see them."""

    def __init__(self, channel: socket.socket, replies: Any) -> None:
        self._channel = channel
        self._replies = replies

    def load(self, program: str, wanted: list[str]) -> dict[str, Any]:
        """Runs the program's module; what it defines of the wanted names.

        Raises:
            _Ended: Its process is gone.
            Exception: What the program raised.
        """
        names: dict[str, Any] = self._ask({"program": program, "wanted": wanted})["names"]
        found: dict[str, Any] = {}
        for name in wanted:
            # No name that the tests did not ask for, and no module but a standard one of that name.
            match names.get(name):
                case {"function": _}:
                    found[name] = self._function(name)
                case {"module": module} if module == name in sys.stdlib_module_names:
                    found[name] = importlib.import_module(name)
                case {"module": module}:
                    found[name] = Foreign("module", None, True)
                case {"value": plain}:
                    found[name] = decode(plain)
        return found

    def _function(self, name: str) -> Callable[..., Any]:
        def call(*positional: Any, **named: Any) -> Any:
            given = encode([list(positional), named], strict=True)
            reply = self._ask({"call": name, "given": given})
            after, named_after = decode(reply["given"])
            for mine, theirs in zip(positional, after, strict=True):
                _become(mine, theirs)
            for key, mine in named.items():
                _become(mine, named_after[key])
            return decode(reply["value"])

        call.__name__ = name
        return call

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            self._channel.sendall((json.dumps(request) + "\n").encode("ascii"))
            line = self._replies.readline(_REPLY_BYTES)
        except OSError:
            line = b""
        if not line:
            raise _Ended
        reply: dict[str, Any] = json.loads(line)
        if "error" not in reply:
            return reply
        own, *_ = names = [str(name) for name in reply["error"]]
        for kind in (getattr(builtins, name, None) for name in names):
            # An end of iteration would end a loop of the tests' without a word.
            if isinstance(kind, type) and issubclass(kind, Exception) and kind not in _NO_ERRORS:
                with contextlib.suppress(TypeError):  # some take more than a message
                    raise kind(reply["text"])
        raise ProgramError(f"{own}: {reply['text']}")


def _become(mine: Any, theirs: Any) -> None:
    """A mutable argument as the program left it."""
    if type(mine) is type(theirs):
        if isinstance(mine, list | bytearray):
            mine[:] = theirs
        elif isinstance(mine, dict | set | deque):
            mine.clear()
            (mine.extend if isinstance(mine, deque) else mine.update)(theirs)


def _check(
    request: dict[str, Any], test: types.CodeType, token: str, program: _Program, verdict: int
) -> NoReturn:
    """In a fork: load the program, run the tests, write the token with what came out."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    limit_resources(request["timeout_s"], None)
    entry_point = request["entry_point"]
    try:
        wanted = {entry_point, *(name for name in _names_used(test) if not hasattr(builtins, name))}
        scope = program.load(request["program"], sorted(wanted))
        scope.pop("check", None)
        candidate = scope.get(entry_point, program)
        exec(test, scope)
        check = scope.get("check")
        if not callable(check):
            outcome = ("error", "the test defines no function check")
        elif candidate is program:
            outcome = ("failed", f"{entry_point} is not defined")
        else:
            check(candidate)
            outcome = ("passed", "")
    except _Ended:
        outcome = ("ended", "")
    except Unsendable as error:
        outcome = ("error", f"the test cannot be run apart from the program: {error}")
    except ProgramError as error:
        outcome = ("failed", message(error))
    except BaseException as error:
        outcome = ("failed", ": ".join(filter(None, (type(error).__name__, message(error)))))
    line = token + json.dumps({"status": outcome[0], "detail": outcome[1]})
    os.write(verdict, line.encode("ascii"))
    os._exit(0)


def _names_used(code: types.CodeType) -> Iterator[str]:
    """All global names that the code looks up, in its functions too."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_NAME", "LOAD_GLOBAL"):
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_used(constant)


def _prctl(option: int, value: int) -> None:
    """Set a process attribute; where there is no such call (not Linux), leave it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _kill_all(worker: int) -> None:
    """Kill the worker's process group, then every other descendant, until none is left."""
    deadline = time.monotonic() + _CLEANUP_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            os.killpg(worker, signal.SIGKILL)
        for descendant in _descendants():
            with contextlib.suppress(OSError):
                os.kill(descendant, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.001)


def held_bytes() -> int:
    """Memory of all descendants: resident, and in files without a name; 0 without /proc."""
    pages = 0
    files: dict[int, int] = {}
    for process in _descendants():
        with contextlib.suppress(OSError), open(f"/proc/{process}/statm", "rb") as statm:
            pages += int(statm.read().split()[1])
        with contextlib.suppress(OSError):
            for entry in os.scandir(f"/proc/{process}/fd"):
                if os.readlink(entry.path).startswith("/memfd:"):
                    status = entry.stat()
                    files[status.st_ino] = 512 * status.st_blocks
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(files.values())


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
