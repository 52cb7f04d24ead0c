"""Tests that need a CUDA device are left out, audibly, where RIVER_LLM_TEST_DEVICE names none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if os.environ.get("RIVER_LLM_TEST_DEVICE", "").startswith("cuda"):
        return None
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter and collection_path.name.startswith("test_"):
        reporter.write_line(
            f"{collection_path.name} is left out: set RIVER_LLM_TEST_DEVICE=cuda to run it"
        )
    return True
