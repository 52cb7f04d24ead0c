"""From a prompt to token ids: chat template or plain text, and exactly one BOS."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from typing import Any

TEMPLATE_DATE = "26 Jul 2024"
"""Llama 3's templates inject today's date; this one (their own default) is given instead."""


def encode_text(tokenizer: Any, text: str) -> list[int]:
    """Plain text for a base model; BOS where the tokenizer uses one."""
    return _one_bos(tokenizer, tokenizer(text, add_special_tokens=False)["input_ids"])


def encode_chat(tokenizer: Any, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """Chat messages through the tokenizer's template, ready for the assistant's turn."""
    _check_date(tokenizer.chat_template or "")
    text = tokenizer.apply_chat_template(
        list(messages),
        tokenize=False,
        add_generation_prompt=True,
        date_string=TEMPLATE_DATE,
    )
    # The template has written the special tokens already.
    return _one_bos(tokenizer, tokenizer(text, add_special_tokens=False)["input_ids"])


@functools.cache
def _check_date(template: str) -> None:
    """Says, once per template, that its prompts change from day to day."""
    if "strftime_now" in template and "date_string" not in template:
        print(
            "river_llm: the chat template injects today's date and takes no date_string: "
            "prompts will differ from day to day",
            file=sys.stderr,
        )


def _one_bos(tokenizer: Any, ids: Sequence[int]) -> list[int]:
    """Exactly one BOS in front, for tokenizers that put one there."""
    bos = tokenizer.bos_token_id
    out = list(ids)
    if bos is None:
        return out
    while len(out) > 1 and out[0] == out[1] == bos:
        del out[0]
    uses_bos = tokenizer("a")["input_ids"][0] == bos
    if uses_bos and out[:1] != [bos]:
        out.insert(0, bos)
    return out
