"""From names of arms to arms that can be timed."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import torch
from tqdm import tqdm

from river_llm.benchmark.arms import (
    EAGER_NO_EXIT,
    HF_GENERATE,
    LLAMA_CPP,
    NO_EXIT,
    parse_arms,
)
from river_llm.benchmark.decoders import DecoderArm, decoder_arm
from river_llm.benchmark.llama_cpp import GgufTraffic, LlamaCpp, gguf_path
from river_llm.benchmark.rounds import TimedArm
from river_llm.benchmark.settings import BenchConfig
from river_llm.benchmark.transformers_arm import TransformersArm
from river_llm.config import EagerConfig, NeverConfig, NoExitConfig
from river_llm.engine.halves import HalvesExecutor
from river_llm.errors import UserError
from river_llm.evaluation.runtime import Runtime
from river_llm.models.generate import CACHES

EAGER = EagerConfig().name


@dataclass(frozen=True)
class BuiltArms:
    """All arms of a benchmark, with what they are fed.

    Attributes:
        arms: in the order of the table.
        prompt: token ids of the longest context; shorter ones are its beginnings.
        engine: that no_exit really ran on.
    """

    arms: list[TimedArm]
    prompt: list[int]
    engine: str

    def compile_seconds(self) -> float:
        """Time that this process spent compiling engines or capturing graphs; 0: none."""
        executors = [arm.decoder.executor for arm in self.arms if isinstance(arm, DecoderArm)]
        spent = [e.compile_seconds for e in executors if isinstance(e, HalvesExecutor)]
        return max(spent, default=0.0)


def build_arms(config: BenchConfig, runtime: Runtime) -> BuiltArms:
    """Builds every arm once, with room for the longest context.

    Raises:
        UserError: an arm or context that this model does not have, a peer that is missing.
    """
    adapter = runtime.adapter
    slots = max(config.contexts) + config.steps + 1
    if slots > adapter.context:
        raise UserError(
            f"contexts={max(config.contexts)} with steps={config.steps} exceeds "
            f"{adapter.context_words}: give less"
        )
    names = parse_arms(config.arms, adapter.num_layers, config.gguf is not None)
    draw = random.Random(config.seed)
    prompt = [draw.randrange(adapter.vocab_size) for _ in range(max(config.contexts))]
    tokens = [draw.randrange(adapter.vocab_size) for _ in range(config.steps)]
    # First, since it may be refused, and decoders take a while to build.
    llama = [_llama_cpp(config, runtime, slots) for arm in names if arm.name == LLAMA_CPP]
    built: list[TimedArm] = []
    engine: str = config.engine.name
    # A runtime keeps one river: the arms on another quantizer come behind all that share one.
    decoders: dict[str, DecoderArm] = {}
    own_methods = [arm for arm in names if arm.method is not None]
    for arm in tqdm(sorted(own_methods, key=lambda arm: arm.quant is not None), "building arms"):
        run = config.run(arm.method or NoExitConfig(), arm.criterion, arm.quant)
        decoders[arm.name] = decoder_arm(arm.name, runtime, run, tokens, slots)
    for arm in names:
        if arm.name == LLAMA_CPP:
            built += llama
        elif arm.name == HF_GENERATE:
            built += [TransformersArm(adapter, cache, config.steps) for cache in CACHES]
        else:
            own = decoders[arm.name]
            built.append(own)
            if arm.name == NO_EXIT:
                engine = own.decoder.executor.name
                if engine != EAGER:
                    eager = replace(config.run(NoExitConfig(), NeverConfig()), engine=EagerConfig())
                    built.append(decoder_arm(EAGER_NO_EXIT, runtime, eager, tokens, slots))
    return BuiltArms(built, prompt, engine)


def _llama_cpp(config: BenchConfig, runtime: Runtime, slots: int) -> LlamaCpp:
    assert config.gguf is not None
    path = gguf_path(config.gguf)
    traffic = GgufTraffic(path)
    if traffic.vocab_size < runtime.adapter.vocab_size:
        raise UserError(
            f"gguf={config.gguf} knows {traffic.vocab_size} tokens, the model "
            f"{runtime.adapter.vocab_size}: give a GGUF file of the same model"
        )
    return LlamaCpp(path, traffic, torch.get_num_threads(), slots, config.steps)
