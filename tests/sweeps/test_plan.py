"""From a command line and a recipe to cells: which, how many, in which order and shard."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from river_llm import composition
from river_llm.composition import CONF
from river_llm.config import NoExitConfig, ReplayConfig, RunConfig, SimilarityConfig
from river_llm.evaluation.runtime import Runtime
from river_llm.sweeps import plan as plan_module
from river_llm.sweeps.folder import Cell
from river_llm.sweeps.plan import Request, parse_request, part, plan_cells

MODEL = "smollm2_135m embedded"


@functools.cache
def _composed(overrides: tuple[str, ...]) -> RunConfig:
    return composition.load_config(overrides)


def load_config(overrides: Sequence[str]) -> RunConfig:
    """The project's own, which takes a while, once for equal overrides."""
    return _composed(tuple(overrides))


@pytest.fixture(autouse=True, scope="module")
def no_model() -> Iterator[None]:
    """What a plan needs of the model is written down beforehand: loading one is a fault."""

    def refuse(config: object) -> Runtime:
        raise AssertionError("a model is loaded")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Runtime, "shared", refuse)
        patch.setattr(plan_module, "load_config", load_config)
        yield


class Planner:
    """Plans sweeps for a model of L layers whose tau for mean depth d is d/100."""

    def __init__(self, output: Path) -> None:
        self.output = output

    def request(self, *arguments: str) -> Request:
        return parse_request([*arguments, f"output.dir={self.output}"])

    def __call__(self, *arguments: str, layers: int = 16) -> list[Cell]:
        request = self.request(*arguments)
        taus = {str(depth): depth / 100 for depth in range(1, layers + 1)}
        # Another model has other ones.
        (request.folder.path / "operating_points.json").unlink(missing_ok=True)
        request.folder.keep_operating_points(MODEL, {"layers": layers})
        for name in ("similarity", "confidence"):
            request.folder.keep_operating_points(f"gsm_mini {MODEL} bf16 {name}", taus)
        return plan_cells(request)


@pytest.fixture
def plan(tmp_path: Path) -> Planner:
    return Planner(tmp_path)


def own(cells: Sequence[Cell]) -> list[str]:
    """The overrides of each cell in one line, without the folder that all have."""
    return [" ".join(o for o in c.overrides if not o.startswith("output.dir")) for c in cells]


# --- grids --------------------------------------------------------------------------------


def test_cells_of_a_grid_that_are_the_same_computation_stand_once(plan: Planner):
    cells = plan("method=no_exit,full_quant,river", "criterion.tau=0.3,0.8")
    assert own(cells) == [
        "method=no_exit criterion.tau=0.3",
        "method=full_quant criterion.tau=0.3",
        "method=river criterion.tau=0.3",
        "method=river criterion.tau=0.8",
    ]


def test_the_quantizer_counts_where_a_river_is_used(plan: Planner):
    cells = plan("method=no_exit,mask,quant_decode", "quant.group_size=32,64")
    assert own(cells) == [
        "method=no_exit quant.group_size=32",
        "method=mask quant.group_size=32",
        "method=quant_decode quant.group_size=32",
        "method=quant_decode quant.group_size=64",
    ]


@pytest.mark.parametrize(
    ("setting", "count"),
    [
        ("resume.force=true,false", 1),  # a permission
        ("logger=wandb,none", 1),  # where records are mirrored
        ("logger.mode=online,offline", 1),
        ("exp.fewshot_source=own,train", 2),  # may be of use with exemplars, so it is not dropped
        ("seed=0,1", 2),
        ("fidelity.tokens=16,32", 2),
        ("model.path=/m/a,/m/b", 2),
        ("limit=2,4", 2),
        ("limit=4,4", 1),
    ],
)
def test_what_makes_another_cell(plan: Planner, setting: str, count: int):
    assert len(plan("method=no_exit", setting)) == count


def test_the_deepest_depth_makes_another_cell(plan: Planner):
    assert len(plan("method=river", "criterion.max_depth=2,3,null")) == 3


def test_cells_that_do_not_compose_stand_for_themselves(plan: Planner):
    # static_first needs method.k: each fails later, with its reason.
    cells = plan("method=static_first,no_exit", "criterion.tau=0.3,0.8")
    assert own(cells) == [
        "method=static_first criterion.tau=0.3",
        "method=static_first criterion.tau=0.8",
        "method=no_exit criterion.tau=0.3",
    ]


def test_cells_of_one_model_stand_together(plan: Planner):
    cells = plan("method=no_exit,mask", "model.path=/m/a,/m/b", "seed=0,1")
    assert [line.split()[1] for line in own(cells)] == ["model.path=/m/a"] * 4 + [
        "model.path=/m/b"
    ] * 4
    assert own(cells)[:4] == [
        "method=no_exit model.path=/m/a seed=0",
        "method=no_exit model.path=/m/a seed=1",
        "method=mask model.path=/m/a seed=0",
        "method=mask model.path=/m/a seed=1",
    ]


# --- recipes ------------------------------------------------------------------------------

SIZES = ("sweep.common='limit=0 fidelity.tokens=96'", "sweep.answers='limit=8'")


def test_shares_of_the_layers_become_depths_and_depths_beyond_them_are_left_out(plan: Planner):
    entry = '{run:"method=static_last",planned:method.k,depths:[1,3,8,L/2,24]}'
    ks = [load_config(c.overrides).method.k for c in plan(f"sweep.cells=[{entry}]", layers=6)]
    assert ks == [1, 3]
    ks = [load_config(c.overrides).method.k for c in plan(f"sweep.cells=[{entry}]", layers=30)]
    assert ks == [1, 3, 8, 15, 24]


def test_tau_comes_from_the_operating_points(plan: Planner):
    entry = '{run:"method=river,mask criterion=confidence",tau_for_depths:[2,3L/4]}'
    cells = plan(f"sweep.cells=[{entry}]", layers=16)
    assert [
        (config.method.name, config.criterion.name, config.criterion.tau)
        for config in (load_config(c.overrides) for c in cells)
    ] == [
        ("river", "confidence", 0.02),
        ("river", "confidence", 0.12),
        ("mask", "confidence", 0.02),
        ("mask", "confidence", 0.12),
    ]


def test_texts_run_freely_where_the_recipe_says(plan: Planner):
    # L/2 and 8 are one depth, and it is named among the answers in one of its two ways.
    entries = (
        "{run:'method=no_exit',answers:true},"
        "{run:'method=full_quant'},"
        "{run:'method=static_last',planned:method.k,depths:[1,8,L/2],answers_at:[L/2]},"
        "{run:'method=mask',tau_for_depths:[2,4],answers_at:[4]}"
    )
    cells = plan(*SIZES, f"sweep.cells=[{entries}]")
    limits = [load_config(c.overrides).exp.limit for c in cells]
    assert limits == [8, 0, 0, 8, 0, 8]


def test_the_command_line_wins_over_the_recipe(plan: Planner):
    entries = "{run:'method=mask seed=1',tau_for_depths:[2,4],answers_at:[4]}"
    recipe = (*SIZES, f"sweep.cells=[{entries}]")
    cells = plan(*recipe, "exp.limit=5", "seed=2", "fidelity.tokens=7")
    configs = [load_config(c.overrides) for c in cells]
    assert [(c.exp.limit, c.seed, c.fidelity.tokens) for c in configs] == [(5, 2, 7)] * 2
    assert [c.criterion.tau for c in configs] == [0.02, 0.04]
    # Where it sets the operating point itself, one is left.
    cells = plan(*recipe, "criterion.tau=0.7", "limit=1")
    assert [load_config(c.overrides).criterion.tau for c in cells] == [0.7]


def test_a_grid_on_the_command_line_multiplies_a_recipe(plan: Planner):
    cells = plan("sweep.cells=[{run:'method=no_exit,mask'}]", "seed=0,1")
    assert own(cells) == [
        "method=no_exit seed=0",
        "method=mask seed=0",
        "method=no_exit seed=1",
        "method=mask seed=1",
    ]


SHUFFLED = (
    "{run:'method=river_shuffled criterion=replay',"
    "replays:'method=river method.prefill=backbone',tau_for_depths:[2,4],answers_at:[4]}"
)


def test_a_replaying_cell_comes_after_its_source_with_the_same_measurements(plan: Planner):
    cells = plan(*SIZES, f"sweep.cells=[{SHUFFLED}]")
    assert own(cells) == [
        "limit=0 fidelity.tokens=96 method=river method.prefill=backbone criterion.tau=0.02",
        "limit=0 fidelity.tokens=96 method=river_shuffled criterion=replay",
        "limit=8 fidelity.tokens=96 method=river method.prefill=backbone criterion.tau=0.04",
        "limit=8 fidelity.tokens=96 method=river_shuffled criterion=replay",
    ]
    assert [cell.after for cell in cells] == [None, cells[0].key, None, cells[2].key]


def test_a_source_that_the_recipe_holds_already_is_not_run_again(plan: Planner):
    river = "{run:'method=river method.prefill=backbone',tau_for_depths:[1,2,4]}"
    cells = plan(f"sweep.cells=[{river},{SHUFFLED}]")
    assert len(cells) == 5
    assert [cell.after for cell in cells] == [None] * 3 + [cells[1].key, cells[2].key]


def test_a_cell_that_takes_a_mean_depth_comes_after_its_source(plan: Planner):
    river = "{run:'method=river criterion.tau=0.5,0.7'}"
    static = (
        "{run:'method=static_first',planned:method.k,"
        "mean_depth_of:'method=river criterion.tau=0.7'}"
    )
    cells = plan(f"sweep.cells=[{river},{static}]", "limit=5")
    assert own(cells) == [
        "method=river criterion.tau=0.5 limit=5",
        "method=river criterion.tau=0.7 limit=5",
        "method=static_first limit=5",
    ]
    assert (cells[2].after, cells[2].takes) == (cells[1].key, "method.k")


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("{run:'method=mask criterion=never',tau_for_depths:[2]}", "criterion=never has no tau"),
        ("{run:'method=mask',tau_for_depths:[0]}", "depth 0 has no tau"),
        ("{run:'method=mask',tau_for_depths:[half]}", "depth 'half'"),
        ("{run:'method=mask',planned:method.k,depths:[2]}", "method.k"),
        ("{run:'method=static_last method.k=',planned:method.k,depths:[x]}", "depth 'x'"),
    ],
)
def test_an_entry_that_cannot_be_planned_leaves_the_others(plan: Planner, entry: str, words: str):
    broken, other = plan(f"sweep.cells=[{entry},{{run:'method=no_exit'}}]")
    assert broken.problem is not None and words in broken.problem
    assert (own([other]), other.problem) == (["method=no_exit"], None)


# --- the recipes of the project -----------------------------------------------------------

RECIPES = sorted(path.stem for path in (CONF / "sweep").glob("*.yaml"))
METHODS = {path.stem for path in (CONF / "method").glob("*.yaml")}


@pytest.fixture(scope="module")
def of_recipes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Cell]]:
    """The cells of each recipe under `conf/sweep/`, for a model of 30 layers."""
    plan = Planner(tmp_path_factory.mktemp("results"))
    return {name: plan(f"sweep={name}", layers=30) for name in RECIPES}


@pytest.mark.parametrize("name", RECIPES)
def test_every_cell_of_every_recipe_composes(of_recipes: dict[str, list[Cell]], name: str):
    cells = of_recipes[name]
    keys = [cell.key for cell in cells]
    assert len(set(keys)) == len(keys)
    for place, cell in enumerate(cells):
        config = composed_later(cell)
        replays = cell.takes == "criterion.from_run"
        assert isinstance(config.criterion, ReplayConfig) == replays
        assert (cell.takes is None) == (cell.after is None)
        assert cell.after is None or cell.after in keys[:place]
    assert len({str(composed_later(cell)) for cell in cells}) == len(cells)


def composed_later(cell: Cell) -> RunConfig:
    """The settings of a cell once the run that it follows from is known."""
    # Two cells may take the depth of two runs: then the runs tell them apart.
    if cell.after is None:
        return load_config(cell.overrides)
    value = cell.after if cell.takes == "criterion.from_run" else int(cell.after[1:], 16)
    return load_config([*cell.overrides, f"{cell.takes}={value}"])


def test_the_pareto_recipe_holds_every_method(of_recipes: dict[str, list[Cell]]):
    # no_exit is what all are compared with: it stands once, and first.
    first, *rest = [composed_later(cell) for cell in of_recipes["pareto"]]
    assert isinstance(first.method, NoExitConfig)
    assert {config.method.name for config in rest} == METHODS - {"no_exit"}
    taus = [
        config.criterion.tau
        for config in rest
        if (config.method.name, config.method.prompt_in) == ("river", "backbone")
        and isinstance(config.criterion, SimilarityConfig)
    ]
    # Mean depths 1, 3, 8, L/2 and 3L/4, rounded down.
    assert taus == [0.01, 0.03, 0.08, 0.15, 0.22]


# --- shards -------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100])
def test_shards_hold_every_cell_once_and_replays_with_their_source(
    of_recipes: dict[str, list[Cell]], count: int
):
    cells = of_recipes["pareto"]
    assert any(cell.after for cell in cells)
    shards = [part(cells, (index, count)) for index in range(1, count + 1)]
    assert sorted(c.key for shard in shards for c in shard) == sorted(c.key for c in cells)
    for shard in shards:
        keys = [cell.key for cell in shard]
        assert keys == [cell.key for cell in cells if cell.key in keys]
        assert all(cell.after in keys for cell in shard if cell.after)
    sizes = [sum(cell.after is None for cell in shard) for shard in shards]
    assert max(sizes) - min(sizes) <= 1


def test_a_sweep_has_one_folder_whatever_the_shard(plan: Planner):
    grid = ("method=no_exit,mask", "criterion.tau=0.3,0.8")
    folder = plan.request(*grid).folder.path
    assert folder.parent == plan.output / "sweeps"
    assert folder.name.startswith("grid-")
    for same in (["shard=2/3"], ["dry_run=true"], ["resume.force=true"], ["logger=none"]):
        assert plan.request(*same, *grid).folder.path == folder
        assert plan.request(*grid, *same).folder.path == folder
    # Cells in another order would be in other shards.
    for other in (grid[::-1], (*grid, "seed=1"), ("sweep.name=mine", *grid)):
        assert plan.request(*other).folder.path != folder


def test_a_permission_makes_no_other_cells(plan: Planner):
    grid = ("method=no_exit,mask", "criterion.tau=0.3,0.8")
    with_it = plan(*grid, "resume.force=true")
    assert [cell.key for cell in with_it] == [cell.key for cell in plan(*grid)]
    assert all(load_config(cell.overrides).resume.force for cell in with_it)
