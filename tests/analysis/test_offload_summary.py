"""What offloading cost, from invented records, against values worked out by hand."""

from __future__ import annotations

import pytest
from invented import fidelity, header, matched, record

from river_llm.analysis.offload import memory_words, predicted_memory, summarize_offload
from river_llm.analysis.report import terminal_summary
from river_llm.analysis.summary import summarize
from river_llm.errors import UserError

MIB = 2**20
SETTING = {"after": 2, "on_miss": "fetch", "layers": 4, "layer_bytes": 1000}
RECORDS = [
    record(id="a", exit_depths=[1, 2, 4], prefill_seconds=0.1),
    record(id="b", exit_depths=[3], prefill_seconds=0.3),
]
FETCHES = {
    "a": {
        "id": "a",
        "prefill_fetched": 2,
        "missed": [0, 0, 1],
        "fetched": [0, 0, 2],
        "step_seconds": [0.001, 0.002, 0.009],
    },
    "b": {
        "id": "b",
        "prefill_fetched": 1,
        "missed": [1],
        "fetched": [1],
        "step_seconds": [0.004],
    },
}
MEMORY = {
    "backbone_bytes": 20 * MIB,
    "staging_bytes": 2 * MIB,
    "river_bytes": 5 * MIB,
    "scratch_bytes": MIB,
    "shared_bytes": 10 * MIB,
    "head_bytes": 0,
    "kv_bytes": 2 * MIB,
    "tensor_bytes": 41 * MIB,
}


def test_misses_fetches_and_times_by_hand():
    found = summarize_offload(SETTING, RECORDS, FETCHES, MEMORY)
    assert found["decode_steps"] == 4
    assert found["miss_rate"] == 0.5
    assert (found["fetched_layers"], found["fetched_bytes"]) == (3, 3000)
    # Of 1, 2, 4, 9 ms: the middle of 2 and 4; p99 lies 0.97 of the way from 4 to 9.
    assert found["step_ms"] == {"median": pytest.approx(3.0), "p99": pytest.approx(8.85)}
    assert found["prefill"]["fetched_layers"] == 3
    assert found["prefill"]["fetched_bytes"] == 3000
    assert found["prefill"]["ms"]["median"] == pytest.approx(200)


def test_a_token_that_was_held_back_counts_as_a_miss():
    nothing = {
        key: {**row, "missed": [0] * len(row["missed"]), "fetched": [0] * len(row["fetched"])}
        for key, row in FETCHES.items()
    }
    records = [record(id="a", exit_depths=[1, 2, 2]), record(id="b", exit_depths=[2])]
    found = summarize_offload({**SETTING, "on_miss": "exit_at_k"}, records, nothing, MEMORY)
    assert (found["miss_rate"], found["fetched_layers"]) == (0.75, 0)


def test_what_stays_in_memory_is_a_sum():
    memory = predicted_memory(MEMORY)
    assert memory == {
        "full_quant_bytes": 18 * MIB,
        "resident_bytes": 20 * MIB,
        "staging_bytes": 2 * MIB,
        "predicted_bytes": 40 * MIB,
        "measured_bytes": 41 * MIB,
    }
    words = memory_words({"after": 2, "memory": memory})
    assert words == (
        "18.0 full_quant + 20.0 layers 0..1 + 2.0 two staging layers = 40.0 MiB; tensors of its "
        "own process 41.0 (+2.5%)"
    )
    unmeasured = predicted_memory({**MEMORY, "tensor_bytes": None})
    assert memory_words({"after": 0, "memory": unmeasured}).endswith("= 40.0 MiB")


def test_without_steps_there_is_no_rate():
    row = {"id": "a", "prefill_fetched": 2, "missed": [], "fetched": [], "step_seconds": []}
    found = summarize_offload(SETTING, [record(id="a", exit_depths=[])], {"a": row}, MEMORY)
    assert found["miss_rate"] is None
    assert found["step_ms"] == {"median": None, "p99": None}


@pytest.mark.parametrize("fetches", [{"a": FETCHES["a"]}, {**FETCHES, "b": FETCHES["a"]}])
def test_a_sample_without_its_line_is_told(fetches):
    with pytest.raises(UserError, match="lacks what sample b fetched"):
        summarize_offload(SETTING, RECORDS, fetches, MEMORY)


def test_the_terminal_shows_the_rate_and_the_sum():
    offload = summarize_offload(SETTING, RECORDS, FETCHES, MEMORY)
    more = {"fidelity": fidelity(), "speedup": {"decode": {"matched": matched(1.8)}}}
    text = terminal_summary(summarize(RECORDS, header=header(offload=offload, **more)))
    lines = text.splitlines()
    assert "miss rate 50.0 %, 0.75 fetched a step" in " ".join(text.split())
    assert "18.0 full_quant + 20.0 layers 0..1 + 2.0 two staging layers = 40.0 MiB" in " ".join(
        text.split()
    )
    assert len(lines) <= 23
    assert all(len(line) <= 80 for line in lines)
    without = summarize(RECORDS, header=header())
    assert without["offload"] is None
    assert "offload" not in terminal_summary(without)
