"""What a method reaches at a fidelity target, and how its runs become points of named lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from invented import NOT_GRADED, fidelity, matched, summary
from light_script import run_light

from river_llm.analysis.operating_points import (
    all_points_frame,
    fastest_at,
    target,
    target_caption,
    target_frame,
)
from river_llm.analysis.points import OTHER_STRETCH, check_comparable, lines, operating_points
from river_llm.analysis.saved import MissingRun, saved_runs
from river_llm.errors import UserError

NAN = float("nan")


def run(
    agreement: float | None,
    speed: float | None,
    depth: float | None,
    *,
    method: str = "river",
    floor: float = 0.987,
    settings: dict[str, Any] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """A run of a 30-layer model at one operating point."""
    scores = fidelity(
        agreement,
        agreement_low=None if agreement is None else agreement - 0.01,
        agreement_high=None if agreement is None else agreement + 0.01,
        excess_nll_low=0.04,
        excess_nll_high=0.06,
        mean_depth=depth,
        noise_floor={"agreement": floor, "excess_nll": 0.0001},
    )
    given = {"engine": "eager", "dtype": "bf16", "prefill": "backbone", **(settings or {})}
    fields = {"method": method, "arm": method, "settings": given, "fidelity": scores}
    return summary(**{**fields, "speedup": matched(speed), **changes})


def tau(value: float, **changes: Any) -> dict[str, Any]:
    similarity = {"name": "similarity", "tau": value, "min_depth": 1, "max_depth": None}
    return {"criterion": {**similarity, **changes}}


def static(k: int) -> dict[str, Any]:
    return {"method": {"name": "static_first", "k": k}}


def no_exit() -> dict[str, Any]:
    return run(
        1.0, 1.01, 30.0, method="no_exit", fidelity=None, speedup={"decode": {"matched": None}}
    )


SWEEP = [
    no_exit(),
    # River: the slower of two points that reach 95 %, the faster of them, one that does not, and
    # one that never exits.
    run(0.98, 1.1, 25.0, settings=tau(0.99)),
    run(0.95, 1.3, 20.0, settings=tau(0.98)),
    run(0.93, 1.7, 8.0, settings=tau(0.9)),
    run(1.0, 1.9, 30.0, settings=tau(0.999)),
    # The only point of static_first that reaches it is at full depth.
    run(1.0, 1.0, 30.0, method="static_first", settings=static(30)),
    run(0.90, 1.8, 3.0, method="static_first", settings=static(3)),
    run(0.94, 1.5, 15.0, method="static_first", settings=static(15)),
]


def rows(summaries: list[dict[str, Any]]) -> dict[str, dict[str, str]]:
    frame = target_frame(operating_points(summaries))
    return {row["Method"]: row for row in frame.to_dict("records")}


def test_fastest_point_that_reaches_the_target_is_found() -> None:
    river = rows(SWEEP)["river, prefill backbone"]
    assert river == {
        "Method": "river, prefill backbone",
        "Target %": "95.0",
        "Reaches": "yes",
        "Setting": "tau=0.98",
        "Mean depth": "20.0 / 30",
        "Speedup [95%]": "1.30 [1.20, 1.40]",
        "Bound": "2.00",
        "Agreement % [95%]": "95.0 [94.0, 96.0]",
        "Excess NLL [95%]": "0.0500 [0.0400, 0.0600]",
    }


def test_a_method_that_reaches_it_at_full_depth_alone_cannot() -> None:
    static_row = rows(SWEEP)["static_first"]
    assert static_row["Reaches"] == "cannot at any point measured"
    # Its most faithful point below full depth, not its fastest one.
    assert static_row["Setting"] == "k=15"
    assert static_row["Agreement % [95%]"] == "94.0 [93.0, 95.0]"
    assert static_row["Speedup [95%]"] == "1.50 [1.40, 1.60]"


def test_no_exit_is_no_method_of_the_table() -> None:
    assert set(rows(SWEEP)) == {"river, prefill backbone", "static_first"}


def test_method_with_nothing_but_full_depth_says_so() -> None:
    row = rows([run(1.0, 1.2, 30.0)])["river, prefill backbone"]
    assert row["Reaches"] == "no point below full depth"
    assert row["Setting"] == row["Agreement % [95%]"] == "n/a"


def test_method_without_agreement_is_not_said_to_fail() -> None:
    row = rows([run(None, 1.2, 8.0), run(NAN, 1.2, 9.0)])["river, prefill backbone"]
    assert row["Reaches"] == "not run"


def test_point_that_reaches_it_without_gain_says_so() -> None:
    assert rows([run(0.96, 0.9, 20.0)])["river, prefill backbone"]["Reaches"] == (
        "yes, no faster than no_exit"
    )


def test_unmeasured_speed_is_the_slowest() -> None:
    row = rows([run(0.99, None, 20.0), run(0.96, 0.5, 25.0)])["river, prefill backbone"]
    assert row["Speedup [95%]"].startswith("0.50")
    alone = rows([run(0.99, None, 20.0)])["river, prefill backbone"]
    assert (alone["Reaches"], alone["Speedup [95%]"], alone["Bound"]) == ("yes", "not run", "n/a")


def test_target_is_the_noise_floor_where_that_is_lower() -> None:
    low = operating_points([run(0.91, 1.5, 8.0, floor=0.92), run(0.9, 1.6, 3.0, floor=0.9)])
    assert target(low) == 0.9
    assert fastest_at(low, target(low))[0] is True
    assert target(operating_points(SWEEP)) == 0.95
    assert target(operating_points([no_exit()])) == 0.95
    assert "tiny: not run" in target_caption(operating_points([no_exit()]))


def test_agreement_at_the_target_reaches_it_and_just_below_does_not() -> None:
    at, below = operating_points([run(0.95, 1.5, 8.0)]), operating_points([run(0.9499, 1.5, 8.0)])
    assert fastest_at(at, 0.95) == (True, at[0])
    assert fastest_at(below, 0.95) == (False, below[0])


def test_tasks_have_targets_of_their_own() -> None:
    other = run(0.91, 1.5, 8.0, floor=0.9, label="HumanEval")
    frame = target_frame(operating_points([*SWEEP, other]))
    assert list(frame[frame["Task"] == "HumanEval"]["Target %"]) == ["90.0"]
    assert set(frame[frame["Task"] == "GSM-mini"]["Target %"]) == {"95.0"}


def quantized(name: str, group_size: int) -> dict[str, Any]:
    return {"quant": {"name": name, "group_size": group_size}}


@pytest.mark.parametrize(
    ("method", "settings", "line", "setting", "label"),
    [
        ("river", {"prefill": "sequence", **tau(0.98765)}, "river, prefill sequence",
         "tau=0.98765", "τ=0.98765"),
        ("river", {"criterion": {"name": "confidence", "tau": 0.5, "min_depth": 3,
                                 "max_depth": 20}},
         "river, prefill backbone, confidence (reads the head at every tested layer)",
         "tau=0.5 min=3 max=20", "τ=0.5 min=3 max=20"),
        ("river", {"criterion": {"name": "fixed", "depth": 3}},
         "river, prefill backbone, planned depth", "depth=3", "d=3"),
        ("river", {"criterion": {"name": "never"}},
         "river, prefill backbone, planned depth", "depth=30", "d=30"),
        ("river", {"method": {"pool": "mean"}, **tau(0.5), **quantized("rtn_int4", 32)},
         "river, prefill backbone, pool mean, rtn_int4 g32", "tau=0.5", "τ=0.5"),
        ("river_shuffled", {"prefill": "sequence", "criterion": {"name": "replay"}},
         "river_shuffled", "replay of river-ab", "mean d=8.0"),
        ("static_ranked", {"method": {"k": 8}, **quantized("hqq_int4", 64)},
         "static_ranked", "k=8", "k=8"),
        ("quant_decode", quantized("hqq_int4", 64), "quant_decode", "", "quant_decode"),
        ("full_quant", quantized("hqq_int4", 64), "full_quant, hqq_int4 g64", "",
         "full_quant hqq_int4 g64"),
        ("full_quant", {"quant": {"name": "rtn_int8"}}, "full_quant, rtn_int8", "",
         "full_quant rtn_int8"),
        ("recompute", {"method": {"max_pending": 32, "restart": "exit"}, **tau(0.9)},
         "recompute, max_pending 32, restart at the exit", "tau=0.9", "τ=0.9"),
        ("mask", {"criterion": {"name": "fixed", "depth": 25}}, "mask, planned depth",
         "depth=25", "d=25"),
        ("mono_decreasing", {"method": {"form": "cap"}, **tau(0.9)}, "mono_decreasing",
         "tau=0.9", "τ=0.9"),
        ("mono_decreasing", {"method": {"form": "schedule", "most": None, "fewest": 4,
                                        "length": 64, "place": "skip_low"}},
         "mono_decreasing, schedule skip_low", "all to 4 in 64", "all to 4 in 64"),
    ],
)  # fmt: skip
def test_lines_and_settings_are_named(
    method: str, settings: dict[str, Any], line: str, setting: str, label: str
) -> None:
    arm = "river_shuffled replay of river-ab" if method == "river_shuffled" else method
    (point,) = operating_points([run(0.9, 1.5, 8.0, method=method, settings=settings, arm=arm)])
    assert (point.line, point.setting, point.label) == (line, setting, label)


def test_points_of_a_line_stand_by_rising_speed_and_lines_in_one_order() -> None:
    shuffled = [SWEEP[i] for i in (7, 3, 4, 0, 2, 6, 1, 5)]
    points = operating_points([*shuffled, run(0.9, None, 4.0, settings=tau(0.7))])
    found = {line: [point.setting for point in own] for line, own in lines(points).items()}
    assert found == {
        "no_exit": [""],
        "river, prefill backbone": ["tau=0.99", "tau=0.98", "tau=0.9", "tau=0.999", "tau=0.7"],
        "static_first": ["k=30", "k=15", "k=3"],
    }
    assert list(found) == ["no_exit", "river, prefill backbone", "static_first"]


def test_engine_is_named_only_where_runs_differ_in_it() -> None:
    compiled = run(0.9, 1.5, 8.0, settings={"engine": "compiled", **tau(0.9)})
    (alone,) = operating_points([compiled])
    assert alone.line == "river, prefill backbone"
    both = operating_points([compiled, run(0.9, 1.4, 8.0, settings=tau(0.9))])
    assert [point.line for point in both] == [
        "river, prefill backbone, compiled",
        "river, prefill backbone, eager",
    ]


def test_depth_is_that_of_the_steps_behind_the_agreement() -> None:
    given = run(0.9, 1.5, 7.5)
    given["speedup"] = matched(1.5, mean_depth=6.5)
    assert operating_points([given])[0].mean_depth == 7.5
    given["fidelity"]["mean_depth"] = None
    assert operating_points([given])[0].mean_depth == 6.5
    given["speedup"] = matched(1.5)
    assert operating_points([given])[0].mean_depth == 3.06  # of the free-running text


def test_table_of_all_points_has_every_run_and_names_what_is_missing() -> None:
    nameless = run(0.9, 1.5, 8.0, settings=tau(0.5), accuracy=NOT_GRADED, identity="0123")
    nameless["speedup"] = matched(1.5, low=None, high=None, flags=["spread above 5 %"])
    missing = [MissingRun("method=mask criterion.tau=0.5", "failed: no such model")]
    frame = all_points_frame(operating_points([no_exit(), nameless]), missing)
    assert list(frame["Method"]) == [
        "no_exit",
        "river, prefill backbone",
        "method=mask criterion.tau=0.5",
    ]
    reference, point, cell = frame.to_dict("records")
    assert (reference["Speedup [95%]"], reference["Agreement % [95%]"]) == ("1.00", "100.0")
    assert point["Speedup [95%]"] == "1.50 [no interval]"
    assert (point["Accuracy % [95%]"], point["Run"]) == ("not run", "0123")
    assert point["Note"] == "spread above 5 %"
    assert (cell["Speedup [95%]"], cell["Note"]) == ("n/a", "failed: no such model")


def save(folder: Path, content: dict[str, Any], name: str = "summary.json") -> Path:
    folder.mkdir(parents=True)
    (folder / name).write_text(json.dumps(content))
    return folder


def sweep(tmp_path: Path) -> Path:
    """A sweep of two runs, one of them in two cells, a failed cell and three without a run."""
    first = save(tmp_path / "first", SWEEP[0] | {"commits": ["abc"]})
    second = save(tmp_path / "second", SWEEP[2] | {"commits": ["abc", "def+changes"]})
    states = [
        ("finished", str(first), None),
        ("finished", str(second), None),
        ("finished", str(tmp_path / "second" / ".." / "second"), None),
        ("failed", None, "no such model"),
        ("waiting", None, None),
        ("finished", str(tmp_path / "gone"), None),
        ("finished", None, None),
    ]
    cells = [
        {"overrides": ["exp=a", f"n={i}"], "status": status, "run_dir": run_dir, "reason": reason}
        for i, (status, run_dir, reason) in enumerate(states)
    ]
    return save(tmp_path / "sweep", {"name": "small", "cells": cells}, "sweep.json")


def test_sweep_gives_each_run_once_and_names_the_other_cells(tmp_path: Path) -> None:
    found = saved_runs([sweep(tmp_path)])
    assert found.name == "sweep"
    assert [one["method"] for one in found.summaries] == ["no_exit", "river"]
    assert [(one.name, one.reason) for one in found.missing] == [
        ("n=3", "failed: no such model"),
        ("n=4", "waiting"),
        ("n=6", "finished, but names no run folder"),
        (
            "n=5",
            f"no readable {tmp_path}/gone/summary.json (No such file or directory)",
        ),
    ]


def test_paths_without_any_run_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no finished run in .*nothing"):
        saved_runs([tmp_path / "nothing"])
    broken = save(tmp_path / "broken", {"name": "x"}, "sweep.json")
    with pytest.raises(UserError, match=r"not the record of a sweep \(KeyError\('cells'\)"):
        saved_runs([broken])
    empty = save(tmp_path / "empty", {"name": "x", "cells": []}, "sweep.json")
    with pytest.raises(UserError, match="no cells"):
        saved_runs([empty])


def test_script_writes_pictures_and_tables(tmp_path: Path) -> None:
    stem = tmp_path / "new" / "pareto"
    done = run_light("plot_pareto.py", str(sweep(tmp_path)), "--out", str(stem))
    assert done.returncode == 0, done.stderr
    written = {path.name: path.read_bytes() for path in stem.parent.iterdir()}
    assert set(written) == {
        *(f"pareto.{kind}" for kind in ("png", "svg", "pdf", "md", "csv")),
        "pareto-target.csv",
    }
    assert [written[f"pareto.{kind}"][:4] for kind in ("png", "pdf")] == [b"\x89PNG", b"%PDF"]
    assert b"<svg" in written["pareto.svg"]
    text = written["pareto.md"].decode()
    assert "| yes " in text and "commit abc, def+changes" in text
    assert "no such model" in text  # the failed cell
    assert "n=3: failed: no such model" in done.stderr


def test_script_draws_each_task_apart(tmp_path: Path) -> None:
    commits = {"commits": ["abc"]}
    one = save(tmp_path / "one", SWEEP[2] | commits)
    other = save(tmp_path / "other", SWEEP[2] | commits | {"label": "Human Eval"})
    arguments = [str(one), str(other), "--y", "accuracy", "--out", str(tmp_path / "both")]
    done = run_light("plot_pareto.py", *arguments)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.glob("both*.png")} == {
        "both-accuracy-GSM-mini-tiny.png",
        "both-accuracy-Human_Eval-tiny.png",
    }


def test_script_says_in_one_line_what_is_wrong(tmp_path: Path) -> None:
    done = run_light("plot_pareto.py", str(tmp_path / "nothing"))
    assert done.returncode == 2
    assert done.stderr.startswith("error: no finished run in ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("timed", "flags"), [(8.0, ()), (9.0, ()), (9.1, (OTHER_STRETCH,)), (2.0, (OTHER_STRETCH,))]
)
def test_steps_that_were_timed_elsewhere_are_flagged(timed: float, flags: tuple[str, ...]) -> None:
    (point,) = operating_points([run(0.9, None, 8.0, speedup=matched(1.5, mean_depth=timed))])
    assert point.flags == flags


def test_runs_that_were_compared_with_different_texts_are_refused() -> None:
    runs = [run(0.9, 1.5, 8.0), run(0.8, 1.7, 3.0)]
    runs[0]["fidelity"]["no_exit_run"] = runs[1]["fidelity"]["no_exit_run"] = "no_exit-a"
    check_comparable([no_exit(), *runs])
    runs[1]["fidelity"]["no_exit_run"] = "no_exit-b"
    with pytest.raises(UserError, match="no_exit-a, no_exit-b"):
        check_comparable(runs)
    # Of another task or dtype there is nothing to compare in the first place.
    check_comparable([runs[0], {**runs[1], "label": "other"}])
    runs[1]["settings"]["dtype"] = "fp32"
    check_comparable(runs)
