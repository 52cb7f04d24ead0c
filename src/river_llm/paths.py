"""Where the package keeps what it computes once and uses again."""

import os
from pathlib import Path


def cache_root() -> Path:
    """The folder under which converted models and packed weights are kept.

    Returns:
        `$RIVER_LLM_CACHE` where set, else `river_llm` in the user's cache directory
        (`$XDG_CACHE_HOME`, else `~/.cache`); always absolute, not necessarily there yet.
    """
    if own := os.environ.get("RIVER_LLM_CACHE"):
        return Path(own).expanduser().absolute()
    user = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(user).expanduser().absolute() / "river_llm"
