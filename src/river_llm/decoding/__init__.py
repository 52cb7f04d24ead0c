"""KV strategies: one file each."""

from river_llm.decoding.decoder import Decoder, StepOutput
from river_llm.decoding.full_quant import FullQuant
from river_llm.decoding.no_exit import NoExit
from river_llm.decoding.river import River

__all__ = ["Decoder", "FullQuant", "NoExit", "River", "StepOutput"]
