"""How early no_exit's own token could have been told: what the head says after every layer.

Two depths of a decode step, both on no_exit's own text and KV. The oracle depth is the smallest
one from which on the head predicts no_exit's token at every depth up to L; the first-hit depth is
the smallest one at which it does so at all, perhaps to lose the token again. A method that emits
from the exit state through this head keeps a token only where it exits at a hit, so no criterion,
however good, keeps all tokens at a lower mean depth than that of the first hits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from tqdm import tqdm

from river_llm.analysis.statistics import bootstrap_ratio
from river_llm.decoding import NoExit
from river_llm.engine.executor import Exit
from river_llm.errors import UserError
from river_llm.evaluation.numerics import named
from river_llm.evaluation.run import Run
from river_llm.evaluation.traffic import Traffic
from river_llm.generation import StopRules, generate

DEPTHS = ("oracle_depth", "first_hit_depth")


class PredictionRecorder(NoExit):
    """no_exit that records the token which final norm and head predict after every layer."""

    def reset(self) -> None:
        """Forgets the sequence and its predictions."""
        super().reset()
        self._predicted: list[torch.Tensor] = []

    def _run_step(self, slot: int) -> Exit:
        self.executor.begin(self._inputs(range(slot, slot + 1)))
        for layer in range(self.num_layers):
            self.executor.backbone(layer, layer + 1)
            # The same call as for the token itself, so that depth L gives exactly that token.
            self._predicted.append(self.executor.logits()[:, -1].float().max(-1).indices)
        return Exit(self.num_layers)

    def predictions(self) -> npt.NDArray[np.int64]:
        """Token ids [decode steps, L] since the prefill; column d-1 is for depth d.

        They stay on the device until here: a step reads the host for its token alone.
        """
        if not self._predicted:
            return np.empty((0, self.num_layers), dtype=np.int64)
        (flat,) = self.executor.read(torch.cat(self._predicted))
        return np.array(flat, dtype=np.int64).reshape(-1, self.num_layers)


def record_predictions(run: Run) -> dict[str, npt.NDArray[np.int64]]:
    """Generates no_exit's texts as the run would, and records them layer by layer.

    Args:
        run: of no_exit; its folder is neither read nor written.

    Returns:
        Sample id -> token ids [decode steps, L], see :meth:`PredictionRecorder.predictions`.
    """
    decoder = run.decoder()
    recorder = PredictionRecorder(decoder.executor, decoder.cache)
    model = run.runtime.model
    rules = StopRules(
        max_new_tokens=run.config.exp.max_new_tokens,
        eos_ids=model.eos_ids,
        stop_strings=run.task.stop_strings(model.chat),
    )
    found = {}
    with tqdm(run.prompts, desc="predictions of every layer", unit="prompt") as bar:
        for prompt in bar:
            key = prompt.sample.id
            with named(key, lambda: f"decode step {recorder.steps_done}"):
                for text in generate(recorder, prompt.ids, rules, model.decode):
                    bar.set_postfix(tokens=len(text.tokens))
            found[key] = recorder.predictions()
    return found


def oracle_depths(
    predicted: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Oracle depth and first-hit depth of each step, both 1..L.

    Args:
        predicted: token ids [steps, L], column d-1 at depth d; the last one is no_exit's token.
    """
    hit = predicted == predicted[:, -1:]
    held_to_the_top = np.logical_and.accumulate(hit[:, ::-1], axis=1).sum(axis=1)
    return predicted.shape[1] + 1 - held_to_the_top, hit.argmax(axis=1) + 1


def depth_frame(predicted: Mapping[str, npt.NDArray[np.int64]]) -> pd.DataFrame:
    """One row per decode step: id, step (0-based), oracle_depth, first_hit_depth.

    Args:
        predicted: sample id -> token ids [steps, L].

    Raises:
        UserError: no decode steps at all.
    """
    if not any(len(table) for table in predicted.values()):
        raise UserError("no decode steps: no text has a second token, raise limit= or --tokens")
    parts = []
    for key, table in predicted.items():
        oracle, first_hit = oracle_depths(table)
        columns = {"step": np.arange(len(table)), DEPTHS[0]: oracle, DEPTHS[1]: first_hit}
        parts.append(pd.DataFrame({"id": [key] * len(table), **columns}))
    frame = pd.concat(parts, ignore_index=True)
    return frame.astype({"step": "int32", DEPTHS[0]: "int16", DEPTHS[1]: "int16"})


def summarize_depths(
    frame: pd.DataFrame, layers: int, traffic: Traffic, prompt_tokens: Mapping[str, int]
) -> dict[str, Any]:
    """Figures of both depths.

    Args:
        frame: see :func:`depth_frame`.
        layers: L.
        traffic: of a method whose skipped layers read nothing.
        prompt_tokens: sample id -> length of its prompt.

    Returns:
        samples, steps, layers, and for each depth: mean with low and high (95 % bootstrap over
        samples), histogram (steps at depth 0..L), below_full (share of steps below L) and
        bound_speedup (no_exit's bytes over those of a method that exits there, skips the rest
        and tests nothing).
    """
    samples = {str(key): part for key, part in frame.groupby("id", sort=False)}
    steps = [len(part) for part in samples.values()]
    full = sum(
        traffic.total([layers] * len(part), prompt_tokens[key]) for key, part in samples.items()
    )
    summary: dict[str, Any] = {"samples": len(samples), "steps": sum(steps), "layers": layers}
    for name in DEPTHS:
        depths: dict[str, Sequence[int]] = {k: part[name].tolist() for k, part in samples.items()}
        mean, low, high = bootstrap_ratio([sum(values) for values in depths.values()], steps)
        exited = sum(traffic.total(depths[key], prompt_tokens[key]) for key in samples)
        summary[name] = {
            "mean": mean,
            "low": low,
            "high": high,
            "histogram": np.bincount(frame[name], minlength=layers + 1).tolist(),
            "below_full": float((frame[name] < layers).mean()),
            "bound_speedup": full / exited,
        }
    return summary
