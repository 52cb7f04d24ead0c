"""Fidelity to no_exit, beside the samples of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tqdm import tqdm

from river_llm.analysis.statistics import bootstrap_ratio
from river_llm.config import RunConfig
from river_llm.decoding import Decoder
from river_llm.evaluation.fidelity import (
    ForcedScores,
    ForcedText,
    ReferenceScores,
    compare,
    excess_nll,
    forced_pass,
)
from river_llm.evaluation.prompts import Prompt
from river_llm.records import SampleRecord
from river_llm.tasks import Task

ENDED_SHARE = 0.9
"""Final answers are compared only where this share of no_exit's texts ends before the budget."""


def forced_texts(
    prompts: Sequence[Prompt], no_exit: Sequence[SampleRecord], config: RunConfig, arm: Decoder
) -> list[ForcedText]:
    """The texts on which fidelity is measured: no_exit's first tokens, as far as planned."""
    texts = []
    for prompt, record in zip(prompts, no_exit, strict=False):
        recorded = arm.executor.criterion.recorded_steps(prompt.sample.id)
        count = config.fidelity.tokens
        if recorded is not None:
            count = min(count, recorded + 1)
        texts.append(ForcedText(prompt.sample.id, prompt.ids, record.token_ids[:count]))
    return texts


def fidelity(
    arm: Decoder, texts: Sequence[ForcedText], reference: ReferenceScores, seed: int
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Fidelity (a) and (b) of a method with its noise floors.

    Args:
        arm: the method.
        texts: no_exit's, with their prompts.
        reference: no_exit's scores on them, with those of other implementations of it.
        seed: of the bootstrap over texts.

    Returns:
        The figures, and what they come from text by text.
    """
    passes = {
        text.id: forced_pass(arm, text)
        for text in tqdm(texts, desc="fidelity", unit="text", disable=not texts)
    }
    rows: dict[str, dict[str, Any]] = {
        key: {
            "prefill_depth": run.prefill_depth,
            "equal": run.scores.equal,
            "nll": run.scores.nll,
            "excess_nll": excess_nll(run.scores, reference.no_exit[key]),
            "depths": run.depths,
        }
        for key, run in passes.items()
    }
    scores = {key: run.scores for key, run in passes.items()}
    sizes = [len(s.equal) for s in scores.values()]
    _, *agreement = bootstrap_ratio([sum(s.equal) for s in scores.values()], sizes, seed=seed)
    _, *excess = bootstrap_ratio([sum(r["excess_nll"]) for r in rows.values()], sizes, seed=seed)
    depths = [depth for run in passes.values() for depth in run.depths]
    figures = {
        "samples": len(texts),
        "tokens": sum(sizes),
        **compare(scores, reference.no_exit),
        "agreement_low": agreement[0],
        "agreement_high": agreement[1],
        "excess_nll_low": excess[0],
        "excess_nll_high": excess[1],
        "mean_depth": sum(depths) / len(depths) if depths else None,
        # A quantized head has none: transformers' model has the head at 16 bits.
        "noise_floor": _floor(reference.transformers, texts, reference),
        "engine_noise_floor": _floor(reference.eager, texts, reference),
    }
    return figures, rows


def _floor(
    other: Mapping[str, ForcedScores], texts: Sequence[ForcedText], reference: ReferenceScores
) -> dict[str, float] | None:
    """What another implementation of no_exit shows on these texts; None: it was not scored."""
    scores = {t.id: other[t.id].first(len(t.tokens)) for t in texts if t.id in other}
    return compare(scores, reference.no_exit) if scores else None


def equal_answers(
    task: Task, records: Sequence[SampleRecord], no_exit: Sequence[SampleRecord]
) -> dict[str, Any]:
    """Fidelity (c): share of equal final answers in free-running text."""
    pairs = list(zip(records, no_exit, strict=False))
    if not pairs:
        reason = "no text ran freely"
        return {"value": None, "samples": 0, "both_empty": 0, "reason": reason}
    both_empty = sum(a.extracted is None and b.extracted is None for a, b in pairs)
    ended = sum(b.finish_reason != "length" for _, b in pairs) / len(pairs)
    result: dict[str, Any] = {
        "value": None,
        "samples": len(pairs),
        "both_empty": both_empty,
        "reason": None,
    }
    if ended < ENDED_SHARE:
        result["reason"] = f"only {ended:.0%} of no_exit's texts end before the budget"
    else:
        answered = [(a, b) for a, b in pairs if a.extracted is not None or b.extracted is not None]
        if answered:
            equal = sum(
                a.extracted is not None
                and b.extracted is not None
                and task.same_answer(a.extracted, b.extracted)
                for a, b in answered
            )
            result["value"] = equal / len(answered)
        else:
            result["reason"] = "no text holds an answer"
    return result
