"""Regions: their blocks and buckets, what fills a bucket, what a capture leaves, what leaks."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from river_llm.cache import SlotCache, Source
from river_llm.config import CudaGraphsConfig
from river_llm.decoding import NoExit
from river_llm.engine.build import resolve_engine
from river_llm.engine.cuda_graphs import CudaGraphsExecutor
from river_llm.engine.eager import EagerExecutor
from river_llm.engine.executor import EngineUnavailable, StepInputs
from river_llm.engine.regions import RegionExecutor, blocks
from river_llm.engine.weights import ResidentLayers
from river_llm.errors import UserError
from river_llm.exits import Never
from river_llm.models.adapter import BackboneAdapter
from river_llm.models.loading import model_fingerprint
from river_llm.quant.river import build_river
from tiny import COPIED, LAYERS, PROMPT, QUANT, run, tiny_model
from traced import TracedExecutor, TracedRegions

SLOTS = 40


class Repeated(RegionExecutor):
    """Captures by running a region several times, as warm-ups do; replays by running it."""

    token_buckets = (1, 4, 12)
    first_extent = 16
    name = "repeated"
    runs = 3

    def __init__(self, *parts) -> None:
        super().__init__(*parts)
        self.captures = 0

    def _capture(self, body):
        self.captures += 1
        for _ in range(self.runs):
            body()
        return body


class Once(Repeated):
    runs = 0


class Forgotten(Repeated):
    """Replays nothing: what is left is what the capture left."""

    def _capture(self, body):
        super()._capture(body)
        return lambda: None


def make(kind, rivers, *, batch=1, quant=QUANT, criterion=None):
    """An executor whose cache holds random entries, written by the backbone."""
    adapter = BackboneAdapter(tiny_model("qwen3"))
    river = build_river(
        adapter, quant, model_fingerprint(adapter.model), cache=rivers, kernels=False
    )
    sizes = (LAYERS, batch, adapter.kv_heads, SLOTS, adapter.head_dim)
    cache = SlotCache(*sizes, adapter.dtype, adapter.device)
    backbone = ResidentLayers(adapter.layers)
    executor = kind(adapter, cache, criterion or Never(LAYERS), backbone, river, adapter.head)
    generator = torch.Generator().manual_seed(1)
    for buffer in (cache.k, cache.v):
        buffer.copy_(torch.randn(buffer.shape, generator=generator))
    cache.source.fill_(int(Source.BACKBONE))
    return executor


def state(executor):
    cache = executor.cache
    return [cache.k.clone(), cache.v.clone(), cache.source.clone(), executor.hidden()]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


# --- blocks and buckets -----------------------------------------------------------------------


@pytest.mark.parametrize("layers", [1, 2, 5, 16, 30, 32, 36])
def test_blocks_cover_every_range_with_few_regions(layers):
    regions = set()
    for first in range(layers + 1):
        for last in range(first, layers + 1):
            found = list(blocks(first, last))
            assert [n for block in found for n in range(*block)] == list(range(first, last))
            regions |= set(found)
    assert len(regions) < 2 * layers


def test_blocks_of_a_river_behind_depth_three():
    assert list(blocks(3, 16)) == [(3, 4), (4, 8), (8, 16)]


def test_steps_of_one_bucket_share_their_regions(rivers):
    executor = make(Once, rivers)
    counts = []
    for slot in (3, 4, 15, 16, 17, 31, 32):
        executor.begin(StepInputs(slots=[slot], pad=[0], ids=[[5]]))
        executor.backbone(0, LAYERS)
        counts.append(executor.captures)
    # Ids, and layers 0 to 3 and 4; again where 17, and where 33 slots are read.
    assert counts == [3, 3, 3, 6, 6, 6, 9]
    frames = [(tokens, extent) for tokens, extent, _ in executor._frames]
    assert frames == [(1, 16), (1, 32), (1, SLOTS)]


def test_tokens_come_in_buckets(rivers):
    executor = make(Once, rivers)
    for count in (1, 2, 4, 5, 12):
        executor.begin(StepInputs(slots=range(count), pad=[0], ids=[[5] * count]))
    assert [tokens for tokens, *_ in executor._frames] == [1, 4, 12]
    with pytest.raises(ValueError, match="no narrow pass"):
        executor.begin(StepInputs(slots=range(13), pad=[0], ids=[[5] * 13]))


def test_a_prompt_beyond_the_buckets_runs_eagerly(rivers):
    executor = make(TracedExecutor, rivers)
    executor.begin(StepInputs(slots=range(13), pad=[0], ids=[[5] * 13]))
    executor.backbone(0, LAYERS)
    executor.choose()
    assert not executor.narrow._frames
    assert (executor.narrow.compile_seconds, executor.reads) == (0.0, 1)


# --- fill -------------------------------------------------------------------------------------


@pytest.mark.parametrize("pad", [[0, 0], [0, 4]], ids=["whole", "padded"])
@pytest.mark.parametrize("slots", [range(6, 8), range(14, 17), range(20, 25)])
@pytest.mark.parametrize("way", ["backbone", "river", "kv_only"])
def test_what_fills_a_bucket_reaches_no_slot_and_no_score(way, slots, pad, rivers):
    """Buckets of 4 and 12 tokens for 2, 3 and 5, beside the eager engine, which fills nothing."""
    results = []
    for kind in (EagerExecutor, TracedRegions):
        executor = make(kind, rivers, batch=2)
        before = state_of_slots(executor.cache, slots)
        executor.begin(
            StepInputs(slots=slots, pad=pad, ids=[[7 + n for n in slots]] * 2, pool="mean")
        )
        executor.backbone(0, 2)
        if way != "kv_only":
            getattr(executor, way)(2, LAYERS)
        else:
            executor.kv_only(2, LAYERS)
        assert same(state_of_slots(executor.cache, slots), before)
        written = [buffer[..., list(slots), :] for buffer in (executor.cache.k, executor.cache.v)]
        source = executor.cache.source[:, :, list(slots)]
        results.append([*written, executor.hidden(), executor.logits(2), source])
    for right, ours in zip(*results, strict=True):
        assert torch.allclose(right.float(), ours.float(), atol=1e-4)


def state_of_slots(cache, slots):
    """Everything but these slots."""
    others = [n for n in range(SLOTS) if n not in slots]
    return [cache.k[..., others, :], cache.v[..., others, :], cache.source[..., others]]


@pytest.mark.parametrize("pool", ["last", "mean"])
def test_nan_in_the_fill_stays_there(pool, rivers):
    class Sum(Never):
        def score(self, before, after, head):
            return after.double().sum(-1)

    executor = make(Once, rivers, criterion=Sum(LAYERS))
    executor.begin(StepInputs(slots=range(3), pad=[0], ids=[[5, 6, 7]], pool=pool))
    executor.backbone(0, 1)
    states = executor.hidden()[0].double()
    executor._frame.hidden[:, 0] = torch.nan
    right = states[-1].sum() if pool == "last" else states.mean(0).sum()
    assert executor.score().item() == pytest.approx(right.item(), rel=1e-5)
    assert torch.isfinite(executor.logits(3)).all()


# --- capturing --------------------------------------------------------------------------------


STEPS = {
    "backbone": lambda executor: executor.backbone(0, LAYERS),
    "river": lambda executor: executor.river(1, 4),
    "kv_only": lambda executor: executor.kv_only(0, LAYERS),
    "choice": lambda executor: executor.choose(),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_capture_puts_everything_back(step, rivers):
    executor = make(Forgotten, rivers)
    executor.begin(StepInputs(slots=[8], pad=[0], ids=[[5]]))
    frame = executor._frame
    # Else zeros would be compared with zeros.
    frame.hidden.normal_(generator=torch.Generator().manual_seed(2))
    frame.previous.fill_(3.0)
    frame.steps.copy_(torch.tensor([5, 8, 0]))
    before = [*state(executor), frame.previous.clone(), frame.logits.clone(), frame.choice.clone()]
    STEPS[step](executor)
    after = [*state(executor), frame.previous, frame.logits, frame.choice]
    assert executor.captures > 1
    assert same(before, after)


def sequence(executor):
    executor.begin(StepInputs(slots=[8], pad=[0], ids=[[5]]))
    executor.backbone(0, 3)
    executor.river(3, LAYERS)
    return [*state(executor), executor.choose().logits]


def test_running_a_region_several_times_to_capture_it_changes_nothing(rivers):
    assert same(sequence(make(Once, rivers)), sequence(make(Repeated, rivers)))


def test_buffers_that_are_not_put_back_are_noticed(rivers, monkeypatch):
    right = sequence(make(Once, rivers))
    monkeypatch.setattr("river_llm.engine.regions.Frame.snapshot", lambda self: lambda: None)
    assert not same(right, sequence(make(Repeated, rivers)))


def test_slots_that_are_not_put_back_are_noticed(rivers, monkeypatch):
    monkeypatch.setattr(SlotCache, "snapshot", lambda self, *_: lambda: None)
    with pytest.raises(AssertionError):
        test_a_capture_puts_everything_back("backbone", rivers)


# --- what a trace cannot hide -----------------------------------------------------------------


def texts(kind, rivers):
    executor = make(kind, rivers, quant=COPIED)
    return run(NoExit(executor, executor.cache), [PROMPT], 12)[0]


def test_a_slot_from_the_host_comes_out_wrong_in_the_next_step(rivers, monkeypatch):
    right = texts(EagerExecutor, rivers)
    assert texts(TracedExecutor, rivers) == right
    place = RegionExecutor._place

    def leaking(self):
        self._frame.target.fill_(self._inputs.slots[-1])
        place(self)

    monkeypatch.setattr(RegionExecutor, "_place", leaking)
    assert texts(TracedExecutor, rivers) != right


def test_a_read_of_the_host_inside_a_region_is_refused(rivers, monkeypatch):
    place = RegionExecutor._place

    def reading(self):
        if self._frame.target.max().item() >= 0:
            place(self)

    monkeypatch.setattr(RegionExecutor, "_place", reading)
    with pytest.raises(RuntimeError, match="get value out of a tracing tensor"):
        texts(TracedExecutor, rivers)


# --- who is refused ---------------------------------------------------------------------------


def test_layers_that_come_and_go_are_refused(rivers):
    executor = make(EagerExecutor, rivers)
    parts = (executor.adapter, executor.cache, executor.criterion)
    build = partial(TracedExecutor, *parts, river=None, head=executor.head)
    build(backbone=ResidentLayers(executor.adapter.layers))
    with pytest.raises(EngineUnavailable, match="must lie in memory"):
        build(backbone=object())


def test_cuda_graphs_need_a_cuda_device(rivers):
    with pytest.raises(EngineUnavailable, match="run on a CUDA device, not on cpu"):
        make(CudaGraphsExecutor, rivers)
    adapter = BackboneAdapter(tiny_model("llama"))
    layers = ResidentLayers(adapter.layers)
    with pytest.raises(UserError, match="engine=cuda_graphs cannot serve here: CUDA graphs run"):
        resolve_engine(CudaGraphsConfig(), adapter, layers, None, adapter.head)
