"""Fidelity to no_exit: how far a method's predictions move, teacher-forced on no_exit's text.

Beside it stands the noise floor: the same figures for transformers' own `generate`, which
computes the same function with other kernels. With a quantized head it would compute another one,
and there is no noise floor. That of the engine is what no_exit shows on the eager one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tqdm import tqdm

from river_llm.decoding import Decoder
from river_llm.evaluation.numerics import named
from river_llm.models.adapter import BackboneAdapter


@dataclass(frozen=True)
class ForcedText:
    """A prompt and the text that is fed behind it.

    Attributes:
        id: of the sample.
        prompt: token ids.
        tokens: token ids of no_exit's text.
    """

    id: str
    prompt: list[int]
    tokens: list[int]


@dataclass(frozen=True)
class ForcedScores:
    """Predictions for one forced text.

    Attributes:
        equal: for each token, whether it was the most likely one.
        nll: for each token, its negative log-likelihood in nats.
    """

    equal: list[bool]
    nll: list[float]

    def first(self, count: int) -> ForcedScores:
        """The scores of the first `count` tokens."""
        return ForcedScores(self.equal[:count], self.nll[:count])


@dataclass(frozen=True)
class ForcedPass:
    """A method's way along one forced text.

    Attributes:
        scores: of its predictions.
        prefill_depth: backbone layers of the prompt.
        depths: where each decode step's token left the backbone, one fewer than tokens; of one
            that ran again, where it was left last, as in the records.
    """

    scores: ForcedScores
    prefill_depth: int
    depths: list[int]


def forced_pass(decoder: Decoder, text: ForcedText) -> ForcedPass:
    """Scores a text stepwise on the method's own KV: the prefill predicts the first token."""
    decoder.executor.criterion.begin_sample(text.id)
    rows: list[torch.Tensor] = []
    depths: list[int] = []
    with named(text.id, lambda: f"fidelity, step {len(rows)}"):
        output = decoder.prefill([text.prompt])
        prefill_depth = output.trace.depth
        for index, token in enumerate(text.tokens):
            rows.append(output.logits[0, -1])
            if index + 1 < len(text.tokens):
                output = decoder.step(forced=[token])
                depths.append(output.trace.depth)
                for ago, depth in enumerate(reversed(output.pending_depths), start=2):
                    depths[-ago] = depth
    return ForcedPass(_scores(torch.stack(rows), text.tokens), prefill_depth, depths)


def transformers_scores(adapter: BackboneAdapter, text: ForcedText) -> ForcedScores:
    """Scores a text with transformers' `generate`, forced token by token."""
    return _scores(adapter.generate_forced(text.prompt, text.tokens), text.tokens)


def _scores(logits: torch.Tensor, tokens: Sequence[int]) -> ForcedScores:
    """From logits [n, V] for n tokens."""
    target = torch.tensor(list(tokens), device=logits.device)
    logits = logits.float()
    nll = logits.logsumexp(-1) - logits.gather(1, target[:, None])[:, 0]
    return ForcedScores((logits.argmax(-1) == target).tolist(), nll.tolist())


def excess_nll(arm: ForcedScores, no_exit: ForcedScores) -> list[float]:
    """Negative log-likelihood beyond no_exit's, token by token as far as the arm goes."""
    return [a - b for a, b in zip(arm.nll, no_exit.nll, strict=False)]


def compare(
    arm: Mapping[str, ForcedScores], no_exit: Mapping[str, ForcedScores]
) -> dict[str, float]:
    """Agreement and excess negative log-likelihood over all tokens of all texts.

    Args:
        arm: scores of the method, by sample id; it may hold fewer tokens of a text.
        no_exit: no_exit's scores on the same texts.
    """
    equal = [flag for scores in arm.values() for flag in scores.equal]
    excess = [e for key, scores in arm.items() for e in excess_nll(scores, no_exit[key])]
    return {"agreement": sum(equal) / len(equal), "excess_nll": sum(excess) / len(excess)}


class ReferenceScores:
    """Scores on no_exit's texts of all that computes no_exit, kept on disk beside no_exit's run.

    Args:
        stored: what an earlier process kept (`as_dict`), or None.
        tokens: first tokens of each text that are scored; other sizes are not reused.

    Attributes:
        no_exit: on the run's engine, by sample id.
        transformers: of `generate`; empty with a quantized head.
        eager: of no_exit on the eager engine; empty where that is the run's own.
    """

    def __init__(self, stored: Mapping[str, Any] | None, tokens: int) -> None:
        self.tokens = tokens
        self.no_exit: dict[str, ForcedScores] = {}
        self.transformers: dict[str, ForcedScores] = {}
        self.eager: dict[str, ForcedScores] = {}
        if stored is not None and stored["tokens"] == tokens:
            for name, scores in self._kinds().items():
                # Files of before the eager engine was scored lack it.
                scores.update({k: ForcedScores(**v) for k, v in stored.get(name, {}).items()})

    def complete(
        self,
        texts: Sequence[ForcedText],
        decoder: Decoder,
        adapter: BackboneAdapter | None,
        eager: Decoder | None,
    ) -> bool:
        """Scores the texts that are missing; True when there were any.

        Args:
            texts: no_exit's.
            decoder: no_exit.
            adapter: whose model gives the noise floor; None: none.
            eager: no_exit on the eager engine, for the engine's; None: none.
        """
        wanted: list[tuple[dict[str, ForcedScores], Callable[[ForcedText], ForcedScores]]] = [
            (self.no_exit, lambda text: forced_pass(decoder, text).scores)
        ]
        if adapter is not None:
            wanted.append((self.transformers, lambda text: transformers_scores(adapter, text)))
        if eager is not None:
            wanted.append((self.eager, lambda text: forced_pass(eager, text).scores))
        missing = [text for text in texts if any(text.id not in scores for scores, _ in wanted)]
        for text in tqdm(missing, desc="no_exit's own scores", unit="sample", disable=not missing):
            for scores, score in wanted:
                if text.id not in scores:
                    scores[text.id] = score(text)
        return bool(missing)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for the disk."""
        kinds = {
            name: {key: {"equal": s.equal, "nll": s.nll} for key, s in scores.items()}
            for name, scores in self._kinds().items()
        }
        return {"tokens": self.tokens, **kinds}

    def _kinds(self) -> dict[str, dict[str, ForcedScores]]:
        return {
            "no_exit": self.no_exit,
            "transformers": self.transformers,
            "eager": self.eager,
        }
