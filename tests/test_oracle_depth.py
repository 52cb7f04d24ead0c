"""Oracle depth against tables worked out by hand and against transformers' hidden states."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.colors import to_rgba

import tiny_folder
from command import Commands
from river_llm.analysis.depth_plot import FIRST_HIT, ORACLE, depth_histogram_figure
from river_llm.decoding import NoExit
from river_llm.errors import UserError
from river_llm.evaluation.oracle_depth import (
    PredictionRecorder,
    depth_frame,
    oracle_depths,
    summarize_depths,
)
from river_llm.evaluation.traffic import Traffic
from river_llm.exits import Never
from river_llm.models.adapter import BackboneAdapter
from tiny import COPIED, LAYERS, OTHER_PROMPT, PROMPT, make_executor, run, tiny_model

STEPS = 40

# Predictions at depths 1..5 of one step, oracle depth, first-hit depth.
BY_HAND = {
    "predicted at 2, lost at 3, again from 4 on": ([1, 9, 3, 9, 9], 4, 2),
    "never another token": ([9, 9, 9, 9, 9], 1, 1),
    "the last layer alone": ([1, 1, 1, 1, 9], 5, 5),
    "from 3 on": ([1, 1, 9, 9, 9], 3, 3),
    "lost by the last layer but one": ([9, 9, 9, 1, 9], 5, 1),
    "long held, but another token than the last": ([4, 4, 4, 4, 0], 5, 5),
    "token 0": ([0, 7, 0, 0, 0], 3, 1),
}


@pytest.mark.parametrize("case", BY_HAND)
def test_both_depths_by_hand(case):
    predicted, oracle, first_hit = BY_HAND[case]
    assert oracle_depths(np.array([predicted])) == (oracle, first_hit)


def test_steps_do_not_touch_each_other():
    predicted, oracle, first_hit = zip(*BY_HAND.values(), strict=True)
    found = oracle_depths(np.array(predicted))
    assert tuple(found[0]) == oracle
    assert tuple(found[1]) == first_hit


def recorder_of(model, cache) -> PredictionRecorder:
    return PredictionRecorder(*make_executor(model, Never(LAYERS), cache, COPIED))


def from_transformers(model, text: list[int]) -> np.ndarray:
    """The most likely token after every layer, [tokens, L], from transformers' own states."""
    model = copy.deepcopy(model)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        out = model(torch.tensor([text]), output_hidden_states=True)
        # transformers' last state is normed already; its logits stand for depth L.
        below = [model.lm_head(model.model.norm(h)) for h in out.hidden_states[1:LAYERS]]
    return torch.stack([logits[0].argmax(-1) for logits in (*below, out.logits)], dim=1).numpy()


@pytest.mark.parametrize("kind", ["llama", "llama_bias", "qwen2", "qwen3"])
def test_depths_are_those_of_transformers_states_along_no_exits_text(kind, rivers):
    model = tiny_model(kind)
    recorder = recorder_of(model, rivers)
    found, expected = [], []
    for prompt in (PROMPT, OTHER_PROMPT):
        tokens = run(recorder, [prompt], STEPS + 1)[0][0]
        found.append(recorder.predictions())
        # The steps feed the tokens emitted before them; the prompt's predictions are left out.
        states = from_transformers(model, prompt + tokens[:-1])[len(prompt) :]
        assert tokens[1:] == states[:, -1].tolist()
        expected.append(states)
    table = np.concatenate(expected)
    assert np.array_equal(np.concatenate(found), table)

    slow_oracle, slow_first_hit = [], []
    for row in table.tolist():
        hits = [depth for depth in range(1, LAYERS + 1) if row[depth - 1] == row[-1]]
        slow_first_hit.append(hits[0])
        slow_oracle.append(
            min(d for d in hits if all(deeper in hits for deeper in range(d, LAYERS + 1)))
        )
    oracle, first_hit = oracle_depths(np.concatenate(found))
    assert oracle.tolist() == slow_oracle
    assert first_hit.tolist() == slow_first_hit
    assert len(set(slow_oracle)) >= 2, "depths that differ"


def test_recording_changes_no_token_and_no_logit(rivers):
    model = tiny_model("qwen2")
    no_exit = NoExit(*make_executor(model, Never(LAYERS), rivers, COPIED))
    recorder = recorder_of(model, rivers)
    tokens, logits, depths = run(recorder, [PROMPT], 8)
    expected = run(no_exit, [PROMPT], 8)
    assert tokens == expected[0]
    assert torch.equal(logits, expected[1])
    assert depths == [LAYERS] * 7


def test_a_step_reads_the_host_for_its_token_alone(rivers):
    recorder = recorder_of(tiny_model("llama"), rivers)
    recorder.prefill([PROMPT])
    before = recorder.executor.reads
    for _ in range(6):
        recorder.step()
    assert recorder.executor.reads - before == 6
    assert recorder.predictions().shape == (6, LAYERS)
    assert recorder.executor.reads - before == 7


def test_a_text_without_decode_steps_has_no_predictions(rivers):
    recorder = recorder_of(tiny_model("llama"), rivers)
    run(recorder, [PROMPT], 3)
    recorder.prefill([OTHER_PROMPT])
    assert recorder.predictions().shape == (0, LAYERS)


PREDICTED = {
    "a": np.array([[1, 9, 3, 9, 9], [1, 1, 1, 1, 9]]),  # oracle 4, 5; first hit 2, 5
    "empty": np.empty((0, LAYERS), dtype=np.int64),
    "b": np.array([[0, 7, 0, 0, 0]]),  # oracle 3; first hit 1
}


def test_the_frame_has_a_row_for_each_step():
    frame = depth_frame(PREDICTED)
    assert frame.to_dict("list") == {
        "id": ["a", "a", "b"],
        "step": [0, 1, 0],
        "oracle_depth": [4, 5, 3],
        "first_hit_depth": [2, 5, 1],
    }


@pytest.mark.parametrize("predicted", [{}, {"empty": PREDICTED["empty"]}])
def test_no_decode_steps_are_refused(predicted):
    with pytest.raises(UserError, match="no decode steps"):
        depth_frame(predicted)


def test_the_summary_by_hand():
    traffic = Traffic(BackboneAdapter(tiny_model("llama")), None)
    lengths = {"a": 7, "empty": 50, "b": 20}
    summary = summarize_depths(depth_frame(PREDICTED), LAYERS, traffic, lengths)
    assert (summary["samples"], summary["steps"], summary["layers"]) == (2, 3, LAYERS)
    oracle, first_hit = summary["oracle_depth"], summary["first_hit_depth"]
    assert oracle["mean"] == 4.0
    assert oracle["histogram"] == [0, 0, 0, 1, 1, 1]
    assert oracle["below_full"] == pytest.approx(2 / 3)
    # Resampled texts: a alone gives 9/2, b alone 3.
    assert (oracle["low"], oracle["high"]) == (3.0, 4.5)
    assert first_hit["mean"] == pytest.approx(8 / 3)
    assert first_hit["histogram"] == [0, 1, 1, 0, 0, 1]
    assert first_hit["below_full"] == pytest.approx(2 / 3)
    # fp32: 30720 weights and two norms of 64 in a layer, keys and values of 2 heads of 16 a slot;
    # read at any depth: one embedding row, final norm, head of 97 rows.
    extents, ends = (8, 9, 21), 64 + 64 + 97 * 64

    def elements(depths: tuple[int, int, int]) -> int:
        layer_steps = zip(depths, extents, strict=True)
        return sum(ends + d * (30720 + 128 + 64 * extent) for d, extent in layer_steps)

    full = elements((5, 5, 5))
    assert oracle["bound_speedup"] == pytest.approx(full / elements((4, 5, 3)))
    assert first_hit["bound_speedup"] == pytest.approx(full / elements((2, 5, 1)))


def test_the_picture_shows_shares_of_steps_at_their_depths():
    fig = depth_histogram_figure([0, 1, 0, 3], [0, 2, 2, 0], "four steps")
    (axes,) = fig.axes
    heights = {}
    for bars in axes.containers:
        color = bars.patches[0].get_facecolor()
        places = [round(bar.get_x() + bar.get_width() / 2) for bar in bars]
        heights[color] = dict(zip(places, [bar.get_height() for bar in bars], strict=True))
    assert heights == {
        to_rgba(ORACLE): {1: 25, 2: 0, 3: 75},
        to_rgba(FIRST_HIT): {1: 50, 2: 50, 3: 0},
    }
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert [label.split()[-1] for label in labels] == ["1.5", "2.5"]


def test_a_picture_of_nothing_is_refused():
    with pytest.raises(UserError, match="no decode steps"):
        depth_histogram_figure([0, 0], [0, 0], "nothing")


# --- the command --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    cache = tmp_path_factory.mktemp("cache")
    environment = {"RIVER_LLM_CACHE": str(cache), "CUDA_VISIBLE_DEVICES": ""}
    server = Commands(tmp_path_factory.mktemp("output"), environment)
    yield server
    server.close()


def test_the_command_leaves_table_summary_and_picture(commands, tmp_path):
    model = tiny_folder.save_llama(tmp_path / "tiny")
    overrides = [f"model.path={model}", "model.dtype=fp32", "exp=gsm_mini"]
    done = commands.run(
        "scripts/analyze_depth.py", [*overrides, "--tokens", "6", "limit=2"], tmp_path
    )
    assert done.status == 0, done.stderr
    folder = tmp_path / "results" / "analysis" / "oracle_depth" / "gsm_mini-tiny"
    summary = json.loads((folder / "summary.json").read_text())
    steps = pd.read_parquet(folder / "steps.parquet")
    # Texts use up their budget: 6 tokens are 5 decode steps.
    assert steps["step"].tolist() == [0, 1, 2, 3, 4] * 2
    assert steps["id"].tolist() == ["gsm_mini/01"] * 5 + ["gsm_mini/02"] * 5
    assert (steps["first_hit_depth"] <= steps["oracle_depth"]).all()
    assert (summary["samples"], summary["steps"], summary["layers"]) == (2, 10, 3)
    assert summary["oracle_depth"]["mean"] == pytest.approx(steps["oracle_depth"].mean())
    assert summary["exp"] == "gsm_mini"
    assert summary["settings"]["max_new_tokens"] == 6
    assert "commit" in summary
    assert (folder / "depths.png").read_bytes().startswith(b"\x89PNG")
    assert f"mean {steps['oracle_depth'].mean():.2f} of 3" in done.stdout
    assert not (tmp_path / "results" / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["method=river"], "method=river"),
        (["exp=gsm_mini", "--tokens", "1"], "--tokens 1"),
        (["exp=gsm9k"], "gsm9k"),
    ],
)
def test_what_cannot_be_measured_is_told_in_a_line(arguments, word, commands, tmp_path: Path):
    done = commands.run("scripts/analyze_depth.py", arguments, tmp_path)
    assert done.status == 2
    assert len(done.errors) == 1
    assert word in done.errors[0]
    assert list(tmp_path.iterdir()) == []
