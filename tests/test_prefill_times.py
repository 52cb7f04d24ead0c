"""Time to first token: prompts by hand, the order of the arms, and the command."""

from __future__ import annotations

import json

import pandas as pd
import pytest

import tiny_folder
from river_llm.decoding import FullQuant, NoExit, River
from river_llm.evaluation.prefill_times import prompt_of, time_prefills
from river_llm.exits import Fixed, Never
from tiny import LAYERS, make_executor, tiny_model

TEXTS = [[1, 2, 3], [4, 5], [6]]


@pytest.mark.parametrize(
    ("first", "length", "expected"),
    [
        (0, 2, [1, 2]),
        (0, 4, [1, 2, 3, 4]),
        (1, 3, [4, 5, 6]),
        (2, 5, [6, 1, 2, 3, 4]),
        (4, 2, [4, 5]),
    ],
)
def test_prompts_are_cut_and_joined_from_texts(first, length, expected):
    assert prompt_of(TEXTS, first, length) == expected


def test_every_arm_is_timed_once_a_round_on_the_rounds_prompt(rivers, monkeypatch):
    model = tiny_model("llama")
    decoders = {
        "no_exit": NoExit(*make_executor(model, Never(LAYERS), rivers)),
        "river": River(*make_executor(model, Fixed(LAYERS, 2), rivers)),
        "full_quant": FullQuant(*make_executor(model, Never(LAYERS), rivers)),
    }
    seen = []
    for name, decoder in decoders.items():
        plain = decoder.prefill

        def spied(prompts, name=name, plain=plain):
            seen.append((name, list(prompts[0])))
            return plain(prompts)

        monkeypatch.setattr(decoder, "prefill", spied)
    times = time_prefills(decoders, TEXTS, [2, 4], rounds=2)
    warm_up = [(name, [1, 2]) for name in decoders]
    # The second round starts one arm later and runs backwards.
    first = [(name, [1, 2]) for name in ("no_exit", "river", "full_quant")]
    second = [(name, [4, 5]) for name in ("no_exit", "full_quant", "river")]
    assert seen[:9] == [*warm_up, *first, *second]
    assert [len(prompt) for _, prompt in seen[9:]] == [4] * 9
    assert len(times) == 2 * 2 * 3
    assert times.groupby(["arm", "length"]).size().tolist() == [2] * 6
    assert (times["seconds"] > 0).all()
    depths = times.groupby("arm")["depth"].unique().map(list).to_dict()
    assert depths == {"no_exit": [LAYERS], "river": [2], "full_quant": [0]}


def test_the_command_leaves_a_record(commands, tmp_path):
    model = tiny_folder.save_llama(tmp_path / "tiny")
    overrides = [f"model.path={model}", "model.dtype=fp32", "exp=gsm_mini"]
    planned = ["criterion=fixed", "criterion.depth=1"]
    sizes = ["--lengths", "8,40", "--rounds", "3"]
    done = commands.run("scripts/measure_prefill.py", [*overrides, *planned, *sizes], tmp_path)
    assert done.status == 0, done.stderr
    folder = tmp_path / "results" / "analysis" / "prefill" / "gsm_mini-tiny"
    times = pd.read_parquet(folder / "times.parquet")
    points = json.loads((folder / "summary.json").read_text())["points"]
    assert len(times) == 4 * 2 * 3
    depths = {(p["arm"], p["length"]): p["depth"] for p in points}
    assert depths == {
        (arm, length): depth
        for length in (8, 40)
        for arm, depth in (
            ("no_exit", 3),
            ("full_quant", 0),
            ("river, prefill sequence", 1),
            ("river, prefill backbone", 3),
        )
    }
    one = times[(times["arm"] == "full_quant") & (times["length"] == 40)]
    told = next(p for p in points if (p["arm"], p["length"]) == ("full_quant", 40))
    assert told["median_ms"] == pytest.approx(1000 * one["seconds"].median())


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--lengths", "8,many"], "--lengths 8,many"),
        (["--rounds", "0"], "--rounds 0"),
        (["criterion=replay", "criterion.from_run=x"], "criterion=replay"),
    ],
)
def test_what_cannot_be_timed_is_told_in_a_line(arguments, word, commands, tmp_path):
    done = commands.run("scripts/measure_prefill.py", arguments, tmp_path)
    assert done.status == 2
    assert len(done.errors) == 1
    assert word in done.errors[0]
    assert list(tmp_path.iterdir()) == []
