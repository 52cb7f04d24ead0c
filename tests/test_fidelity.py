"""Fidelity to no_exit: figures worked out by hand from given logits, and no_exit against itself."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest
import torch

from river_llm.config import (
    ExpConfig,
    FidelityConfig,
    ModelConfig,
    RiverConfig,
    RtnInt4Config,
    RunConfig,
    SimilarityConfig,
)
from river_llm.decoding import NoExit, River, StepOutput
from river_llm.engine.executor import Exit
from river_llm.evaluation import fidelity as fidelity_module
from river_llm.evaluation import measure
from river_llm.evaluation.fidelity import (
    ForcedPass,
    ForcedScores,
    ForcedText,
    ReferenceScores,
    compare,
    forced_pass,
    transformers_scores,
)
from river_llm.exits import Fixed, Never, Replay
from river_llm.models.adapter import BackboneAdapter
from river_llm.records import SampleRecord
from tiny import COPIED, KINDS, LAYERS, OTHER_PROMPT, PROMPT, make_executor, run, tiny_model


class Given:
    """A decoder that answers with given logits and notes what it is fed."""

    def __init__(self, rows):
        self.rows = [torch.tensor(row, dtype=torch.float64).log() for row in rows]
        self.log = []
        self.executor = SimpleNamespace(
            criterion=SimpleNamespace(begin_sample=lambda s: self.log.append(("sample", s)))
        )

    def prefill(self, prompts):
        self.log.append(("prefill", prompts))
        return self._out()

    def step(self, forced=None):
        self.log.append(("step", forced))
        return self._out()

    def _out(self):
        row = self.rows.pop(0)
        return StepOutput([[int(row.argmax())]], [[0.0]], row.view(1, 1, -1), Exit(len(self.rows)))


def test_scores_by_hand():
    """Odds of 1 : 2 : 1, 8 : 1 : 1 and 1 : 1 : 6 for the tokens 1, 1, 2."""
    decoder = Given([[1, 2, 1], [8, 1, 1], [1, 1, 6]])
    result = forced_pass(decoder, ForcedText("s", [7, 8], [1, 1, 2]))
    scores = result.scores
    # This decoder's depth is the number of answers that it still has.
    assert (result.prefill_depth, result.depths) == (2, [1, 0])
    assert scores.equal == [True, False, True]
    assert scores.nll == pytest.approx([math.log(2), math.log(10), math.log(8 / 6)], rel=1e-5)
    # The prefill predicts the first token, and the last one is predicted, not fed.
    assert decoder.log == [
        ("sample", "s"),
        ("prefill", [[7, 8]]),
        ("step", [1]),
        ("step", [1]),
    ]


def test_a_text_of_one_token_needs_no_step():
    decoder = Given([[1, 3]])
    scores = forced_pass(decoder, ForcedText("s", [7], [0])).scores
    assert (scores.equal, scores.nll) == ([False], pytest.approx([math.log(4)]))
    assert len(decoder.log) == 2


def test_nll_does_not_depend_on_a_shift_or_overflow():
    decoder = Given([[1, 1]])
    decoder.rows = [torch.tensor([1000.0, 1000.0]), torch.tensor([-500.0, -500.0])]
    scores = forced_pass(decoder, ForcedText("s", [7], [0, 1])).scores
    assert scores.nll == pytest.approx([math.log(2)] * 2, rel=1e-4)


def test_comparison_by_hand():
    """Tokens weigh alike: 3 of 4 agree; excess (0.5 + 0.25 + 0 - 0.15) / 4."""
    arm = {
        "a": ForcedScores([True, True, False], [1.0, 2.0, 3.0]),
        "b": ForcedScores([True], [0.35]),
    }
    no_exit = {
        "a": ForcedScores([True, True, True], [0.5, 1.75, 3.0]),
        "b": ForcedScores([True], [0.5]),
        "not in the arm": ForcedScores([True], [9.0]),
    }
    result = compare(arm, no_exit)
    assert result["agreement"] == 0.75
    assert result["excess_nll"] == pytest.approx(0.15)


def test_an_arm_with_fewer_tokens_is_compared_on_those():
    arm = {"a": ForcedScores([True, False], [1.0, 2.0])}
    no_exit = {"a": ForcedScores([True] * 4, [0.5, 0.5, 100.0, 100.0])}
    assert compare(arm, no_exit) == {"agreement": 0.5, "excess_nll": 1.0}


def no_exit_of(model, rivers):
    return NoExit(*make_executor(model, Never(LAYERS), rivers, COPIED))


def texts_of(model, rivers, count=10):
    return [
        ForcedText(name, prompt, run(no_exit_of(model, rivers), [prompt], count)[0][0])
        for name, prompt in (("a", PROMPT), ("b", OTHER_PROMPT))
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_no_exit_agrees_with_itself_and_nearly_with_transformers(kind, rivers):
    model = tiny_model(kind)
    texts = texts_of(model, rivers)
    arm, second = no_exit_of(model, rivers), no_exit_of(model, rivers)
    own = {text.id: forced_pass(second, text).scores for text in texts}
    scores = {text.id: forced_pass(arm, text).scores for text in texts}
    assert compare(scores, own) == {"agreement": 1.0, "excess_nll": 0.0}
    floor = {text.id: transformers_scores(arm.executor.adapter, text) for text in texts}
    result = compare(floor, own)
    assert result["agreement"] == 1.0
    assert result["excess_nll"] == pytest.approx(0.0, abs=1e-4)


def test_a_quantized_arm_is_told_from_no_exit(rivers):
    model = tiny_model("llama")
    texts = texts_of(model, rivers)
    own = {text.id: forced_pass(no_exit_of(model, rivers), text).scores for text in texts}
    arm = River(*make_executor(model, Fixed(LAYERS, 1), rivers))
    result = compare({text.id: forced_pass(arm, text).scores for text in texts}, own)
    assert result["agreement"] < 1.0
    assert result["excess_nll"] > 0.05


def test_the_methods_own_cache_is_scored(rivers):
    """Scores of a river come from steps on its own KV: they are those of its own forced run."""
    model = tiny_model("qwen2")
    (text, _) = texts_of(model, rivers)
    arm = River(*make_executor(model, Fixed(LAYERS, 2), rivers))
    scores = forced_pass(arm, text).scores
    again = River(*make_executor(model, Fixed(LAYERS, 2), rivers))
    outputs = [again.prefill([text.prompt])]
    outputs += [again.step(forced=[token]) for token in text.tokens[:-1]]
    logs = torch.cat([o.logits[0] for o in outputs]).log_softmax(-1)
    expected = [-logs[n, token].item() for n, token in enumerate(text.tokens)]
    assert scores.nll == pytest.approx(expected, abs=1e-5)
    assert scores.equal == (logs.argmax(-1) == torch.tensor(text.tokens)).tolist()


def test_scores_of_no_exit_are_kept_and_only_what_is_missing_is_computed(monkeypatch):
    asked = []

    def no_exit(decoder, text):
        asked.append(("no_exit", text.id))
        return ForcedPass(ForcedScores([True], [0.5]), 4, [])

    def transformers(adapter, text):
        asked.append(("transformers", text.id))
        return ForcedScores([False], [0.25])

    monkeypatch.setattr(fidelity_module, "forced_pass", no_exit)
    monkeypatch.setattr(fidelity_module, "transformers_scores", transformers)
    texts = [ForcedText(name, [1], [2]) for name in "abc"]
    adapter = object()
    first = ReferenceScores(None, 64)
    assert first.complete(texts[:2], None, adapter, None) is True
    assert len(asked) == 4
    stored = json.loads(json.dumps(first.as_dict(), allow_nan=False))

    second = ReferenceScores(stored, 64)
    assert second.complete(texts[:2], None, adapter, None) is False
    assert len(asked) == 4
    assert second.complete(texts, None, adapter, None) is True
    assert asked[4:] == [("no_exit", "c"), ("transformers", "c")]
    assert second.no_exit == dict.fromkeys("abc", ForcedScores([True], [0.5]))
    assert second.transformers == dict.fromkeys("abc", ForcedScores([False], [0.25]))

    other = ReferenceScores(stored, 32)
    assert (other.no_exit, other.transformers) == ({}, {})

    # Without a model of transformers' that computes the same, no_exit is scored alone.
    del asked[:]
    bare = ReferenceScores(None, 64)
    assert bare.complete(texts[:2], None, None, None) is True
    assert asked == [("no_exit", "a"), ("no_exit", "b")]
    assert bare.transformers == {}
    assert bare.complete(texts[:2], None, None, None) is False


def test_scores_of_the_eager_engine_are_added_to_what_is_there(monkeypatch):
    """Kept before they were asked for, no_exit's and transformers' scores are not made again."""
    asked = []

    def scored(decoder, text):
        asked.append((decoder, text.id))
        return ForcedPass(ForcedScores([decoder == "own"], [0.5]), 4, [])

    monkeypatch.setattr(fidelity_module, "forced_pass", scored)
    monkeypatch.setattr(
        fidelity_module, "transformers_scores", lambda *_: ForcedScores([True], [0.25])
    )
    texts = [ForcedText(name, [1], [2]) for name in "ab"]
    first = ReferenceScores(None, 64)
    first.complete(texts[:1], "own", object(), None)
    old = first.as_dict()
    assert old.pop("eager") == {}
    asked.clear()

    second = ReferenceScores(old, 64)
    assert second.complete(texts, "own", object(), "eager") is True
    assert asked == [("eager", "a"), ("own", "b"), ("eager", "b")]
    assert second.eager == dict.fromkeys("ab", ForcedScores([False], [0.5]))
    third = ReferenceScores(json.loads(json.dumps(second.as_dict())), 64)
    assert third.eager == second.eager
    assert third.complete(texts, "own", object(), "eager") is False


def test_both_noise_floors_by_hand(monkeypatch):
    """Over the arm's 1 and 2 tokens of texts of 3: what another implementation shows there."""
    reference = ReferenceScores(None, 3)
    for name in "ab":
        reference.no_exit[name] = ForcedScores([True] * 3, [1.0, 1.0, 1.0])
        reference.transformers[name] = ForcedScores([True] * 3, [1.5, 1.0, 9.0])
        reference.eager[name] = ForcedScores([False, True, False], [1.0, 4.0, 9.0])
    monkeypatch.setattr(
        measure,
        "forced_pass",
        lambda arm, t: ForcedPass(ForcedScores([True] * len(t.tokens), [1.0] * 3), 4, []),
    )
    texts = [ForcedText("a", [1], [2]), ForcedText("b", [1], [2, 3])]
    result, _ = measure.fidelity(None, texts, reference, seed=0)
    assert result["noise_floor"] == {"agreement": 1.0, "excess_nll": 1.0 / 3}
    assert result["engine_noise_floor"] == {"agreement": 1 / 3, "excess_nll": 1.0}
    reference.eager.clear()
    result, _ = measure.fidelity(None, texts, reference, seed=0)
    assert result["engine_noise_floor"] is None


def test_fidelity_of_a_method_with_its_noise_floor(rivers):
    model = tiny_model("qwen3")
    texts = texts_of(model, rivers)
    no_exit = no_exit_of(model, rivers)
    reference = ReferenceScores(None, 10)
    reference.complete(texts, no_exit, no_exit.executor.adapter, None)
    result, rows = measure.fidelity(no_exit, texts, reference, seed=0)
    assert list(rows) == ["a", "b"]
    assert rows["a"] == {
        "prefill_depth": LAYERS,
        "equal": [True] * 10,
        "nll": reference.no_exit["a"].nll,
        "excess_nll": [0.0] * 10,
        "depths": [LAYERS] * 9,
    }
    assert result["mean_depth"] == LAYERS
    assert (result["agreement_low"], result["agreement_high"]) == (1.0, 1.0)
    assert (result["samples"], result["tokens"]) == (2, 20)
    assert (result["agreement"], result["excess_nll"]) == (1.0, 0.0)
    assert set(result["noise_floor"]) == {"agreement", "excess_nll"}
    assert result["noise_floor"]["excess_nll"] == pytest.approx(0.0, abs=1e-4)


def test_the_intervals_of_fidelity_are_over_texts(monkeypatch):
    """Texts of 1 and 3 tokens, all right and all wrong: resamples are 1, 1/4 or 0."""
    passes = {
        "a": ForcedPass(ForcedScores([True], [1.0]), 4, []),
        "b": ForcedPass(ForcedScores([False] * 3, [2.0] * 3), 4, [1, 3]),
    }
    reference = ReferenceScores(None, 3)
    own = {"a": ForcedScores([True], [1.5]), "b": ForcedScores([True] * 3, [1.0] * 3)}
    reference.no_exit = reference.transformers = own
    monkeypatch.setattr(measure, "forced_pass", lambda arm, text: passes[text.id])
    texts = [ForcedText("a", [1], [2]), ForcedText("b", [1], [2, 3, 4])]
    result, rows = measure.fidelity(None, texts, reference, seed=0)
    assert (result["agreement"], result["excess_nll"]) == (0.25, (-0.5 + 3) / 4)
    # A quarter of the resamples holds the same text twice.
    assert (result["agreement_low"], result["agreement_high"]) == (0.0, 1.0)
    assert (result["excess_nll_low"], result["excess_nll_high"]) == (-0.5, 1.0)
    assert result["mean_depth"] == 2.0
    assert rows["b"]["excess_nll"] == [1.0] * 3

    result, _ = measure.fidelity(None, texts[1:], reference, seed=0)
    assert (result["agreement_low"], result["agreement_high"]) == (None, None)


def record(extracted, finish="eos", name="s", tokens=(1, 2, 3, 4, 5, 6)) -> SampleRecord:
    return SampleRecord(
        id=name,
        index=0,
        prompt_hash="",
        prompt_tokens=1,
        completion="",
        token_ids=list(tokens),
        extracted=extracted,
        correct=None,
        detail={},
        finish_reason=finish,
        tokens_timed=len(tokens),
        tokens_kept=len(tokens),
        prefill_seconds=0.0,
        decode_seconds=0.0,
        prefill_depth=0,
        exit_depths=[],
        exit_scores=[],
        margins=[1.0] * len(tokens),
        block_lengths={"1": 1},
        commit=None,
    )


class Numbers:
    """A task whose answers are equal as numbers."""

    def same_answer(self, first, second):
        return float(first) == float(second)


def equal_answers(arm, no_exit, finishes=None):
    finishes = finishes or ["eos"] * len(no_exit)
    return measure.equal_answers(
        Numbers(),
        [record(answer) for answer in arm],
        [record(answer, finish) for answer, finish in zip(no_exit, finishes, strict=True)],
    )


@pytest.mark.parametrize(
    ("arm", "no_exit", "value", "both_empty"),
    [
        (["7", "8"], ["7", "8"], 1.0, 0),
        (["7", "9"], ["7", "8"], 0.5, 0),
        # The task decides what is equal.
        (["7.0", "8"], ["7", "8"], 1.0, 0),
        # An answer on one side only is a difference.
        ([None, "8"], ["7", "8"], 0.5, 0),
        (["7", "8"], [None, "8"], 0.5, 0),
        # None on both sides is counted apart and is no equal answer.
        ([None, "8", "9"], [None, "8", "1"], 0.5, 1),
    ],
)
def test_equal_answers_by_hand(arm, no_exit, value, both_empty):
    assert equal_answers(arm, no_exit) == {
        "value": value,
        "samples": len(arm),
        "both_empty": both_empty,
        "reason": None,
    }


def test_texts_without_any_answer_have_no_figure():
    result = equal_answers([None, None], [None, None])
    assert (result["value"], result["both_empty"]) == (None, 2)
    assert "answer" in result["reason"]


@pytest.mark.parametrize(
    ("cut", "value"), [(0, 1.0), (1, 1.0), (2, None), (10, None)], ids="{} of 10 cut".format
)
def test_answers_are_compared_only_where_nine_of_ten_of_no_exits_texts_end(cut, value):
    finishes = ["length"] * cut + ["eos", "stop"] * 5
    result = equal_answers(["7"] * 10, ["7"] * 10, finishes[:10])
    assert result["value"] == value
    assert (result["reason"] is None) == (value is not None)
    assert value is not None or f"{100 - 10 * cut}%" in result["reason"]


def test_it_is_no_exits_end_that_counts_not_the_arms():
    arm = [record("7", "length")] * 4
    assert measure.equal_answers(Numbers(), arm, [record("7")] * 4)["value"] == 1.0


def test_only_the_samples_that_no_exit_has_are_compared():
    """fidelity.limit bounds no_exit's samples; the arm may have more."""
    arm = [record("7"), record("8"), record("9")]
    result = measure.equal_answers(Numbers(), arm, [record("7"), record("8")])
    assert (result["value"], result["samples"]) == (1.0, 2)


def config_of(tokens: int) -> RunConfig:
    return RunConfig(
        exp=ExpConfig(name="gsm_mini", max_new_tokens=8),
        model=ModelConfig(name="tiny", path="nowhere"),
        method=RiverConfig(),
        criterion=SimilarityConfig(),
        quant=RtnInt4Config(group_size=32),
        fidelity=FidelityConfig(tokens=tokens),
    )


def forced(criterion, tokens=64):
    prompts = [SimpleNamespace(sample=SimpleNamespace(id=n), ids=[ord(n)]) for n in "abc"]
    records = [record("7", name=n, tokens=range(10, 10 + m)) for n, m in (("a", 6), ("b", 3))]
    arm = SimpleNamespace(executor=SimpleNamespace(criterion=criterion))
    return measure.forced_texts(prompts, records, config_of(tokens), arm)


@pytest.mark.parametrize(("tokens", "lengths"), [(64, [6, 3]), (4, [4, 3]), (1, [1, 1])])
def test_texts_are_no_exits_first_tokens(tokens, lengths):
    texts = forced(Never(LAYERS), tokens)
    assert [text.id for text in texts] == ["a", "b"]
    assert [text.prompt for text in texts] == [[97], [98]]
    assert [text.tokens for text in texts] == [list(range(10, 10 + n)) for n in lengths]


@pytest.mark.parametrize(
    ("steps", "tokens", "lengths"),
    # n recorded steps can be planned behind the prefill: n + 1 tokens.
    [((5, 2), 64, [6, 3]), ((3, 2), 64, [4, 3]), ((0, 1), 64, [1, 2]), ((9, 9), 2, [2, 2])],
)
def test_texts_are_cut_to_the_steps_that_replay_has_recorded(steps, tokens, lengths):
    depths = {name: (5, [1] * n) for name, n in zip("ab", steps, strict=True)}
    texts = forced(Replay(LAYERS, depths, "folder"), tokens)
    assert [len(text.tokens) for text in texts] == lengths


def test_a_cut_text_can_be_scored_to_its_end_under_replay(rivers):
    model = tiny_model("llama")
    (text, _) = texts_of(model, rivers, 6)
    replay = Replay(LAYERS, {"a": (LAYERS, [2, 4, 1])}, "folder")
    arm = River(*make_executor(model, replay, rivers))
    cut = ForcedText("a", text.prompt, text.tokens[:4])
    assert len(forced_pass(arm, cut).scores.nll) == 4
    with pytest.raises(Exception, match="recorded 3 decode steps"):
        forced_pass(arm, text)


def test_transformers_scores_restore_the_adapter(rivers):
    adapter = BackboneAdapter(tiny_model("llama"))
    before = adapter.model.config._attn_implementation
    scores = transformers_scores(adapter, ForcedText("a", PROMPT, [4, 5, 6]))
    assert len(scores.nll) == 3
    assert adapter.model.config._attn_implementation == before
