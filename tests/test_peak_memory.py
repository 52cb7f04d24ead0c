"""Peak memory: what is counted, what is let go before, and what a run keeps of it."""

from __future__ import annotations

import json
import mmap
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from river_llm.cache import SlotCache
from river_llm.composition import load_config
from river_llm.decoding import FullQuant
from river_llm.engine.compiled import CompiledExecutor
from river_llm.engine.eager import EagerExecutor
from river_llm.engine.weights import ResidentLayers
from river_llm.evaluation import run as run_module
from river_llm.evaluation.peak import STEPS, measure_peak, peak_request
from river_llm.evaluation.resident import AnonymousPeak, anonymous_bytes, give_back_freed
from river_llm.evaluation.run import Run, execute
from river_llm.evaluation.runtime import Runtime
from river_llm.evaluation.summary import regrade
from river_llm.exits import Never, Replay
from river_llm.models.adapter import BackboneAdapter
from river_llm.models.loading import lay_together, model_fingerprint
from river_llm.models.release import release_linears
from river_llm.quant.river import build_river
from tiny import LAYERS, PROMPT, QUANT, run, tiny_model
from tiny_folder import SMALL

MIB = 2**20
OVERHEAD = 450 * MIB
"""Interpreter, torch, transformers and the tokenizer (some 320 MiB), and what a pass needs."""


@pytest.fixture(scope="module")
def runtime(model: Path) -> Runtime:
    return Runtime.load(load_config([*SMALL, f"model.path={model}"]))


@pytest.fixture
def config(model: Path, tmp_path: Path):
    def make(*more: str):
        common = [*SMALL, f"model.path={model}", f"output.dir={tmp_path}", "criterion.tau=0.3"]
        return load_config([*common, "fidelity.limit=0", "speedup.prompts=0", *more])

    return make


def test_memory_that_was_there_for_a_moment_is_seen():
    give_back_freed()  # Else the block may lie in memory that earlier tests left to this process.
    with AnonymousPeak() as peak:
        before = anonymous_bytes()
        block = torch.ones(100 * MIB, dtype=torch.uint8)
        assert block[-1] == 1
        # As long as the sampling thread needs to come to its turn on a busy machine.
        deadline = time.monotonic() + 10
        while peak.nbytes < before + 95 * MIB and time.monotonic() < deadline:
            time.sleep(0.001)
        del block
        give_back_freed()
        after = anonymous_bytes()
    assert 95 * MIB < peak.nbytes - before < 130 * MIB
    assert after - before < 10 * MIB


def test_pages_of_a_mapped_file_do_not_count(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(b"1" * (64 * MIB))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        with AnonymousPeak() as peak:
            before = anonymous_bytes()
            assert sum(mapped[n] for n in range(0, len(mapped), 4096)) == 49 * (64 * MIB // 4096)
        assert peak.nbytes - before < 10 * MIB


@pytest.mark.parametrize("kind", ["llama", "llama_bias", "qwen3"])
@pytest.mark.parametrize("executor", [EagerExecutor, CompiledExecutor])
def test_full_quant_needs_none_of_the_linears_that_are_released(kind, executor, rivers):
    model = tiny_model(kind)
    lay_together(model)
    adapter = BackboneAdapter(model)
    river = build_river(adapter, QUANT, model_fingerprint(model), cache=rivers, kernels=False)

    def tokens():
        cache = SlotCache(
            LAYERS, 1, adapter.kv_heads, 32, adapter.head_dim, adapter.dtype, adapter.device
        )
        backbone = ResidentLayers(adapter.layers)
        parts = (adapter, cache, Never(LAYERS), backbone, river, adapter.head)
        return run(FullQuant(executor(*parts), cache), [PROMPT], 6)

    expected = tokens()
    # All parameters are views of one stretch of memory, which must not outlive the linears.
    stretch = model.lm_head.weight.untyped_storage().data_ptr()
    biases = sum(p.nbytes for n, p in model.named_parameters() if n.endswith("bias"))
    release_linears(adapter, [river.acquire(n, 1) for n in range(LAYERS)])
    left = {p.untyped_storage().data_ptr(): p.untyped_storage() for p in model.parameters()}
    assert stretch not in left
    rest = sum(p.nbytes for n, p in model.named_parameters() if "layers" not in n)
    norms = sum(p.nbytes for n, p in model.named_parameters() if "layers" in n and "norm" in n)
    assert sum(storage.nbytes() for storage in left.values()) == rest + norms + biases
    again = tokens()
    assert again[0] == expected[0]
    assert torch.equal(again[1], expected[1])


@pytest.fixture(scope="module")
def embedded(tmp_path_factory):
    """Parts by the run's own count, and the peaks of two arms on the embedded model."""
    found = {}
    output = tmp_path_factory.mktemp("results")
    common = ["exp=gsm_mini", "limit=2", "exp.max_new_tokens=32", f"output.dir={output}"]
    runtime = Runtime.load(load_config(common))
    for method in ("no_exit", "full_quant"):
        own = Run(load_config([*common, f"method={method}"]), runtime)
        decoder = own.decoder()
        measured = measure_peak(peak_request(own.config, decoder, own.prompts))
        found[method] = SimpleNamespace(**measured, **runtime.memory(own.config, decoder))
    return found


def test_the_embedded_models_peak_is_that_of_its_parts(embedded):
    no_exit = embedded["no_exit"]
    parts = no_exit.backbone_bytes + no_exit.shared_bytes + no_exit.kv_bytes
    assert parts < no_exit.peak_bytes < parts + OVERHEAD
    assert "RssAnon" in no_exit.peak_source
    assert "released" not in no_exit.peak_source


def test_full_quant_holds_the_river_in_place_of_the_backbone(embedded):
    """The overhead is the same in both, so the difference is that of the parts."""
    no_exit, full = embedded["no_exit"], embedded["full_quant"]
    saved = no_exit.backbone_bytes - full.river_bytes - full.scratch_bytes
    assert saved > 100 * MIB
    assert no_exit.peak_bytes - full.peak_bytes == pytest.approx(saved, abs=25 * MIB)
    assert "linears of the backbone's attention and FFN released" in full.peak_source


def prompts_of(**lengths):
    return [
        SimpleNamespace(sample=SimpleNamespace(id=name), ids=[1] * length)
        for name, length in lengths.items()
    ]


def arm_of(criterion, slots=1000):
    return SimpleNamespace(
        executor=SimpleNamespace(criterion=criterion), cache=SimpleNamespace(slots=slots)
    )


def test_the_longest_prompt_counts_as_far_as_it_can_run(config):
    prompts = prompts_of(a=3, b=9, c=5)
    asked = peak_request(config(), arm_of(Never(3)), prompts)
    assert (asked.sample, len(asked.prompt), asked.steps) == ("b", 9, STEPS)
    assert peak_request(config(), arm_of(Never(3), 20), prompts).steps == 10
    # Of the recorded ones, and no further than recorded.
    replay = Replay(3, {"a": (3, [1] * 99), "c": (3, [1, 2])}, "folder")
    asked = peak_request(config(), arm_of(replay), prompts)
    assert (asked.sample, asked.steps) == ("c", 2)
    assert peak_request(config(), arm_of(Replay(3, {"z": (3, [1])}, "folder")), prompts) is None


def test_a_run_with_its_peak(config, runtime, tmp_path):
    """In a process of its own; what it found stands in the summary, also after regrading."""
    plain = execute(config("limit=1"), runtime)
    assert plain.summary["memory"]["peak_bytes"] is None
    assert plain.summary["memory"]["peak_source"] is None
    result = execute(config("limit=1", "memory.peak=true"), runtime)
    assert result.folder == plain.folder
    memory = result.summary["memory"]
    assert 50 * MIB < memory["peak_bytes"] < 1000 * MIB
    prompt = json.loads((result.folder / "samples.jsonl").read_text())["prompt_tokens"]
    # 8 new tokens fit into the cache behind the prompt: 7 steps.
    assert f"prompt of {prompt} tokens and 7 decode steps" in memory["peak_source"]
    assert regrade(result.folder, allow_code_execution=False).summary == result.summary


def test_it_is_measured_once_and_again_where_a_longer_prompt_comes(config, runtime, monkeypatch):
    asked = []

    def measured(request):
        asked.append(len(request.prompt))
        return {"peak_bytes": len(asked), "peak_source": "invented"}

    monkeypatch.setattr(run_module, "measure_peak", measured)

    def peak(*more):
        return execute(config(*more), runtime).summary["memory"]["peak_bytes"]

    assert peak("limit=1", "memory.peak=true") == 1
    assert peak("limit=1", "memory.peak=true") == 1
    assert peak("limit=1") == 1
    assert peak("limit=4") == 1
    assert peak("limit=4", "memory.peak=true") == 2
    assert asked[0] < asked[1]


def test_a_failing_process_is_told_and_tried_again(config, runtime, monkeypatch, capsys):
    original = run_module.measure_peak

    def broken(request):
        settings = {**request.config, "model": {**request.config["model"], "path": "nowhere"}}
        return original(replace(request, config=settings))

    monkeypatch.setattr(run_module, "measure_peak", broken)
    result = execute(config("limit=1", "memory.peak=true"), runtime)
    assert result.summary["memory"]["peak_bytes"] is None
    assert result.summary["samples"] == 1
    told = [line for line in capsys.readouterr().err.splitlines() if "peak memory" in line]
    assert len(told) == 1
    assert "model.path=nowhere cannot be loaded" in told[0]
    monkeypatch.setattr(run_module, "measure_peak", lambda _: {"peak_bytes": 7, "peak_source": ""})
    again = execute(config("limit=1", "memory.peak=true"), runtime)
    assert again.summary["memory"]["peak_bytes"] == 7


def test_the_setting_counts_for_no_identity(config, runtime):
    assert Run(config(), runtime).identity == Run(config("memory.peak=true"), runtime).identity
