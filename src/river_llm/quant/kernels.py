"""Which kernel a quantized weight runs on."""

from __future__ import annotations

import torch
from torch import nn

from river_llm.quant import int4_linear, int8_linear
from river_llm.quant.int4_linear import Int4Linear
from river_llm.quant.int8_linear import Int8Linear
from river_llm.quant.linear import KernelLinear
from river_llm.quant.quantizers import QuantizedWeight
from river_llm.quant.rtn_int8 import ChannelInt8


def kernel_obstacle(
    weight: QuantizedWeight, dtype: torch.dtype, device: torch.device
) -> str | None:
    """Why no kernel can serve a weight for activations of this dtype; None when one can."""
    rows, columns = weight.codes.shape
    if isinstance(weight, ChannelInt8):
        return int8_linear.kernel_obstacle(dtype, device, columns)
    return int4_linear.kernel_obstacle(dtype, device, rows, weight.group_size)


def kernel_linear(weight: QuantizedWeight, bias: nn.Parameter | None) -> KernelLinear:
    """The weight on its kernel; only where :func:`kernel_obstacle` finds none."""
    if isinstance(weight, ChannelInt8):
        return Int8Linear(weight, bias)
    return Int4Linear(weight, bias)
