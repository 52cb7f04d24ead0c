"""Where offloaded layers lie, and how they come into a staging layer.

On a GPU that is pinned host memory and a copy on a stream of its own. On the CPU it is a file,
mapped for reading: its pages do not count as anonymous memory, and the kernel may drop them.
"""

from __future__ import annotations

import mmap
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import torch
from torch import nn

from river_llm.artifacts import ensure_folder
from river_llm.errors import UserError
from river_llm.models.adapter import BackboneAdapter
from river_llm.paths import cache_root

FORMAT = 1
"""Raised when the file layout changes."""

_FILE = "layers.bin"
_ALIGNED = 64
"""Bytes of a cache line, at whose start each weight begins."""


class Layout:
    """Where the linear weights of a layer stand in one stretch of bytes.

    Args:
        linears: of a layer, by name; every layer of a known architecture has the same shapes.

    Attributes:
        nbytes: length of the stretch.
        stride: from one layer to the next in a file, whole pages.
    """

    def __init__(self, linears: Mapping[str, nn.Linear]) -> None:
        self._places: dict[str, tuple[int, torch.Size]] = {}
        self._dtype = next(iter(linears.values())).weight.dtype
        self.nbytes = 0
        for name, linear in linears.items():
            self._places[name] = (self.nbytes, linear.weight.shape)
            self.nbytes += -(-linear.weight.nbytes // _ALIGNED) * _ALIGNED
        self.stride = -(-self.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE

    def weights(self, stretch: torch.Tensor) -> dict[str, torch.Tensor]:
        """The weights in a stretch (uint8), by name: views, no copies."""
        return {
            name: stretch[start : start + shape.numel() * self._dtype.itemsize]
            .view(self._dtype)
            .view(shape)
            for name, (start, shape) in self._places.items()
        }

    @torch.no_grad()
    def write(self, linears: Mapping[str, nn.Linear], stretch: torch.Tensor) -> None:
        """Copies a layer's weights into a stretch (uint8)."""
        for name, place in self.weights(stretch).items():
            place.copy_(linears[name].weight)


class Link(ABC):
    """The way from where offloaded layers lie to the staging layers."""

    @abstractmethod
    def fill(self, layer: int, slot: int) -> None:
        """Brings a layer into a staging layer, behind whatever that one is still used for."""

    @abstractmethod
    def prefetch(self, layer: int, slot: int) -> bool:
        """Begins to bring a layer that may be needed next; True: as :meth:`fill` does."""

    @abstractmethod
    def wait(self, slot: int) -> None:
        """Lets what is computed from now on wait until a staging layer is filled."""


class MappedLink(Link):
    """From a file, on the CPU.

    A layer is copied and not computed on where it is mapped: mapped pages are read at two thirds
    of the speed of plain memory, and a page that the kernel dropped would be waited for in the
    middle of a matrix product. Its pages are given back at once; the next layer is read ahead by
    the kernel, which takes no thread from the one that computes.

    Args:
        file: layers one behind the other, by `layout`.
        layout: of a layer.
        staging: the staging layers, uint8 [layout.nbytes] each.
    """

    def __init__(self, file: BinaryIO, layout: Layout, staging: Sequence[torch.Tensor]) -> None:
        # A private copy that nobody writes to: torch wants its buffers writable.
        self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self._layout = layout
        self._staging = staging

    def fill(self, layer: int, slot: int) -> None:
        start = layer * self._layout.stride
        self._staging[slot].copy_(
            torch.frombuffer(self._map, dtype=torch.uint8, count=self._layout.nbytes, offset=start)
        )
        self._map.madvise(mmap.MADV_DONTNEED, start, self._layout.stride)

    def prefetch(self, layer: int, slot: int) -> bool:
        self._map.madvise(mmap.MADV_WILLNEED, layer * self._layout.stride, self._layout.stride)
        return False

    def wait(self, slot: int) -> None:
        """Nothing: :meth:`fill` has ended when it returns."""


class PinnedLink(Link):
    """From pinned host memory, on a CUDA stream of its own.

    Args:
        host: layers from `first` on, pinned uint8 [L - first, layout.nbytes].
        first: index of the first offloaded layer.
        staging: the staging layers on the device, uint8 [layout.nbytes] each.
    """

    def __init__(self, host: torch.Tensor, first: int, staging: Sequence[torch.Tensor]) -> None:
        self._host = host
        self._first = first
        self._staging = staging
        self._device = staging[0].device
        self._stream = torch.cuda.Stream(self._device)
        self._filled = [torch.cuda.Event() for _ in staging]
        for stretch in staging:
            # Lest its memory be given to others while a copy into it is under way.
            stretch.record_stream(self._stream)

    def fill(self, layer: int, slot: int) -> None:
        # The staging layer is free once all that was asked of the device so far is done.
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            self._staging[slot].copy_(self._host[layer - self._first], non_blocking=True)
            self._filled[slot].record(self._stream)

    def prefetch(self, layer: int, slot: int) -> bool:
        self.fill(layer, slot)
        return True

    def wait(self, slot: int) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._filled[slot])


def pinned_layers(adapter: BackboneAdapter, first: int, layout: Layout) -> torch.Tensor:
    """The linear weights of layers from `first` on in pinned host memory, uint8 [L - first, ..]."""
    count = adapter.num_layers - first
    host = torch.empty(count, layout.nbytes, dtype=torch.uint8, pin_memory=True)
    for layer in range(first, adapter.num_layers):
        layout.write(adapter.linears(layer), host[layer - first])
    return host


def open_layers(
    adapter: BackboneAdapter, layout: Layout, fingerprint: str | None, cache: Path | None = None
) -> BinaryIO:
    """A file with the linear weights of every layer, written where it is not there.

    Not the checkpoint's own file: there the weights of a layer are scattered, and they may be of
    another dtype. All layers are in it, so that every k reads the same file.

    Args:
        adapter: the backbone, all of its layers in memory.
        layout: of a layer.
        fingerprint: of the backbone's weights, key of the file in the cache; None: a file without
            a name, which is gone when it is closed.
        cache: root of the cache; None: :func:`river_llm.paths.cache_root`.

    Raises:
        UserError: the cache cannot be written.
    """
    root = cache_root() if cache is None else cache
    if fingerprint is None:
        try:
            root.mkdir(parents=True, exist_ok=True)
            # Not where the system keeps such files: that may be memory.
            nameless: BinaryIO = tempfile.TemporaryFile(dir=root)  # noqa: SIM115
            _write(adapter, layout, nameless)
        except OSError as error:
            raise UserError(
                f"cannot write offloaded layers to {root}: {error}; set RIVER_LLM_CACHE to a "
                "writable folder with enough space"
            ) from error
        return nameless
    origin = {"format": FORMAT, "backbone": fingerprint, "layer_bytes": layout.nbytes}

    def make(folder: Path) -> None:
        with (folder / _FILE).open("wb") as file:
            _write(adapter, layout, file)

    folder = ensure_folder(root / "layers" / fingerprint[:16], origin, frozenset({_FILE}), make)
    return (folder / _FILE).open("rb")


def _write(adapter: BackboneAdapter, layout: Layout, file: BinaryIO) -> None:
    stretch = torch.zeros(layout.stride, dtype=torch.uint8)
    for layer in range(adapter.num_layers):
        layout.write(adapter.linears(layer), stretch)
        file.write(stretch.numpy().tobytes())
    file.flush()
