"""How this project's commands end: with their status, or with one line that says what is wrong."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from river_llm.errors import UserError, raise_interruption

INTERRUPTED = 130
"""Exit status of a command that was stopped by Ctrl-C, as shells give it."""

# What a disk or its rights refuse; any other error of the system is a fault of the program's.
_REFUSED = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
}


def end(main: Callable[[], int], stopped: str = "stopped") -> NoReturn:
    """Runs a command and ends the process.

    Status 2 and one line for a `UserError` and for a file that cannot be read or written; 130 for
    Ctrl-C; 1 and no line where the reader of standard output has gone.

    Args:
        main: the command; returns its exit status.
        stopped: what Ctrl-C is answered with.
    """
    try:
        status = _status_of(main)
    except KeyboardInterrupt:
        # A progress bar may stand in the line.
        print(f"\n{stopped}", file=sys.stderr)
        status = INTERRUPTED
    sys.exit(status)


def _status_of(main: Callable[[], int]) -> int:
    try:
        status = main()
        sys.stdout.flush()
        return status
    except BaseException as error:
        raise_interruption(error)
        if isinstance(error, UserError):
            return fail(str(error))
        if isinstance(error, BrokenPipeError):
            silence_stdout()
            return 1
        if isinstance(error, OSError) and error.errno in _REFUSED:
            silence_stdout()
            place = error.filename or "what the command leaves"
            return fail(f"{place}: {error.strerror}; make room there, or give another place")
        raise


def fail(message: str) -> int:
    """Prints a mistake in one line; returns the exit status that goes with it."""
    sys.stdout.flush()
    print(f"error: {message}", file=sys.stderr, flush=True)
    return 2


def silence_stdout() -> None:
    """Drops what nobody can take any more; it would fail once more when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
