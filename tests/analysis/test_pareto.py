"""The front, worked out by hand and against the definition."""

from __future__ import annotations

import itertools
import random

import pytest

from river_llm.analysis.pareto import front


def points(*pairs: tuple[float | None, float | None]) -> list[dict[str, float | None]]:
    return [{"speed": speed, "loss": loss} for speed, loss in pairs]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ([], []),
        ([(1, 1)], [0]),
        # Faster and worse, slower and better: both stay; the middle one is beaten by the third.
        ([(1, 1), (2, 3), (2.5, 2)], [0, 2]),
        # A tie in one figure: the worse in the other leaves.
        ([(2, 1), (2, 2)], [0]),
        ([(1, 2), (2, 2)], [1]),
        # Identical points stay, also when they are several.
        ([(2, 1), (1, 5), (2, 1)], [0, 2]),
        # A chain in order, nothing beaten.
        ([(1, 1), (2, 2), (3, 3)], [0, 1, 2]),
        # What cannot be compared leaves and beats nothing.
        ([(None, 0), (1, float("nan")), (1, 1)], [2]),
        ([(float("inf"), 1), (5, 1)], [0]),
        ([(-1, -1), (-2, -1)], [0]),
    ],
)
def test_front_by_hand(given: list[tuple[float, float]], kept: list[int]) -> None:
    candidates = points(*given)
    result = front(candidates, maximize=["speed"], minimize=["loss"])
    assert [id(point) for point in result] == [id(candidates[index]) for index in kept]


def test_front_follows_the_definition_in_three_figures() -> None:
    generator = random.Random(1)
    candidates = [
        {"a": generator.randint(0, 4), "b": generator.randint(0, 4), "c": generator.randint(0, 4)}
        for _ in range(60)
    ]
    result = front(candidates, maximize=["a", "b"], minimize=["c"])

    def as_good(one: dict[str, int], other: dict[str, int]) -> bool:
        return one["a"] >= other["a"] and one["b"] >= other["b"] and one["c"] <= other["c"]

    for kept, any_point in itertools.product(result, candidates):
        assert not as_good(any_point, kept) or any_point == kept
    for point in candidates:
        assert any(as_good(kept, point) for kept in result)
    assert 0 < len(result) < len(candidates)


def test_other_entries_are_carried_along() -> None:
    (kept,) = front([{"speed": 1, "name": "river"}], maximize=["speed"], minimize=[])
    assert kept["name"] == "river"


@pytest.mark.parametrize(("maximize", "minimize"), [([], []), (["a"], ["a"]), (["a", "a"], [])])
def test_figures_that_are_not_named_once_are_refused(
    maximize: list[str], minimize: list[str]
) -> None:
    with pytest.raises(ValueError, match="named once"):
        front([], maximize, minimize)
