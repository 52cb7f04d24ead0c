"""Imports go down the list of layers, or stay within one; the light packages stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import river_llm

ROOT = Path(river_llm.__file__).parent

# From top to bottom. A name stands for a module of the package, or for a package inside it with
# everything in it. `composition` turns command lines into settings, for entry points alone. What
# stands in the last row knows nothing of the rest: plain data, clocks, schemas, messages, files.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("sweeps",),
    ("composition",),
    ("evaluation", "calibration", "benchmark"),
    ("analysis", "metrics", "tracking"),
    ("tasks", "grading"),
    ("generation",),
    ("decoding",),
    ("engine",),
    ("quant", "models", "cache", "exits"),
    ("records", "timing", "config", "errors", "paths", "artifacts", "environment", "entry_point"),
)
LEVELS = {name: level for level, names in enumerate(LAYERS) for name in names}

# What these may not import at all, third parties included, although the list would let them.
MODEL = ("generation", "decoding", "engine", "quant", "models", "cache", "exits", "timing")
FORBIDDEN: dict[str, tuple[str, ...]] = {
    "tasks": ("torch", "transformers", *MODEL),
    "grading": ("torch", "transformers", *MODEL),
    "analysis": ("torch", "transformers", *MODEL),
    "tracking": ("torch", "transformers", *MODEL),
}


def sources() -> dict[str, str]:
    """Source text of every module, by its dotted name inside the package ("" is the root)."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(part for part in parts if part != "__init__")] = path.read_text("utf-8")
    return found


def imported(source: str) -> Iterator[str]:
    """Every module that a source names in an import, wherever in it; own ones without the root."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"line {node.lineno}: a relative import cannot be followed here"
            # `from package import module` names a module too; an attribute does no harm here.
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name.removeprefix("river_llm.") for name in names)


def faults(module: str, source: str) -> list[str]:
    """What is wrong with the imports of one module."""
    own = module.partition(".")[0]
    found = []
    for name in imported(source):
        top = name.partition(".")[0]
        if top in FORBIDDEN.get(own, ()):
            found.append(f"{module} imports {name}, which {own} must not know")
        elif top in LEVELS and LEVELS[top] < LEVELS[own]:
            found.append(f"{module} imports {name}, which stands above it")
    return found


MODULES = sources()


def test_every_module_has_a_layer():
    unknown = {name.partition(".")[0] for name in MODULES if name} - set(LEVELS)
    assert not unknown, f"say in LAYERS where {sorted(unknown)} belong"


def test_the_sources_are_really_read():
    # Known imports of three kinds: plain, of a submodule by `from`, and inside a function.
    assert "torch" in set(imported(MODULES["timing"]))
    assert "evaluation.measure" in set(imported(MODULES["evaluation.run"]))
    assert "datasets.load_dataset" in set(imported(MODULES["tasks.data"]))
    assert len(MODULES) > 50


@pytest.mark.parametrize("module", [name for name in MODULES if name])
def test_imports_only_go_down(module: str):
    assert faults(module, MODULES[module]) == []


def test_the_root_imports_nothing_of_the_package():
    # Else every module would load it, whatever its own imports say.
    assert not [n for n in imported(MODULES[""]) if n.partition(".")[0] in LEVELS]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("cache", "from river_llm.generation import generate"),
        ("cache", "import river_llm.evaluation.run"),
        ("quant.grid", "from river_llm import engine"),
        ("records", "def late():\n    from river_llm.tasks import Task"),
        ("errors", "if TYPE_CHECKING:\n    from river_llm.models.adapter import BackboneAdapter"),
        ("evaluation.run", "from river_llm.composition import load_config"),
        ("analysis.tables", "from river_llm.evaluation.run import execute"),
        ("tasks.base", "from river_llm.decoding import Decoder"),
        ("tasks.gsm8k", "import torch.nn"),
        ("grading.math", "from transformers import AutoTokenizer"),
        ("analysis.report", "import torch"),
        ("analysis.report", "from river_llm.timing import Timer"),
    ],
)
def test_an_import_that_goes_up_is_found(module: str, source: str):
    assert len(faults(module, f"import json\n{source}\n")) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("evaluation.run", "from river_llm.calibration import mean_depth"),
        ("evaluation.run", "from river_llm.errors import UserError"),
        ("tasks.gsm", "from river_llm.grading import gsm8k"),
        ("engine.eager", "import torch"),
    ],
)
def test_an_import_that_goes_down_is_allowed(module: str, source: str):
    assert faults(module, source) == []


@pytest.mark.parametrize("package", ["tasks", "grading", "analysis", "tracking"])
def test_a_light_package_loads_no_torch_by_any_way(package: str):
    modules = [f"river_llm.{n}" for n in MODULES if n.partition(".")[0] == package]
    script = (
        "import importlib, sys\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "print([n for n in ('torch', 'transformers') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"
