"""Search for examples against a property, as the suite does it and as the soak does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


def search(
    check: Callable[..., None],
    strategies: Sequence[st.SearchStrategy[Any]],
    examples: int,
    times: int,
) -> None:
    """Calls a check with many examples; it fails where one of them fails.

    Args:
        check: takes one value of each strategy.
        strategies: of its arguments.
        examples: how many the suite tries, the same ones each time.
        times: 1 in the suite; more: so many times the examples, and new ones each time.
    """
    profile = settings(
        max_examples=examples * times,
        derandomize=times == 1,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    profile(given(*strategies)(check))()
