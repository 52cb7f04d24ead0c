"""The one generation loop: the same stop rules and the same clock for every method."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from river_llm.decoding import Decoder, StepOutput
from river_llm.engine.executor import Exit
from river_llm.records import FinishReason
from river_llm.timing import Timer


@dataclass(frozen=True)
class StopRules:
    """When a text ends.

    Attributes:
        max_new_tokens: budget, the token that ends the text included.
        eos_ids: every id that ends a text; an id inside the prompt ends nothing.
        stop_strings: the text ends before the first occurrence of any of them.
    """

    max_new_tokens: int
    eos_ids: frozenset[int] = frozenset()
    stop_strings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.stop_strings, str):
            raise TypeError("stop_strings is one string: give a tuple of strings")
        if "" in self.stop_strings:
            raise ValueError("an empty stop string would end every text at once")


@dataclass
class Generation:
    """One generated text with its clock.

    Attributes:
        tokens: every generated token id, the one that ended the text included.
        margins: for each token, its logit minus the second largest.
        text: the returned text, without what follows a stop.
        finish_reason: why the text ended.
        tokens_kept: tokens of the returned text.
        prefill_seconds: time to the first token.
        decode_seconds: sum over the decode steps.
        step_seconds: of each decode step, as read off the clock for the sum.
        prefill_exit: trace of the prefill.
        step_exits: trace of each decode step; where earlier tokens ran again with a later one,
            theirs is that of the last step they ran in.
        block_lengths: tokens fed in each decode step.
    """

    tokens: list[int] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    text: str = ""
    finish_reason: FinishReason = "length"
    tokens_kept: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    step_seconds: list[float] = field(default_factory=list)
    prefill_exit: Exit = field(default_factory=lambda: Exit(0))
    step_exits: list[Exit] = field(default_factory=list)
    block_lengths: list[int] = field(default_factory=list)


class CompletionText:
    """Text of the generated tokens, read off the end of prompt + tokens.

    Decoding the new ids alone loses a leading blank with SentencePiece tokenizers, so the
    prompt's last tokens are decoded along and taken off again.

    Args:
        decode: token ids -> text, without special tokens.
        prompt: the prompt's ids.
    """

    CONTEXT = 16

    def __init__(self, decode: Callable[[Sequence[int]], str], prompt: Sequence[int]) -> None:
        self._decode = decode
        self._context = list(prompt[-self.CONTEXT :])
        self._skip = len(decode(self._context))

    def of(self, tokens: Sequence[int]) -> str:
        """The completion that `tokens` spell."""
        return self._decode([*self._context, *tokens])[self._skip :]


def generate(
    decoder: Decoder,
    prompt: Sequence[int],
    rules: StopRules,
    decode: Callable[[Sequence[int]], str],
) -> Iterator[Generation]:
    """Generates one text greedily, yielding the growing result after every step.

    The same :class:`Generation` object is yielded each time; the last one yielded is final.
    Only the decoder's own work is on the clock: matching stop strings and decoding text are not.

    Args:
        decoder: prefilled here with `prompt` alone.
        prompt: token ids.
        rules: when to stop.
        decode: token ids -> text, without special tokens.
    """
    completion = CompletionText(decode, prompt)
    result = Generation()
    timer = Timer(decoder.executor.device)
    with timer:
        output = decoder.prefill([prompt])
    result.prefill_seconds, result.prefill_exit = timer.seconds, output.trace
    while True:
        ended = _take(result, output, rules, completion)
        yield result
        if ended:
            return
        with timer:
            output = decoder.step()
        result.decode_seconds += timer.seconds
        result.step_seconds.append(timer.seconds)
        result.block_lengths.append(output.block)
        result.step_exits.append(output.trace)
        for ago, depth in enumerate(reversed(output.pending_depths), start=2):
            result.step_exits[-ago] = replace(result.step_exits[-ago], depth=depth)


def _take(
    result: Generation, output: StepOutput, rules: StopRules, completion: CompletionText
) -> bool:
    """Adds the tokens of a step to the result; True when the text has ended."""
    for token, margin in zip(output.tokens[0], output.margins[0], strict=True):
        result.tokens.append(token)
        result.margins.append(margin)
        if token in rules.eos_ids:
            result.finish_reason = "eos"
            result.tokens_kept = len(result.tokens) - 1
            result.text = completion.of(result.tokens[:-1])
            return True
        result.tokens_kept = len(result.tokens)
        result.text = completion.of(result.tokens)
        if (cut := _first_stop(result.text, rules.stop_strings)) is not None:
            result.finish_reason = "stop"
            result.text = result.text[:cut]
            result.tokens_kept = _tokens_covering(result, cut, completion)
            return True
        if len(result.tokens) >= rules.max_new_tokens:
            return True
    return False


def _first_stop(text: str, stop_strings: tuple[str, ...]) -> int | None:
    places = [place for stop in stop_strings if (place := text.find(stop)) >= 0]
    return min(places, default=None)


def _tokens_covering(result: Generation, length: int, completion: CompletionText) -> int:
    """The smallest number of tokens whose text holds the first `length` characters."""
    count = len(result.tokens)
    while count and completion.of(result.tokens[: count - 1])[:length] == result.text:
        count -= 1
    return count
