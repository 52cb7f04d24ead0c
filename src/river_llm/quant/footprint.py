"""Whether a backbone and its river fit into memory, estimated before their weights are loaded.

The estimate is of weights alone and a little to spare: what is not refused may still be short of
memory for a very long context.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from river_llm.config import HqqInt4Config, QuantConfig, RtnInt4Config, RtnInt8Config
from river_llm.errors import UserError
from river_llm.quant import int8_linear
from river_llm.quant.kernels import int4_obstacle

MIB, GIB = 2**20, 2**30
SPARE = 256 * MIB
"""What else a run holds: states, a short KV cache, buffers."""

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Footprint:
    """Bytes of weights on the device.

    Attributes:
        backbone: all parameters.
        river: the linears of the exit layers; 0: there is none.
    """

    backbone: int
    river: int


def footprint(
    config: Any, dtype: torch.dtype, device: torch.device, quant: QuantConfig | None
) -> Footprint:
    """What a model of this configuration will hold, from its shapes alone.

    Args:
        config: of the decoder, as transformers reads it.
        dtype: of the backbone's weights.
        device: where they will lie.
        quant: quantizer of the river; None: there is none.
    """
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    backbone = sum(parameter.numel() for parameter in model.parameters()) * dtype.itemsize
    if quant is None:
        return Footprint(backbone, 0)
    linears = [m for m in model.model.layers.modules() if isinstance(m, nn.Linear)]
    packed = [_packed_bytes(linear, quant, dtype, device) for linear in linears]
    dense = sum(linear.weight.numel() for linear in linears) * dtype.itemsize
    # One linear without a kernel, and the whole river is a dequantized copy.
    river = dense if None in packed else sum(size for size in packed if size is not None)
    return Footprint(backbone, river)


def check_room(need: Footprint, device: torch.device, what: str, free: int | None = None) -> None:
    """Refuses weights that do not fit.

    Args:
        need: what is to be loaded or built.
        device: where it will lie.
        what: the setting that asks for it, for the message.
        free: bytes; None: those of the device now.

    Raises:
        UserError: there is too little memory (both numbers, and what to do).
    """
    free = free_bytes(device) if free is None else free
    total = need.backbone + need.river + SPARE
    if free is None or total <= free:
        return
    parts = [("backbone", need.backbone), ("river", need.river)]
    named = " and ".join(f"{_shown(size)} for the {name}" for name, size in parts if size)
    where = "GPU memory" if device.type == "cuda" else "memory"
    raise UserError(
        f"{what} needs {_shown(total)} of {where} by estimate ({named}), and "
        f"{_shown(free)} are free: end other programs, use a smaller model or a larger "
        "machine, or model.dtype=bf16 where it is fp32"
    )


def _shown(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / MIB:.0f} MiB"


def free_bytes(device: torch.device) -> int | None:
    """Memory that this process can still get on a device; None: the system does not tell."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # PyTorch keeps what was freed, and gives it out again.
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free + kept
    try:
        lines = (PROC / "meminfo").read_text("ascii").splitlines()
    except OSError:
        return None
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    if "MemAvailable" not in kib:
        return None
    return min([1024 * (kib["MemAvailable"] + kib.get("SwapFree", 0)), *_left_in_cgroups()])


def _packed_bytes(
    linear: nn.Linear, quant: QuantConfig, dtype: torch.dtype, device: torch.device
) -> int | None:
    """Bytes of a quantized linear; None: no kernel serves it."""
    rows, columns = linear.weight.shape
    match quant:
        case HqqInt4Config() | RtnInt4Config():
            if int4_obstacle(dtype, device, rows, quant.group_size) is None:
                # Half a byte each; scale and zero, in bf16, of each group.
                return rows * columns // 2 + 4 * (rows * columns // quant.group_size)
        case RtnInt8Config():
            if int8_linear.kernel_obstacle(dtype, device, columns) is None:
                return rows * columns + 2 * rows
    return None


def _left_in_cgroups() -> list[int]:
    """What limits on this process's control groups (version 2) leave: a container has one."""
    try:
        lines = (PROC / "self" / "cgroup").read_text("utf-8").splitlines()
        (own,) = (line.removeprefix("0::/") for line in lines if line.startswith("0::/"))
    except (OSError, ValueError):
        return []
    inner = CGROUPS / own
    return [
        left
        for group in (inner, *inner.parents)
        if group.is_relative_to(CGROUPS) and (left := _left_in(group)) is not None
    ]


def _left_in(group: Path) -> int | None:
    try:
        limit = (group / "memory.max").read_text("ascii").strip()
        used = int((group / "memory.current").read_text("ascii"))
        stat = dict(
            line.split() for line in (group / "memory.stat").read_text("ascii").splitlines()
        )
    except (OSError, ValueError):
        return None
    if limit == "max":
        return None
    # The kernel drops cached files before it kills.
    cached = sum(int(stat.get(key, 0)) for key in ("active_file", "inactive_file"))
    return int(limit) - used + cached
