"""Where the weights of a stack lie in memory, as the C++ side reads them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from river_llm.engine.executor import EngineUnavailable
from river_llm.quant.int4_linear import Int4Linear, packed_block
from river_llm.quant.int8_linear import Int8Linear

_DENSE = {torch.float32: 0, torch.bfloat16: 1}
_INT8, _INT4 = 2, 3
PROJECTIONS = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
FUSED = {
    "self_attn.qkv_proj": ("q", "k", "v"),
    "mlp.gate_up_proj": ("gate", "up"),
}
"""Linears that hold several of the others, one below the other (Phi-3)."""
NORMS = {
    "input_norm": "input_layernorm",
    "post_norm": "post_attention_layernorm",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
}


class LinearRecord(ctypes.Structure):
    """`Linear` of linear.hpp."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("rows", ctypes.c_int32),
        ("columns", ctypes.c_int32),
        ("group", ctypes.c_int32),
        ("block", ctypes.c_int32),
        ("padding", ctypes.c_int32),
        ("weight", ctypes.c_void_p),
        ("grid", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
    )


class LayerRecord(ctypes.Structure):
    """`Layer` of decode.cpp."""

    _fields_ = (
        *((name, LinearRecord) for name in PROJECTIONS),
        *((name, ctypes.c_void_p) for name in NORMS),
    )


class ModelRecord(ctypes.Structure):
    """`Model` of decode.cpp."""

    _fields_ = (
        *(
            (name, ctypes.c_int32)
            for name in ("hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocab")
        ),
        ("batch", ctypes.c_int32),
        ("slots", ctypes.c_int32),
        ("rotated", ctypes.c_int32),
        ("epsilon", ctypes.c_float),
        ("scaling", ctypes.c_float),
        *(
            (name, ctypes.c_void_p)
            for name in (
                *("cos", "sin", "query_scales"),
                *("keys", "values", "source", "embedding", "final_norm"),
            )
        ),
        ("head", LinearRecord),
    )


def address(tensor: torch.Tensor) -> int:
    """Where a tensor lies.

    Raises:
        EngineUnavailable: it is not contiguous.
    """
    if not tensor.is_contiguous():
        raise EngineUnavailable(f"a tensor {tuple(tensor.shape)} is not contiguous")
    return tensor.data_ptr()


def linear_record(linear: nn.Module) -> LinearRecord:
    """Describes a linear.

    Raises:
        EngineUnavailable: a kind, dtype or packing that the C++ side does not read.
    """
    bias = None if linear.bias is None else address(linear.bias)  # type: ignore[arg-type]
    if isinstance(linear, Int4Linear):
        rows, block = linear.out_features, packed_block()
        if block is None:
            raise EngineUnavailable("this processor packs 4-bit weights in an unknown way")
        if rows % block:
            raise EngineUnavailable(f"4-bit weights with {rows} rows: no multiple of {block}")
        return LinearRecord(
            kind=_INT4,
            rows=rows,
            columns=linear.in_features,
            group=linear.group_size,
            block=block,
            weight=address(linear.packed),
            grid=address(linear.scale_and_zero),
            bias=bias,
        )
    if isinstance(linear, Int8Linear):
        return LinearRecord(
            kind=_INT8,
            rows=linear.out_features,
            columns=linear.in_features,
            weight=address(linear.codes),
            grid=address(linear.scale),
            bias=bias,
        )
    if not isinstance(linear, nn.Linear) or linear.weight.dtype not in _DENSE:
        kind = type(linear).__name__
        raise EngineUnavailable(f"no kernel for {kind} of {getattr(linear, 'weight', None)!r:.40}")
    return LinearRecord(
        kind=_DENSE[linear.weight.dtype],
        rows=linear.out_features,
        columns=linear.in_features,
        weight=address(linear.weight),
        bias=bias,
    )


def layer_records(layers: Sequence[nn.Module]) -> Any:
    """Describes every layer of a stack: a ctypes array of :class:`LayerRecord`.

    Raises:
        EngineUnavailable: a layer with other parts than those of the Llama family.
    """
    return (LayerRecord * len(layers))(*[_layer_record(layer) for layer in layers])


def _layer_record(layer: nn.Module) -> LayerRecord:
    modules = dict(layer.named_modules())
    places = {name: place for name, place in PROJECTIONS.items() if place in modules}
    fused = [place for place in FUSED if place in modules]
    places |= {name: place for place in fused for name in FUSED[place]}
    known = {*places.values(), *NORMS.values()}
    strange = [
        name
        for name, module in modules.items()
        if name not in known and any(True for _ in module.parameters(recurse=False))
    ]
    lacking = [place for name, place in PROJECTIONS.items() if name not in places]
    lacking += [NORMS[name] for name in ("input_norm", "post_norm") if NORMS[name] not in modules]
    if strange or lacking:
        raise EngineUnavailable(f"a decoder layer has or lacks {(strange or lacking)[0]!r}")
    parts: dict[str, Any] = {name: linear_record(modules[place]) for name, place in places.items()}
    for place in fused:
        for name, first in zip(FUSED[place], _first_rows(modules, place), strict=True):
            _move(parts[name], modules[place], first)
    for name, place in NORMS.items():
        if place in modules:
            parts[name] = address(modules[place].weight)
    return LayerRecord(**parts)


def _first_rows(modules: dict[str, nn.Module], place: str) -> tuple[int, ...]:
    """Where the parts of a fused linear begin."""
    rows: int = modules[place].out_features  # type: ignore[assignment]
    if place == "mlp.gate_up_proj":
        return 0, rows // 2
    attn: Any = modules["self_attn"]
    width = attn.num_key_value_heads * attn.head_dim
    return 0, rows - 2 * width, rows - width


def _move(record: LinearRecord, linear: nn.Module, first: int) -> None:
    """Makes the record of a fused linear that of the part that begins at row `first`.

    Raises:
        EngineUnavailable: 4-bit rows that are packed together with those of another part.
    """
    grid_row = 2  # bytes of a bf16 number
    if record.kind == _INT4:
        if first % record.block:
            raise EngineUnavailable(
                f"4-bit weights are packed by {record.block} rows, and a part of a fused linear "
                f"begins at row {first}"
            )
        row, grid_row = record.columns // 2, 2 * grid_row
    elif record.kind == _INT8:
        row = record.columns
    else:
        row = record.columns * linear.weight.element_size()  # type: ignore[operator]
    record.weight += first * row
    if record.grid is not None:
        record.grid += first * grid_row
    if record.bias is not None:
        record.bias += first * linear.bias.element_size()  # type: ignore[operator]
