"""Tiny random checkpoints of the paper's four model classes, laid out as on the hub.

Sizes are small, everything else is as published: class, tied or untied head, rotary embedding,
fused projections, multimodal wrapper, special tokens, end tokens, a chat template in the model's
style. Every width is a multiple of 64, so that groups of 64 and the kernels for 4 bits serve.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    LlamaConfig,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    Phi3Config,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from river_llm.exits import Criterion

LAYERS = 4
HIDDEN = 256
HEADS = 4
VOCAB = 768
PHI_CONTEXT = 131_072
PHI_SWITCH = 4096
MINISTRAL_CONTEXT = 262_144
MINISTRAL_SWITCH = 16_384

SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 384,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "initializer_range": 0.1,
}


@dataclass(frozen=True)
class Style:
    """Special tokens and template of a model family.

    Attributes:
        specials: first ids of the vocabulary, in order.
        bos: put in front of every text where `adds_bos`.
        eos: what the tokenizer calls the end.
        ends: every token that ends a text.
        template: chat template (Jinja).
    """

    specials: Sequence[str]
    bos: str
    eos: str
    ends: Sequence[str]
    template: str
    adds_bos: bool = True

    def ids(self, tokens: Sequence[str]) -> list[int]:
        return [self.specials.index(token) for token in tokens]


LLAMA = Style(
    specials=(
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eom_id|>",
        "<|eot_id|>",
    ),
    bos="<|begin_of_text|>",
    eos="<|eot_id|>",
    ends=("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
    template=(
        "{{ bos_token }}"
        "{% if not date_string is defined %}{% set date_string = '26 Jul 2024' %}{% endif %}"
        "<|start_header_id|>system<|end_header_id|>\n\nToday Date: {{ date_string }}\n\n<|eot_id|>"
        "{% for message in messages %}"
        "<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
        "{{ message['content'] | trim }}<|eot_id|>"
        "{% endfor %}"
        "{% if add_generation_prompt %}"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
        "{% endif %}"
    ),
)
PHI = Style(
    specials=("<|endoftext|>", "<|assistant|>", "<|end|>", "<|user|>", "<|system|>"),
    bos="<|endoftext|>",
    eos="<|endoftext|>",
    ends=("<|end|>", "<|endoftext|>"),
    template=(
        "{% for message in messages %}"
        "<|{{ message['role'] }}|>{{ message['content'] }}<|end|>"
        "{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% else %}{{ eos_token }}{% endif %}"
    ),
    adds_bos=False,
)
MISTRAL = Style(
    specials=(
        "<unk>",
        "<s>",
        "</s>",
        "[INST]",
        "[/INST]",
        "[IMG]",
        "<pad>",
        "[SYSTEM_PROMPT]",
        "[/SYSTEM_PROMPT]",
    ),
    bos="<s>",
    eos="</s>",
    ends=("</s>",),
    template=(
        "{{ bos_token }}"
        "[SYSTEM_PROMPT]The current date is {today}.[/SYSTEM_PROMPT]"
        "{% for message in messages %}"
        "{% if message['role'] == 'user' %}[INST]{{ message['content'] }}[/INST]"
        "{% else %}{{ message['content'] }}{{ eos_token }}{% endif %}"
        "{% endfor %}"
    ),
)


class Planned(Criterion):
    """Depths from a cycle; the prompt runs in the backbone."""

    def __init__(self) -> None:
        super().__init__(LAYERS)

    def plan(self, step: int | None) -> int:
        return LAYERS if step is None else (3, 1, 2, 4, 0, 2, 4, 1)[step % 8]


@dataclass(frozen=True)
class Rope:
    """Lengths that change how positions enter; small ones let a short text cross the switch."""

    switch: int
    context: int


def llama_1b(style: Style) -> PreTrainedModel:
    """As Llama 3.2 1B: tied embeddings, `llama3` rotary scaling by 32."""
    return _llama(style, factor=32.0, tied=True)


def llama_8b(style: Style) -> PreTrainedModel:
    """As Llama 3.1 8B: a head of its own, `llama3` rotary scaling by 8."""
    return _llama(style, factor=8.0, tied=False)


def _llama(style: Style, factor: float, tied: bool) -> PreTrainedModel:
    config = LlamaConfig(
        **SIZES,
        max_position_embeddings=131_072,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500_000.0,
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        tie_word_embeddings=tied,
        **_special_ids(style),
    )
    return AutoModelForCausalLM.from_config(config)


def phi4_mini(style: Style, rope: Rope = Rope(PHI_SWITCH, PHI_CONTEXT)) -> PreTrainedModel:
    """As Phi-4-mini: fused projections, tied, three quarters of a head rotated, longrope."""
    pairs = HIDDEN // HEADS * 3 // 4 // 2
    config = Phi3Config(
        **SIZES,
        max_position_embeddings=rope.context,
        original_max_position_embeddings=rope.switch,
        partial_rotary_factor=0.75,
        rope_theta=10_000.0,
        rope_scaling={
            "type": "longrope",
            "short_factor": [1.0 + 0.02 * n for n in range(pairs)],
            "long_factor": [1.0 + 1.5 * n for n in range(pairs)],
        },
        # Longer than the context, as published: no key is ever hidden by it.
        sliding_window=2 * rope.context,
        tie_word_embeddings=True,
        **_special_ids(style),
    )
    return AutoModelForCausalLM.from_config(config)


def ministral3_8b(
    style: Style, rope: Rope = Rope(MINISTRAL_SWITCH, MINISTRAL_CONTEXT)
) -> PreTrainedModel:
    """As Ministral 3 8B: a vision tower around an untied text tower with scaled queries."""
    text = {
        "model_type": "ministral3",
        **SIZES,
        "head_dim": HIDDEN // HEADS,
        "max_position_embeddings": rope.context,
        "rope_parameters": {
            "rope_type": "yarn",
            "type": "yarn",
            "rope_theta": 1_000_000.0,
            "factor": 16.0,
            "original_max_position_embeddings": rope.switch,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.1,
        },
        "sliding_window": None,
        "tie_word_embeddings": False,
        **_special_ids(style),
    }
    vision = {
        "model_type": "pixtral",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "head_dim": 16,
        "patch_size": 14,
        "image_size": 28,
    }
    config = Mistral3Config(
        text_config=text,
        vision_config=vision,
        image_token_index=style.specials.index("[IMG]"),
        tie_word_embeddings=False,
    )
    return Mistral3ForConditionalGeneration(config)


KINDS: dict[str, tuple[Any, Style]] = {
    "llama3.2_1b": (llama_1b, LLAMA),
    "llama3.1_8b": (llama_8b, LLAMA),
    "phi4_mini": (phi4_mini, PHI),
    "ministral3_8b": (ministral3_8b, MISTRAL),
}
"""By the names of `conf/model/`."""

HUB_IDS = {
    "llama3.2_1b": "meta-llama/Llama-3.2-1B-Instruct",
    "llama3.1_8b": "meta-llama/Llama-3.1-8B-Instruct",
    "phi4_mini": "microsoft/Phi-4-mini-instruct",
    "ministral3_8b": "mistralai/Ministral-3-8B-Instruct-2512-BF16",
}
"""The paths of `conf/model/`."""


def save_checkpoint(kind: str, folder: Path, rope: Rope | None = None) -> Path:
    """Writes a checkpoint with its tokenizer in bf16.

    Args:
        kind: a key of :data:`KINDS`.
        folder: where.
        rope: other lengths than the published ones (`phi4_mini`, `ministral3_8b`).
    """
    make, style = KINDS[kind]
    torch.manual_seed(0)
    model = make(style) if rope is None else make(style, rope)
    model = model.to(torch.bfloat16).eval()
    ends = style.ids(style.ends)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                nn.init.normal_(parameter, 1.0, 0.2)
        # Logit 0, far below the largest of the others: texts use up their budget everywhere.
        model.get_output_embeddings().weight[ends] = 0.0
    model.generation_config = GenerationConfig(
        bos_token_id=style.specials.index(style.bos), eos_token_id=ends
    )
    model.save_pretrained(folder)
    tokenizer(style).save_pretrained(folder)
    if kind == "phi4_mini":
        _edit(folder / "config.json", **_as_phi_on_the_hub(folder))
        _edit(folder / "tokenizer_config.json", tokenizer_class="GPT2Tokenizer")
    return folder


def mark_as_fp8(folder: Path) -> Path:
    """Makes a checkpoint look like one with FP8 weights, as Ministral 3's plain Instruct is."""
    settings = {"quant_method": "fp8", "activation_scheme": "static"}
    _edit(folder / "config.json", quantization_config=settings)
    return folder


def save_in_hub_cache(home: Path, kinds: Sequence[str] = tuple(KINDS)) -> dict[str, str]:
    """Writes checkpoints into a Hugging Face cache, so that their hub ids resolve offline.

    Args:
        home: what `HF_HOME` will be; set `HF_HUB_OFFLINE=1` beside it.
        kinds: which of :data:`KINDS`.

    Returns:
        Hub id of each kind.
    """
    for kind in kinds:
        folder = save_checkpoint(kind, home / "written" / kind)
        into_hub_cache(home, HUB_IDS[kind], folder)
    return {kind: HUB_IDS[kind] for kind in kinds}


def into_hub_cache(home: Path, hub_id: str, folder: Path) -> Path:
    """Lays a folder out as a downloaded snapshot of `hub_id`; files are linked, not copied."""
    commit = hashlib.sha1(hub_id.encode()).hexdigest()
    place = home / "hub" / f"models--{hub_id.replace('/', '--')}"
    snapshot = place / "snapshots" / commit
    snapshot.mkdir(parents=True, exist_ok=True)
    (place / "refs").mkdir(exist_ok=True)
    (place / "refs" / "main").write_text(commit, encoding="utf-8")
    for file in sorted(folder.iterdir()):
        target = snapshot / file.name
        target.unlink(missing_ok=True)
        try:
            os.link(file, target)
        except OSError:
            shutil.copyfile(file, target)
    return snapshot


def tokenizer(style: Style) -> PreTrainedTokenizerFast:
    """A byte-level BPE of :data:`VOCAB` tokens, trained on the packaged calibration text."""
    own = Tokenizer(models.BPE())
    own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    own.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=list(style.specials),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    text = resources.files("river_llm") / "evaluation" / "data" / "calibration.txt"
    own.train_from_iterator([text.read_text(encoding="utf-8")], trainer)
    if own.get_vocab_size() != VOCAB:
        raise ValueError(f"the text gives {own.get_vocab_size()} tokens instead of {VOCAB}")
    if style.adds_bos:
        own.post_processor = processors.TemplateProcessing(
            single=f"{style.bos} $A", special_tokens=[(style.bos, own.token_to_id(style.bos))]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=own,
        bos_token=style.bos,
        eos_token=style.eos,
        chat_template=style.template,
    )


def _as_phi_on_the_hub(folder: Path) -> dict[str, Any]:
    """Older keys for the rotary embedding, and code of its own that transformers need not run."""
    content = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    rope = content["rope_parameters"]
    return {
        "auto_map": {
            "AutoConfig": "configuration_phi3.Phi3Config",
            "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM",
            "AutoTokenizer": "Xenova/gpt-4o",
        },
        # Phi3Config's default lies beyond a small vocabulary.
        "pad_token_id": content["bos_token_id"],
        "rope_parameters": None,
        "rope_theta": rope["rope_theta"],
        "rope_scaling": {key: rope[key] for key in ("type", "short_factor", "long_factor")},
    }


def _special_ids(style: Style) -> dict[str, Any]:
    ends = style.ids(style.ends)
    return {
        "bos_token_id": style.specials.index(style.bos),
        "eos_token_id": ends if len(ends) > 1 else ends[0],
        "pad_token_id": None,
    }


def _edit(path: Path, **changes: Any) -> None:
    """Changes keys of a JSON file; None takes a key out."""
    content: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    left = {key: value for key, value in {**content, **changes}.items() if value is not None}
    path.write_text(json.dumps(left, indent=2) + "\n", encoding="utf-8")
