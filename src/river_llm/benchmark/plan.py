"""What the check of a bare machine runs, and how it shares out the time: no torch, no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ARMS = (
    "no_exit",
    "river@3",
    "full_quant",
    "no_exit~2",
    "hf_generate",
    "river@0",
    "river@1",
    "river@8",
    "static_first@3",
    "full_quant/int8",
)
"""The most important first: where time is short the last ones are dropped."""

LEAST_SECONDS = 10.0
"""A part that would get less is not begun."""


@dataclass(frozen=True)
class Part:
    """One benchmark of the check.

    Attributes:
        shape: of the random weights.
        engine: of all arms.
        weight: its share of the time, in proportion to the others'.
    """

    shape: str
    engine: str
    weight: float

    @property
    def name(self) -> str:
        """As tables and files call it."""
        return f"{self.shape}-{self.engine}"


@dataclass(frozen=True)
class Plan:
    """A whole check.

    Attributes:
        device: as `model.device` takes it.
        tests: arguments of pytest, the files first.
        tests_share: of the time that the tests may take.
        parts: in the order in which they run; the small shape first, since it soon gives a table.
        settings: overrides of every benchmark.
    """

    device: str
    tests: tuple[str, ...]
    tests_share: float
    parts: tuple[Part, ...]
    settings: tuple[str, ...]

    def command(self, part: Part, folder: str, seconds: float) -> list[str]:
        """Arguments of scripts/bench_decode.py."""
        return [
            "model=random",
            f"model.shape={part.shape}",
            f"model.device={self.device}",
            f"engine={part.engine}",
            f"arms=[{','.join(map(_quoted, ARMS))}]",
            *self.settings,
            f"output.dir={_quoted(folder)}",
            f"budget_s={seconds:.1f}",
        ]


CUDA = Plan(
    device="cuda",
    tests=("tests/cuda", "tests/test_anchors.py", "tests/test_kv_strategies.py"),
    tests_share=0.25,
    parts=(
        Part("llama3.2_1b", "cuda_graphs", 1),
        Part("llama3.1_8b", "cuda_graphs", 2),
        Part("llama3.1_8b", "eager", 1.5),
        Part("llama3.2_1b", "eager", 1),
    ),
    settings=("quant=rtn_int4", "contexts=[512]", "steps=16", "rounds=7"),
)
CPU = Plan(
    device="cpu",
    tests=("tests/test_anchors.py", "-k", "eager and no_exit"),
    tests_share=0.4,
    parts=(Part("tiny", "eager", 1), Part("tiny", "compiled", 1)),
    settings=("quant=rtn_int4", "contexts=[32]", "steps=4", "rounds=3"),
)


def shares(parts: Sequence[Part], left: float) -> list[float]:
    """Seconds of each part that is still to come, in proportion to their weights."""
    total = sum(part.weight for part in parts)
    return [left * part.weight / total for part in parts]


def _quoted(text: str) -> str:
    """As Hydra reads any text as it is."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
