"""Compiles the C++ sources of this folder once for this machine, and loads what came of it."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from river_llm.artifacts import ensure_folder
from river_llm.engine.executor import EngineUnavailable
from river_llm.errors import UserError
from river_llm.paths import cache_root

SOURCES = Path(__file__).parent / "cpp"
MAIN = "decode.cpp"
LIBRARY = "decode.so"
COMPILERS = ("c++", "g++", "clang++")
FLAGS = (
    "-O3",
    "-march=native",
    "-std=c++17",
    "-shared",
    "-fPIC",
    "-fopenmp-simd",
    # Let loops with comparisons and rounding be vectorized; NaN and infinities keep their meaning.
    "-fno-math-errno",
    "-fno-trapping-math",
    "-pthread",
)


@dataclass(frozen=True)
class Library:
    """The loaded library.

    Attributes:
        calls: its functions, C types declared.
        compile_seconds: time spent in the compiler by this process; 0: it was compiled before.
    """

    calls: ctypes.CDLL
    compile_seconds: float


def load_library() -> Library:
    """The library of this machine, compiled where it is not there yet; tried once in a process.

    Raises:
        EngineUnavailable: no compiler, or it failed.
    """
    found = first_try()
    if isinstance(found, EngineUnavailable):
        raise EngineUnavailable(str(found))
    return found


@functools.cache
def first_try() -> Library | EngineUnavailable:
    """What loading came to: a compiler that failed would fail again, for each cell of a sweep."""
    try:
        return _load()
    except EngineUnavailable as error:
        return error


def _load() -> Library:
    compiler = _compiler()
    spent = 0.0

    def compile_into(folder: Path) -> None:
        nonlocal spent
        start = time.perf_counter()
        _compile(compiler, folder / LIBRARY)
        spent = time.perf_counter() - start

    try:
        key = hashlib.sha256(repr(_origin(compiler)).encode()).hexdigest()[:16]
        folder = ensure_folder(
            cache_root() / "native" / key,
            {"sources": key, "compiler": compiler},
            frozenset({LIBRARY}),
            compile_into,
        )
        calls = ctypes.CDLL(str(folder / LIBRARY))
    except (OSError, UserError) as error:
        raise EngineUnavailable(" ".join(str(error).split())) from error
    _declare(calls)
    return Library(calls, spent)


def streamed_sum(buffer: torch.Tensor) -> int:
    """Sum of a contiguous CPU tensor's bytes taken as 64-bit integers, read as weights are read.

    Raises:
        EngineUnavailable: no compiler here, or it failed.
    """
    numbers = buffer.view(torch.int64)
    calls = load_library().calls
    calls.river_set_threads(torch.get_num_threads())
    total: int = calls.river_stream(numbers.data_ptr(), numbers.numel())
    return total


def _compiler() -> str:
    wanted = os.environ.get("CXX")
    for name in (wanted,) if wanted else COMPILERS:
        if found := shutil.which(name):
            return found
    looked = wanted or ", ".join(COMPILERS)
    raise EngineUnavailable(f"no C++ compiler ({looked}): install g++ or set CXX")


def _origin(compiler: str) -> tuple[object, ...]:
    """Everything that the compiled code depends on."""
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    sources = [path.read_text(encoding="utf-8") for path in sorted(SOURCES.glob("*.[hc]pp"))]
    return (sources, FLAGS, version.stdout, platform.machine(), _processor_features())


def _processor_features() -> str:
    """What -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    kinds = ("model name", "flags", "Features")
    return "\n".join(sorted({line for line in lines if line.startswith(kinds)}))


def _compile(compiler: str, target: Path) -> None:
    print("river_llm: compiling the engine for this machine", file=sys.stderr)
    command = [compiler, *FLAGS, str(SOURCES / MAIN), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line]
        reason = (errors or done.stderr.splitlines() or ["no message"])[0]
        raise EngineUnavailable(f"{compiler} failed with status {done.returncode}: {reason}")


def _declare(calls: ctypes.CDLL) -> None:
    pointer, whole = ctypes.c_void_p, ctypes.c_int32
    signatures: dict[str, tuple[object, list[object]]] = {
        "river_most_rows": (whole, []),
        "river_widest_head": (whole, []),
        "river_set_threads": (None, [whole]),
        "river_create": (pointer, [pointer, whole]),
        "river_destroy": (None, [pointer]),
        "river_begin": (None, [pointer, whole, whole, pointer, pointer, whole, pointer]),
        "river_state": (pointer, [pointer]),
        "river_previous": (pointer, [pointer]),
        "river_run": (None, [pointer, pointer, whole, whole, whole, whole]),
        "river_until": (
            whole,
            [pointer, pointer, whole, whole, whole, pointer, pointer, whole, *[pointer] * 3],
        ),
        "river_head": (None, [pointer, pointer, whole, pointer, pointer, pointer, pointer]),
        "river_profile": (None, [pointer, pointer]),
        "river_stream": (ctypes.c_int64, [pointer, ctypes.c_int64]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(calls, name)
        function.restype, function.argtypes = result, arguments
