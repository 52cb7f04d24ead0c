"""Names of arms and what they stand for."""

from __future__ import annotations

import pytest

from river_llm.benchmark.arms import Arm, parse_arm, parse_arms
from river_llm.config import (
    FixedConfig,
    FullQuantConfig,
    MaskConfig,
    MonoDecreasingConfig,
    NeverConfig,
    NoExitConfig,
    QuantDecodeConfig,
    RecomputeConfig,
    RiverConfig,
    RtnInt8Config,
    SimilarityConfig,
    StatePropagationConfig,
    StaticFirstConfig,
    StaticLastConfig,
)
from river_llm.errors import UserError


@pytest.mark.parametrize(
    ("name", "method", "criterion"),
    [
        ("no_exit", NoExitConfig(), NeverConfig()),
        ("full_quant", FullQuantConfig(), NeverConfig()),
        ("quant_decode", QuantDecodeConfig(), NeverConfig()),
        ("river@0", RiverConfig(prefill="backbone"), FixedConfig(depth=0)),
        ("river@12", RiverConfig(prefill="backbone"), FixedConfig(depth=12)),
        ("river~1.5", RiverConfig(prefill="backbone"), SimilarityConfig(tau=1.5)),
        ("river~2", RiverConfig(prefill="backbone"), SimilarityConfig(tau=2.0)),
        # Where nothing fires, nothing is propagated: the backbone and its tests.
        ("no_exit~2", StatePropagationConfig(), SimilarityConfig(tau=2.0)),
        ("static_first@3", StaticFirstConfig(k=3), NeverConfig()),
        ("static_last@4", StaticLastConfig(k=4), NeverConfig()),
        ("recompute@3", RecomputeConfig(), FixedConfig(depth=3)),
        ("mask@3", MaskConfig(), FixedConfig(depth=3)),
        ("state_propagation@3", StatePropagationConfig(), FixedConfig(depth=3)),
        ("mono_decreasing@3", MonoDecreasingConfig(form="cap"), FixedConfig(depth=3)),
    ],
)
def test_a_name_is_a_method_with_its_criterion(name, method, criterion):
    arm = parse_arm(name)
    assert (arm.name, arm.method, arm.criterion) == (name, method, criterion)
    assert arm.quant is None


def test_a_control_at_8_bits_brings_its_own_quantizer():
    arm = parse_arm("full_quant/int8")
    assert (arm.method, arm.criterion) == (FullQuantConfig(), NeverConfig())
    assert arm.quant == RtnInt8Config()


@pytest.mark.parametrize("name", ["no_exit~1", "no_exit~0.5"])
def test_no_exit_with_tests_never_exits(name):
    with pytest.raises(UserError, match=f"arms: {name} would exit: give a tau above 1"):
        parse_arm(name)


@pytest.mark.parametrize("name", ["hf_generate", "llama_cpp"])
def test_peers_have_no_method(name):
    assert parse_arm(name) == Arm(name)


@pytest.mark.parametrize(
    "name",
    [
        "river",
        "river@",
        "river@-1",
        "river@3.5",
        "river@3 ",
        "river~",
        "river~nan",
        "river~1e5",
        "mask~0.5",
        "no_exit@3",
        "no_exit~",
        "river@3/int8",
        "full_quant@0",
        "static_first",
        "static_ranked@3",
        "no_exit/eager",
        "hf",
        "",
    ],
)
def test_what_is_no_arm_is_refused_with_the_forms(name):
    with pytest.raises(UserError) as refused:
        parse_arm(name)
    message = str(refused.value)
    assert message.startswith(f"arms: {name!r} ")
    assert "\n" not in message
    for form in ("river@d", "river~tau", "static_last@k", "mask@d", "llama_cpp"):
        assert form in message


def names(arms):
    return [arm.name for arm in arms]


def test_the_default_arms():
    planned = ("river@0", "river@3", "river@8", "river@15", "static_first@3", "recompute@3")
    others = ("mask@3", "state_propagation@3", "mono_decreasing@3")
    expected = ["hf_generate", "no_exit", "full_quant", *planned, *others]
    assert names(parse_arms(None, 30, gguf=False)) == expected
    assert names(parse_arms(None, 30, gguf=True)) == [*expected, "llama_cpp"]


def test_default_depths_beyond_the_model_are_left_out():
    assert names(parse_arms(None, 8, gguf=False))[3:6] == ["river@0", "river@3", "river@8"]
    assert "river@15" not in names(parse_arms(None, 14, gguf=False))
    assert names(parse_arms(None, 2, gguf=False)) == [
        "hf_generate",
        "no_exit",
        "full_quant",
        "river@0",
    ]


@pytest.mark.parametrize("name", ["river@6", "static_first@6", "mask@99"])
def test_an_asked_for_depth_beyond_the_model_is_refused(name):
    assert names(parse_arms(("no_exit", name), 99, gguf=False)) == ["no_exit", name]
    with pytest.raises(UserError, match=f"{name}: this model has 5 layers"):
        parse_arms(("no_exit", name), 5, gguf=False)


def test_no_exit_is_timed_whether_asked_for_or_not():
    assert names(parse_arms(("river@1", "no_exit"), 5, False)) == ["river@1", "no_exit"]
    assert names(parse_arms(("river@1",), 5, False)) == ["no_exit", "river@1"]


def test_llama_cpp_needs_a_file():
    assert names(parse_arms(("no_exit", "llama_cpp"), 5, True)) == ["no_exit", "llama_cpp"]
    with pytest.raises(UserError, match="gguf="):
        parse_arms(("no_exit", "llama_cpp"), 5, False)
