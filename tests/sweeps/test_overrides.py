"""Lists of overrides: grids, later values over earlier ones, values that need quoting."""

from __future__ import annotations

import pytest

from river_llm.composition import load_config
from river_llm.errors import UserError
from river_llm.sweeps.overrides import expand, key_of, merge, quoted, value_of


def test_a_grid_varies_its_last_override_fastest():
    assert expand(["method=river,mask", "seed=3", "criterion.tau=0.5,0.9"]) == [
        ["method=river", "seed=3", "criterion.tau=0.5"],
        ["method=river", "seed=3", "criterion.tau=0.9"],
        ["method=mask", "seed=3", "criterion.tau=0.5"],
        ["method=mask", "seed=3", "criterion.tau=0.9"],
    ]


@pytest.mark.parametrize(
    ("override", "values"),
    [
        ("criterion.depth=range(0,6,2)", ["0", "2", "4"]),
        ("+method.k=1,2", ["1", "2"]),
        ("model.path='a,b'", ["'a,b'"]),
        ("model.path='a,b',c", ["'a,b'", "c"]),
        ("sweep.cells=[1,2]", ["[1,2]"]),
    ],
)
def test_a_comma_spans_a_grid_only_where_it_separates_values(override: str, values: list[str]):
    key = override.partition("=")[0]
    assert expand([override]) == [[f"{key}={value}"] for value in values]


def test_nothing_given_is_one_cell():
    assert expand([]) == [[]]


@pytest.mark.parametrize("override", ["gsm8k", "criterion.tau=(0.5", "model.path=/ck/step=3"])
def test_what_cannot_be_read_is_named(override: str):
    with pytest.raises(UserError, match="cannot be read as key=value") as caught:
        expand(["method=river", override])
    assert repr(override) in str(caught.value)


def test_a_later_value_stands_in_the_place_of_an_earlier_one():
    recipe = ["limit=0", "method=river", "criterion.tau=0.3"]
    assert merge(recipe, ["criterion.tau=0.5"], ["exp.limit=4", "criterion.tau=0.9"]) == [
        "exp.limit=4",
        "method=river",
        "criterion.tau=0.9",
    ]


def test_a_group_and_its_settings_are_different_keys():
    both = ["criterion=similarity", "criterion.tau=0.5"]
    assert merge(both) == both


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("limit=3", "exp.limit"),
        ("exp.limit=3", "exp.limit"),
        ("fidelity.limit=3", "fidelity.limit"),
        ("++method.k=3", "method.k"),
        ("~exp", "exp"),
        ("model.path='a=b'", "model.path"),
    ],
)
def test_the_key_of_an_override(override: str, key: str):
    assert key_of(override) == key


def test_the_last_value_counts():
    overrides = ["limit=1", "model.path='a=b'", "exp.limit=2"]
    assert value_of(overrides, "exp.limit") == "2"
    assert value_of(overrides, "model.path") == "'a=b'"
    assert value_of(overrides, "seed") is None


@pytest.mark.parametrize(
    "text",
    [
        "results/runs/a-1",
        "my results, [old]",
        "it's",
        "back\\slash",
        "ends with \\",
        "\\'both\\\\'",
        "'",
        'say "so"',
        "1e3",
        "null",
        "a=b",
    ],
)
def test_quoted_text_comes_back_as_it_was(text: str):
    assert load_config([quoted("output.dir", text)]).output.dir == text
