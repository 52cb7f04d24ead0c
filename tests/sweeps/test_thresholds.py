"""Thresholds for wanted mean depths: measured once on no_exit's text, kept, the same for all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from river_llm import calibration
from river_llm.composition import load_config
from river_llm.evaluation.run import execute
from river_llm.evaluation.runtime import Runtime
from river_llm.sweeps.folder import SweepFolder
from river_llm.sweeps.operating_points import OperatingPoints
from river_llm.sweeps.recipe import WarmUp
from tiny_folder import LAYERS, SMALL

WARM_UP = WarmUp(prompts=2, tokens=40)
# Copied weights: an exit changes nothing that a later token sees, so a run's scores are no_exit's.
RIVER = ("method=river", "method.prefill=backbone", "quant=none")


@pytest.fixture(scope="module")
def common(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Overrides of a small run, all of which share one loaded model."""
    with pytest.MonkeyPatch.context() as patch:
        runtime = Runtime.load(load_config([*SMALL, f"model.path={model}"]))
        patch.setattr(Runtime, "shared", lambda config: runtime)
        output = tmp_path_factory.mktemp("results")
        yield [*SMALL, f"model.path={model}", f"output.dir={output}"]


@pytest.mark.parametrize("criterion", ["similarity", "confidence"])
@pytest.mark.parametrize("depth", [1, 2, LAYERS])
def test_a_run_with_the_threshold_has_the_mean_depth(
    common: list[str], tmp_path: Path, criterion: str, depth: int
):
    chosen = [*common, *RIVER, f"criterion={criterion}"]
    points = OperatingPoints(SweepFolder(tmp_path), WARM_UP)
    tau = points.tau(load_config(chosen), depth)
    budget = [f"limit={WARM_UP.prompts}", f"exp.max_new_tokens={WARM_UP.tokens + 1}"]
    sizes = ["speedup.prompts=0", "fidelity.limit=0"]
    summary = execute(
        load_config([*chosen, f"criterion.tau={tau}", *budget, *sizes]), Runtime.shared(None)
    ).summary
    assert summary["time"]["decode_steps"] == WARM_UP.prompts * WARM_UP.tokens
    # 80 steps on a grid of 80 x 2 scores: one score more or less moves the mean by 1/80 or so.
    assert summary["exit_depth"]["mean"] == pytest.approx(depth, abs=0.05)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What scores were measured on, one entry for each time."""
    seen: list[str] = []
    original = calibration.scores_of_run

    def counting(config, *rest):
        seen.append(f"{config.exp.name} {config.criterion.name} {config.exp.fewshot}")
        return original(config, *rest)

    monkeypatch.setattr(calibration, "scores_of_run", counting)
    return seen


def test_scores_are_measured_once_for_each_criterion_and_prompt(
    common: list[str], tmp_path: Path, measured: list[str]
):
    first = OperatingPoints(SweepFolder(tmp_path), WARM_UP)
    similarity = load_config([*common, *RIVER])
    confidence = load_config([*common, "method=mask", "criterion=confidence"])
    taus = [first.tau(similarity, depth) for depth in (1, 2)] + [first.tau(confidence, 2)]
    # The method that exits does not matter: the scores are no_exit's.
    assert first.tau(load_config([*common, "method=mask"]), 2) == taus[1]
    assert measured == ["gsm_mini similarity 0", "gsm_mini confidence 0"]
    # A resumed sweep finds them.
    again = OperatingPoints(SweepFolder(tmp_path), WARM_UP)
    assert [again.tau(similarity, d) for d in (1, 2)] + [again.tau(confidence, 2)] == taus
    assert len(measured) == 2
    again.tau(load_config([*common, "exp.fewshot=1"]), 2)
    assert measured[2:] == ["gsm_mini similarity 1"]


def test_models_of_one_name_have_thresholds_of_their_own(
    common: list[str], tmp_path: Path, measured: list[str]
):
    points = OperatingPoints(SweepFolder(tmp_path), WARM_UP)
    points.tau(load_config(common), 2)
    points.tau(load_config([*common, "model.path=/another/llama"]), 2)
    assert len(measured) == 2


def test_what_another_shard_has_found_meanwhile_holds(
    common: list[str], model: Path, tmp_path: Path
):
    config = load_config([*common, *RIVER])
    one, other = (OperatingPoints(SweepFolder(tmp_path), WARM_UP) for _ in range(2))
    one.layers(config)
    tau = one.tau(config, 2)
    path = tmp_path / "operating_points.json"
    stored = json.loads(path.read_text("utf-8"))
    key = f"gsm_mini llama {model} fp32 similarity"
    assert stored == {f"llama {model}": {"layers": LAYERS}, key: {"2": tau}}
    # The other began when nothing was known, on a machine that rounds in its own way.
    stored[key]["2"] = tau + 0.001
    path.write_text(json.dumps(stored), encoding="utf-8")
    other.tau(config, 1)
    assert other.tau(config, 2) == tau + 0.001
    kept = json.loads(path.read_text("utf-8"))
    assert set(kept[key]) == {"1", "2"}
    assert kept[f"llama {model}"] == {"layers": LAYERS}
