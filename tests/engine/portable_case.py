"""Runs the two engines with the C++ compiled for plain AVX2; started by test_portable.

PyTorch is told to use no AVX-512 either (ATEN_CPU_CAPABILITY), so that it packs int4 in blocks of
32 rows. Prints one line of JSON: what was compiled for, the block, and for each case the largest
error over the steps and how many of the tokens are equal.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from river_llm.engine.native import compilation

compilation.FLAGS = tuple(
    "-march=x86-64-v3" if flag == "-march=native" else flag for flag in compilation.FLAGS
)

from pair import both, make_model  # noqa: E402
from test_compiled_bf16 import DEPTHS, decode  # noqa: E402

from river_llm.cache import Source  # noqa: E402
from river_llm.config import NoQuantConfig, RtnInt4Config, RtnInt8Config  # noqa: E402
from river_llm.quant.int4_linear import packed_block  # noqa: E402

CASES = {
    "fp32": (torch.float32, NoQuantConfig()),
    "bf16": (torch.bfloat16, NoQuantConfig()),
    "int8": (torch.bfloat16, RtnInt8Config()),
    "int4": (torch.bfloat16, RtnInt4Config(group_size=64)),
}


def main() -> None:
    # Heads of 32 hold one block of AVX2's packing; AVX-512's blocks of 64 would part them.
    found = {}
    for name, (dtype, quant) in CASES.items():
        pair = both(make_model(32, dtype), Path(sys.argv[1]), quant)
        errors, equal = decode(pair, DEPTHS["mixed"])
        backends = sorted(
            {b for layer in pair[0]._stacks[Source.RIVER].backends for b in layer.values()}
        )
        found[name] = {"error": max(errors), "equal": equal, "backends": backends}
    print(
        json.dumps(
            {
                "flags": compilation.FLAGS,
                "block": packed_block(),
                "cases": found,
                "torch": capability(),
            }
        )
    )


def capability() -> str:
    name: str = torch.backends.cpu.get_cpu_capability()
    return name


main()
