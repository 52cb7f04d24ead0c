"""Tests of what only some processors have are left out, audibly, on the others."""

from __future__ import annotations

import platform

import pytest
import torch

LACKING = {
    "x86": platform.machine() != "x86_64",
    "avx2": torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"),
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for name in (name for name, lacking in LACKING.items() if lacking):
        left_out = [item for item in items if item.get_closest_marker(name)]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if item not in left_out]
            reporter = config.pluginmanager.get_plugin("terminalreporter")
            if reporter:
                reporter.write_line(
                    f"{len(left_out)} tests are left out: this processor is no {name}"
                )
