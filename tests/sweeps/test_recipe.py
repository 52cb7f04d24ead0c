"""Recipes: what they may hold, and depths as shares of a model's layers."""

from __future__ import annotations

from typing import Any

import pytest

from river_llm.errors import UserError
from river_llm.sweeps.recipe import Entry, depth_of, distinct_depths, parse_recipe, split


def recipe(**entry: Any) -> dict[str, Any]:
    return {"name": "mine", "cells": [{"run": "method=river", **entry}]}


def test_a_recipe_is_typed():
    content = recipe(planned="method.k", depths=[1, "L/2"], answers_at=["L/2"])
    content |= {"common": "limit=0", "answers": "limit=8", "warm_up": {"prompts": 3, "tokens": 64}}
    parsed = parse_recipe(content)
    assert (parsed.name, parsed.common, parsed.answers) == ("mine", "limit=0", "limit=8")
    assert (parsed.warm_up.prompts, parsed.warm_up.tokens) == (3, 64)
    assert parsed.cells == (
        Entry(run="method=river", planned="method.k", depths=(1, "L/2"), answers_at=("L/2",)),
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"cells": []}, "sweep.name is missing"),
        ({"name": "mine", "cell": []}, "unknown key sweep.cell"),
        ({"name": "mine", "cells": [{"runs": "method=river"}]}, r"sweep.cells\[0\].runs"),
        ({"name": "mine", "cells": [{"answers": True}]}, r"sweep.cells\[0\].run is missing"),
        ({"name": "mine", "cells": {"run": "x"}}, "sweep.cells=.* must be a list"),
        (recipe(depths=[0.5], planned="method.k"), "sweep.cells.*0.5"),
        (recipe(answers="yes"), "answers='yes' is not true or false"),
        (recipe(depths=[1]), "planned goes together with depths or mean_depth_of"),
        (recipe(planned="method.k"), "planned goes together with depths or mean_depth_of"),
        (recipe(mean_depth_of="method=river"), "planned goes together with depths"),
        (
            recipe(planned="method.k", depths=[1], mean_depth_of="method=river"),
            "mean_depth_of stands alone",
        ),
        (
            recipe(planned="method.k", depths=[1], tau_for_depths=[1]),
            "depths or tau_for_depths, not both",
        ),
        (recipe(tau_for_depths=[1, 3], answers_at=[2]), "answers_at holds 2"),
    ],
)
def test_a_recipe_with_a_mistake_is_refused(content: dict[str, Any], words: str):
    with pytest.raises(UserError, match=words) as caught:
        parse_recipe(content)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("depth", "layers", "value"),
    [
        (3, 30, 3),
        ("3", 30, 3),
        (0, 30, 0),
        ("L", 30, 30),
        ("L/2", 30, 15),
        ("L/2", 3, 1),
        ("3L/4", 30, 22),  # 22.5
        ("3L/4", 32, 24),
    ],
)
def test_a_depth_is_a_number_or_a_share_rounded_down(depth: int | str, layers: int, value: int):
    assert depth_of(depth, layers) == value


@pytest.mark.parametrize("depth", ["L/0", "L/0.5", "half", "L-1", "-1", ""])
def test_another_depth_is_refused(depth: str):
    with pytest.raises(UserError, match="give a number of layers") as caught:
        depth_of(depth, 30)
    assert repr(depth) in str(caught.value)


def test_depths_that_are_the_same_stand_once_and_those_beyond_the_model_not_at_all():
    # L = 16: L/2 is 8, and 24 layers are more than there are.
    assert distinct_depths([1, 8, "L/2", 24, "L"], 16) == {1: {1}, 8: {8, "L/2"}, 16: {"L"}}


def test_a_line_is_quoted_as_in_a_shell():
    line = "method=mask 'model.path=\"/ck/step=3\"'  limit=0\n"
    assert split(line) == ["method=mask", 'model.path="/ck/step=3"', "limit=0"]
    with pytest.raises(UserError, match="cannot be read"):
        split("model.path='a")
