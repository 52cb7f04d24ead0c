"""Linears and the choice of tokens in C++, against float64 products of the dequantized weights."""

from __future__ import annotations

import math

import pytest
import torch
from head_only import Answer, dense, head, make_case

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

# model's dtype, kind of weight, rows, columns: rows that no tile divides, columns that no vector
# divides where the kind allows them.
SHAPES = [
    ("fp32", "float", 97, 64),
    ("fp32", "float", 3, 33),
    ("fp32", "int8", 333, 48),
    ("fp32", "int4 32", 192, 96),
    ("bf16", "bf16", 97, 64),
    ("bf16", "bf16", 333, 100),
    ("bf16", "bf16", 1, 31),
    ("bf16", "bf16", 6, 7),
    ("bf16", "bf16", 2050, 40),
    ("bf16", "float", 50, 72),
    ("bf16", "int8", 97, 64),
    ("bf16", "int8", 334, 48),
    ("bf16", "int8", 5, 16),
    ("bf16", "int4 32", 64, 32),
    ("bf16", "int4 32", 192, 96),
    ("bf16", "int4 64", 128, 192),
    ("bf16", "int4 128", 320, 640),
    ("bf16", "int4 256", 64, 768),
]


def activations(dtype: torch.dtype, count: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What norm weights and states make: numbers of very different sizes, random signs."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(columns, generator=generator) * 10 ** torch.linspace(-2, 1, columns)
    signs = torch.randint(0, 2, (count, columns), generator=generator) * 2.0 - 1
    return inputs.to(dtype), signs.to(dtype)


def tolerance(case, inputs, signs, kind: str, dtype: torch.dtype, value: torch.Tensor):
    """An upper bound of the error, from the arithmetic alone.

    Float32 sums of K terms: K * 2^-23 of the sum of their sizes. bf16 results: half of a last
    place, 2^-9 (2^-8 with the errors before it). int4: activations are 16-bit fixed point.
    """
    size = signs.double().abs() * inputs.double().abs()
    columns = len(inputs)
    bound = (columns + 4) * 2**-23 * (size @ case.terms.T + value.abs())
    if kind.startswith("int4"):
        group = int(kind.removeprefix("int4 "))
        largest = size.view(len(size), -1, group).amax(-1).repeat_interleave(group, dim=1)
        bound += largest @ case.off.T
    if dtype == torch.bfloat16:
        bound += 2**-8 * value.abs()
    return bound + 1e-30


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("name", "kind", "rows", "columns"), SHAPES)
def test_products_equal_those_of_float64_for_any_count_and_threads(name, kind, rows, columns, bias):
    dtype = DTYPES[name]
    case = make_case(kind, rows, columns, bias, dtype)
    for count in (1, 2, 3, 4, 5, 7, 16):
        inputs, signs = activations(dtype, count, columns)
        one = head(case.linear, inputs, signs).logits
        value = (signs.double() * inputs.double()) @ case.matrix.T
        if bias:
            value += case.linear.bias.double()
        error = (one.double() - value).abs()
        assert (error <= tolerance(case, inputs, signs, kind, dtype, value)).all(), count
        for threads in (2, 3):
            other = head(case.linear, inputs, signs, threads).logits
            assert torch.equal(other, one), f"{threads} threads, {count} activations"


@pytest.mark.parametrize(("name", "kind", "rows", "columns"), SHAPES)
def test_the_bound_notices_one_weight_off_by_a_hundredth_of_the_rest(name, kind, rows, columns):
    """What tells that the tolerance is no blank cheque: it is below what an error would be."""
    dtype = DTYPES[name]
    case = make_case(kind, rows, columns, False, dtype)
    inputs, signs = activations(dtype, 1, columns)
    logits = head(case.linear, inputs, signs).logits.double()
    wrong = case.matrix.clone()
    wrong[:, -1] += 0.5
    value = (signs.double() * inputs.double()) @ wrong.T
    error = (logits - value).abs()
    assert (error > tolerance(case, inputs, signs, kind, dtype, value)).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, -1])
@pytest.mark.parametrize(("name", "kind", "rows", "columns"), SHAPES)
def test_a_number_that_is_none_shows_in_every_output(name, kind, rows, columns, place, bad):
    dtype = DTYPES[name]
    case = make_case(kind, rows, columns, False, dtype)
    inputs, signs = activations(dtype, 2, columns)
    inputs[place] = bad
    answer = head(case.linear, inputs, signs)
    assert not answer.logits.isfinite().any()


@pytest.mark.parametrize(("name", "kind", "rows", "columns"), SHAPES)
def test_a_row_of_nan_leaves_the_others_alone(name, kind, rows, columns):
    dtype = DTYPES[name]
    case = make_case(kind, rows, columns, False, dtype)
    inputs, signs = activations(dtype, 6, columns)
    expected = head(case.linear, inputs, signs).logits
    signs[4, 0] = math.nan
    answer = head(case.linear, inputs, signs)
    assert answer.logits[4].isnan().all()
    assert math.isnan(answer.peaks[4])
    others = [0, 1, 2, 3, 5]
    assert torch.equal(answer.logits[others], expected[others])
    assert not any(math.isnan(answer.peaks[n]) for n in others)


@pytest.mark.parametrize("name", DTYPES)
def test_zeros_and_the_smallest_numbers_give_no_nan(name):
    dtype = DTYPES[name]
    for kind in ("int4 32", "int8", "float" if name == "fp32" else "bf16"):
        case = make_case(kind, 64, 64, False, dtype)
        for size in (0.0, 1e-45, 1e-40, 1e-37):
            inputs = torch.full((64,), size).to(dtype)
            logits = head(case.linear, inputs, torch.ones(3, 64, dtype=dtype)).logits
            assert logits.abs().max() < 1e-30, (kind, size)


# --- the choice ---------------------------------------------------------------------------

VOCAB = 333


def of_logits(wanted: torch.Tensor, threads: int) -> Answer:
    """A head whose logits are `wanted` [V] for each of 3 activations."""
    weight = torch.zeros(len(wanted), 16, dtype=wanted.dtype)
    weight[:, 0] = wanted
    inputs = torch.zeros(16, dtype=wanted.dtype)
    inputs[0] = 1
    return head(dense(weight), inputs, torch.ones(3, 16, dtype=wanted.dtype), threads)


def choices() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    noise = torch.randn(VOCAB, generator=generator)
    out = {
        "no ties": noise,
        "five levels": torch.randint(0, 5, (VOCAB,), generator=generator).float(),
        "all equal": torch.zeros(VOCAB),
        "two largest, far apart": noise.index_fill(0, torch.tensor([31, 300]), 9.0),
        "two largest, adjacent": noise.index_fill(0, torch.tensor([31, 32]), 9.0),
        "the last": noise.index_fill(0, torch.tensor([VOCAB - 1]), 9.0),
        "the first": noise.index_fill(0, torch.tensor([0]), 9.0),
        "all below zero": -noise.abs() - 1,
        "one above minus infinity": torch.full((VOCAB,), -math.inf).index_fill(
            0, torch.tensor([200]), 1.0
        ),
        "minus infinity everywhere": torch.full((VOCAB,), -math.inf),
        "plus infinity": noise.index_fill(0, torch.tensor([77]), math.inf),
    }
    return out


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("case", choices())
def test_the_choice_is_that_of_torch(case, name, threads):
    wanted = choices()[case].to(DTYPES[name])
    answer = of_logits(wanted, threads)
    assert torch.equal(answer.logits[1], wanted)
    # max(-1) takes the first of equal numbers; sorted numbers know no order of equals.
    assert answer.tokens == [int(wanted.float().max(-1).indices)] * 3
    first, second = sorted(wanted.tolist(), reverse=True)[:2]
    assert answer.peaks == [first] * 3
    assert answer.seconds == [second] * 3


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("at", [[0], [VOCAB - 1], [40, 41], [10, 300], list(range(VOCAB))])
def test_one_logit_that_is_nan_makes_the_peak_nan(at, threads):
    wanted = choices()["five levels"].index_fill(0, torch.tensor(at), math.nan)
    answer = of_logits(wanted, threads)
    assert all(math.isnan(peak) for peak in answer.peaks)
    assert answer.tokens == [int(wanted.max(-1).indices)] * 3 == [at[0]] * 3
