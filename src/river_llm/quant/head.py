"""The LM head at fewer bits, for every arm alike; final norm and embedding stay as they are.

The paper keeps the head at 16 bits. Of small models it is a large part of what a decode step
reads, by any method, so it is quantized for all arms or for none.
"""

from __future__ import annotations

from typing import Any

import torch

from river_llm.config import HeadBits, RtnInt4Config, RtnInt8Config
from river_llm.errors import UserError
from river_llm.models.adapter import BackboneAdapter
from river_llm.models.head import Head
from river_llm.quant.kernels import kernel_linear, kernel_obstacle, tell_no_kernel
from river_llm.quant.linear import Backend, KernelLinear, dense_linear
from river_llm.quant.quantizers import QuantizedWeight, Quantizer, quant_record, quantize

GROUP_SIZE = 64

_ROWS = 2**13


def head_quantizer(bits: HeadBits) -> Quantizer | None:
    """What quantizes the head; the same whatever quantizer the river has. None: nothing does."""
    match bits:
        case "none":
            return None
        case "int8":
            return RtnInt8Config()
        case "int4":
            return RtnInt4Config(group_size=GROUP_SIZE)


def head_record(bits: HeadBits) -> dict[str, Any] | None:
    """The head's quantizer with all its settings, as plain data for records; None: 16 bits."""
    quantizer = head_quantizer(bits)
    return None if quantizer is None else quant_record(quantizer)


def build_head(adapter: BackboneAdapter, bits: HeadBits, *, kernels: bool = True) -> Head:
    """Final norm and LM head, the latter quantized.

    Made anew in each process: it takes seconds.

    Args:
        adapter: the backbone; not changed, and a tied embedding stays what it is.
        bits: `none`: the backbone's own head.
        kernels: False: a dequantized copy (the numerics oracle).

    Raises:
        UserError: a width that does not divide into groups, or weights that are not finite.
    """
    own = adapter.head
    quantizer = head_quantizer(bits)
    if quantizer is None:
        return own
    if isinstance(quantizer, RtnInt4Config) and adapter.hidden_size % GROUP_SIZE:
        raise UserError(
            f"quant.head={bits}: the width {adapter.hidden_size} of the LM head is not a multiple "
            f"of {GROUP_SIZE}: use quant.head=int8 or none"
        )
    with torch.no_grad():
        weight = _quantized(quantizer, own.linear.get_parameter("weight"))
    bias = getattr(own.linear, "bias", None)
    obstacle = kernel_obstacle(weight, adapter.dtype, adapter.device)
    if obstacle is None and kernels:
        return Head(own.norm, kernel_linear(weight, bias))
    if kernels:
        tell_no_kernel(quantizer, str(obstacle), "the LM head")
    return Head(own.norm, dense_linear(weight.dequantize(adapter.dtype), bias))


def head_backend(adapter: BackboneAdapter, head: Head) -> Backend | None:
    """What a head's linear runs on; None: it is the backbone's own."""
    if head is adapter.head:
        return None
    return head.linear.backend if isinstance(head.linear, KernelLinear) else "dequantized"


def _quantized(quantizer: Quantizer, weight: torch.Tensor) -> QuantizedWeight:
    """Quantizes some rows at a time: all of them in float32 would be twice the head and more."""
    parts = [quantize(quantizer, rows, "lm_head") for rows in weight.split(_ROWS)]
    joined = {name: torch.cat([vars(part)[name] for part in parts]) for name in vars(parts[0])}
    return type(parts[0])(**joined)
