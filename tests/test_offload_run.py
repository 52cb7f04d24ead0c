"""Runs with offloaded backbone layers: text, records, identity, memory."""

from __future__ import annotations

import json
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from river_llm.composition import load_config
from river_llm.config import SCHEMA, OffloadConfig, effective_settings, parse
from river_llm.errors import UserError
from river_llm.evaluation.offload_depth import PROMPTS, STEPS, covering_depth
from river_llm.evaluation.peak import measure_peak, peak_request
from river_llm.evaluation.run import Run, execute
from river_llm.evaluation.runtime import Runtime
from river_llm.evaluation.summary import regrade
from river_llm.records import OFFLOAD
from tiny_folder import LAYERS, SMALL

MIB = 2**20
TAU = "criterion.tau=0.7"
"""Tokens of the tiny folder's model leave at depth 2, and a fifth of them nowhere."""


@pytest.fixture(scope="module")
def runtime(model) -> Runtime:
    return Runtime.load(load_config([*SMALL, f"model.path={model}"]))


@pytest.fixture
def config(model, tmp_path, monkeypatch):
    monkeypatch.setenv("RIVER_LLM_CACHE", str(tmp_path / "cache"))

    def make(*more: str):
        common = [*SMALL, f"model.path={model}", f"output.dir={tmp_path / 'out'}"]
        common += [] if "criterion=fixed" in more else [TAU]
        return load_config([*common, "fidelity.limit=0", "speedup.prompts=0", *more])

    return make


def texts(result):
    return [row["token_ids"] for row in samples(result)]


def samples(result):
    lines = (result.folder / "samples.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def depths(result):
    return [depth for row in samples(result) for depth in row["exit_depths"]]


@pytest.mark.parametrize("engine", ["eager", "compiled"])
@pytest.mark.parametrize("prefill", ["sequence", "backbone"])
@pytest.mark.parametrize("after", [0, 1, 2])
def test_fetching_changes_no_text(after, prefill, engine, config, runtime):
    common = [f"engine={engine}", f"method.prefill={prefill}"]
    plain = execute(config(*common), runtime)
    assert plain.summary["offload"] is None
    assert plain.summary["memory"]["staging_bytes"] == 0
    result = execute(config(*common, f"offload.after={after}"), runtime)
    assert result.folder != plain.folder
    assert texts(result) == texts(plain)
    assert depths(result) == depths(plain)
    assert set(depths(plain)) == {2, 3}
    offload = result.summary["offload"]
    assert (offload["after"], offload["on_miss"], offload["layers"]) == (after, "fetch", LAYERS)
    # By hand from the depths of the run that had all layers in memory.
    misses = [depth > after for depth in depths(plain)]
    assert offload["decode_steps"] == len(misses)
    assert offload["miss_rate"] == sum(misses) / len(misses)
    assert 0 < offload["miss_rate"] <= 1
    assert offload["fetched_bytes"] == offload["fetched_layers"] * offload["layer_bytes"]
    prompts = [LAYERS if prefill == "backbone" else s["prefill_depth"] for s in samples(plain)]
    streamed = offload["prefill"]["fetched_layers"]
    if prefill == "backbone":
        # One of two may be there from the step before, or from building the engine.
        assert len(prompts) * (LAYERS - after - 2) <= streamed <= len(prompts) * (LAYERS - after)
    else:
        assert streamed <= sum(max(0, depth - after) for depth in prompts)
    assert result.summary["arm"] == f"{plain.summary['arm'].removesuffix(' fp32')} " + (
        f"offload k={after} fp32"
    )


def test_steps_are_clocked_by_what_the_loop_adds_up(config, runtime):
    result = execute(config("offload.after=1"), runtime)
    rows = [json.loads(line) for line in (result.folder / OFFLOAD).read_text().splitlines()]
    for row, sample in zip(rows, samples(result), strict=True):
        assert row["id"] == sample["id"]
        assert len(row["step_seconds"]) == len(row["fetched"]) == len(sample["exit_depths"])
        assert sum(row["step_seconds"]) == pytest.approx(sample["decode_seconds"], rel=1e-4)
    assert not (execute(config(), runtime).folder / OFFLOAD).exists()


@pytest.mark.parametrize("prefill", ["sequence", "backbone"])
@pytest.mark.parametrize("after", [1, 2])
def test_exit_at_k_is_river_with_that_largest_depth(after, prefill, config, runtime):
    common = [f"method.prefill={prefill}"]
    capped = execute(config(*common, f"criterion.max_depth={after}"), runtime)
    result = execute(
        config(*common, f"offload.after={after}", "offload.on_miss=exit_at_k"), runtime
    )
    fetched = execute(config(*common, f"offload.after={after}"), runtime)
    assert texts(result) == texts(capped) != texts(fetched)
    assert depths(result) == depths(capped)
    assert [s["prefill_depth"] for s in samples(result)] == [
        s["prefill_depth"] for s in samples(capped)
    ]
    offload = result.summary["offload"]
    assert offload["fetched_layers"] == 0
    # The layers beyond k fit into the staging layers, where building the engine left them.
    assert offload["prefill"]["fetched_layers"] == 0
    at_k = [depth == after for depth in depths(result)]
    assert offload["miss_rate"] == sum(at_k) / len(at_k)
    assert result.summary["arm"].endswith(f"offload k={after} exit_at_k fp32")


def test_a_killed_run_goes_on(config, runtime):
    settings = config("offload.after=1")
    whole = execute(settings, runtime)
    expected = (texts(whole), whole.summary["offload"]["miss_rate"])
    # Killed between the two files, in the middle of a line.
    path, fetches = whole.folder / "samples.jsonl", whole.folder / OFFLOAD
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:2]) + lines[2][:20])
    kept = fetches.read_text().splitlines(keepends=True)
    fetches.write_text("".join(kept[:3]) + kept[3][:9])
    again = execute(settings, runtime)
    assert (texts(again), again.summary["offload"]["miss_rate"]) == expected
    assert len(fetches.read_text().splitlines()) == 5
    assert again.summary["offload"]["decode_steps"] == whole.summary["offload"]["decode_steps"]
    assert regrade(again.folder, allow_code_execution=False).summary == again.summary


def test_the_paired_speedup_is_told_of_the_slower_link(config, runtime):
    result = execute(config("offload.after=1", "speedup.prompts=1", "fidelity.limit=1"), runtime)
    matched = result.summary["speedup"]["decode"]["matched"]
    assert any("slower link" in flag for flag in matched["flags"])
    plain = execute(config("speedup.prompts=1", "fidelity.limit=1"), runtime)
    flags = plain.summary["speedup"]["decode"]["matched"]["flags"]
    assert not any("slower link" in flag for flag in flags)
    # Both are compared with one run without exits, which keeps all its layers.
    for key in ("no_exit_run", "agreement", "excess_nll"):
        assert result.summary["fidelity"][key] == plain.summary["fidelity"][key]


# --- settings -------------------------------------------------------------------------------


def test_off_it_is_no_part_of_the_identity(config, runtime):
    plain = Run(config(), runtime)
    assert "offload" not in plain.settings
    other = Run(config("offload.on_miss=exit_at_k", "offload.coverage=0.5"), runtime)
    assert other.identity == plain.identity
    assert SCHEMA == 4


def test_on_every_setting_counts_for_the_identity(config, runtime):
    runs = [
        Run(config(*more), runtime)
        for more in (
            [],
            ["offload.after=1"],
            ["offload.after=2"],
            ["offload.after=1", "offload.on_miss=exit_at_k"],
        )
    ]
    assert len({run.identity for run in runs}) == len(runs)
    assert len({run.as_no_exit().identity for run in runs}) == 1
    assert runs[1].settings["offload"] == {"after": 1, "on_miss": "fetch"}


def test_settings_survive_the_way_to_another_process(config):
    asked = config("offload.after=auto", "offload.on_miss=exit_at_k")
    assert parse(json.loads(json.dumps(asdict(asked)))) == asked
    assert asked.offload == OffloadConfig(after="auto", on_miss="exit_at_k")
    assert effective_settings(asked, layers=3)["offload"]["coverage"] == 0.95


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["offload.after=-1"], "too small: give 0 or more"),
        (["offload.after=deep"], "give a number of layers, auto or null"),
        (["offload.after=1.5"], "offload.after=1.5 is no int or str"),
        (["offload.after=true"], "offload.after=True is no int or str"),
        (["offload.coverage=0"], r"give one in \(0, 1\]"),
        (["offload.after=1", "method=no_exit"], "method=no_exit has no backbone layers beside"),
        (["offload.after=1", "method=full_quant"], "method=full_quant has no backbone layers"),
        (["offload.after=1", "method=recompute"], "method=recompute has no backbone layers"),
        (["offload.after=auto", "method=static_first", "method.k=1"], "asks no exit criterion"),
        (
            ["offload.after=1", "offload.on_miss=exit_at_k", "method=quant_decode"],
            "on_miss=exit_at_k: method=quant_decode asks no exit criterion",
        ),
        (["offload.after=0", "offload.on_miss=exit_at_k"], "no backbone layer to exit from"),
    ],
)
def test_what_does_not_fit_is_refused(more, reason, config):
    with pytest.raises(UserError, match=reason):
        config(*more)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["offload.after=3"], "this model has 3 layers; give 0 to 2"),
        (["offload.after=auto", "criterion.tau=2"], "run all 3 layers, so that none is offloaded"),
        (
            ["offload.after=1", "offload.on_miss=exit_at_k", "criterion.min_depth=2"],
            "below criterion.min_depth=2",
        ),
    ],
)
def test_what_does_not_fit_the_model_is_refused(more, reason, config, runtime):
    with pytest.raises(UserError, match=reason):
        Run(config(*more), runtime).decoder()


def test_methods_with_a_river_may_offload(config, runtime):
    for more in (["method=quant_decode"], ["method=static_last", "method.k=1"]):
        plain = execute(config(*more, "limit=1"), runtime)
        result = execute(config(*more, "limit=1", "offload.after=2"), runtime)
        assert texts(result) == texts(plain)
        # The prompt runs in the backbone; of the steps, static_last's all need the last layer.
        assert result.summary["offload"]["miss_rate"] == (more[0] == "method=static_last")
        assert result.summary["offload"]["prefill"]["fetched_layers"] <= 1


# --- auto -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("coverage", "expected"), [(0.1, 1), (0.5, 2), (0.51, 3), (0.8, 3), (0.9, 9), (1.0, 30)]
)
def test_the_depth_that_covers_a_share(coverage, expected):
    found = [30, 1, 2, 3, 2, 1, 3, 3, 2, 9]
    assert covering_depth(found, coverage) == expected
    assert sum(depth <= expected for depth in found) >= coverage * len(found)


def test_auto_is_the_k_of_a_warm_up(config, runtime, capsys):
    plain = execute(config(), runtime)
    # Budgets of 8 tokens: 7 decode steps a sample; the warm-up goes on to its own number.
    auto = Run(config("offload.after=auto", "offload.coverage=0.5"), runtime)
    said = capsys.readouterr().err
    k = auto.config.offload.after
    assert isinstance(k, int)
    assert f"offload.after=auto: {k} of 3 layers, which 50% of {PROMPTS * STEPS} warm-up" in said
    given = Run(config(f"offload.after={k}"), runtime)
    assert auto.identity == given.identity
    fixed = Run(config("offload.after=auto", "criterion=fixed", "criterion.depth=2"), runtime)
    assert fixed.config.offload.after == 2
    assert plain.folder != auto.folder.path


# --- memory ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def embedded(tmp_path_factory):
    """The embedded model's run without and with offloading, and what two processes measured."""
    output = tmp_path_factory.mktemp("results")
    common = ["exp=gsm_mini", "limit=2", "exp.max_new_tokens=32", f"output.dir={output}"]
    common += ["criterion.tau=0.95", "fidelity.limit=0", "speedup.prompts=0"]
    runtime = Runtime.load(load_config(common))
    more = ["offload.after=4", "memory.peak=true"]
    full = Run(load_config([*common, "method=full_quant"]), runtime)
    offloaded = Run(load_config([*common, *more]), runtime)
    plain = execute(load_config(common), runtime)
    return SimpleNamespace(
        plain=plain,
        offloaded=execute(load_config([*common, *more]), runtime),
        again=peak_of(offloaded),
        full=min(peak_of(full), peak_of(full)),
    )


def peak_of(run: Run) -> int:
    peak = measure_peak(peak_request(run.config, run.decoder(), run.prompts))
    assert peak is not None
    return peak["peak_bytes"]


def test_the_embedded_models_text_is_the_same(embedded):
    assert texts(embedded.offloaded) == texts(embedded.plain)
    found = depths(embedded.plain)
    misses = sum(depth > 4 for depth in found)
    assert 0 < misses < len(found)
    assert embedded.offloaded.summary["offload"]["miss_rate"] == misses / len(found)


def test_the_embedded_models_memory_is_the_sum_of_its_parts(embedded):
    memory = embedded.offloaded.summary["offload"]["memory"]
    layer = embedded.plain.summary["memory"]["backbone_bytes"] / 30
    assert memory["resident_bytes"] == 4 * layer
    assert memory["staging_bytes"] == 2 * layer
    assert memory["measured_bytes"] == pytest.approx(memory["predicted_bytes"], rel=0.02)
    # And as the system counts it, in processes that differ in this alone: each twice, since what a
    # busy machine delays (memory that is given back) adds to one peak and not to the next.
    peak = min(embedded.offloaded.summary["memory"]["peak_bytes"], embedded.again)
    full = embedded.full
    assert peak == pytest.approx(full + 6 * layer, rel=0.02)
    assert peak - full == pytest.approx(6 * layer, abs=6 * MIB)
    assert "from 4 on released before" in embedded.offloaded.summary["memory"]["peak_source"]


def test_a_request_holds_the_depth_that_was_resolved(config, runtime):
    run = Run(config("offload.after=auto", "offload.coverage=0.5"), runtime)
    request = peak_request(run.config, run.decoder(), run.prompts)
    assert request.config["offload"]["after"] == run.config.offload.after
