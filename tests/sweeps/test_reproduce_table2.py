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
from river_llm.sweeps.plan import parse_request
from river_llm.sweeps.profiles import load_profile
from tiny_checkpoints import HUB_IDS, save_in_hub_cache

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
HUMANEVAL = {
    "task_id": "own/0",
    "prompt": 'def twice(x: int) -> int:\n    """Returns x two times."""\n',
    "entry_point": "twice",
    "canonical_solution": "    return 2 * x\n",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n",
}
RUNS = {
    "no_exit",
    "full_quant, hqq_int4 g64",
    "full_quant, rtn_int8",
    "quant_decode",
    *(
        f"river, prefill {prefill}, tau={tau}"
        for prefill in ("sequence", "backbone")
        for tau in ("0.5", "0.7")
    ),
}
"""Of every block; beside them static_first at one depth or two."""


def reproduce(folder: Path, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
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
    for hub_id in HUB_IDS.values():
        assert hub_id in text
    assert "not in the local cache, and the hub cannot be reached" in text
    assert "gsm8k: " in text and "math: " in text
    assert "embedded (" in listed[-1] and "tonight (" in listed[-1]
    assert not (tmp_path / "results").exists()


def test_a_folder_that_a_killed_start_left_is_no_finished_sweep(tmp_path: Path):
    folder = parse_request(load_profile("paper").overrides([])).folder.path
    (tmp_path / folder).mkdir(parents=True)
    done = reproduce(tmp_path, tmp_path / "empty", "paper")
    assert done.stderr.startswith("error: profile paper cannot run here:")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "gsm8k.jsonl").write_text(json.dumps(GSM8K) + "\n", encoding="utf-8")
    (folder / "humaneval.jsonl").write_text(json.dumps(HUMANEVAL) + "\n", encoding="utf-8")
    (folder / "math.jsonl").write_text(json.dumps(MATH) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hub cache with tiny models under the paper models' names."""
    place = tmp_path_factory.mktemp("home")
    save_in_hub_cache(place)
    return place


@pytest.fixture(scope="module")
def arguments(data: Path) -> list[str]:
    sizes = ["limit=1", "exp.max_new_tokens=4", "exp.fewshot=0", f"data.path={data}"]
    sizes += ["speedup.prompts=1", "speedup.tokens=3", "fidelity.limit=1", "fidelity.tokens=3"]
    # Peak memory would load each model once more for every cell.
    sizes.append("memory.peak=false")
    return ["paper", "model.device=cpu", *sizes]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, home: Path, arguments: list[str]) -> Path:
    """Where the profile `paper` has run to its table."""
    folder = tmp_path_factory.mktemp("work")
    done = reproduce(folder, home, *arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    # Hours per model come first.
    estimate = done.stdout.partition("run.py -m")[2]
    for model in MODELS:
        assert f"{model}, all its cells" in estimate
    return folder


def rows_of(made: Path) -> list[dict[str, str]]:
    with (made / "results" / "table2" / "table2.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_paper_profile_runs_to_its_table(made: Path):
    blocks: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in rows_of(made):
        blocks.setdefault((row["model"], row["task"]), []).append(row)
    tasks = ["gsm8k", "math", "humaneval"]
    assert sorted(blocks) == sorted((model, task) for model in MODELS for task in tasks)
    for rows in blocks.values():
        static = {row["run"]: row for row in rows if row["run"] not in RUNS}
        assert {row["run"] for row in rows} - set(static) == RUNS
        rivers = {row["run"]: row for row in rows if row["method"] == "river"}
        for tau in ("0.5", "0.7"):
            mean = float(rivers[f"river, prefill backbone, tau={tau}"]["mean_exit_depth_layers"])
            assert f"static_first, k={round(mean)}" in static
        assert 1 <= len(static) <= 2
        for row in rows:
            assert (row["samples"], row["fidelity_tokens"]) == ("1", "3")
            for key in ("speedup_matched", "speedup_vs_eager", "speedup_vs_hf", "bound_speedup"):
                assert float(row[key]) > 0
    text = (made / "results" / "table2" / "table2.md").read_text(encoding="utf-8")
    assert "MATH-500 (paper: MATH)" in text
    # What the paper says of the 8B model on GSM8K, and how far a random model is from it.
    row = next(r for r in text.splitlines() if r.startswith("| llama3.1_8b   | GSM8K "))
    assert "78.2 (-78.2)" in row and "not run" not in row


def test_a_second_call_runs_nothing(made: Path, home: Path, arguments: list[str]):
    before = (made / "results" / "table2" / "table2.csv").read_bytes()
    done = reproduce(made, home, *arguments)
    assert done.returncode == 0
    assert "dry_run" not in done.stdout
    (line,) = [text for text in done.stderr.splitlines() if "finished before" in text]
    count = line.partition(" cells, ")[0]
    assert line.startswith(f"{count} cells, {count} of them finished before: ")
    assert (made / "results" / "table2" / "table2.csv").read_bytes() == before
