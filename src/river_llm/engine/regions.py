"""Narrow passes as captured regions over fixed buffers.

A region is a function of no arguments over the buffers of a frame: it may be captured once and
replayed later on whatever the buffers hold by then. All that changes from step to step is copied
into one buffer by `begin`; what is fixed in a region is part of its key: the frame (tokens and
extent in coarse buckets, whether gaps are hidden), the kind, the layers. A pass of fewer tokens
than its bucket is filled up at the front; the fill writes into the cache's trash slot, and what it
computes is never used. Captured static steps are those of gpt-fast and vLLM; regions between exit
tests are this project's.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from functools import partial

import torch

from river_llm.cache import SlotCache, Source
from river_llm.engine.executor import Choice, EngineUnavailable, StepInputs, best_two
from river_llm.engine.halves import NarrowPasses
from river_llm.engine.weights import Layers, ResidentLayers
from river_llm.errors import UserError
from river_llm.exits import Criterion
from river_llm.models.adapter import BackboneAdapter
from river_llm.models.head import Head

Body = Callable[[], None]


@dataclass(frozen=True)
class Frame:
    """The buffers of all passes of one shape, and the regions captured over them.

    Attributes:
        tokens: T bucket.
        extent: slots 0..extent-1 are read.
        gaps: whether each layer hides the slots that are empty in it.
        steps: long, everything that comes from the host: the three below are views of it.
        ids: [B, T] token ids.
        target: [T] slots.
        pad: [B] left padding.
        positions: long [B, T].
        cos, sin: [B, T, R].
        live: bool [B, T], False for padding and fill.
        mask: [B, 1, T, extent], 0 or minus infinity, added to attention scores.
        hidden, previous: [B, T, H], states behind and before the layer that ran last.
        scores: float64 [B].
        logits: [B, T, V].
        choice: float64 [3 B], see :func:`river_llm.engine.executor.best_two`.
        regions: captured so far.
    """

    tokens: int
    extent: int
    gaps: bool
    steps: torch.Tensor
    ids: torch.Tensor
    target: torch.Tensor
    pad: torch.Tensor
    positions: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    live: torch.Tensor
    mask: torch.Tensor
    hidden: torch.Tensor
    previous: torch.Tensor
    scores: torch.Tensor
    logits: torch.Tensor
    choice: torch.Tensor
    regions: dict[tuple[str | Source, int, int], Body] = field(default_factory=dict)

    def snapshot(self) -> Body:
        """Remembers every buffer; what it returns puts them back."""
        buffers = [getattr(self, entry.name) for entry in fields(self)]
        kept = [(b, b.clone()) for b in buffers if isinstance(b, torch.Tensor)]

        def put_back() -> None:
            for buffer, values in kept:
                buffer.copy_(values)

        return put_back


class RegionExecutor(NarrowPasses):
    """See :class:`river_llm.engine.executor.Executor`; a subclass says how a region is captured.

    Weights are asked for when a region is captured, so they must stay where they are.

    Args:
        cache: empty; it gets a trash slot.

    Attributes:
        compile_seconds: time spent on capturing so far.

    Raises:
        EngineUnavailable: a backbone whose layers come and go.
    """

    token_buckets: tuple[int, ...] = (1, 4, 16)
    first_extent = 256
    """Smallest extent bucket; each next one is twice as long, the last one the whole cache."""

    def __init__(
        self,
        adapter: BackboneAdapter,
        cache: SlotCache,
        criterion: Criterion,
        backbone: Layers,
        river: Layers | None,
        head: Head,
    ) -> None:
        if not isinstance(backbone, ResidentLayers):
            raise EngineUnavailable("captured layers must lie in memory, these are fetched")
        super().__init__(adapter, cache, criterion, backbone, river, head)
        self.compile_seconds = 0.0
        self._batch = cache.k.shape[1]
        self.most_rows = self.token_buckets[-1] * self._batch
        self._cos, self._sin = adapter.rotary_table(cache.slots)
        self._trash = cache.open_trash()
        self._frames: dict[tuple[int, int, bool], Frame] = {}

    @abstractmethod
    def _capture(self, body: Body) -> Body:
        """What does again, on the buffers as they are then, what `body` does now.

        It may run `body` any number of times.
        """

    # --- one pass -----------------------------------------------------------------------------

    @torch.no_grad()
    def begin(self, inputs: StepInputs) -> None:
        slots, pad = list(inputs.slots), list(inputs.pad)
        if slots[-1] + 1 > self.cache.slots:
            raise UserError(f"slot {slots[-1]} is beyond the cache of {self.cache.slots} slots")
        if len(pad) != self._batch or len(slots) > self.token_buckets[-1]:
            raise ValueError(f"no narrow pass: {len(pad)} rows of slots {slots}")
        self._inputs = inputs
        self._tokens = len(slots)
        frame = self._frame = self._frame_of(len(slots), slots[-1] + 1, inputs.gaps)
        fill = frame.tokens - len(slots)
        ids = inputs.ids or [[0] * len(slots)] * len(pad)
        numbers = [token for row in ids for token in (*[0] * fill, *row)]
        numbers += [*[self._trash] * fill, *slots, *pad]
        frame.steps.copy_(torch.tensor(numbers))
        if inputs.hidden is None:
            self._run(self._start_at_ids, "ids")
        else:
            frame.hidden[:, :fill].zero_()
            frame.hidden[:, fill:].copy_(inputs.hidden)
            self._run(self._place, "states")

    def backbone(self, first: int, last: int) -> None:
        self._run_layers(Source.BACKBONE, first, last)

    def river(self, first: int, last: int) -> None:
        self._run_layers(Source.RIVER, first, last)

    def _run_layers(self, writer: Source, first: int, last: int) -> None:
        stack = self._stacks[writer]
        if stack is None:
            raise RuntimeError("this executor was built without a river")
        for block in blocks(first, last):
            self._run(partial(self._layers, stack, writer, *block), writer, *block)

    def kv_only(self, first: int, last: int) -> None:
        for block in blocks(first, last):
            self._run(partial(self._project, *block), Source.PROPAGATED, *block)

    def score(self) -> torch.Tensor:
        return self._score().float()

    def _read_score(self) -> list[float]:
        (scores,) = self.read(self._score())
        return scores

    def _score(self) -> torch.Tensor:
        self._run(self._set_score, f"score of the {self._inputs.pool}")
        return self._frame.scores

    def hidden(self) -> torch.Tensor:
        return self._frame.hidden[:, -self._tokens :].clone()

    def logits(self, rows: int = 1) -> torch.Tensor:
        self._run(partial(self._set_logits, rows), f"logits of {rows}")
        return self._frame.logits[:, -rows:].clone()

    def choose(self) -> Choice:
        self._run(self._set_choice, "choice")
        (flat,) = self.read(self._frame.choice)
        logits = self._frame.logits[:, -1:].clone()
        tokens, peaks, seconds = (flat[n * self._batch : (n + 1) * self._batch] for n in range(3))
        return Choice(logits, [int(token) for token in tokens], peaks, seconds)

    # --- regions: functions of no arguments but what is in their keys -------------------------

    def _start_at_ids(self) -> None:
        self._place()
        self._frame.hidden.copy_(self.adapter.embed(self._frame.ids))

    def _place(self) -> None:
        """Positions, rotary rows, and what each token sees: none of it from the host."""
        frame = self._frame
        filling = frame.target == self._trash
        # The fill sees slot 0 alone, lest its rows of the softmax be empty.
        own = frame.target.masked_fill(filling, 0)
        frame.positions.copy_((own - frame.pad[:, None]).clamp(min=0))
        frame.cos.copy_(self._cos[frame.positions])
        frame.sin.copy_(self._sin[frame.positions])
        frame.live.copy_((frame.target >= frame.pad[:, None]) & ~filling)
        keys = torch.arange(frame.extent, device=self.device)
        itself = keys == own[:, None]
        visible = (keys <= own[:, None]) & (keys >= frame.pad[:, None, None]) | itself
        frame.mask.copy_(torch.zeros_like(frame.mask).masked_fill(~visible[:, None], -torch.inf))

    def _layers(self, stack: Layers, writer: Source, first: int, last: int) -> None:
        frame, cache = self._frame, self.cache
        cache.place(frame.target, frame.extent, frame.live)
        before = after = frame.hidden
        for layer in range(first, last):
            cache.bind(layer, writer)
            mask = frame.mask
            if frame.gaps:
                mask = mask.masked_fill(~cache.filled(layer), -torch.inf)
            rotary = (frame.cos, frame.sin)
            # A narrow pass gets the layers that serve one token.
            module, before = stack.acquire(layer, 1), after
            after = self.adapter.run_layer(module, before, mask, rotary, cache, frame.positions)
        frame.previous.copy_(before)
        frame.hidden.copy_(after)

    def _project(self, first: int, last: int) -> None:
        frame, backbone = self._frame, self._stacks[Source.BACKBONE]
        assert backbone is not None
        self.cache.place(frame.target, frame.extent, frame.live)
        for layer in range(first, last):
            self.cache.bind(layer, Source.PROPAGATED)
            module = backbone.acquire(layer, 1)
            self.adapter.project_kv(module, frame.hidden, (frame.cos, frame.sin), self.cache)

    def _set_score(self) -> None:
        frame = self._frame
        states = self._pool(frame.previous), self._pool(frame.hidden)
        frame.scores.copy_(self.criterion.score(*states, self.head))

    def _pool(self, hidden: torch.Tensor) -> torch.Tensor:
        if self._inputs.pool == "last":
            return hidden[:, -1]
        live = self._frame.live[..., None]
        # Not times 0: whatever the fill holds, NaN too, stays out.
        return hidden.float().masked_fill(~live, 0.0).sum(1) / live.float().sum(1)

    def _set_logits(self, rows: int) -> None:
        frame = self._frame
        frame.logits[:, -rows:].copy_(self.head(frame.hidden[:, -rows:]))

    def _set_choice(self) -> None:
        self._set_logits(1)
        parts = best_two(self._frame.logits)
        self._frame.choice.copy_(torch.cat([part.double() for part in parts]))

    # --- capturing ----------------------------------------------------------------------------

    @torch.no_grad()
    def _run(self, body: Body, kind: str | Source, first: int = 0, last: int = 0) -> None:
        """Replays a region of the present frame, captured where it has not been yet.

        Args:
            body: the region.
            kind: what it is, with all that differs between regions beside the layers.
            first, last: layers whose slots it writes.
        """
        regions, key = self._frame.regions, (kind, first, last)
        if key not in regions:
            start = time.perf_counter()
            regions[key] = self._captured(body, first, last)
            self.compile_seconds += time.perf_counter() - start
        regions[key]()

    def _captured(self, body: Body, first: int, last: int) -> Body:
        frame = self._frame
        undo = (frame.snapshot(), self.cache.snapshot(first, last, frame.target.clone()))
        replay = self._capture(body)
        for put_back in undo:
            put_back()
        return replay

    def _frame_of(self, tokens: int, extent: int, gaps: bool) -> Frame:
        bucket = next(size for size in self.token_buckets if size >= tokens)
        reach = self.first_extent
        while reach < extent:
            reach *= 2
        key = (bucket, min(reach, self.cache.slots), gaps)
        if key not in self._frames:
            self._frames[key] = self._new_frame(*key)
        return self._frames[key]

    def _new_frame(self, tokens: int, extent: int, gaps: bool) -> Frame:
        batch, adapter = self._batch, self.adapter
        steps = torch.zeros(batch * tokens + tokens + batch, dtype=torch.long, device=self.device)
        ids, target, pad = steps.split([batch * tokens, tokens, batch])

        def states(*shape: int, dtype: torch.dtype = adapter.dtype) -> torch.Tensor:
            return torch.zeros(batch, *shape, dtype=dtype, device=self.device)

        return Frame(
            tokens=tokens,
            extent=extent,
            gaps=gaps,
            steps=steps,
            ids=ids.view(batch, tokens),
            target=target,
            pad=pad,
            positions=states(tokens, dtype=torch.long),
            cos=states(tokens, self._cos.shape[-1], dtype=self._cos.dtype),
            sin=states(tokens, self._sin.shape[-1], dtype=self._sin.dtype),
            live=states(tokens, dtype=torch.bool),
            mask=states(1, tokens, extent),
            hidden=states(tokens, adapter.hidden_size),
            previous=states(tokens, adapter.hidden_size),
            scores=states(dtype=torch.float64),
            logits=states(tokens, adapter.vocab_size),
            choice=states(3, dtype=torch.float64).flatten(),
        )


def blocks(first: int, last: int) -> Iterator[tuple[int, int]]:
    """A range of layers as few aligned blocks of 1, 2, 4, ... layers.

    Whatever depths occur, a stack of L layers then has fewer than 2 L regions; a range of its own
    for each depth would capture L^2 / 2 layers.
    """
    while first < last:
        size = first & -first or 1 << last.bit_length()
        while first + size > last:
            size //= 2
        yield first, first + size
        first += size
