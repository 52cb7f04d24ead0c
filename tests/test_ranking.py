"""The ranking of layers: against transformers with dequantized weights, from disk, and as a method.

A random model gives no text a meaning, and a change of its weights makes a foreign text as often
more likely as less. Where a test needs quantization to hurt, the text is the model's own.
"""

from __future__ import annotations

import copy
import itertools
import json
from dataclasses import replace

import pytest
import torch

from river_llm.cache import Source
from river_llm.config import (
    ExpConfig,
    HqqInt4Config,
    ModelConfig,
    NeverConfig,
    NoExitConfig,
    NoQuantConfig,
    QuantDecodeConfig,
    RtnInt4Config,
    RunConfig,
    StaticRankedConfig,
)
from river_llm.errors import UserError
from river_llm.evaluation import ranking
from river_llm.evaluation.methods import build_decoder
from river_llm.evaluation.naming import arm_name
from river_llm.evaluation.ranking import (
    LEAST_CONTEXT,
    calibration_text,
    rank_layers,
    restoring_gains,
    text_windows,
)
from river_llm.evaluation.runtime import Runtime
from river_llm.exits import Never
from river_llm.models.adapter import BackboneAdapter
from river_llm.models.loading import load_model, model_fingerprint
from river_llm.quant.store import quantized_layers
from tiny import KINDS, LAYERS, PROMPT, QUANT, make_executor, run, tiny_model
from tiny_folder import CONTEXT, save_llama
from tiny_folder import LAYERS as FOLDER_LAYERS

RTN = RtnInt4Config(group_size=64)


def dequantized(model, layers, quant, cache):
    """A copy whose linears of the given layers hold what 4 bits leave of them."""
    fingerprint = model_fingerprint(model)
    weights = list(quantized_layers(BackboneAdapter(model), quant, fingerprint, cache))
    model = copy.deepcopy(model)
    with torch.no_grad():
        for layer in layers:
            for name, weight in weights[layer].items():
                linear = model.model.layers[layer].get_submodule(name)
                linear.weight.copy_(weight.dequantize(torch.float32))
    return model


def transformers_nll(model, windows) -> float:
    """Mean over all predicted tokens, from transformers' own loss."""
    model.set_attn_implementation("eager")
    total = 0.0
    with torch.no_grad():
        for window in windows:
            ids = torch.tensor([window])
            total += model(ids, labels=ids).loss.item() * (len(window) - 1)
    return total / sum(len(window) - 1 for window in windows)


def transformers_gains(model, windows, quant, cache) -> list[float]:
    """Gain of each layer, all the others (or all) with dequantized weights."""
    layers = range(len(model.model.layers))
    river = transformers_nll(dequantized(model, layers, quant, cache), windows)
    return [
        river - transformers_nll(dequantized(model, set(layers) - {kept}, quant, cache), windows)
        for kept in layers
    ]


def own_text(model, length=200) -> list[int]:
    """A text drawn from the model's own probabilities: no other model finds it more likely."""
    torch.manual_seed(0)
    ids = torch.tensor([PROMPT])
    text = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0, max_new_tokens=length
    )
    return text[0].tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The user's cache, empty."""
    monkeypatch.setenv("RIVER_LLM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def measured(monkeypatch):
    """How often the gains have been measured so far."""
    calls = []
    measure = ranking.restoring_gains

    def counted(executor, windows):
        calls.append(len(windows))
        return measure(executor, windows)

    monkeypatch.setattr(ranking, "restoring_gains", counted)
    return lambda: len(calls)


def config_of(folder, method=None, quant=RTN, dtype="fp32") -> RunConfig:
    return RunConfig(
        exp=ExpConfig(name="gsm_mini", max_new_tokens=8),
        model=ModelConfig(name="tiny", path=str(folder), dtype=dtype),
        method=method or StaticRankedConfig(k=1),
        criterion=NeverConfig(),
        quant=quant,
    )


# --- the gains ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_gains_are_those_of_transformers_with_dequantized_weights(kind, rivers):
    model = tiny_model(kind)
    # Of unequal length: every predicted token counts once, not every window.
    windows = [own_text(model, 60), PROMPT, [3, 17]]
    executor, _ = make_executor(model, Never(LAYERS), rivers)
    gains = restoring_gains(executor, windows)
    expected = transformers_gains(tiny_model(kind), windows, QUANT, rivers)
    assert gains == pytest.approx(expected, abs=2e-5)
    assert max(expected) - min(expected) > 1e-3, "gains that differ"


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("hurt", [0, 2, LAYERS - 1])
def test_the_only_layer_that_quantization_hurts_comes_first(kind, hurt, rivers):
    """The others hold values that 4 bits can hold; it has an outlier in every group."""
    others = [layer for layer in range(LAYERS) if layer != hurt]
    model = dequantized(tiny_model(kind), others, QUANT, rivers)
    with torch.no_grad():
        for linear in BackboneAdapter(model).linears(hurt).values():
            linear.weight[:, :: QUANT.group_size] = 3.0
    text = own_text(model)
    executor, _ = make_executor(model, Never(LAYERS), rivers, slots=len(text))
    gains = restoring_gains(executor, [text])
    assert gains[hurt] > 0.02
    assert max(abs(gains[layer]) for layer in others) < 1e-3


def test_a_likelihood_that_is_not_a_number_is_refused(rivers):
    model = tiny_model("llama")
    executor, _ = make_executor(model, Never(LAYERS), rivers)
    # Behind the river's back: it keeps its own weights.
    with torch.no_grad():
        model.model.layers[3].mlp.up_proj.weight.fill_(torch.nan)
    with pytest.raises(UserError, match="nan with layer 3 at 16 bits"):
        restoring_gains(executor, [PROMPT])


# --- the text -----------------------------------------------------------------------------


def test_windows_hold_the_text_in_order_and_fit_the_context():
    ids = list(range(100))
    assert text_windows(ids, 128) == [ids]
    assert text_windows(ids, 40) == [ids[:40], ids[40:80], ids[80:]]
    # A window of one token predicts nothing.
    assert text_windows(ids, 33) == [ids[:33], ids[33:66], ids[66:99]]


def test_a_short_context_is_refused():
    with pytest.raises(UserError, match=f"context of {LEAST_CONTEXT - 1} tokens is too short"):
        text_windows(list(range(100)), LEAST_CONTEXT - 1)


# --- the ranking --------------------------------------------------------------------------


@pytest.mark.parametrize("quant", [RTN, HqqInt4Config()])
def test_the_ranking_is_that_of_transformers_on_the_packaged_text(quant, folder, cache):
    config = config_of(folder, quant=quant)
    ranked = rank_layers(Runtime.load(config), config)
    loaded = load_model(config.model)
    ids = loaded.tokenizer(calibration_text())["input_ids"]
    windows = [ids[start : start + CONTEXT] for start in range(0, len(ids), CONTEXT)]
    assert len(windows) > 1
    gains = transformers_gains(loaded.adapter.model, windows, quant, cache)
    assert list(ranked) == sorted(range(FOLDER_LAYERS), key=gains.__getitem__, reverse=True)
    ordered = sorted(gains)
    assert min(b - a for a, b in itertools.pairwise(ordered)) > 1e-4, "a clear order"


def test_equal_gains_are_ranked_by_index(folder, cache):
    config = config_of(folder, quant=NoQuantConfig())
    assert rank_layers(Runtime.load(config), config) == tuple(range(FOLDER_LAYERS))


def test_the_ranking_is_measured_once_for_each_model_quantizer_dtype_and_text(
    folder, cache, measured, monkeypatch
):
    config = config_of(folder)
    runtime = Runtime.load(config)
    first = rank_layers(runtime, config)
    assert measured() == 1
    # What the ranking does not depend on changes nothing, in another process either.
    again = replace(config, method=NoExitConfig(), exp=replace(config.exp, max_new_tokens=9))
    assert rank_layers(Runtime.load(again), again) == first
    assert measured() == 1
    for count, quant in enumerate([RtnInt4Config(group_size=32), HqqInt4Config()], start=2):
        rank_layers(runtime, replace(config, quant=quant))
        assert measured() == count
    half = config_of(folder, dtype="bf16")
    rank_layers(Runtime.load(half), half)
    assert measured() == 4
    other = Runtime(replace(runtime.model, fingerprint="of another model"))
    rank_layers(other, config)
    assert measured() == 5
    text = calibration_text()
    monkeypatch.setattr(ranking, "calibration_text", lambda: text[:900])
    rank_layers(runtime, config)
    assert measured() == 6


def test_the_ranking_comes_from_the_file(folder, cache, monkeypatch):
    config = config_of(folder)
    monkeypatch.setattr(ranking, "restoring_gains", lambda *_: [0.5, -1.0, 0.75])
    assert rank_layers(Runtime.load(config), config) == (2, 0, 1)
    (file,) = (cache / "rankings").glob("*/ranking.json")
    assert json.loads(file.read_text()) == {"gains": [0.5, -1.0, 0.75]}


# --- the method ---------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "same"), [(0, QuantDecodeConfig()), (FOLDER_LAYERS, NoExitConfig())])
def test_no_and_all_layers_are_quant_decode_and_no_exit(k, same, folder, cache):
    outcomes = []
    for method in (StaticRankedConfig(k=k), same):
        config = config_of(folder, method)
        runtime = Runtime.load(config)
        decoder = runtime.decoder(config, Never(FOLDER_LAYERS), 64)
        outcomes.append(run(decoder, [PROMPT], 24))
    (tokens, logits, depths), (expected_tokens, expected_logits, _) = outcomes
    assert tokens == expected_tokens
    assert torch.equal(logits, expected_logits)
    assert set(depths) == {k}


def test_the_layers_ranked_first_run_in_the_backbone(folder, cache, monkeypatch):
    monkeypatch.setattr(ranking, "restoring_gains", lambda *_: [0.5, -1.0, 0.75])
    for k, backbone in [(1, {2}), (2, {0, 2})]:
        config = config_of(folder, StaticRankedConfig(k=k))
        decoder = Runtime.load(config).decoder(config, Never(FOLDER_LAYERS), 64)
        run(decoder, [PROMPT], 3)
        column = decoder.cache.source[:, 0, len(PROMPT)].tolist()
        assert {n for n, source in enumerate(column) if source == Source.BACKBONE} == backbone
        assert column.count(Source.RIVER) == FOLDER_LAYERS - k


@pytest.mark.parametrize("k", [-1, FOLDER_LAYERS + 1])
def test_a_count_outside_the_model_is_refused(k, folder, cache, monkeypatch):
    monkeypatch.setattr(ranking, "restoring_gains", lambda *_: [0.5, -1.0, 0.75])
    config = config_of(folder, StaticRankedConfig(k=k))
    with pytest.raises(UserError, match=rf"method.k={k}: .* give 0 to {FOLDER_LAYERS}"):
        Runtime.load(config).decoder(config, Never(FOLDER_LAYERS), 64)


@pytest.mark.parametrize("order", [(), (0, 1), (0, 0, 1, 2, 3)])
def test_a_decoder_without_a_whole_ranking_is_not_built(order, rivers):
    executor, cache = make_executor(tiny_model("llama"), Never(LAYERS), rivers)
    with pytest.raises(TypeError, match="ranking of all 5 layers"):
        build_decoder(StaticRankedConfig(k=2), executor, cache, order)


def test_the_arm_names_its_count(folder):
    assert arm_name(config_of(folder, StaticRankedConfig(k=3), HqqInt4Config(), "bf16")) == (
        "static_ranked k=3"
    )
