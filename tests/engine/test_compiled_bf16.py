"""Compiled against eager in bf16: logits within a stated error, tokens mostly equal.

Both round to bf16, at places that differ: 2^-9 a rounding, some tens of them on the way through 4
layers. When this was written, logits were at most 2 % apart (relative L2); with one wrong matrix
24 % and more.
"""

from __future__ import annotations

import pytest
import torch
from pair import LAYERS, both, error, ids, make_model, share_entries, through

from river_llm.cache import Source
from river_llm.config import HqqInt4Config, NoQuantConfig, RtnInt4Config, RtnInt8Config
from river_llm.engine.executor import StepInputs
from river_llm.quant.linear import KernelLinear

TOLERANCE = 0.03
PROMPT, STEPS = 9, 24
QUANTS = {
    "none": NoQuantConfig(),
    "int8": RtnInt8Config(),
    "rtn 32": RtnInt4Config(group_size=32),
    "rtn 64": RtnInt4Config(group_size=64),
    "hqq 64": HqqInt4Config(group_size=64),
}
DEPTHS = {"backbone": [LAYERS], "river": [0], "mixed": [4, 1, 3, 0, 2]}


def decode(pair, depths) -> tuple[list[float], int]:
    """Teacher-forced on the eager engine's tokens: error at each step, tokens that are equal."""
    errors, equal = [], 0
    fed, slots = ids(1, PROMPT), range(PROMPT)
    for step in range(STEPS):
        inputs = StepInputs(slots=slots, pad=[0], ids=fed)
        for executor in pair:
            through(executor, inputs, depths[step % len(depths)])
        right, ours = (executor.choose() for executor in pair)
        errors.append(error(ours.logits, right.logits))
        equal += ours.tokens == right.tokens
        fed, slots = [right.tokens], range(PROMPT + step, PROMPT + step + 1)
    return errors, equal


@pytest.fixture(scope="module")
def models():
    made: dict[tuple[int, str], object] = {}

    def get(head_dim: int, kind: str):
        if (head_dim, kind) not in made:
            made[head_dim, kind] = make_model(head_dim, torch.bfloat16, kind)
        return made[head_dim, kind]

    return get


@pytest.mark.parametrize("way", DEPTHS)
@pytest.mark.parametrize("quant", QUANTS)
@pytest.mark.parametrize(("head_dim", "kind"), [(64, "llama"), (128, "qwen3")])
def test_compiled_equals_eager_but_for_rounding(head_dim, kind, quant, way, models, rivers):
    pair = both(models(head_dim, kind), rivers, QUANTS[quant])
    errors, equal = decode(pair, DEPTHS[way])
    assert max(errors) < TOLERANCE
    assert equal >= STEPS - 4
    assert torch.equal(pair[0].cache.source, pair[1].cache.source)


@pytest.mark.parametrize("name", ["q", "k", "v", "o", "gate", "up", "down"])
@pytest.mark.parametrize("quant", ["none", "int8", "rtn 64"])
def test_a_river_whose_one_matrix_is_another_layers_is_noticed(name, quant, models, rivers):
    pair = both(models(64, "llama"), rivers, QUANTS[quant])
    records = pair[1]._layer_records[Source.RIVER]
    # ctypes copies the record.
    setattr(records[2], name, getattr(records[1], name))
    errors, _ = decode(pair, DEPTHS["river"])
    assert max(errors) > 4 * TOLERANCE


def test_rivers_of_this_file_run_on_kernels(models, rivers):
    """Else the int4 and int8 cases above would be about dense copies."""
    for quant in ("int8", "rtn 32", "rtn 64", "hqq 64"):
        pair = both(models(64, "llama"), rivers, QUANTS[quant])
        layer = pair[0]._stacks[Source.RIVER].acquire(0, 1)
        assert sum(isinstance(module, KernelLinear) for module in layer.modules()) == 7


# --- attention over several stretches of 64 slots, in float32 -------------------------------

CLOSE = 1e-4


def compare_steps(pair, start: int, steps: int, pad: list[int], gaps: bool) -> None:
    """Narrow passes of one and of two tokens from slot `start` on."""
    slot = start
    for step in range(steps):
        wide = 1 + step % 2
        fed = ids(len(pad), wide, seed=100 + step)
        inputs = StepInputs(slots=range(slot, slot + wide), pad=pad, ids=fed, gaps=gaps)
        for executor in pair:
            through(executor, inputs, LAYERS, river=False)
        right, ours = (executor.logits() for executor in pair)
        assert error(ours, right) < CLOSE, f"slot {slot}"
        slot += wide


def filled(pair, prompt: int, pad: list[int]) -> None:
    """A prompt in the eager engine, whose entries both get: it is too wide for a narrow pass."""
    eager, narrow = pair
    fed = ids(len(pad), prompt)
    through(eager, StepInputs(slots=range(prompt), pad=pad, ids=fed), LAYERS, river=False)
    share_entries(eager, narrow)


@pytest.mark.parametrize("head_dim", [32, 64, 80, 256])
@pytest.mark.parametrize("prompt", [61, 125, 190])
def test_extents_across_the_borders_of_stretches(prompt, head_dim, rivers):
    pair = both(make_model(head_dim, torch.float32), rivers, slots=210)
    filled(pair, prompt, [0])
    compare_steps(pair, prompt, 8, [0], gaps=False)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_left_padding_over_whole_stretches(kind, rivers):
    pad = [0, 64, 150, 63, 128]
    pair = both(make_model(64, torch.float32, kind), rivers, batch=len(pad), slots=210)
    filled(pair, 190, pad)
    compare_steps(pair, 190, 6, pad, gaps=False)
    assert torch.equal(pair[0].cache.source, pair[1].cache.source)


def test_gaps_over_whole_stretches(rivers):
    pad = [0, 70]
    pair = both(make_model(64, torch.float32), rivers, batch=2, slots=210)
    filled(pair, 190, pad)
    for executor in pair:
        source = executor.cache.source
        source[1, :, 64:128] = 0
        source[2, :, :] = 0
        source[3, 0, ::3] = 0
        # What stands in an empty slot is nothing to anybody: the compiled engine reads none of it.
    narrow = pair[1].cache
    hidden = (narrow.source == 0)[:, :, None, :, None]
    narrow.v.masked_fill_(hidden, float("nan"))
    narrow.k.masked_fill_(hidden, float("nan"))
    compare_steps(pair, 190, 8, pad, gaps=True)


@pytest.mark.parametrize("part", ["gaps", "pad"])
def test_what_is_hidden_by_gaps_and_padding_matters(part, rivers):
    """The two tests above would notice an engine that sees everything."""
    pair = both(make_model(64, torch.float32), rivers, batch=2, slots=210)
    filled(pair, 190, [0, 70])
    for executor in pair:
        executor.cache.source[1, :, 64:128] = 0
    fed = ids(2, 1, seed=7)
    eager, narrow = pair
    through(eager, StepInputs([190], [0, 70], ids=fed, gaps=True), LAYERS, river=False)
    wrong = {
        "gaps": StepInputs([190], [0, 70], ids=fed),
        "pad": StepInputs([190], [0, 0], ids=fed, gaps=True),
    }[part]
    through(narrow, wrong, LAYERS, river=False)
    assert error(narrow.logits(), eager.logits()) > 10 * CLOSE
