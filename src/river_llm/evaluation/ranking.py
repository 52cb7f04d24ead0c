"""The order in which `static_ranked` takes layers into the backbone, measured on a text.

A layer's score is the gain of restoring it: by how much the mean negative log-likelihood of a
calibration text falls when this layer runs in the backbone and all the others in the river. The
other natural score is the harm of quantizing it: the excess when it alone runs in the river. Both
take L + 1 passes, and neither sees how layers act together. `static_ranked` runs k layers at 16
bits and all the others at 4, and controls are wanted at small k: there the gain is measured in
the very stack that runs (at k = 1 the first layer is the best one for the text by construction),
while the harm is measured in the stack of k = L - 1.

The text was written for this project and holds no test data. All of its tokens run through the
same layers, whereas the method keeps the prompt at 16 bits.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.nn import functional
from tqdm import tqdm

from river_llm.artifacts import ensure_folder
from river_llm.config import EagerConfig, QuantDecodeConfig, RunConfig
from river_llm.engine.executor import Executor, StepInputs
from river_llm.errors import UserError
from river_llm.exits import Never
from river_llm.models.prompting import encode_text
from river_llm.paths import cache_root
from river_llm.quant.head import head_record
from river_llm.quant.quantizers import quant_record

if TYPE_CHECKING:
    # Runtime builds its decoders with the ranking.
    from river_llm.evaluation.runtime import Runtime

FORMAT = 1
"""Raised when the score or the file layout change."""

LEAST_CONTEXT = 32
"""In shorter windows most tokens would be predicted from next to nothing."""

_FILE = "ranking.json"


def rank_layers(runtime: Runtime, config: RunConfig) -> tuple[int, ...]:
    """All L layers, the one with the largest gain first, ties by index.

    Measured once on the eager engine and kept on disk, by model, quantizer, head, dtype, kind of
    device and text.

    Args:
        runtime: the loaded model.
        config: a run with any method; its quantizer makes the river, its head predicts the text.

    Raises:
        UserError: a model without a tokenizer, a context that is too short, or a likelihood that
            is not a number.
    """
    if runtime.model.tokenizer is None:
        raise UserError(
            f"method=static_ranked ranks layers on a text, which model.path={config.model.path} "
            "cannot read: use static_first or static_last"
        )
    adapter = runtime.adapter
    text = calibration_text()
    origin = {
        "format": FORMAT,
        "backbone": runtime.model.fingerprint,
        "quant": quant_record(config.quant),
        "dtype": config.model.dtype,
        "device": adapter.device.type,
        "text": hashlib.sha256(text.encode()).hexdigest(),
    }
    if config.quant.head != "none":
        origin["head"] = head_record(config.quant.head)
    key = hashlib.sha256(json.dumps(origin, sort_keys=True).encode()).hexdigest()[:16]

    def make(folder: Path) -> None:
        windows = text_windows(encode_text(runtime.model.tokenizer, text), adapter.context)
        probe = replace(config, method=QuantDecodeConfig(), engine=EagerConfig())
        longest = max(len(window) for window in windows)
        decoder = runtime.decoder(probe, Never(adapter.num_layers), longest)
        gains = restoring_gains(decoder.executor, windows)
        (folder / _FILE).write_text(json.dumps({"gains": gains}) + "\n", encoding="utf-8")

    folder = ensure_folder(cache_root() / "rankings" / key, origin, frozenset({_FILE}), make)
    gains = json.loads((folder / _FILE).read_text(encoding="utf-8"))["gains"]
    return tuple(sorted(range(len(gains)), key=lambda layer: (-gains[layer], layer)))


def calibration_text() -> str:
    """The packaged text: word problems, prose, dialogue, a Python function."""
    path = resources.files("river_llm.evaluation") / "data" / "calibration.txt"
    return path.read_text(encoding="utf-8")


def text_windows(ids: Sequence[int], context: int) -> list[Sequence[int]]:
    """Cuts a text into windows that fit the model's context.

    Args:
        ids: token ids of the text.
        context: longest window, in tokens.

    Raises:
        UserError: a context below `LEAST_CONTEXT`.
    """
    if context < LEAST_CONTEXT:
        raise UserError(
            f"method=static_ranked: a context of {context} tokens is too short to rank layers, "
            f"which needs {LEAST_CONTEXT}: use static_first or static_last"
        )
    windows = [ids[start : start + context] for start in range(0, len(ids), context)]
    # A window's first token is not predicted.
    return [window for window in windows if len(window) > 1]


def restoring_gains(executor: Executor, windows: Sequence[Sequence[int]]) -> list[float]:
    """Gain of restoring each layer alone in the river.

    Args:
        executor: with a river, and slots for the longest window.
        windows: token ids, two or more each; each window is a text of its own.

    Returns:
        L gains in nats per predicted token; below 0 where the restored layer makes the text less
        likely.

    Raises:
        UserError: a likelihood that is not a number.
    """
    choices = [None, *range(executor.num_layers)]
    nlls = []
    for restored in tqdm(choices, desc="ranking layers", unit="pass"):
        nlls.append(_mean_nll(executor, windows, restored))
        if not math.isfinite(nlls[-1]):
            raise UserError(
                f"ranking the layers: the calibration text's mean negative log-likelihood is "
                f"{nlls[-1]} with {'no layer' if restored is None else f'layer {restored}'} at 16 "
                "bits: check the weights, or try model.dtype=fp32"
            )
    return [nlls[0] - nll for nll in nlls[1:]]


@torch.no_grad()
def _mean_nll(executor: Executor, windows: Sequence[Sequence[int]], restored: int | None) -> float:
    """Mean negative log-likelihood of the windows with one layer (None: none) at 16 bits."""
    total = 0.0
    for window in windows:
        executor.begin(StepInputs(slots=range(len(window)), ids=[window], pad=[0]))
        for layer in range(executor.num_layers):
            run = executor.backbone if layer == restored else executor.river
            run(layer, layer + 1)
        logits = executor.logits(len(window))[0, :-1].float()
        target = torch.tensor(window[1:], device=logits.device)
        total += functional.cross_entropy(logits, target, reduction="sum").item()
    return total / sum(len(window) - 1 for window in windows)
