"""How this project's commands end: with their status, or with one line that says what is wrong."""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from collections.abc import Callable
from typing import NoReturn

from river_llm.errors import UserError, raise_interruption

INTERRUPTED = 130
"""Exit status of a command that was stopped by Ctrl-C, as shells give it."""

# What a file system refuses; any other error of the system is a fault of the program's.
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_RIGHT = {errno.EROFS, errno.EACCES, errno.EPERM}
_NO_PLACE = {errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.EIO}


def end(main: Callable[[], int], stopped: str = "stopped") -> NoReturn:
    """Runs a command and ends the process.

    Status 2 and one line for a `UserError` and for a file that the system refuses, standard output
    among them; 130 for Ctrl-C; 1 and no line where the reader of standard output has gone.

    Args:
        main: the command; returns its exit status.
        stopped: what Ctrl-C is answered with.
    """
    if sys.stdout is None:  # closed by who started this
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A locale without the letters of a table is no reason to fail.
        sys.stdout.reconfigure(errors="replace")
    try:
        status = main()
    except BaseException as error:
        status = _status_after(error, stopped)
    lost = flush_stdout()
    if lost is not None and status == 0:
        status = 1 if isinstance(lost, BrokenPipeError) else told(lost) or 1
    sys.exit(status)


def _status_after(error: BaseException, stopped: str) -> int:
    try:
        raise_interruption(error)
    except KeyboardInterrupt:
        flush_stdout()
        # A progress bar may stand in the line.
        print(f"\n{stopped}", file=sys.stderr)
        return INTERRUPTED
    if isinstance(error, BrokenPipeError) and _reader_has_gone():
        silence_stdout()
        return 1
    status = told(error)
    if status is None:
        raise error
    return status


def told(error: BaseException) -> int | None:
    """Tells an error in one line if that is what it deserves: its exit status; None: it is a fault.

    Args:
        error: a `UserError`, or what a file system refuses.
    """
    if isinstance(error, UserError):
        return fail(str(error))
    if not isinstance(error, OSError) or error.errno not in _NO_ROOM | _NO_RIGHT | _NO_PLACE:
        return None
    advice = (
        "make room there, or give another place"
        if error.errno in _NO_ROOM
        else ("give a place that can be read and written")
    )
    return fail(f"{error.filename or 'what the command leaves'}: {error.strerror}; {advice}")


def fail(message: str) -> int:
    """Prints a mistake in one line; returns the exit status that goes with it."""
    flush_stdout()
    print(f"error: {message}", file=sys.stderr, flush=True)
    return 2


def flush_stdout() -> OSError | None:
    """Writes out what was printed; what cannot be written any more is dropped, and the error told.

    Left in the buffer it would fail once more when Python ends, with a status of its own.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        silence_stdout()
        return error
    return None


def silence_stdout() -> None:
    """Drops what nobody takes any more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _reader_has_gone() -> bool:
    """Whether standard output is a pipe that nobody reads, and not some other one broke."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), select.POLLOUT)
    return any(state & (select.POLLERR | select.POLLHUP) for _, state in poll.poll(0))
