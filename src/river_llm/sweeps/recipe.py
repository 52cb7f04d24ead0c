"""Recipes under `conf/sweep/`: lists of cells that need be no grid, with operating points."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from river_llm.config import read
from river_llm.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Some cells of a recipe.

    Attributes:
        run: overrides in one line; commas span a grid.
        tau_for_depths: mean exit depths; `criterion.tau` is set to reach each on measured scores.
        planned: the setting, `criterion.depth` or `method.k`, that takes each of `depths`.
        depths: its values.
        mean_depth_of: in place of `depths`, overrides of a run whose mean exit depth, in whole
            layers, `planned` takes.
        answers_at: those depths at which texts run freely too.
        answers: the same for an entry without depths.
        replays: overrides of the run whose depths the cell replays; its depths are the run's.
    """

    run: str
    tau_for_depths: tuple[int | str, ...] = ()
    planned: str | None = None
    depths: tuple[int | str, ...] = ()
    mean_depth_of: str | None = None
    answers_at: tuple[int | str, ...] = ()
    answers: bool = False
    replays: str | None = None


@dataclass(frozen=True, kw_only=True)
class WarmUp:
    """Texts on which scores are measured, to find the thresholds of a recipe."""

    prompts: int = 2
    tokens: int = 48


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A recipe. Depths are numbers of layers, or shares of the model's: `L`, `L/2`, `3L/4`.

    Attributes:
        name: of the sweep's folder.
        common: overrides of every cell.
        answers: overrides of the cells whose texts run freely.
        warm_up: see :class:`WarmUp`.
        cells: the entries; empty: the command line's grid alone.
    """

    name: str
    common: str = ""
    answers: str = ""
    warm_up: WarmUp = field(default_factory=WarmUp)
    cells: tuple[Entry, ...] = ()


def parse_recipe(composed: Mapping[str, Any]) -> Recipe:
    """Checks the `sweep` group of a composed configuration.

    Raises:
        UserError: an unknown key, a value that does not fit, depths without a setting.
    """
    recipe: Recipe = read(Recipe, composed, "sweep")
    for entry in recipe.cells:
        if (entry.planned is None) != (not entry.depths and entry.mean_depth_of is None):
            raise UserError(
                f"sweep cell {entry.run!r}: planned goes together with depths or mean_depth_of"
            )
        if entry.mean_depth_of and (entry.depths or entry.replays):
            raise UserError(
                f"sweep cell {entry.run!r}: mean_depth_of stands alone, without depths and replays"
            )
        if entry.depths and entry.tau_for_depths:
            raise UserError(f"sweep cell {entry.run!r}: give depths or tau_for_depths, not both")
        known = (*entry.depths, *entry.tau_for_depths)
        if stray := [depth for depth in entry.answers_at if depth not in known]:
            raise UserError(
                f"sweep cell {entry.run!r}: answers_at holds {stray[0]!r}, which is none of its "
                "depths"
            )
    return recipe


def split(line: str) -> list[str]:
    """The overrides of a line, quoted as in a shell.

    Raises:
        UserError: a quote that does not end.
    """
    try:
        return shlex.split(line)
    except ValueError as error:
        raise UserError(f"sweep line {line!r} cannot be read: {error}") from error


def depth_of(depth: int | str, layers: int) -> int:
    """A depth of a recipe for a model of L layers, rounded down.

    Raises:
        UserError: neither a number nor a share of L.
    """
    share = re.fullmatch(r"(\d*)L(?:/([1-9]\d*))?", str(depth))
    if share:
        value = int(share[1] or 1) * layers // int(share[2] or 1)
    elif str(depth).isdecimal():
        value = int(depth)
    else:
        raise UserError(f"depth {depth!r} of a sweep: give a number of layers, or 'L/2', '3L/4'")
    return value


def distinct_depths(depths: Sequence[int | str], layers: int) -> dict[int, set[int | str]]:
    """Depths of a recipe by their value for a model of L layers, with the ways each is written.

    Depths beyond L are left out: a recipe is written for models of any size.
    """
    found: dict[int, set[int | str]] = {}
    for depth in depths:
        value = depth_of(depth, layers)
        if value <= layers:
            found.setdefault(value, set()).add(depth)
    return found
