"""Prompts as token ids: special tokens once, the day's date never."""

from __future__ import annotations

import datetime

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from river_llm.models.prompting import TEMPLATE_DATE, encode_chat, encode_text

BOS, EOS, TURN = "<s>", "</s>", "<|turn|>"
BOS_ID, EOS_ID, TURN_ID = 0, 1, 2
MESSAGES = [{"role": "user", "content": "How many?"}]
WITH_BOS = (
    "{{ bos_token }}{% for m in messages %}<|turn|>{{ m['role'] }}: {{ m['content'] }}\n"
    "{% endfor %}{% if add_generation_prompt %}<|turn|>assistant:{% endif %}"
)
WITHOUT_BOS = WITH_BOS.removeprefix("{{ bos_token }}")
TWICE_BOS = "{{ bos_token }}" + WITH_BOS


def tokenizer_of(adds_bos: bool, bos: bool = True, template: str | None = None, adds_eos=False):
    """One token for each byte; BOS (and EOS) from the post-processor, where asked for."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: n for n, token in enumerate([BOS, EOS, TURN, *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([BOS, EOS, TURN])
    if adds_bos or adds_eos:
        single = f"{BOS + ' ' if adds_bos else ''}$A{' ' + EOS if adds_eos else ''}"
        tokenizer.post_processor = processors.TemplateProcessing(
            single=single, special_tokens=[(BOS, BOS_ID), (EOS, EOS_ID)]
        )
    names = {"bos_token": BOS} if bos else {}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=EOS, chat_template=template, **names
    )


def spelled(text: str) -> list[int]:
    """Ids of plain text, byte by byte, without the project and without special tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    spaced = text.replace(" ", "Ġ").replace("\n", "Ċ")
    return [3 + letters.index(letter) for letter in spaced]


CHAT = [TURN_ID, *spelled("user: How many?\n"), TURN_ID, *spelled("assistant:")]


@pytest.mark.parametrize(
    ("template", "adds_bos", "expected"),
    [
        (WITH_BOS, True, [BOS_ID, *CHAT]),
        (WITH_BOS, False, [BOS_ID, *CHAT]),
        (WITHOUT_BOS, True, [BOS_ID, *CHAT]),
        (WITHOUT_BOS, False, CHAT),
        (TWICE_BOS, True, [BOS_ID, *CHAT]),
    ],
    ids=["both", "template", "tokenizer", "neither", "template twice"],
)
def test_a_chat_prompt_has_one_bos_where_the_model_uses_one(template, adds_bos, expected):
    assert encode_chat(tokenizer_of(adds_bos, template=template), MESSAGES) == expected


@pytest.mark.parametrize("text", ["How many?", " How many?", "\n\nfoo", ""])
@pytest.mark.parametrize("adds_bos", [True, False])
def test_plain_text_has_one_bos_where_the_tokenizer_puts_one(text, adds_bos):
    expected = [BOS_ID] * adds_bos + spelled(text)
    assert encode_text(tokenizer_of(adds_bos), text) == expected


def test_plain_text_that_spells_the_bos_does_not_get_a_second_one():
    assert encode_text(tokenizer_of(True), "<s>ab") == [BOS_ID, *spelled("ab")]


def test_no_eos_behind_the_prompt_of_a_tokenizer_that_adds_one():
    tokenizer = tokenizer_of(True, template=WITH_BOS, adds_eos=True)
    assert tokenizer("ab")["input_ids"] == [BOS_ID, *spelled("ab"), EOS_ID]
    assert encode_text(tokenizer, "ab") == [BOS_ID, *spelled("ab")]
    assert encode_chat(tokenizer, MESSAGES) == [BOS_ID, *CHAT]


def test_a_tokenizer_without_bos_gets_none():
    tokenizer = tokenizer_of(False, bos=False, template=WITHOUT_BOS)
    assert encode_text(tokenizer, "ab") == spelled("ab")
    assert encode_chat(tokenizer, MESSAGES) == CHAT


def test_a_token_that_is_bos_and_opens_each_turn_is_kept_inside():
    """As in ChatML models whose BOS is the token that opens a turn."""
    template = WITHOUT_BOS.replace(TURN, BOS)
    expected = [BOS_ID if token == TURN_ID else token for token in CHAT]
    assert encode_chat(tokenizer_of(False, template=template), MESSAGES) == expected


def test_messages_keep_their_order_and_their_blanks():
    messages = [
        {"role": "system", "content": "  Be brief. "},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c\n"},
    ]
    ids = encode_chat(tokenizer_of(True, template=WITH_BOS), messages)
    parts = ["system:   Be brief. \n", "user: a\n", "assistant: b\n", "user: c\n\n", "assistant:"]
    assert ids == [BOS_ID] + [i for part in parts for i in (TURN_ID, *spelled(part))]


DATED = (
    "{% if date_string is not defined %}"
    "{% set date_string = strftime_now('%d %b %Y') %}{% endif %}Today: {{ date_string }}"
)


def test_a_template_that_takes_a_date_gets_the_pinned_one_quietly(capsys):
    tokenizer = tokenizer_of(False, template=DATED)
    ids = encode_chat(tokenizer, MESSAGES)
    assert ids == spelled("Today: 26 Jul 2024")
    assert TEMPLATE_DATE == "26 Jul 2024"
    assert capsys.readouterr().err == ""


def test_a_template_that_injects_todays_date_is_told_of(capsys):
    tokenizer = tokenizer_of(False, template="Today: {{ strftime_now('%Y') }}")
    ids = encode_chat(tokenizer, MESSAGES)
    assert ids in [spelled(f"Today: {datetime.date.today().year + n}") for n in (-1, 0)]
    err = capsys.readouterr().err
    assert "date" in err
    assert err.count("\n") == 1


def test_a_template_that_injects_todays_date_is_told_of_once(capsys):
    tokenizer = tokenizer_of(False, template="Once: {{ strftime_now('%Y') }}")
    for _ in range(3):
        encode_chat(tokenizer, MESSAGES)
    assert capsys.readouterr().err.count("\n") == 1
