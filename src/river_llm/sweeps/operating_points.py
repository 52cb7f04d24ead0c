"""Thresholds for wanted mean exit depths, measured once for a sweep and kept with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from river_llm.config import ConfidenceConfig, RunConfig, SimilarityConfig
from river_llm.errors import UserError
from river_llm.sweeps.folder import SweepFolder
from river_llm.sweeps.recipe import WarmUp

if TYPE_CHECKING:
    import numpy as np


class OperatingPoints:
    """The operating points of a sweep.

    Args:
        folder: keeps them.
        warm_up: on how much text scores are measured.
    """

    def __init__(self, folder: SweepFolder, warm_up: WarmUp) -> None:
        self._folder = folder
        self._warm_up = warm_up
        self._known = folder.operating_points()
        self._scores: dict[str, np.ndarray] = {}

    def layers(self, config: RunConfig) -> int:
        """L of a run's model."""
        key = f"{config.model.name} {config.model.path}"
        if key not in self._known:
            # Imported late: a resumed sweep is planned without waiting for torch.
            from river_llm.evaluation.runtime import Runtime

            layers = Runtime.shared(config).adapter.num_layers
            self._keep(key, {"layers": layers})
        return int(self._known[key]["layers"])

    def tau(self, config: RunConfig, depth: int) -> float:
        """The threshold of the run's criterion for a mean exit depth, from scores of its prompts.

        Where every depth may be tested: `min_depth`, `max_depth` and a method's own limits on
        the depth are left to act on it.

        Raises:
            UserError: a criterion without a threshold.
        """
        if not isinstance(config.criterion, SimilarityConfig | ConfidenceConfig):
            raise UserError(f"criterion={config.criterion.name} has no tau: leave tau_for_depths")
        if depth == 0:
            raise UserError("mean depth 0 has no tau: scores are tested from depth 1 on")
        key = _scores_of(config)
        known = self._known.get(key, {})
        if str(depth) not in known:
            from river_llm.calibration import scores_of_run, tau_for_mean_depth
            from river_llm.evaluation.runtime import Runtime

            if key not in self._scores:
                size, runtime = self._warm_up, Runtime.shared(config)
                scores = scores_of_run(config, runtime, size.prompts, size.tokens)
                self._scores[key] = scores
            # Rounded for the eye; in this way it is also the same after a way through text.
            tau = float(f"{tau_for_mean_depth(self._scores[key], depth):.6g}")
            self._keep(key, {**known, str(depth): tau})
        return float(self._known[key][str(depth)])

    def _keep(self, key: str, content: dict[str, float]) -> None:
        # Another shard may have kept some meanwhile; what was written first holds for all.
        self._known = self._folder.keep_operating_points(key, content)


def _scores_of(config: RunConfig) -> str:
    """Names what the scores of no_exit depend on, in words, since the file is read by people."""
    exp, model = config.exp, config.model
    data = [] if config.data.path is None else [config.data.path]
    if exp.columns is not None:
        data += [exp.columns.prompt, str(exp.grader)]
    head = [] if config.quant.head == "none" else [f"head={config.quant.head}"]
    shots = [f"fewshot={exp.fewshot}"] if exp.fewshot else []
    return " ".join(
        [exp.name, *shots, *data, model.name, model.path, model.dtype, *head, config.criterion.name]
    )
