"""A run that is stopped, started again, made longer or graded anew: nothing finished is lost."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from command import Commands
from river_llm import environment
from river_llm.composition import load_config
from river_llm.decoding import Decoder
from river_llm.errors import UserError
from river_llm.evaluation import decode_speedup, samples
from river_llm.evaluation import run as run_module
from river_llm.evaluation.run import Run, execute
from river_llm.evaluation.runtime import Runtime
from river_llm.evaluation.summary import RunResult, regrade
from river_llm.models.adapter import BackboneAdapter
from river_llm.records import RunFolder, SampleRecord
from tiny_folder import CHAT_TEMPLATE, LAYERS, SMALL, save_llama

NO_EXIT = ["method=no_exit"]
RIVER = ["method=river", "criterion.tau=0.75"]
ALONE = ["speedup.prompts=0", "fidelity.limit=0"]
"""No measurements beside the samples: every prefill is a sample's."""

TIMES = ("prefill_seconds", "decode_seconds")


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Packed weights go to a folder of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RIVER_LLM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for `model.path=`."""
    return save_llama(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(scope="module")
def runtime(model: Path) -> Runtime:
    """The loaded model, shared by the runs of this process."""
    return Runtime.load(load_config([*SMALL, f"model.path={model}"]))


@pytest.fixture(autouse=True)
def commit(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, bool], None]:
    """Sets the commit that the code seems to be at; the real checkout may change meanwhile."""

    def set_to(name: str, clean: bool = True) -> None:
        monkeypatch.setattr(run_module, "git_state", lambda: (name, clean))

    set_to("c0ffee")
    return set_to


class Starter:
    """Starts runs in this process, all with one model and into one folder."""

    def __init__(self, model: Path, runtime: Runtime, output: Path) -> None:
        self.common = [*SMALL, f"model.path={model}", f"output.dir={output}"]
        self.runtime = runtime
        self.output = output

    def __call__(self, *overrides: str) -> RunResult:
        return execute(load_config([*self.common, *overrides]), self.runtime)

    def elsewhere(self, output: Path) -> Starter:
        """The same in another folder."""
        other = Starter(Path(), self.runtime, output)
        other.common = [*self.common[:-1], f"output.dir={output}"]
        return other

    def identity(self, *overrides: str) -> str:
        return Run(load_config([*self.common, *overrides]), self.runtime).identity


@pytest.fixture
def start(model: Path, runtime: Runtime, tmp_path: Path) -> Starter:
    return Starter(model, runtime, tmp_path / "results")


@pytest.fixture
def prefills(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The prompts that were fed to a decoder since the test began (or cleared the list)."""
    seen: list[list[int]] = []
    original = Decoder.prefill

    def counting(self: Decoder, prompts: Sequence[Sequence[int]]) -> Any:
        seen.extend(list(prompt) for prompt in prompts)
        return original(self, prompts)

    monkeypatch.setattr(Decoder, "prefill", counting)
    return seen


@pytest.fixture
def generated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of the prompts for which a sample's text was generated."""
    seen: list[int] = []
    original = samples.generate

    def counting(decoder: Decoder, prompt: Sequence[int], *rest: Any) -> Any:
        seen.append(len(prompt))
        return original(decoder, prompt, *rest)

    monkeypatch.setattr(samples, "generate", counting)
    return seen


def lines(result: RunResult | Path) -> list[bytes]:
    """The raw lines of samples.jsonl."""
    folder = result.folder if isinstance(result, RunResult) else result
    content = (folder / "samples.jsonl").read_bytes()
    assert content.endswith(b"\n")
    return content.split(b"\n")[:-1]


def timeless(result: RunResult | Path) -> list[dict[str, Any]]:
    """The samples without what no two runs share."""
    rows = [json.loads(line) for line in lines(result)]
    return [{key: value for key, value in row.items() if key not in TIMES} for row in rows]


def records(result: RunResult) -> list[SampleRecord]:
    return RunFolder(result.folder).samples()


def files(folder: Path) -> dict[str, bytes]:
    """Content of all files of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


# --- longer -------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [NO_EXIT, ["method=full_quant"], RIVER], ids=lambda m: m[0])
def test_two_samples_and_then_four_are_four_samples(
    start: Starter, prefills: list[list[int]], tmp_path: Path, method: list[str]
):
    whole = start.elsewhere(tmp_path / "undisturbed")(*method, *ALONE)
    # Each start warms up on the first prompt that it is to generate.
    warmed, *asked = prefills
    assert warmed == asked[0]
    assert len(asked) == 4
    prefills.clear()
    first = start(*method, *ALONE, "limit=2")
    finished = lines(first)
    assert prefills == [asked[0], *asked[:2]]
    prefills.clear()
    second = start(*method, *ALONE)
    assert prefills == [asked[2], *asked[2:]]
    assert second.folder == first.folder
    assert lines(second)[:2] == finished
    assert timeless(second) == timeless(whole)
    assert (first.summary["samples"], second.summary["samples"]) == (2, 4)


def test_the_river_run_of_these_tests_has_more_than_one_depth(start: Starter):
    # Else resuming could confuse the depths of samples without a test seeing it.
    depths = [depth for record in records(start(*RIVER, *ALONE)) for depth in record.exit_depths]
    assert len(set(depths)) > 1
    assert sum(depth < LAYERS for depth in depths) > 0.3 * len(depths)


@pytest.mark.parametrize(
    "half", [b'{"id": "gsm_mini/03", "ind', b"{", b"\xf0\x9f", b"\x00\x00\x00"]
)
def test_half_a_line_is_cut_off_and_its_sample_made_again(
    start: Starter, tmp_path: Path, half: bytes
):
    first = start(*RIVER, *ALONE, "limit=2")
    finished = lines(first)
    with (first.folder / "samples.jsonl").open("ab") as file:
        file.write(half)
    second = start(*RIVER, *ALONE)
    assert lines(second)[:2] == finished
    assert timeless(second) == timeless(start.elsewhere(tmp_path / "other")(*RIVER, *ALONE))


def test_a_broken_row_stops_the_run_and_is_left_as_it_is(start: Starter):
    first = start(*RIVER, *ALONE, "limit=2")
    path = first.folder / "samples.jsonl"
    broken = path.read_bytes().replace(b'"id"', b"id", 1)
    path.write_bytes(broken)
    with pytest.raises(UserError, match=r"samples\.jsonl, line 1:"):
        start(*RIVER, *ALONE)
    assert path.read_bytes() == broken


def test_a_smaller_limit_sums_up_the_first_samples(start: Starter, prefills: list[list[int]]):
    whole = start(*RIVER, *ALONE)
    before = lines(whole)
    prefills.clear()
    first = start(*RIVER, *ALONE, "limit=2")
    assert prefills == []
    assert lines(first) == before
    pair = records(whole)[:2]
    depths = [depth for record in pair for depth in record.exit_depths]
    assert first.summary["samples"] == 2
    assert first.summary["exit_depth"]["histogram"] == [depths.count(d) for d in range(LAYERS + 1)]
    assert first.summary["time"]["decode_ms_per_token"] == pytest.approx(
        1000 * sum(record.decode_seconds for record in pair) / len(depths)
    )
    again = start(*RIVER, *ALONE)
    assert again.summary == whole.summary
    assert lines(again) == before


@pytest.mark.parametrize("then", [[], ["limit=2"]], ids=["", "then a smaller limit"])
def test_steps_hold_every_step_of_the_samples(start: Starter, then: list[str]):
    start(*RIVER, *ALONE)
    run = start(*RIVER, *ALONE, *then)
    frame = pd.read_parquet(run.folder / "steps.parquet")
    rows = [
        (record.id, step, depth, score)
        for record in records(run)
        for step, (depth, score) in enumerate(
            zip(record.exit_depths, record.exit_scores, strict=True)
        )
    ]
    assert list(frame.itertuples(index=False, name=None)) == rows


# --- again --------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [NO_EXIT, RIVER], ids=lambda m: m[0])
def test_a_finished_run_started_again_changes_nothing(
    start: Starter, prefills: list[list[int]], method: list[str]
):
    first = start(*method)
    before = files(first.folder)
    assert prefills
    prefills.clear()
    again = start(*method)
    assert prefills == []
    assert again.summary == first.summary
    after = files(again.folder)
    # Parquet may hold the time it was written.
    assert {k: v for k, v in after.items() if k != "steps.parquet"} == {
        k: v for k, v in before.items() if k != "steps.parquet"
    }


def test_a_run_stopped_while_measuring_keeps_its_samples(
    start: Starter, monkeypatch: pytest.MonkeyPatch, generated: list[int]
):
    def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(decode_speedup, "decode_speedups", stopped)
        with pytest.raises(KeyboardInterrupt):
            start(*RIVER)
    (path,) = start.output.rglob("river-*/samples.jsonl")
    before = path.read_bytes()
    assert not (path.parent / "summary.json").exists()
    generated.clear()
    result = start(*RIVER)
    assert generated == []
    assert path.read_bytes() == before
    assert result.summary["samples"] == 4
    assert result.summary["speedup"]["decode"]["matched"]["prompts"] == 1


def test_other_sizes_are_measured_again_and_samples_are_not(start: Starter, generated: list[int]):
    first = start(*RIVER)
    generated.clear()
    second = start(*RIVER, "speedup.tokens=6", "fidelity.tokens=6", "fidelity.limit=1")
    assert generated == []
    assert second.folder == first.folder
    assert second.summary["speedup"]["decode"]["matched"]["tokens"] == 6
    assert (second.summary["fidelity"]["samples"], second.summary["fidelity"]["tokens"]) == (1, 6)
    assert first.summary["fidelity"]["tokens"] == 2 * 4


def test_data_is_known_by_what_it_holds(start: Starter, tmp_path: Path, generated: list[int]):
    rows = "".join(
        json.dumps({"question": f"How many are {n} and 1?", "answer": f"So.\n#### {n + 1}"}) + "\n"
        for n in range(3)
    )
    plain, packed, other = (tmp_path / name for name in ("a.jsonl", "b.jsonl.gz", "c.jsonl"))
    plain.write_text(rows, encoding="utf-8")
    packed.write_bytes(gzip.compress(rows.encode()))
    other.write_text(rows.replace("#### 2", "#### 3"), encoding="utf-8")
    task = [*NO_EXIT, *ALONE, "exp=gsm8k", "exp.fewshot=0", "limit=2"]
    first = start(*task, f"data.path={plain}")
    generated.clear()
    assert start(*task, f"data.path={packed}").folder == first.folder
    assert generated == []
    # Another gold answer, also of a sample that is not run, is another data set.
    assert start(*task, f"data.path={other}").folder != first.folder


def test_another_chat_template_is_another_run(
    start: Starter, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
):
    before = start.identity(*NO_EXIT)
    changed = CHAT_TEMPLATE.replace("assistant\n", "assistant: ")
    monkeypatch.setattr(runtime.model.tokenizer, "chat_template", changed)
    assert start.identity(*NO_EXIT) != before


@pytest.mark.parametrize("change", [{"fingerprint": "0" * 64}, {"eos_ids": frozenset({7, 8})}])
def test_a_run_is_known_by_its_weights_and_by_what_ends_a_text(
    start: Starter, runtime: Runtime, change: dict[str, Any]
):
    other = Runtime(replace(runtime.model, **change))
    config = load_config([*start.common, *NO_EXIT])
    assert Run(config, other).identity != start.identity(*NO_EXIT)


@pytest.mark.parametrize(
    "change",
    [{"rms_norm_eps": 0.5}, {"rope_parameters": {"rope_type": "default", "rope_theta": 9}}],
)
def test_a_run_is_known_by_the_constants_of_its_model(
    start: Starter, model: Path, tmp_path: Path, change: dict[str, Any]
):
    # The same weights in another function: the texts differ.
    folder = shutil.copytree(model, tmp_path / "changed")
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **change}), "utf-8")
    settings = [*start.common, f"model.path={folder}", *NO_EXIT, *ALONE]
    other = Runtime.load(load_config(settings))
    before = start(*NO_EXIT, *ALONE)
    after = execute(load_config([*settings, f"output.dir={tmp_path / 'other'}"]), other)
    assert timeless(after) != timeless(before)
    assert after.summary["identity"] != before.summary["identity"]


# --- what does not belong to the run ------------------------------------------------------


def test_another_commit_may_not_append(
    start: Starter, commit: Callable[..., None], generated: list[int]
):
    first = start(*RIVER, *ALONE, "limit=2")
    before = files(first.folder)
    commit("beef")
    with pytest.raises(UserError) as caught:
        start(*RIVER, *ALONE)
    message = str(caught.value)
    assert "\n" not in message
    for word in ("c0ffee", "beef", "resume.force=true", str(first.folder)):
        assert word in message
    assert files(first.folder) == before
    generated.clear()
    forced = start(*RIVER, *ALONE, "resume.force=true")
    assert len(generated) == 2
    assert [record.commit for record in records(forced)] == ["c0ffee", "c0ffee", "beef", "beef"]
    assert forced.summary["commits"] == ["beef", "c0ffee"]
    assert forced.folder == first.folder


def test_another_commit_may_read(start: Starter, commit: Callable[..., None]):
    first = start(*RIVER, *ALONE)
    commit("beef")
    for limit in (4, 2):
        # The samples are the other commit's, and nothing is measured beside them.
        again = start(*RIVER, *ALONE, f"limit={limit}")
        assert again.summary["commits"] == ["c0ffee"]
    assert lines(again) == lines(first)


def test_changes_that_are_not_committed_count_as_another_commit(
    start: Starter, commit: Callable[..., None]
):
    start(*RIVER, *ALONE, "limit=2")
    commit("c0ffee", clean=False)
    with pytest.raises(UserError, match=r"c0ffee\+changes"):
        start(*RIVER, *ALONE)


@pytest.mark.parametrize(
    "change", [{"prompt_hash": "0" * 16}, {"id": "gsm_mini/99"}], ids=["prompt", "sample"]
)
@pytest.mark.parametrize("limit", [2, 4])
def test_records_of_another_prompt_are_refused(
    start: Starter, change: dict[str, str], limit: int, generated: list[int]
):
    first = start(*RIVER, *ALONE, "limit=2")
    folder = RunFolder(first.folder)
    one, two = folder.samples()
    folder.rewrite([one, replace(two, **change)])
    before = files(first.folder)
    generated.clear()
    with pytest.raises(UserError) as caught:
        start(*RIVER, *ALONE, f"limit={limit}")
    message = str(caught.value)
    assert "\n" not in message
    assert "line 2" in message
    assert two.id in message
    assert generated == []
    assert files(first.folder) == before


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A committed checkout that the code seems to lie in."""
    root = tmp_path / "checkout"
    for name in ("src/river_llm/environment.py", "conf/config.yaml", "run.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("1\n", encoding="utf-8")
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        author = ["-c", "user.name=tester", "-c", "user.email=tester@example.org"]
        subprocess.run(["git", *author, "-C", str(root), *arguments], check=True)
    monkeypatch.setattr(environment, "__file__", str(root / "src/river_llm/environment.py"))
    return root


def test_the_commit_is_that_of_the_code(checkout: Path):
    name, clean = environment.git_state()
    assert name is not None
    assert len(name) == 40
    assert clean is True


@pytest.mark.parametrize("name", ["src/river_llm/environment.py", "src/river_llm/new.py", "run.py"])
def test_changed_code_is_not_clean(checkout: Path, name: str):
    (checkout / name).write_text("2\n", encoding="utf-8")
    assert environment.git_state()[1] is False


def test_results_in_the_checkout_do_not_change_the_code(checkout: Path):
    # A run that writes there could not be resumed: its own files would look like another commit.
    folder = checkout / "mine" / "runs"
    folder.mkdir(parents=True)
    (folder / "samples.jsonl").write_text("2\n", encoding="utf-8")
    assert environment.git_state()[1] is True


def test_code_outside_a_checkout_has_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "src/river_llm/environment.py"))
    assert environment.git_state() == (None, None)


# --- no_exit, which every run is compared with --------------------------------------------


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of the texts on which transformers' own generate was scored."""
    seen: list[int] = []
    original = BackboneAdapter.generate_forced

    def counting(self: BackboneAdapter, prompt: Sequence[int], tokens: Sequence[int]) -> Any:
        seen.append(len(tokens))
        return original(self, prompt, tokens)

    monkeypatch.setattr(BackboneAdapter, "generate_forced", counting)
    return seen


def test_runs_share_the_no_exit_text_they_are_compared_with(
    start: Starter, generated: list[int], forced: list[int]
):
    start(*RIVER)
    assert (len(generated), forced) == (4 + 2, [4, 4])
    (reference,) = start.output.rglob("no_exit-*")
    before = files(reference)
    generated.clear()
    forced.clear()
    start("method=full_quant")
    assert (len(generated), forced) == (4, [])
    assert list(start.output.rglob("no_exit-*")) == [reference]
    assert files(reference) == before


def test_a_no_exit_run_goes_on_where_a_comparison_left_it(
    start: Starter, generated: list[int], forced: list[int]
):
    start(*RIVER)
    (reference,) = start.output.rglob("no_exit-*")
    before = lines(reference)
    generated.clear()
    forced.clear()
    result = start(*NO_EXIT)
    assert result.folder == reference
    assert lines(reference)[:2] == before
    assert (len(generated), forced) == (2, [])


def test_a_comparison_uses_a_finished_no_exit_run(start: Starter, generated: list[int]):
    reference = start(*NO_EXIT)
    before = lines(reference)
    generated.clear()
    result = start(*RIVER)
    assert len(generated) == 4
    assert lines(reference) == before
    assert result.summary["fidelity"]["no_exit_run"] == reference.folder.name


def test_more_texts_are_compared_without_making_the_first_again(
    start: Starter, generated: list[int], forced: list[int]
):
    start(*RIVER)
    generated.clear()
    forced.clear()
    result = start(*RIVER, "fidelity.limit=3")
    assert (len(generated), forced) == (1, [4])
    assert result.summary["fidelity"]["samples"] == 3


def test_a_river_that_never_exits_is_no_exit_in_every_figure(
    start: Starter, runtime: Runtime, tmp_path: Path
):
    # Every second id ends a text, so that texts end and their answers are compared.
    ends = frozenset(range(0, 259, 2))
    short = Starter(Path(), Runtime(replace(runtime.model, eos_ids=ends)), tmp_path / "short")
    short.common = [*start.common[:-1], f"output.dir={short.output}", "exp.max_new_tokens=64"]
    task = ["exp=humaneval", f"data.path={program_task(tmp_path)}", "limit=null"]
    result = short(*task, *RIVER, "criterion.tau=2", "fidelity.limit=8")
    assert {record.finish_reason for record in records(result)} == {"eos"}
    fidelity = result.summary["fidelity"]
    assert (fidelity["agreement"], fidelity["excess_nll"]) == (1.0, 0.0)
    assert fidelity["equal_answers"]["value"] == 1.0
    assert fidelity["equal_answers"]["samples"] == 3


# --- replay -------------------------------------------------------------------------------


def test_a_replay_gives_the_depths_and_the_text_that_were_recorded(start: Starter):
    first = start(*RIVER)
    result = start("criterion=replay", f"criterion.from_run={first.folder}")
    assert result.folder != first.folder
    for old, new in zip(records(first), records(result), strict=True):
        assert new.token_ids == old.token_ids
        assert (new.prefill_depth, new.exit_depths) == (old.prefill_depth, old.exit_depths)
        assert new.exit_scores == [None] * len(old.exit_scores)


def test_a_replay_of_fewer_samples_is_refused(start: Starter):
    first = start(*RIVER, *ALONE, "limit=2")
    third = start(*NO_EXIT, *ALONE)
    with pytest.raises(UserError) as caught:
        start("criterion=replay", f"criterion.from_run={first.folder}", *ALONE)
    assert records(third)[2].id in str(caught.value)
    assert "criterion.from_run=" in str(caught.value)


# --- killed -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    server = Commands(tmp_path_factory.mktemp("output"), {"HF_HUB_OFFLINE": "1"})
    yield server
    server.close()


LONG = ["limit=3", "exp.max_new_tokens=400"]


def kill_after_first_sample(
    commands: Commands, arguments: Sequence[str], output: Path, here: Path
) -> Path:
    """Starts a run, kills it inside its second sample, and returns its folder."""
    process = commands.start("run.py", arguments, here)
    for _ in range(6000):
        found = list(output.rglob("river-*/samples.jsonl"))
        if found and b"\n" in found[0].read_bytes():
            break
        time.sleep(0.01)
    # The second sample takes hundreds of steps of about a millisecond each.
    time.sleep(0.05)
    os.kill(process, signal.SIGKILL)
    assert commands.finish().status == -signal.SIGKILL
    (path,) = found
    assert path.read_bytes().count(b"\n") == 1
    return path.parent


@pytest.mark.parametrize("half", [b"", b'{"id": "gsm_mini/02", "compl'], ids=["", "half a line"])
def test_a_killed_run_started_again_equals_an_undisturbed_one(
    commands: Commands, start: Starter, tmp_path: Path, half: bytes
):
    arguments = [*start.common, *RIVER, *ALONE, *LONG]
    folder = kill_after_first_sample(commands, arguments, start.output, tmp_path)
    finished = lines(folder)
    with (folder / "samples.jsonl").open("ab") as file:
        file.write(half)
    done = commands.run("run.py", arguments, tmp_path)
    assert done.status == 0, done.stderr
    assert Path(done.last_line["run_dir"]) == folder
    assert lines(folder)[:1] == finished
    assert len(json.loads((folder / "environment.json").read_text("utf-8"))) == 2
    undisturbed = start.elsewhere(tmp_path / "other")(*RIVER, *ALONE, *LONG)
    assert [{**row, "commit": None} for row in timeless(folder)] == [
        {**row, "commit": None} for row in timeless(undisturbed)
    ]
    assert min(len(row["token_ids"]) for row in timeless(folder)) > 100


def test_a_second_run_of_the_same_is_refused(commands: Commands, start: Starter, tmp_path: Path):
    first = start(*RIVER, *ALONE, "limit=1")
    before = files(first.folder)
    with RunFolder(first.folder).locked():
        done = commands.run("run.py", [*start.common, *RIVER, *ALONE, "limit=2"], tmp_path)
    assert done.status == 2
    assert len(done.errors) == 1
    assert f"another process works in {first.folder}" in done.errors[0]
    assert "Traceback" not in done.stderr
    assert files(first.folder) == before


def test_a_second_run_is_refused_while_the_first_one_measures(
    start: Starter, monkeypatch: pytest.MonkeyPatch
):
    # Both would time each other, and write the same files under the same temporary name.
    original = decode_speedup.decode_speedups

    def while_measuring(*arguments: Any) -> Any:
        (path,) = start.output.rglob("river-*")
        with pytest.raises(UserError, match="another process"), RunFolder(path).locked():
            pass
        return original(*arguments)

    monkeypatch.setattr(decode_speedup, "decode_speedups", while_measuring)
    start(*RIVER)


# --- graded anew --------------------------------------------------------------------------

PROMPT = 'def {name}(x):\n    """Returns {what}."""\n'
TEST = "def check(candidate):\n    assert candidate(3) == {value}\n    assert candidate(0) == 0\n"


def program_task(folder: Path) -> Path:
    """Three small problems in HumanEval's columns."""
    path = folder / "programs.jsonl"
    rows = [
        {
            "task_id": f"own/{name}",
            "prompt": PROMPT.format(name=name, what=what),
            "entry_point": name,
            "canonical_solution": f"    return {code}\n",
            "test": TEST.format(value=value),
        }
        for name, what, code, value in (
            ("double", "twice x", "2 * x", 6),
            ("square", "x squared", "x * x", 9),
            ("negate", "minus x", "-x", -3),
        )
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


COMPLETIONS = (
    "Here it is:\n```python\ndef double(x):\n    return x + x\n```",  # right
    "```python\ndef square(x):\n    return x + x\n```",  # wrong
    "I do not know.",  # no program
)


@pytest.fixture
def programs(start: Starter, tmp_path: Path) -> RunResult:
    """A finished run without verdicts, whose texts are known programs."""
    result = start("exp=humaneval", f"data.path={program_task(tmp_path)}", "limit=null", *RIVER)
    folder = RunFolder(result.folder)
    folder.rewrite(
        [
            replace(record, completion=text, finish_reason="eos")
            for record, text in zip(folder.samples(), COMPLETIONS, strict=True)
        ]
    )
    return result


def test_programs_are_not_run_without_permission(programs: RunResult):
    assert programs.ungraded == 3
    assert programs.summary["accuracy"]["value"] is None
    assert programs.summary["accuracy"]["graded"] == 0
    for record in records(programs):
        assert record.correct is None
        assert record.detail == {"status": "not_executed"}


def test_the_run_says_how_to_grade_it(commands: Commands, start: Starter, tmp_path: Path):
    task = ["exp=humaneval", f"data.path={program_task(tmp_path)}", "limit=2"]
    task.append("exp.sandbox=process")
    done = commands.run("run.py", [*start.common, *task, *NO_EXIT, *ALONE], tmp_path)
    assert done.status == 0, done.stderr
    (advice,) = (line for line in done.stdout.splitlines() if "regrade.py" in line)
    words = advice.split()
    assert words[0] == "python"
    graded = commands.run(words[1], words[2:], tmp_path)
    assert graded.status == 0, graded.stderr
    assert graded.last_line["accuracy"]["graded"] == 2
    assert "(2 of 3 problems attempted)" in " ".join(graded.stdout.split())


def test_stored_programs_are_graded_without_a_model(
    programs: RunResult, commands: Commands, model: Path, tmp_path: Path
):
    before = records(programs)
    # The folder of the model is named in the records; it is not asked for.
    config = programs.folder / "config.json"
    config.write_text(config.read_text("utf-8").replace(str(model), "nosuch"), encoding="utf-8")
    settings = config.read_bytes()
    done = commands.run(
        "scripts/regrade.py",
        [str(programs.folder), "--allow-code-execution", "--sandbox", "process"],
        tmp_path,
    )
    assert done.status == 0, done.stderr
    after = records(programs)
    assert [record.correct for record in after] == [True, False, False]
    assert [record.detail["status"] for record in after] == ["passed", "failed", "failed"]
    verdict = {"extracted": None, "correct": None, "detail": {}}
    assert [replace(record, **verdict) for record in after] == [
        replace(record, **verdict) for record in before
    ]
    content = done.last_line
    assert Path(content.pop("run_dir")) == programs.folder
    assert content == json.loads((programs.folder / "summary.json").read_text("utf-8"))
    assert content["accuracy"]["value"] == pytest.approx(1 / 3)
    assert content["accuracy"]["graded"] == 3
    for part in ("time", "exit_depth", "speedup", "memory", "identity", "commits"):
        assert content[part] == programs.summary[part]
    assert config.read_bytes() == settings


def test_grading_twice_gives_the_same_file(start: Starter):
    result = start(*RIVER, "exp=gsm_mini")
    before = files(result.folder)
    again = regrade(result.folder, allow_code_execution=False)
    assert again.summary == result.summary
    assert files(result.folder) == before


def test_a_new_verdict_reaches_every_figure(start: Starter):
    result = start(*RIVER, "exp=gsm_mini")
    run = Run(load_config([*start.common, *RIVER]), start.runtime)
    folder = RunFolder(result.folder)
    one, *rest = folder.samples()
    right = f"So the answer is\n#### {run.prompts[0].sample.gold}"
    folder.rewrite([replace(one, completion=right, finish_reason="eos"), *rest])
    again = regrade(result.folder, allow_code_execution=False)
    assert records(again)[0].correct is True
    assert records(again)[0].extracted == run.prompts[0].sample.gold
    assert records(again)[1:] == rest
    assert again.summary["accuracy"]["value"] == pytest.approx(
        (1 + sum(bool(record.correct) for record in rest)) / 4
    )
    assert again.summary["cut_share"] == 3 / 4
    assert again.summary["accuracy"]["extra"]["strict"] >= 1 / 4


def test_grading_sums_up_as_many_samples_as_the_run_did(start: Starter):
    start(*RIVER, *ALONE)
    first = start(*RIVER, *ALONE, "limit=2")
    again = regrade(first.folder, allow_code_execution=False)
    assert again.summary == first.summary
    assert len(records(again)) == 4


def test_a_folder_without_a_finished_run_cannot_be_graded(start: Starter, tmp_path: Path):
    unfinished = start(*RIVER, *ALONE).folder
    (unfinished / "measurements.json").unlink()
    before = files(unfinished)
    for folder in (unfinished, tmp_path / "nosuch", tmp_path):
        with pytest.raises(UserError, match="not the folder of a finished run") as caught:
            regrade(folder, allow_code_execution=False)
        assert str(folder) in str(caught.value)
    assert files(unfinished) == before
    assert not (tmp_path / "nosuch").exists()


def test_other_data_cannot_grade_a_run(start: Starter, tmp_path: Path):
    data = program_task(tmp_path)
    result = start("exp=humaneval", f"data.path={data}", "limit=null", *NO_EXIT, *ALONE)
    before = files(result.folder)
    rows = data.read_text("utf-8")
    for changed, words in (
        (rows.splitlines()[0] + "\n", "own/square"),
        # The same ids with other tests: the verdicts would be on other problems.
        (rows.replace("candidate(0) == 0", "candidate(0) == 1"), "data"),
        (None, "does not exist"),
    ):
        if changed is None:
            data.unlink()
        else:
            data.write_text(changed, encoding="utf-8")
        with pytest.raises(UserError) as caught:
            regrade(result.folder, allow_code_execution=True, sandbox="process")
        assert words in str(caught.value)
        assert files(result.folder) == before


def test_a_run_whose_no_exit_run_is_gone_can_still_be_graded(start: Starter):
    result = start(*RIVER)
    shutil.rmtree(result.folder.parent / result.summary["fidelity"]["no_exit_run"])
    again = regrade(result.folder, allow_code_execution=False)
    assert again.summary["accuracy"] == result.summary["accuracy"]
    assert again.summary["fidelity"]["equal_answers"]["value"] is None
    assert again.summary["fidelity"]["equal_answers"]["reason"]


def test_verdicts_are_not_lost_for_want_of_a_permission(programs: RunResult):
    regrade(programs.folder, allow_code_execution=True, sandbox="process")
    before = lines(programs)
    with contextlib.suppress(UserError):
        regrade(programs.folder, allow_code_execution=False)
    assert lines(programs) == before


def test_a_record_is_what_the_run_measured(start: Starter):
    # Internal agreement of every record, so that the tests above compare what matters.
    for record in records(start(*RIVER, *ALONE)):
        assert record.tokens_timed == len(record.token_ids)
        assert len(record.exit_depths) == len(record.exit_scores) == len(record.token_ids) - 1
        assert record.tokens_kept <= record.tokens_timed
        assert record.prefill_seconds > 0
        assert record.decode_seconds > 0
        assert set(asdict(record)) == set(json.loads(json.dumps(asdict(record))))


def test_shuffled_depths_are_the_runs_own_in_another_order(start: Starter):
    source = start("method=river", "criterion.tau=0.75", *ALONE)
    shuffled = start(
        "method=river_shuffled", "criterion=replay", f"criterion.from_run={source.folder}", *ALONE
    )
    moved = 0
    for own, other in zip(records(source), records(shuffled), strict=True):
        count = min(len(own.exit_depths), len(other.exit_depths))
        assert other.prefill_depth == own.prefill_depth
        if len(other.exit_depths) >= len(own.exit_depths):
            assert sorted(other.exit_depths[: len(own.exit_depths)]) == sorted(own.exit_depths)
        moved += other.exit_depths[:count] != own.exit_depths[:count]
    assert moved


def test_shuffling_without_a_run_to_shuffle_is_refused(start: Starter):
    with pytest.raises(UserError, match=r"criterion=replay\s+criterion\.from_run"):
        start("method=river_shuffled")
