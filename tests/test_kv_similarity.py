"""KV similarity against transformers' own states and caches, on tiny models in float32."""

from __future__ import annotations

import copy
import json

import pandas as pd
import pytest
import torch
from torch import nn

import tiny_folder
from river_llm.decoding import NoExit, River
from river_llm.errors import UserError
from river_llm.evaluation.fidelity import ForcedText
from river_llm.evaluation.kv_similarity import Arm, StateRecorder, arms_of, compare_text
from river_llm.exits import Fixed, Never
from river_llm.quant import rtn_int4
from river_llm.quant.grid import split_groups
from tiny import COPIED, LAYERS, PROMPT, QUANT, make_executor, run, tiny_model

TOKENS = 9
STEPS = TOKENS - 1
DEPTHS = [0, 2, LAYERS]


def compared(model, cache, quant, depths=DEPTHS):
    """The text of no_exit, and what is compared along it."""
    no_exit = NoExit(*make_executor(model, Never(LAYERS), cache, COPIED))
    tokens = run(no_exit, [PROMPT], TOKENS)[0][0]
    recorder = StateRecorder(*make_executor(model, Never(LAYERS), cache, COPIED))
    rivers = {
        arm: River(*make_executor(model, Fixed(LAYERS, arm.depth), cache, quant), arm.prefill)
        for arm in arms_of(depths, LAYERS)
    }
    layers, entries = compare_text(recorder, rivers, ForcedText("a", PROMPT, tokens))
    return PROMPT + tokens[:-1], layers, entries


def table(frame: pd.DataFrame, column: str) -> torch.Tensor:
    """A column as [steps, L]."""
    rows = frame.sort_values(["step", "layer"])
    assert rows["step"].tolist() == [step for step in range(STEPS) for _ in range(LAYERS)]
    assert rows["layer"].tolist() == list(range(LAYERS)) * STEPS
    return torch.tensor(rows[column].to_numpy()).view(STEPS, LAYERS)


def arm(entries: pd.DataFrame, name: str, depth: int, prefill: str) -> pd.DataFrame:
    chosen = entries[
        (entries["arm"] == name) & (entries["depth"] == depth) & (entries["prefill"] == prefill)
    ]
    assert len(chosen) == STEPS * LAYERS
    return chosen


def cosine(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Written out, over the last axis, in double precision."""
    a, b = a.double(), b.double()
    return (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))


def quantized(weight: torch.Tensor) -> torch.Tensor:
    return rtn_int4.quantize(split_groups(weight, QUANT.group_size, "twin")).dequantize(
        torch.float32
    )


def twin_from(model, depth: int):
    """The model with dequantized linears in the layers from `depth` on."""
    twin = copy.deepcopy(model)
    for layer in twin.model.layers[depth:]:
        for module in layer.modules():
            if isinstance(module, nn.Linear):
                module.weight.data = quantized(module.weight.data)
    return twin


def transformers_pass(model, text: list[int]):
    """Block inputs and outputs [L, T, H], keys and values [L, T, kv_heads * D] of one pass."""
    model = copy.deepcopy(model)
    model.set_attn_implementation("eager")
    blocks: list[tuple[torch.Tensor, torch.Tensor]] = []

    def keep(module, arguments, output):
        out = output[0] if isinstance(output, tuple) else output
        blocks.append((arguments[0][0], out[0]))

    for layer in model.model.layers:
        layer.register_forward_hook(keep)
    with torch.no_grad():
        cache = model(torch.tensor([text]), use_cache=True).past_key_values
    first, second = (torch.stack(part) for part in zip(*blocks, strict=True))
    keys, values = (
        torch.stack([getattr(layer, name)[0].transpose(0, 1).flatten(1) for layer in cache.layers])
        for name in ("keys", "values")
    )
    return first, second, keys, values


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_similarity_is_that_of_transformers_block_inputs_and_outputs(kind, rivers, engine):
    model = tiny_model(kind)
    text, layers, _ = compared(model, rivers, QUANT, [0])
    first, second, _, _ = transformers_pass(model, text)
    expected = cosine(first, second)[:, len(PROMPT) :].T.float()
    assert torch.allclose(table(layers, "similarity"), expected, atol=1e-5)
    assert expected.std() > 0.05, "tokens and layers that differ"


def test_a_river_of_copied_weights_leaves_the_backbones_entries(rivers, engine):
    _, _, entries = compared(tiny_model("qwen3"), rivers, COPIED)
    others = entries[entries["arm"] != "other_token"]
    assert set(others["arm"]) == {"layer_alone", "full_quant", "river"}
    for column in ("key_cosine", "value_cosine"):
        assert others[column].to_numpy() == pytest.approx(1.0, abs=1e-6)


def test_at_full_depth_the_entries_are_the_backbones(rivers, engine):
    _, _, entries = compared(tiny_model("llama"), rivers, QUANT)
    for prefill in ("backbone", "sequence"):
        whole = arm(entries, "river", LAYERS, prefill)
        assert whole["key_cosine"].to_numpy() == pytest.approx(1.0, abs=1e-6)
        assert whole["value_cosine"].to_numpy() == pytest.approx(1.0, abs=1e-6)
        shallow = arm(entries, "river", 2, prefill)
        assert shallow["value_cosine"].mean() < 0.999, "a river that quantizes"


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_a_runs_entries_are_those_of_transformers_with_dequantized_upper_layers(kind, rivers):
    model = tiny_model(kind)
    text, _, entries = compared(model, rivers, QUANT)
    own = transformers_pass(model, text)[2:]
    for name, depth in (("full_quant", 0), ("river", 2)):
        found = arm(entries, name, depth, "sequence")
        drifted = transformers_pass(twin_from(model, depth), text)[2:]
        for column, ours, backbones in zip(
            ("key_cosine", "value_cosine"), drifted, own, strict=True
        ):
            expected = cosine(ours, backbones)[:, len(PROMPT) :].T.float()
            assert torch.allclose(table(found, column), expected, atol=1e-5)
            assert expected[:, depth:].min() < 0.999, "entries that differ"
    # With the prompt at 16 bits the context differs, and with it the entries.
    backbone = arm(entries, "river", 2, "backbone")
    other = arm(entries, "river", 2, "sequence")
    assert not torch.allclose(table(backbone, "value_cosine"), table(other, "value_cosine"))


def test_a_layer_alone_projects_the_backbones_own_state(rivers, engine):
    model = tiny_model("llama")
    text, _, entries = compared(model, rivers, QUANT, [0])
    first, _, _, values = transformers_pass(model, text)
    expected = []
    for layer, inputs, own in zip(model.model.layers, first, values, strict=True):
        with torch.no_grad():
            projected = (
                layer.input_layernorm(inputs) @ quantized(layer.self_attn.v_proj.weight.data).T
            )
        expected.append(cosine(projected, own)[len(PROMPT) :])
    found = table(arm(entries, "layer_alone", 0, ""), "value_cosine")
    assert torch.allclose(found, torch.stack(expected, dim=1).float(), atol=1e-5)
    drifted = table(arm(entries, "full_quant", 0, "sequence"), "value_cosine")
    assert drifted[:, -1].mean() < found[:, -1].mean(), "drift that adds up"


def test_other_token_is_the_backbones_entry_one_token_before(rivers):
    model = tiny_model("llama")
    text, _, entries = compared(model, rivers, QUANT, [0])
    values = transformers_pass(model, text)[3][:, len(PROMPT) :]
    before = torch.cat([values[:, -1:], values[:, :-1]], dim=1)
    found = table(arm(entries, "other_token", LAYERS, ""), "value_cosine")
    assert torch.allclose(found, cosine(before, values).T.float(), atol=1e-5)


def test_arms_are_both_prefills_of_every_depth():
    names = [(a.name, a.depth, a.prefill) for a in arms_of([3, 0, 3], 4)]
    assert names == [
        ("river", 3, "backbone"),
        ("river", 3, "sequence"),
        ("river", 0, "backbone"),
        ("full_quant", 0, "sequence"),
    ]
    assert Arm(0, "backbone").name == "river"
    with pytest.raises(UserError, match="exit depth 5: this model has depths 0 to 4"):
        arms_of([1, 5], 4)


def test_the_command_leaves_a_record(commands, tmp_path):
    model = tiny_folder.save_llama(tmp_path / "tiny")
    overrides = [f"model.path={model}", "model.dtype=fp32", "exp=gsm_mini", "limit=2"]
    done = commands.run(
        "scripts/analyze_kv.py", [*overrides, "--tokens", "6", "--depths", "0,1,L"], tmp_path
    )
    assert done.status == 0, done.stderr
    folder = tmp_path / "results" / "analysis" / "kv" / "gsm_mini-tiny"
    summary = json.loads((folder / "summary.json").read_text())
    # Two texts of 6 tokens are 10 decode steps; 3 layers; 3 depths with 2 prefills and 2 arms.
    assert (summary["samples"], summary["steps"], summary["layers"]) == (2, 10, 3)
    assert len(pd.read_parquet(folder / "layers.parquet")) == 10 * 3
    assert len(pd.read_parquet(folder / "entries.parquet")) == 10 * 3 * 8
    assert [(row["depth"], row["prefill"]) for row in summary["early_last"]] == [
        (1, "backbone"),
        (1, "sequence"),
    ]
    assert summary["made_by"]["depths"] == "0,1,L"
    means = {(a["arm"], a["depth"], a["prefill"]): a["value_cosine"] for a in summary["entries"]}
    assert means["river", 3, "backbone"] == pytest.approx([1, 1, 1], abs=1e-6)
    assert means["river", 1, "backbone"][0] == pytest.approx(1, abs=1e-6)
    assert means["river", 1, "backbone"][1] < 0.9999
    assert means["full_quant", 0, "sequence"][2] != means["river", 0, "backbone"][2]
    assert "full_quant" in done.stdout
    assert not (tmp_path / "results" / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["method=river"], "method=river"),
        (["--tokens", "1"], "--tokens 1"),
        (["--depths", "1,deep"], "'deep'"),
    ],
)
def test_what_cannot_be_compared_is_told_in_a_line(arguments, word, commands, tmp_path):
    done = commands.run("scripts/analyze_kv.py", arguments, tmp_path)
    assert done.status == 2
    assert len(done.errors) == 1
    assert word in done.errors[0]
    assert list(tmp_path.iterdir()) == []
