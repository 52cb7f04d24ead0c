"""Conversion of a GGUF file of the Llama architecture into a folder that transformers loads.

Only what the embedded model needs is known. Anything else in a file (another architecture, a
hyperparameter or tensor without a place, another pre-tokenizer) is refused, because leaving it
out would give another model without a sign of it.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, TokenType
from gguf.quants import dequantize
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tqdm import tqdm

from river_llm.errors import UserError

FILES = frozenset(
    {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
)

_HYPERPARAMETERS = {
    "llama.block_count": "num_hidden_layers",
    "llama.context_length": "max_position_embeddings",
    "llama.embedding_length": "hidden_size",
    "llama.feed_forward_length": "intermediate_size",
    "llama.attention.head_count": "num_attention_heads",
    "llama.attention.head_count_kv": "num_key_value_heads",
    "llama.attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "llama.rope.dimension_count": "head_dim",
    "llama.rope.freq_base": "rope_theta",
    "llama.vocab_size": "vocab_size",
}
_MODEL_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
}
_LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# A GGUF file names one end token; a chat model also emits the one of its pretraining documents.
_END_TOKENS = ("<|im_end|>", "<|endoftext|>")


def convert(source: Path, folder: Path, progress: bool = True) -> None:
    """Writes the model in `source` into `folder` as plain bf16 weights, config and tokenizer.

    Args:
        source: A GGUF file: Llama architecture, tied embeddings, byte-level BPE.
        folder: An existing empty folder; the files of `FILES` are written into it.
        progress: Shows a bar over the tensors on stderr.

    Raises:
        UserError: The file holds something that this conversion has no place for.
    """
    reader = GGUFReader(source)
    config = _read_config(reader)
    tokens: list[str] = _field(reader, "tokenizer.ggml.tokens")
    ids = {
        f"{name}_token_id": int(_field(reader, f"tokenizer.ggml.{key}_token_id"))
        for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))
    }
    ends = [tokens.index(token) for token in _END_TOKENS if token in tokens]
    generation = ids | {"eos_token_id": list(dict.fromkeys([ids["eos_token_id"], *ends]))}

    _write_json(folder / "config.json", config | ids)
    _write_json(folder / "generation_config.json", generation)
    _write_tokenizer(reader, tokens, config, ids, folder)
    save_file(
        _read_weights(reader, config, progress),
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    # safetensors writes for the owner alone; a shared cache wants the usual permissions.
    shutil.copymode(folder / "config.json", folder / "model.safetensors")


def _read_config(reader: GGUFReader) -> dict[str, Any]:
    """The keys of a transformers `LlamaConfig`, token ids apart."""
    architecture = _field(reader, "general.architecture")
    if architecture != "llama":
        raise UserError(f"GGUF architecture {architecture!r} is not known: only 'llama' is")
    unknown = sorted(
        key for key in reader.fields if key.startswith("llama.") and key not in _HYPERPARAMETERS
    )
    if unknown:
        raise UserError(f"GGUF hyperparameters {unknown} are not known: refusing to ignore them")
    values = {name: _field(reader, key) for key, name in _HYPERPARAMETERS.items()}
    rope_theta = values.pop("rope_theta")
    # Stored as float32: its shortest decimal form is the number that was meant (1e-05).
    values["rms_norm_eps"] = float(str(np.float32(values["rms_norm_eps"])))
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **values,
        "rope_parameters": {"rope_type": "default", "rope_theta": rope_theta},
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
    }


def _read_weights(
    reader: GGUFReader, config: dict[str, Any], progress: bool
) -> dict[str, torch.Tensor]:
    """All weights by their transformers names, each the bf16 value nearest to the stored one."""
    names = dict(_MODEL_TENSORS)
    for layer in range(config["num_hidden_layers"]):
        for ggml, ours in _LAYER_TENSORS.items():
            names[f"blk.{layer}.{ggml}.weight"] = f"model.layers.{layer}.{ours}.weight"
    # transformers would fill a missing tensor with random numbers and only warn.
    if differing := sorted(names.keys() ^ {tensor.name for tensor in reader.tensors}):
        raise UserError(f"GGUF tensors missing or without a place: {differing[:5]}")
    rotary_heads = {
        "attn_q": config["num_attention_heads"],
        "attn_k": config["num_key_value_heads"],
    }

    weights = {}
    for tensor in tqdm(reader.tensors, desc="converting GGUF", unit="tensor", disable=not progress):
        values = dequantize(tensor.data, tensor.tensor_type)
        kind = tensor.name.split(".")[-2]
        if kind in rotary_heads:
            values = _pairs_to_halves(values, rotary_heads[kind])
        weights[names[tensor.name]] = torch.tensor(values).to(torch.bfloat16)
    return weights


def _pairs_to_halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """Reorders a q or k projection from ggml's rotary layout to that of transformers.

    ggml rotates the neighbouring rows (2i, 2i+1) of a head together, transformers the rows
    (i, i + head_dim/2).
    """
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def _write_tokenizer(
    reader: GGUFReader,
    tokens: list[str],
    config: dict[str, Any],
    ids: dict[str, int],
    folder: Path,
) -> None:
    kind = (_field(reader, "tokenizer.ggml.model"), _field(reader, "tokenizer.ggml.pre"))
    if kind != ("gpt2", "smollm"):
        raise UserError(f"GGUF tokenizer {kind} is not known: only ('gpt2', 'smollm') is")
    types = [TokenType(value) for value in _field(reader, "tokenizer.ggml.token_type")]
    if unknown := sorted({t.name for t in types} - {"NORMAL", "CONTROL"}):
        raise UserError(f"GGUF token types {unknown} are not known: refusing to guess them")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if not len(vocabulary) == len(types) == config["vocab_size"]:
        raise UserError(
            f"GGUF vocabulary has {len(vocabulary)} distinct tokens and {len(types)} types "
            f"for {config['vocab_size']} ids"
        )

    merges = [tuple(merge.split(" ")) for merge in _field(reader, "tokenizer.ggml.merges")]
    tokenizer = Tokenizer(BPE(vocabulary, merges))
    # What the pre-tokenizer name "smollm" stands for: every digit is a token of its own.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind_of in zip(tokens, types, strict=True)
            if kind_of is TokenType.CONTROL
        ]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {
            # Not GPT2Tokenizer: transformers 5 then replaces the pre-tokenizer of tokenizer.json
            # by one without the digits, and blanks before a number get other ids.
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": tokens[ids["bos_token_id"]],
            "eos_token": tokens[ids["eos_token_id"]],
            "pad_token": tokens[ids["pad_token_id"]],
            "unk_token": tokens[_field(reader, "tokenizer.ggml.unknown_token_id")],
            "add_bos_token": bool(_field(reader, "tokenizer.ggml.add_bos_token")),
            "model_max_length": config["max_position_embeddings"],
            "clean_up_tokenization_spaces": False,
            "chat_template": _field(reader, "tokenizer.chat_template"),
        },
    )


def _field(reader: GGUFReader, key: str) -> Any:
    field = reader.get_field(key)
    if field is None:
        raise UserError(f"GGUF file lacks the key {key!r}")
    return field.contents()


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
