"""Quantized weights on disk: used when they are good, made anew when they are not."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from river_llm.config import HqqInt4Config, NoQuantConfig, RtnInt4Config, RtnInt8Config
from river_llm.errors import UserError
from river_llm.models.adapter import BackboneAdapter
from river_llm.models.loading import model_fingerprint
from river_llm.quant import hqq, rtn_int4, rtn_int8
from river_llm.quant.grid import split_groups
from river_llm.quant.quantizers import quant_record
from river_llm.quant.store import quantized_layers
from tiny import LAYERS, tiny_model

RTN = RtnInt4Config(group_size=32)
INT8 = RtnInt8Config()
LINEARS = 7 * LAYERS


@pytest.fixture
def count(monkeypatch):
    """How many matrices have been quantized so far."""
    calls = []
    for module in (rtn_int4, hqq, rtn_int8):
        quantize = module.quantize

        def counted(weight, quantize=quantize):
            calls.append(weight.shape)
            return quantize(weight)

        monkeypatch.setattr(module, "quantize", counted)
    return lambda: len(calls)


def layers_of(model, cache, config=RTN):
    return list(quantized_layers(BackboneAdapter(model), config, model_fingerprint(model), cache))


def folders(cache) -> list:
    return sorted(p for p in (cache / "rivers").iterdir() if not p.name.startswith("."))


def assert_same(first, second):
    assert [set(layer) for layer in first] == [set(layer) for layer in second]
    for layer, other in zip(first, second, strict=True):
        for name, weight in layer.items():
            assert_equal_parts(weight, other[name], name)


def assert_equal_parts(weight, other, name):
    assert type(weight) is type(other)
    for part, tensor in vars(weight).items():
        same = getattr(other, part)
        assert tensor.dtype == same.dtype, (name, part)
        assert torch.equal(tensor, same), (name, part)


@pytest.mark.parametrize(
    ("config", "quantized", "size"),
    [
        (RTN, lambda w: rtn_int4.quantize(split_groups(w, 32, "w")), 32),
        (HqqInt4Config(group_size=16), lambda w: hqq.quantize(split_groups(w, 16, "w")), 16),
        (INT8, lambda w: rtn_int8.quantize(w.float()), None),
    ],
    ids=["rtn_int4", "hqq_int4", "rtn_int8"],
)
def test_what_comes_from_disk_is_what_the_quantizer_gives(config, quantized, size, tmp_path):
    model = tiny_model("qwen3", torch.bfloat16)
    layers = layers_of(model, tmp_path, config)
    assert len(layers) == LAYERS
    for layer, weights in zip(model.model.layers, layers, strict=True):
        linears = {n: m for n, m in layer.named_modules() if isinstance(m, nn.Linear)}
        assert set(weights) == set(linears)
        for name, module in linears.items():
            assert_equal_parts(weights[name], quantized(module.weight.detach()), name)
            assert getattr(weights[name], "group_size", None) == size


@pytest.mark.parametrize("config", [RTN, INT8])
def test_the_second_build_reads_the_disk(config, count, tmp_path):
    first = layers_of(tiny_model("llama"), tmp_path, config)
    assert count() == LINEARS
    second = layers_of(tiny_model("llama"), tmp_path, config)
    assert count() == LINEARS
    assert_same(first, second)


@pytest.mark.parametrize(
    ("config", "per_layer"),
    [
        # q, k and v, o, gate, up, down: half a byte a weight, 4 bytes a group of 32.
        (RTN, 30720 // 2 + 30720 // 32 * 4),
        # A byte a weight, 2 bytes for each of the 64 + 2 * 32 + 64 + 2 * 96 + 64 outputs.
        (INT8, 30720 + 448 * 2),
    ],
)
def test_the_file_is_as_large_as_the_packed_weights(config, per_layer, tmp_path):
    layers_of(tiny_model("llama"), tmp_path, config)
    (folder,) = folders(tmp_path)
    tensors = load_file(folder / "codes.safetensors")
    assert sum(tensor.nbytes for tensor in tensors.values()) == LAYERS * per_layer


def rewrite(folder, change):
    """Replaces the weights by a file of their changed bytes; loaded tensors map the old one."""
    file = folder / "codes.safetensors"
    content = bytearray(file.read_bytes())
    change(content)
    file.unlink()
    file.write_bytes(content)


def truncate(folder):
    rewrite(folder, lambda content: content.__delitem__(slice(-100, None)))


def flip_one_bit(folder):
    rewrite(folder, lambda content: content.__setitem__(-5000, content[-5000] ^ 1))


def empty(folder):
    rewrite(folder, bytearray.clear)


def remove_weights(folder):
    (folder / "codes.safetensors").unlink()


def remove_manifest(folder):
    (folder / "manifest.json").unlink()


def break_manifest(folder):
    (folder / "manifest.json").write_text("{")


@pytest.mark.parametrize(
    "damage",
    [truncate, flip_one_bit, empty, remove_weights, remove_manifest, break_manifest],
    ids=lambda f: f.__name__,
)
def test_a_damaged_folder_is_made_anew_audibly(damage, count, tmp_path, capsys):
    first = layers_of(tiny_model("llama"), tmp_path)
    (folder,) = folders(tmp_path)
    damage(folder)
    capsys.readouterr()
    second = layers_of(tiny_model("llama"), tmp_path)
    assert count() == 2 * LINEARS
    assert str(folder) in capsys.readouterr().err
    assert_same(first, second)
    layers_of(tiny_model("llama"), tmp_path)
    assert count() == 2 * LINEARS, "good again"


def one_element_more(model):
    model.model.layers[4].mlp.down_proj.weight.data[63, 95] += 0.25
    return model


@pytest.mark.parametrize(
    ("model", "config"),
    [
        (lambda: tiny_model("llama"), RtnInt4Config(group_size=16)),
        (lambda: tiny_model("llama"), HqqInt4Config(group_size=32)),
        (lambda: tiny_model("llama"), INT8),
        (lambda: one_element_more(tiny_model("llama")), RTN),
        (lambda: tiny_model("llama", torch.bfloat16), RTN),
        (lambda: tiny_model("qwen2"), RTN),
    ],
)
def test_other_settings_or_weights_have_another_folder(model, config, count, tmp_path):
    first = layers_of(tiny_model("llama"), tmp_path)
    layers_of(model(), tmp_path, config)
    assert len(folders(tmp_path)) == 2
    assert count() == 2 * LINEARS
    assert_same(layers_of(tiny_model("llama"), tmp_path), first)
    assert count() == 2 * LINEARS


@pytest.mark.parametrize("setting", ["ITERATIONS", "BETA", "NORM"])
def test_every_setting_of_hqq_is_in_its_record(setting):
    assert getattr(hqq, setting) in hqq.SETTINGS.values()
    record = quant_record(HqqInt4Config(group_size=64))
    assert record["name"] == "hqq_int4"
    assert record["group_size"] == 64
    assert record["bits"] == 4
    assert getattr(hqq, setting) in record.values()


def test_records_tell_the_quantizers_apart():
    assert quant_record(INT8) == {
        "name": "rtn_int8",
        "bits": 8,
        "symmetric": True,
        "scale_per": "output channel",
        "scale_dtype": "bf16",
    }
    assert quant_record(NoQuantConfig()) == {"name": "none"}
    four = quant_record(RTN)
    assert (four["name"], four["bits"], four["group_size"]) == ("rtn_int4", 4, 32)


def test_a_cache_that_cannot_be_written_is_told_in_one_line(tmp_path):
    (tmp_path / "rivers").write_text("a file, no folder")
    with pytest.raises(UserError, match="RIVER_LLM_CACHE"):
        layers_of(tiny_model("llama"), tmp_path)
