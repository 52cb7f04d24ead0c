"""Figures, table and picture of a decode benchmark, from invented passes."""

from __future__ import annotations

import pytest

from river_llm.analysis.bench_figures import arm_figures, clocks_apart, impossible, pass_figures
from river_llm.analysis.bench_plot import decode_figure, decode_plot
from river_llm.analysis.bench_table import bench_report, bench_table, linear_table

KINDS = {"backbone": 6e6, "river": 0.0, "head": 3e6, "kv": 0.5e6, "other": 0.5e6}


def record(seconds, kinds=None, **more):
    return {"seconds": seconds, "bytes": kinds, "prefill_seconds": 0.25, **more}


def figures(**arms):
    named = {name.replace("_at_", "@").replace("_on_", "/"): arm for name, arm in arms.items()}
    return arm_figures(named, steps=4, gb_per_s=10.0)


LINE = {
    "model": "tiny",
    "engine": "compiled",
    "threads": 2,
    "bandwidth_gb_per_s": 10.0,
    "compile_seconds": 61.25,
    "rounds": 3,
    "steps": 4,
    "context": 64,
    "hf_alone": None,
}


def test_ms_per_token_is_a_median_with_quartiles():
    """Passes of 4 steps in 8, 12, 16, 40 and 400 ms."""
    assert pass_figures([0.016, 0.008, 0.4, 0.012, 0.04], 4) == {
        "q1": pytest.approx(3.0),
        "ms_per_token": pytest.approx(4.0),
        "q3": pytest.approx(10.0),
    }


def test_the_bound_is_the_time_to_read_all_bytes():
    """10 MB at 10 GB/s take 1 ms; read in 4 ms, that is 2.5 GB/s."""
    arm = figures(no_exit=record([0.016] * 3, KINDS))["no_exit"]
    assert arm["bytes"] == {**KINDS, "total": 10e6}
    assert arm["bound_ms"] == pytest.approx(1.0)
    assert arm["bound_share"] == pytest.approx(0.25)
    assert arm["gb_per_s"] == pytest.approx(2.5)
    assert arm["prefill_ms"] == 250.0


def test_unknown_bytes_have_no_bound():
    arm = figures(no_exit=record([0.016] * 3))["no_exit"]
    assert arm["bytes"] is arm["bound_ms"] is arm["bound_share"] is arm["gb_per_s"] is None


def test_ratios_are_medians_of_the_rounds_own_ratios():
    """River takes 0.5, 0.5 and 2 of no_exit's time; the medians alone would say 1."""
    arms = figures(
        no_exit=record([1.0, 4.0, 2.0]),
        river_at_3=record([0.5, 2.0, 4.0]),
        hf_generate=record([2.0, 4.0, 8.0]),
    )
    river = arms["river@3"]
    assert (river["vs_no_exit_q1"], river["vs_no_exit"], river["vs_no_exit_q3"]) == (
        0.5,
        0.5,
        1.25,
    )
    assert river["vs_hf"] == 0.5
    assert arms["no_exit"]["vs_no_exit"] == arms["hf_generate"]["vs_hf"] == 1.0
    # 2/1, 4/4 and 8/2.
    assert arms["hf_generate"]["vs_no_exit"] == 2.0


def test_the_eager_reference_is_no_exit_itself_where_there_is_no_other():
    compiled = figures(no_exit=record([1.0]), no_exit_on_eager=record([4.0]))
    assert compiled["no_exit"]["vs_eager"] == 0.25
    assert figures(no_exit=record([1.0]), mask_at_3=record([0.5]))["mask@3"]["vs_eager"] == 0.5


def test_a_reference_that_was_not_timed_gives_no_ratio():
    arm = figures(no_exit=record([1.0]))["no_exit"]
    assert arm["vs_hf"] is arm["vs_hf_q1"] is arm["vs_hf_q3"] is None


def test_what_was_recorded_beside_the_times_is_kept():
    arm = figures(hf_generate=record([1.0], cache="static"))["hf_generate"]
    assert arm["cache"] == "static"
    assert "seconds" not in arm


def test_reading_faster_than_the_memory_is_impossible():
    """4 ms at 10 GB/s read 40 MB."""
    arms = figures(
        no_exit=record([0.016], {**KINDS, "kv": 30.5e6}),
        mask_at_1=record([0.016], {**KINDS, "kv": 90e6}),
        river_at_1=record([0.016], {**KINDS, "kv": 31e6}),
        llama_cpp=record([0.016]),
    )
    assert arms["no_exit"]["bound_share"] == pytest.approx(1.0)
    assert impossible(arms) == ["mask@1", "river@1"]


def passes(seconds, tests, **more):
    return record(seconds, KINDS, mean_tests=tests, **more)


def test_an_exit_test_costs_what_a_tested_round_took_more_than_no_exits():
    """4 steps of 5 tests: 20, 60 and 40 us more in a round are 1, 3 and 2 us a test.

    Paired round by round; the medians of the seconds alone would say another cost.
    """
    arms = arm_figures(
        {
            "no_exit": passes([0.016, 0.016, 0.020], 0.0, mean_depth=6.0),
            "no_exit~2": passes([0.016020, 0.016060, 0.020040], 5.0, mean_depth=6.0),
            "river@3": passes([0.008] * 3, 0.0, mean_depth=3.0),
            "river~2": passes([0.016] * 3, 5.0, mean_depth=6.0),
        },
        steps=4,
        gb_per_s=10.0,
    )
    cost = arms["no_exit~2"]
    assert cost["test_us"] == pytest.approx(2.0)
    assert (cost["test_us_q1"], cost["test_us_q3"]) == pytest.approx((1.5, 2.5))
    # 3 tests of 2 us in a step of 2 ms.
    assert arms["river@3"]["test_share"] == pytest.approx(0.003)
    assert "test_share" not in arms["river~2"]
    text = bench_report(LINE, {64: arms})
    assert "Exit test: 2.0 [1.5, 2.5] us each (no_exit~2 less no_exit); 0.3% of a step" in text


def test_without_no_exit_beside_it_a_test_has_no_cost():
    arms = arm_figures({"no_exit~2": passes([0.1], 5.0)}, steps=4, gb_per_s=10.0)
    assert "test_us" not in arms["no_exit~2"]


def test_clocks_that_differ_by_more_than_5_percent_are_flagged():
    arms = figures(
        no_exit=record([0.016], device_share=0.96),
        full_quant=record([0.016], device_share=0.94),
        hf_generate=record([0.016], cache="static"),
        river_at_1=record([0.016], device_share=None),
        river_at_3=record([0.016], device_share=1.06),
    )
    assert clocks_apart(arms) == {"full_quant": 0.94, "river@3": 1.06}
    text = bench_report(LINE, {64: arms})
    assert "CLOCKS APART: full_quant took 0.940 of the wall clock's time" in text
    assert text.count("CLOCKS APART") == 2


def test_the_linears_alone_have_a_table_of_their_own():
    linears = {
        "backbone": {"mlp.up_proj": {"rows": 96, "columns": 64, "gb_per_s": 12.25}},
        "river": {"mlp.up_proj": {"rows": 96, "columns": 64, "gb_per_s": 8.0}},
    }
    (row,) = linear_table(linears).splitlines()[2:]
    assert cells(row) == ["mlp.up_proj", "96 x 64", "12.2", "8.0"]
    text = bench_report({**LINE, "linears": linears}, {64: some_arms()})
    assert "| river GB/s" in text


def test_dropped_arms_and_dequantized_ones_are_told():
    arms = figures(
        no_exit=record([0.016], backends={}),
        full_quant=record([0.016], backends={"dequantized": 7}),
        river_at_1=record([0.016], backends={"int4_cpu": 7}),
    )
    names = [cells(row)[0] for row in bench_table(arms).splitlines()[2:]]
    assert names == ["no_exit", "full_quant (dequantized)", "river@1"]
    assert "since time was up: mask@1, river@8" in bench_report(
        {**LINE, "dropped": ["mask@1", "river@8"]}, {64: arms}
    )


def cells(row):
    return [cell.strip() for cell in row.strip("|").split("|")]


def some_arms():
    return figures(
        hf_generate=record([0.032] * 3, KINDS, cache="static"),
        no_exit=record([0.016] * 3, KINDS, mean_depth=5.0),
        river_at_0=record([0.008] * 3, KINDS, mean_depth=0.0),
        river_at_3=record([0.010] * 3, KINDS, mean_depth=3.0),
        recompute_at_3=record([0.011] * 3, None, mean_depth=3.0),
        llama_cpp=record([0.009] * 3, KINDS),
    )


def test_the_table_has_a_row_for_each_arm():
    rows = bench_table(some_arms()).splitlines()
    assert [cells(row)[0] for row in rows[2:]] == [
        "hf_generate (static cache)",
        "no_exit",
        "river@0",
        "river@3",
        "recompute@3",
        "llama_cpp",
    ]
    assert cells(rows[3]) == [
        "no_exit",
        "4.00 [4.00, 4.00]",
        "1.00",
        "0.250",
        "2.5",
        "10.0",
        "6.0/0.0/3.0/0.5/0.5",
        "250",
        "1.000",
        "1.000",
        "0.500",
    ]
    assert cells(rows[6])[2:7] == ["n/a"] * 5
    assert len({len(row) for row in rows}) == 1
    assert set(rows[1]) == set("|-: ")


def test_the_report_tells_what_holds_for_all_arms():
    alone = {"cache": "static", "ms_per_token": 8.0, "q1": 7.0, "q3": 9.0}
    line = {**LINE, "hf_alone": {**alone, "hf_generate_ratio": 1.02}}
    text = bench_report(line, {64: some_arms()})
    assert text.startswith("tiny, engine compiled, 2 threads, memory read at 10.0 GB/s, 61.2 s")
    assert "Context 64, 3 rounds of 4 decode steps" in text
    assert "8.00 [7.00, 9.00] ms/token; hf_generate took 1.020 of that" in text
    several = {
        **line,
        "contexts": {"64": {"hf_alone": None}, "512": {"hf_alone": line["hf_alone"]}},
    }
    text = bench_report(several, {64: some_arms(), 512: some_arms()})
    assert text.index("Context 64") < text.index("Context 512") < text.index("of that")
    assert text.count("of that") == 1


def test_the_picture_joins_rivers_planned_depths_with_no_exit_and_bounds_them():
    arms = some_arms()
    fig = decode_figure({64: arms, 512: arms}, 5, "tiny")
    assert len(fig.axes) == 2
    for axes in fig.axes:
        river, bound = axes.lines[:2]
        assert list(river.get_xdata()) == [0.0, 3.0, 5.0]
        assert list(river.get_ydata()) == pytest.approx([2.0, 2.5, 4.0])
        assert list(bound.get_ydata()) == pytest.approx([1.0] * 3)
        texts = {text.get_text() for text in axes.texts}
        assert {
            "no_exit 4.0",
            "river@3 2.5",
            "recompute@3 2.8",
            "transformers generate, static cache: 8.0",
            "llama.cpp: 2.2",
        } <= texts


def test_the_picture_is_a_file(tmp_path):
    path = tmp_path / "new" / "decode.png"
    decode_plot({64: figures(no_exit=record([0.016], KINDS, mean_depth=5.0))}, 5, "tiny", path)
    assert path.read_bytes().startswith(b"\x89PNG")
