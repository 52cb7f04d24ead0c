"""A persistent math-verify process that is killed at a deadline and started again when needed."""

import atexit
import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from river_llm.errors import UserError

_WORKER = Path(__file__).with_name("math_worker.py")
_START_SECONDS = 120.0


class WorkerFailed(Exception):
    """The worker gave no reply: killed at the deadline, or dead."""


@dataclass
class Budget:
    """Seconds of the worker's time that one comparison may still use."""

    seconds: float


class MathProcess:
    """Handle of one worker process; usable from any thread, one request at a time."""

    def __init__(self) -> None:
        self.forget()

    def equal(self, prediction: str, gold: str, budget: Budget) -> bool:
        """Ask whether two TeX expressions are equal.

        Args:
            prediction: TeX of one expression.
            gold: TeX of the gold answer's expression.
            budget: When it is used up the worker is killed. Waiting for another thread's
                request or for a worker to start does not count.

        Raises:
            WorkerFailed: No reply in time, or the expression killed the worker.
            UserError: The worker cannot be started (a broken installation).
        """
        request = {"prediction": prediction, "gold": gold}
        with self._lock:
            fresh = self._start()
            reply = self._exchange(request, budget)
            if reply is None and not fresh:
                # An old worker may have died of something else, so a new one tries once more.
                self._start()
                reply = self._exchange(request, budget)
        if reply is None:
            raise WorkerFailed("the expression ended the worker")
        return bool(reply["equal"])

    def close(self) -> None:
        """End the worker. The next request starts a new one."""
        with self._lock:
            self._kill()

    def forget(self) -> None:
        """Start without a worker; in a forked process, where worker and lock are the parent's."""
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None

    def _start(self) -> bool:
        """Make sure that a worker runs; True if it is a new one."""
        if self._child is not None and self._child.poll() is None:
            return False
        self._kill()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed by _kill)
        try:
            self._child = subprocess.Popen(
                [sys.executable, "-P", str(_WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,  # Ctrl-C is for the parent
            )
        except OSError as error:
            raise UserError(
                f"cannot start the math-verify worker: {error}; check {sys.executable}"
            ) from error
        ready, lines = None, []
        try:
            with contextlib.suppress(WorkerFailed):
                ready = self._read(time.monotonic() + _START_SECONDS)
            self._errors.seek(0)
            lines = self._errors.read().decode(errors="replace").strip().splitlines()
        finally:
            if ready is None:
                self._kill()
        if ready is None:
            reason = lines[-1] if lines else f"no reply within {_START_SECONDS:.0f} s"
            raise UserError(
                f"cannot start the math-verify worker: {reason}; "
                "install the package's dependencies again"
            )
        return True

    def _exchange(self, request: dict[str, Any], budget: Budget) -> dict[str, Any] | None:
        """Send one request and return the reply; None if the worker died."""
        assert self._child is not None and self._child.stdin is not None
        if budget.seconds <= 0:
            raise WorkerFailed("the budget is used up")
        line = json.dumps({**request, "seconds": budget.seconds}) + "\n"
        begin = time.monotonic()
        reply = None
        try:
            self._child.stdin.write(line.encode("ascii"))
            self._child.stdin.flush()
            reply = self._read(begin + budget.seconds)
        except BrokenPipeError:
            pass
        finally:
            budget.seconds -= time.monotonic() - begin
            if reply is None:  # dead, over the deadline, or Ctrl-C before the reply
                self._kill()
        return reply

    def _read(self, deadline: float) -> dict[str, Any] | None:
        """Read one line; None at the end of the stream."""
        assert self._child is not None and self._child.stdout is not None
        descriptor = self._child.stdout.fileno()
        received = b""
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while not received.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise WorkerFailed("the deadline passed")
                part = os.read(descriptor, 65536)
                if not part:
                    return None
                received += part
        reply: dict[str, Any] = json.loads(received)
        return reply

    def _kill(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            for stream in (self._child.stdin, self._child.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):  # bytes not sent to a dead worker
                        stream.close()
        if self._errors is not None:
            self._errors.close()
        self._child = self._errors = None


shared = MathProcess()
atexit.register(shared.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=shared.forget)
