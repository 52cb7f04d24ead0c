"""From a command line and a recipe to the cells of a sweep."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from river_llm.composition import composed, load_config, plain
from river_llm.config import ReplayConfig, RunConfig, effective_settings
from river_llm.errors import UserError
from river_llm.sweeps.folder import FROM_RUN, Cell, SweepFolder
from river_llm.sweeps.operating_points import OperatingPoints
from river_llm.sweeps.overrides import expand, key_of, lasting, merge, value_of
from river_llm.sweeps.recipe import Entry, Recipe, distinct_depths, parse_recipe, split

OF_THE_SWEEP = ("sweep", "shard", "dry_run")


@dataclass(frozen=True)
class Request:
    """What a command line asks for.

    Attributes:
        recipe: the recipe, or the empty one of plain grids.
        grid: overrides of the runs, commas spanning a grid.
        shard: (i, n): the i-th of n parts, counted from 1.
        dry_run: only list the cells.
        output: folder of all results.
    """

    recipe: Recipe
    grid: tuple[str, ...]
    shard: tuple[int, int]
    dry_run: bool
    output: Path

    @property
    def folder(self) -> SweepFolder:
        """The same for the same command, whatever its shard, so that it is resumed there."""
        # In another order the cells and their shards would be others.
        content = json.dumps([asdict(self.recipe), lasting(self.grid)], sort_keys=True)
        digest = hashlib.sha256(content.encode()).hexdigest()[:8]
        return SweepFolder(self.output / "sweeps" / f"{self.recipe.name}-{digest}")


def parse_request(arguments: Sequence[str]) -> Request:
    """Reads the overrides of a sweep's command line.

    Raises:
        UserError: a recipe, shard or override that cannot be read.
    """
    own = [a for a in arguments if key_of(a).partition(".")[0] in OF_THE_SWEEP]
    grid = tuple(a for a in arguments if a not in own)
    if value_of(grid, "output.dir") is not None and len(expand(grid)) > 1:
        _refuse_grid(grid, "output.dir")
    output = [a for a in grid if key_of(a) == "output.dir"]
    settings = plain(composed([*own, *output]))
    if gone := [key for key in OF_THE_SWEEP if key not in settings]:
        raise UserError(f"{gone[0]} is missing: ~{gone[0]} is no use in a sweep")
    if not isinstance(settings["dry_run"], bool):
        raise UserError(f"dry_run={settings['dry_run']!r} is not true or false")
    return Request(
        recipe=parse_recipe(settings["sweep"]),
        grid=grid,
        shard=_shard(settings["shard"]),
        dry_run=settings["dry_run"],
        output=Path(settings["output"]["dir"]),
    )


def _refuse_grid(grid: Sequence[str], key: str) -> None:
    if len(expand([f"{key}={value_of(grid, key)}"])) > 1:
        raise UserError(f"{key}={value_of(grid, key)}: a sweep has one {key}")


def _shard(text: Any) -> tuple[int, int]:
    if text is None:
        return 1, 1
    found = re.fullmatch(r"(\d+)/(\d+)", str(text))
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise UserError(f"shard={text}: give i/n with 1 <= i <= n, e.g. shard=1/4")
    return int(found[1]), int(found[2])


def plan_cells(request: Request) -> list[Cell]:
    """All cells of a sweep in the order in which they are run; equal computations stand once.

    Cells of one model stand together, and those that follow from another's run after it.

    Raises:
        UserError: a recipe or a grid that cannot be read.
    """
    points = OperatingPoints(request.folder, request.recipe.warm_up)
    cells: dict[str, Cell] = {}
    for grid in expand(request.grid):
        for draft in _of_recipe(request.recipe, grid, points):
            after = None
            if draft.source is not None:
                source = Cell(tuple(draft.source))
                after = cells.setdefault(_computation(source), source).key
            cell = Cell(tuple(draft.overrides), after, draft.takes, draft.problem)
            cells.setdefault(_computation(cell), cell)
    models = list(dict.fromkeys(_model(cell) for cell in cells.values()))
    return sorted(cells.values(), key=lambda cell: models.index(_model(cell)))


def _model(cell: Cell) -> tuple[str, ...]:
    """The overrides of a cell that choose its model."""
    return tuple(o for o in cell.overrides if key_of(o).partition(".")[0] == "model")


def part(cells: Sequence[Cell], shard: tuple[int, int]) -> list[Cell]:
    """The cells of one shard; a cell that follows from another's run goes where that one goes."""
    index, count = shard
    sources = [cell for cell in cells if cell.after is None]
    place = {cell.key: n % count for n, cell in enumerate(sources)}
    return [cell for cell in cells if place[cell.after or cell.key] == index - 1]


@dataclass(frozen=True)
class _Draft:
    """A cell before the one it follows from has a key.

    Attributes:
        overrides, takes, problem: as in :class:`Cell`.
        source: overrides of the run that it follows from.
    """

    overrides: list[str]
    source: list[str] | None = None
    takes: str | None = None
    problem: str | None = None


def _of_recipe(recipe: Recipe, grid: Sequence[str], points: OperatingPoints) -> Iterator[_Draft]:
    common = split(recipe.common)
    if not recipe.cells:
        yield _Draft(merge(common, grid))
    for entry in recipe.cells:
        for run in expand(split(entry.run)):
            # The operating point is one of the run that chooses depths.
            chooses = run if entry.replays is None else split(entry.replays)
            try:
                at_points = list(_points(entry, merge(common, chooses, grid), points))
            except UserError as error:
                yield _Draft(merge(common, run, grid), problem=str(error))
                continue
            for at, given in at_points:
                freely = split(recipe.answers) if entry.answers or at else []
                chosen = merge(common, chooses, given, freely, grid)
                if entry.replays is not None:
                    own = merge(common, run, freely, grid)
                    yield _Draft(own, chosen, takes=FROM_RUN)
                elif entry.mean_depth_of is not None:
                    source = merge(common, split(entry.mean_depth_of), freely, grid)
                    yield _Draft(chosen, source, takes=entry.planned)
                else:
                    yield _Draft(chosen)


def _points(
    entry: Entry, overrides: Sequence[str], points: OperatingPoints
) -> Iterator[tuple[bool, list[str]]]:
    """For each operating point whether texts run freely there, and the overrides that set it."""
    wanted = entry.depths or entry.tau_for_depths
    if not wanted:
        yield False, []
        return
    config = load_config(overrides if entry.tau_for_depths else [*overrides, *_any(entry)])
    depths = distinct_depths(wanted, points.layers(config))
    for depth, written in depths.items():
        freely = bool(written & set(entry.answers_at))
        if entry.planned is not None:
            yield freely, [f"{entry.planned}={depth}"]
        else:
            yield freely, [f"criterion.tau={points.tau(config, depth)}"]


def _any(entry: Entry) -> list[str]:
    """Some value for the planned setting, without which nothing composes."""
    return [f"{entry.planned}=0"]


def _computation(cell: Cell) -> str:
    """Equal for cells that compute the same."""
    # What cannot be composed stands for itself, and fails with its reason.
    if cell.after is not None or cell.problem is not None:
        return cell.key
    try:
        config = load_config(cell.overrides)
    except UserError:
        return cell.key
    return json.dumps(_measured(config), sort_keys=True)


def _measured(config: RunConfig) -> list[Any]:
    # Of the model only the settings are known here, and a fixed depth of L stays one: the run's
    # own identity still finds that nothing is left to do for it.
    source = config.criterion.from_run if isinstance(config.criterion, ReplayConfig) else None
    return [
        effective_settings(config, layers=sys.maxsize),
        asdict(config.model),
        asdict(config.exp),
        asdict(config.data),
        asdict(config.speedup),
        asdict(config.fidelity),
        asdict(config.memory),
        config.seed,
        config.output.dir,
        source if config.method.exits else None,
    ]
