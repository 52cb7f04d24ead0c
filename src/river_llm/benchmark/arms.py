"""Names of arms, e.g. `river@3`: one parser from a name to what is timed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from river_llm.config import (
    CriterionConfig,
    FixedConfig,
    FullQuantConfig,
    MaskConfig,
    Method,
    MonoDecreasingConfig,
    NeverConfig,
    NoExitConfig,
    QuantConfig,
    QuantDecodeConfig,
    RecomputeConfig,
    RiverConfig,
    RtnInt8Config,
    SimilarityConfig,
    StatePropagationConfig,
    StaticFirstConfig,
    StaticLastConfig,
)
from river_llm.errors import UserError

NO_EXIT = "no_exit"
EAGER_NO_EXIT = "no_exit/eager"
INT8 = "full_quant/int8"
HF_GENERATE = "hf_generate"
LLAMA_CPP = "llama_cpp"
PEERS = (HF_GENERATE, LLAMA_CPP)

_PLAIN: dict[str, Method] = {
    NO_EXIT: NoExitConfig(),
    "full_quant": FullQuantConfig(),
    "quant_decode": QuantDecodeConfig(),
}
_STATIC: dict[str, Callable[..., Method]] = {
    "static_first": StaticFirstConfig,
    "static_last": StaticLastConfig,
}
# The prompt runs in the backbone wherever a method lets it: decoding alone is compared.
_PLANNED: dict[str, Method] = {
    "river": RiverConfig(prefill="backbone"),
    "recompute": RecomputeConfig(),
    "mask": MaskConfig(),
    "state_propagation": StatePropagationConfig(),
    "mono_decreasing": MonoDecreasingConfig(form="cap"),
}
FORMS = ", ".join(
    (
        *PEERS,
        *_PLAIN,
        *(f"{name}@d" for name in _PLANNED),
        *(f"{name}@k" for name in _STATIC),
        "river~tau",
        "no_exit~tau",
        INT8,
    )
)

_DEFAULT = (
    HF_GENERATE,
    NO_EXIT,
    "full_quant",
    "river@0",
    "river@3",
    "river@8",
    "river@15",
    "static_first@3",
    "recompute@3",
    "mask@3",
    "state_propagation@3",
    "mono_decreasing@3",
)


@dataclass(frozen=True)
class Arm:
    """What is timed under a name.

    Attributes:
        name: as given.
        method: how the project's own decoder works; None: a peer.
        criterion: where a token leaves the backbone.
        depth: planned depth or number of layers at 16 bits; None: the name gives none.
        quant: of the river; None: the benchmark's.
    """

    name: str
    method: Method | None = None
    criterion: CriterionConfig = field(default_factory=NeverConfig)
    depth: int | None = None
    quant: QuantConfig | None = None


def parse_arm(name: str) -> Arm:
    """What an arm's name stands for.

    Raises:
        UserError: no arm has this form.
    """
    if name in PEERS:
        return Arm(name)
    if name in _PLAIN:
        return Arm(name, _PLAIN[name])
    if name == INT8:
        return Arm(name, _PLAIN["full_quant"], quant=RtnInt8Config())
    planned = re.fullmatch(r"([a-z_]+)@(\d+)", name)
    if planned and planned[1] in _PLANNED:
        depth = int(planned[2])
        return Arm(name, _PLANNED[planned[1]], FixedConfig(depth=depth), depth)
    if planned and planned[1] in _STATIC:
        count = int(planned[2])
        return Arm(name, _STATIC[planned[1]](k=count), depth=count)
    tested = re.fullmatch(r"(river|no_exit)~(\d+(?:\.\d+)?)", name)
    if tested and math.isfinite(tau := float(tested[2])):
        if tested[1] == "river":
            return Arm(name, _PLANNED["river"], SimilarityConfig(tau=tau))
        if tau <= 1:
            raise UserError(f"arms: {name} would exit: give a tau above 1, e.g. no_exit~2")
        # Where no test fires nothing is propagated: the backbone and its tests, without a river.
        return Arm(name, _PLANNED["state_propagation"], SimilarityConfig(tau=tau))
    raise UserError(f"arms: {name!r} is no arm: use one of {FORMS} (d, k: layers; tau: a number)")


def parse_arms(names: tuple[str, ...] | None, layers: int, gguf: bool) -> list[Arm]:
    """The arms of a benchmark, `no_exit` among them in any case.

    Args:
        names: as asked for; None: the default arms.
        layers: number of backbone layers L; default arms beyond it are left out.
        gguf: whether a GGUF file is given.

    Raises:
        UserError: a form that is unknown, a depth beyond the model, `llama_cpp` without a file.
    """
    if names is None:
        known = [parse_arm(name) for name in _DEFAULT]
        arms = [arm for arm in known if arm.depth is None or arm.depth <= layers]
        return [*arms, Arm(LLAMA_CPP)] if gguf else arms
    arms = [parse_arm(name) for name in names]
    for arm in arms:
        if arm.depth is not None and arm.depth > layers:
            raise UserError(f"arms: {arm.name}: this model has {layers} layers; give 0 to {layers}")
        if arm.name == LLAMA_CPP and not gguf:
            raise UserError("arms: llama_cpp needs a file: give gguf=FILE or gguf=embedded")
    # Every ratio is to it.
    return arms if any(arm.name == NO_EXIT for arm in arms) else [parse_arm(NO_EXIT), *arms]
