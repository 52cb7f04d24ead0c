"""How alike the KV entries of river and backbone are, token by token and layer by layer.

Everything is teacher-forced on no_exit's own text, and told of the tokens that its decode steps
feed. Compared are the entries that a River run leaves at a planned exit depth, whose states have
drifted all the way from the first river layer on (paper, KV-shared exit layers), and those that
each river layer alone leaves when it is fed with the backbone's own state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pandas as pd
import torch
from torch.nn import functional
from tqdm import tqdm

from river_llm.analysis.kv import FULL_QUANT, LAYER_ALONE, OTHER_TOKEN, RIVER
from river_llm.cache import SlotCache
from river_llm.config import RiverConfig
from river_llm.decoding import Decoder, NoExit
from river_llm.engine.executor import Executor, Exit, StepInputs
from river_llm.errors import UserError
from river_llm.evaluation.fidelity import ForcedText, forced_pass
from river_llm.evaluation.numerics import named
from river_llm.evaluation.run import Run
from river_llm.exits import Fixed
from river_llm.generation import StopRules, generate


@dataclass(frozen=True)
class Arm:
    """A river run whose entries are compared with the backbone's.

    Attributes:
        depth: planned exit depth of every decode step, 0..L.
        prefill: where the prompt runs; with `sequence` it leaves the backbone at `depth` too.
    """

    depth: int
    prefill: Literal["backbone", "sequence"]

    @property
    def name(self) -> str:
        """`full_quant` where no layer of prompt or decode steps runs in the backbone."""
        return FULL_QUANT if self.depth == 0 and self.prefill == "sequence" else RIVER


class StateRecorder(NoExit):
    """no_exit that keeps the residual stream of its decode steps."""

    def reset(self) -> None:
        """Forgets the sequence and its states."""
        super().reset()
        self._states: list[torch.Tensor] = []

    def _run_step(self, slot: int) -> Exit:
        self.executor.begin(self._inputs(range(slot, slot + 1)))
        self._states.append(self.executor.hidden())
        for layer in range(self.num_layers):
            self.executor.backbone(layer, layer + 1)
            self._states.append(self.executor.hidden())
        return Exit(self.num_layers)

    def states(self) -> torch.Tensor:
        """[decode steps, L + 1, H] since the prefill; row l is the input of layer l."""
        return torch.cat(self._states, dim=1)[0].view(self.steps_done, self.num_layers + 1, -1)


def cosines(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Cosine over the last axis in float32, clamped to [-1, 1]."""
    cosine = functional.cosine_similarity(first.float(), second.float(), dim=-1)
    return cosine.clamp(-1.0, 1.0)


def entries(cache: SlotCache, first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of `count` slots from `first` on, the KV heads of a token as one vector.

    Returns:
        Copies [count, L, kv_heads * head_dim]. Keys are rotated to their positions, which
        changes no cosine between two of one slot.
    """

    def vectors(buffer: torch.Tensor) -> torch.Tensor:
        return buffer[:, 0, :, first : first + count].permute(2, 0, 1, 3).flatten(2).clone()

    return vectors(cache.k), vectors(cache.v)


def layers_alone(executor: Executor, states: torch.Tensor, first: int) -> None:
    """Leaves the entries of each river layer fed with the backbone's own input.

    An entry is norm and projection of the layer's input alone, so what the layer attends to on
    the way does not matter to it.

    Args:
        executor: with a river; its cache is overwritten.
        states: [steps, L + 1, H], see :meth:`StateRecorder.states`.
        first: slot of the first step.
    """
    for step, inputs in enumerate(states):
        slot = first + step
        for layer in range(executor.num_layers):
            state = inputs[layer][None, None]
            executor.begin(StepInputs(slots=range(slot, slot + 1), pad=[0], hidden=state))
            executor.river(layer, layer + 1)


def arms_of(depths: Sequence[int], layers: int) -> list[Arm]:
    """Both prefills of each depth.

    Raises:
        UserError: a depth outside 0..L.
    """
    if outside := [depth for depth in depths if not 0 <= depth <= layers]:
        raise UserError(f"exit depth {outside[0]}: this model has depths 0 to {layers}")
    distinct = dict.fromkeys(depths)
    return [arm for d in distinct for arm in (Arm(d, "backbone"), Arm(d, "sequence"))]


def compare_text(
    recorder: StateRecorder, rivers: Mapping[Arm, Decoder], text: ForcedText
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Compares the entries along one text.

    Args:
        recorder: the backbone.
        rivers: for each arm a decoder with a planned depth and a cache of its own; one at least.
        text: no_exit's, of two tokens or more.

    Returns:
        As :func:`measure_kv`.
    """
    forced_pass(recorder, text)
    first, steps = len(text.prompt), recorder.steps_done
    states, own = recorder.states(), entries(recorder.cache, first, steps)
    similarity = _frame(text.id, {"similarity": cosines(states[:, :-1], states[:, 1:])})
    before = (own[0].roll(1, dims=0), own[1].roll(1, dims=0))
    arms = [(OTHER_TOKEN, recorder.num_layers, "", before)]
    alone = next(iter(rivers.values()))
    alone.reset()
    layers_alone(alone.executor, states, first)
    arms.append((LAYER_ALONE, 0, "", entries(alone.cache, first, steps)))
    for arm, decoder in rivers.items():
        forced_pass(decoder, text)
        arms.append((arm.name, arm.depth, arm.prefill, entries(decoder.cache, first, steps)))
    compared = []
    for name, depth, prefill, (keys, values) in arms:
        columns = {"key_cosine": cosines(keys, own[0]), "value_cosine": cosines(values, own[1])}
        compared.append(_frame(text.id, columns, {"arm": name, "depth": depth, "prefill": prefill}))
    return similarity, pd.concat(compared, ignore_index=True)


def measure_kv(run: Run, depths: Sequence[int]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Compares the entries along no_exit's texts, generated as the run would.

    Args:
        run: of no_exit; its folder is neither read nor written.
        depths: exit depths of the river runs.

    Returns:
        Per token and layer: id, step (0-based decode step), layer, similarity (cosine of the
        backbone block's input and output); and per arm, token and layer: arm, depth, prefill
        (empty where the arm has none), id, step, layer, key_cosine, value_cosine (the arm's entry
        against the backbone's). `other_token` compares the backbone with itself, one token
        before (the first token of a text with its last): what a cosine of unrelated entries is.

    Raises:
        UserError: a depth outside the model, or no decode steps.
    """
    plain = run.decoder()
    recorder = StateRecorder(plain.executor, plain.cache)
    rivers = {arm: _river(run, arm) for arm in arms_of(depths, plain.num_layers)}
    found = []
    with tqdm(run.prompts, desc="entries of backbone and river", unit="prompt") as bar:
        for prompt in bar:
            text = _text(run, recorder, prompt.sample.id, prompt.ids)
            if len(text.tokens) > 1:
                found.append(compare_text(recorder, rivers, text))
    if not found:
        raise UserError("no decode steps: no text has a second token, raise limit= or --tokens")
    similarity, compared = zip(*found, strict=True)
    return pd.concat(similarity, ignore_index=True), pd.concat(compared, ignore_index=True)


def _river(run: Run, arm: Arm) -> Decoder:
    """A River decoder with a planned depth and a cache of its own."""
    config = replace(run.config, method=RiverConfig(prefill=arm.prefill))
    layers = run.runtime.adapter.num_layers
    return run.runtime.decoder(config, Fixed(layers, arm.depth), run.slots)


def _text(run: Run, recorder: StateRecorder, key: str, prompt: list[int]) -> ForcedText:
    """no_exit's text behind a prompt."""
    model = run.runtime.model
    rules = StopRules(
        max_new_tokens=run.config.exp.max_new_tokens,
        eos_ids=model.eos_ids,
        stop_strings=run.task.stop_strings(model.chat),
    )
    tokens: list[int] = []
    with named(key, lambda: f"decode step {recorder.steps_done}"):
        for text in generate(recorder, prompt, rules, model.decode):
            tokens = list(text.tokens)
    return ForcedText(key, prompt, tokens)


def _frame(
    key: str, columns: dict[str, torch.Tensor], head: dict[str, Any] | None = None
) -> pd.DataFrame:
    """Tables [steps, L] as one row per step and layer."""
    steps, layers = next(iter(columns.values())).shape
    frame = pd.DataFrame(
        {
            **(head or {}),
            "id": [key] * (steps * layers),
            "step": [step for step in range(steps) for _ in range(layers)],
            "layer": list(range(layers)) * steps,
            **{name: table.flatten().cpu().numpy() for name, table in columns.items()},
        }
    )
    whole = {"step": "int32", "layer": "int16", **({"depth": "int16"} if head else {})}
    return frame.astype(whole)
