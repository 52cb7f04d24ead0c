"""What is logged, before it is: plain data from the files of a run."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from saved_run import sample, save

from river_llm.config import WandbConfig
from river_llm.errors import UserError
from river_llm.tracking.payload import (
    COMPLETION_CHARACTERS,
    HistogramData,
    Payload,
    flat,
    run_payload,
)
from river_llm.tracking.portable import portable

SETTINGS = WandbConfig()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [sample(0), sample(1, correct=None, extracted=None), sample(2, exit_depths=[4, 4])]
    return save(tmp_path / "run", rows)


@pytest.fixture
def payload(folder: Path) -> Payload:
    return run_payload(folder, SETTINGS)


def test_figures_stand_under_flat_keys(payload: Payload):
    assert payload.summary == {
        "exp": "gsm_mini",
        "label": "GSM-mini",
        "model": "tiny",
        "method": "river",
        "arm": "river tau=0.5 sequence",
        "identity": "ab12cd34ef56",
        "samples": 3,
        "samples/in_table": "the first 3 of 3 samples",
        "accuracy": 0.5,
        "accuracy/low": 0.1,
        "accuracy/high": 0.9,
        "accuracy/graded": 2,
        "accuracy/extra/strict": 0.5,
        "cut_share": 0.0,
        "exit_depth/mean": 2.5,
        "exit_depth/layers": 4,
        "prefill_depth/mean": 4.0,
        "time/decode_ms_per_token": 20.0,
        "time/prefill_ms/median": 125.0,
        "time/prefill_ms/p90": 125.0,
        "time/decode_steps": 6,
        "time/tokens_timed": 9,
        "time/tokens_kept": 6,
        "speedup/decode/matched": 1.5,
        "speedup/decode/matched/low": 1.25,
        "speedup/decode/matched/high": 1.75,
        "speedup/decode/matched/prompts": 2,
        "speedup/decode/matched/bound_speedup": 2.0,
        "speedup/decode/matched/mean_depth": 2.5,
        "speedup/decode/matched/flags": "one; two",
        "memory/backbone_bytes": 100,
        "memory/river_bytes": 25,
    }


def test_what_was_not_measured_is_left_out():
    figures = {"a": {"value": None, "samples": 2}, "b": float("nan"), "c": [], "d": [1, 2], "e": 0}
    assert flat(figures) == {"a/samples": 2, "e": 0}


def test_a_block_with_a_value_at_the_top_keeps_its_name():
    assert flat({"value": 3}) == {"value": 3}


def test_the_run_is_named_by_what_it_computes(payload: Payload):
    assert payload.id == "river-ab12cd34ef56"
    assert payload.name == "gsm_mini tiny river tau=0.5 sequence"
    assert (payload.group, payload.tags, payload.job_type) == (None, [], "run")


@pytest.mark.parametrize(
    ("group", "sweep", "expected"),
    [(None, "grid-1", "grid-1"), ("own", "grid-1", "own"), ("own", None, "own")],
)
def test_a_cell_stands_in_the_group_of_its_sweep(
    folder: Path, group: str | None, sweep: str | None, expected: str
):
    settings = WandbConfig(group=group, tags=("a", "b"))
    found = run_payload(folder, settings, sweep)
    assert (found.group, found.tags) == (expected, ["a", "b"])


def test_the_config_says_what_ran_on_what(payload: Payload):
    assert payload.config["settings"]["criterion"] == {"name": "similarity", "tau": 0.5}
    assert payload.config["recorded"] == {
        "exp": {"name": "gsm_mini", "max_new_tokens": 8},
        "model": {"name": "tiny", "path": "tiny", "dtype": "fp32"},
        "data": {"path": "rows.jsonl", "fewshot_path": None},
        "seed": 0,
    }
    assert payload.config["environment"] == {"device": "cpu", "threads": 2}
    assert payload.config["layers"] == 4
    assert "somebody" not in json.dumps(asdict(payload))


@pytest.mark.parametrize(
    ("value", "left"),
    [
        ("/home/somebody/my models/llama", "llama"),
        ("~/models/llama", "llama"),
        ("model.path=/home/somebody/llama", "model.path=llama"),
        ("data.path='~/x/rows.jsonl'", "data.path='rows.jsonl'"),
        ("no readable /home/somebody/r/summary.json (gone)", "no readable summary.json (gone)"),
        ("HuggingFaceTB/SmolLM2-135M", "HuggingFaceTB/SmolLM2-135M"),
        ("../models/llama", "../models/llama"),
        ("https://host/a/b", "https://host/a/b"),
        ("5.0 / 30 or 1/2", "5.0 / 30 or 1/2"),
        (
            ["/home/somebody/x", {"a": ("/home/somebody/y", 1.5, None)}],
            ["x", {"a": ["y", 1.5, None]}],
        ),
    ],
)
def test_absolute_paths_lose_their_folders(value: object, left: object):
    assert portable(value) == left


def test_the_table_holds_one_row_per_sample(payload: Payload):
    table = payload.tables["samples"]
    first, second, third = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
    assert first == {
        "id": "q0",
        "correct": True,
        "extracted": "7",
        "finish_reason": "eos",
        "tokens_timed": 3,
        "prefill_ms": 125.0,
        "decode_ms_per_token": 20.0,
        "mean_exit_depth": 2.5,
        "completion": "text 0",
    }
    assert (second["correct"], second["extracted"]) == (None, None)
    assert third["mean_exit_depth"] == 4.0


def test_a_capped_table_says_so(folder: Path):
    capped = run_payload(folder, WandbConfig(table_rows=2))
    assert [row[0] for row in capped.tables["samples"].rows] == ["q0", "q1"]
    assert capped.summary["samples/in_table"] == (
        "the first 2 of 3 samples (logger.table_rows=2); all are in samples.jsonl of the run"
    )


def test_a_long_completion_is_cut_and_says_so(tmp_path: Path):
    folder = save(tmp_path / "run", [sample(0, completion="x" * (COMPLETION_CHARACTERS + 5))])
    text = run_payload(folder, SETTINGS).tables["samples"].rows[0][-1]
    assert text == "x" * COMPLETION_CHARACTERS + " [5 more characters]"


def test_only_the_samples_of_the_summary_are_shown(folder: Path):
    content = json.loads((folder / "summary.json").read_text("utf-8"))
    (folder / "summary.json").write_text(json.dumps({**content, "samples": 1}), "utf-8")
    assert len(run_payload(folder, SETTINGS).tables["samples"].rows) == 1


def test_each_depth_is_the_middle_of_its_bin(payload: Payload):
    assert payload.histograms == {
        "exit_depth/histogram": HistogramData([0, 3, 0, 0, 3], [-0.5, 0.5, 1.5, 2.5, 3.5, 4.5])
    }


def test_a_run_without_free_text_has_no_histogram(tmp_path: Path):
    none = {"mean": None, "layers": 4, "histogram": [0] * 5}
    folder = save(tmp_path / "run", [], exit_depth=none)
    payload = run_payload(folder, SETTINGS)
    assert (payload.histograms, payload.tables["samples"].rows) == ({}, [])


def test_a_single_step_has_no_time_per_token(tmp_path: Path):
    one = sample(0, exit_depths=[], exit_scores=[], decode_seconds=0.0)
    row = run_payload(save(tmp_path / "run", [one]), SETTINGS).tables["samples"].rows[0]
    assert row[6:8] == [None, None]


def test_the_digest_sees_new_figures_and_not_the_group(folder: Path, payload: Payload):
    assert run_payload(folder, SETTINGS, "grid-1").digest() == payload.digest()
    content = json.loads((folder / "summary.json").read_text("utf-8"))
    content["speedup"]["decode"]["matched"]["value"] = 1.51
    (folder / "summary.json").write_text(json.dumps(content), "utf-8")
    assert run_payload(folder, SETTINGS).digest() != payload.digest()


def test_an_unfinished_run_is_refused(folder: Path):
    (folder / "summary.json").unlink()
    with pytest.raises(UserError, match="not the folder of a finished run"):
        run_payload(folder, SETTINGS)
