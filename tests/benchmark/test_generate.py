"""transformers' generate behind a prompt that is fed once."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from transformers import GenerationConfig

from river_llm.benchmark import hf_alone
from river_llm.benchmark.arms import HF_GENERATE
from river_llm.benchmark.transformers_arm import TransformersArm, faster_cache, seconds_alone
from river_llm.config import ModelConfig
from river_llm.errors import UserError
from river_llm.models import attention, generate
from river_llm.models.adapter import BackboneAdapter
from river_llm.models.generate import CACHES, Generate
from tiny import PROMPT, tiny_model

STEPS = 6


def plain_tokens(model, count):
    """What generate gives without a cache of its own making."""
    ids = torch.tensor([PROMPT])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        do_sample=False,
        use_cache=False,
        pad_token_id=0,
    )
    return out[0, len(PROMPT) :].tolist()


@pytest.fixture
def widths(monkeypatch):
    """Tokens in each forward of the tiny models, appended to the list given back."""
    seen = []

    def watch(model):
        model.model.layers[0].register_forward_pre_hook(
            lambda module, args: seen.append(args[0].shape[1])
        )
        return seen

    return watch


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_each_pass_makes_the_same_steps_from_the_prompt(cache, kind, widths):
    model = tiny_model(kind)
    expected = plain_tokens(model, STEPS + 1)
    fed = widths(model)
    timed = Generate(model, cache, PROMPT, STEPS)
    assert fed == [len(PROMPT)] + [1] * STEPS
    assert timed.tokens == expected
    for _ in range(3):
        fed.clear()
        assert timed.timed_pass() > 0
        # The prompt's last token, whose step is not timed, and the steps.
        assert fed == [1] * (STEPS + 1)
        assert timed.tokens == expected


@pytest.mark.parametrize("cache", CACHES)
def test_the_steps_behind_the_first_token_are_on_the_clock(cache, monkeypatch):
    """Each forward takes 2 seconds, by a clock that starts at a forward; 100 for the prompt."""
    model = tiny_model("llama")
    clock = {"now": 0.0}
    monkeypatch.setattr(generate.time, "perf_counter", lambda: clock["now"])

    def cost(module, args):
        clock["now"] += 100.0 if args[0].shape[1] > 1 else 2.0

    model.model.layers[0].register_forward_pre_hook(cost)
    timed = Generate(model, cache, PROMPT, STEPS)
    assert timed.prefill_seconds == 100.0
    assert timed.timed_pass() == STEPS * 2.0


@pytest.mark.parametrize("cache", CACHES)
def test_forced_tokens_are_fed_and_emitted(cache):
    model = tiny_model("llama")
    tokens = [(7 * n + 3) % 97 for n in range(STEPS + 1)]
    assert tokens != plain_tokens(model, STEPS + 1)
    fed = []
    model.model.embed_tokens.register_forward_pre_hook(
        lambda module, args: fed.append(args[0][0].tolist())
    )
    timed = Generate(model, cache, PROMPT, STEPS, tokens)
    assert timed.tokens == tokens
    for _ in range(2):
        fed.clear()
        timed.timed_pass()
        assert fed == [[token] for token in [PROMPT[-1], *tokens[:-1]]]
        assert timed.tokens == tokens


def test_end_tokens_and_settings_of_the_checkpoint_change_nothing():
    model = tiny_model("llama")
    expected = plain_tokens(model, STEPS + 1)
    own = GenerationConfig(eos_token_id=expected[1], repetition_penalty=5.0, max_length=9)
    model.generation_config = own
    assert Generate(model, "dynamic", PROMPT, STEPS).tokens == expected
    assert model.generation_config is own


def test_the_arm_runs_on_sdpa_and_puts_the_attention_back():
    adapter = BackboneAdapter(tiny_model("llama"))
    used = []
    adapter.layers[0].self_attn.register_forward_pre_hook(
        lambda *_: used.append(adapter.model.config._attn_implementation)
    )
    arm = TransformersArm(adapter, "static", STEPS)
    assert arm.name == f"{HF_GENERATE}/static"
    arm.prefill(PROMPT)
    arm.timed_pass()
    assert set(used) == {"sdpa"}
    assert adapter.model.config._attn_implementation == attention.NAME
    # All 5 layers and the head of the tiny llama in fp32 and the mean of 8..13 slots: see
    # tests/test_traffic.py for the sum in 16 bits.
    assert sum(arm.bytes_per_token().values()) == 2 * (308480 + 12672 + 640 * 10.5)


def test_of_the_caches_the_faster_one_counts():
    records = {
        "no_exit": {"seconds": [1.0]},
        "hf_generate/dynamic": {"seconds": [1.0, 9.0, 9.0], "cache": "dynamic"},
        "hf_generate/static": {"seconds": [5.0, 5.0, 50.0], "cache": "static"},
    }
    assert faster_cache(records) == {
        "no_exit": {"seconds": [1.0]},
        "hf_generate": {
            "seconds": [5.0, 5.0, 50.0],
            "cache": "static",
            "cache_median_seconds": {"dynamic": 9.0, "static": 5.0},
        },
    }


def test_the_process_of_its_own_knows_nothing_of_this_project():
    script = (
        "import sys, river_llm.benchmark.hf_alone\n"
        "print(sorted(n for n in sys.modules if n.startswith('river_llm')))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.replace("'", '"')) == [
        "river_llm",
        "river_llm.benchmark",
        "river_llm.benchmark.hf_alone",
        "river_llm.errors",
        "river_llm.models",
        "river_llm.models.checkpoint",
        "river_llm.models.generate",
    ]


def test_a_process_of_its_own_loads_the_same_model(model):
    """The child gets what the parent has, and times both caches."""
    from transformers import AutoModelForCausalLM

    own = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    config = ModelConfig(name="llama", path=str(model), dtype="fp32")
    seconds = seconds_alone(own, config, PROMPT, 2, 3, 0)
    assert {cache: len(passes) for cache, passes in seconds.items()} == {
        "dynamic": 3,
        "static": 3,
    }
    assert all(second > 0 for passes in seconds.values() for second in passes)


def test_a_process_that_fails_is_told_in_one_line(tmp_path):
    config = ModelConfig(name="llama", path=str(tmp_path / "nothing"))
    with pytest.raises(UserError) as refused:
        seconds_alone(tiny_model("llama"), config, PROMPT, 2, 1, 0)
    assert str(refused.value).startswith("hf_alone=true: ")
    assert "\n" not in str(refused.value)


def test_random_weights_are_drawn_from_the_configuration(tmp_path):
    model = tiny_model("qwen3")
    model.config.save_pretrained(tmp_path)
    request = hf_alone.Request(
        folder=str(tmp_path),
        random=True,
        dtype="bfloat16",
        device="cpu",
        threads=1,
        prompt=PROMPT,
        steps=2,
        rounds=1,
        seed=3,
    )
    drawn, again = hf_alone.load(request), hf_alone.load(request)
    assert drawn.dtype == torch.bfloat16
    assert drawn.config._attn_implementation == "sdpa"
    shapes = {name: p.shape for name, p in model.named_parameters()}
    assert {name: p.shape for name, p in drawn.named_parameters()} == shapes
    for one, other in zip(drawn.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "qwen3"
