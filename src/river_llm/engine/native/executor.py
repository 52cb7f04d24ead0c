"""Narrow passes: a few tokens through any layers of both stacks, in C++."""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from river_llm.cache import SlotCache, Source
from river_llm.engine.executor import Choice, EngineUnavailable, Exit, NumericsError, StepInputs
from river_llm.engine.halves import NarrowPasses
from river_llm.engine.native.compilation import load_library
from river_llm.engine.native.weights import (
    ModelRecord,
    address,
    layer_records,
    linear_record,
)
from river_llm.engine.offload import OffloadedLayers
from river_llm.engine.weights import Layers
from river_llm.errors import UserError
from river_llm.exits import Criterion, Similarity
from river_llm.models.adapter import BackboneAdapter
from river_llm.models.head import Head

_WHOLE, _KEYS_AND_VALUES = 0, 1
PHASES = ("q, k, v", "attention", "output", "gate, up", "down", "LM head")
"""As decode.cpp counts them."""
DTYPES = (torch.float32, torch.bfloat16)


class NarrowExecutor(NarrowPasses):
    """See :class:`river_llm.engine.executor.Executor`; for passes of at most `most_rows` tokens.

    Raises:
        EngineUnavailable: no compiler here, or a model that the C++ side does not compute.
    """

    def __init__(
        self,
        adapter: BackboneAdapter,
        cache: SlotCache,
        criterion: Criterion,
        backbone: Layers,
        river: Layers | None,
        head: Head,
    ) -> None:
        check_model(adapter)
        super().__init__(adapter, cache, criterion, backbone, river, head)
        self._library = load_library()
        self.compile_seconds = self._library.compile_seconds
        self._calls = self._library.calls
        self.most_rows: int = self._calls.river_most_rows()
        # They hold addresses alone: what owns the memory stays with this executor.
        self._layer_records = {
            writer: None if stack is None else self._records(stack)
            for writer, stack in self._stacks.items()
        }
        # Backbone layers from here on must be asked for each time: they come into memory so.
        self._steady = backbone.first if isinstance(backbone, OffloadedLayers) else self.num_layers
        self._vocab = adapter.vocab_size
        model = self._model_record(head)
        self._handle = self._calls.river_create(
            ctypes.byref(model), int(adapter.dtype == torch.bfloat16)
        )
        # Not through self: it must not keep the executor alive.
        weakref.finalize(self, self._calls.river_destroy, self._handle)
        self._calls.river_set_threads(torch.get_num_threads())

    def _records(self, stack: Layers) -> Any:
        # A narrow pass gets the layers that serve one token.
        records = layer_records([stack.acquire(n, 1) for n in range(self.num_layers)])
        for record in records:
            # q, k and v are parted between threads by heads.
            blocks = {getattr(record, name).block for name in "qkv"} - {0}
            if any(self.adapter.head_dim % block for block in blocks):
                raise EngineUnavailable(
                    f"4-bit weights are packed by {max(blocks)} rows, which parts heads of "
                    f"{self.adapter.head_dim}"
                )
        return records

    def _model_record(self, head: Head) -> ModelRecord:
        adapter, cache = self.adapter, self.cache
        config = adapter.model.config
        attn: Any = adapter.layers[0].self_attn
        norm: Any = adapter.layers[0].input_layernorm
        cos, sin = adapter.rotary_table(cache.slots)
        final_norm: Any = head.norm
        # Kept, since records hold addresses alone.
        self._tables = (cos.float().contiguous(), sin.float().contiguous())
        scales = adapter.query_scales(cache.slots)
        self._query_scales = None if scales is None else scales.float()
        return ModelRecord(
            hidden=adapter.hidden_size,
            heads=int(config.num_attention_heads),
            kv_heads=adapter.kv_heads,
            head_dim=adapter.head_dim,
            intermediate=int(config.intermediate_size),
            vocab=adapter.vocab_size,
            batch=cache.k.shape[1],
            slots=cache.slots,
            rotated=cos.shape[-1],
            epsilon=float(norm.variance_epsilon),
            scaling=float(attn.scaling),
            cos=address(self._tables[0]),
            sin=address(self._tables[1]),
            query_scales=None if self._query_scales is None else address(self._query_scales),
            keys=address(cache.k),
            values=address(cache.v),
            source=address(cache.source),
            embedding=address(adapter.embedding_weight),
            final_norm=address(final_norm.weight),
            head=linear_record(head.linear),
        )

    @contextmanager
    def profiled(self) -> Iterator[dict[str, float]]:
        """Adds up the seconds of each phase of the passes made inside the block.

        Yields:
            Filled at the end of the block: seconds by phase. What they leave of the clock was
            spent between them: norms, merging, the way from Python and back.
        """
        spent = (ctypes.c_double * len(PHASES))()
        seconds: dict[str, float] = {}
        self._calls.river_profile(self._handle, spent)
        try:
            yield seconds
        finally:
            self._calls.river_profile(self._handle, None)
            seconds.update(zip(PHASES, spent, strict=True))

    def begin(self, inputs: StepInputs) -> None:
        slots, pad = list(inputs.slots), list(inputs.pad)
        if slots[-1] + 1 > self.cache.slots:
            raise UserError(f"slot {slots[-1]} is beyond the cache of {self.cache.slots} slots")
        self._batch, self._tokens = len(pad), len(slots)
        rows = self._batch * self._tokens
        # The C++ side checks nothing: it would write beyond its buffers.
        if self._batch > self.cache.k.shape[1] or rows > self.most_rows or slots[0] < 0:
            raise ValueError(f"no narrow pass: {self._batch} rows of slots {slots}")
        self._inputs = inputs
        ids = None
        if inputs.ids is not None:
            flat = [token for row in inputs.ids for token in row]
            if len(flat) != rows:
                raise ValueError(f"{len(flat)} token ids for {rows} places")
            if not 0 <= min(flat) <= max(flat) < self._vocab:
                raise IndexError(f"token ids outside the vocabulary of {self._vocab}")
            ids = (ctypes.c_int32 * len(flat))(*flat)
        self._calls.river_begin(
            self._handle,
            self._batch,
            self._tokens,
            (ctypes.c_int32 * self._tokens)(*slots),
            (ctypes.c_int32 * self._batch)(*pad),
            int(inputs.gaps),
            ids,
        )
        if inputs.hidden is not None:
            states = inputs.hidden.to(self.adapter.dtype).contiguous()
            if states.shape != (self._batch, self._tokens, self.adapter.hidden_size):
                raise ValueError(f"states {tuple(states.shape)} for {rows} places")
            ctypes.memmove(self._calls.river_state(self._handle), states.data_ptr(), states.nbytes)

    def backbone(self, first: int, last: int) -> None:
        self._run(Source.BACKBONE, first, last)

    def river(self, first: int, last: int) -> None:
        self._run(Source.RIVER, first, last)

    def _run(self, writer: Source, first: int, last: int) -> None:
        layers = self._layers(writer, first, last)
        for start, stop in self._stretches(writer, first, last):
            self._calls.river_run(self._handle, layers, start, stop, writer, _WHOLE)

    def kv_only(self, first: int, last: int) -> None:
        layers = self._layers(Source.BACKBONE, first, last)
        for start, stop in self._stretches(Source.BACKBONE, first, last):
            self._calls.river_run(
                self._handle, layers, start, stop, Source.PROPAGATED, _KEYS_AND_VALUES
            )

    def _stretches(self, stack: Source, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Parts of first..last-1 that run in one go; an offloaded layer alone, once it is there."""
        steady = last if stack != Source.BACKBONE else max(first, min(last, self._steady))
        backbone = self._stacks[Source.BACKBONE]
        assert backbone is not None
        if first < steady:
            yield first, steady
        for layer in range(steady, last):
            backbone.acquire(layer, 1)
            yield layer, layer + 1

    def _layers(self, writer: Source, first: int, last: int) -> Any:
        layers = self._layer_records[writer]
        if first < 0 or last > self.num_layers:
            raise IndexError(f"layers {first} to {last} of {self.num_layers}")
        if layers is None:
            raise RuntimeError("this executor was built without a river")
        return layers

    def until(self, first: int, last: int, live: Sequence[bool]) -> Exit:
        # Any other score, and a pooled one, is computed outside, layer by layer.
        if type(self.criterion).score is not Similarity.score or self._pooled:
            return super().until(first, last, live)
        left = Exit(first)
        for start, stop in self._stretches(Source.BACKBONE, first, last):
            now = self._until(start, stop, live)
            score = now.score if now.tests else left.score
            left = Exit(now.depth, score, now.fired, left.tests + now.tests)
            if left.fired:
                break
        return left

    def _until(self, first: int, last: int, live: Sequence[bool]) -> Exit:
        depths = range(first + 1, last + 1)
        thresholds = [
            self.criterion.threshold(d) if self.criterion.tested(d) else math.nan for d in depths
        ]
        tests, fired = ctypes.c_int32(), ctypes.c_int32()
        score = ctypes.c_double()
        depth: int = self._calls.river_until(
            self._handle,
            self._layers(Source.BACKBONE, first, last),
            first,
            last,
            Source.BACKBONE,
            (ctypes.c_double * len(thresholds))(*thresholds),
            (ctypes.c_uint8 * len(live))(*live),
            self._batch,
            ctypes.byref(tests),
            ctypes.byref(score),
            ctypes.byref(fired),
        )
        # A test is where the host learns a score, whoever compares it.
        self.reads += tests.value
        if tests.value and math.isnan(score.value):
            raise NumericsError(f"the exit score after backbone layer {depth - 1} is NaN")
        return Exit(depth, score.value if tests.value else None, bool(fired.value), tests.value)

    @property
    def _pooled(self) -> bool:
        return self._inputs.pool != "last" and self._tokens > 1

    def score(self) -> torch.Tensor:
        before = self._copy(self._calls.river_previous(self._handle))
        after = self._copy(self._calls.river_state(self._handle))
        return self.criterion.score(self._pool(before), self._pool(after), self._logits_of)

    def _pool(self, states: torch.Tensor) -> torch.Tensor:
        if not self._pooled:
            return states[:, -1]
        slots, pad = torch.tensor(list(self._inputs.slots)), torch.tensor(list(self._inputs.pad))
        weight = (slots[None] >= pad[:, None])[..., None].float()
        return (states.float() * weight).sum(1) / weight.sum(1)

    def hidden(self) -> torch.Tensor:
        return self._copy(self._calls.river_state(self._handle))

    def _copy(self, source: int) -> torch.Tensor:
        shape = (self._batch, self._tokens, self.adapter.hidden_size)
        out = torch.empty(shape, dtype=self.adapter.dtype)
        ctypes.memmove(out.data_ptr(), source, out.nbytes)
        return out

    def logits(self, rows: int = 1) -> torch.Tensor:
        return self._logits_of(self.hidden()[:, -rows:])

    def choose(self) -> Choice:
        self.reads += 1
        return self._choose(self.hidden()[:, -1:])

    def _logits_of(self, states: torch.Tensor) -> torch.Tensor:
        return self._choose(states).logits

    def _choose(self, states: torch.Tensor) -> Choice:
        """Final norm, LM head and the largest logits of states [..., H], in one go."""
        flat = states.reshape(-1, self.adapter.hidden_size).contiguous()
        count = len(flat)
        logits = torch.empty(*states.shape[:-1], self._vocab, dtype=self.adapter.dtype)
        tokens = (ctypes.c_int64 * count)()
        peaks, seconds = (ctypes.c_double * count)(), (ctypes.c_double * count)()
        self._calls.river_head(
            self._handle, flat.data_ptr(), count, logits.data_ptr(), tokens, peaks, seconds
        )
        return Choice(logits, list(tokens), list(peaks), list(seconds))


def check_model(adapter: BackboneAdapter) -> None:
    """Refuses a model that the C++ side does not compute.

    Raises:
        EngineUnavailable: says what it is.
    """
    config = adapter.model.config
    if adapter.device.type != "cpu":
        raise EngineUnavailable(f"it runs on the CPU, not on {adapter.device.type}")
    if adapter.dtype not in DTYPES:
        raise EngineUnavailable(f"it computes in bf16 and fp32, not in {adapter.dtype}")
    if config.hidden_act not in ("silu", "swish"):
        raise EngineUnavailable(f"it has no activation {config.hidden_act!r}")
    widest = load_library().calls.river_widest_head()
    if adapter.head_dim > widest or adapter.head_dim % 2:
        raise EngineUnavailable(f"it has no heads of width {adapter.head_dim}")
