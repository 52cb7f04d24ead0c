"""Thresholds from data: the tau that gives a wanted mean exit depth.

The criterion's score after every layer is measured while no_exit generates; tau is then found on
those scores. The depth that a run reaches with it differs a little, since its own exits change the
states that later tokens see.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from tqdm import tqdm

from river_llm.config import RunConfig
from river_llm.decoding import NoExit
from river_llm.engine.executor import Exit
from river_llm.evaluation.run import Run
from river_llm.evaluation.runtime import Runtime
from river_llm.exits.threshold import Threshold


class ScoreRecorder(NoExit):
    """no_exit that records the criterion's score after every layer of every decode step.

    Attributes:
        scores: one list per decode step, L-1 scores for depths 1..L-1.
    """

    def reset(self) -> None:
        """Forgets the sequence, not the scores."""
        super().reset()
        self.scores: list[list[float]] = getattr(self, "scores", [])

    def _run_step(self, slot: int) -> Exit:
        self.executor.begin(self._inputs(range(slot, slot + 1)))
        scores = []
        for layer in range(self.num_layers):
            self.executor.backbone(layer, layer + 1)
            if layer + 1 < self.num_layers:
                scores.append(self.executor.score())
        self.scores.append([values[0] for values in self.executor.read(*scores)])
        return Exit(self.num_layers)


def measure_scores(
    recorder: ScoreRecorder, prompts: Sequence[Sequence[int]], tokens: int
) -> np.ndarray:
    """Scores of `tokens` decode steps behind each prompt.

    Returns:
        float64 [prompts x tokens, L-1]; column d-1 is the score at depth d.
    """
    if not isinstance(recorder.executor.criterion, Threshold):
        raise TypeError("the recorder's executor needs a criterion with a score")
    recorder.scores.clear()
    for prompt in tqdm(prompts, desc="measuring scores", unit="prompt"):
        recorder.prefill([prompt])
        for _ in range(tokens):
            recorder.step()
    return np.array(recorder.scores)


def scores_of_run(config: RunConfig, runtime: Runtime, prompts: int, tokens: int) -> np.ndarray:
    """Scores of a run's criterion on its own first prompts.

    Args:
        config: the run; its criterion has a score.
        runtime: the loaded model.
        prompts: first prompts that are used.
        tokens: decode steps behind each.

    Returns:
        See :func:`measure_scores`.
    """
    budget = max(config.exp.max_new_tokens, tokens + 1)
    exp = replace(config.exp, limit=prompts, max_new_tokens=budget)
    run = Run(replace(config, exp=exp), runtime)
    decoder = run.decoder()
    recorder = ScoreRecorder(decoder.executor, decoder.cache)
    return measure_scores(recorder, [prompt.ids for prompt in run.prompts[:prompts]], tokens)


def mean_depth(scores: np.ndarray, tau: float) -> float:
    """Mean exit depth that a threshold gives on measured scores.

    Args:
        scores: [steps, L-1]; see :func:`measure_scores`.
        tau: exit at the first depth whose score exceeds it, else at L.
    """
    above = scores > tau
    first = np.where(above.any(1), above.argmax(1) + 1, scores.shape[1] + 1)
    return float(first.mean())


def tau_for_mean_depth(scores: np.ndarray, depth: float) -> float:
    """The threshold whose mean exit depth on the scores comes closest to `depth`.

    Every threshold between two neighbouring scores acts alike, so the candidates are the scores'
    own quantiles; the mean depth grows with tau, so bisection finds it.
    """
    candidates = np.unique(np.quantile(scores, np.linspace(0.0, 1.0, 2001)))
    low, high = 0, len(candidates) - 1
    while low < high:
        middle = (low + high) // 2
        if mean_depth(scores, candidates[middle]) < depth:
            low = middle + 1
        else:
            high = middle
    near = [candidates[max(low - 1, 0)], candidates[low]]
    best = min(near, key=lambda tau: abs(mean_depth(scores, tau) - depth))
    return float(best)
