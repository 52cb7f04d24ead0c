"""`python run.py` on the paper's models by their hub ids, offline, from a cache of tiny ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from command import Commands
from tiny_checkpoints import HUB_IDS, KINDS, LAYERS, into_hub_cache, mark_as_fp8, save_checkpoint

SMALL = (
    "exp=gsm_mini",
    "limit=1",
    "exp.max_new_tokens=6",
    "speedup.prompts=1",
    "speedup.tokens=4",
    "fidelity.limit=1",
    "fidelity.tokens=4",
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `HF_HOME` is: a hub cache with the four models, and with an FP8 checkpoint."""
    root = tmp_path_factory.mktemp("home")
    for kind in KINDS:
        into_hub_cache(root, HUB_IDS[kind], save_checkpoint(kind, root / "written" / kind))
    plain = save_checkpoint("ministral3_8b", root / "written" / "fp8")
    into_hub_cache(root, HUB_IDS["ministral3_8b"].removesuffix("-BF16"), mark_as_fp8(plain))
    return root


@pytest.fixture(scope="module")
def hub(
    home: Path, offline: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Commands]:
    """Runs the project's scripts with that cache."""
    server = Commands(tmp_path_factory.mktemp("output"), {**offline, "HF_HOME": str(home)})
    yield server
    server.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_by_name_alone(kind, hub, empty):
    river = [f"model={kind}", "method=river", "criterion.tau=0.7", f"output.dir={empty}"]
    done = hub.run("run.py", [*SMALL, *river], empty)
    assert done.status == 0, done.stderr
    assert "NO COMPILED ENGINE" not in done.stderr
    (folder,) = (empty / "runs" / "gsm_mini" / kind).glob("river-*")
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["settings"]["engine"] == "compiled"
    assert summary["samples"] == 1
    assert summary["exit_depth"]["layers"] == LAYERS
    assert 1 <= summary["exit_depth"]["mean"] <= LAYERS
    assert summary["fidelity"]["tokens"] == 4
    assert summary["speedup"]["decode"]["matched"]["value"] > 0
    (sample,) = (folder / "samples.jsonl").read_text().splitlines()
    assert json.loads(sample)["tokens_timed"] == 6
    (start,) = json.loads((folder / "environment.json").read_text())
    linears = LAYERS * (4 if kind == "phi4_mini" else 7)
    assert start["linears_per_backend"] == {"int4_cpu": linears}


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ["model=phi4_mini", "exp.max_new_tokens=4090"],
            ["4090 new ones exceed the model's 4096 positions", "longrope", "exp.max_new_tokens="],
        ),
        (
            ["model=ministral3_8b", "model.path=mistralai/Ministral-3-8B-Instruct-2512"],
            ["quantized weights (fp8)", "mistralai/Ministral-3-8B-Instruct-2512-BF16"],
        ),
        (
            ["model=ministral3_8b", "model.path=mistralai/Ministral-3-8B-Base-2512"],
            ["mistralai/Ministral-3-8B-Base-2512 cannot be loaded"],
        ),
    ],
    ids=["phi beyond the switch", "fp8", "not in the cache"],
)
def test_refusals(overrides, words, hub, empty):
    done = hub.run("run.py", [*SMALL, *overrides], empty)
    assert done.status == 2
    (error,) = done.errors
    assert all(word in error for word in words)
    assert "Traceback" not in done.stderr
