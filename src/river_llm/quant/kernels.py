"""Which kernel a quantized weight runs on."""

from __future__ import annotations

import sys

import torch
from torch import nn

from river_llm.quant import int4_cuda, int4_linear, int8_linear
from river_llm.quant.int4_cuda import CudaInt4Linear
from river_llm.quant.int4_linear import Int4Linear
from river_llm.quant.int8_linear import Int8Linear
from river_llm.quant.linear import KernelLinear
from river_llm.quant.quantizers import QuantizedWeight, Quantizer, quant_record
from river_llm.quant.rtn_int8 import ChannelInt8


def kernel_obstacle(
    weight: QuantizedWeight, dtype: torch.dtype, device: torch.device
) -> str | None:
    """Why no kernel can serve a weight for activations of this dtype; None when one can."""
    rows, columns = weight.codes.shape
    if isinstance(weight, ChannelInt8):
        return int8_linear.kernel_obstacle(dtype, device, columns)
    return int4_obstacle(dtype, device, rows, weight.group_size)


def int4_obstacle(
    dtype: torch.dtype, device: torch.device, rows: int, group_size: int
) -> str | None:
    """Why no int4 kernel of this device can serve a linear of so many rows; None when one can."""
    # ROCm calls its devices cuda too; its packing is another.
    if device.type == "cuda" and torch.version.hip is None:
        capability = torch.cuda.get_device_capability(device)
        return int4_cuda.kernel_obstacle(dtype, capability, rows, group_size)
    return int4_linear.kernel_obstacle(dtype, device, rows, group_size)


def kernel_linear(weight: QuantizedWeight, bias: nn.Parameter | None) -> KernelLinear:
    """The weight on its kernel; only where :func:`kernel_obstacle` finds none."""
    if isinstance(weight, ChannelInt8):
        return Int8Linear(weight, bias)
    if weight.codes.is_cuda:
        return CudaInt4Linear(weight, bias)
    return Int4Linear(weight, bias)


def tell_no_kernel(config: Quantizer, obstacle: str, part: str) -> None:
    """Says aloud that a part of the model runs on dequantized copies, and why."""
    print(
        f"river_llm: NO {quant_record(config)['bits']}-BIT KERNEL: {obstacle}; {part} runs on "
        "dequantized copies, right in value but neither smaller nor faster than the backbone",
        file=sys.stderr,
    )
