"""Mistakes that a user can mend, and interruptions that look like something else."""


class UserError(Exception):
    """Bad input: one line that says what is wrong, the offending value, and what to do.

    Entry points print it without a traceback and exit with status 2.
    """


def raise_interruption(error: BaseException) -> None:
    """Goes on as Ctrl-C where that is what an error came of.

    An extension module whose import is interrupted fails with an error of its own, and so may
    whatever else catches everything.

    Raises:
        KeyboardInterrupt: one stands in the chain of what led to the error.
    """
    cause: BaseException | None = error
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__
