"""The paired speedup: both arms on the same tokens, positions, loop and process.

Tokens come from no_exit with EOS ignored. Both arms are forced along them in the order A B B A,
so that a slow drift of the machine hits both alike; the figure is a ratio of sums of times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tqdm import tqdm

from river_llm.decoding import Decoder
from river_llm.engine.executor import Exit
from river_llm.evaluation.fidelity import ForcedText
from river_llm.evaluation.numerics import named
from river_llm.timing import Timer

WARM_UP_STEPS = 4


@dataclass(frozen=True)
class PairedTimes:
    """Decode times of both arms on one prompt.

    Attributes:
        prompt_tokens: length of the prompt.
        steps: decode steps in each pass.
        reference_seconds: no_exit, one entry per pass.
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
    no_exit: Decoder, arm: Decoder, texts: Sequence[ForcedText], rounds: int
) -> list[PairedTimes]:
    """Times both arms along each text, `rounds` times A B B A.

    Args:
        no_exit: the reference arm, with a cache of its own.
        arm: the method; it may be a second no_exit, which shows the noise of the clock.
        texts: prompts with the tokens to feed.
        rounds: repetitions per prompt.
    """
    times = []
    for text in tqdm(texts, desc="paired timing", unit="prompt"):
        with named(text.id, lambda: "paired timing"):
            times.append(_paired(no_exit, arm, text, rounds))
    return times


def _paired(no_exit: Decoder, arm: Decoder, text: ForcedText, rounds: int) -> PairedTimes:
    arm.executor.criterion.begin_sample(text.id)
    fed = text.tokens[:-1]
    for decoder in (no_exit, arm):
        decoder.prefill([text.prompt])
        _forced_pass(decoder, fed[:WARM_UP_STEPS])
    reference: list[float] = []
    measured: list[float] = []
    traces: list[Exit] = []
    for _ in range(rounds):
        for decoder, seconds in (
            (no_exit, reference),
            (arm, measured),
            (arm, measured),
            (no_exit, reference),
        ):
            elapsed, traces_now = _forced_pass(decoder, fed)
            seconds.append(elapsed)
            if decoder is arm:
                traces = traces_now
    return PairedTimes(
        prompt_tokens=len(text.prompt),
        steps=len(fed),
        reference_seconds=reference,
        arm_seconds=measured,
        arm_depths=[trace.depth for trace in traces],
        arm_tests=[trace.tests for trace in traces],
    )


def _forced_pass(decoder: Decoder, tokens: Sequence[int]) -> tuple[float, list[Exit]]:
    """Seconds and traces of one forced pass from the end of the prompt; leaves it as found."""
    timer = Timer(decoder.executor.device)
    traces = []
    with timer:
        for token in tokens:
            traces.append(decoder.step(forced=[token]).trace)
    decoder.rollback(len(tokens))
    return timer.seconds, traces
