"""The generation loop over a decoder that follows a script: stop rules, text, counts and clock."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from river_llm import timing
from river_llm.decoding import StepOutput
from river_llm.engine.executor import Exit
from river_llm.generation import CompletionText, StopRules, generate

EOS, OTHER_EOS = 90, 91
PIECES = {1: "The", 2: " answer", 3: " is", 4: " 11", 5: ".\n", 6: "\n", 7: "Q", 8: "Question: x"}
PIECES |= {9: " #", 10: "### ", 11: "####", EOS: "", OTHER_EOS: "", 20: "Solve", 21: ": "}
PROMPT = [20, EOS, 21]


def spell(ids) -> str:
    """Text of ids; the end tokens are special and leave none."""
    return "".join(PIECES[i] for i in ids)


class Scripted:
    """Emits given tokens, one list per call, and notes what it was asked."""

    def __init__(self, *blocks, clock=None, device="cpu"):
        self.blocks = [list(block) for block in blocks]
        self.executor = SimpleNamespace(device=torch.device(device))
        self.prompts = None
        self.calls = 0
        self.clock = clock

    def prefill(self, prompts):
        self.prompts = [list(prompt) for prompt in prompts]
        return self._next()

    def step(self):
        return self._next()

    def _next(self):
        if self.clock is not None:
            self.clock.work(self.calls)
        block = self.blocks[self.calls]
        self.calls += 1
        return StepOutput(
            [block],
            [[token / 4 for token in block]],
            torch.zeros(1, len(block), 2),
            Exit(self.calls),
        )


def script(*tokens):
    return Scripted(*([token] for token in tokens))


def final(decoder, budget=50, eos=(EOS, OTHER_EOS), stop=(), prompt=PROMPT, decode=spell):
    """The last result of a generation, after every yield is known to be the same object."""
    rules = StopRules(budget, frozenset(eos), tuple(stop))
    results = list(generate(decoder, prompt, rules, decode))
    assert all(result is results[0] for result in results)
    return results[-1]


@pytest.mark.parametrize("end", [EOS, OTHER_EOS])
def test_any_end_token_ends_the_text(end):
    decoder = script(1, 2, 3, 4, end, 1, 1)
    result = final(decoder)
    assert (result.finish_reason, result.text) == ("eos", "The answer is 11")
    assert result.tokens == [1, 2, 3, 4, end]
    assert result.tokens_kept == 4
    assert decoder.calls == 5, "no step behind the end"


def test_an_end_token_inside_the_prompt_ends_nothing():
    decoder = script(1, 2, EOS)
    result = final(decoder, prompt=[20, EOS, 21, OTHER_EOS])
    assert decoder.prompts == [[20, EOS, 21, OTHER_EOS]]
    assert result.text == "The answer"


def test_without_end_tokens_only_the_budget_ends():
    result = final(script(1, EOS, 2, EOS), budget=4, eos=())
    assert (result.finish_reason, result.tokens) == ("length", [1, EOS, 2, EOS])
    assert (result.text, result.tokens_kept) == ("The answer", 4)


def test_an_end_token_at_once_gives_an_empty_text():
    decoder = script(EOS, 1)
    result = final(decoder)
    assert (result.finish_reason, result.text, result.tokens) == ("eos", "", [EOS])
    assert (result.tokens_kept, result.step_exits, result.decode_seconds) == (0, [], 0.0)
    assert decoder.calls == 1


@pytest.mark.parametrize("budget", [1, 2, 5])
def test_the_budget_counts_generated_tokens(budget):
    decoder = script(*[1] * 9)
    result = final(decoder, budget=budget)
    assert result.finish_reason == "length"
    assert (result.tokens, result.text) == ([1] * budget, "The" * budget)
    assert result.tokens_kept == budget
    assert decoder.calls == budget, "one prefill and budget - 1 steps"
    assert len(result.step_exits) == budget - 1


@pytest.mark.parametrize(
    ("tokens", "stop", "reason", "kept"),
    [((1, EOS), (), "eos", 1), ((1, 6), ("\n",), "stop", 1), ((1, 2), ("\nQ",), "length", 2)],
)
def test_the_token_that_uses_up_the_budget_may_end_the_text_otherwise(tokens, stop, reason, kept):
    result = final(script(*tokens), budget=2, stop=stop)
    assert (result.finish_reason, len(result.tokens), result.tokens_kept) == (reason, 2, kept)


@pytest.mark.parametrize(
    ("tokens", "stop", "text", "kept"),
    [
        # Inside one token.
        ((1, 2, 6), ("\n",), "The answer", 2),
        # Across two tokens, across three.
        ((1, 5, 7), ("\nQ",), "The.", 2),
        ((1, 9, 10, 4), (" ####",), "The", 1),
        # The token holds text before and behind the stop.
        ((1, 5), ("\n",), "The.", 2),
        ((1, 6, 8), ("Question",), "The\n", 2),
        ((1, 6, 8), ("stion: ",), "The\nQue", 3),
        # At the very start, and one letter long.
        ((6, 1), ("\n",), "", 0),
        ((8,), ("Q",), "", 0),
        # The earliest of several counts, whatever their order.
        ((1, 2, 8), ("x", "Question", ":"), "The answer", 2),
        ((1, 2, 8), (":", "Question", "x"), "The answer", 2),
        # Two at once that begin together.
        ((1, 6, 8), ("\nQ", "\nQuestion"), "The", 1),
    ],
)
def test_a_stop_string_ends_the_text_before_it(tokens, stop, text, kept):
    decoder = script(*tokens, 1, 1, 1, 1)
    result = final(decoder, stop=stop)
    assert (result.finish_reason, result.text, result.tokens_kept) == ("stop", text, kept)
    assert result.tokens == list(decoder_tokens(decoder))


def decoder_tokens(decoder):
    return [token for block in decoder.blocks[: decoder.calls] for token in block]


def test_a_stop_string_that_is_not_whole_ends_nothing():
    result = final(script(1, 6, 1, 6, 2, EOS), stop=("\nQuestion", "The\n\n"))
    assert (result.finish_reason, result.text) == ("eos", "The\nThe\n answer")


def test_a_stop_string_in_the_prompt_ends_nothing():
    """The prompt ends in ": " and holds "Solve"."""
    result = final(script(1, EOS), stop=("Solve", ": ", " T", ": T"))
    assert (result.finish_reason, result.text) == ("eos", "The")


@pytest.mark.parametrize("stop", ["\n", "Question", ""])
def test_stop_strings_given_as_one_string_are_refused(stop):
    with pytest.raises(TypeError, match="tuple"):
        StopRules(8, stop_strings=stop)


def test_an_empty_stop_string_is_refused():
    with pytest.raises(ValueError, match="empty"):
        StopRules(8, stop_strings=("\n", ""))


def test_tokens_behind_the_end_inside_a_block_are_dropped():
    decoder = Scripted([1], [2, 3, EOS, 4, 4], [4])
    result = final(decoder)
    assert (result.text, result.tokens) == ("The answer is", [1, 2, 3, EOS])
    stopped = final(Scripted([1], [2, 6, 4, 4], [4]), stop=("\n",))
    assert (stopped.text, stopped.tokens) == ("The answer", [1, 2, 6])
    cut = final(Scripted([1], [2, 3, 4], [4]), budget=3)
    assert (cut.finish_reason, cut.tokens) == ("length", [1, 2, 3])


def test_every_step_is_seen_as_it_comes():
    decoder = script(1, 2, 3, EOS)
    seen = [
        (result.text, len(result.tokens), decoder.calls)
        for result in generate(decoder, PROMPT, StopRules(9, frozenset({EOS})), spell)
    ]
    assert seen == [
        ("The", 1, 1),
        ("The answer", 2, 2),
        ("The answer is", 3, 3),
        ("The answer is", 4, 4),
    ]


def test_traces_of_prefill_and_steps_are_kept_apart():
    result = final(script(1, 2, EOS))
    assert result.prefill_exit == Exit(1)
    assert result.step_exits == [Exit(2), Exit(3)]


class Clock:
    """Stands in for the wall clock and for an accelerator that works while the host goes on."""

    def __init__(self, monkeypatch, seconds):
        self.now = 100.0
        self.busy_until = 0.0
        self.seconds = seconds
        self.waits = 0
        monkeypatch.setattr(timing.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(torch.cuda, "synchronize", self.synchronize)

    def work(self, call):
        """Hands the device work of `seconds[call]`; returns at once."""
        self.busy_until = max(self.now, self.busy_until) + self.seconds[call]

    def synchronize(self, device=None):
        self.waits += 1
        self.now = max(self.now, self.busy_until)


def test_work_of_the_device_is_waited_for_at_both_ends(monkeypatch):
    clock = Clock(monkeypatch, [8.0, 1.0, 2.0, 4.0])
    clock.busy_until = clock.now + 32.0  # Begun before: not this text's.
    decoder = Scripted([1], [2], [3], [EOS], clock=clock, device="cuda")
    result = final(decoder)
    assert result.prefill_seconds == 8.0
    assert result.decode_seconds == 7.0, "the step that ends the text included"
    assert clock.waits == 2 * 4


def test_decoding_text_and_matching_stops_are_not_on_the_clock(monkeypatch):
    clock = Clock(monkeypatch, [])

    def slowly(ids):
        clock.now += 1000.0
        return spell(ids)

    class Host(Scripted):
        def _next(self):
            clock.now += 0.5
            return super()._next()

    decoder = Host([1], [2], [5], [7])
    result = final(decoder, stop=("\nQ",), decode=slowly)
    assert (result.prefill_seconds, result.decode_seconds) == (0.5, 1.5)
    assert clock.now > 5000


def test_what_the_caller_does_between_steps_is_not_on_the_clock(monkeypatch):
    clock = Clock(monkeypatch, [1.0, 1.0, 1.0])
    decoder = Scripted([1], [2], [EOS], clock=clock, device="cuda")
    results = []
    for result in generate(decoder, PROMPT, StopRules(9, frozenset({EOS})), spell):
        results.append(result)
        clock.now += 500.0
    assert (results[-1].prefill_seconds, results[-1].decode_seconds) == (1.0, 2.0)


def metaspace():
    """Pieces as SentencePiece writes them: a blank is part of the piece behind it."""
    pieces = ["<unk>", "▁def", "▁f", "(x):", "\n", "▁▁▁", "▁return", "▁x", "▁", "▁hello", "w"]
    vocabulary = {piece: n for n, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.add_special_tokens(["<|turn|>"])
    return tokenizer, vocabulary | {"<|turn|>": tokenizer.token_to_id("<|turn|>")}


def metaspace_decoder():
    tokenizer, vocabulary = metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer, vocabulary


def llama_decoder():
    tokenizer, vocabulary = metaspace()
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)])
    return tokenizer, vocabulary


@pytest.mark.parametrize("make", [metaspace_decoder, llama_decoder])
@pytest.mark.parametrize(
    "prompt",
    [
        ["▁def", "▁f", "(x):", "\n"],
        ["▁def", "▁f", "(x):", "\n"] * 12,
        ["<|turn|>", "▁hello", "<|turn|>", "<|turn|>"],
    ],
    ids=["short", "long", "ends in special tokens"],
)
def test_leading_blanks_are_kept_with_a_sentencepiece_tokenizer(make, prompt):
    tokenizer, ids = make()
    prompt = [ids[p] for p in prompt]
    body = [ids[p] for p in ("▁▁▁", "▁return", "▁x")]
    assert tokenizer.decode(body) != "    return x", "decoded alone, blanks are lost"
    result = final(script(*body, EOS), prompt=prompt, decode=lambda i: tokenizer.decode(list(i)))
    assert result.text == "    return x"
    assert result.tokens_kept == 3


def byte_level():
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: n for n, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def test_an_emoji_of_several_tokens_is_whole_when_its_last_one_has_come():
    tokenizer = byte_level()
    ids = tokenizer.encode("ok 🙂!").ids
    assert len(ids) == 8, "one token a byte"
    texts = [
        result.text
        for result in generate(
            script(*ids), tokenizer.encode("é🙂 say: ").ids, StopRules(8), tokenizer.decode
        )
    ]
    assert texts[2] == "ok "
    assert texts[6:] == ["ok 🙂", "ok 🙂!"]
    assert all(text.startswith("ok ") for text in texts[2:])


@pytest.mark.parametrize("prompt", ["é" * 15 + "a", "🙂" * 10, "x" * 17 + "é" * 8])
def test_a_prompt_cut_inside_a_letter_does_not_shift_the_text(prompt):
    """Only the end of the prompt is decoded along, and it may begin with half a letter."""
    tokenizer = byte_level()
    result = final(
        script(*tokenizer.encode("né 🙂").ids),
        budget=8,
        eos=(),
        prompt=tokenizer.encode(prompt).ids,
        decode=tokenizer.decode,
    )
    assert result.text == "né 🙂"


@pytest.mark.parametrize(
    ("text", "kept"),
    [("ok🙂", 6), ("né", 3), ("a", 1), ("", 0)],
)
def test_tokens_kept_hold_the_whole_last_letter_before_a_stop(text, kept):
    tokenizer = byte_level()
    result = final(
        script(*tokenizer.encode(text + "STOP").ids),
        eos=(),
        stop=("STOP",),
        prompt=tokenizer.encode("say: ").ids,
        decode=tokenizer.decode,
    )
    assert (result.finish_reason, result.text) == ("stop", text)
    assert result.tokens_kept == kept


def test_completion_text_alone():
    text = CompletionText(spell, [20, 21])
    assert text.of([]) == ""
    assert text.of([1, 2]) == "The answer"
