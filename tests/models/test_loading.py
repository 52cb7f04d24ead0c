"""What a folder of weights comes to: device, end tokens, fingerprint, and what is refused."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GenerationConfig, Qwen2Config

from river_llm.config import ModelConfig
from river_llm.errors import UserError
from river_llm.models import loading
from river_llm.models.loading import eos_ids, load_model, model_fingerprint, resolve_device
from tiny import KINDS, tiny_model
from tiny_folder import EOS, save_gpt2, save_llama, tiny_llama


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return save_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture
def own(tmp_path):
    """A saved model of the test's own, to be damaged."""
    return save_llama(tmp_path / "llama")


def load(path, **settings):
    return load_model(ModelConfig(name="tiny", path=str(path), device="cpu", **settings))


@pytest.mark.parametrize(
    ("name", "cuda", "expected"),
    [
        ("auto", False, "cpu"),
        ("auto", True, "cuda"),
        ("cpu", True, "cpu"),
        ("cuda", True, "cuda"),
        ("cuda:1", True, "cuda:1"),
    ],
)
def test_device(name, cuda, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    assert resolve_device(name) == torch.device(expected)


@pytest.mark.parametrize("name", ["cuda", "cuda:1", "mps", "meta", "toaster", "", "cpu0"])
def test_a_device_that_is_not_there_is_refused(name, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match=r"model\.device") as error:
        resolve_device(name)
    assert name in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("generation", "config", "tokenizer", "expected"),
    [
        ([5, 6], 7, 8, {5, 6, 7, 8}),
        (5, [6, 7], 5, {5, 6, 7}),
        (None, None, 8, {8}),
        (0, None, None, {0}),
        (None, None, None, set()),
    ],
)
def test_every_end_token_counts_wherever_it_is_named(generation, config, tokenizer, expected):
    model = SimpleNamespace(
        generation_config=GenerationConfig(eos_token_id=generation),
        config=SimpleNamespace(eos_token_id=config),
    )
    assert eos_ids(model, SimpleNamespace(eos_token_id=tokenizer)) == expected


def test_a_model_without_generation_config_has_the_other_end_tokens():
    model = SimpleNamespace(generation_config=None, config=SimpleNamespace(eos_token_id=4))
    assert eos_ids(model, SimpleNamespace(eos_token_id=None)) == {4}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equal_weights_have_equal_fingerprints(kind, dtype):
    first, second = (model_fingerprint(tiny_model(kind, dtype)) for _ in range(2))
    assert first == second
    assert len(first) == 64


def test_fingerprints_of_different_models_differ():
    models = [tiny_model(kind, dtype) for kind in KINDS for dtype in (torch.float32, torch.float16)]
    assert len({model_fingerprint(model) for model in models}) == 8


@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "model.norm.weight",
        "model.layers.4.self_attn.k_proj.bias",
        "model.layers.2.mlp.down_proj.weight",
        "lm_head.weight",
    ],
)
def test_one_element_changes_the_fingerprint(name):
    model = tiny_model("llama_bias")
    before = model_fingerprint(model)
    element = model.get_parameter(name).data.view(-1)[-1:]
    kept = element.clone()
    element.copy_(torch.nextafter(kept, kept + 1))
    assert model_fingerprint(model) != before
    element.copy_(kept)
    assert model_fingerprint(model) == before


def test_the_same_bits_of_another_type_or_shape_have_another_fingerprint():
    model = tiny_model("llama", torch.bfloat16)
    prints = {model_fingerprint(model)}
    weight = model.model.layers[1].mlp.up_proj.weight
    kept = weight.data
    for other in (kept.view(torch.float16), kept.view(64, 96), kept):
        weight.data = other
        prints.add(model_fingerprint(model))
    assert len(prints) == 3


def test_two_swapped_layers_change_the_fingerprint():
    model = tiny_model("llama")
    before = model_fingerprint(model)
    first, second = (model.model.layers[n].mlp.up_proj.weight.data for n in (1, 2))
    swapped = second.clone(), first.clone()
    first.copy_(swapped[0])
    second.copy_(swapped[1])
    assert model_fingerprint(model) != before


def test_a_saved_model_is_loaded_with_its_weights(saved):
    loaded = load(saved, dtype="fp32")
    assert loaded.fingerprint == model_fingerprint(tiny_llama())
    assert loaded.eos_ids == {loaded.tokenizer.convert_tokens_to_ids(EOS)}
    assert loaded.adapter.dtype == torch.float32
    assert not loaded.adapter.model.training


@pytest.mark.parametrize(
    ("name", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)]
)
def test_dtype_is_the_one_asked_for(name, dtype, saved):
    model = load(saved, dtype=name).adapter.model
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}


@pytest.mark.parametrize(
    ("template", "chat", "expected"),
    [
        (True, "auto", True),
        (True, "always", True),
        (True, "never", False),
        (False, "auto", False),
        (False, "never", False),
    ],
)
def test_chat_template(template, chat, expected, own):
    if not template:
        drop_template(own)
    assert load(own, chat=chat).chat is expected


def drop_template(folder):
    (folder / "chat_template.jinja").unlink()


def drop_config(folder):
    (folder / "config.json").unlink()


def drop_weights(folder):
    (folder / "model.safetensors").unlink()


def drop_tokenizer(folder):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()


def edit_weights(folder, change):
    file = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    change(tensors)
    file.unlink()
    save_file(tensors, file, metadata={"format": "pt"})


def drop_a_tensor(folder):
    edit_weights(folder, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))


def shorten_a_tensor(folder):
    name = "model.layers.1.mlp.up_proj.weight"
    edit_weights(folder, lambda tensors: tensors.update({name: torch.zeros(5, 64)}))


def truncate_weights(folder):
    file = folder / "model.safetensors"
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content[: len(content) // 2])


def break_config(folder):
    (folder / "config.json").write_text("{")


def tokenizer_of_qwen_without_files(folder):
    """Transformers makes an empty vocabulary where a Qwen folder has no tokenizer files."""
    for file in list(folder.iterdir()):
        file.unlink()
    config = Qwen2Config(
        vocab_size=259,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)


@pytest.mark.parametrize(
    "damage",
    [
        drop_config,
        break_config,
        drop_weights,
        drop_tokenizer,
        drop_a_tensor,
        shorten_a_tensor,
        truncate_weights,
        tokenizer_of_qwen_without_files,
    ],
    ids=lambda f: f.__name__,
)
def test_a_folder_that_is_not_whole_is_refused_in_one_line(damage, own):
    damage(own)
    with pytest.raises(UserError, match=r"model\.path") as error:
        load(own)
    assert str(own) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("path", ["/no/such/folder", "no-such-owner/no-such-model"])
def test_a_model_that_is_nowhere_is_refused_in_one_line(path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="smollm2_135m") as error:
        load(path)
    assert path in str(error.value)
    assert "\n" not in str(error.value)


def test_chat_without_a_template_is_refused(own):
    drop_template(own)
    with pytest.raises(UserError, match=r"model\.chat=never"):
        load(own, chat="always")


def test_an_unknown_architecture_is_refused(tmp_path):
    with pytest.raises(UserError, match="'gpt2'"):
        load(save_gpt2(tmp_path))


def test_the_second_of_two_end_tokens_in_the_generation_config_counts(own):
    path = own / "generation_config.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps(settings | {"eos_token_id": [1, 2]}))
    assert {1, 2} <= load(own).eos_ids


def test_decoding_leaves_special_tokens_out_and_blanks_in(saved):
    loaded = load(saved)
    text = "    a , b .\n  don ' t  "
    ids = loaded.tokenizer(f"<|im_start|>{text}{EOS}")["input_ids"]
    assert loaded.decode(ids) == text
    assert loaded.decode(tuple(ids[1:-1])) == text


def test_the_embedded_model_is_asked_for_by_its_word(saved, monkeypatch):
    monkeypatch.setattr(loading, "ensure_embedded", lambda: saved)
    assert load("embedded", dtype="fp32").fingerprint == load(saved, dtype="fp32").fingerprint
