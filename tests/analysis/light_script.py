"""Scripts that must do with saved records: run where torch and transformers cannot be imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WITHOUT_A_MODEL = """
import runpy, sys
sys.modules["torch"] = sys.modules["transformers"] = None  # an import of them fails now
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def run_light(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a script of the project; its folder is the present one."""
    # As if the script had been started itself: its name and arguments follow the code.
    code = WITHOUT_A_MODEL.replace("sys.argv[1]", repr(str(ROOT / "scripts" / script)))
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120
    )
