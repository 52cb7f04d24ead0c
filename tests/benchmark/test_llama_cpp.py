"""What llama.cpp reads by its file, and the one line where package or file is missing."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter

from river_llm.benchmark.llama_cpp import GgufTraffic, LlamaCpp, gguf_path
from river_llm.errors import UserError
from river_llm.models.embedded import find_gguf

LAYERS, HIDDEN, HEADS, KV_HEADS, VOCAB = 2, 16, 4, 2, 10


def write(path: Path, tied: bool, key_length: int | None = None) -> Path:
    """A file of float16 matrices and float32 norms, without a tokenizer."""
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_embedding_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    if key_length is not None:
        writer.add_key_length(key_length)
    writer.add_tensor("token_embd.weight", np.zeros((VOCAB, HIDDEN), np.float16))
    if not tied:
        writer.add_tensor("output.weight", np.zeros((VOCAB, HIDDEN), np.float32))
    writer.add_tensor("output_norm.weight", np.zeros(HIDDEN, np.float32))
    for layer in range(LAYERS):
        writer.add_tensor(f"blk.{layer}.attn_norm.weight", np.zeros(HIDDEN, np.float32))
        writer.add_tensor(f"blk.{layer}.attn_q.weight", np.zeros((HIDDEN, HIDDEN), np.float16))
        writer.add_tensor(f"blk.{layer}.attn_q.bias", np.zeros(HIDDEN, np.float32))
        writer.add_tensor(f"blk.{layer}.ffn_up.weight", np.zeros((48, HIDDEN), np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


MATRICES = 2 * LAYERS * (HIDDEN * HIDDEN + 48 * HIDDEN)
NORMS_AND_BIASES = 4 * LAYERS * 2 * HIDDEN
ROW = 2 * HIDDEN


def test_a_tied_embedding_is_read_once_as_the_head(tmp_path):
    """Behind 7 tokens two steps see 8 and 9: 8.5 slots of 2 x 2 layers x 2 heads x 4 x 2 bytes."""
    traffic = GgufTraffic(write(tmp_path / "tied.gguf", tied=True))
    assert traffic.vocab_size == VOCAB
    assert traffic.bytes_per_token(7, 2) == {
        "backbone": MATRICES,
        "river": 0,
        "head": 2 * VOCAB * HIDDEN + 4 * HIDDEN,
        "other": ROW + NORMS_AND_BIASES,
        "kv": 8.5 * 2 * LAYERS * KV_HEADS * 4 * 2,
    }


def test_of_an_embedding_of_its_own_one_row_is_read(tmp_path):
    read = GgufTraffic(write(tmp_path / "own.gguf", tied=False)).bytes_per_token(7, 2)
    assert read["head"] == 4 * VOCAB * HIDDEN + 4 * HIDDEN
    assert read["other"] == ROW + NORMS_AND_BIASES


def test_heads_of_a_width_of_their_own(tmp_path):
    traffic = GgufTraffic(write(tmp_path / "wide.gguf", tied=True, key_length=32))
    assert traffic.bytes_per_token(0, 1)["kv"] == 2 * LAYERS * KV_HEADS * 32 * 2


def test_the_embedded_models_file_is_read_almost_whole():
    """All tensors are read for a token; the tied embedding is the head."""
    path = gguf_path("embedded")
    assert path == find_gguf()
    traffic = GgufTraffic(path)
    assert traffic.vocab_size == 49152
    read = traffic.bytes_per_token(0, 1)
    weights = sum(read.values()) - read["kv"]
    # The rest of the file is the vocabulary.
    assert 0.97 * path.stat().st_size < weights < path.stat().st_size
    assert read["kv"] == 2 * 30 * 3 * 64 * 2


def test_a_missing_file_is_told_in_one_line(tmp_path):
    with pytest.raises(UserError, match=r"gguf=.*none\.gguf is no file"):
        gguf_path(str(tmp_path / "none.gguf"))


def test_another_file_is_told_in_one_line(tmp_path):
    other = tmp_path / "other.gguf"
    other.write_bytes(b"no model at all, and long enough for a header" * 9)
    with pytest.raises(UserError, match="is no GGUF file of a language model"):
        GgufTraffic(other)


def test_a_missing_package_is_told_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    path = write(tmp_path / "tied.gguf", tied=True)
    with pytest.raises(UserError, match=r"xllamacpp .* pip install -e '.\[peers\]'") as refused:
        LlamaCpp(path, GgufTraffic(path), 1, 8, 2)
    assert "\n" not in str(refused.value)
