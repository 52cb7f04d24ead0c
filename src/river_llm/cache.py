"""Position-indexed KV cache that backbone and river share.

Static buffers as in gpt-fast's KVCache; the *source* bytes (who wrote a slot) are this project's.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

import torch


class Source(enum.IntEnum):
    """Who wrote a cache slot of a layer."""

    EMPTY = 0
    BACKBONE = 1
    RIVER = 2
    PROPAGATED = 3


class SlotCache:
    """Keys and values of all layers, addressed by slot.

    Buffers start at zero: a masked slot still enters the product 0 x value, and 0 x NaN is NaN.

    Args:
        layers: number of layers L.
        batch: rows B.
        kv_heads: key/value heads.
        slots: capacity S in positions.
        head_dim: width of one head.
        dtype: of keys and values.
        device: where the buffers live.

    Attributes:
        k, v: [L, B, kv_heads, S, head_dim].
        source: uint8 [L, B, S], values of :class:`Source`.
        slots: S.
    """

    def __init__(
        self,
        layers: int,
        batch: int,
        kv_heads: int,
        slots: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.slots = slots
        self.k = torch.zeros(layers, batch, kv_heads, slots, head_dim, dtype=dtype, device=device)
        self.v = torch.zeros_like(self.k)
        self.source = torch.zeros(layers, batch, slots, dtype=torch.uint8, device=device)
        self._whole = (self.k, self.v, self.source)
        self._layer = 0
        self._extent = 0
        self._target = torch.zeros(0, dtype=torch.long, device=device)
        self._live: torch.Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the key and value buffers."""
        return sum(buffer.nbytes for buffer in self._whole[:2])

    def open_trash(self) -> int:
        """Adds one slot behind the last for tokens that only fill a bucket, and says which.

        `k`, `v` and `source` do not show it. It is for an empty cache: entries are not kept.
        """
        if self._whole[0] is self.k:
            layers, batch, heads, slots, width = self.k.shape
            k = self.k.new_zeros(layers, batch, heads, slots + 1, width)
            source = self.source.new_zeros(layers, batch, slots + 1)
            self._whole = (k, torch.zeros_like(k), source)
            self.k, self.v = (buffer[:, :, :, :slots] for buffer in self._whole[:2])
            self.source = source[:, :, :slots]
        return self.slots

    def snapshot(self, first: int, last: int, target: torch.Tensor) -> Callable[[], None]:
        """Remembers slots of layers first..last-1; what it returns puts them back.

        Args:
            first, last: the layers.
            target: long [T], the slots.
        """
        k, v, source = (buffer[first:last] for buffer in self._whole)
        places = ((k, 3), (v, 3), (source, 2))
        kept = [(part, axis, part.index_select(axis, target)) for part, axis in places]

        def put_back() -> None:
            for part, axis, entries in kept:
                part.index_copy_(axis, target, entries)

        return put_back

    def place(self, target: torch.Tensor, extent: int, live: torch.Tensor | None) -> None:
        """Sets where the next step writes and how far it reads.

        Args:
            target: long [T], slots of the step's tokens.
            extent: slots 0..extent-1 are read.
            live: bool [B, T], False for padding (it leaves no source byte); None: all live.
        """
        self._target, self._extent, self._live = target, extent, live

    def bind(self, layer: int, writer: Source) -> None:
        """Chooses the layer that :meth:`update` serves next and marks the step's slots as its."""
        self._layer = layer
        source = self._whole[2][layer]
        if self._live is None:
            source.index_fill_(1, self._target, int(writer))
        else:
            mark = self._live.to(torch.uint8) * int(writer)
            source.index_copy_(1, self._target, mark)

    def update(
        self, k: torch.Tensor, v: torch.Tensor, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes a layer's new keys and values; called by the transformers layer.

        What transformers passes beside k and v (the layer index included) differs between its
        versions and is ignored: :meth:`bind` chose the layer.

        Args:
            k, v: [B, kv_heads, T, head_dim].

        Returns:
            Views of the filled slots, [B, kv_heads, extent, head_dim].
        """
        keys, values = (buffer[self._layer] for buffer in self._whole[:2])
        keys.index_copy_(2, self._target, k)
        values.index_copy_(2, self._target, v)
        return keys[:, :, : self._extent], values[:, :, : self._extent]

    def filled(self, layer: int) -> torch.Tensor:
        """Which of the slots that are read hold an entry in a layer, bool [B, 1, 1, extent]."""
        return (self.source[layer, :, : self._extent] != int(Source.EMPTY))[:, None, None]

    def truncate(self, length: int) -> None:
        """Forgets the slots from `length` on."""
        self.source[:, :, length:] = int(Source.EMPTY)
