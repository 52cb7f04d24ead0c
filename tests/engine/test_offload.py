"""Offloaded backbone layers: the same numbers as in memory, their schedule, and their files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import tiny
from river_llm.cache import SlotCache
from river_llm.config import AutoConfig, CompiledConfig, EagerConfig
from river_llm.decoding import River, Static
from river_llm.engine.layer_links import FORMAT, Layout, Link, MappedLink, PinnedLink, open_layers
from river_llm.engine.offload import OffloadedLayers, engine_for_offload, offload_layers
from river_llm.engine.weights import ResidentLayers
from river_llm.errors import UserError
from river_llm.exits import Confidence, Fixed, Similarity
from river_llm.models.adapter import BackboneAdapter
from river_llm.models.loading import lay_together, model_fingerprint
from river_llm.models.release import release_linears
from river_llm.quant.river import build_river
from tiny import LAYERS, PROMPT, QUANT, SLOTS, Scripted, run, tiny_model

STEPS = 12
TAUS = {"llama": 0.9, "llama_bias": 0.9, "qwen3": 0.8}
"""With these, tokens leave at several depths, and some nowhere."""

# Captured regions refuse layers that come and go.
SERVING = pytest.mark.parametrize("engine", ["eager", "compiled", "mixed"], indirect=True)


class Arms:
    """A model with its river; decoders over any backbone stack."""

    def __init__(self, kind, rivers):
        model = tiny_model(kind)
        lay_together(model)
        self.adapter = BackboneAdapter(model)
        self.fingerprint = model_fingerprint(model)
        self.river = build_river(self.adapter, QUANT, self.fingerprint, cache=rivers, kernels=False)

    def executor(self, criterion, backbone=None):
        adapter = self.adapter
        cache = SlotCache(
            LAYERS, 1, adapter.kv_heads, SLOTS, adapter.head_dim, adapter.dtype, adapter.device
        )
        stack = backbone or ResidentLayers(adapter.layers)
        build = tiny.ENGINES[tiny.engine]
        return build(adapter, cache, criterion, stack, self.river, adapter.head), cache

    def offload(self, first, cache):
        """The stack, after the model's own deep linears have left memory."""
        stack = offload_layers(self.adapter, first, self.fingerprint, cache)
        release_linears(self.adapter, stack.layers, first)
        return stack


CRITERIA = {
    "similarity": lambda kind: Similarity(LAYERS, TAUS[kind]),
    "confidence": lambda kind: Confidence(LAYERS, 0.3),
    "planned": lambda kind: Scripted(),
}


@pytest.mark.parametrize("first", [0, 1, 2, 4])
@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("kind", ["llama", "qwen3", "llama_bias"])
@SERVING
def test_what_is_fetched_gives_the_same_numbers(kind, criterion, first, engine, rivers, tmp_path):
    arms = Arms(kind, rivers)
    executor, cache = arms.executor(CRITERIA[criterion](kind))
    expected = run(River(executor, cache), [PROMPT], STEPS)
    kept = cache.k.clone()
    stack = arms.offload(first, tmp_path)
    executor, cache = arms.executor(CRITERIA[criterion](kind), stack)
    tokens, logits, depths = run(River(executor, cache), [PROMPT], STEPS)
    assert tokens == expected[0]
    assert depths == expected[2]
    assert torch.equal(logits, expected[1])
    assert torch.equal(cache.k, kept)
    # Several depths on both sides of k, so that something was fetched and something was not.
    assert len(set(depths)) >= 3
    assert max(depths) > first


@SERVING
def test_a_prompt_in_the_backbone_streams_every_layer(engine, rivers, tmp_path):
    arms = Arms("llama", rivers)
    executor, cache = arms.executor(Fixed(LAYERS, 1))
    expected = run(River(executor, cache, prefill="backbone"), [PROMPT], 4)
    stack = arms.offload(2, tmp_path)
    executor, cache = arms.executor(Fixed(LAYERS, 1), stack)
    decoder = River(executor, cache, prefill="backbone")
    before = stack.fetches()
    first = decoder.prefill([PROMPT])
    after = stack.fetches()
    assert after.needed - before.needed == LAYERS - 2
    # Building the compiled engine came to 2, 3, 4 and left 3 and 4: 2 takes the place of 4.
    assert after.layers - before.layers == (3 if engine == "eager" else 2)
    tokens = [first.tokens[0][0]] + [decoder.step().tokens[0][0] for _ in range(3)]
    assert tokens == expected[0][0]
    assert stack.fetches() == after


@SERVING
def test_needed_layers_follow_from_the_depths(engine, rivers, tmp_path):
    arms = Arms("llama", rivers)
    stack = arms.offload(2, tmp_path)
    executor, cache = arms.executor(Scripted((1, 2, 3, 4, 5, 2, 4)), stack)
    decoder = River(executor, cache)
    decoder.prefill([PROMPT])
    needed = []
    for _ in range(7):
        before = stack.fetches().needed
        decoder.step()
        needed.append(stack.fetches().needed - before)
    assert needed == [0, 0, 1, 2, 3, 0, 2]


@SERVING
def test_a_static_method_reaches_the_last_layers_alone(engine, rivers, tmp_path):
    arms = Arms("llama", rivers)
    executor, cache = arms.executor(Fixed(LAYERS, 0))
    expected = run(Static(executor, cache, [0, 3, 4]), [PROMPT], 5)
    stack = arms.offload(3, tmp_path)
    executor, cache = arms.executor(Fixed(LAYERS, 0), stack)
    tokens, logits, _ = run(Static(executor, cache, [0, 3, 4]), [PROMPT], 5)
    assert tokens == expected[0]
    assert torch.equal(logits, expected[1])


# --- the schedule ---------------------------------------------------------------------------


class Recorded(Link):
    """Writes down what it is asked; `ahead`: it fills ahead, as a link with a stream does."""

    def __init__(self, ahead):
        self.ahead = ahead
        self.calls = []

    def fill(self, layer, slot):
        self.calls.append(("fill", layer, slot))

    def prefetch(self, layer, slot):
        self.calls.append(("prefetch", layer, slot))
        return self.ahead

    def wait(self, slot):
        self.calls.append(("wait", slot))


def schedule(ahead, *acquired, layers=6, first=2):
    link = Recorded(ahead)
    modules = [nn.Identity() for _ in range(layers)]
    stack = OffloadedLayers(modules[:first], modules[first:], link, 10)
    per_layer = []
    for layer in acquired:
        assert stack.acquire(layer, 1) is modules[layer]
        per_layer.append(link.calls[:])
        link.calls.clear()
    return per_layer, stack


def test_the_next_layer_is_brought_before_the_present_one_is_computed():
    calls, stack = schedule(True, 0, 1, 2, 3, 4, 5)
    assert calls == [
        [],
        [],
        [("fill", 2, 0), ("wait", 0), ("prefetch", 3, 1)],
        [("wait", 1), ("prefetch", 4, 0)],
        [("wait", 0), ("prefetch", 5, 1)],
        [("wait", 1)],
    ]
    assert stack.fetches() == (4, 4)


def test_a_link_without_a_stream_fills_when_a_layer_is_needed():
    calls, stack = schedule(False, 2, 3, 4)
    assert calls == [
        [("fill", 2, 0), ("wait", 0), ("prefetch", 3, 1)],
        [("fill", 3, 1), ("wait", 1), ("prefetch", 4, 0)],
        [("fill", 4, 0), ("wait", 0), ("prefetch", 5, 1)],
    ]
    assert stack.fetches() == (3, 3)


def test_a_layer_that_is_still_there_is_not_brought_again():
    calls, stack = schedule(True, 2, 0, 1, 2, 3, 0, 2)
    assert calls[3] == [("wait", 0)]
    # Layer 4 took the place of layer 2 when layer 3 was acquired.
    assert calls[4] == [("wait", 1), ("prefetch", 4, 0)]
    assert calls[6] == [("fill", 2, 0), ("wait", 0)]
    # 2 and 3 by the first, 4, and 2 again; 3 is still there.
    assert stack.fetches() == (4, 4)


def test_a_layer_used_after_another_took_its_place_is_caught(rivers, tmp_path):
    arms = Arms("llama", rivers)
    stack = arms.offload(1, tmp_path)
    hidden = torch.randn(1, 1, arms.adapter.hidden_size)
    cos, sin = arms.adapter.rotary_table(1)

    class Through:
        def update(self, k, v, *_, **__):
            return k, v

    def call(layer):
        arms.adapter.run_layer(
            layer, hidden, None, (cos[None], sin[None]), Through(), torch.zeros(1, 1).long()
        )

    early = stack.acquire(1, 1)
    call(early)
    stack.acquire(2, 1)
    call(early)
    stack.acquire(3, 1)
    with pytest.raises(RuntimeError, match=r"layer 1 is used after .* holds layer 3"):
        call(early)
    call(stack.acquire(1, 1))


class Streams:
    """Stands in for CUDA's streams and events, and writes down in which order they are asked.

    What a GPU would make of that order is not shown by it.
    """

    def __init__(self, monkeypatch):
        self.log = log = []

        class Stream:
            def __init__(self, name="copy"):
                self.name = name

            def wait_stream(self, other):
                log.append(f"{self.name} waits for all of {other.name}")

            def wait_event(self, event):
                log.append(f"{self.name} waits for event {event.number}")

        class Event:
            count = 0

            def __init__(self):
                self.number = Event.count
                Event.count += 1

            def record(self, stream):
                log.append(f"event {self.number} on {stream.name}")

        main, active = Stream("main"), []

        class Under:
            def __init__(self, stream):
                self.stream = stream

            def __enter__(self):
                active.append(self.stream)

            def __exit__(self, *_):
                active.pop()

        copy = torch.Tensor.copy_

        def copied(target, source, non_blocking=False):
            log.append(f"copy on {active[-1].name if active else 'main'}, {non_blocking=}")
            return copy(target, source)

        monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream())
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: main)
        monkeypatch.setattr(torch.cuda, "stream", Under)
        monkeypatch.setattr(torch.Tensor, "copy_", copied)
        kept = lambda tensor, stream: log.append(f"kept for {stream.name}")  # noqa: E731
        monkeypatch.setattr(torch.Tensor, "record_stream", kept)


def test_copies_and_computing_wait_for_one_another(monkeypatch):
    host = torch.arange(4, dtype=torch.uint8)[:, None].expand(4, 3).contiguous()
    staging = [torch.zeros(3, dtype=torch.uint8) for _ in range(2)]
    streams = Streams(monkeypatch)
    link = PinnedLink(host, 2, staging)
    assert streams.log == ["kept for copy"] * 2
    streams.log.clear()
    modules = [nn.Identity() for _ in range(6)]
    stack = OffloadedLayers(modules[:2], modules[2:], link, 3)
    stack.acquire(2, 1)
    brought = [
        "copy waits for all of main",
        "copy on copy, non_blocking=True",
        "event {} on copy",
    ]
    of = [[line.format(slot) for line in brought] for slot in range(2)]
    assert streams.log == [*of[0], "main waits for event 0", *of[1]]
    assert (staging[0][0], staging[1][0]) == (0, 1)
    streams.log.clear()
    # Layer 3 is there; layer 4 takes the place of layer 2 once what ran so far is done.
    stack.acquire(3, 1)
    assert streams.log == ["main waits for event 1", *of[0]]
    assert (staging[0][0], staging[1][0]) == (2, 1)


# --- which engine ---------------------------------------------------------------------------


def test_on_a_gpu_fetched_layers_run_on_the_eager_engine(capsys):
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    for engine in (AutoConfig(threads=2), CompiledConfig(threads=2), EagerConfig(threads=2)):
        assert engine_for_offload(engine, cpu) is engine
    assert capsys.readouterr().err == ""
    assert engine_for_offload(AutoConfig(threads=2), gpu) == EagerConfig(threads=2)
    assert "NO CAPTURED ENGINE" in capsys.readouterr().err
    assert engine_for_offload(EagerConfig(), gpu) == EagerConfig()
    with pytest.raises(
        UserError, match=r"engine=compiled cannot serve with offload\.after on a GPU"
    ):
        engine_for_offload(CompiledConfig(), gpu)


# --- where they lie -------------------------------------------------------------------------


def test_what_is_left_in_memory_is_what_is_said(rivers, tmp_path):
    """Storages of all parameters that the offloaded stack holds: k layers and two staging ones."""
    arms = Arms("llama_bias", rivers)
    whole = [sum(m.weight.nbytes for m in arms.adapter.linears(n).values()) for n in range(LAYERS)]
    shared = arms.adapter.shared_nbytes()
    biases = sum(p.nbytes for n, p in arms.adapter.model.named_parameters() if n.endswith("bias"))
    stack = arms.offload(2, tmp_path)
    held = {
        p.untyped_storage().data_ptr(): p.untyped_storage().nbytes()
        for module in (arms.adapter.model, *stack.layers)
        for p in module.parameters()
    }
    assert stack.staging_nbytes == 2 * whole[0]
    assert sum(held.values()) == shared + biases + 2 * whole[0] + stack.staging_nbytes


def test_the_file_holds_every_layer_at_the_begin_of_a_page(rivers, tmp_path):
    arms = Arms("llama", rivers)
    layout = Layout(arms.adapter.linears(0))
    with open_layers(arms.adapter, layout, arms.fingerprint, tmp_path) as file:
        content = file.read()
        path = Path(file.name)
    assert layout.stride % 4096 == 0
    assert len(content) == LAYERS * layout.stride
    for layer in range(LAYERS):
        stretch = torch.frombuffer(
            bytearray(content), dtype=torch.uint8, offset=layer * layout.stride
        )
        for name, weight in layout.weights(stretch).items():
            assert torch.equal(weight, arms.adapter.linears(layer)[name].weight)
    stamp = path.stat().st_mtime_ns
    open_layers(arms.adapter, layout, arms.fingerprint, tmp_path).close()
    assert path.stat().st_mtime_ns == stamp
    damaged = bytearray(content)
    damaged[5] ^= 1
    path.write_bytes(damaged)
    with open_layers(arms.adapter, layout, arms.fingerprint, tmp_path) as file:
        assert file.read() == content
    assert FORMAT == 1


def test_weights_without_a_fingerprint_leave_nothing_behind(rivers, tmp_path):
    arms = Arms("llama", rivers)
    layout = Layout(arms.adapter.linears(0))
    staging = [torch.zeros(layout.nbytes, dtype=torch.uint8) for _ in range(2)]
    with open_layers(arms.adapter, layout, None, tmp_path) as file:
        link = MappedLink(file, layout, staging)
    assert list(tmp_path.iterdir()) == []
    for layer in (4, 1, 4):
        link.fill(layer, 1)
        for name, weight in layout.weights(staging[1]).items():
            assert torch.equal(weight, arms.adapter.linears(layer)[name].weight)
