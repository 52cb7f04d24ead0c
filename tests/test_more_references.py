"""Speedup against no_exit on the eager engine and against transformers' generate."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from river_llm.composition import load_config
from river_llm.decoding import Decoder
from river_llm.evaluation import decode_speedup
from river_llm.evaluation import run as run_module
from river_llm.evaluation.paired_arms import ForcedDecoder, ForcedGenerate
from river_llm.evaluation.run import execute
from river_llm.evaluation.runtime import Runtime
from river_llm.evaluation.speedup import PairedTimes
from river_llm.evaluation.summary import regrade
from tiny_folder import SMALL

BOTH = ("speedup.vs_eager=true", "speedup.vs_hf=true")
KEYS = {
    "value",
    "low",
    "high",
    "prompts",
    "tokens",
    "rounds",
    "reference_ms_per_token",
    "arm_ms_per_token",
    "flags",
}


@pytest.fixture(scope="module")
def runtime(model: Path) -> Runtime:
    return Runtime.load(load_config([*SMALL, f"model.path={model}"]))


@pytest.fixture
def config(model: Path, tmp_path: Path):
    """A run of River that is only timed, with more settings."""

    def make(*more: str):
        common = [*SMALL, f"model.path={model}", f"output.dir={tmp_path}", "limit=0"]
        return load_config([*common, "criterion.tau=0.3", "fidelity.limit=0", *more])

    return make


def decode(result):
    return result.summary["speedup"]["decode"]


@pytest.fixture
def costs(monkeypatch, runtime):
    """A clock that runs by steps alone; what each arm was fed, pass by pass.

    A step costs 3 seconds on the eager engine, 1 on the compiled one, 4 in transformers.
    """
    clock = SimpleNamespace(now=0.0, fed=[])
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    emit, step = Decoder._emit, Decoder.step

    def costly(self, trace):
        clock.now += {"eager": 3.0, "compiled": 1.0}[self.executor.name]
        return emit(self, trace)

    def noted(self, forced=None):
        clock.fed.append((type(self).__name__, self.executor.name, forced and forced[0]))
        return step(self, forced)

    monkeypatch.setattr(Decoder, "_emit", costly)
    monkeypatch.setattr(Decoder, "step", noted)

    def forward(module, args, kwargs):
        clock.now += 4.0
        clock.fed.append(("transformers", "", kwargs["input_ids"][0].tolist()))

    hook = runtime.adapter.model.model.register_forward_pre_hook(forward, with_kwargs=True)
    yield clock
    hook.remove()


def test_known_costs_give_the_ratios(costs, config, runtime):
    found = decode(execute(config(*BOTH, "engine=compiled"), runtime))
    assert found["matched"]["value"] == 1.0
    assert found["vs_eager"]["value"] == 3.0
    assert found["vs_hf"]["value"] == 4.0
    assert found["vs_eager"]["reference_ms_per_token"] == 3000.0
    assert found["vs_hf"]["reference_ms_per_token"] == 4000.0
    assert found["vs_eager"]["arm_ms_per_token"] == found["vs_hf"]["arm_ms_per_token"] == 1000.0
    assert set(found["vs_hf"]) == KEYS
    assert set(found["vs_eager"]) == KEYS | {"same_as_matched"}
    assert found["vs_eager"]["same_as_matched"] is False
    assert (found["vs_hf"]["prompts"], found["vs_hf"]["tokens"]) == (1, 4)


def test_every_arm_is_fed_the_same_tokens(costs, config, runtime, monkeypatch):
    """4 tokens that no arm prefers, so 3 steps in each pass."""
    given = [5, 90, 7, 20]
    monkeypatch.setattr(decode_speedup, "tokens_ignoring_eos", lambda *_: given)
    execute(config(*BOTH, "engine=compiled"), runtime)
    forced = {}
    for name, engine, token in costs.fed:
        if token is not None:
            forced.setdefault((name, engine), []).append(token)
    own = forced[("NoExit", "compiled")]
    tokens = given[:3]
    # A warm-up of all 3, which are fewer than 4, and 2 passes; the arm stands beside 3 references.
    assert own == forced[("NoExit", "eager")] == tokens * 3
    assert forced[("River", "compiled")] == tokens * 9
    whole, *singles = [ids for name, _, ids in costs.fed if name == "transformers"]
    assert len(whole) > 1
    prompt_end = [whole[-1]]
    one = [[token] for token in tokens]
    assert singles == [*one, *[prompt_end, *one] * 2]


def test_the_matched_timing_is_made_first_and_alone(config, runtime, monkeypatch):
    asked = []
    original = decode_speedup.paired_times

    def noted(reference, arm, texts, rounds):
        if isinstance(reference, ForcedGenerate):
            asked.append("transformers")
        else:
            asked.append(reference.decoder.executor.name)
        return original(reference, arm, texts, rounds)

    monkeypatch.setattr(decode_speedup, "paired_times", noted)
    built = []
    monkeypatch.setattr(
        decode_speedup,
        "eager_no_exit",
        lambda *a, make=decode_speedup.eager_no_exit: (built.append(list(asked)), make(*a))[1],
    )
    execute(config(*BOTH, "engine=compiled", "speedup.rounds=2"), runtime)
    assert asked == ["compiled", "eager", "transformers"]
    assert built == [["compiled"]], "no second cache lies in memory before"


def test_on_the_eager_engine_nothing_is_timed_twice(config, runtime, monkeypatch):
    calls = []
    original = decode_speedup.paired_times
    monkeypatch.setattr(
        decode_speedup, "paired_times", lambda *a: (calls.append(a), original(*a))[1]
    )
    found = decode(execute(config("speedup.vs_eager=true", "engine=eager"), runtime))
    assert len(calls) == 1
    matched, eager = found["matched"], found["vs_eager"]
    assert eager.pop("same_as_matched") is True
    assert set(eager) == KEYS
    assert eager.pop("reference_ms_per_token") == matched["no_exit_ms_per_token"]
    assert eager == {key: matched[key] for key in eager}
    assert found["vs_hf"] is None


def times_of(*ratios):
    """A prompt for each ratio, on which the arm takes a second for each of 2 passes of 4 steps."""
    return [PairedTimes(3, 4, [r, r], [1.0, 1.0], [1] * 4, [0] * 4) for r in ratios]


def test_value_and_interval_by_hand(config, runtime, monkeypatch):
    """2 prompts with ratios 2 and 4: resamples give 2, 3 or 4, a quarter of them each end."""
    given = {"matched": times_of(1.0, 1.0), "eager": times_of(2.0, 4.0), "hf": times_of(5.0, 6.2)}

    def paired(reference, arm, texts, rounds):
        if isinstance(reference, ForcedGenerate):
            return given["hf"]
        assert isinstance(reference, ForcedDecoder)
        return given["eager" if reference.decoder.executor.name == "eager" else "matched"]

    monkeypatch.setattr(decode_speedup, "paired_times", paired)
    found = decode(execute(config(*BOTH, "engine=compiled", "speedup.prompts=2"), runtime))
    assert [found["vs_eager"][k] for k in ("value", "low", "high")] == [3.0, 2.0, 4.0]
    assert [found["vs_hf"][k] for k in ("low", "high")] == [5.0, 6.2]
    assert found["vs_eager"]["reference_ms_per_token"] == 1000 * 12 / 16
    assert found["matched"]["value"] == 1.0


def test_a_head_that_transformers_does_not_have_is_flagged(config, runtime):
    found = decode(execute(config("speedup.vs_hf=true", "quant.head=int8"), runtime))
    assert "the reference has its head at 16 bits" in found["vs_hf"]["flags"]
    assert "the reference has its head at 16 bits" not in found["matched"]["flags"]


def test_what_was_measured_stays_until_more_is_asked_for(config, runtime, monkeypatch):
    one = decode(execute(config("speedup.vs_hf=true"), runtime))
    assert one["vs_hf"]["value"] > 0
    assert one["vs_eager"] is None
    # Switched off, or not timed at all: it is there still.
    assert decode(execute(config(), runtime)) == one
    assert decode(execute(config("speedup.prompts=0", "limit=1"), runtime)) == one
    both = decode(execute(config(*BOTH), runtime))
    assert None not in (both["vs_eager"], both["vs_hf"])
    # Another size is another measurement.
    assert decode(execute(config("speedup.tokens=5"), runtime))["vs_hf"] is None


def test_measurements_without_the_new_figures_read_as_not_measured(config, runtime):
    first = execute(config("limit=1"), runtime)
    path = first.folder / "measurements.json"
    old = json.loads(path.read_text())
    for key in ("vs_eager", "vs_hf"):
        assert old["speedup"].pop(key) is None
        old["speedup"]["made_by"].pop(key)
    path.write_text(json.dumps(old))
    again = execute(config("limit=1"), runtime)
    assert json.loads(path.read_text()) == old, "measured again for nothing"
    assert again.summary == first.summary
    assert regrade(first.folder, allow_code_execution=False).summary == first.summary
    assert decode(first)["vs_eager"] is None and decode(first)["vs_hf"] is None
    # Asked for, they are measured after all.
    assert decode(execute(config("limit=1", *BOTH), runtime))["vs_hf"] is not None


def test_settings_count_for_no_identity(config, runtime):
    plain, both = (run_module.Run(config(*more), runtime) for more in ((), BOTH))
    assert plain.identity == both.identity
