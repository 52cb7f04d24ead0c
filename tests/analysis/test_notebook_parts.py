"""What the notebooks share: records found or told, tables, pictures, and what is not there."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from invented import summary
from matplotlib.figure import Figure
from PIL import Image

from river_llm.analysis.depth_records import (
    OracleRecord,
    depth_along_text_figure,
    exit_depth_figure,
    exit_depth_frame,
    oracle_of,
    read_oracle,
)
from river_llm.analysis.kv_table import correlation_frame, entry_frame
from river_llm.analysis.notebooks import (
    Picture,
    Table,
    origin,
    record_origin,
    records_in,
    tasks_in,
    told,
)
from river_llm.analysis.saved import SavedRuns
from river_llm.analysis.styles import STYLES
from river_llm.errors import UserError

ENVIRONMENT = {"device_name": None, "processor": "Abacus 9", "threads": 2}


def leave(results: Path, exp: str, name: str, content: dict[str, Any] | None) -> Path:
    folder = results / "runs" / exp / "tiny" / name
    folder.mkdir(parents=True)
    if content is not None:
        (folder / "summary.json").write_text(json.dumps({**content, "commits": ["0123456789"]}))
        (folder / "environment.json").write_text(json.dumps([ENVIRONMENT]))
    return folder


def test_runs_are_grouped_by_task_and_model(tmp_path: Path) -> None:
    leave(tmp_path, "humaneval", "c", summary(label="HumanEval"))
    leave(tmp_path, "gsm_mini", "b", summary())
    leave(tmp_path, "gsm_mini", "a", summary(arm="no_exit"))
    leave(tmp_path, "gsm_mini", "killed", None)
    gsm, humaneval = tasks_in(tmp_path)
    assert (gsm.name, humaneval.name) == ("GSM-mini, tiny", "HumanEval, tiny")
    assert [folder.name for folder in gsm.folders] == ["a", "b"]
    assert [found["arm"] for found in gsm.summaries] == ["no_exit", "river tau=0.5 sequence"]
    assert [run.name for run in gsm.missing] == [str(tmp_path / "runs/gsm_mini/tiny/killed")]
    first, missing = origin(gsm).splitlines()
    assert first == "GSM-mini, tiny: 2 runs; commit 0123456; Abacus 9, 2 threads"
    assert "killed" in missing
    assert "\n" not in origin(humaneval)


def test_what_is_missing_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tasks_in(tmp_path) == []
    assert records_in(tmp_path, "kv") == []
    with told():
        raise UserError("no such thing: make it")
    runs, kv, other = capsys.readouterr().out.splitlines()
    assert runs.startswith("Not shown: no finished run in") and "make demo" in runs
    assert kv.startswith("Not shown: no record in") and "scripts/analyze_kv.py" in kv
    assert other == "Not shown: no such thing: make it"


def test_faults_of_the_code_are_not_told_away() -> None:
    with pytest.raises(KeyError), told():
        raise KeyError("a fault")


def test_records_are_found_by_kind(tmp_path: Path) -> None:
    for kind, name in (("kv", "b"), ("kv", "a"), ("oracle_depth", "c"), ("kv", "unfinished")):
        folder = tmp_path / "analysis" / kind / name
        folder.mkdir(parents=True)
        if name != "unfinished":
            (folder / "summary.json").write_text("{}")
    assert [folder.name for folder in records_in(tmp_path, "kv")] == ["a", "b"]
    assert [folder.name for folder in records_in(tmp_path, "oracle_depth")] == ["c"]


def test_a_picture_is_a_small_png_that_looks_the_same() -> None:
    fig = Figure(figsize=(4, 3), dpi=150)
    axes = fig.subplots()
    axes.fill_between([0, 9], 9, facecolor="none", edgecolor="#b5b5b5", hatch="///")
    for row, (color, marker) in enumerate(STYLES.values()):
        axes.plot([0, 9], [row, 9], color=color, linewidth=0.7)
        axes.plot(row, row, color=color, marker=marker, markersize=3)
    content = Picture(fig)._repr_png_()
    assert content == Picture(fig)._repr_png_()
    found = Image.open(io.BytesIO(content))
    assert found.size == (360, 270)
    assert "Software" not in found.info
    plain = io.BytesIO()
    fig.savefig(plain, format="png", dpi=90)
    expected = np.asarray(Image.open(plain).convert("RGB"), dtype=int)
    assert np.abs(np.asarray(found.convert("RGB"), dtype=int) - expected).max() <= 8
    assert fig.dpi == 150


def test_a_table_is_markdown_with_its_note() -> None:
    table = Table(pd.DataFrame({"Arm": ["river"], "Depth": ["2.5"]}), "Over 8 steps.", ["Arm"])
    assert table._repr_markdown_().split("\n") == [
        "| Arm   | Depth |",
        "| ----- | ----: |",
        "| river |   2.5 |",
        "",
        "Over 8 steps.",
        "",
    ]


def test_records_of_older_versions_name_no_machine() -> None:
    record = {"label": "GSM", "model": "tiny", "steps": 3, "samples": 2, "commit": "0123456789+x"}
    line = "GSM, tiny: 3 decode steps of 2 texts; commit 0123456+x; "
    assert record_origin(record) == line + "machine unknown"
    assert record_origin({**record, "environment": ENVIRONMENT}) == line + "Abacus 9, 2 threads"


# --- exit depths beside the oracle's ------------------------------------------------------

ORACLE = OracleRecord(
    {
        "exp": "gsm_mini",
        "label": "GSM-mini",
        "model": "tiny",
        "samples": 1,
        "steps": 2,
        "layers": 4,
        "oracle_depth": {"mean": 3.5, "low": None, "high": None, "below_full": 0.5},
        "first_hit_depth": {"mean": 1.0, "low": 1.0, "high": 2.0, "below_full": 1.0},
    },
    pd.DataFrame({"id": ["a", "a"], "step": [0, 1], "oracle_depth": [3, 4]}),
)


def runs_of(*summaries: dict[str, Any], folder: Path) -> SavedRuns:
    return SavedRuns("GSM-mini, tiny", [folder] * len(summaries), list(summaries), [])


def test_runs_stand_above_the_oracle(tmp_path: Path) -> None:
    depth = {"mean": 1.5, "layers": 4, "histogram": [0, 2, 2, 0, 0]}
    runs = runs_of(summary(exit_depth=depth), folder=tmp_path)
    assert exit_depth_frame(runs, ORACLE).values.tolist() == [
        ["river tau=0.5 sequence", "2.0", "1.5 / 4", "100.0", "4 free-running steps"],
        [
            "oracle depth, from which on the token stays",
            "n/a",
            "3.5 [no interval] / 4",
            "50.0",
            "2 decode steps of 1 texts",
        ],
        [
            "first hit, where the token first comes",
            "n/a",
            "1.0 [1.0, 2.0] / 4",
            "100.0",
            "2 decode steps of 1 texts",
        ],
    ]
    assert len(exit_depth_frame(runs, None)) == 1


def test_each_half_is_drawn_without_the_other(tmp_path: Path) -> None:
    runs = runs_of(summary(), folder=tmp_path)
    fig = exit_depth_figure(runs, ORACLE)
    assert len(fig.subfigs[0].axes) == 2
    assert "River: not run." in fig.subfigs[1].texts[0].get_text()
    with pytest.raises(UserError, match="no exit depths"):
        exit_depth_figure(runs, None)
    with pytest.raises(UserError, match="no run whose exit depth changes"):
        depth_along_text_figure(runs)


def test_the_record_of_another_task_is_left_alone(tmp_path: Path) -> None:
    for name, exp, model in (("1", "humaneval", "tiny"), ("2", "gsm_mini", "other")):
        folder = tmp_path / name
        folder.mkdir()
        content = {**ORACLE.summary, "exp": exp, "model": model}
        (folder / "summary.json").write_text(json.dumps(content))
        ORACLE.steps.to_parquet(folder / "steps.parquet")
    folders = [tmp_path / "1", tmp_path / "2"]
    runs = runs_of(summary(), folder=tmp_path)
    assert oracle_of(folders, runs) is None
    assert oracle_of(folders, runs_of(summary(model="other"), folder=tmp_path)) is not None
    (tmp_path / "1" / "steps.parquet").unlink()
    with pytest.raises(UserError, match=r"analyze_depth\.py"):
        read_oracle(tmp_path / "1")


# --- KV similarity ------------------------------------------------------------------------


def test_entries_and_correlations_by_hand() -> None:
    arm = {"depth": 0, "prefill": "", "key_cosine": [1.0, 0.9], "value_cosine": [0.8, 0.5]}
    river = {**arm, "arm": "river", "depth": 3, "prefill": "backbone"}
    record = {
        "entries": [{**arm, "arm": "layer_alone"}, river],
        "early_last": [
            {"depth": 3, "prefill": "backbone", "block": 2, "r": r, "low": low, "high": high}
            for r, low, high in ((0.5, 0.25, 0.75), (0.5, None, None), (None, None, None))
        ],
    }
    assert entry_frame(record).values.tolist() == [
        ["each river layer alone", "0.9500", "0.9000", "0.6500", "0.5000"],
        ["river, exit depth 3, prefill backbone", "0.9500", "0.9000", "0.6500", "0.5000"],
    ]
    assert correlation_frame(record)["r [95%]"].tolist() == [
        "0.50 [0.25, 0.75]",
        "0.50 [no interval]",
        "n/a",
    ]
