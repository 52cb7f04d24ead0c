"""Comparison of two runs on cases worked out by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from invented import record

from river_llm.analysis.comparison import (
    compare,
    comparison_text,
    first_divergence,
    mcnemar_exact,
)
from river_llm.errors import UserError
from river_llm.records import RunFolder, SampleRecord

ROOT = Path(__file__).resolve().parents[2]


def sample(key: str, tokens: list[int], text: str = "", **changes: Any) -> dict[str, Any]:
    """A record; where no margins are given, the margin of a token is ten times its place + 10."""
    margins = [10.0 * (place + 1) for place in range(len(tokens))]
    fields = {"id": key, "token_ids": tokens, "margins": margins, "completion": text}
    return record(**{**fields, **changes})


@pytest.mark.parametrize(
    ("a", "b", "place"),
    [
        ([5, 6, 7], [5, 6, 7], None),
        ([5, 6], [5, 6, 7], None),
        ([5, 6, 7], [5, 6], None),
        ([5, 6, 7], [4, 6, 7], 0),
        ([5, 6, 7], [5, 6, 8], 2),
        ([5, 6, 7, 1], [5, 0, 7, 2], 1),
        ([5, 6, 7], [5, 6, 8, 9], 2),
        ([], [5], None),
        ([], [], None),
    ],
)
def test_first_divergence_by_hand(a: list[int], b: list[int], place: int | None) -> None:
    assert first_divergence(a, b) == place


# Alike, the beginning of the other, another first token, another third token, no tokens.
A = [
    sample("same", [5, 6, 7], "one two", correct=True),
    sample("shorter", [5, 6], "one two", correct=False, margins=[3.0, 4.0]),
    sample("first", [5, 6, 7], "one two", correct=True, margins=[0.25, 8.0, 9.0]),
    sample("third", [5, 6, 7, 8], "one two\nyes", correct=False, margins=[1.0, 2.0, 0.5, 7.0]),
    sample("empty", [], "", correct=None),
    sample("only a", [1]),
]
B = [
    sample("only b", [1]),
    sample("empty", [], "", correct=None),
    sample("third", [5, 6, 9], "one two\nno", correct=True),
    sample("first", [4, 6, 7], "two", correct=False),
    sample("shorter", [5, 6, 7], "one two three", correct=False),
    sample("same", [5, 6, 7], "one two", correct=True),
]


@pytest.fixture(scope="module")
def comparison() -> dict[str, Any]:
    return compare(A, B)


def row(comparison: dict[str, Any], key: str) -> dict[str, Any]:
    (found,) = [one for one in comparison["samples"] if one["id"] == key]
    return found


def test_samples_of_one_run_alone_are_said(comparison: dict[str, Any]) -> None:
    assert [one["id"] for one in comparison["samples"]] == [
        "same",
        "shorter",
        "first",
        "third",
        "empty",
    ]
    assert comparison["only_in_a"] == ["only a"]
    assert comparison["only_in_b"] == ["only b"]


def test_where_the_texts_part_by_hand(comparison: dict[str, Any]) -> None:
    assert row(comparison, "third") == {
        "id": "third",
        "position": 2,
        "tokens": [7, 9],
        "margin": 0.5,
        "lengths": [4, 3],
        "text": {"before": "one two\n", "a": "yes", "b": "no"},
        "verdicts": [False, True],
    }
    first = row(comparison, "first")
    assert (first["position"], first["tokens"], first["margin"]) == (0, [5, 4], 0.25)
    assert first["text"] == {"before": "", "a": "one two", "b": "two"}


@pytest.mark.parametrize("key", ["same", "shorter", "empty"])
def test_texts_without_two_different_tokens_do_not_part(
    key: str, comparison: dict[str, Any]
) -> None:
    found = row(comparison, key)
    assert (found["position"], found["tokens"], found["margin"]) == (None, None, None)


def test_the_text_behind_the_end_of_the_shorter_one_is_shown(comparison: dict[str, Any]) -> None:
    assert row(comparison, "shorter")["text"] == {"before": "one two", "a": "", "b": " three"}
    assert row(comparison, "same")["text"] is None


def test_shares_and_positions_by_hand(comparison: dict[str, Any]) -> None:
    assert comparison["never_diverge"] == {"share": 3 / 5, "samples": 3, "identical": 2}
    assert comparison["position"] == {"median": 1.0}  # of 0 and 2


def test_margins_at_the_divergence_and_elsewhere(comparison: dict[str, Any]) -> None:
    margins = comparison["margins"]
    assert margins["at_divergence"] == {"median": 0.375, "tokens": 2}  # of 0.25 and 0.5
    # same: 10 20 30; shorter: 3 4; third: 1 2. Behind a divergence: 8 9 and 7.
    assert margins["alike"] == {"median": 4.0, "tokens": 7}
    assert margins["elsewhere"] == {"median": 7.5, "tokens": 10}
    assert margins["elsewhere_as_small"] == 0


def test_the_share_of_other_margins_not_above_the_median_at_divergences() -> None:
    a = [sample("x", [1, 2, 3, 4, 5, 6], margins=[2.0, 1.0, 0.5, 1.5, 4.0, 0.25])]
    b = [sample("x", [1, 2, 3, 9])]
    # 1.5 at the divergence; 1.0, 0.5 and 0.25 of the other five are not above it.
    assert compare(a, b)["margins"]["elsewhere_as_small"] == 0.6


def test_only_tokens_that_both_have_count_as_alike() -> None:
    a, b = [sample("x", [1, 2, 3])], [sample("x", [1])]
    assert compare(a, b)["margins"]["alike"] == {"median": 10.0, "tokens": 1}


def test_changed_verdicts_by_hand(comparison: dict[str, Any]) -> None:
    assert comparison["verdicts"] == {
        "graded": 4,
        "right_to_wrong": ["first"],
        "wrong_to_right": ["third"],
        "mcnemar_p": 1.0,
    }


def test_a_verdict_in_one_run_alone_is_no_change() -> None:
    a = [sample("x", [1], correct=None), sample("y", [1], correct=True)]
    b = [sample("x", [1], correct=True), sample("y", [1], correct=None)]
    assert compare(a, b)["verdicts"] == {
        "graded": 0,
        "right_to_wrong": [],
        "wrong_to_right": [],
        "mcnemar_p": None,
    }


@pytest.mark.parametrize(
    ("one_way", "other_way", "p"),
    [
        (0, 0, 1.0),
        (1, 0, 1.0),
        (0, 5, 2 / 32),
        (1, 5, 2 * (1 + 6) / 64),
        (2, 6, 2 * (1 + 8 + 28) / 256),
        (4, 4, 1.0),
    ],
)
def test_mcnemar_by_hand(one_way: int, other_way: int, p: float) -> None:
    assert mcnemar_exact(one_way, other_way) == pytest.approx(p)
    assert mcnemar_exact(other_way, one_way) == pytest.approx(p)


def test_mcnemar_counts_the_coin_tosses_that_are_as_lopsided() -> None:
    for one_way, other_way in [(1, 7), (3, 8), (0, 9), (5, 6)]:
        n = one_way + other_way
        tosses = list(product((0, 1), repeat=n))
        lopsided = sum(abs(2 * sum(t) - n) >= abs(one_way - other_way) for t in tosses)
        assert mcnemar_exact(one_way, other_way) == pytest.approx(lopsided / len(tosses))


def test_mcnemar_of_a_whole_benchmark_is_a_number() -> None:
    assert 0 < mcnemar_exact(600, 719) < 0.01


def test_a_run_against_itself_differs_in_nothing() -> None:
    comparison = compare(A, A)
    assert comparison["never_diverge"] == {"share": 1.0, "samples": 6, "identical": 6}
    assert comparison["position"]["median"] is None
    assert comparison["margins"]["at_divergence"] == {"median": None, "tokens": 0}
    assert comparison["margins"]["elsewhere_as_small"] is None
    assert comparison["verdicts"]["mcnemar_p"] == 1.0
    assert "parts at" not in comparison_text(comparison)


def test_samples_with_other_prompts_are_refused() -> None:
    a = [sample("x", [1]), sample("y", [1], prompt_hash="11")]
    b = [sample("x", [1]), sample("y", [1], prompt_hash="22")]
    with pytest.raises(UserError, match=r"sample y has another prompt in B \(22\) than in A \(11"):
        compare(a, b)


def test_runs_without_a_common_sample_are_refused() -> None:
    with pytest.raises(UserError, match=r"no sample is in both runs \(1 and 2 samples\)"):
        compare([sample("x", [1])], [sample("y", [1]), sample("z", [1])])


def test_the_text_for_the_terminal() -> None:
    assert comparison_text(compare(A, B)) == (
        "samples       5 in both runs; only in A: 1 (only a); only in B: 1 (only b)\n"
        "same text     60.0 % never diverge (3 samples, 1 of them longer in one run)\n"
        "divergence    2 samples, median at token 1.0 (first token: 0)\n"
        "A's margin    median 0.375 where the texts part, 7.500 at A's other 10 tokens "
        "(0.0 % of them not\n"
        "              above the first figure), 4.000 at the 7 chosen alike\n"
        "verdicts      of 4 graded in both runs: 1 right -> wrong, 1 wrong -> right, "
        "McNemar exact p = 1\n"
        "right->wrong  first\n"
        "wrong->right  third\n"
        "\n"
        "sample  parts at  tokens A, B  A chose  B chose  A's margin  verdict\n"
        "------  --------  -----------  -------  -------  ----------  --------------\n"
        "first          0         3, 3        5        4       0.250  right -> wrong\n"
        "    A: |one two\n"
        "    B: |two\n"
        "third          2         4, 3        7        9       0.500  wrong -> right\n"
        "    A: one two\\n|yes\n"
        "    B: one two\\n|no"
    )


def test_a_verdict_that_changed_without_a_divergence_is_shown() -> None:
    a = [sample("x", [1, 2], "yes", correct=True)]
    b = [sample("x", [1, 2, 3], "yes no", correct=False)]
    *_, figures, of_a, of_b = comparison_text(compare(a, b)).splitlines()
    assert figures.split() == ["x", "never", "2,", "3", "-", "-", "-", "right", "->", "wrong"]
    assert (of_a, of_b) == ("    A: yes|(end)", "    B: yes| no")


# --- the command --------------------------------------------------------------------------


def save(folder: Path, records: list[dict[str, Any]]) -> Path:
    run = RunFolder(folder)
    folder.mkdir()
    for one in records:
        run.append(SampleRecord(**{"block_lengths": {}, "commit": None, **one}))
    return folder


def command(*arguments: Any) -> subprocess.CompletedProcess[str]:
    """Runs the script, and fails where torch was loaded for it."""
    code = (
        "import runpy, sys\n"
        "try:\n"
        "    runpy.run_path(sys.argv.pop(1), run_name='__main__')\n"
        "finally:\n"
        "    assert 'torch' not in sys.modules\n"
    )
    line = [sys.executable, "-c", code, ROOT / "scripts" / "compare.py", *arguments]
    return subprocess.run([str(part) for part in line], capture_output=True, text=True)


def test_the_command_prints_a_table_and_ends_with_json(tmp_path: Path) -> None:
    a, b = save(tmp_path / "a", A), save(tmp_path / "b", B)
    (b / "summary.json").write_text('{"arm": "river tau=0.5 sequence"}')
    done = command(a, b, "--json")
    assert done.returncode == 0, done.stderr
    *table, last = done.stdout.splitlines()
    comparison = compare(A, B)
    assert table[:2] == [f"A: a ({a})", f"B: river tau=0.5 sequence ({b})"]
    assert "\n".join(table[2:]) == comparison_text(comparison)
    assert json.loads(last) == {"run_a": str(a), "run_b": str(b), **comparison}


def test_the_command_refuses_a_folder_without_samples(tmp_path: Path) -> None:
    done = command(save(tmp_path / "a", A), tmp_path / "none")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        f"error: {tmp_path / 'none'} holds no finished samples: give the folder of a run, "
        "<output.dir>/runs/<exp>/<model>/<method>-<identity>\n"
    )
