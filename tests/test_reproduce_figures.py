"""`scripts/reproduce_figures.py` from the outside: what fails, what goes on, what is kept."""

from __future__ import annotations

import json
import re
import runpy

from command import ROOT
from river_llm.evaluation.run import code_mark

SCRIPT = "scripts/reproduce_figures.py"
PICTURES = ("fig2_exit_depths", "fig3_equal_score", "fig7_kv_similarity", "time_to_first_token")


def test_a_failing_part_is_named_and_made_by_the_next_call(commands, model, tmp_path):
    overrides = [f"model.path={model}", "model.dtype=fp32", "exp=gsm_mini", "engine=eager"]
    small = [*overrides, "speedup.prompts=1", "speedup.tokens=4", "--samples", "2", "--tokens", "6"]
    # The model's context is far shorter, so nothing can be timed at this length.
    done = commands.run(SCRIPT, [*small, "--lengths", "8,99999"], tmp_path)
    assert done.status == 2
    assert "time to first token: FAILED with status 2" in done.stderr
    assert done.errors[-1].startswith(
        "error: 2 parts failed: time to first token, time_to_first_token;"
    )
    pictures = tmp_path / "results" / "figures" / "gsm_mini-llama"
    assert sorted(path.name for path in pictures.iterdir()) == sorted(
        f"{name}.{kind}" for name in PICTURES[:3] for kind in ("png", "svg", "pdf")
    )
    kv = tmp_path / "results" / "analysis" / "kv" / "gsm_mini-llama" / "summary.json"
    made = kv.stat().st_mtime_ns
    assert json.loads(kv.read_text())["samples"] == 2

    again = commands.run(SCRIPT, [*small, "--lengths", "8,40"], tmp_path)
    assert again.status == 0, again.stderr
    for name in ("oracle depth", "kv similarity"):
        assert f"{name}: there already" in again.stderr
    assert "cells, 0 of them finished before" in done.stderr
    assert re.search(r"(\d+) cells, \1 of them finished before", again.stderr)
    assert kv.stat().st_mtime_ns == made
    assert again.stdout.split() == [
        f"results/figures/gsm_mini-llama/{name}.{kind}"
        for name in PICTURES
        for kind in ("png", "svg", "pdf")
    ]


def test_a_record_is_kept_only_with_the_same_settings_and_commit(tmp_path):
    script = runpy.run_path(str(ROOT / SCRIPT))
    record = tmp_path / "summary.json"
    part = script["Part"]("kv", ("x.py",), record, {"overrides": ["limit=2"], "tokens": 6})
    assert not script["is_made"](part), "nothing there"
    kept = {"commit": code_mark(), "made_by": {"overrides": ["limit=2"], "tokens": 6}}
    for content, expected in (
        (kept, True),
        ({**kept, "commit": "another"}, False),
        ({**kept, "made_by": {"overrides": ["limit=2"], "tokens": 5}}, False),
        ({"commit": code_mark()}, False),
    ):
        record.write_text(json.dumps(content))
        assert script["is_made"](part) is expected
    record.write_text('{"commit": ')
    assert not script["is_made"](part), "half a file"


def test_drawing_alone_makes_no_record(commands, tmp_path):
    done = commands.run(SCRIPT, ["--draw-only"], tmp_path)
    assert done.status == 2
    assert f"4 parts failed: {', '.join(PICTURES)}" in done.errors[-1]
    assert len(done.errors) == 5
    assert list(tmp_path.iterdir()) == []


def test_a_bad_override_is_told_in_a_line(commands, tmp_path):
    done = commands.run(SCRIPT, ["exp=gsm9k"], tmp_path)
    assert done.status == 2
    assert len(done.errors) == 1
    assert "gsm9k" in done.errors[0]
