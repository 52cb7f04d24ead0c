"""The largest anonymous memory that this process had over a stretch of its life (Linux)."""

from __future__ import annotations

import ctypes
import gc
import re
import threading
from pathlib import Path

import torch

from river_llm.errors import UserError

STATUS = Path("/proc/self/status")
INTERVAL_S = 0.001


def anonymous_bytes() -> int:
    """Resident memory that no file backs: weights that were copied, buffers, the interpreter's.

    Raises:
        UserError: a system that does not tell.
    """
    try:
        found = re.search(r"^RssAnon:\s*(\d+) kB$", STATUS.read_text("ascii"), re.MULTILINE)
    except OSError:
        found = None
    if found is None:
        raise UserError(f"there is no RssAnon in {STATUS}: peak memory on the CPU needs Linux")
    return 1024 * int(found[1])


def give_back_freed() -> None:
    """Hands the system what was freed and is still kept for later use."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    # Of glibc alone; another allocator may keep more.
    if trim is not None:
        trim(0)


def tensor_bytes(device: torch.device) -> int:
    """Bytes of all storages on a device that a tensor of this process holds, each counted once."""
    # What was frozen is not looked through.
    gc.unfreeze()
    gc.collect()
    # Of its type, not of its class: the latter asks the object, and some answer oddly.
    tensors = [o for o in gc.get_objects() if issubclass(type(o), torch.Tensor)]
    storages = [t.untyped_storage() for t in tensors if t.device == device]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


class AnonymousPeak:
    """Context manager: samples :func:`anonymous_bytes` in a thread, every millisecond at best.

    What is let go again before the thread comes to its turn is not seen.

    Attributes:
        nbytes: the largest value seen.
    """

    def __enter__(self) -> AnonymousPeak:
        self.nbytes = anonymous_bytes()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._done.set()
        self._thread.join()
        self.nbytes = max(self.nbytes, anonymous_bytes())

    def _sample(self) -> None:
        while not self._done.wait(INTERVAL_S):
            self.nbytes = max(self.nbytes, anonymous_bytes())
