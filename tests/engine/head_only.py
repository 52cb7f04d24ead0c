"""One linear of the compiled engine by itself: the LM head of a model without layers."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import nn

from river_llm.engine.native.compilation import load_library
from river_llm.engine.native.weights import ModelRecord, linear_record
from river_llm.quant import rtn_int4, rtn_int8
from river_llm.quant.int4_linear import Int4Linear
from river_llm.quant.int8_linear import Int8Linear


@dataclass(frozen=True)
class Answer:
    """What `river_head` gives: logits [count, rows], and for each activation the largest ones."""

    logits: torch.Tensor
    tokens: list[int]
    peaks: list[float]
    seconds: list[float]


def head(linear: nn.Module, inputs: torch.Tensor, signs: torch.Tensor, threads: int = 1) -> Answer:
    """Multiplies `linear` by the activations `signs * inputs`, exactly these.

    The final norm comes first: of states +-1 it leaves +-1, which its weight `inputs` multiplies.

    Args:
        linear: what :func:`linear_record` describes.
        inputs: [columns] in the model's dtype.
        signs: +-1 (or what else a state may be), [count, columns] in the model's dtype.
        threads: of the pool, which is left at one.
    """
    calls = load_library().calls
    count, columns = signs.shape
    rows = linear.out_features
    model = ModelRecord(
        hidden=columns,
        heads=1,
        kv_heads=1,
        head_dim=2,
        intermediate=columns,
        vocab=rows,
        batch=1,
        slots=1,
        epsilon=0.0,
        scaling=1.0,
        final_norm=inputs.data_ptr(),
        head=linear_record(linear),
    )
    handle = calls.river_create(ctypes.byref(model), int(inputs.dtype == torch.bfloat16))
    logits = torch.empty(count, rows, dtype=inputs.dtype)
    tokens = (ctypes.c_int64 * count)()
    peaks, seconds = (ctypes.c_double * count)(), (ctypes.c_double * count)()
    try:
        calls.river_set_threads(threads)
        calls.river_head(handle, signs.data_ptr(), count, logits.data_ptr(), tokens, peaks, seconds)
    finally:
        calls.river_set_threads(1)
        calls.river_destroy(handle)
    return Answer(logits, list(tokens), list(peaks), list(seconds))


def dense(weight: torch.Tensor, bias: torch.Tensor | None = None) -> nn.Linear:
    """A linear over a given weight [rows, columns]."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    linear.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias, requires_grad=False)
    return linear


@dataclass(frozen=True)
class Case:
    """A linear, the float64 matrix it stands for, and how far a product may be off.

    `off` [rows, columns]: what one unit of an activation's group maximum may change a product.
    """

    linear: nn.Module
    matrix: torch.Tensor
    terms: torch.Tensor
    off: torch.Tensor


def make_case(
    kind: str, rows: int, columns: int, bias: bool, dtype: torch.dtype, seed: int = 0
) -> Case:
    """A random linear: kind `float`, `bf16`, `int8` or `int4 <group>`; its bias is in `dtype`."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, columns, generator=generator)
    added = torch.randn(rows, generator=generator).to(dtype) if bias else None
    parameter = None if added is None else nn.Parameter(added, requires_grad=False)
    nothing = torch.zeros(rows, columns, dtype=torch.float64)
    if kind in ("float", "bf16"):
        kept = weight if kind == "float" else weight.bfloat16()
        matrix = kept.double()
        return Case(dense(kept, added), matrix, matrix.abs(), nothing)
    if kind == "int8":
        coded = rtn_int8.quantize(weight)
        matrix = coded.codes.double() * coded.scale.double()[:, None]
        return Case(Int8Linear(coded, parameter), matrix, matrix.abs(), nothing)
    group = int(kind.removeprefix("int4 "))
    grouped = rtn_int4.quantize(weight.view(rows, -1, group))
    scale, zero = (
        part.double().repeat_interleave(group, dim=1) for part in (grouped.scale, grouped.zero)
    )
    matrix = (grouped.codes.double() - 8) * scale + zero
    # code * x, 8 * x and zero * x are summed apart; x is off by half a step of its group, of which
    # 32512 make the largest.
    terms = 16 * scale.abs() + zero.abs()
    return Case(Int4Linear(grouped, parameter), matrix, terms, terms / (2 * 32512))
