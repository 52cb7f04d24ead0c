"""Random weights: seeded, of the stated shapes, without files and without a tokenizer."""

from __future__ import annotations

import math
import typing

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from river_llm.composition import load_config
from river_llm.config import ModelConfig, RtnInt4Config, ShapeName
from river_llm.errors import UserError
from river_llm.evaluation.ranking import rank_layers
from river_llm.evaluation.run import execute
from river_llm.evaluation.runtime import Runtime
from river_llm.exits import Never
from river_llm.models.adapter import BackboneAdapter, check_supported
from river_llm.models.loading import load_model
from river_llm.models.random_weights import SHAPES, Shape, random_fingerprint, random_model
from river_llm.sweeps import job
from tiny import PROMPT, run

CPU = torch.device("cpu")
TINY = Shape(
    layers=3,
    hidden=64,
    intermediate=96,
    heads=4,
    kv_heads=2,
    head_dim=32,
    vocab=97,
    tied=True,
    context=256,
    rope_theta=1e4,
)
SIZES = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def tiny(dtype=torch.float32, **settings):
    return random_model(TINY.config(), dtype, CPU, **settings)


def small(monkeypatch, shape: ShapeName = "smollm2_135m") -> ModelConfig:
    """A preset that holds a tiny shape, and the settings that ask for it."""
    monkeypatch.setitem(SHAPES, shape, TINY)
    return ModelConfig(name=f"random-{shape}", path="random", shape=shape)


def test_every_name_has_a_shape():
    assert set(SHAPES) == set(typing.get_args(ShapeName))


@pytest.mark.parametrize(
    ("shape", "parameters", "published"),
    [
        # L x (2 H D heads + 2 H D kv_heads + 3 H F + 2 H) + V H (twice if untied) + H, written out.
        (
            "smollm2_135m",
            30 * (2 * 576 * 576 + 2 * 576 * 192 + 3 * 576 * 1536 + 2 * 576) + 49152 * 576 + 576,
            134_515_008,
        ),
        (
            "llama3.2_1b",
            16 * (2 * 2048 * 2048 + 2 * 2048 * 512 + 3 * 2048 * 8192 + 2 * 2048)
            + 128256 * 2048
            + 2048,
            1_235_814_400,
        ),
        (
            "llama3.1_8b",
            32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096)
            + 2 * 128256 * 4096
            + 4096,
            8_030_261_248,
        ),
        (
            "phi4_mini",
            32 * (2 * 3072 * 3072 + 2 * 3072 * 1024 + 3 * 3072 * 8192 + 2 * 3072)
            + 200064 * 3072
            + 3072,
            3_836_021_760,
        ),
        (
            "ministral3_8b",
            34 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096)
            + 2 * 131072 * 4096
            + 4096,
            # Published as 8.4 B for the text part and 8.9 B with its vision encoder.
            None,
        ),
    ],
)
def test_the_presets_have_the_published_numbers_of_parameters(shape, parameters, published):
    config = SHAPES[shape].config()
    check_supported(config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert model.num_parameters() == parameters
    assert published in (None, parameters)
    if published is None:
        assert 8.35e9 < parameters < 8.55e9


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_weights_have_the_asked_dtype_and_the_shape_of_the_preset(dtype):
    model = tiny(dtype)
    assert {p.dtype for p in model.parameters()} == {dtype}
    attention, mlp = model.model.layers[2].self_attn, model.model.layers[2].mlp
    assert attention.q_proj.weight.shape == (4 * 32, 64)
    assert attention.v_proj.weight.shape == (2 * 32, 64)
    assert mlp.down_proj.weight.shape == (64, 96)
    assert len(model.model.layers) == 3
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.lm_head.weight.shape == (97, 64)
    assert not model.training


def test_an_untied_head_is_another_matrix():
    config = TINY.config()
    config.tie_word_embeddings = False
    model = random_model(config, torch.float32, CPU)
    assert not torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)


def test_a_seed_gives_the_same_weights_and_another_seed_others():
    first, same, other = tiny(seed=3), tiny(seed=3), tiny(seed=4)
    for (name, a), b, c in zip(
        first.named_parameters(), same.parameters(), other.parameters(), strict=True
    ):
        assert torch.equal(a, b), name
        assert torch.equal(a, c) == ("norm" in name), name


def test_matrices_differ_and_are_normal_with_one_over_root_k():
    model = tiny()
    layers = model.model.layers
    assert not torch.equal(layers[0].mlp.up_proj.weight, layers[0].mlp.gate_proj.weight)
    assert not torch.equal(layers[0].mlp.up_proj.weight, layers[1].mlp.up_proj.weight)
    for matrix, columns in ((layers[1].mlp.up_proj, 64), (layers[1].mlp.down_proj, 96)):
        scaled = matrix.weight * math.sqrt(columns)
        # 6144 values: the standard error of the deviation is 0.009, that of the mean 0.013.
        assert abs(scaled.std() - 1) < 0.04
        assert abs(scaled.mean()) < 0.05


def test_a_matrix_larger_than_a_chunk_is_filled_to_its_end():
    config = TINY.config()
    config.vocab_size = 70_000  # 4.48 M weights.
    weight = random_model(config, torch.bfloat16, CPU).lm_head.weight
    assert weight.numel() > 2**22
    tail = weight.view(-1)[2**22 :].float()
    assert abs(tail.std() * 8 - 1) < 0.01
    assert not torch.equal(tail, weight.view(-1)[: tail.numel()].float())


def test_lower_precisions_hold_the_same_numbers_rounded():
    wide, narrow = tiny(), tiny(torch.bfloat16)
    for (name, a), b in zip(wide.named_parameters(), narrow.parameters(), strict=True):
        assert torch.equal(a.bfloat16(), b), name


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(**SIZES),
        Qwen2Config(**SIZES),
        Qwen3Config(**SIZES, head_dim=32, attention_bias=True),
    ],
    ids=["llama", "qwen2", "qwen3"],
)
def test_nothing_is_left_of_the_empty_model(config):
    """The same as a model that was built whole and then given the same weights."""
    model = random_model(config, torch.float32, CPU)
    whole = AutoModelForCausalLM.from_config(config).eval()
    whole.load_state_dict(model.state_dict())
    for name, parameter in model.named_parameters():
        if "norm" in name and name.endswith("weight"):
            assert (parameter == 1).all(), name
        elif name.endswith("bias"):
            assert (parameter == 0).all(), name
        else:
            assert parameter.std() > 0, name
    ids = torch.tensor([PROMPT])
    with torch.no_grad():
        assert torch.equal(model(ids).logits, whole(ids).logits)


def test_states_and_logits_stay_finite_through_the_smallest_preset_and_it_generates():
    model = load_model(ModelConfig(name="random", path="random", shape="smollm2_135m"))
    assert model.adapter.dtype == torch.bfloat16
    assert (model.adapter.num_layers, model.adapter.vocab_size) == (30, 49_152)
    states = model.adapter.model(torch.tensor([PROMPT]), output_hidden_states=True)
    assert all(s.isfinite().all() for s in states.hidden_states)
    assert 0.5 < states.logits.float().std() < 2
    text = model.adapter.model.generate(
        torch.tensor([PROMPT]), max_new_tokens=4, do_sample=False, pad_token_id=0
    )
    assert text.shape == (1, len(PROMPT) + 4)


def test_a_random_model_has_no_tokenizer_no_chat_and_no_end(monkeypatch):
    model = load_model(small(monkeypatch))
    assert model.tokenizer is None
    assert model.chat is False
    assert model.eos_ids == frozenset()
    assert isinstance(model.adapter, BackboneAdapter)
    assert model.fingerprint == random_fingerprint("smollm2_135m", "bf16")


def test_the_fingerprint_tells_shape_dtype_and_seed_apart():
    prints = {
        random_fingerprint(shape, dtype, seed)
        for shape in SHAPES
        for dtype in ("bf16", "fp32")
        for seed in (0, 1)
    }
    assert len(prints) == 4 * len(SHAPES)


@pytest.mark.parametrize("method", ["no_exit", "full_quant"])
def test_its_river_decodes_and_leaves_nothing_on_disk(method, monkeypatch, tmp_path):
    monkeypatch.setenv("RIVER_LLM_CACHE", str(tmp_path / "cache"))
    small(monkeypatch)
    config = load_config(
        [
            "model=random",
            "model.shape=smollm2_135m",
            f"method={method}",
            "quant=rtn_int4",
            "quant.group_size=32",
            # A library that is compiled first here would lie in the cache.
            "engine=eager",
        ]
    )
    runtime = Runtime.load(config)
    decoder = runtime.decoder(config, Never(3), 32)
    tokens, logits, _ = run(decoder, [PROMPT], 6)
    assert len(tokens[0]) == 6
    assert logits.isfinite().all()
    assert runtime.river(config.quant) is runtime.river(RtnInt4Config(group_size=32))
    assert runtime.river(config.quant).backend_counts() == {"int4_cpu": 21}
    assert list(tmp_path.iterdir()) == []


def test_the_name_in_records_says_that_it_is_random():
    config = load_config(["model=random", "model.shape=llama3.2_1b"])
    assert config.model.name == "random-llama3.2_1b"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["model=random"], "model.path=random needs model.shape=.*llama3.2_1b"),
        (["model.path=random"], "model.path=random needs model.shape="),
        (["model=random", "model.shape=gpt2"], "model.shape='gpt2': choose one of .*phi4_mini"),
        (
            ["model=random", "model.shape=phi4_mini", "model.path=some/where"],
            "model.shape=phi4_mini is for model.path=random",
        ),
    ],
)
def test_mistakes_are_told_in_one_line(overrides, words):
    with pytest.raises(UserError, match=words) as caught:
        load_config(overrides)
    assert "\n" not in str(caught.value)


def test_chat_cannot_be_forced(monkeypatch):
    with pytest.raises(UserError, match="random weights have no chat template"):
        load_model(ModelConfig(name="r", path="random", shape="phi4_mini", chat="always"))


@pytest.mark.parametrize("run_it", [execute, job._run], ids=["run", "sweep"])
def test_there_is_nothing_to_evaluate(run_it, monkeypatch, tmp_path):
    def refused(*_):
        raise AssertionError("weights were made for nothing")

    monkeypatch.setattr("river_llm.evaluation.runtime.load_model", refused)
    config = load_config(["model=random", "model.shape=llama3.2_1b", f"output.dir={tmp_path}"])
    with pytest.raises(UserError, match=r"no tokenizer.*bench_decode") as caught:
        run_it(config)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_layers_cannot_be_ranked_on_a_text(monkeypatch):
    small(monkeypatch)
    config = load_config(["model=random", "model.shape=smollm2_135m"])
    with pytest.raises(UserError, match="static_ranked ranks layers on a text"):
        rank_layers(Runtime.load(config), config)
