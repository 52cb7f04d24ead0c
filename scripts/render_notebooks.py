"""Runs the notebooks on saved records and writes copies to read without running them:

    python scripts/render_notebooks.py
    python scripts/render_notebooks.py --results results --out rendered

Each notebook becomes OUT/NAME.md with its pictures in OUT/NAME_files/. The notebooks themselves
stay without outputs. The same records give the same files.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbconvert import MarkdownExporter
from traitlets.config import Config

from river_llm.entry_point import end
from river_llm.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"
TIMEOUT_S = 120  # for a cell


def main() -> int:
    """Renders every notebook; nothing is written where one fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--results", type=Path, default=ROOT / "results" / "demo", help="an output.dir"
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "docs" / "notebooks", help="where the copies go"
    )
    arguments = parser.parse_args()
    rendered = {
        path.stem: render(path, arguments.results) for path in sorted(NOTEBOOKS.glob("*.ipynb"))
    }
    for name, (text, pictures) in rendered.items():
        write(arguments.out, name, text, pictures)
        print(f"{arguments.out / name}.md: {len(pictures)} pictures")
    return 0


def execute(path: Path, results: Path) -> nbformat.NotebookNode:
    """A copy of a notebook with its outputs, run in its own folder.

    Args:
        path: of the notebook.
        results: an `output.dir`.

    Raises:
        UserError: a cell failed.
    """
    notebook: nbformat.NotebookNode = nbformat.read(path, as_version=4)
    # Relative, since the outputs name the folder.
    relative = os.path.relpath(results, path.parent)
    with tempfile.TemporaryDirectory() as scratch:
        environment = {**os.environ, "RIVER_LLM_RESULTS": relative, "IPYTHONDIR": scratch}
        # A socket in the file system: no port that others on the machine could reach.
        socket = {"transport": "ipc", "ip": f"{scratch}/kernel"}
        client = NotebookClient(
            notebook,
            timeout=TIMEOUT_S,
            kernel_name="python3",
            resources={"metadata": {"path": str(path.parent)}},
            config=Config({"KernelManager": socket}),
        )
        try:
            client.execute(env=environment)
        except CellExecutionError as error:
            raise UserError(f"{path.name}: a cell failed with {error.ename}: {error.evalue}") from (
                error
            )
    return notebook


def render(path: Path, results: Path) -> tuple[str, dict[str, bytes]]:
    """Markdown of a notebook that was run, and its pictures by the names in it.

    Args:
        path: of the notebook.
        results: an `output.dir`.

    Raises:
        UserError: a cell failed, or its output holds a path of this machine.
    """
    name = path.stem
    exporter = MarkdownExporter()
    resources = {"unique_key": name, "output_files_dir": f"{name}_files"}
    text, found = exporter.from_notebook_node(execute(path, results), resources)
    if (folder := own_folder(text)) is not None:
        raise UserError(
            f"{path.name}: the output names {folder}, a path of this machine alone: give a folder "
            "below the checkout with --results"
        )
    pictures: dict[str, bytes] = found["outputs"]
    head = f"<!-- Made by scripts/render_notebooks.py from notebooks/{path.name}. -->\n\n"
    lines = (line.rstrip() for line in text.strip().splitlines())
    return head + "\n".join(lines) + "\n", pictures


def own_folder(text: str) -> str | None:
    """The folder of this machine that a text names by its absolute path; None: none."""
    for folder in (ROOT, Path.home(), Path(tempfile.gettempdir())):
        # A relative path may end the same.
        if re.search(rf"(?<![\w./]){re.escape(str(folder))}(?![\w.])", text):
            return str(folder)
    return None


def write(out: Path, name: str, text: str, pictures: dict[str, bytes]) -> None:
    """Replaces a rendered copy as a whole, so that no picture of an older one is left."""
    out.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(out / f"{name}_files", ignore_errors=True)
    for picture, content in pictures.items():
        file = out / picture
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(content)
    (out / f"{name}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    end(main)
