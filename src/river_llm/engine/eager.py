"""The eager engine: one operator after another. Slow, obvious, and the oracle of the others."""

from __future__ import annotations

import torch

from river_llm.cache import SlotCache, Source
from river_llm.engine.executor import Executor, StepInputs
from river_llm.engine.weights import Layers
from river_llm.errors import UserError
from river_llm.exits import Criterion
from river_llm.models.adapter import BackboneAdapter
from river_llm.models.head import Head


class EagerExecutor(Executor):
    """See :class:`river_llm.engine.executor.Executor`."""

    name = "eager"

    def __init__(
        self,
        adapter: BackboneAdapter,
        cache: SlotCache,
        criterion: Criterion,
        backbone: Layers,
        river: Layers | None,
        head: Head,
    ) -> None:
        super().__init__(adapter, cache, criterion, backbone, river, head)
        self._cos, self._sin = adapter.rotary_table(cache.slots)

    @torch.no_grad()
    def begin(self, inputs: StepInputs) -> None:
        slots = list(inputs.slots)
        extent = slots[-1] + 1
        if extent > self.cache.slots:
            raise UserError(f"slot {slots[-1]} is beyond the cache of {self.cache.slots} slots")
        self._inputs = inputs
        target = torch.tensor(slots, device=self.device)
        pad = torch.tensor(list(inputs.pad), device=self.device)
        self._positions = (target[None] - pad[:, None]).clamp(min=0)
        self._rotary = (self._cos[self._positions], self._sin[self._positions])
        padded = any(inputs.pad)
        self._live = target[None] >= pad[:, None] if padded else None
        self.cache.place(target, extent, self._live)
        self._visible = self._visibility(target, pad, extent, padded)
        if inputs.hidden is None:
            self._hidden = self.adapter.embed(torch.tensor(inputs.ids, device=self.device))
        else:
            self._hidden = inputs.hidden
        self._previous = self._hidden

    def _visibility(
        self, target: torch.Tensor, pad: torch.Tensor, extent: int, padded: bool
    ) -> torch.Tensor | None:
        """Boolean mask [B or 1, 1, T, extent], or None where attention needs none."""
        whole = len(target) == 1 or len(target) == extent
        if whole and not padded:
            return None
        keys = torch.arange(extent, device=self.device)
        visible = keys[None, None] <= target[None, :, None]
        if padded:
            # A padding token sees itself, lest its row of the softmax be empty.
            itself = keys[None, None] == target[None, :, None]
            visible = visible & (keys[None, None] >= pad[:, None, None]) | itself
        return visible[:, None]

    @torch.no_grad()
    def _run(self, first: int, last: int, writer: Source) -> None:
        stack = self._stacks[writer]
        if stack is None:
            raise RuntimeError("this executor was built without a river")
        tokens = len(self._inputs.slots)
        for layer in range(first, last):
            module = stack.acquire(layer, tokens)
            self.cache.bind(layer, writer)
            self._previous = self._hidden
            self._hidden = self.adapter.run_layer(
                module,
                self._hidden,
                self._mask(layer),
                self._rotary,
                self.cache,
                self._positions,
            )

    def _mask(self, layer: int) -> torch.Tensor | None:
        """What the step's tokens see in a layer, whose own slots are marked already."""
        if not self._inputs.gaps:
            return self._visible
        present = self.cache.filled(layer)
        return present if self._visible is None else self._visible & present

    def backbone(self, first: int, last: int) -> None:
        self._run(first, last, Source.BACKBONE)

    def river(self, first: int, last: int) -> None:
        self._run(first, last, Source.RIVER)

    @torch.no_grad()
    def kv_only(self, first: int, last: int) -> None:
        backbone = self._stacks[Source.BACKBONE]
        assert backbone is not None
        for layer in range(first, last):
            module = backbone.acquire(layer, len(self._inputs.slots))
            self.cache.bind(layer, Source.PROPAGATED)
            self.adapter.project_kv(module, self._hidden, self._rotary, self.cache)

    @torch.no_grad()
    def score(self) -> torch.Tensor:
        return self.criterion.score(self._pool(self._previous), self._pool(self._hidden), self.head)

    def _pool(self, hidden: torch.Tensor) -> torch.Tensor:
        if self._inputs.pool == "last":
            return hidden[:, -1]
        if self._live is None:
            return hidden.float().mean(1)
        weight = self._live[..., None].float()
        return (hidden.float() * weight).sum(1) / weight.sum(1)

    def hidden(self) -> torch.Tensor:
        return self._hidden.clone()

    @torch.no_grad()
    def logits(self, rows: int = 1) -> torch.Tensor:
        logits: torch.Tensor = self.head(self._hidden[:, -rows:])
        return logits
