"""Settings without the absolute paths of the machine they were made on."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Any

_FOLDERS = re.compile(r"(?<![\w./:~])~?/(?:[^\s/'\"=,\[\]]+/)+")
"""The folders of an absolute path inside a text; not those of a web address or of `a/b`."""


def portable(value: Any) -> Any:
    """The same nested data; of every absolute path only the last part is left.

    What is logged is read by others, to whom the folders of a home directory say nothing but
    whose it is.
    """
    if isinstance(value, dict):
        return {key: portable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [portable(item) for item in value]
    if isinstance(value, str):
        if re.match(r"~?/", value):
            return PurePath(value).name
        return _FOLDERS.sub("", value)
    return value
