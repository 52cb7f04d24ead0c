"""The quantizer that a configuration names: what it makes, and what is recorded of it."""

from __future__ import annotations

from typing import Any

import torch

from river_llm.config import (
    HqqInt4Config,
    NoQuantConfig,
    QuantConfig,
    RtnInt4Config,
    RtnInt8Config,
    quantizer_settings,
)
from river_llm.quant import hqq, rtn_int4, rtn_int8
from river_llm.quant.grid import GroupedInt4, finite, split_groups
from river_llm.quant.rtn_int8 import ChannelInt8

Quantizer = HqqInt4Config | RtnInt4Config | RtnInt8Config
"""The configurations that quantize at all."""

QuantizedWeight = GroupedInt4 | ChannelInt8


def quant_record(config: QuantConfig) -> dict[str, Any]:
    """The river's quantizer and all its settings, as plain data for records."""
    own = quantizer_settings(config)
    match config:
        case HqqInt4Config():
            return {**own, **hqq.SETTINGS}
        case RtnInt4Config():
            return {**own, **rtn_int4.SETTINGS}
        case RtnInt8Config():
            return {**own, **rtn_int8.SETTINGS}
        case NoQuantConfig():
            return own


def quantize(config: Quantizer, weight: torch.Tensor, name: str) -> QuantizedWeight:
    """Quantizes a weight [N, K].

    Args:
        config: the quantizer with its settings.
        weight: the matrix; any floating dtype.
        name: of the layer, for errors.

    Raises:
        UserError: a weight is not finite, or the group size does not divide the width.
    """
    match config:
        case HqqInt4Config():
            return hqq.quantize(split_groups(weight, config.group_size, name))
        case RtnInt4Config():
            return rtn_int4.quantize(split_groups(weight, config.group_size, name))
        case RtnInt8Config():
            return rtn_int8.quantize(finite(weight, name))


def check_width(config: Quantizer, weight: torch.Tensor, name: str) -> None:
    """Refuses a width as :func:`quantize` would, at the cost of one row."""
    if not isinstance(config, RtnInt8Config):
        split_groups(weight[:1], config.group_size, name)


def weight_type(config: Quantizer) -> type[QuantizedWeight]:
    """The kind of weight that :func:`quantize` gives."""
    return ChannelInt8 if isinstance(config, RtnInt8Config) else GroupedInt4
