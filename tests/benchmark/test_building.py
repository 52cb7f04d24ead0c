"""Which arms are built, and on which engine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from river_llm.benchmark.building import build_arms
from river_llm.benchmark.decoders import DecoderArm
from river_llm.benchmark.settings import BenchConfig
from river_llm.config import AutoConfig, EagerConfig, ModelConfig, NoQuantConfig
from river_llm.evaluation.runtime import Runtime
from river_llm.models.loading import load_model


@pytest.fixture
def config(model):
    return BenchConfig(
        model=ModelConfig(name="llama", path=str(model), dtype="fp32"),
        quant=NoQuantConfig(),
        engine=EagerConfig(),
        arms=("mask@1", "no_exit", "full_quant", "hf_generate"),
        contexts=(5, 12),
        steps=3,
    )


@pytest.fixture
def runtime(config, tmp_path, monkeypatch):
    monkeypatch.setenv("RIVER_LLM_CACHE", str(tmp_path))
    return Runtime(load_model(config.model))


def test_on_the_eager_engine_no_exit_is_its_own_reference(config, runtime):
    built = build_arms(config, runtime)
    assert [arm.name for arm in built.arms] == [
        "mask@1",
        "no_exit",
        "full_quant",
        "hf_generate/dynamic",
        "hf_generate/static",
    ]
    assert built.engine == "eager"
    assert built.compile_seconds() == 0.0


def test_another_engine_is_timed_beside_no_exit_on_the_eager_one(config, runtime):
    """The engine that really ran is what the executor says, whatever was asked for."""
    built = build_arms(replace(config, engine=AutoConfig()), runtime)
    assert [arm.name for arm in built.arms][:3] == ["mask@1", "no_exit", "no_exit/eager"]
    own = [arm for arm in built.arms if isinstance(arm, DecoderArm)]
    assert [arm.decoder.executor.name for arm in own] == [
        "compiled",
        "compiled",
        "eager",
        "compiled",
    ]
    assert {arm.decoder.cache.slots for arm in own} == {12 + 3 + 1}
    assert built.engine == "compiled"
    assert built.compile_seconds() == own[0].decoder.executor.compile_seconds


def test_the_prompt_is_drawn_from_the_seed_within_the_vocabulary(config, runtime):
    first, again = build_arms(config, runtime), build_arms(config, runtime)
    assert len(first.prompt) == 12
    assert first.prompt == again.prompt
    assert first.prompt != build_arms(replace(config, seed=1), runtime).prompt
    assert all(0 <= token < runtime.adapter.vocab_size for token in first.prompt)
