"""scripts/bench_decode.py from its command line, on a tiny model."""

from __future__ import annotations

import json
import math
import runpy
import sys

import pytest

from command import ROOT
from river_llm.analysis.bench_files import plot_bench
from river_llm.benchmark import bandwidth, clock, decoders, run
from tiny_folder import HIDDEN, LAYERS, tiny_tokenizer

SCRIPT = "scripts/bench_decode.py"
SMALL = ("model.dtype=fp32", "contexts=[12,5]", "steps=3", "rounds=2")
ARMS = (
    'arms=[hf_generate,full_quant/int8,no_exit,full_quant,river@1,"river~2","no_exit~2",'
    "static_last@2,recompute@1,mask@1,state_propagation@1,mono_decreasing@2]"
)
NAMES = [name.strip('"') for name in ARMS.removeprefix("arms=[").removesuffix("]").split(",")]
# The engine is the compiled one, so the eager one is timed beside it.
NAMES.insert(NAMES.index("no_exit") + 1, "no_exit/eager")


@pytest.fixture(scope="module")
def done(commands, model, tmp_path_factory):
    """One real run of every kind of arm but llama.cpp."""
    folder = tmp_path_factory.mktemp("bench")
    return folder, commands.run(SCRIPT, [f"model.path={model}", ARMS, *SMALL], folder)


def all_numbers(value):
    if isinstance(value, dict):
        for inner in value.values():
            yield from all_numbers(inner)
    elif isinstance(value, float):
        yield value


def test_the_last_line_holds_every_figure_of_every_arm(done):
    _, command = done
    assert command.status == 0, command.stderr
    line = command.last_line
    assert list(line["arms"]) == NAMES
    assert line["arms"] == line["contexts"]["12"]["arms"]
    assert list(line["contexts"]) == ["12", "5"]
    assert (line["context"], line["steps"], line["rounds"]) == (12, 3, 2)
    assert (line["engine"], line["threads"], line["layers"]) == ("compiled", 1, LAYERS)
    assert line["compile_seconds"] >= 0.0
    assert line["bandwidth_gb_per_s"] > 0
    for arms in (line["arms"], line["contexts"]["5"]["arms"]):
        for name, arm in arms.items():
            assert 0 < arm["q1"] <= arm["ms_per_token"] <= arm["q3"], name
            assert arm["prefill_ms"] > 0
            kinds = {k: b for k, b in arm["bytes"].items() if k != "total"}
            assert arm["bytes"]["total"] == sum(kinds.values())
            # The faster of two rates: of a gigabyte, and of as many bytes as the arm reads.
            rate = max(line["bandwidth_gb_per_s"], arm["cached_gb_per_s"])
            bound = arm["bytes"]["total"] / rate / 1e6
            assert arm["bound_ms"] == pytest.approx(bound)
            assert arm["bound_share"] == pytest.approx(bound / arm["ms_per_token"])
            assert arm["gb_per_s"] == pytest.approx(
                arm["bytes"]["total"] / arm["ms_per_token"] / 1e6
            )
            assert arm["vs_no_exit"] > 0
            assert arm["vs_eager"] > 0
            assert arm["vs_hf"] > 0
        assert arms["no_exit"]["vs_no_exit"] == arms["no_exit/eager"]["vs_eager"] == 1.0
    assert all(math.isfinite(number) for number in all_numbers(line))


def test_bytes_and_depths_are_those_of_the_arms(done):
    """fp32: norms of 2 x 64 a layer and 64 at the end, 64 columns of head for each token id."""
    arms = done[1].last_line["arms"]
    vocabulary = len(tiny_tokenizer())
    head = 4 * HIDDEN * (vocabulary + 1)
    matrices = 4 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 128 * 64)
    # 13, 14 and 15 slots; key and value of 2 heads of 16 in a layer.
    kv = 4 * 2 * 2 * 16 * 14
    # Weights of a river in fp32 lie there dequantized, at 4 bytes.
    layers = {
        "no_exit": (3, 0),
        "no_exit~2": (3, 0),
        "full_quant": (0, 3),
        "full_quant/int8": (0, 3),
        "river@1": (1, 2),
        "river~2": (3, 0),
    }
    for name, (backbone, river) in layers.items():
        assert arms[name]["bytes"] == {
            "backbone": backbone * matrices,
            "river": river * matrices,
            "head": head,
            "kv": 3 * kv,
            "other": 4 * (3 * 2 * HIDDEN + HIDDEN),
            "total": 3 * matrices + head + 3 * kv + 4 * 7 * HIDDEN,
        }
    assert arms["mask@1"]["bytes"]["kv"] == kv
    # Blocks of 1, 2 and 3 tokens through one layer.
    assert arms["recompute@1"]["mean_block"] == 2.0
    assert arms["recompute@1"]["bytes"]["other"] == 4 * (2 * HIDDEN + 2 * HIDDEN)
    depths = {name: arm["mean_depth"] for name, arm in arms.items() if "mean_depth" in arm}
    assert depths == {
        "no_exit": 3,
        "no_exit/eager": 3,
        "full_quant": 0,
        "full_quant/int8": 0,
        "river@1": 1,
        "river~2": 3,
        "no_exit~2": 3,
        "static_last@2": 2,
        "recompute@1": 1,
        "mask@1": 1,
        "state_propagation@1": 1,
        "mono_decreasing@2": 2,
    }


def test_the_exit_tests_are_counted_and_their_cost_is_told(done):
    """3 layers: a test after the first and the second, in every step."""
    _, command = done
    arms = command.last_line["arms"]
    tests = {name: arm["mean_tests"] for name, arm in arms.items() if arm.get("mean_tests")}
    assert tests == {"river~2": 2.0, "no_exit~2": 2.0}
    cost = arms["no_exit~2"]
    assert cost["test_us_q1"] <= cost["test_us"] <= cost["test_us_q3"]
    share = cost["test_us"] * 1 / 1000 / arms["river@1"]["ms_per_token"]
    assert arms["river@1"]["test_share"] == pytest.approx(share)
    assert command.stdout.count("Exit test: ") == 2


def test_each_linear_is_timed_alone(done):
    """fp32, so the river's linears are dequantized: 4 bytes a weight in both stacks."""
    linears = done[1].last_line["linears"]
    assert list(linears) == ["backbone", "river/int8", "river"]
    shapes = {"q": (64, 64), "k": (32, 64), "v": (32, 64), "o": (64, 64)}
    named = {f"self_attn.{name}_proj": shape for name, shape in shapes.items()}
    named |= {f"mlp.{name}_proj": (128, 64) for name in ("gate", "up")}
    named["mlp.down_proj"] = (64, 128)
    for stack in linears.values():
        assert {n: (one["rows"], one["columns"]) for n, one in stack.items()} == named
        for one in stack.values():
            assert one["nbytes"] == 4 * one["rows"] * one["columns"]
            assert one["gb_per_s"] > 0
    assert done[1].stdout.count("| mlp.down_proj ") == 1


def test_figures_are_saved_with_what_they_are_made_of(done):
    folder, command = done
    saved = folder / command.last_line["folder"]
    assert saved.parent == folder / "results" / "bench"
    assert saved.name.startswith("llama-compiled-")
    record = json.loads((saved / "bench.json").read_text("utf-8"))
    assert {key: record[key] for key in command.last_line} == command.last_line
    assert record["environment"]["threads"] == 1
    assert record["settings"]["dtype"] == "fp32"
    assert len(record["settings"]["model_fingerprint"]) == 12
    assert max(record["bandwidth"]["gb_per_s"].values()) == record["bandwidth_gb_per_s"]
    for context in ("12", "5"):
        seconds = record["measured"][context]["arms"]["river@1"]["seconds"]
        middle = 1000 * sum(seconds) / 2 / 3
        figure = record["contexts"][context]["arms"]["river@1"]["ms_per_token"]
        assert len(seconds) == 2
        assert figure == pytest.approx(middle)
    assert (saved / "decode.png").stat().st_size > 10_000


def test_a_table_for_each_context_and_progress_on_stderr(done):
    command = done[1]
    assert command.stdout.count("| hf_generate (") == 2
    assert command.stdout.count("| mono_decreasing@2 ") == 2
    for word in ("building arms", "memory bandwidth", "context 5: prefill", "context 12: rounds"):
        assert word in command.stderr


def start(monkeypatch, tmp_path, gb_per_s, *arguments):
    """Runs the script in this process, with a given bandwidth."""
    given = bandwidth.Bandwidth({"sum_fp32": gb_per_s})
    monkeypatch.setattr(run, "measure_bandwidth", lambda device: given)
    monkeypatch.setattr(run, "rates_at", lambda device, sizes: [gb_per_s for _ in sizes])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [SCRIPT, *arguments])
    runpy.run_path(str(ROOT / SCRIPT), run_name="__main__")


def test_a_share_above_1_fails_after_everything_is_printed_and_saved(
    monkeypatch, tmp_path, model, capsys
):
    arguments = (f"model.path={model}", "arms=[no_exit]", "model.dtype=fp32", "contexts=[4]")
    with pytest.raises(SystemExit) as ended:
        start(monkeypatch, tmp_path, 1e-6, *arguments, "steps=1", "rounds=1")
    assert ended.value.code == 1
    output = capsys.readouterr()
    errors = [line for line in output.err.splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    assert errors[0].startswith(
        "error: no_exit at context 4, no_exit/eager at context 4: bound_share above 1"
    )
    line = json.loads(output.out.splitlines()[-1])
    assert line["arms"]["no_exit"]["bound_share"] > 1
    assert "| no_exit " in output.out
    assert (tmp_path / line["folder"] / "bench.json").is_file()


def test_a_context_is_saved_as_soon_as_it_is_there(monkeypatch, tmp_path, model):
    """The second context is interrupted."""
    measure = run._measure

    def interrupted(config, runtime, arms, prompt, clock):
        if len(prompt) == 6:
            raise KeyboardInterrupt
        return measure(config, runtime, arms, prompt, clock)

    monkeypatch.setattr(run, "_measure", interrupted)
    arguments = (f"model.path={model}", "arms=[no_exit]", "model.dtype=fp32", "contexts=[4,6]")
    with pytest.raises(SystemExit, match="130"):
        start(monkeypatch, tmp_path, 10.0, *arguments, "steps=1", "rounds=1")
    (saved,) = tmp_path.glob("results/bench/*/bench.json")
    record = json.loads(saved.read_text("utf-8"))
    assert list(record["contexts"]) == list(record["measured"]) == ["4"]


def test_a_round_is_saved_as_soon_as_it_is_there(monkeypatch, tmp_path, model):
    """The third round is interrupted."""
    rounds = run.time_rounds

    def interrupted(arms, count, label):
        for number, seconds in enumerate(rounds(arms, count, label)):
            if number == 2:
                raise KeyboardInterrupt
            yield seconds

    monkeypatch.setattr(run, "time_rounds", interrupted)
    arguments = (f"model.path={model}", "arms=[no_exit]", "model.dtype=fp32", "contexts=[4]")
    with pytest.raises(SystemExit, match="130"):
        start(monkeypatch, tmp_path, 10.0, *arguments, "steps=1", "rounds=5")
    (saved,) = tmp_path.glob("results/bench/*/bench.json")
    record = json.loads(saved.read_text("utf-8"))
    seconds = record["measured"]["4"]["arms"]["no_exit"]["seconds"]
    assert (len(seconds), record["rounds_made"], record["rounds"]) == (2, 2, 5)
    assert not list(saved.parent.glob("*.new"))
    # A picture of what is there can be drawn later, without a model.
    assert plot_bench(saved).read_bytes().startswith(b"\x89PNG")


def test_where_time_is_up_the_last_arms_and_rounds_are_dropped_aloud(
    monkeypatch, tmp_path, model, capsys
):
    """A minute passes in every pass: after two arms the warm-up's 60 of 100 s are over."""
    now = 0.0
    monkeypatch.setattr(clock.time, "monotonic", lambda: now)
    timed = decoders.DecoderArm.timed_pass

    def slow(arm):
        nonlocal now
        now += 40.0
        return timed(arm)

    monkeypatch.setattr(decoders.DecoderArm, "timed_pass", slow)
    arms = "arms=[no_exit,mask@1,river@1,full_quant]"
    arguments = (f"model.path={model}", arms, "model.dtype=fp32", "contexts=[4]", "engine=eager")
    with pytest.raises(SystemExit) as ended:
        start(monkeypatch, tmp_path, 1e6, *arguments, "steps=1", "rounds=5", "budget_s=100")
    assert ended.value.code == 0
    output = capsys.readouterr()
    assert "NOT TIMED, since time is up: river@1, full_quant" in output.err
    assert "1 of 5 rounds, since time is up" in output.err
    line = json.loads(output.out.splitlines()[-1])
    assert list(line["arms"]) == ["no_exit", "mask@1"]
    assert line["dropped"] == ["river@1", "full_quant"]
    assert line["rounds_made"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["arms=[river@4]"], "river@4: this model has 3 layers"),
        (["arms=[no_such]"], "'no_such' is no arm"),
        (["arms=[no_exit,llama_cpp]"], "llama_cpp needs a file"),
        (["arms=[llama_cpp]", "gguf=none.gguf"], "gguf=none.gguf is no file"),
        (["arms=[mask@1,mask@1]"], "arms names mask@1 twice"),
        (["contexts=[]"], "contexts=[] is empty"),
        (["contexts=[64,0]"], "contexts=0 is too small"),
        (["contexts=[1530]"], "contexts=1530 with steps=16 exceeds the model's 1536"),
        (["steps=0"], "steps=0 is too small"),
        (["budget_s=0"], "budget_s=0.0 is too small"),
        (["arms=['no_exit~0.5']"], "no_exit~0.5 would exit"),
        (["rounds=1.5"], "rounds=1.5 is not a whole number"),
        (["tau=0.5"], "unknown key tau"),
        (["+tau=0.5"], "unknown key tau"),
        (["exp=gsm8k"], "exp"),
        (["model.name=a/b"], "model.name='a/b'"),
        (["quant.group_size=0"], "quant.group_size=0 is too small"),
        (["engine=magic"], "unknown engine 'magic'"),
        (["arms=[river~2]"], "arms=[river~2]"),
    ],
)
def test_mistakes_are_told_in_one_line(arguments, message, commands, model, empty):
    result = commands.run(SCRIPT, [f"model.path={model}", *arguments], empty)
    assert result.status == 2
    (error,) = result.errors
    assert message in error
    assert "Traceback" not in result.stderr
    assert not list(empty.iterdir())
