"""Lists of Hydra overrides: grids, and later values in place of earlier ones."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import OverrideParseException

from river_llm.composition import unreadable


def expand(overrides: Sequence[str]) -> list[list[str]]:
    """All cells of a grid, in Hydra's order: the last override varies fastest.

    Args:
        overrides: as on the command line, e.g. `["method=river,mask", "criterion.tau=0.5,0.9"]`.

    Raises:
        UserError: an override that cannot be read.
    """
    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
    except OverrideParseException as error:
        raise unreadable(error.override) from error
    choices = [
        [f"{item.get_key_element()}={value}" for value in item.sweep_string_iterator()]
        if item.is_sweep_override()
        else [item.input_line or ""]
        for item in parsed
    ]
    return [list(cell) for cell in itertools.product(*choices)]


def merge(*lists: Sequence[str]) -> list[str]:
    """One list in which a key stands once, with its last value, at its first place."""
    merged: dict[str, str] = {}
    for override in itertools.chain(*lists):
        merged[key_of(override)] = override
    return list(merged.values())


def key_of(override: str) -> str:
    """The key that an override sets; the short `limit` counts as `exp.limit`."""
    key = override.partition("=")[0].lstrip("+~")
    return "exp.limit" if key == "limit" else key


def value_of(overrides: Sequence[str], key: str) -> str | None:
    """The value that a list gives to a key, None where it does not name it."""
    values = [o.partition("=")[2] for o in overrides if key_of(o) == key]
    return values[-1] if values else None


def lasting(overrides: Sequence[str]) -> list[str]:
    """Those that make another cell or sweep; not permissions, nor where records are mirrored."""
    return [o for o in overrides if not re.match(r"resume\.force$|logger(\.|$)", key_of(o))]


def quoted(key: str, value: str) -> str:
    """An override whose value is text as it stands, whatever quotes and backslashes it holds."""
    # Hydra reads backslashes as escapes only where they stand before a quote.
    inner = re.sub(r"(\\*)'", r"\1\1\\'", value)
    inner = re.sub(r"(\\+)$", r"\1\1", inner)
    return f"{key}='{inner}'"
