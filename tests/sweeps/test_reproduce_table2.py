"""`make reproduce-table2`: refusal, and the whole path of the profile `paper` on tiny models."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from command import ROOT
from tiny_checkpoints import save_in_hub_cache

SCRIPT = ROOT / "scripts" / "reproduce_table2.py"
MODELS = ["llama3.2_1b", "llama3.1_8b", "phi4_mini", "ministral3_8b"]
GSM8K = {"question": "Ann has 2 pens and buys 3. How many has she?", "answer": "2 + 3 = 5\n#### 5"}
MATH = {
    "problem": "What is $1 + 1$?",
    "solution": "It is $\\boxed{2}$.",
    "answer": "2",
    "subject": "Prealgebra",
    "level": 1,
    "unique_id": "test/prealgebra/1.json",
}
ARMS = 8
"""Distinct computations of a task: static_first takes one depth or two."""


def reproduce(
    folder: Path, home: Path, *arguments: str, offline: bool = True
) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "HF_HOME": str(home),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "WANDB_MODE": "disabled",
    }
    environment.pop("HF_HUB_CACHE", None)
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=900,
    )


def test_the_paper_profile_says_what_is_missing_and_names_the_others(tmp_path: Path):
    done = reproduce(tmp_path, tmp_path / "empty", "paper")
    assert done.returncode == 2
    first, *listed = done.stderr.splitlines()
    assert first == "error: profile paper cannot run here:"
    text = "\n".join(listed)
    assert "no GPU" in text
    for repository in ("Llama-3.2-1B-Instruct", "Llama-3.1-8B-Instruct", "Phi-4-mini-instruct"):
        assert f"{repository}: it is not in the local cache" in text
    assert "gsm8k: " in text and "math: " in text
    assert "embedded (" in listed[-1] and "tonight (" in listed[-1]
    assert not (tmp_path / "results").exists()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "gsm8k.jsonl").write_text(json.dumps(GSM8K) + "\n", encoding="utf-8")
    (folder / "math.jsonl").write_text(json.dumps(MATH) + "\n", encoding="utf-8")
    return folder
