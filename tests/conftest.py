"""Shared fixtures; tests that need benchmark data are left out, audibly, where it is not there."""

from __future__ import annotations

import os

import pytest
import torch

BENCHMARK_DATA = "RIVER_LLM_BENCHMARK_DATA"


def pytest_configure(config: pytest.Config) -> None:
    # Two threads on a busy machine fight; one is as fast on tiny models.
    torch.set_num_threads(1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
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


@pytest.fixture(scope="session")
def rivers(tmp_path_factory: pytest.TempPathFactory):
    """A cache folder for packed weights that no other run shares."""
    return tmp_path_factory.mktemp("cache")
