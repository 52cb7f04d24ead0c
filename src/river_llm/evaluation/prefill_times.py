"""Time to first token over the length of the prompt, all arms in one process and in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd
from tqdm import tqdm

from river_llm.config import FullQuantConfig, Method, NoExitConfig, RiverConfig, RunConfig
from river_llm.decoding import Decoder
from river_llm.errors import UserError
from river_llm.evaluation.runtime import Runtime
from river_llm.timing import Timer

METHODS: dict[str, Method] = {
    "no_exit": NoExitConfig(),
    "full_quant": FullQuantConfig(),
    "river, prefill sequence": RiverConfig(prefill="sequence"),
    "river, prefill backbone": RiverConfig(prefill="backbone"),
}
"""The arms, by the name of their line in figures."""


def prompt_of(texts: Sequence[Sequence[int]], first: int, length: int) -> list[int]:
    """The first `length` token ids of some texts in a row, from text `first` on and around.

    Args:
        texts: token ids of real prompts, one at least and none empty.
        first: index of the first text.
        length: tokens wanted.
    """
    ids: list[int] = []
    while len(ids) < length:
        ids += texts[first % len(texts)]
        first += 1
    return ids[:length]


def prefill_decoders(runtime: Runtime, config: RunConfig, longest: int) -> dict[str, Decoder]:
    """A decoder for each arm with a cache of its own.

    Args:
        runtime: the loaded model.
        config: its criterion is that of River's sequence-level exit.
        longest: tokens of the longest prompt.

    Raises:
        UserError: a prompt beyond the model's context.
    """
    if longest > (context := runtime.adapter.context):
        raise UserError(f"a prompt of {longest} tokens exceeds the context of {context}")
    decoders = {}
    for name, method in METHODS.items():
        own = replace(config, method=method)
        decoders[name] = runtime.decoder(own, runtime.criterion(own, None), longest)
    return decoders


def time_prefills(
    decoders: Mapping[str, Decoder],
    texts: Sequence[Sequence[int]],
    lengths: Sequence[int],
    rounds: int,
) -> pd.DataFrame:
    """Times the prefill of every arm and length once in each round.

    The arms' order is rotated by one from round to round and runs backwards in every other
    round; each round has another prompt. One prefill of each arm and length goes before.

    Args:
        decoders: by the name of the arm.
        texts: token ids of real prompts.
        lengths: of the prompts, in tokens.
        rounds: how often each is timed.

    Returns:
        One row per prefill: arm, length, round, seconds (to the first token, which is read back
        to the host), depth (backbone layers that the prompt ran through).
    """
    rows = []
    names = list(decoders)
    with tqdm(total=len(lengths) * rounds * len(names), desc="prefill", unit="prefill") as bar:
        for length in lengths:
            for name in names:
                decoders[name].prefill([prompt_of(texts, 0, length)])
            for number in range(rounds):
                prompt = prompt_of(texts, number, length)
                start = number % len(names)
                order = [*names[start:], *names[:start]]
                for name in order[::-1] if number % 2 else order:
                    timer = Timer(decoders[name].executor.device)
                    with timer:
                        output = decoders[name].prefill([prompt])
                    depth = output.trace.depth
                    rows.append((name, length, number, timer.seconds, depth))
                    bar.update()
    return pd.DataFrame(rows, columns=["arm", "length", "round", "seconds", "depth"])
