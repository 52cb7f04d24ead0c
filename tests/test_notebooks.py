"""The notebooks: as they are stored, run on invented records, and their rendered copies."""

from __future__ import annotations

import ast
import base64
import json
import re
import runpy
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import nbformat
import pytest

import notebook_records
from command import ROOT
from river_llm.analysis.depth_records import read_oracle
from river_llm.analysis.kv import read_kv
from river_llm.composition import load_config
from river_llm.evaluation.runtime import Runtime

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "render_notebooks.py"))
RENDERED = ROOT / "docs" / "notebooks"
NAMES = ("exit_depth", "kv_similarity", "pareto")
# Cells that draw, by their id.
FIGURES = {
    "exit_depth": ["distribution", "positions", "oracle"],
    "kv_similarity": ["sequence", "backbone"],
    "pareto": ["speed", "front"],
}
MOST_LINES = 10
MOST_BYTES = 150_000


def stored(name: str) -> nbformat.NotebookNode:
    return nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@dataclass(frozen=True)
class Outputs:
    """What the cells of a notebook showed, by their ids."""

    text: dict[str, str]
    pictures: dict[str, list[bytes]]

    def row(self, cell: str, name: str) -> list[str]:
        """The cells of the table row that begins so."""
        (line,) = [line for line in self.text[cell].splitlines() if line.startswith(f"| {name}")]
        return [part.strip() for part in line.strip("|").split("|")]


def outputs_of(notebook: nbformat.NotebookNode) -> Outputs:
    text: dict[str, str] = {}
    pictures: dict[str, list[bytes]] = {}
    for cell in code_cells(notebook):
        assert not any(output.output_type == "error" for output in cell.outputs)
        assert not any(output.get("name") == "stderr" for output in cell.outputs)
        shown = [output.get("data", {}) for output in cell.outputs]
        written = [output.get("text", "") for output in cell.outputs]
        text[cell.id] = "".join([*written, *(data.get("text/markdown", "") for data in shown)])
        pngs = [data["image/png"] for data in shown if "image/png" in data]
        pictures[cell.id] = [base64.b64decode(png) for png in pngs]
    return Outputs(text, pictures)


def run(name: str, results: Path) -> Outputs:
    return outputs_of(SCRIPT["execute"](ROOT / "notebooks" / f"{name}.ipynb", results))


def test_these_are_the_notebooks() -> None:
    assert sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb")) == list(NAMES)


# --- as they are stored -------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_a_run_or_a_machine_is_stored(name: str) -> None:
    notebook = stored(name)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    assert notebook.metadata == {"kernelspec": kernel}
    for cell in notebook.cells:
        assert cell.metadata == {}
    for cell in code_cells(notebook):
        assert cell.outputs == []
        assert cell.execution_count is None
    sources = "".join(cell.source for cell in notebook.cells)
    assert not re.search(r"(?<![\w.>])/[a-z]+/|[A-Z]:\\|~/", sources)


@pytest.mark.parametrize("name", NAMES)
def test_records_are_read_through_the_analysis_alone(name: str) -> None:
    source = "\n".join(cell.source for cell in code_cells(stored(name)))
    imported: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(str(node.module))
    own = {module for module in imported if module.startswith("river_llm.analysis.")}
    assert own
    assert imported - own == {"os", "pathlib"}


@pytest.mark.parametrize("name", NAMES)
def test_each_figure_is_led_in_and_a_cell_is_short(name: str) -> None:
    cells = stored(name).cells
    first = next(cell.source for cell in cells if cell.cell_type == "code")
    assert '"RIVER_LLM_RESULTS", "../results/demo"' in first
    assert "`make demo`" in cells[0].source
    for before, cell in pairwise(cells[1:]):
        if cell.cell_type == "code":
            assert before.cell_type == "markdown"
            assert "Look" in before.source or "look" in before.source
            assert len(cell.source.splitlines()) <= MOST_LINES


# --- run on invented records --------------------------------------------------------------


@pytest.fixture(scope="module")
def runs_alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("runs")
    notebook_records.write_runs(results)
    return results


@pytest.fixture(scope="module")
def records_alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("records")
    notebook_records.write_oracle(results)
    notebook_records.write_kv(results)
    return results


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("everything")
    notebook_records.write_runs(results)
    notebook_records.write_oracle(results)
    notebook_records.write_kv(results)
    return results


def check_pictures(outputs: Outputs, drawn: list[str]) -> None:
    """One picture in each of the cells that draw, none elsewhere."""
    assert [cell for cell, found in outputs.pictures.items() if found] == drawn
    for cell in drawn:
        (picture,) = outputs.pictures[cell]
        assert picture.startswith(b"\x89PNG")
        assert len(picture) > 5_000


def test_exit_depth(everything: Path) -> None:
    outputs = run("exit_depth", everything)
    check_pictures(outputs, FIGURES["exit_depth"])
    assert "Not shown" not in "".join(outputs.text.values())
    assert "3 runs; commit 0123456; Abacus 9, 2 threads" in outputs.text["records"]
    # 1 + 2 + 2 + 4 + 3 + 4 + 1 + 3 = 20 in 8 steps, 2 of them at 4.
    assert outputs.row("table", "river") == [
        "river tau=0.5 sequence",
        "3.0",
        "2.5 / 4",
        "75.0",
        "8 forced steps",
    ]
    # (2 + 3 + 4) / 3; the first text alone has 2.5, the second 4.
    oracle = outputs.row("table", "oracle depth")
    assert oracle[1:] == ["n/a", "3.0 [2.5, 4.0] / 4", "66.7", "3 decode steps of 2 texts"]
    # (2 + 1 + 4) / 3; 1.5 and 4.
    assert outputs.row("table", "first hit")[2] == "2.3 [1.5, 4.0] / 4"


@pytest.fixture(scope="module")
def kv_outputs(everything: Path) -> Outputs:
    return run("kv_similarity", everything)


def test_kv_similarity(kv_outputs: Outputs) -> None:
    outputs = kv_outputs
    check_pictures(outputs, FIGURES["kv_similarity"])
    assert (
        "6 decode steps of 2 texts; commit 0123456; Abacus 9, 2 threads"
        in (outputs.text["records"])
    )
    # Values: 1 in three layers, (0.7 + 0.9 + 0.8) / 3 in the last.
    row = outputs.row("entries", "river, exit depth 1, prefill sequence")
    assert row[1:] == ["0.9900", "0.9900", "0.9500", "0.8000"]
    # Both texts alone give 1 / 2 as well.
    row = outputs.row("correlation", "river, exit depth 1, prefill backbone")
    assert row[1:] == ["0", "0.50 [0.50, 0.50]"]


def test_pareto(runs_alone: Path) -> None:
    outputs = run("pareto", runs_alone)
    check_pictures(outputs, FIGURES["pareto"])
    assert "Not shown" not in "".join(outputs.text.values())
    row = outputs.row("table", "GSM-mini | river")
    # One of two right: Wilson's interval is 0.5 -+ 0.4055.
    assert row[2:5] == ["2", "50.0 [9.5, 90.5]", "80.0"]
    assert row[-2:] == ["1.50 [1.40, 1.60]", "2.00"]
    assert outputs.row("points", "river")[1:6] == [
        "tau=0.5",
        "2.5 / 4",
        "1.50 [1.40, 1.60]",
        "2.00",
        "80.0 [70.0, 80.0]",
    ]


# --- records that are not there -----------------------------------------------------------


def told(outputs: Outputs, cell: str) -> str:
    """The one line that a cell shows instead of its figure."""
    (line,) = outputs.text[cell].splitlines()
    assert line.startswith("Not shown: ")
    return line


def test_exit_depth_without_an_oracle(runs_alone: Path) -> None:
    outputs = run("exit_depth", runs_alone)
    check_pictures(outputs, ["distribution", "positions"])
    assert "analyze_depth.py" in told(outputs, "oracle")
    assert "make demo" in told(outputs, "oracle")
    assert outputs.row("table", "river")[2] == "2.5 / 4"


def test_exit_depth_without_runs(records_alone: Path) -> None:
    outputs = run("exit_depth", records_alone)
    check_pictures(outputs, ["oracle"])
    for cell in ("table", "distribution", "positions"):
        assert "no finished run in" in told(outputs, cell)
        assert "make demo" in told(outputs, cell)


@pytest.mark.parametrize(
    ("name", "word"), [("pareto", "no finished run in"), ("kv_similarity", "analyze_kv.py")]
)
def test_nothing_to_show(name: str, word: str, tmp_path: Path) -> None:
    outputs = run(name, tmp_path)
    check_pictures(outputs, [])
    for cell in outputs.text:
        assert word in told(outputs, cell)
        assert "make demo" in told(outputs, cell)


# --- rendered copies ----------------------------------------------------------------------


def test_rendering_gives_the_same_pictures_again(everything: Path, kv_outputs: Outputs) -> None:
    path = ROOT / "notebooks" / "kv_similarity.ipynb"
    text, pictures = SCRIPT["render"](path, everything)
    assert list(pictures) == [f"kv_similarity_files/kv_similarity_{n}_0.png" for n in (3, 5)]
    assert re.findall(r"!\[png\]\((.*?)\)", text) == list(pictures)
    assert list(pictures.values()) == [kv_outputs.pictures[c][0] for c in ("sequence", "backbone")]


def test_a_path_of_this_machine_is_found() -> None:
    own_folder = SCRIPT["own_folder"]
    assert own_folder(f"in {ROOT}/results") == str(ROOT)
    assert own_folder(f"'{Path.home()}'") == str(Path.home())
    assert own_folder(f"in ..{ROOT}/results, a{Path.home()}") is None


def test_old_pictures_leave_with_their_text(tmp_path: Path) -> None:
    for picture in ("a_files/a_1_0.png", "a_files/a_2_0.png"):
        SCRIPT["write"](tmp_path, "a", picture, {picture: b"new"})
    assert [path.name for path in (tmp_path / "a_files").iterdir()] == ["a_2_0.png"]
    assert (tmp_path / "a.md").read_text("utf-8") == "a_files/a_2_0.png"


@pytest.mark.parametrize("name", NAMES)
def test_the_committed_copy_is_of_this_notebook(name: str) -> None:
    text = (RENDERED / f"{name}.md").read_text("utf-8")
    for cell in stored(name).cells:
        assert cell.source in text, "run scripts/render_notebooks.py again"
    assert text.count("```python") == len(code_cells(stored(name)))
    assert "Not shown" not in text and "Traceback" not in text
    pictures = {path.relative_to(RENDERED).as_posix() for path in RENDERED.glob(f"{name}_files/*")}
    assert pictures == set(re.findall(r"!\[png\]\((.*?)\)", text))
    assert len(pictures) >= len(FIGURES[name])
    assert all((RENDERED / picture).stat().st_size < MOST_BYTES for picture in pictures)
    assert re.search(r"; commits? [0-9a-f]{7}[;,]", text)
    assert not re.search(r"/(home|root|tmp|Users)/|\d\d:\d\d:\d\d", text)


# --- the demo -----------------------------------------------------------------------------


def test_the_demo_leaves_the_records_with_the_model_it_has(
    model: Path, offline: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in offline.items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    demo: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "demo.py"))
    overrides = [
        f"output.dir={tmp_path}",
        f"model.path={model}",
        "model.dtype=fp32",
        "engine=eager",
    ]
    runtime = Runtime.load(load_config(overrides))

    def loads_again(config: object) -> Runtime:
        raise AssertionError("the demo has a model already")

    monkeypatch.setattr(Runtime, "load", loads_again)
    demo["leave_analyses"](runtime, [*overrides, *demo["ANALYSIS"]])
    oracle = read_oracle(tmp_path / "analysis" / "oracle_depth" / "gsm_mini-llama")
    kv = read_kv(tmp_path / "analysis" / "kv" / "gsm_mini-llama")
    steps = 3 * (demo["ANALYSIS_TOKENS"] - 1)
    for summary in (oracle.summary, kv.summary):
        assert (summary["samples"], summary["steps"], summary["layers"]) == (3, steps, 3)
    assert {arm["depth"] for arm in kv.summary["entries"] if arm["arm"] == "river"} == {1, 3}
    assert json.dumps(kv.summary["environment"])
