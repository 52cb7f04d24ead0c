"""KV strategies: one file each."""

from river_llm.decoding.decoder import Decoder, StepOutput
from river_llm.decoding.full_quant import FullQuant
from river_llm.decoding.mask import Mask
from river_llm.decoding.mono_decreasing import (
    MonoDecreasingCap,
    MonoDecreasingSchedule,
    Schedule,
)
from river_llm.decoding.no_exit import NoExit
from river_llm.decoding.recompute import Recompute
from river_llm.decoding.river import River
from river_llm.decoding.state_propagation import StatePropagation
from river_llm.decoding.static import Static

__all__ = [
    "Decoder",
    "FullQuant",
    "Mask",
    "MonoDecreasingCap",
    "MonoDecreasingSchedule",
    "NoExit",
    "Recompute",
    "River",
    "Schedule",
    "StatePropagation",
    "Static",
    "StepOutput",
]
