"""Which engine serves: where the compiled one cannot, `auto` says so and `compiled` refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pair import make_model

from river_llm.composition import load_config
from river_llm.config import AutoConfig, CompiledConfig, EagerConfig
from river_llm.engine import build
from river_llm.engine.build import resolve_engine
from river_llm.engine.native.compilation import first_try
from river_llm.engine.weights import ResidentLayers
from river_llm.errors import UserError
from river_llm.evaluation.run import Run, execute
from river_llm.evaluation.runtime import Runtime
from river_llm.models.adapter import BackboneAdapter
from tiny_folder import SMALL

OBSTACLES = {
    "no compiler": "no C++ compiler (c++, g++, clang++)",
    "a compiler that is not there": "no C++ compiler (nosuch++)",
    "a compiler that fails": "failed with status 3: decode.cpp:1:1: error: no such standard",
    "a compiler that fails without a word": "failed with status 1: no message",
    "a compiler that cannot be run": "Exec format error",
    "a cache that cannot be written": "set RIVER_LLM_CACHE",
}

FAILING = """#!/bin/sh
test "$1" = --version && exit 0
echo tried >> "$0.log"
echo "decode.cpp:1:1: error: no such standard" >&2
exit 3
"""


@pytest.fixture
def obstacle(tmp_path, monkeypatch):
    """Puts an obstacle in the way of the library; undone at the end."""
    first_try.cache_clear()

    def put(name: str) -> None:
        monkeypatch.delenv("CXX", raising=False)
        monkeypatch.setenv("RIVER_LLM_CACHE", str(tmp_path / "cache"))
        script = tmp_path / "compiler"
        if name == "no compiler":
            monkeypatch.setenv("PATH", str(tmp_path))
        elif name == "a compiler that is not there":
            monkeypatch.setenv("CXX", "nosuch++")
        elif name == "a cache that cannot be written":
            (tmp_path / "cache").write_text("a file")
        elif name == "a compiler that fails without a word":
            monkeypatch.setenv("CXX", "false")
        else:
            fails = name == "a compiler that fails"
            script.write_text(FAILING if fails else "\0\0 no program\n")
            script.chmod(0o755)
            monkeypatch.setenv("CXX", str(script))

    yield put
    first_try.cache_clear()


@pytest.fixture(scope="module")
def adapter():
    return BackboneAdapter(make_model(32, torch.float32))


def resolve(engine, adapter):
    # Another test may have seen that this backbone's layers are right.
    build._checked.pop(adapter, None)
    return resolve_engine(engine, adapter, ResidentLayers(adapter.layers), None, adapter.head)


@pytest.mark.parametrize("name", OBSTACLES)
def test_auto_becomes_eager_and_says_why_in_one_line(name, obstacle, adapter, capfd):
    obstacle(name)
    assert resolve(AutoConfig(threads=1), adapter) == EagerConfig(threads=1)
    said = [line for line in capfd.readouterr().err.splitlines() if "NO COMPILED ENGINE" in line]
    assert len(said) == 1
    assert OBSTACLES[name] in said[0] and "eager" in said[0]


def test_a_compiler_that_fails_is_tried_once(obstacle, adapter, tmp_path):
    obstacle("a compiler that fails")
    for _ in range(2):
        assert resolve(AutoConfig(), adapter) == EagerConfig()
    assert (tmp_path / "compiler.log").read_text() == "tried\n"


@pytest.mark.parametrize("name", OBSTACLES)
def test_compiled_refuses_in_one_line(name, obstacle, adapter):
    obstacle(name)
    with pytest.raises(UserError) as caught:
        resolve(CompiledConfig(), adapter)
    message = str(caught.value)
    assert OBSTACLES[name] in message and "use engine=eager" in message
    assert "\n" not in message


def test_nothing_in_the_way_gives_the_compiled_engine(adapter, capfd):
    assert resolve(AutoConfig(threads=1), adapter) == CompiledConfig(threads=1)
    assert resolve(CompiledConfig(), adapter) == CompiledConfig()
    assert resolve(EagerConfig(), adapter) == EagerConfig()
    assert "NO COMPILED" not in capfd.readouterr().err


# --- in a run: settings, identity, records --------------------------------------------------


def settings(model: Path, output: Path, *more: str):
    return load_config(
        [*SMALL, f"model.path={model}", f"output.dir={output}", "quant=rtn_int4", *more]
    )


def test_the_outcome_is_what_a_run_counts_and_records(model, tmp_path, obstacle, capfd):
    runs = {
        name: Run(config := settings(model, tmp_path, f"engine={name}"), Runtime.load(config))
        for name in ("eager", "compiled", "auto")
    }
    assert runs["auto"].identity == runs["compiled"].identity != runs["eager"].identity
    assert runs["auto"].settings["engine"] == {"name": "compiled"}
    capfd.readouterr()

    obstacle("no compiler")
    first_try.cache_clear()
    config = settings(
        model, tmp_path, "limit=1", "speedup.prompts=0", "fidelity.limit=0", "method=full_quant"
    )
    runtime = Runtime.load(config)
    run = Run(config, runtime)
    eager = Run(settings(model, tmp_path, "engine=eager", "method=full_quant"), runtime)
    assert run.config.engine == EagerConfig()
    assert run.identity == eager.identity
    assert run.settings["engine"] == {"name": "eager"}
    assert capfd.readouterr().err.count("NO COMPILED ENGINE") == 1
    execute(config, runtime)
    assert capfd.readouterr().err.count("NO COMPILED ENGINE") == 1
    written = json.loads((run.folder.path / "config.json").read_text())
    assert written["engine"]["name"] == "eager"


# --- the compiled library on disk -----------------------------------------------------------

LOAD = """
from river_llm.engine.native.compilation import load_library
library = load_library()
print(library.compile_seconds, library.calls.river_most_rows())
"""


def load_elsewhere(cache: Path) -> tuple[float, int, str]:
    """Another process loads the library: its compile time, an answer of it, what it said."""
    done = subprocess.run(
        [sys.executable, "-c", LOAD],
        env={**os.environ, "RIVER_LLM_CACHE": str(cache)},
        capture_output=True,
        text=True,
        check=True,
    )
    seconds, rows = done.stdout.split()
    return float(seconds), int(rows), done.stderr


def test_it_is_compiled_once_and_anew_where_it_was_cut_short(tmp_path):
    seconds, rows, said = load_elsewhere(tmp_path)
    assert seconds > 0 and rows == 16 and "compiling the engine" in said
    (library,) = (tmp_path / "native").glob("*/decode.so")
    whole, written = library.read_bytes(), library.stat().st_mtime_ns

    assert load_elsewhere(tmp_path) == (0, 16, "")
    assert (library.read_bytes(), library.stat().st_mtime_ns) == (whole, written)

    library.write_bytes(whole[: len(whole) // 2])
    seconds, rows, said = load_elsewhere(tmp_path)
    assert seconds > 0 and rows == 16 and "making it anew" in said
    assert load_elsewhere(tmp_path)[0] == 0
