"""The one exception for mistakes a user can mend."""


class UserError(Exception):
    """Bad input: one line that says what is wrong, the offending value, and what to do.

    Entry points print it without a traceback and exit with status 2.
    """
