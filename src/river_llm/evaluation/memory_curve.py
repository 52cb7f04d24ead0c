"""Peak memory of one method over the context, in a process of its own without any other arm.

    python -m river_llm.evaluation.memory_curve < request.json

The request holds `config`, `contexts` and `prompt_tokens`; the last line of stdout is a JSON list
with the keys of :func:`measure_curve`. The contexts come one after the other: the cache of one has
left memory before the next is made.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from river_llm.config import RunConfig, parse
from river_llm.decoding import Decoder
from river_llm.evaluation.peak import ask_process
from river_llm.evaluation.peak_worker import peak_of, prepare
from river_llm.evaluation.resident import anonymous_bytes, give_back_freed, tensor_bytes
from river_llm.models.loading import resolve_device


def measure_curve(
    config: RunConfig, contexts: Sequence[int], prompt_tokens: int
) -> list[dict[str, Any]]:
    """Measures in a process of its own.

    Args:
        config: the method with all its settings.
        contexts: slots of the cache, which is filled with zeros from the start.
        prompt_tokens: length of the prompt, random tokens; one decode step follows it.

    Returns:
        For each context: `context`, `peak_bytes` (without what the process held before the model
        was loaded), `tensor_bytes` (all tensors that live after the step), `parts` (see
        :meth:`river_llm.evaluation.runtime.Runtime.memory`).

    Raises:
        UserError: the process failed.
    """
    request = {
        "config": asdict(config),
        "contexts": list(contexts),
        "prompt_tokens": prompt_tokens,
    }
    points: list[dict[str, Any]] = ask_process("river_llm.evaluation.memory_curve", request)
    return points


def answer(config: RunConfig, contexts: Sequence[int], prompt_tokens: int) -> list[dict[str, Any]]:
    """See :func:`measure_curve`; in the process itself."""
    give_back_freed()
    before = anonymous_bytes() if resolve_device(config.model.device).type == "cpu" else 0
    runtime, config = prepare(config)
    adapter = runtime.adapter
    numbers = random.Random(config.seed)
    prompt = [numbers.randrange(adapter.vocab_size) for _ in range(prompt_tokens)]
    points = []
    for context in contexts:
        decoder = runtime.decoder(config, runtime.criterion(config, None), context)
        give_back_freed()
        peak = peak_of(partial(_prompt_and_step, decoder, prompt), adapter.device) - before
        points.append(
            {
                "context": context,
                "peak_bytes": peak,
                "tensor_bytes": tensor_bytes(adapter.device),
                "parts": runtime.memory(config, decoder),
            }
        )
        # Before the next one's cache is made.
        del decoder
    return points


def _prompt_and_step(decoder: Decoder, prompt: list[int]) -> None:
    decoder.prefill([prompt])
    decoder.step()


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    asked["config"] = parse(asked["config"])
    print(json.dumps(answer(**asked)))
