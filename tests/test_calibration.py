"""Thresholds from measured similarities, against hand counts and transformers' hidden states."""

from __future__ import annotations

import copy
import itertools

import numpy as np
import pytest
import torch

from river_llm.calibration import ScoreRecorder, mean_depth, measure_scores, tau_for_mean_depth
from river_llm.decoding import NoExit
from river_llm.exits import Fixed, Never, Similarity
from tiny import COPIED, LAYERS, OTHER_PROMPT, PROMPT, make_executor, run, tiny_model

STEPS = 6


def recorder_of(model, cache, criterion=None):
    criterion = criterion or Similarity(LAYERS, tau=0.5)
    return ScoreRecorder(*make_executor(model, criterion, cache, COPIED))


def cosines(model, text: list[int]) -> np.ndarray:
    """From transformers' own hidden states: [tokens, L-1], column d-1 for the exit at depth d."""
    model = copy.deepcopy(model)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        states = model(torch.tensor([text]), output_hidden_states=True).hidden_states
    columns = []
    for before, after in itertools.pairwise(states[:LAYERS]):
        a, b = before[0].double(), after[0].double()
        columns.append((a * b).sum(-1) / a.norm(dim=-1) / b.norm(dim=-1))
    return torch.stack(columns, dim=1).numpy()


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_scores_are_the_cosines_of_transformers_states_along_no_exits_text(kind, rivers):
    model = tiny_model(kind)
    prompts = [PROMPT, OTHER_PROMPT]
    scores = measure_scores(recorder_of(model, rivers), prompts, STEPS)
    assert scores.shape == (2 * STEPS, LAYERS - 1)
    for row, prompt in enumerate(prompts):
        no_exit = NoExit(*make_executor(model, Never(LAYERS), rivers, COPIED))
        tokens = run(no_exit, [prompt], STEPS + 1)[0][0]
        # The steps feed the tokens emitted before them; the prompt's own scores are left out.
        expected = cosines(model, prompt + tokens[:-1])[len(prompt) :]
        assert np.allclose(scores[row * STEPS : (row + 1) * STEPS], expected, atol=1e-5)
    assert scores.std() > 0.05, "scores that differ"


@pytest.mark.parametrize("tau", [-1.01, 0.3, 1.01])
def test_the_recorder_never_exits(tau, rivers):
    model = tiny_model("qwen2")
    recorder = recorder_of(model, rivers, Similarity(LAYERS, tau))
    no_exit = NoExit(*make_executor(model, Never(LAYERS), rivers, COPIED))
    tokens, logits, depths = run(recorder, [PROMPT], 8)
    expected = run(no_exit, [PROMPT], 8)
    assert tokens == expected[0]
    assert torch.equal(logits, expected[1])
    assert depths == [LAYERS] * 7


@pytest.mark.parametrize("criterion", [Never(LAYERS), Fixed(LAYERS, 2)])
def test_a_criterion_without_a_score_is_refused(criterion, rivers):
    with pytest.raises(TypeError, match="score"):
        measure_scores(recorder_of(tiny_model("llama"), rivers, criterion), [PROMPT], 2)


def test_a_second_measurement_holds_its_own_steps_alone(rivers):
    recorder = recorder_of(tiny_model("llama"), rivers)
    measure_scores(recorder, [PROMPT], 3)
    assert measure_scores(recorder, [OTHER_PROMPT], 2).shape == (2, LAYERS - 1)


# Four steps of a model with 4 layers; scores at depths 1, 2, 3.
SCORES = np.array([[0.1, 0.2, 0.3], [0.6, 0.2, 0.9], [0.5, 0.8, 0.7], [0.4, 0.5, 0.6]])


@pytest.mark.parametrize(
    ("tau", "depths"),
    [
        (1.0, [4, 4, 4, 4]),
        (0.85, [4, 3, 4, 4]),
        (0.65, [4, 3, 2, 4]),
        # A score equal to tau does not exceed it: row 1 goes on to depth 3, row 2 to depth 2.
        (0.6, [4, 3, 2, 4]),
        (0.5, [4, 1, 2, 3]),
        (0.45, [4, 1, 1, 2]),
        (0.2, [3, 1, 1, 1]),
        (0.0, [1, 1, 1, 1]),
    ],
)
def test_mean_depth_by_hand(tau, depths):
    assert mean_depth(SCORES, tau) == sum(depths) / 4


@pytest.mark.parametrize("wanted", [1.0, 1.3, 1.5, 1.75, 2.1, 2.6, 3.2, 3.3, 3.8, 4.0])
def test_the_threshold_found_is_the_best_there_is(wanted):
    """Every threshold acts like one of the scores, so trying them all finds the best."""
    tau = tau_for_mean_depth(SCORES, wanted)
    best = min(abs(mean_depth(SCORES, score) - wanted) for score in np.unique(SCORES))
    assert abs(mean_depth(SCORES, tau) - wanted) == pytest.approx(best)


@pytest.mark.parametrize("wanted", [1.3, 3.0, 5.5, 8.0, 9.9])
def test_many_scores_give_the_wanted_depth_closely(wanted):
    scores = np.random.default_rng(0).uniform(0.2, 1.0, size=(800, 9))
    assert mean_depth(scores, tau_for_mean_depth(scores, wanted)) == pytest.approx(wanted, abs=0.02)


@pytest.mark.parametrize("width", [1e-2, 1e-4])
def test_scores_just_below_one_give_the_wanted_depth_as_well(width):
    """Deep models change a state by little: their similarities crowd below 1."""
    scores = 1 - width * np.random.default_rng(0).uniform(0.0, 1.0, size=(800, 9))
    for wanted in (1.3, 3.0, 5.5, 8.0):
        found = mean_depth(scores, tau_for_mean_depth(scores, wanted))
        assert found == pytest.approx(wanted, abs=0.02)


def test_a_depth_that_no_threshold_reaches_gives_the_nearest():
    scores = np.array([[0.5, 0.5]] * 4)
    assert mean_depth(scores, tau_for_mean_depth(scores, 2.9)) == 3.0
