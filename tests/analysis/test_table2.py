"""Table 2: what stands where, what is paired with what, and its cells worked out by hand."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from light_script import run_light
from table2_runs import HQQ, RTN8, found, river, save, speeds, write_sweep

from river_llm.analysis.paper_cells import REFERENCE, PaperCells, paper_cells
from river_llm.analysis.table2 import write_table2
from river_llm.analysis.table2_frames import accuracy_frame, fidelity_frame, paper_frame
from river_llm.analysis.table2_rows import PLACES, Block, blocks
from river_llm.errors import UserError

KEY = ("llama3.2_1b", "gsm8k")
# Tango's example: 4 right in both, 3 in no_exit alone, 9 in the run alone, 16 in neither.
OF_NO_EXIT = [True] * 4 + [True] * 3 + [False] * 9 + [False] * 16
OF_RIVER = [True] * 4 + [False] * 3 + [True] * 9 + [False] * 16


def only_block(root: Path, paper: PaperCells | None = None) -> Block:
    (block,) = blocks(found(root), {} if paper is None else {KEY: paper})
    return block


def cells_of(block: Block, name: str) -> dict[str, str]:
    (row,) = [r for r in accuracy_frame(block).to_dict("records") if r["Run"] == name]
    return row


# --- the paper's cells --------------------------------------------------------------------


def test_the_paper_s_cells_are_those_of_the_file() -> None:
    cells = paper_cells()
    assert len(cells) == 12
    assert cells[KEY] == PaperCells(33.2, 25.1, 29.3, 2.16, "public summary of v1")
    assert cells["ministral3_8b", "math"].river_speedup == 1.85
    assert cells["phi4_mini", "gsm8k"] == PaperCells()
    assert sum(one.source is not None for one in cells.values()) == 5


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a,gsm8k,0.33,,,,x", None),  # 0.33 % cannot be told from a share
        ("a,gsm8k,133,,,,x", "backbone_accuracy=133 of a and gsm8k is out of range"),
        ("a,gsm8k,33,,,216,x", "river_speedup=216"),
        ("a,gsm8k,33%,,,,x", "is no number: 33%"),
        ("a,gsm8k,33,,,,", "have figures without a source"),
        ("a,chess,33,,,,x", "names no task of the paper"),
        ("a,gsm8k,33,,,,x\na,gsm8k,33,,,,x", "stands twice"),
    ],
)
def test_a_file_that_cannot_be_the_paper_s_is_refused(
    line: str, message: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "table2.csv"
    path.write_text(f"{REFERENCE.read_text().splitlines()[0]}\n{line}\n")
    if message is None:
        assert len(paper_cells(path)) == 1
    else:
        with pytest.raises(UserError, match=re.escape(message)):
            paper_cells(path)


def test_a_missing_file_or_another_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read from"):
        paper_cells(tmp_path / "none.csv")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match=r"has the columns \['a', 'b'\]"):
        paper_cells(tmp_path / "other.csv")


# --- rows ---------------------------------------------------------------------------------


def test_every_place_has_a_row_and_other_runs_follow(tmp_path: Path) -> None:
    save(tmp_path, "01", "mask", [True], settings=river(0.5, "backbone"))
    save(tmp_path, "02", "no_exit", [True])
    save(tmp_path, "03", "river", [True], settings=river(0.5))
    save(tmp_path, "04", "river", [True], settings=river(0.7, "backbone"))
    save(tmp_path, "05", "river", [True], settings=river(0.9))
    save(tmp_path, "06", "river", [True], settings=river(0.5, min_depth=2))
    save(tmp_path, "07", "full_quant", [True], settings={"quant": RTN8})
    save(tmp_path, "08", "full_quant", [True], settings={"quant": {**HQQ, "name": "rtn_int4"}})
    save(tmp_path, "09", "full_quant", [True])
    for k in (4, 3):
        method = {"name": "static_first", "k": k}
        save(tmp_path, f"1{9 - k}", "static_first", [True], settings={"method": method})
    assert [row.name for row in only_block(tmp_path).rows] == [
        "no_exit",
        "full_quant, hqq_int4 g64",  # the paper's quantizer stands before the other
        "full_quant, rtn_int4 g64",
        "river, prefill sequence, tau=0.5",
        "river, prefill backbone, tau=0.5",  # not run
        "river, prefill sequence, tau=0.7",  # not run
        "river, prefill backbone, tau=0.7",
        "quant_decode",  # not run
        "static_first, k=3",
        "static_first, k=4",
        "full_quant, rtn_int8",
        "mask, tau=0.5",
        "river, prefill sequence, tau=0.5 min=2",
        "river, prefill sequence, tau=0.9",
    ]


def test_blocks_that_ran_come_first_and_the_others_in_the_paper_s_order(tmp_path: Path) -> None:
    save(tmp_path, "01", "no_exit", [True], model="tiny", exp="gsm_mini", label="GSM-mini")
    save(tmp_path / "x", "02", "river", [True], settings=river(0.5), exp="math", label="MATH-500")
    made = blocks(found(tmp_path), paper_cells())
    assert [(b.model, b.task, b.has_runs) for b in made[:3]] == [
        ("llama3.2_1b", "MATH-500 (paper: MATH)", True),
        ("tiny", "GSM-mini", True),
        ("llama3.2_1b", "GSM8K", False),
    ]
    assert len(made) == 13
    assert made[1].paper is None


def test_protocols_are_not_mixed(tmp_path: Path) -> None:
    save(tmp_path, "01", "no_exit", [True], settings={"fewshot": 0})
    save(tmp_path, "02", "river", [False], settings={"fewshot": 0, **river(0.5)})
    save(tmp_path, "03", "no_exit", [False], settings={"fewshot": 8})
    save(tmp_path, "04", "river", [False], settings={"fewshot": 8, **river(0.5)})
    save(tmp_path, "05", "no_exit", [True], settings={"fewshot": 8}, prompt="q")
    by_words = {block.protocol: block for block in blocks(found(tmp_path), {})}
    assert list(by_words) == [
        "fewshot=0, first prompt p0",
        "fewshot=8, first prompt p0",
        "fewshot=8, first prompt q0",
    ]
    zero, eight, _ = by_words.values()
    assert [row.difference.points.value for row in zero.rows if row.difference] == [-100]
    assert [row.difference.points.value for row in eight.rows if row.difference] == [0]


def test_a_run_that_was_only_measured_belongs_to_the_prompts_it_was_compared_on(
    tmp_path: Path,
) -> None:
    save(tmp_path, "01", "no_exit", [True])
    save(tmp_path, "02", "no_exit", [True], prompt="q")
    compared = {"no_exit_run": "no_exit-02", "agreement": 0.9}
    save(tmp_path, "03", "river", [], settings=river(0.5), fidelity=compared)
    blocks_ = blocks(found(tmp_path), {})
    own = [block for block in blocks_ if any(row.name.startswith("river, prefill sequence, tau=0.5")
                                             and row.summary for row in block.rows)]  # fmt: skip
    assert [block.protocol for block in own] == ["first prompt q0"]
    row = cells_of(own[0], "river, prefill sequence, tau=0.5")
    assert (row["n"], row["Accuracy % [95%]"], row["McNemar p"]) == ("not run",) * 3
    assert row["Speedup [95%]"] == "1.50 [1.40, 1.60]"
    assert row["Mean depth"] == "3.0 / 30"  # of the timed steps, there are no others


def test_the_difference_is_to_no_exit_on_the_same_engine(tmp_path: Path) -> None:
    save(tmp_path, "01", "no_exit", [False], settings={"engine": "eager"})
    save(tmp_path, "02", "no_exit", [True])
    save(tmp_path, "03", "river", [True], settings=river(0.5))
    save(tmp_path, "04", "quant_decode", [True], settings={"engine": "eager"})
    rows = {row.name: row for row in only_block(tmp_path).rows}
    assert rows["river, prefill sequence, compiled, tau=0.5"].difference.points.value == 0
    assert rows["quant_decode, eager"].difference.points.value == 100


def test_a_difference_across_engines_is_said(tmp_path: Path) -> None:
    save(tmp_path, "01", "no_exit", [True])
    save(tmp_path, "02", "quant_decode", [True], settings={"engine": "eager"})
    row = cells_of(only_block(tmp_path), "quant_decode, eager")
    assert row["Note"] == "no_exit ran on compiled, this on eager"


def test_samples_behind_the_limit_of_the_summary_do_not_count(tmp_path: Path) -> None:
    reference = save(tmp_path, "01", "no_exit", [True, True, False])
    save(tmp_path, "02", "river", [False, True, True], settings=river(0.5), samples=2)
    content = json.loads((reference / "summary.json").read_text()) | {"samples": 2}
    (reference / "summary.json").write_text(json.dumps(content))
    (row,) = [row for row in only_block(tmp_path).rows if row.difference]
    assert (row.difference.pairs, row.difference.lost, row.difference.gained) == (2, 1, 0)


# --- cells --------------------------------------------------------------------------------


def test_cells_of_a_complete_run_by_hand(tmp_path: Path) -> None:
    save(tmp_path, "01", "no_exit", OF_NO_EXIT, depth=30.0)
    others = {
        "vs_eager": {"value": 3.0, "low": 2.9, "high": 3.2, "flags": ["spread above 5 %"]},
        "vs_hf": {"value": 4.0, "low": None, "high": None, "flags": []},
    }
    speedup = speeds(2.1, **others)
    speedup["decode"]["matched"]["flags"] = ["reference below par"]
    save(tmp_path, "02", "river", OF_RIVER, settings=river(0.5), depth=4.2, speedup=speedup)
    block = only_block(tmp_path, PaperCells(33.2, 25.1, 29.3, 2.16, "a summary"))
    # 13 of 32 right; 40.6 - 29.3 = 11.3; McNemar: 2 (1 + 12 + 66 + 220) / 4096 = 0.146.
    assert cells_of(block, "river, prefill sequence, tau=0.5") == {
        "Run": "river, prefill sequence, tau=0.5",
        "n": "32",
        "Accuracy % [95%]": "40.6 [30.6, 50.6]",
        "Paper %": "29.3 (+11.3)",
        "To no_exit, points [95%]": "+18.8 [-2.7, +39.0]",
        "McNemar p": "0.146",
        "Mean depth": "4.2 / 30",
        "Speedup [95%]": "2.10 [2.00, 2.20]",
        "Bound": "2.00",
        "vs eager [95%]": "3.00 [2.90, 3.20]",
        "vs HF [95%]": "4.00 [no interval]",
        "Paper's speedup": "2.16 (-0.06)",
        "Note": "reference below par; vs eager: spread above 5 %; timed at depth 3.0",
    }
    (head,) = paper_frame([block]).to_dict("records")
    assert head == {
        "Model": "llama3.2_1b",
        "Task": "GSM8K",
        "n": "32",
        "no_exit % [95%]": "21.9 [11.9, 31.9]",
        "paper's no_exit": "33.2 (-11.3)",
        "full_quant % [95%]": "not run",
        "paper's full_quant": "25.1",
        "River % [95%]": "40.6 [30.6, 50.6]",
        "paper's River": "29.3 (+11.3)",
        "River's speedup [95%]": "2.10 [2.00, 2.20]",
        "vs eager [95%]": "3.00 [2.90, 3.20]",
        "bound": "2.00",
        "paper's speedup": "2.16 (-0.06)",
    }


def test_what_was_not_run_is_said_so_everywhere(tmp_path: Path) -> None:
    save(tmp_path, "01", "no_exit", [True])
    row = cells_of(only_block(tmp_path), "quant_decode")
    assert set(row.values()) == {"quant_decode", "not run"}
    (block,) = [b for b in blocks(found(tmp_path), paper_cells()) if b.model == "phi4_mini"][:1]
    (head,) = paper_frame([block]).to_dict("records")
    own = {name: cell for name, cell in head.items() if "paper's" not in name}
    assert set(own.values()) == {"phi4_mini", "GSM8K", "not run"}
    assert {cell for name, cell in head.items() if "paper's" in name} == {"unknown"}


def test_a_model_that_the_paper_does_not_have_has_no_cell_beside_it(tmp_path: Path) -> None:
    save(tmp_path, "01", "no_exit", [True], model="tiny")
    (head,) = paper_frame([only_block(tmp_path)]).to_dict("records")
    assert {cell for name, cell in head.items() if "paper's" in name} == {"n/a"}


def test_an_old_summary_lacks_the_newer_measurements(tmp_path: Path) -> None:
    mib = 2**20
    parts = {"backbone_bytes": 200 * mib, "river_bytes": 60 * mib, "shared_bytes": 54 * mib}
    fidelity = {"agreement": 0.9, "agreement_low": 0.8, "agreement_high": 1.0, "excess_nll": 0.05,
                "noise_floor": {"agreement": 0.987, "excess_nll": 0.0001}}  # fmt: skip
    save(tmp_path, "01", "river", [True], settings=river(0.5), memory=parts, fidelity=fidelity)
    block = only_block(tmp_path)
    (row,) = fidelity_frame(block).to_dict("records")
    assert row == {
        "Run": "river, prefill sequence, tau=0.5",
        "Agreement % [95%]": "90.0 [80.0, 100.0]",
        "Excess NLL [95%]": "0.0500 [no interval]",
        "Floor, HF: % / NLL": "98.7 / 0.0001",
        "Floor, engine: % / NLL": "not run",
        "Peak memory MiB": "not run",
        "Weights and KV MiB": "314",
        "Identity": "01",
    }
    cells = cells_of(block, "river, prefill sequence, tau=0.5")
    assert cells["vs eager [95%]"] == cells["vs HF [95%]"] == "not run"
    assert cells["To no_exit, points [95%]"] == "not run"  # no_exit itself has not run


def test_new_measurements_are_shown(tmp_path: Path) -> None:
    floor = {"agreement": 0.99, "excess_nll": 0.0002}
    fidelity = {"agreement": 0.9, "noise_floor": None, "engine_noise_floor": floor}
    memory = {"kv_bytes": 2**20, "peak_bytes": 700 * 2**20}
    save(tmp_path, "01", "river", [True], settings=river(0.5), memory=memory, fidelity=fidelity)
    (row,) = fidelity_frame(only_block(tmp_path)).to_dict("records")
    assert row["Floor, engine: % / NLL"] == "99.0 / 0.0002"
    assert row["Floor, HF: % / NLL"] == "not run"
    assert (row["Peak memory MiB"], row["Weights and KV MiB"]) == ("700", "1")


def test_one_measurement_under_two_names_is_flagged_once(tmp_path: Path) -> None:
    speedup = speeds(1.5)
    speedup["decode"]["matched"]["flags"] = ["spread above 5 %"]
    speedup["decode"]["vs_eager"] = {**speedup["decode"]["matched"], "same_as_matched": True}
    save(tmp_path, "01", "quant_decode", [True], speedup=speedup)
    row = cells_of(only_block(tmp_path), "quant_decode")
    assert (row["vs eager [95%]"], row["Note"]) == ("1.50 [1.40, 1.60]", "spread above 5 %")


def test_answers_without_a_verdict_are_said(tmp_path: Path) -> None:
    save(tmp_path, "01", "no_exit", [True, True, None])
    save(tmp_path, "02", "quant_decode", [None, True, True])
    row = cells_of(only_block(tmp_path), "quant_decode")
    assert (row["n"], row["Note"]) == ("2", "1 pairs with no_exit; 1 not graded")


def test_runs_on_other_prompts_than_no_exit_s_are_refused(tmp_path: Path) -> None:
    save(tmp_path, "01", "no_exit", [True, True])
    folder = save(tmp_path, "02", "quant_decode", [True, True])
    lines = (folder / "samples.jsonl").read_text().replace('"p1"', '"q1"')
    (folder / "samples.jsonl").write_text(lines)
    with pytest.raises(UserError, match="sample 1 has another prompt"):
        only_block(tmp_path)


# --- files --------------------------------------------------------------------------------


@pytest.fixture
def written(tmp_path: Path) -> dict[str, str]:
    """The three files of a sweep of two runs and two cells without one."""
    runs = tmp_path / "runs"
    reference = save(runs, "01", "no_exit", OF_NO_EXIT, depth=30.0)
    arm = save(runs, "02", "river", OF_RIVER, settings=river(0.5), depth=4.2)
    sweep = write_sweep(
        tmp_path / "sweep",
        [
            (["exp=gsm8k", "method=no_exit"], reference, None),
            (["exp=gsm8k", "method=river"], arm, None),
            (["exp=gsm8k", "method=full_quant"], None, "out of memory & more"),
            (["exp=gsm8k", "method=quant_decode"], None, None),
        ],
    )
    out = tmp_path / "new" / "table2"
    done = run_light("table2.py", str(sweep), "--out", str(out), "--margin", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{out}{kind}" for kind in (".md", ".csv", ".tex")]
    assert "method=full_quant: failed: out of memory & more" in done.stderr
    return {path.suffix: path.read_text() for path in out.parent.iterdir()}


def test_markdown_says_what_a_reader_must_know(written: dict[str, str]) -> None:
    text = written[".md"]
    assert "No row of the paper has run to its end here" in text
    assert "Machine: Abacus 3, 2 cores, threads: 1, torch 2.13.0." in text
    assert "Engine: compiled. Commit: abc." in text
    assert "Accuracy: n = 32 samples; speedups: 8 prompts x 32 tokens" in text
    assert "- method=quant_decode: waiting" in text
    # z^2 / (32 + z^2) = 3.8415 / 35.8415 = 10.7 %; 3.8415 * 49 = 188.2.
    assert re.search(r"\| +32 \| +10\.7 \| n too small \(needs 189\) +\|", text)
    assert text.count("\n# ") == 0 and text.startswith("# Table 2\n")


def test_every_row_of_a_markdown_table_has_its_columns(written: dict[str, str]) -> None:
    tables = re.findall(r"(?:^\|.*\n)+", written[".md"], flags=re.MULTILINE)
    assert len(tables) == 4
    for table in tables:
        assert len({line.count("|") for line in table.splitlines()}) == 1


def test_data_has_one_row_per_run_and_plain_numbers(written: dict[str, str]) -> None:
    reference, arm = csv.DictReader(io.StringIO(written[".csv"]))
    assert (reference["method"], arm["method"]) == ("no_exit", "river")
    assert float(arm["accuracy_percent"]) == 40.625
    assert float(arm["accuracy_minus_no_exit_points"]) == 18.75
    assert float(arm["accuracy_minus_no_exit_low_points"]) == pytest.approx(-2.71, abs=5e-3)
    assert float(arm["mcnemar_p"]) == 598 / 4096
    assert (arm["paired_samples"], arm["right_to_wrong_samples"]) == ("32", "3")
    assert float(arm["accuracy_minus_paper_points"]) == pytest.approx(11.325)
    assert float(arm["speedup_minus_paper"]) == pytest.approx(-0.66)
    assert (arm["tau"], arm["quantizer_bits"], arm["layers"]) == ("0.5", "4", "30")
    assert arm["speedup_vs_eager"] == arm["peak_memory_bytes"] == ""
    assert reference["mcnemar_p"] == reference["quantizer"] == ""


def test_latex_is_balanced_and_its_rows_have_their_columns(written: dict[str, str]) -> None:
    text = written[".tex"]
    assert text.isascii()
    plain = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    stack: list[str] = []
    for kind, name in re.findall(r"\\(begin|end)\{([a-z*]+)\}", plain):
        if kind == "begin":
            stack.append(name)
        else:
            assert stack.pop() == name
    assert not stack
    depth = 0
    for brace in re.findall(r"(?<!\\)[{}]", plain):
        depth += 1 if brace == "{" else -1
        assert depth >= 0
    assert depth == 0
    tables = re.findall(r"\\begin\{tabular\}\{([lr]+)\}(.*?)\\end\{tabular\}", plain, re.DOTALL)
    assert len(tables) == 4
    for columns, body in tables:
        rows = [line for line in body.splitlines() if line.endswith(r"\\")]
        assert len(rows) > 1
        assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {len(columns) - 1}
    # What LaTeX would read as its own stands nowhere unescaped.
    without_commands = re.sub(r"\\[%&_#$]", "", plain)
    labels = re.sub(r"\\(label|begin)\{[^}]*\}", "", without_commands)
    assert not re.search(r"[_#$^~<>]", labels)
    percents = [line for line in labels.splitlines() if "%" in line]
    assert percents and all(line.endswith("{%") or line.endswith("}%") for line in percents)
    assert "% without a result: method=full_quant: failed: out of memory & more" in text


def test_a_margin_out_of_range_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "runs", "01", "no_exit", [True])
    for margin in (0, -1, 100):
        with pytest.raises(UserError, match="points is out of range"):
            write_table2(found(tmp_path / "runs"), tmp_path / "t", margin)


def test_the_script_says_in_one_line_what_is_wrong(tmp_path: Path) -> None:
    done = run_light("table2.py", str(tmp_path / "nothing"))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("error: no finished run in ")


def test_a_row_of_the_paper_that_ran_is_named(tmp_path: Path) -> None:
    save(tmp_path, "01", "no_exit", [True] * 4)
    save(tmp_path, "02", "full_quant", [True] * 3)
    save(tmp_path, "03", "river", [True] * 4, settings=river(0.5))
    path, *_ = write_table2(found(tmp_path), tmp_path / "out" / "t")
    assert "of the paper's 12 rows" in path.read_text().casefold()
    assert "for llama3.2_1b on gsm8k (n = 3). " in path.read_text()


def test_each_run_has_one_place(tmp_path: Path) -> None:
    every: list[Any] = [
        save(tmp_path, "01", "no_exit", [True]),
        save(tmp_path, "02", "full_quant", [True]),
        save(tmp_path, "03", "full_quant", [True], settings={"quant": RTN8}),
        save(tmp_path, "04", "full_quant", [True], settings={"quant": {"name": "none"}}),
        save(tmp_path, "05", "river", [True], settings=river(0.5, "backbone")),
    ]
    counts = [
        sum(place.takes(json.loads((path / "summary.json").read_text())) for place in PLACES)
        for path in every
    ]
    assert counts == [1, 1, 1, 0, 1]
