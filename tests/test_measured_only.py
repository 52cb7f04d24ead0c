"""limit=0: no text runs freely, the measurements keep their own size; and what they leave."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from river_llm.composition import load_config
from river_llm.errors import UserError
from river_llm.evaluation import run as run_module
from river_llm.evaluation.criteria import recorded_depths
from river_llm.evaluation.run import execute
from river_llm.evaluation.runtime import Runtime
from river_llm.records import RunFolder
from tiny_folder import SMALL, save_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def runtime(model: Path) -> Runtime:
    return Runtime.load(load_config([*SMALL, f"model.path={model}"]))


def settings(model: Path, output: Path, *more: str) -> list[str]:
    return [*SMALL, f"model.path={model}", f"output.dir={output}", *more]


def test_nothing_runs_freely_and_fidelity_keeps_its_size(model, runtime, tmp_path):
    common = settings(model, tmp_path, "fidelity.limit=3", "exp.max_new_tokens=6")
    river = [*common, "criterion.tau=0.3"]
    none = execute(load_config([*river, "limit=0"]), runtime)
    assert none.summary["samples"] == 0
    assert none.summary["accuracy"]["value"] is None
    assert RunFolder(none.folder).samples() == []
    # What the folder holds is said there, though no sample was generated.
    assert json.loads((none.folder / "config.json").read_text())["criterion"]["tau"] == 0.3
    assert len(json.loads((none.folder / "environment.json").read_text())) == 1
    fidelity = none.summary["fidelity"]
    assert (fidelity["samples"], fidelity["tokens"]) == (3, 12)
    assert none.summary["speedup"]["decode"]["matched"]["prompts"] == 1

    # The folder is the same as with texts, and what was measured is not measured again.
    kept = (none.folder / "measurements.json").read_bytes()
    some = execute(load_config([*river, "limit=2"]), runtime)
    assert (some.folder, some.summary["samples"]) == (none.folder, 2)
    assert (none.folder / "measurements.json").read_bytes() == kept
    assert {**some.summary["fidelity"], "equal_answers": None} == {
        **fidelity,
        "equal_answers": None,
    }


def test_no_exit_generates_the_texts_that_it_is_measured_on(model, runtime, tmp_path):
    config = load_config(settings(model, tmp_path, "method=no_exit", "limit=0"))
    first = execute(config, runtime)
    assert (first.summary["samples"], first.summary["fidelity"]["samples"]) == (2, 2)
    assert first.summary["fidelity"]["agreement"] == 1.0
    assert execute(config, runtime).summary == first.summary


def test_samples_that_ran_freely_before_stay_in_the_summary(model, runtime, tmp_path):
    common = settings(model, tmp_path, "criterion.tau=0.3")
    some = execute(load_config([*common, "limit=3"]), runtime)
    assert some.summary["samples"] == 3
    assert execute(load_config([*common, "limit=0"]), runtime).summary["samples"] == 3


def test_nothing_at_all_is_refused(model, runtime, tmp_path):
    nothing = ["limit=0", "fidelity.limit=0", "speedup.prompts=0"]
    with pytest.raises(UserError, match="nothing to run"):
        execute(load_config(settings(model, tmp_path, *nothing)), runtime)


def test_forced_scores_give_the_figures_of_the_summary(model, runtime, tmp_path):
    result = execute(load_config(settings(model, tmp_path, "criterion.tau=0.3")), runtime)
    kept = json.loads((result.folder / "forced_scores.json").read_text())
    rows = list(kept["samples"].values())
    fidelity = result.summary["fidelity"]
    equal = [flag for row in rows for flag in row["equal"]]
    excess = [value for row in rows for value in row["excess_nll"]]
    depths = [depth for row in rows for depth in row["depths"]]
    assert (len(rows), len(equal), len(depths)) == (2, 8, 6)
    assert fidelity["agreement"] == sum(equal) / 8
    assert fidelity["excess_nll"] == pytest.approx(sum(excess) / 8)
    assert fidelity["mean_depth"] == sum(depths) / 6
    assert kept["no_exit_run"] == fidelity["no_exit_run"]


def test_shuffled_depths_are_those_on_no_exits_text_where_they_were_measured(
    model, runtime, tmp_path
):
    common = settings(model, tmp_path, "criterion.tau=0.3", "fidelity.tokens=8")
    source = execute(load_config(common), runtime).folder
    shuffled = load_config(
        [*common[:-2], "method=river_shuffled", "criterion=replay", f"criterion.from_run={source}"]
    )
    depths = recorded_depths(shuffled)
    assert depths is not None
    forced = json.loads((source / "forced_scores.json").read_text())["samples"]
    free = {r.id: r for r in RunFolder(source).samples()}
    assert list(depths) == list(free)
    for key, (prefill, steps) in depths.items():
        expected = forced[key]["depths"] if key in forced else free[key].exit_depths
        assert sorted(steps) == sorted(expected)
        assert prefill == free[key].prefill_depth
    assert 0 < len(forced) < len(free)


def test_what_is_not_asked_for_again_stays_as_it_was_measured(model, runtime, tmp_path):
    common = settings(model, tmp_path, "criterion.tau=0.3")
    first = execute(load_config(common), runtime).summary
    for part in ("speedup.prompts=0", "fidelity.limit=0"):
        again = execute(load_config([*common, part]), runtime).summary
        assert again["speedup"] == first["speedup"]
        assert again["fidelity"] == first["fidelity"]
    other = execute(load_config([*common, "speedup.tokens=5", "fidelity.limit=0"]), runtime)
    assert other.summary["speedup"]["decode"]["matched"]["tokens"] == 5
    assert other.summary["fidelity"] == first["fidelity"]


def test_another_commit_measures_anew_what_is_asked_for_and_keeps_the_rest(
    model, runtime, tmp_path, monkeypatch
):
    config = load_config(settings(model, tmp_path, "criterion.tau=0.3", "limit=0"))
    monkeypatch.setattr(run_module, "code_mark", lambda: "first")
    first = execute(config, runtime)
    kept = json.loads((first.folder / "measurements.json").read_text())
    assert first.summary["commits"] == ["first"]

    monkeypatch.setattr(run_module, "code_mark", lambda: "second")
    only_fidelity = replace(config, speedup=replace(config.speedup, prompts=0))
    second = execute(only_fidelity, runtime)
    now = json.loads((second.folder / "measurements.json").read_text())
    assert now["speedup"] == kept["speedup"]
    assert now["fidelity"]["made_by"]["commit"] == "second"
    assert second.summary["commits"] == ["first", "second"]


@pytest.mark.parametrize("prefill", ["sequence", "backbone"])
def test_shuffled_depths_show_where_the_prompt_of_their_run_was(prefill, model, runtime, tmp_path):
    common = settings(model, tmp_path, "speedup.prompts=0")
    river = [*common, "criterion.tau=0.3", f"method.prefill={prefill}"]
    source = execute(load_config(river), runtime)
    assert (source.summary["prefill_depth"]["mean"] == 3) == (prefill == "backbone")
    replay = ["method=river_shuffled", "criterion=replay", f"criterion.from_run={source.folder}"]
    result = execute(load_config([*common, *replay]), runtime)
    assert result.summary["settings"]["prefill"] == prefill


def test_the_engine_has_a_noise_floor_of_its_own(model, runtime, tmp_path):
    """Kept beside no_exit's run; the same texts, so the same figures for every method."""
    common = settings(model, tmp_path, "speedup.prompts=0", "limit=0")
    of = {
        (engine, method): execute(
            load_config([*common, "criterion.tau=0.3", f"engine={engine}", f"method={method}"]),
            runtime,
        ).summary["fidelity"]
        for engine in ("compiled", "eager")
        for method in ("river", "no_exit")
    }
    floor = of["compiled", "river"]["engine_noise_floor"]
    assert floor == of["compiled", "no_exit"]["engine_noise_floor"]
    assert floor["agreement"] == 1.0
    # In float32 both engines compute the same, in another order.
    assert 0 < abs(floor["excess_nll"]) < 1e-4
    assert of["eager", "river"]["engine_noise_floor"] is None
    kept = [json.loads(path.read_text()) for path in tmp_path.rglob("reference_scores.json")]
    assert sorted(len(scores["eager"]) for scores in kept) == [0, 2]
