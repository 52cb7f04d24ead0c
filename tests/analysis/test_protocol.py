"""Which protocols give the paper's no_exit accuracy, on an invented sweep."""

from __future__ import annotations

from pathlib import Path

import pytest
from light_script import run_light
from table2_runs import save, write_sweep

from river_llm.analysis.paper_cells import PaperCells
from river_llm.analysis.points import Estimate
from river_llm.analysis.protocol import Protocol, protocol_frame, protocols, verdicts
from river_llm.errors import UserError

PAPER = {("llama3.2_1b", "gsm8k"): PaperCells(33.2, None, None, None, "x")}


def sweep(tmp_path: Path) -> Path:
    """Accuracies of 35 and 60 %, both with 10 points to each side, and two cells without one."""
    runs = tmp_path / "runs"
    like = save(runs, "01", "no_exit", [True] * 7 + [False] * 13)
    base = save(runs, "02", "no_exit", [True] * 12 + [False] * 8, model="Llama-3.2-1B")
    common = ["model=llama3.2_1b", "exp=gsm8k", "method=no_exit", "limit=20"]
    path = "model.path=meta-llama/Llama-3.2-1B"
    return write_sweep(
        tmp_path / "sweep",
        [
            ([*common, "exp.fewshot=8", "model.chat=always"], like, None),
            ([*common, path, "exp.fewshot=8"], base, None),
            ([*common, path, "exp.fewshot=0"], None, None),
            (["model=tiny", "exp=gsm8k", "limit=20"], None, "no such model"),
        ],
    )


def test_protocols_stand_beside_the_paper_s_value(tmp_path: Path) -> None:
    rows = protocol_frame(protocols(sweep(tmp_path)), PAPER).to_dict("records")
    assert [list(row.values()) for row in rows] == [
        ["llama3.2_1b", "GSM8K", "exp.fewshot=8 model.chat=always", "20",
         "35.0 [25.0, 45.0]", "33.2", "+1.8", "compatible", "-"],
        ["llama3.2_1b", "GSM8K",
         "model.path=meta-llama/Llama-3.2-1B exp.fewshot=8", "20",
         "60.0 [50.0, 70.0]", "33.2", "+26.8", "not compatible", "-"],
        ["llama3.2_1b", "GSM8K",
         "model.path=meta-llama/Llama-3.2-1B exp.fewshot=0", "not run",
         "not run", "33.2", "not run", "not run", "waiting"],
        ["tiny", "GSM8K", "as configured", "not run", "not run", "n/a", "not run", "not run",
         "failed: no such model"],
    ]  # fmt: skip


def one(value: float | None, low: float | None = None, high: float | None = None) -> Protocol:
    return Protocol("m", "gsm8k", "w", Estimate(value, low, high), 20, "")


@pytest.mark.parametrize(
    ("paper", "words"),
    [
        (35.0, ["compatible", "not compatible", "not run"]),
        (40.0, ["compatible", "compatible", "not run"]),  # the ends belong to the intervals
        (45.0, ["not compatible", "compatible", "not run"]),
        (61.0, ["not compatible", "not compatible, nearest", "not run"]),
        (10.0, ["not compatible, nearest", "not compatible", "not run"]),
        (None, ["unknown", "unknown", "not run"]),
    ],
)
def test_verdicts_by_hand(paper: float | None, words: list[str]) -> None:
    group = [one(0.35, 0.3, 0.4), one(0.5, 0.4, 0.6), one(None)]
    assert verdicts(group, paper) == words


def test_a_sweep_of_another_method_is_refused(tmp_path: Path) -> None:
    folder = write_sweep(
        tmp_path / "s", [(["model=a", "exp=gsm8k", "method=river"], None, None), ([], None, None)]
    )
    with pytest.raises(
        UserError, match=r"'model=a exp=gsm8k method=river' of .* is no run of no_e"
    ):
        protocols(folder)


def test_cells_that_name_no_model_are_of_one_whatever_their_weights_are_called(
    tmp_path: Path,
) -> None:
    base = save(tmp_path / "runs", "01", "no_exit", [True], model="base", exp="math")
    folder = write_sweep(
        tmp_path / "s",
        [(["exp=math", "limit=1"], None, None), (["model.path=x/base", "limit=1"], base, None)],
    )
    assert [(one.model, one.task, one.words) for one in protocols(folder)] == [
        ("as configured", "math", "as configured"),
        ("as configured", "math", "model.path=x/base"),
    ]


def test_the_script_writes_both_files(tmp_path: Path) -> None:
    out = tmp_path / "new" / "protocol"
    done = run_light("protocol.py", str(sweep(tmp_path)), "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{out}.md", f"{out}.csv"]
    assert "| compatible " in Path(f"{out}.md").read_text()
    assert Path(f"{out}.csv").read_text().count("\n") == 5


def test_the_script_says_in_one_line_what_is_wrong(tmp_path: Path) -> None:
    done = run_light("protocol.py", str(tmp_path))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "sweep.json is not the record of a sweep" in done.stderr
