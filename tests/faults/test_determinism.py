"""The same settings give the same text in every process, whatever its locale or hash seed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from command import ROOT
from sweep_files import finished_rows, runs, timeless

ROWS = (
    {"prompt": "Wie heißt die 🎉?", "answer": "数学"},
    {"prompt": "e\u0301 or é, \u2028?", "answer": "é"},
)
# Neither a hash seed nor a locale, time zone or encoding in common.
PLACES = {
    "one": {"PYTHONHASHSEED": "1", "LC_ALL": "C.UTF-8", "TZ": "UTC"},
    "other": {
        "PYTHONHASHSEED": "4242",
        "LC_ALL": "C",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONUTF8": "0",
        "TZ": "Asia/Tokyo",
    },
}


@pytest.fixture(scope="module")
def results(
    offline: dict[str, str], model: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Results of one run in interpreters of their own; each packs its river itself."""
    here = tmp_path_factory.mktemp("here")
    rows = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)
    (here / "rows.jsonl").write_text(rows, "utf-8")
    found = {}
    for name, variables in PLACES.items():
        found[name] = here / name
        arguments = ["exp=jsonl", f"data.path={here}/rows.jsonl", f"model.path={model}"]
        arguments += ["method=river", "criterion.tau=0.75", "model.dtype=fp32", "engine=eager"]
        arguments += ["exp.max_new_tokens=40", "speedup.prompts=0", "fidelity.limit=2"]
        arguments += ["fidelity.tokens=8", f"output.dir={found[name]}", "resume.force=true"]
        done = subprocess.run(
            [sys.executable, str(ROOT / "run.py"), *arguments],
            cwd=here,
            env={
                **{k: v for k, v in os.environ.items() if k not in ("LANG", "LC_CTYPE")},
                **offline,
                **variables,
                "RIVER_LLM_CACHE": str(here / f"cache-{name}"),
            },
            capture_output=True,
            timeout=150,
        )
        assert done.returncode == 0, done.stderr
        (summary,) = found[name].rglob("river-*/summary.json")
        last = json.loads(done.stdout.splitlines()[-1])
        assert last["identity"] == json.loads(summary.read_text("utf-8"))["identity"]
    return found


def test_texts_and_names_are_the_same(results: dict[str, Path]):
    one, other = (timeless(finished_rows(place)) for place in results.values())
    assert one == other
    assert {name.partition("-")[0] for name in one} == {"river", "no_exit"}
    # Letters that are no ASCII, and more than one depth.
    rows = [row for name in one if name.startswith("river") for row in one[name]]
    assert any(not row["completion"].isascii() for row in rows)
    assert len({depth for row in rows for depth in row["exit_depths"]}) > 1


def test_forced_scores_are_the_same_to_the_last_bit(results: dict[str, Path]):
    files = [
        {
            (name, file): (path / file).read_bytes()
            for name, path in runs(place).items()
            for file in ("forced_scores.json", "reference_scores.json")
            if (path / file).exists()
        }
        for place in results.values()
    ]
    assert files[0] == files[1]
    assert len(files[0]) == 2


def test_packed_rivers_are_the_same_bytes_under_the_same_name(results: dict[str, Path]):
    one, other = (
        {
            str(path.relative_to(cache)): path.read_bytes()
            for path in cache.rglob("*")
            if path.is_file()
        }
        for cache in (place.parent / f"cache-{name}" for name, place in results.items())
    )
    assert one == other
    assert any(name.endswith("codes.safetensors") for name in one)
