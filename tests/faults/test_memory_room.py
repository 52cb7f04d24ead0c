"""Memory is estimated before weights are loaded: too little is told, enough is not refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from command import Commands
from river_llm.composition import load_config
from river_llm.config import QuantConfig, RunConfig
from river_llm.errors import UserError
from river_llm.evaluation.runtime import Runtime
from river_llm.models.adapter import BackboneAdapter
from river_llm.models.loading import model_fingerprint
from river_llm.models.random_weights import SHAPES
from river_llm.quant import footprint as module
from river_llm.quant.footprint import GIB, MIB, Footprint, check_room, footprint, free_bytes
from river_llm.quant.river import build_river
from tiny import tiny_model
from tiny_folder import SMALL

CPU = torch.device("cpu")


def quant(name: str, *settings: str) -> QuantConfig:
    return load_config(["method=river", f"quant={name}", *settings]).quant


# --- the estimate -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["llama", "llama_bias", "qwen3"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    "config",
    [
        quant("rtn_int4", "quant.group_size=32"),
        quant("hqq_int4", "quant.group_size=16"),
        quant("rtn_int8"),
        quant("none"),
    ],
    ids=lambda config: config.name,
)
def test_the_estimate_is_what_weights_really_take(
    kind: str, dtype: torch.dtype, config: QuantConfig, rivers: Path
):
    model = tiny_model(kind, dtype)
    river = build_river(BackboneAdapter(model), config, model_fingerprint(model), cache=rivers)
    storages = {p.untyped_storage().data_ptr(): p.nbytes for p in model.parameters()}
    expected = Footprint(sum(storages.values()), river.linear_nbytes())
    assert footprint(model.config, dtype, CPU, config) == expected
    assert footprint(model.config, dtype, CPU, None) == Footprint(expected.backbone, 0)


def test_an_8b_model_by_hand(monkeypatch: pytest.MonkeyPatch):
    # 8.03e9 parameters of 2 bytes, 6.98e9 of them in linears of half a byte and 4 / 64 of a byte.
    config = SHAPES["llama3.1_8b"].config()
    need = footprint(config, torch.bfloat16, CPU, quant("hqq_int4"))
    assert need.backbone == pytest.approx(14.96 * GIB, rel=1e-3)
    assert need.river == pytest.approx(6.979e9 * 0.5625, rel=1e-3)
    # There is no kernel for an old GPU, nor for float32: the river is a dequantized copy.
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    on_gpu = footprint(config, torch.bfloat16, torch.device("cuda"), quant("hqq_int4"))
    assert on_gpu.river == pytest.approx(2 * 6.979e9, rel=1e-3)
    assert footprint(config, torch.float32, CPU, quant("hqq_int4")).river == 2 * on_gpu.river
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert footprint(config, torch.bfloat16, torch.device("cuda"), quant("hqq_int4")) == need


# --- what is free -------------------------------------------------------------------------


def machine(folder: Path, files: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose /proc and control groups hold these files and no others."""
    monkeypatch.setattr(module, "PROC", folder / "proc")
    monkeypatch.setattr(module, "CGROUPS", folder / "cgroup")
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, "ascii")


MEMINFO = "MemTotal: 16000000 kB\nMemAvailable: 8000000 kB\nSwapFree: 1000000 kB\nHuge: 0\n"
INNER = {
    "cgroup/memory.max": "max\n",
    "cgroup/a/memory.max": f"{4 * GIB}\n",
    "cgroup/a/memory.current": f"{3 * GIB}\n",
    "cgroup/a/memory.stat": f"anon {2 * GIB}\nactive_file {GIB // 4}\ninactive_file {GIB // 4}\n",
    "cgroup/a/b/memory.max": "max\n",
    "cgroup/a/b/memory.current": "1000\n",
    "cgroup/a/b/memory.stat": "anon 1000\n",
}


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({"proc/meminfo": MEMINFO}, 1024 * 9_000_000),
        # A container's limit holds for the groups inside of it; cached files make room.
        ({"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/a/b\n", **INNER}, int(1.5 * GIB)),
        ({"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/\n", **INNER}, 1024 * 9_000_000),
        ({"proc/meminfo": MEMINFO, "proc/self/cgroup": "4:memory:/x\n"}, 1024 * 9_000_000),
        ({"proc/meminfo": "MemTotal: 16000000 kB\n"}, None),
        ({}, None),
    ],
    ids=["memory and swap", "container", "no limit", "version 1", "old kernel", "no Linux"],
)
def test_free_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: Mapping[str, str], free: int | None
):
    machine(tmp_path, files, monkeypatch)
    assert free_bytes(CPU) == free


def test_free_memory_of_this_machine():
    free = free_bytes(CPU)
    assert free is not None
    assert 64 * MIB < free < 2**50


def test_free_memory_of_a_gpu(monkeypatch: pytest.MonkeyPatch):
    # What torch keeps of freed tensors it gives out again.
    for name, value in (("reserved", 5), ("allocated", 3)):
        monkeypatch.setattr(torch.cuda, f"memory_{name}", lambda device, value=value: value)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10, 100))
    assert free_bytes(torch.device("cuda")) == 12


# --- what is refused ----------------------------------------------------------------------


def test_what_fits_to_the_byte_is_not_refused():
    need = Footprint(3 * GIB, GIB)
    check_room(need, CPU, "model.path=x", 4 * GIB + module.SPARE)
    check_room(need, CPU, "model.path=x", None)
    with pytest.raises(UserError) as caught:
        check_room(need, CPU, "model.path=x", 4 * GIB + module.SPARE - 1)
    message = str(caught.value)
    assert "\n" not in message
    for words in ("model.path=x", "3.0 GiB for the backbone", "1.0 GiB for the river", "4.2 GiB"):
        assert words in message


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_the_embedded_model_runs_with_2_gib_free(dtype: str):
    config = SHAPES["smollm2_135m"].config()
    kind = {"bf16": torch.bfloat16, "fp32": torch.float32}[dtype]
    for name in ("hqq_int4", "rtn_int8", "none"):
        check_room(footprint(config, kind, CPU, quant(name)), CPU, "embedded", 2 * GIB)


def configured(model: Path, *overrides: str) -> RunConfig:
    return load_config([*SMALL, f"model.path={model}", *overrides])


def test_only_a_river_that_is_needed_counts(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = footprint(configured_shape(model), torch.float32, CPU, quant("none"))
    # Room for the backbone and half of the river.
    free = config.backbone + config.river // 2 + module.SPARE
    monkeypatch.setattr(module, "free_bytes", lambda device: free)
    Runtime.load(configured(model, "method=no_exit", "quant=none"))
    with pytest.raises(UserError, match="for the river"):
        Runtime.load(configured(model, "method=river", "quant=none"))
    # A sweep keeps the backbone, and comes to another river later.
    runtime = Runtime.load(configured(model, "method=no_exit"))
    monkeypatch.setattr(module, "free_bytes", lambda device: module.SPARE)
    with pytest.raises(UserError, match=r"^quant=none needs .* for the river\)"):
        runtime.river(quant("none"))


def configured_shape(model: Path):
    from river_llm.models.checkpoint import decoder_config

    return decoder_config(str(model))


@pytest.mark.parametrize(
    "more", [["method=river"], ["method=no_exit"], ["-m", "method=river"]], ids=" ".join
)
def test_a_run_that_does_not_fit_ends_before_it_loads(
    commands: Commands, model: Path, tmp_path: Path, empty: Path, more: list[str]
):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text("MemAvailable: 100000 kB\n", "ascii")
    done = commands.run(
        "tests/faults/faulty_run.py",
        [
            json.dumps({"proc": str(tmp_path / "proc")}),
            "run.py",
            *SMALL,
            f"model.path={model}",
            *more,
        ],
        empty,
    )
    assert done.status == 2, done.stderr
    (error,) = done.errors
    for words in (f"model.path={model} needs", "for the backbone", "98 MiB are free", "smaller"):
        assert words in error
    assert ("for the river" in error) == ("method=river" in more)
    assert "Traceback" not in done.stderr
    assert "Loading weights" not in done.stderr
