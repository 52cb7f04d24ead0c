"""`python run.py ...` from the outside: bad input ends in one clear line and leaves no trace."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from command import ROOT, Commands, Done
from river_llm.composition import load_config
from river_llm.errors import UserError
from river_llm.evaluation.run import execute
from river_llm.evaluation.runtime import Runtime
from river_llm.records import RunFolder
from tiny_folder import CONTEXT, LAYERS, SMALL, save_gpt2, save_llama, tiny_llama, tiny_tokenizer


def check_message(done: Done, words: Sequence[str]) -> None:
    """One line with all these words, exit status not 0, no traceback, no result."""
    assert done.status == 2, done.stderr or done.stdout
    assert len(done.errors) == 1, done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.errors[0]
    assert done.stdout == ""


def check_refused(done: Done, folder: Path, words: Sequence[str]) -> None:
    """The same, and nothing is written to the folder it was started in."""
    check_message(done, words)
    assert list(folder.iterdir()) == []


# --- told before anything is loaded -------------------------------------------------------

COMMAND_LINE: dict[str, tuple[list[str], list[str]]] = {
    "unknown exp": (
        ["exp=gsm9k"],
        ["'gsm9k'", "gsm8k, gsm_mini, humaneval, jsonl, math, math_mini"],
    ),
    "unknown method": (["method=rive"], ["'rive'", "full_quant, mask, mono_decreasing, no_exit,"]),
    "unknown criterion": (["criterion=cosine"], ["'cosine'", "fixed, never, replay, similarity"]),
    "unknown model": (["model=gpt5"], ["'gpt5'", "llama3.2_1b, ministral3_8b, phi4_mini, random"]),
    "unknown quantizer": (["quant=int3"], ["'int3'", "hqq_int4, none, rtn_int4, rtn_int8"]),
    "misspelt key": (["criterion.tua=0.5"], ["criterion.tua", "unknown key"]),
    "misspelt key added": (["+criterion.tua=0.5"], ["criterion.tua", "criterion.tau"]),
    "misspelt key forced": (["++lmit=5"], ["lmit", "unknown key"]),
    "key of another option": (["method=no_exit", "+method.prefill=x"], ["method.prefill"]),
    "tau is a word": (["criterion.tau=high"], ["criterion.tau", "'high'", "number"]),
    "tau is nan": (["criterion.tau=nan"], ["criterion.tau", "nan", "finite"]),
    "minus one sample": (["limit=-1"], ["limit=-1", "0 or more"]),
    "two limits": (["limit=2", "exp.limit=3"], ["limit=2", "exp.limit=3"]),
    "no depth": (["criterion=fixed"], ["criterion.depth", "give criterion.depth="]),
    "no run to replay": (["criterion=replay"], ["give criterion.from_run="]),
    "no equals sign": (["gsm8k"], ["'gsm8k'"]),
    "a sweep without -m": (["criterion.tau=0.5,0.7"], ["criterion.tau", "--multirun"]),
    "a recipe without -m": (["sweep=pareto"], ["sweep=pareto", "add -m"]),
    "a shard without -m": (["shard=1/2"], ["shard=1/2", "add -m"]),
    "a dry run without -m": (["dry_run=true"], ["dry_run=True", "add -m"]),
    "group deleted": (["~quant"], ["quant is missing"]),
    "group deleted that others need": (["~exp"], ["exp.limit", "not found"]),
    "group emptied": (["method=null"], []),
}


@pytest.mark.parametrize("name", COMMAND_LINE)
def test_a_mistake_on_the_command_line_is_told_in_one_line(
    commands: Commands, empty: Path, name: str
):
    arguments, words = COMMAND_LINE[name]
    done = commands.run("run.py", arguments, empty)
    check_refused(done, empty, words)
    assert done.stderr == done.errors[0] + "\n"


def test_a_mistake_on_the_command_line_does_not_wait_for_torch(empty: Path):
    # A process of its own: the server above has imported everything.
    script = (
        "import runpy, sys\n"
        f"sys.argv = ['run.py', 'exp=gsm9k']\n"
        "try:\n"
        f"    runpy.run_path({str(ROOT / 'run.py')!r}, run_name='__main__')\n"
        "except SystemExit as ended:\n"
        "    print(ended.code, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=empty, capture_output=True, text=True, check=True
    )
    assert done.stdout == "2 False\n"
    assert done.stderr.startswith("error: unknown exp 'gsm9k'")
    assert list(empty.iterdir()) == []


# --- told once model and data are read ----------------------------------------------------


def write_rows(path: Path, *rows: str) -> Path:
    path.write_text("".join(row + "\n" for row in rows), encoding="utf-8")
    return path


GOOD_ROW = json.dumps({"question": "How many is one and one?", "answer": "It is two.\n#### 2"})
ROWS: dict[str, tuple[str, list[str]]] = {
    "no JSON": ("question: how many?", ["line 3", "JSON"]),
    "half a row": (GOOD_ROW[:30], ["line 3", "JSON"]),
    "no object": ("[1, 2]", ["line 3", "object"]),
    "a column too few": ('{"question": "How many?"}', ["line 3", "'answer'"]),
    "no text": ('{"question": 5, "answer": "#### 5"}', ["line 3", "'question'"]),
    "no number": ('{"question": "How?", "answer": "so"}', ["line 3", "####"]),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_bad_row_is_named_with_file_and_line(
    commands: Commands, model: Path, tmp_path: Path, empty: Path, name: str
):
    row, words = ROWS[name]
    # The run would need the first row alone; the file is wrong all the same.
    data = write_rows(tmp_path / "rows.jsonl", GOOD_ROW, GOOD_ROW.replace("one", "1"), row)
    arguments = [*SMALL, f"model.path={model}", "exp=gsm8k", f"data.path={data}", "limit=1"]
    check_refused(commands.run("run.py", arguments, empty), empty, [str(data), *words])


@pytest.mark.parametrize("exp", ["gsm8k", "math", "humaneval"])
def test_a_missing_data_file_is_named(commands: Commands, model: Path, empty: Path, exp: str):
    arguments = [*SMALL, f"model.path={model}", f"exp={exp}", "data.path=nosuch/rows.jsonl"]
    done = commands.run("run.py", arguments, empty)
    check_refused(done, empty, ["nosuch/rows.jsonl", "does not exist"])


def test_an_empty_data_file_is_named(commands: Commands, model: Path, tmp_path: Path, empty: Path):
    data = write_rows(tmp_path / "rows.jsonl")
    arguments = [*SMALL, f"model.path={model}", "exp=gsm8k", f"data.path={data}"]
    check_refused(commands.run("run.py", arguments, empty), empty, [str(data), "empty"])


@pytest.mark.parametrize(
    ("exp", "words"),
    [("gsm8k", ["openai/gsm8k", "config main"]), ("math", ["HuggingFaceH4/MATH-500"])],
)
def test_a_data_set_out_of_reach_says_what_needs_no_hub(
    commands: Commands, model: Path, empty: Path, exp: str, words: list[str]
):
    done = commands.run("run.py", [*SMALL, f"model.path={model}", f"exp={exp}"], empty)
    check_refused(done, empty, [*words, "data.path=", "exp=gsm_mini", "exp=humaneval"])


@pytest.mark.parametrize("path", ["some-organisation/some-model", "no/such/folder", "./nosuch"])
def test_a_model_out_of_reach_says_what_needs_no_hub(commands: Commands, empty: Path, path: str):
    done = commands.run("run.py", [*SMALL, f"model.path={path}"], empty)
    check_refused(done, empty, [f"model.path={path}", "model=smollm2_135m"])


SETTINGS: dict[str, tuple[list[str], list[str]]] = {
    "no CUDA": (["model.device=cuda"], ["model.device=cuda", "model.device=cpu"]),
    "no such device": (["model.device=gpu"], ["'gpu'", "cpu or cuda"]),
    "a device of another kind": (["model.device=meta"], ["'meta'", "cpu or cuda"]),
    "too long": ([f"exp.max_new_tokens={CONTEXT}"], [str(CONTEXT), "exp.max_new_tokens="]),
    "group too wide": (["quant.group_size=48"], ["q_proj", "width 64", "quant.group_size=48"]),
    "group wider than all": (["quant.group_size=256"], ["width 64", "quant.group_size=256"]),
    "too deep": (["criterion=fixed", f"criterion.depth={LAYERS + 1}"], ["=4", "0 to 3"]),
    "below depth 0": (["criterion=fixed", "criterion.depth=-1"], ["criterion.depth=-1", "0 to 3"]),
    "tests begin too deep": (["criterion.min_depth=3"], ["criterion.min_depth=3", "1 to 2"]),
    "tests begin at 0": (["criterion.min_depth=0"], ["criterion.min_depth=0", "1 to 2"]),
    "forced exit before the tests": (
        ["criterion.min_depth=2", "criterion.max_depth=1"],
        ["criterion.max_depth=1", "criterion.min_depth=2"],
    ),
    "no run there": (
        ["criterion=replay", "criterion.from_run=nosuch"],
        ["criterion.from_run=nosuch"],
    ),
    "no text and no measurement": (
        ["limit=0", "fidelity.limit=0", "speedup.prompts=0"],
        ["limit=0", "nothing to run"],
    ),
    "too many exemplars": (["exp.fewshot=99"], ["exp.fewshot=99"]),
    "data for the embedded set": (["data.path=rows.jsonl"], ["data.path='rows.jsonl'"]),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_that_the_model_cannot_serve_is_told(
    commands: Commands, model: Path, empty: Path, name: str
):
    arguments, words = SETTINGS[name]
    done = commands.run("run.py", [*SMALL, f"model.path={model}", *arguments], empty)
    check_refused(done, empty, words)


def test_an_unknown_architecture_is_named(commands: Commands, tmp_path: Path, empty: Path):
    folder = save_gpt2(tmp_path / "gpt2")
    done = commands.run("run.py", [*SMALL, f"model.path={folder}"], empty)
    check_refused(done, empty, ["'gpt2'", "llama, qwen2, qwen3"])


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


DAMAGE = {
    "config is no JSON": lambda folder: cut(folder / "config.json"),
    "config is missing": lambda folder: (folder / "config.json").unlink(),
    "weights are cut off": lambda folder: cut(folder / "model.safetensors"),
    "weights are missing": lambda folder: (folder / "model.safetensors").unlink(),
    "tokenizer is cut off": lambda folder: cut(folder / "tokenizer.json"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_model_folder_is_named(
    commands: Commands, tmp_path: Path, empty: Path, name: str
):
    folder = save_llama(tmp_path / "llama")
    DAMAGE[name](folder)
    done = commands.run("run.py", [*SMALL, f"model.path={folder}"], empty)
    check_refused(done, empty, [f"model.path={folder}"])


def test_weights_that_lack_a_tensor_are_refused(commands: Commands, tmp_path: Path, empty: Path):
    # transformers fills what is missing with random numbers and goes on.
    folder = tmp_path / "llama"
    llama = tiny_llama()
    weights = llama.state_dict()
    del weights["model.layers.1.mlp.up_proj.weight"]
    llama.save_pretrained(folder, state_dict=weights)
    tiny_tokenizer().save_pretrained(folder)
    done = commands.run("run.py", [*SMALL, f"model.path={folder}"], empty)
    check_refused(done, empty, [f"model.path={folder}", "mlp.up_proj.weight"])


def test_a_file_in_place_of_the_output_folder_is_left_alone(
    commands: Commands, model: Path, tmp_path: Path, empty: Path
):
    file = tmp_path / "mine"
    file.write_text("mine", encoding="utf-8")
    arguments = [*SMALL, f"model.path={model}", f"output.dir={file}"]
    check_refused(commands.run("run.py", arguments, empty), empty, [str(file), "output.dir="])
    assert file.read_text(encoding="utf-8") == "mine"


def test_the_advice_on_a_long_prompt_can_be_followed(model: Path, tmp_path: Path):
    common = [*SMALL, f"model.path={model}", f"output.dir={tmp_path}", "method=no_exit", "limit=1"]
    runtime = Runtime.load(load_config(common))
    with pytest.raises(UserError) as caught:
        execute(load_config([*common, f"exp.max_new_tokens={CONTEXT}"]), runtime)
    advised = int(str(caught.value).partition("use exp.max_new_tokens=")[2].split()[0])
    with pytest.raises(UserError, match=f"exceed the model's {CONTEXT} positions"):
        execute(load_config([*common, f"exp.max_new_tokens={advised + 1}"]), runtime)
    record = one_sample(common, runtime)
    assert record.prompt_tokens + advised == CONTEXT


def test_a_budget_that_fits_is_not_refused_for_timing_tokens(model: Path, tmp_path: Path):
    # What is timed beside the samples is not the budget that the user gave.
    common = [*SMALL, f"model.path={model}", f"output.dir={tmp_path}", "method=no_exit", "limit=1"]
    runtime = Runtime.load(load_config(common))
    run = execute(load_config([*common, "speedup.prompts=0", f"speedup.tokens={CONTEXT}"]), runtime)
    assert run.summary["samples"] == 1


def one_sample(overrides: Sequence[str], runtime: Runtime):
    """The first sample of a run in this process."""
    return RunFolder(execute(load_config(overrides), runtime).folder).samples()[0]


# --- NaN ----------------------------------------------------------------------------------


def test_nan_weights_stop_the_run_at_the_first_sample(
    commands: Commands, tmp_path: Path, empty: Path
):
    folder = tmp_path / "llama"
    llama = tiny_llama()
    with torch.no_grad():
        llama.model.layers[1].mlp.up_proj.weight[0, 0] = torch.nan
    llama.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    arguments = [*SMALL, f"model.path={folder}"]
    # The quantizer already sees them; without one the first prediction does.
    check_refused(commands.run("run.py", arguments, empty), empty, ["1.mlp.up_proj", "NaN"])
    done = commands.run("run.py", [*arguments, "method=no_exit"], empty)
    check_message(done, ["sample gsm_mini/01", "step 0", "NaN"])


@pytest.mark.parametrize(
    "method",
    [
        ["method=no_exit"],
        ["method=full_quant", "quant=none"],
        ["criterion.tau=0.75", "quant=none"],
        ["criterion=fixed", "criterion.depth=1", "quant=none"],
    ],
    ids=["no_exit", "full_quant", "similarity", "fixed"],
)
def test_nan_inside_a_text_names_sample_and_step(model: Path, tmp_path: Path, method: list[str]):
    common = [
        *SMALL,
        *method,
        f"model.path={model}",
        "speedup.prompts=0",
        "fidelity.limit=0",
    ]
    good = load_config([*common, f"output.dir={tmp_path / 'good'}"])
    runtime = Runtime.load(good)
    records = RunFolder(execute(good, runtime).folder).samples()
    # The embedding of a token that the second sample emits and feeds again, and neither a prompt
    # nor the first sample holds: the first sample ends well, the second breaks at the next token.
    place, poison = next(
        (place, token)
        for place, token in enumerate(records[1].token_ids[:-1])
        if token not in records[0].token_ids
    )
    embedding = runtime.adapter.model.get_input_embeddings().weight
    with torch.no_grad():
        embedding[poison] = torch.nan
    broken = load_config([*common, f"output.dir={tmp_path / 'broken'}"])
    with pytest.raises(UserError) as caught:
        execute(broken, runtime)
    message = str(caught.value)
    assert f"sample {records[1].id}, step {place + 1}:" in message
    assert "NaN" in message
    assert "\n" not in message
    (samples,) = (tmp_path / "broken").rglob("samples.jsonl")
    kept = RunFolder(samples.parent).samples()
    assert [(r.id, r.token_ids) for r in kept] == [(records[0].id, records[0].token_ids)]


@pytest.mark.parametrize("measured", ["speedup", "fidelity"])
def test_nan_while_measuring_is_told_in_one_line(model: Path, tmp_path: Path, measured: str):
    small = ["limit=1", "fidelity.limit=1", "speedup.tokens=8"]
    common = [*SMALL, f"model.path={model}", "method=no_exit", *small]
    common.append(f"{'fidelity.limit' if measured == 'speedup' else 'speedup.prompts'}=0")
    good = load_config([*common, f"output.dir={tmp_path / 'good'}"])
    runtime = Runtime.load(good)
    run = execute(good, runtime)
    (record,) = RunFolder(run.folder).samples()
    # Of a finished run nothing is left to do but what is measured beside its samples.
    (run.folder / "measurements.json").unlink()
    (run.folder / "reference_scores.json").unlink(missing_ok=True)
    embedding = runtime.adapter.model.get_input_embeddings().weight
    with torch.no_grad():
        embedding[record.token_ids[1]] = torch.nan
    with pytest.raises(UserError) as caught:
        execute(good, runtime)
    assert f"sample {record.id}" in str(caught.value)
    assert "NaN" in str(caught.value)


# --- runs that go well --------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(
    commands: Commands, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Done, Path]:
    """A run to its end, and the folder it was started in."""
    here = tmp_path_factory.mktemp("here")
    done = commands.run("run.py", [*SMALL, f"model.path={model}", "criterion.tau=0.75"], here)
    assert done.status == 0, done.stderr
    return done, here


def test_the_last_line_is_the_summary_with_its_folder(finished: tuple[Done, Path]):
    done, here = finished
    content = done.last_line
    folder = here / content.pop("run_dir")
    assert content == json.loads((folder / "summary.json").read_text("utf-8"))
    assert (content["exp"], content["method"], content["samples"]) == ("gsm_mini", "river", 4)
    assert content["identity"] == folder.name.removeprefix("river-")
    assert folder.parent == here / "results" / "runs" / "gsm_mini" / "llama"


def test_a_run_leaves_its_records_and_nothing_else(finished: tuple[Done, Path]):
    done, here = finished
    folder = here / done.last_line["run_dir"]
    assert [path.name for path in here.iterdir()] == ["results"]
    assert {path.name for path in folder.iterdir()} == {
        ".lock",
        "config.json",
        "environment.json",
        "forced_scores.json",
        "measurements.json",
        "samples.jsonl",
        "steps.parquet",
        "summary.json",
    }
    assert len(RunFolder(folder).samples()) == 4
    # Beside it stands the run that it is compared with, as far as it was needed.
    (reference,) = (path for path in folder.parent.iterdir() if path != folder)
    assert reference.name.startswith("no_exit-")
    assert len(RunFolder(reference).samples()) == 2


def test_the_environment_names_no_host_user_or_folder(finished: tuple[Done, Path], model: Path):
    done, here = finished
    text = (here / done.last_line["run_dir"] / "environment.json").read_text("utf-8")
    for private in (str(here), str(model), str(Path.home()), sys.prefix, platform.node()):
        assert private not in text
    (start,) = json.loads(text)
    assert start["device"] == "cpu"
    assert start["packages"]["torch"] == torch.__version__
    assert start["threads"] == 1
    assert start["linears_per_backend"] == {"dequantized": 7 * LAYERS}


def test_the_terminal_shows_the_summary(finished: tuple[Done, Path]):
    done, _ = finished
    for word in ("accuracy", "fidelity", "noise floor", "exit depth", "ms per token", "speedup"):
        assert word in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()[:-1]) <= 80


def test_a_sweep_runs_every_value_in_a_folder_of_its_own(
    commands: Commands, model: Path, empty: Path
):
    arguments = ["-m", *SMALL, f"model.path={model}", "limit=1", "criterion.tau=0.3,0.8"]
    done = commands.run("run.py", arguments, empty)
    assert done.status == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [line["settings"]["criterion"]["tau"] for line in lines] == [0.3, 0.8]
    folders = [empty / line["run_dir"] for line in lines]
    assert len(set(folders)) == 2
    assert all((folder / "summary.json").exists() for folder in folders)
    names = {path.name.partition("-")[0] for path in folders[0].parent.iterdir()}
    assert names == {"river", "no_exit"}


def test_a_sweep_leaves_no_files_of_hydra_beside_the_results(
    commands: Commands, model: Path, empty: Path
):
    # In a checkout they would make it look changed, and the next run could not be resumed.
    arguments = ["-m", *SMALL, f"model.path={model}", "limit=1", "method=no_exit,full_quant"]
    assert commands.run("run.py", arguments, empty).status == 0
    assert [path.name for path in empty.iterdir()] == ["results"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["exp=gsm9k"], [["exp=gsm9k", "unknown exp 'gsm9k'"]]),
        (["criterion.tua=0.5,0.7"], [["tua=0.5", "unknown key"], ["tua=0.7", "unknown key"]]),
        (["criterion.tau=high,low"], [["'high'", "number"], ["'low'", "number"]]),
        (["limit=-1,-2"], [["limit=-1", "too small"], ["limit=-2", "too small"]]),
    ],
)
def test_a_mistake_in_a_sweep_is_told_in_one_line_for_each_cell(
    commands: Commands, model: Path, empty: Path, arguments: list[str], words: list[list[str]]
):
    done = commands.run("run.py", ["-m", *SMALL, f"model.path={model}", *arguments], empty)
    assert done.status == 2
    assert "Traceback" not in done.stderr
    for place, (line, expected) in enumerate(zip(done.errors, words, strict=True)):
        assert f"cell [{place + 1}/{len(words)}] " in line
        assert all(word in line for word in expected)
    assert done.stdout == ""
    assert [path.name for path in (empty / "results").iterdir()] == ["sweeps"]


SWEEP: dict[str, tuple[list[str], list[str]]] = {
    "unknown recipe": (["sweep=nosuch"], ["unknown sweep 'nosuch'", "grid", "pareto"]),
    "two recipes": (["sweep=grid,pareto"], ["sweep=grid,pareto"]),
    "unknown key of a recipe": (["sweep.nmae=x"], ["sweep.nmae", "unknown key"]),
    "no recipe": (["~sweep"], ["sweep is missing"]),
    "shard beyond the last": (["shard=3/2"], ["shard=3/2", "1 <= i <= n"]),
    "shard 0": (["shard=0/2"], ["shard=0/2", "1 <= i <= n"]),
    "shard is a word": (["shard=first"], ["shard=first", "1 <= i <= n"]),
    "dry run is a word": (["dry_run=maybe"], ["dry_run='maybe'", "true or false"]),
    "two places for results": (["output.dir=a,b"], ["output.dir=a,b"]),
    "no equals sign": (["gsm8k"], ["'gsm8k'", "key=value"]),
    "unknown launcher": (["hydra/launcher=nosuch"], ["hydra/launcher 'nosuch'", "joblib"]),
    "unknown key of a launcher": (
        ["hydra/launcher=joblib", "hydra.launcher.n_jbos=2"],
        ["hydra.launcher.n_jbos", "unknown key"],
    ),
    "unknown key of Hydra added": (["+hydra.nosuch=2"], ["hydra.nosuch", "unknown key"]),
    "another sweeper": (["hydra/sweeper=basic"], ["hydra/sweeper", "plans its own cells"]),
    "another folder of Hydra's": (["hydra.sweep.dir=x"], ["hydra.sweep.dir", "output.dir"]),
}


@pytest.mark.parametrize("name", SWEEP)
def test_a_sweep_that_cannot_be_planned_is_told_in_one_line(
    commands: Commands, model: Path, empty: Path, name: str
):
    arguments, words = SWEEP[name]
    arguments = ["-m", *SMALL, f"model.path={model}", "method=no_exit,river", *arguments]
    done = commands.run("run.py", arguments, empty)
    check_refused(done, empty, words)
    assert done.stderr == done.errors[0] + "\n"


def test_settings_can_be_shown_without_a_run(commands: Commands, empty: Path):
    done = commands.run("run.py", ["--cfg", "job", "exp=math"], empty)
    assert done.status == 0
    assert "max_new_tokens: 512" in done.stdout
    assert list(empty.iterdir()) == []


def test_the_script_runs_as_a_command_of_its_own(model: Path, tmp_path: Path):
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "run.py"),
            *SMALL,
            f"model.path={model}",
            "method=no_exit",
            "limit=1",
            "exp.max_new_tokens=1",
        ],
        cwd=tmp_path,
        env={**os.environ, "RIVER_LLM_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout.splitlines()[-1])
    # One token is the prefill's: there is no decode step to time.
    assert content["time"]["decode_steps"] == 0
    assert content["time"]["decode_ms_per_token"] is None
    assert content["time"]["tokens_timed"] == 1


def test_a_run_without_a_hub_uses_what_lies_on_disk(
    commands: Commands, model: Path, tmp_path: Path, empty: Path
):
    data = write_rows(tmp_path / "rows.jsonl", GOOD_ROW)
    arguments = [*SMALL, f"model.path={model}", "exp=gsm8k", f"data.path={data}", "limit=null"]
    arguments.append("exp.fewshot=0")
    done = commands.run("run.py", arguments, empty)
    assert done.status == 0, done.stderr
    assert (done.last_line["exp"], done.last_line["samples"]) == ("gsm8k", 1)
