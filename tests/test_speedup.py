"""The paired speedup: order, what is timed, what is left behind, and the figures made of it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from river_llm import timing
from river_llm.config import (
    ExpConfig,
    FullQuantConfig,
    ModelConfig,
    NoExitConfig,
    NoQuantConfig,
    RiverConfig,
    RtnInt4Config,
    RunConfig,
    SimilarityConfig,
    SpeedupConfig,
)
from river_llm.decoding import NoExit, River, StepOutput
from river_llm.engine.executor import Exit
from river_llm.evaluation import decode_speedup
from river_llm.evaluation.fidelity import ForcedText
from river_llm.evaluation.paired_arms import WARM_UP_STEPS, ForcedDecoder
from river_llm.evaluation.speedup import PairedTimes, tokens_ignoring_eos
from river_llm.evaluation.speedup import paired_times as paired
from river_llm.exits import Never, Replay, Similarity
from river_llm.models.adapter import BackboneAdapter
from river_llm.models.loading import model_fingerprint
from river_llm.quant.head import build_head
from river_llm.quant.river import build_river
from tiny import LAYERS, OTHER_PROMPT, PROMPT, make_executor, run, tiny_model

TEXT = ForcedText("s1", [7, 8, 9], [11, 12, 13, 14, 15, 16])
FED = [11, 12, 13, 14, 15]


class FakeArm:
    """Notes its calls in a log that both arms share; every step costs time on a fake clock."""

    def __init__(self, name, log, clock, cost, depth=3, emitted=()):
        self.name, self.log, self.clock = name, log, clock
        self.cost, self.depth, self.emitted = cost, depth, list(emitted)
        self.steps = 0
        self.cache = SimpleNamespace(slots=10_000)
        self.executor = SimpleNamespace(
            device=torch.device("cpu"),
            criterion=SimpleNamespace(begin_sample=lambda s: log.append((name, "sample", s))),
        )

    def prefill(self, prompts):
        self.log.append((self.name, "prefill", prompts[0]))
        self.clock.now += 1e6
        return self._out()

    def step(self, forced=None):
        self.log.append((self.name, "step", forced and forced[0]))
        self.clock.now += self.cost(self.steps)
        self.steps += 1
        return self._out()

    def rollback(self, steps):
        self.log.append((self.name, "rollback", steps))
        self.clock.now += 1e6

    def _out(self):
        token = self.emitted.pop(0) if self.emitted else 0
        return StepOutput([[token]], [[0.0]], torch.zeros(1, 1, 2), Exit(self.depth))


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock.now)
    return clock


def paired_times(reference, arm, texts, rounds):
    return paired(ForcedDecoder(reference), ForcedDecoder(arm), texts, rounds)


def passes(log):
    """The log as (arm, tokens fed) for each run of steps that a rollback ends."""
    out, fed = [], []
    for name, call, value in log:
        if call == "step":
            fed.append(value)
        elif call == "rollback":
            out.append((name, fed))
            assert value == len(fed)
            fed = []
    return out


@pytest.mark.parametrize("rounds", [1, 3])
def test_passes_come_in_the_order_a_b_b_a(rounds, clock):
    log = []
    reference, arm = (FakeArm(name, log, clock, lambda n: 1.0) for name in "AB")
    paired_times(reference, arm, [TEXT], rounds)
    warm_up = [("A", FED[:WARM_UP_STEPS]), ("B", FED[:WARM_UP_STEPS])]
    assert passes(log) == warm_up + [(name, FED) for name in "ABBA" * rounds]
    assert [entry for entry in log if entry[1] == "sample"] == [
        ("A", "sample", "s1"),
        ("B", "sample", "s1"),
    ]
    assert [entry for entry in log if entry[1] == "prefill"] == [
        ("A", "prefill", TEXT.prompt),
        ("B", "prefill", TEXT.prompt),
    ]


def test_every_prompt_is_told_prefilled_and_timed_by_itself(clock):
    log = []
    reference, arm = (FakeArm(name, log, clock, lambda n: 1.0) for name in "AB")
    texts = [TEXT, ForcedText("s2", [4], [21, 22, 23])]
    times = paired_times(reference, arm, texts, 1)
    assert [entry[2] for entry in log if entry[1] == "sample"] == ["s1", "s1", "s2", "s2"]
    assert passes(log)[6:] == [(name, [21, 22]) for name in "ABABBA"]
    assert [(t.prompt_tokens, t.steps) for t in times] == [(3, 5), (1, 2)]


def test_times_are_those_of_the_steps_alone(clock):
    """Prefill and rollback take a million seconds each here."""
    log = []
    reference = FakeArm("A", log, clock, lambda n: 2.0)
    arm = FakeArm("B", log, clock, lambda n: 0.5, depth=1)
    (times,) = paired_times(reference, arm, [TEXT], 2)
    assert times == PairedTimes(
        prompt_tokens=3,
        steps=5,
        reference_seconds=[10.0] * 4,
        arm_seconds=[2.5] * 4,
        arm_depths=[1] * 5,
        arm_tests=[0] * 5,
    )


def test_the_first_steps_of_each_arm_are_not_timed(clock):
    """The first call of everything is slow: compiling, page faults, caches."""
    log = []
    arms = [FakeArm(name, log, clock, lambda n: 1000.0 if n < 4 else 1.0) for name in "AB"]
    (times,) = paired_times(*arms, [TEXT], 1)
    assert times.reference_seconds == times.arm_seconds == [5.0, 5.0]


def test_a_drift_of_the_machine_hits_both_arms_alike(clock):
    """Every step is slower than the one before, by the same amount: A B B A cancels it."""
    done = SimpleNamespace(steps=0)

    def slower(_):
        done.steps += 1
        return float(done.steps)

    arms = [FakeArm(name, [], clock, slower) for name in "AB"]
    (times,) = paired_times(*arms, [TEXT], 1)
    assert sum(times.reference_seconds) == sum(times.arm_seconds)
    assert times.reference_seconds[0] < times.arm_seconds[0] < times.reference_seconds[1]


def test_no_exits_tokens_are_taken_whatever_they_are(clock):
    log = []
    emitted = [5, 2, 2, 2, 9]
    decoder = FakeArm("A", log, clock, lambda n: 1.0, emitted=emitted)
    assert tokens_ignoring_eos(decoder, [7, 8], 4) == [5, 2, 2, 2]
    assert log == [("A", "prefill", [7, 8])] + [("A", "step", None)] * 3


@pytest.mark.parametrize("rounds", [1, 2])
def test_real_arms_are_left_as_after_the_prefill(rounds, rivers):
    model = tiny_model("qwen3")
    no_exit = NoExit(*make_executor(model, Never(LAYERS), rivers))
    expected = run(no_exit, [PROMPT], 12)
    tokens = tokens_ignoring_eos(no_exit, PROMPT, 12)
    assert tokens == expected[0][0]
    arm = River(*make_executor(model, Similarity(LAYERS, 0.5), rivers))
    alone = run(arm, [PROMPT], 1)
    forced = [arm.step(forced=[token]) for token in tokens[:-1]]
    texts = [
        ForcedText("other", OTHER_PROMPT, tokens),
        ForcedText("own", PROMPT, tokens),
    ]
    (_, times) = paired_times(no_exit, arm, texts, rounds)
    assert times.arm_depths == [out.trace.depth for out in forced]
    assert len(set(times.arm_depths)) > 1
    assert no_exit.steps_done == arm.steps_done == 0
    assert (arm.cache.source[:, :, len(PROMPT) :] == 0).all()
    # On from the prompt, as if nothing had happened in between.
    again = [no_exit.step(forced=[token]) for token in tokens[:-1]]
    assert torch.allclose(torch.cat([o.logits for o in again], 1), expected[1][:, 1:], atol=1e-5)
    again = [arm.step(forced=[token]) for token in tokens[:-1]]
    for out, before in zip(again, forced, strict=True):
        assert torch.allclose(out.logits, before.logits, atol=1e-5)
    assert alone[2] == []


def config_of(method=None, quant=None, **speedup) -> RunConfig:
    return RunConfig(
        exp=ExpConfig(name="gsm_mini", max_new_tokens=8),
        model=ModelConfig(name="tiny", path="nowhere"),
        method=method or RiverConfig(),
        criterion=SimilarityConfig(),
        quant=quant or RtnInt4Config(group_size=32),
        speedup=SpeedupConfig(**{"prompts": 2, "tokens": 5, "rounds": 1, **speedup}),
    )


def prompts_of(*names):
    return [SimpleNamespace(sample=SimpleNamespace(id=n), ids=[1, 2, 3]) for n in names]


@pytest.fixture
def speedup(monkeypatch, rivers):
    """The matched figures of a tiny bf16 model with given times in place of the clock's."""
    model = tiny_model("llama", torch.bfloat16)
    adapter = BackboneAdapter(model)

    def call(times, config=None, criterion=None, names=("a", "b")):
        config = config or config_of()
        river = None
        if not isinstance(config.method, NoExitConfig):
            river = build_river(adapter, config.quant, model_fingerprint(model), cache=rivers)
        asked = []

        def given(no_exit, arm, texts, rounds):
            asked.append(([text.id for text in texts], [len(t.tokens) for t in texts], rounds))
            return times

        monkeypatch.setattr(decode_speedup, "paired_times", given)
        runtime = SimpleNamespace(
            adapter=adapter,
            river_of=lambda _: river,
            head=lambda quant: build_head(adapter, quant.head),
        )
        log, clock = [], SimpleNamespace(now=0.0)
        no_exit = FakeArm("A", log, clock, lambda n: 1.0)
        arm = SimpleNamespace(executor=SimpleNamespace(criterion=criterion or Never(LAYERS)))
        found = decode_speedup.decode_speedups(runtime, config, arm, no_exit, prompts_of(*names))
        assert (found["vs_eager"], found["vs_hf"]) == (None, None), "not asked for"
        return found["matched"], asked

    return call


def times_of(reference, arm, depths=(1, 1, 1, 1), prompt=3):
    tests = [0] * len(depths)
    return PairedTimes(prompt, len(depths), list(reference), list(arm), list(depths), tests)


def test_the_figure_is_a_ratio_of_sums(speedup):
    """(2 + 2 + 20 + 20) / (1 + 1 + 30 + 30); the mean of the ratios would be 1.33."""
    result, asked = speedup([times_of((2, 2), (1, 1)), times_of((20, 20), (30, 30))])
    assert result["value"] == pytest.approx(44 / 62)
    # Two prompts: drawn twice the first, twice the second, or one of each.
    assert result["low"] == pytest.approx(20 / 30)
    assert result["high"] == pytest.approx(2.0)
    # 4 steps in each of 2 passes of 2 prompts.
    assert result["no_exit_ms_per_token"] == pytest.approx(1000 * 44 / 16)
    assert result["arm_ms_per_token"] == pytest.approx(1000 * 62 / 16)
    assert (result["prompts"], result["tokens"], result["rounds"]) == (2, 5, 1)
    assert asked == [(["a", "b"], [5, 5], 1)]


def test_mean_depth_is_over_all_steps(speedup):
    times = [times_of((1, 1), (1, 1), (0, 5, 5, 5)), times_of((1, 1), (1, 1), (1, 1, 1, 1))]
    assert speedup(times)[0]["mean_depth"] == 19 / 8


# Bytes of the tiny llama in bf16, without KV: layer weights, norms and ends; see test_traffic.
FULL, INT4, REST = 61440, 19200, 5 * 256 + 12672


def test_the_bound_is_the_ratio_of_the_bytes_read(speedup):
    """Steps at depths 2 and 4 behind 3 tokens read 4 and 5 slots of 640 bytes."""
    result, _ = speedup([times_of((1, 1), (1, 1), (2, 4))], names=("a",))
    full = 2 * (5 * FULL + REST) + 640 * (4 + 5)
    own = (2 + 4) * FULL + (3 + 1) * INT4 + 2 * REST + 640 * (4 + 5)
    assert result["bound_speedup"] == pytest.approx(full / own)
    assert (result["low"], result["high"]) == (None, None), "one prompt has no spread"


def test_both_arms_read_the_quantized_head(speedup):
    """A byte and no more for each of its 97 x 64 weights, and a scale for each row."""
    saved = 97 * 64 - 97 * 2
    config = config_of(quant=RtnInt4Config(group_size=32, head="int8"))
    result, _ = speedup([times_of((1, 1), (1, 1), (2, 4))], config, names=("a",))
    full = 2 * (5 * FULL + REST - saved) + 640 * (4 + 5)
    own = (2 + 4) * FULL + (3 + 1) * INT4 + 2 * (REST - saved) + 640 * (4 + 5)
    assert result["bound_speedup"] == pytest.approx(full / own)


def test_full_quant_is_bounded_by_the_whole_river(speedup):
    config = config_of(method=FullQuantConfig())
    result, _ = speedup([times_of((1, 1), (1, 1), (0, 0))], config, names=("a",))
    full = 2 * (5 * FULL + REST) + 640 * 9
    assert result["bound_speedup"] == pytest.approx(full / (2 * (5 * INT4 + REST) + 640 * 9))


@pytest.mark.parametrize(
    ("config", "depth"), [(config_of(quant=NoQuantConfig()), 2), (config_of(NoExitConfig()), 5)]
)
def test_a_copied_river_and_no_exit_itself_are_bounded_by_1(config, depth, speedup):
    result, _ = speedup([times_of((1, 1), (1, 1), (depth,) * 4)], config, names=("a",))
    assert result["bound_speedup"] == 1.0


@pytest.mark.parametrize(
    ("reference", "arm", "config", "flags"),
    [
        ((1.0, 1.0), (0.9, 0.9), config_of(), []),
        ((3.0, 3.0), (1.0, 1.0), config_of(), ["reference below par"]),
        ((1.3, 1.0), (1.0, 1.0), config_of(), ["passes differ by up to 30%"]),
        ((1.0, 1.0), (1.0, 0.8), config_of(), ["passes differ by up to 25%"]),
        ((1.1, 1.0), (1.0, 1.1), config_of(), []),
        # A second no_exit shows the noise of the clock, not a reference below par.
        ((1.01, 1.01), (1.0, 1.0), config_of(NoExitConfig()), []),
    ],
)
def test_flags(reference, arm, config, flags, speedup):
    depth = 5 if isinstance(config.method, NoExitConfig) else 1
    times = [times_of(reference, arm, (depth,) * 4)]
    assert speedup(times, config, names=("a",))[0]["flags"] == flags


def test_replay_is_timed_only_where_enough_steps_were_recorded(speedup):
    """5 tokens need 4 steps behind the prefill."""
    replay = Replay(LAYERS, {"a": (5, [1] * 3), "b": (5, [1] * 4), "c": (5, [1] * 9)}, "folder")
    config = config_of(prompts=3)
    _, asked = speedup([times_of((1, 1), (1, 1))] * 2, config, replay, ("a", "b", "c"))
    assert asked[0][0] == ["b", "c"]
    nothing, asked = speedup([], config, replay, ("a",))
    assert nothing is None
    assert asked == []


def test_only_the_first_prompts_are_timed(speedup):
    _, asked = speedup([times_of((1, 1), (1, 1))], config_of(prompts=1), names=("a", "b", "c"))
    assert asked[0][0] == ["a"]
    nothing, _ = speedup([], config_of(prompts=0))
    assert nothing is None
