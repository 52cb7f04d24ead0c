"""Interleaved rounds: every arm is timed once in each, in another order from round to round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from tqdm import tqdm


class TimedArm(Protocol):
    """What can be timed again and again from the same position."""

    name: str
    prefill_seconds: float

    def prefill(self, prompt: Sequence[int]) -> None:
        """Feeds a prompt in place of the one before; its time is `prefill_seconds`."""
        ...

    def timed_pass(self) -> float:
        """Seconds of one pass of decode steps; the arm is left as it was found."""
        ...

    def bytes_per_token(self) -> dict[str, float]:
        """Mean bytes of weights and KV that a decode step of the last pass read, by kind."""
        ...

    def details(self) -> dict[str, Any]:
        """What else is recorded of the last pass."""
        ...


def time_rounds(
    arms: Sequence[TimedArm], rounds: int, label: str
) -> Iterator[dict[str, list[float]]]:
    """Times all arms in each round.

    The order is rotated by one from round to round and runs backwards in every other round, so
    that neither a drift of the machine nor the arm before falls on the same arm each time.

    Args:
        arms: each with its prompt behind it.
        rounds: how often each is timed.
        label: of the progress bar.

    Yields:
        After each round the seconds of each pass so far, round by round, by the arm's name.
    """
    seconds: dict[str, list[float]] = {arm.name: [] for arm in arms}
    with tqdm(total=rounds * len(arms), desc=label, unit="pass") as bar:
        for number in range(rounds):
            for arm in in_order(arms, number):
                seconds[arm.name].append(arm.timed_pass())
                bar.update()
            yield {name: list(own) for name, own in seconds.items()}


def in_order(arms: Sequence[TimedArm], number: int) -> list[TimedArm]:
    """The arms in the order of round `number`."""
    start = number % len(arms)
    order = [*arms[start:], *arms[:start]]
    return order[::-1] if number % 2 else order
