"""quant.head in a run: every arm and its reference have it, and every record says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from river_llm.analysis.points import check_comparable, operating_points
from river_llm.analysis.report import terminal_summary
from river_llm.composition import load_config
from river_llm.config import HqqInt4Config, RtnInt8Config, effective_settings
from river_llm.errors import UserError
from river_llm.evaluation.naming import arm_name
from river_llm.evaluation.ranking import rank_layers
from river_llm.evaluation.run import Run, execute
from river_llm.evaluation.runtime import Runtime
from river_llm.exits import Never
from river_llm.quant.quantizers import quant_record
from river_llm.records import RunFolder
from river_llm.sweeps.operating_points import _scores_of
from tiny import PROMPT, run
from tiny_folder import HIDDEN, LAYERS, SMALL

INT8 = "quant.head=int8"


@pytest.fixture(scope="module")
def runtime(model: Path) -> Runtime:
    return Runtime.load(load_config([*SMALL, f"model.path={model}"]))


def settings(model: Path, output: Path, *more: str):
    return load_config([*SMALL, f"model.path={model}", f"output.dir={output}", *more])


@pytest.fixture(scope="module")
def finished(model, runtime, tmp_path_factory):
    """A river, with a 16-bit head and an 8-bit one, under one folder of results."""
    output = tmp_path_factory.mktemp("results")
    common = ["method=river", "criterion.tau=0.3", "quant=rtn_int4", "quant.group_size=32"]
    usual = execute(settings(model, output, *common), runtime)
    eight = execute(settings(model, output, *common, INT8), runtime)
    return output, usual, eight


def read(folder: Path, name: str):
    return json.loads((folder / name).read_text())


def test_no_exits_own_run_has_the_head_too(finished):
    output, usual, eight = finished
    references = {r.folder: r.summary["fidelity"]["no_exit_run"] for r in (usual, eight)}
    assert len(set(references.values())) == 2
    assert len(list((output / "runs").rglob("samples.jsonl"))) == 4
    reference = eight.folder.parent / references[eight.folder]
    assert read(reference, "config.json")["quant"]["head"] == "int8"
    scores = read(reference, "reference_scores.json")
    assert scores["no_exit"]
    margins = [
        [r.margins for r in RunFolder(folder.parent / name).samples()]
        for folder, name in references.items()
    ]
    assert margins[0] != margins[1]


def test_transformers_with_its_16_bit_head_is_no_noise_floor(finished):
    _, usual, eight = finished
    assert usual.summary["fidelity"]["noise_floor"] is not None
    assert eight.summary["fidelity"]["noise_floor"] is None
    reference = eight.folder.parent / eight.summary["fidelity"]["no_exit_run"]
    assert read(reference, "reference_scores.json")["transformers"] == {}
    assert "noise floor not run" in terminal_summary(eight.summary)


def test_no_exit_measured_against_itself_agrees_wholly(model, runtime, tmp_path):
    result = execute(settings(model, tmp_path, "method=no_exit", INT8), runtime)
    fidelity = result.summary["fidelity"]
    assert (fidelity["agreement"], fidelity["excess_nll"]) == (1.0, 0.0)
    assert result.summary["speedup"]["decode"]["matched"]["bound_speedup"] == 1.0


def test_the_records_say_it(finished):
    _, usual, eight = finished
    assert eight.summary["settings"]["head"] == "int8"
    assert "head" not in usual.summary["settings"]
    assert "head" not in eight.summary["settings"]["quant"]
    assert eight.summary["arm"] == "river tau=0.3 sequence rtn_int4 g32 head=int8 fp32"
    backends = [read(r.folder, "environment.json")[0]["head_backend"] for r in (usual, eight)]
    # The run is in float32, for which there is no kernel.
    assert backends == [None, "dequantized"]


def test_the_memory_holds_the_head_that_is_used(finished, runtime):
    _, usual, eight = finished
    vocab = runtime.adapter.vocab_size
    head = vocab * HIDDEN * 4
    assert usual.summary["memory"]["head_bytes"] == 0
    # Not tied: the 16-bit head is not used. The copy has as many bytes in float32.
    assert eight.summary["memory"]["head_bytes"] == head
    shared = usual.summary["memory"]["shared_bytes"]
    assert eight.summary["memory"]["shared_bytes"] == shared - head
    assert "head" not in terminal_summary(usual.summary).splitlines()[-1]
    assert f"head {head / 2**20:.1f}, KV" in terminal_summary(eight.summary)


def test_one_river_and_one_head_are_kept_for_all_settings(runtime):
    usual, eight = HqqInt4Config(), HqqInt4Config(head="int8")
    assert runtime.river(usual) is runtime.river(eight)
    assert runtime.head(eight) is runtime.head(RtnInt8Config(head="int8"))
    assert runtime.head(usual) is runtime.adapter.head
    assert quant_record(usual) == quant_record(eight)


def test_reference_and_arm_share_the_head(model, runtime, tmp_path):
    """In both arms of the paired timing, and wherever no_exit's text is made."""
    arm = Run(settings(model, tmp_path, "method=river", "quant=none", INT8), runtime)
    reference = arm.as_no_exit()
    assert reference.config.quant.head == "int8"
    assert arm.decoder().executor.head is reference.decoder().executor.head
    assert arm.decoder().executor.head is not runtime.adapter.head
    usual = Run(settings(model, tmp_path, "method=river", "quant=none"), runtime)
    assert usual.as_no_exit().identity != reference.identity
    own = run(arm.decoder(), [PROMPT], 8)[1]
    assert torch.allclose(own, run(reference.decoder(), [PROMPT], 8)[1], atol=1e-4)
    assert not torch.allclose(own, run(usual.decoder(), [PROMPT], 8)[1], atol=1e-3)


def test_layers_are_ranked_with_the_runs_head_and_kept_apart(model, runtime, tmp_path, monkeypatch):
    monkeypatch.setenv("RIVER_LLM_CACHE", str(tmp_path / "cache"))
    heads = []

    def gains(executor, windows):
        heads.append(executor.head)
        return [0.0] * LAYERS

    monkeypatch.setattr("river_llm.evaluation.ranking.restoring_gains", gains)
    for more in ([], [INT8], [], [INT8], ["quant.head=int4"]):
        rank_layers(runtime, settings(model, tmp_path, *more))
    assert heads == [
        runtime.adapter.head,
        runtime.head(HqqInt4Config(head="int8")),
        runtime.head(HqqInt4Config(head="int4")),
    ]
    origins = [
        read(p, "manifest.json")["origin"] for p in (tmp_path / "cache/rankings").glob("[!.]*")
    ]
    assert sorted(o.get("head", {}).get("name", "") for o in origins) == [
        "",
        "rtn_int4",
        "rtn_int8",
    ]


@pytest.mark.parametrize("method", ["no_exit", "full_quant", "river", "mask"])
def test_a_head_counts_for_every_method_and_16_bits_leave_no_trace(method):
    usual = load_config([f"method={method}"])
    eight = load_config([f"method={method}", INT8])
    shown = effective_settings(usual, layers=30)
    assert "head" not in shown
    assert "head" not in shown.get("quant", {})
    assert effective_settings(eight, layers=30) == {**shown, "head": "int8"}
    assert arm_name(usual) + " head=int8" == arm_name(eight)


def test_other_settings_of_the_quantizer_still_name_the_arm():
    config = load_config(["method=full_quant", "quant=rtn_int4", "quant.head=int4"])
    assert arm_name(config) == "full_quant rtn_int4 g64 head=int4"


def test_thresholds_are_measured_with_the_head():
    assert "head" not in _scores_of(load_config([]))
    assert "head=int8" in _scores_of(load_config([INT8])).split()


def test_pictures_tell_the_heads_apart(finished):
    _, usual, eight = finished
    lines = {point.line for point in operating_points([usual.summary, eight.summary])}
    assert lines == {
        "river, prefill sequence, rtn_int4 g32",
        "river, prefill sequence, rtn_int4 g32, head int8",
    }
    check_comparable([usual.summary, eight.summary])
    other = {**usual.summary, "fidelity": eight.summary["fidelity"]}
    with pytest.raises(UserError, match="draw those of one no_exit run"):
        check_comparable([usual.summary, other])


def test_a_decoder_needs_no_river_for_its_head(model, runtime, tmp_path):
    config = settings(model, tmp_path, "method=no_exit", "quant.head=int4")
    decoder = runtime.decoder(config, Never(LAYERS), 32)
    assert decoder.executor.head is runtime.head(config.quant)
    decoder.prefill([PROMPT])
    with pytest.raises(RuntimeError, match="without a river"):
        decoder.executor.river(0, 1)
