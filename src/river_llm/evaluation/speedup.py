"""The paired speedup: both arms on the same tokens, positions, loop and process.

Tokens come from no_exit with EOS ignored. Both arms are forced along them in the order A B B A,
so that a slow drift of the machine hits both alike; the figure is a ratio of sums of times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tqdm import tqdm

from river_llm.decoding import Decoder
from river_llm.evaluation.fidelity import ForcedText
from river_llm.evaluation.numerics import named
from river_llm.evaluation.paired_arms import ForcedDecoder, PairedArm


@dataclass(frozen=True)
class PairedTimes:
    """Decode times of both arms on one prompt.

    Attributes:
        prompt_tokens: length of the prompt.
        steps: decode steps in each pass.
        reference_seconds: the reference, one entry per pass.
        arm_seconds: the method, one entry per pass.
        arm_depths: exit depth of each of the method's steps (the same in every pass).
        arm_tests: exit tests made in each of them.
    """

    prompt_tokens: int
    steps: int
    reference_seconds: list[float]
    arm_seconds: list[float]
    arm_depths: list[int]
    arm_tests: list[int]


def tokens_ignoring_eos(no_exit: Decoder, prompt: Sequence[int], count: int) -> list[int]:
    """The first `count` tokens that no_exit emits, whatever they are."""
    tokens = [no_exit.prefill([prompt]).tokens[0][0]]
    while len(tokens) < count:
        tokens.append(no_exit.step().tokens[0][0])
    return tokens


def paired_times(
    reference: PairedArm, arm: ForcedDecoder, texts: Sequence[ForcedText], rounds: int
) -> list[PairedTimes]:
    """Times both arms along each text, `rounds` times A B B A.

    Args:
        reference: what the arm is compared with, with a cache of its own.
        arm: the method; it may be a second no_exit, which shows the noise of the clock.
        texts: prompts with the tokens to feed.
        rounds: repetitions per prompt.
    """
    times = []
    for text in tqdm(texts, desc="paired timing", unit="prompt"):
        with named(text.id, lambda: "paired timing"):
            times.append(_paired(reference, arm, text, rounds))
    return times


def _paired(reference: PairedArm, arm: ForcedDecoder, text: ForcedText, rounds: int) -> PairedTimes:
    reference.take(text)
    arm.take(text)
    of_reference: list[float] = []
    of_arm: list[float] = []
    for _ in range(rounds):
        of_reference.append(reference.timed_pass())
        of_arm.append(arm.timed_pass())
        of_arm.append(arm.timed_pass())
        of_reference.append(reference.timed_pass())
    return PairedTimes(
        prompt_tokens=len(text.prompt),
        steps=len(text.tokens) - 1,
        reference_seconds=of_reference,
        arm_seconds=of_arm,
        arm_depths=[trace.depth for trace in arm.traces],
        arm_tests=[trace.tests for trace in arm.traces],
    )
