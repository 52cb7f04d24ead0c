"""Shared fixtures; tests that need benchmark data are left out, audibly, where it is not there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from command import Commands

BENCHMARK_DATA = "RIVER_LLM_BENCHMARK_DATA"
ENGINES_ON_CPU = ["eager", "compiled", "mixed", "traced"]
DEVICE = os.environ.get("RIVER_LLM_TEST_DEVICE")
"""Where models of tests lie; see docs/gpu.md."""
ENGINES_HERE = ["eager", "cuda_graphs"] if DEVICE == "cuda" else ENGINES_ON_CPU


def pytest_configure(config: pytest.Config) -> None:
    # Two threads on a busy machine fight; one is as fast on tiny models.
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    if DEVICE:
        torch.set_default_device(DEVICE)
    # Nothing is logged but where a test asks for it (logger.mode=offline).
    os.environ["WANDB_MODE"] = "disabled"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items[:] = [item for item in items if not _traced_twice(item)]
    if os.environ.get(BENCHMARK_DATA):
        return
    left_out = [item for item in items if item.get_closest_marker("benchmark_data")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        if reporter:
            reporter.write_line(
                f"{len(left_out)} tests on real benchmark data are left out: "
                f"set {BENCHMARK_DATA} to run them"
            )


def _traced_twice(item: pytest.Item) -> bool:
    """Whether the anchors would trace one more kind of model.

    Tracing takes most of a test's time, and what regions do does not depend on the kind: the KV
    strategies trace all of them, the anchors only qwen3, which has biases and norms of q and k.
    """
    values = getattr(item, "callspec", None)
    return (
        item.path.name == "test_anchors.py"
        and values is not None
        and values.params.get("engine") == "traced"
        and values.params.get("kind", "qwen3") != "qwen3"
    )


@pytest.fixture(scope="session")
def rivers(tmp_path_factory: pytest.TempPathFactory):
    """A cache folder for packed weights that no other run shares."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(params=ENGINES_HERE)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs a test once per engine: it is the one that `tiny.make_executor` builds."""
    import tiny

    name: str = request.param
    monkeypatch.setattr(tiny, "engine", name)
    return name


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for `model.path=`, named llama."""
    # Imported late: the tests of light packages need no transformers.
    from tiny_folder import save_llama

    return save_llama(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(scope="session")
def offline(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables for commands: no hub, nothing cached from it, no CUDA device, one thread."""
    return {
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(tmp_path_factory.mktemp("hub")),
        "RIVER_LLM_CACHE": str(tmp_path_factory.mktemp("cache")),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }


@pytest.fixture(scope="session")
def commands(
    tmp_path_factory: pytest.TempPathFactory, offline: dict[str, str]
) -> Iterator[Commands]:
    """Runs the project's scripts."""
    server = Commands(tmp_path_factory.mktemp("output"), offline)
    yield server
    server.close()


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """An empty folder to run in."""
    folder = tmp_path / "here"
    folder.mkdir()
    return folder
