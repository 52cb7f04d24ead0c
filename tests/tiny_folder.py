"""Tiny random models with a tokenizer, saved as folders that `model.path=` takes."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

LAYERS = 3
HIDDEN = 64
CONTEXT = 1536
EOS = "<|im_end|>"
SPECIALS = ("<|endoftext|>", "<|im_start|>", EOS)
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# A run on such a folder, small in every part: 4 samples, and all measurements beside them.
SMALL = (
    "exp=gsm_mini",
    "model.dtype=fp32",
    "limit=4",
    "exp.max_new_tokens=8",
    "speedup.prompts=1",
    "speedup.tokens=4",
    "fidelity.limit=2",
    "fidelity.tokens=4",
)


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each byte, three special ones, a chat template, no BOS."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*SPECIALS, *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIALS))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=EOS,
        pad_token=EOS,
        chat_template=CHAT_TEMPLATE,
    )


def tiny_llama() -> PreTrainedModel:
    """A seeded random Llama of 3 layers, hidden size 64, all widths multiples of 64."""
    tokenizer = tiny_tokenizer()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN,
        intermediate_size=128,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=False,
        initializer_range=0.3,
    )
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name:
            nn.init.normal_(parameter, 1.0, 0.2)
    with torch.no_grad():
        # Far below the largest of the other logits: texts use up their budget on every machine.
        model.lm_head.weight[tokenizer.eos_token_id] = 0.0
    return model


def save_llama(folder: Path) -> Path:
    """Saves :func:`tiny_llama` in float32 with its tokenizer."""
    return _save(folder, tiny_llama())


def save_gpt2(folder: Path) -> Path:
    """Saves a model of an architecture that the adapter does not know."""
    tokenizer = tiny_tokenizer()
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_embd=32,
        n_layer=2,
        n_head=2,
        n_positions=CONTEXT,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    return _save(folder, AutoModelForCausalLM.from_config(config))


def _save(folder: Path, model: PreTrainedModel) -> Path:
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder
