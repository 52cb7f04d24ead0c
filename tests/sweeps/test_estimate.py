"""The dry run's estimate: what every part of a run takes when no text ends early."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from river_llm.composition import load_config
from river_llm.decoding import NoExit
from river_llm.evaluation.run import execute
from river_llm.evaluation.runtime import Runtime
from river_llm.sweeps import estimate
from river_llm.sweeps.estimate import dry_run, estimated_seconds
from river_llm.sweeps.folder import Cell
from tiny_folder import SMALL

# Seconds of a prefill and of a step.
NO_EXIT, OTHER = (2.0, 0.5), (1.0, 0.25)


@pytest.fixture
def common(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Overrides of a small run on a machine whose times are known."""

    def timed(decoder: Any, prompt: list[int]) -> tuple[float, float]:
        assert len(prompt) > 10
        return NO_EXIT if isinstance(decoder, NoExit) else OTHER

    monkeypatch.setattr(estimate, "_timed", timed)
    sizes = ["limit=3", "exp.max_new_tokens=10", "fidelity.limit=2", "fidelity.tokens=8"]
    sizes += ["speedup.prompts=1", "speedup.tokens=4", "speedup.rounds=3"]
    return [*SMALL, *sizes, f"model.path={model}", f"output.dir={tmp_path}"]


def test_an_estimate_is_the_sum_of_its_parts(common: list[str]):
    texts = 3 * (1.0 + 10 * 0.25)
    forced = 2 * (1.0 + 8 * 0.25)
    # no_exit's own tokens first, then each arm twice a round.
    paired = (2 * 2.0 + 1.0) + 4 * ((1 + 2 * 3) * 0.5 + 2 * 3 * 0.25)
    assert estimated_seconds(load_config([*common, "method=mask"])) == texts + forced + paired


def test_no_exit_is_compared_with_itself(common: list[str]):
    texts = 3 * (2.0 + 10 * 0.5)
    paired = 3 * 2.0 + 4 * (1 + 4 * 3) * 0.5
    # As the reference, as an arm, by transformers, and on the eager engine where that is another.
    for engine, passes in (("eager", 3), ("compiled", 4)):
        forced = passes * 2 * (2.0 + 8 * 0.5)
        config = load_config([*common, "method=no_exit", f"engine={engine}"])
        assert estimated_seconds(config) == texts + forced + paired


def test_each_further_reference_is_timed_in_the_same_size(common: list[str]):
    """A prompt and 4 tokens in 3 rounds of twice each arm, no_exit's here at the same speed."""
    alone = [*common, "method=mask"]
    once = (2.0 + 1.0) + 4 * 2 * 3 * (0.5 + 0.25)
    before = estimated_seconds(load_config(alone))
    for more, times in (
        (["speedup.vs_hf=true"], 1),
        (["speedup.vs_hf=true", "speedup.vs_eager=true", "engine=compiled"], 2),
        (["speedup.vs_hf=true", "speedup.vs_eager=true", "engine=eager"], 1),
        (["speedup.vs_eager=true", "engine=eager"], 0),
    ):
        assert estimated_seconds(load_config([*alone, *more])) == before + times * once


def test_no_exit_generates_the_texts_that_all_arms_are_forced_on(common: list[str]):
    config = load_config(
        [*common, "method=no_exit", "limit=1", "speedup.prompts=0", "engine=eager"]
    )
    assert estimated_seconds(config) == 2 * (2.0 + 10 * 0.5) + 3 * 2 * (2.0 + 8 * 0.5)


def test_texts_that_are_there_take_no_time(common: list[str]):
    alone = [*common, "method=mask", "fidelity.limit=0", "speedup.prompts=0"]
    config = load_config([*alone, "limit=2"])
    execute(config, Runtime.shared(config))
    assert estimated_seconds(config) == 0
    assert estimated_seconds(load_config(alone)) == 1 * (1.0 + 10 * 0.25)
    assert estimated_seconds(load_config([*alone, "limit=1"])) == 0


def test_a_whole_test_set_counts_with_all_its_samples(common: list[str]):
    alone = [*common, "method=mask", "fidelity.limit=0", "speedup.prompts=0", "limit=null"]
    config = load_config(alone)
    whole = estimated_seconds(config) / (1.0 + 10 * 0.25)
    assert whole == int(whole) > 10


def test_the_smallest_budget_leaves_room_for_an_estimate(model: Path, tmp_path: Path):
    # One prompt, and slots for it and two tokens.
    sizes = ["limit=1", "exp.max_new_tokens=1", "speedup.tokens=2"]
    sizes += ["fidelity.limit=1", "fidelity.tokens=1"]
    config = load_config([*SMALL, *sizes, f"model.path={model}", f"output.dir={tmp_path}"])
    assert 0 < estimated_seconds(config) < 60


def test_an_unexpected_error_hides_no_other_cell(
    common: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    def fails(decoder: Any, prompt: list[int]) -> tuple[float, float]:
        if isinstance(decoder, NoExit):
            return NO_EXIT
        raise RuntimeError("out of\nmemory")

    monkeypatch.setattr(estimate, "_timed", fails)
    cells = [Cell((*common, f"method={name}")) for name in ("mask", "no_exit")]
    assert dry_run(cells, {}) == 2
    out, err = capsys.readouterr()
    assert [line.split()[-1] for line in out.splitlines()[:-1]] == ["method=no_exit"]
    (told,) = [line for line in err.splitlines() if line.startswith("error:")]
    assert told.endswith("method=mask cannot run: RuntimeError: out of memory")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0s"), (29.4, "29s"), (31, "0h01m"), (3 * 3600 + 125, "3h02m"), (36000, "10h00m")],
)
def test_a_span_of_time_is_written_for_people(seconds: float, text: str):
    assert estimate._span(seconds).strip() == text
