"""The C++ without AVX-512, and PyTorch without it: another code path for every kind of weight."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_compiled_bf16 import STEPS, TOLERANCE

from river_llm.engine.native.compilation import COMPILERS, MAIN, SOURCES

HERE = Path(__file__).parent
CASE = HERE / "portable_case.py"
BACKENDS = {"fp32": "copied", "bf16": "copied", "int8": "int8_cpu", "int4": "int4_cpu"}
PROCESSORS = (
    "x86-64",
    "x86-64-v3",
    "skylake-avx512",
    "cascadelake",
    "icelake-server",
    "cooperlake",
    "sapphirerapids",
)


@pytest.fixture(scope="module")
def found(tmp_path_factory, rivers):
    environment = {
        **os.environ,
        "ATEN_CPU_CAPABILITY": "avx2",
        "RIVER_LLM_CACHE": str(tmp_path_factory.mktemp("portable")),
        "PYTHONPATH": os.pathsep.join(
            [str(HERE), str(HERE.parents[1] / "src"), os.environ.get("PYTHONPATH", "")]
        ),
    }
    done = subprocess.run(
        [sys.executable, str(CASE), str(rivers)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.avx2
def test_the_other_process_ran_without_avx512(found):
    assert "-march=x86-64-v3" in found["flags"] and "-march=native" not in found["flags"]
    assert found["torch"] == "AVX2"
    assert found["block"] == 32


@pytest.mark.avx2
@pytest.mark.parametrize("case", BACKENDS)
def test_compiled_equals_eager_without_avx512(case, found):
    result = found["cases"][case]
    assert result["backends"] == [BACKENDS[case]]
    assert result["error"] < (1e-4 if case == "fp32" else TOLERANCE)
    assert result["equal"] >= (STEPS if case == "fp32" else STEPS - 4)


@functools.cache
def compiler() -> str:
    return next(found for name in COMPILERS if (found := shutil.which(name)))


@pytest.mark.x86
@pytest.mark.parametrize("processor", PROCESSORS)
def test_the_sources_compile_for_processors_with_some_of_the_extensions(processor):
    """Each has another set of the instructions that the sources ask for (Ice Lake: no bf16)."""
    command = [compiler(), "-fsyntax-only", "-std=c++17", f"-march={processor}"]
    done = subprocess.run(
        [*command, str(SOURCES / MAIN)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[:2000]
