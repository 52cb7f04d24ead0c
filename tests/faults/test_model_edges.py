"""Models and prompts at the edge of what can be: whole runs, every method, both engines."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from river_llm.composition import load_config
from river_llm.errors import UserError
from river_llm.evaluation import prompts
from river_llm.evaluation.run import execute
from river_llm.evaluation.runtime import Runtime
from river_llm.evaluation.summary import RunResult
from river_llm.records import RunFolder, SampleRecord
from tiny_folder import CONTEXT, EOS, LAYERS, SMALL, save_llama, tiny_llama, tiny_tokenizer

METHODS = {
    "no_exit": ["method=no_exit"],
    "full_quant": ["method=full_quant"],
    "river": ["method=river"],
    "river backbone": ["method=river", "method.prefill=backbone"],
    "mask": ["method=mask"],
    "recompute": ["method=recompute"],
    "state_propagation": ["method=state_propagation"],
    "mono_decreasing": ["method=mono_decreasing"],
    "quant_decode": ["method=quant_decode"],
    "static_last": ["method=static_last", "method.k=1"],
}
ENGINES = ["eager", "compiled"]
MEASURED = ["limit=2", "fidelity.limit=1", "speedup.prompts=1"]
ALONE = ["limit=2", "fidelity.limit=0", "speedup.prompts=0"]
FIRST = 0
"""The id of <|endoftext|>: what is chosen of logits that are all the same."""


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RIVER_LLM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


Change = Callable[[PreTrainedModel], Any]


def saved(folder: Path, change: Change, **settings: Any) -> Path:
    """A folder of the tiny Llama with other weights, and other ids that end a text."""
    model = tiny_llama()
    with torch.no_grad():
        change(model)
    for name, value in settings.items():
        setattr(model.config, name, value)
        setattr(model.generation_config, name, value)
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def loaded(folder: Path, *overrides: str) -> Runtime:
    return Runtime.load(load_config([*SMALL, f"model.path={folder}", *overrides]))


def go(runtime: Runtime, output: Path, *overrides: str) -> RunResult:
    common = [*SMALL, "model.path=given", f"output.dir={output}"]
    return execute(load_config([*common, *overrides]), runtime)


def records(result: RunResult) -> list[SampleRecord]:
    return RunFolder(result.folder).samples()


# --- weights that are no numbers ----------------------------------------------------------


def infinite(name: str, place: tuple[int, ...], value: float) -> Change:
    return lambda model: model.get_parameter(name).__setitem__(place, value)


PLACES = {
    "a row of the head": ("lm_head.weight", (7,)),
    "a number of the head": ("lm_head.weight", (7, 3)),
    "the last norm": ("model.norm.weight", (0,)),
    "a norm": ("model.layers.1.input_layernorm.weight", (3,)),
    "a query": ("model.layers.0.self_attn.q_proj.weight", (0, 0)),
    "an FFN": ("model.layers.2.mlp.down_proj.weight", (0, 0)),
}


@pytest.mark.parametrize(
    ("name", "value"), [*((name, math.inf) for name in PLACES), ("a number of the head", -math.inf)]
)
def test_infinite_weights_are_told_in_one_line(tmp_path: Path, name: str, value: float):
    # With engine=auto the compiled engine refuses them first, aloud.
    runtime = loaded(saved(tmp_path / "model", infinite(*PLACES[name], value)))
    for method in ("no_exit", "river"):
        with pytest.raises(UserError) as caught:
            go(runtime, tmp_path, f"method={method}", *ALONE)
        message = str(caught.value)
        assert "\n" not in message
        of_quantizer = "cannot be quantized" in message
        assert of_quantizer or re.match(r"sample gsm_mini/0[12], step \d: ", message)
        assert "infinity" in message or "score after backbone layer 1 is NaN" in message
        assert of_quantizer == (method == "river" and name in ("a query", "an FFN"))


# --- logits that are all the same ---------------------------------------------------------


def no_head(model: PreTrainedModel) -> None:
    model.lm_head.weight.zero_()


@pytest.fixture(scope="module")
def equal_logits(tmp_path_factory: pytest.TempPathFactory) -> Runtime:
    return loaded(saved(tmp_path_factory.mktemp("equal"), no_head))


@pytest.fixture(scope="module")
def ends_at_once(tmp_path_factory: pytest.TempPathFactory) -> Runtime:
    """Its first token ends the text, by the first of its ids that do."""
    return loaded(saved(tmp_path_factory.mktemp("ends"), no_head, eos_token_id=[FIRST, 2]))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", METHODS)
def test_of_equal_logits_the_first_token_is_chosen(
    equal_logits: Runtime, tmp_path: Path, method: str, engine: str
):
    result = go(equal_logits, tmp_path, *METHODS[method], f"engine={engine}", *MEASURED)
    for record in records(result):
        assert record.token_ids == [FIRST] * 8
        assert record.margins == [0.0] * 8
        assert record.finish_reason == "length"
        # A special token, which is not part of the text.
        assert record.completion == ""
    fidelity = result.summary["fidelity"]
    assert (fidelity["agreement"], fidelity["excess_nll"]) == (1.0, 0.0)
    assert result.summary["speedup"]["decode"]["matched"]["value"] > 0


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", METHODS)
def test_a_text_that_ends_at_once_is_an_empty_text(
    ends_at_once: Runtime, tmp_path: Path, method: str, engine: str
):
    result = go(ends_at_once, tmp_path, *METHODS[method], f"engine={engine}", *MEASURED)
    for record in records(result):
        assert (record.token_ids, record.completion) == ([FIRST], "")
        assert (record.finish_reason, record.tokens_timed, record.tokens_kept) == ("eos", 1, 0)
        assert (record.exit_depths, record.decode_seconds, record.extracted) == ([], 0.0, None)
        assert record.correct is False
    summary = result.summary
    assert summary["exit_depth"] == {"mean": None, "layers": LAYERS, "histogram": [0, 0, 0, 0]}
    assert summary["time"]["decode_ms_per_token"] is None
    assert summary["time"]["decode_steps"] == 0
    assert summary["accuracy"]["value"] == 0.0
    # What is forced goes on behind the end.
    assert summary["speedup"]["decode"]["matched"]["tokens"] == 4


# --- ends of texts, and tokenizers --------------------------------------------------------


def test_each_of_several_ids_ends_a_text(model: Path, tmp_path: Path):
    runtime = loaded(model)
    free = [r.token_ids for r in records(go(runtime, tmp_path / "free", "method=no_exit", *ALONE))]
    # One ends the first text at its fourth token, the other the second text at its third.
    ends = [free[0][3], free[1][2]]
    assert free[0].index(ends[0]) == 3
    assert free[1].index(ends[1]) == 2
    assert not set(ends) & {*free[0][:3], *free[1][:2]}
    other = loaded(saved(tmp_path / "model", lambda _: None, eos_token_id=ends))
    assert other.model.eos_ids == {*ends, tiny_tokenizer().eos_token_id}
    for engine in ENGINES:
        cut = records(go(other, tmp_path, "method=no_exit", f"engine={engine}", *ALONE))
        assert [r.token_ids for r in cut] == [free[0][:4], free[1][:3]]
        assert [(r.finish_reason, r.tokens_kept) for r in cut] == [("eos", 3), ("eos", 2)]


@pytest.mark.parametrize("ends", [EOS, None], ids=["", "nor an end"])
def test_a_tokenizer_without_pad_changes_nothing(model: Path, tmp_path: Path, ends: str | None):
    folder = save_llama(tmp_path / "model")
    bare = tiny_tokenizer()
    bare.pad_token, bare.eos_token = None, ends
    bare.save_pretrained(folder)
    for name in ("config.json", "generation_config.json"):
        path = folder / name
        content = {**json.loads(path.read_text("utf-8")), "pad_token_id": None}
        path.write_text(json.dumps(content), "utf-8")
    runtime = loaded(folder)
    assert runtime.model.tokenizer.pad_token is None
    ours = records(go(runtime, tmp_path / "bare", "method=river", *MEASURED))
    usual = records(go(loaded(model), tmp_path / "usual", "method=river", *MEASURED))
    assert [r.token_ids for r in ours] == [r.token_ids for r in usual]
    assert [r.exit_depths for r in ours] == [r.exit_depths for r in usual]


# --- the shortest and the longest prompt --------------------------------------------------


@pytest.fixture(scope="module")
def runtime(model: Path) -> Runtime:
    return loaded(model, "model.chat=never")


@pytest.fixture(scope="module")
def transformers_model(model: Path) -> PreTrainedModel:
    found: PreTrainedModel = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    return found.eval()


def asking(folder: Path, *questions: str) -> list[str]:
    """A task of these questions, as plain text."""
    rows = [json.dumps({"prompt": question, "answer": "b"}) + "\n" for question in questions]
    path = folder / "asked.jsonl"
    path.write_text("".join(rows), "utf-8")
    return ["exp=jsonl", f"data.path={path}", "model.chat=never"]


@torch.no_grad()
def continued(model: PreTrainedModel, prompt: list[int], count: int) -> list[int]:
    """The likeliest tokens behind a prompt, each from a pass over all of the text."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", METHODS)
def test_a_prompt_of_one_token(
    runtime: Runtime,
    transformers_model: PreTrainedModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    engine: str,
):
    # Of what a task asks, only the last token.
    whole = prompts.encode_text
    monkeypatch.setattr(prompts, "encode_text", lambda *given: whole(*given)[-1:])
    task = asking(tmp_path, "a")
    result = go(runtime, tmp_path, *task, *METHODS[method], f"engine={engine}", *MEASURED)
    (record,) = records(result)
    assert record.prompt_tokens == 1
    assert len(record.token_ids) == 8
    (prompt,) = {tuple(p.ids) for p in prompts_of(result, runtime, tmp_path, task)}
    expected = continued(transformers_model, list(prompt), 8)
    assert (record.token_ids == expected) or method != "no_exit"
    # Where the prompt is the backbone's, so is the first token.
    if method not in ("full_quant", "river"):
        assert record.token_ids[0] == expected[0]


def prompts_of(
    result: RunResult, runtime: Runtime, output: Path, task: list[str]
) -> list[prompts.Prompt]:
    from river_llm.evaluation.run import Run

    config = load_config([*SMALL, "model.path=given", f"output.dir={output}", *task, "limit=2"])
    return Run(config, runtime).prompts


@pytest.mark.parametrize("left", [1, 5])
@pytest.mark.parametrize("method", METHODS)
def test_prompt_and_text_fill_the_context_to_its_last_position(
    runtime: Runtime,
    transformers_model: PreTrainedModel,
    tmp_path: Path,
    method: str,
    left: int,
):
    head = len(prompts.encode_text(runtime.model.tokenizer, text_of(runtime, tmp_path, "")))
    task = asking(tmp_path, "x" * (CONTEXT - head - left))
    engine = "engine=compiled" if left == 5 else "engine=eager"
    settings = [*task, *METHODS[method], engine, *ALONE]
    result = go(runtime, tmp_path, *settings, f"exp.max_new_tokens={left}")
    (record,) = records(result)
    assert record.prompt_tokens + len(record.token_ids) == CONTEXT
    assert record.finish_reason == "length"
    if method == "no_exit":
        (prompt,) = prompts_of(result, runtime, tmp_path, [*task, f"exp.max_new_tokens={left}"])
        assert record.token_ids == continued(transformers_model, prompt.ids, left)
    with pytest.raises(UserError, match=f"exceed the model's {CONTEXT} positions"):
        go(runtime, tmp_path, *settings, f"exp.max_new_tokens={left + 1}")


def text_of(runtime: Runtime, folder: Path, question: str) -> str:
    """What a task of this project makes of a question in plain text."""
    from river_llm.evaluation.summary import build_task
    from river_llm.tasks import Sample

    task = build_task(load_config([*SMALL, "model.path=given", *asking(folder, "a")]))
    return task.text(Sample("x", {task.columns[0]: question}, ""))  # type: ignore[attr-defined]


# --- letters of several tokens ------------------------------------------------------------

LETTERS = "é, 数学, 🎉, 👩‍👩‍👧, e\u0301, \u2028, \x00"


@pytest.mark.parametrize("engine", ENGINES)
def test_letters_of_several_tokens_are_whole_in_prompt_and_text(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
):
    # The model is made to repeat the letters, byte for byte; each byte is a token.
    spoken = list(runtime.model.tokenizer(LETTERS, add_special_tokens=False)["input_ids"])
    assert len(spoken) == len(LETTERS.encode()) > len(LETTERS)
    from river_llm.decoding import Decoder

    original = Decoder._emit

    def emit(self: Decoder, trace: Any) -> Any:
        output = original(self, trace)
        token = spoken[self.steps_done % len(spoken)]
        self._ids[0][-1] = token
        output.tokens[0][:] = [token]
        return output

    monkeypatch.setattr(Decoder, "_emit", emit)
    task = asking(tmp_path, LETTERS)
    settings = [*task, "method=no_exit", f"engine={engine}", *ALONE]
    cut = {6: 1, 15: 1, 21: 1}  # inside the second letter, an emoji, the first part of another
    for count in (len(spoken), len(spoken) - 1, *cut):
        result = go(runtime, tmp_path / str(count), *settings, f"exp.max_new_tokens={count}")
        (record,) = records(result)
        assert record.token_ids == spoken[:count]
        expected = LETTERS.encode()[:count].decode("utf-8", errors="replace")
        assert record.completion == expected
        assert expected.count("\ufffd") == cut.get(count, 0)
        line = (result.folder / "samples.jsonl").read_bytes()
        assert line.count(b"\n") == 1
        assert json.loads(line)["completion"] == expected
    (prompt,) = prompts_of(result, runtime, tmp_path, task)
    assert LETTERS in runtime.model.tokenizer.decode(prompt.ids)


@pytest.mark.parametrize("column", ["prompt", "answer"])
def test_half_a_character_in_the_data_is_refused_in_one_line(
    runtime: Runtime, tmp_path: Path, column: str
):
    good = {"prompt": "a", "answer": "b"}
    path = tmp_path / "rows.jsonl"
    # JSON can spell it, and no file in UTF-8 can hold it.
    broken = {**good, column: "x\ud83d"}
    path.write_text(f"{json.dumps(good)}\n{json.dumps(broken)}\n", "ascii")
    with pytest.raises(UserError) as caught:
        go(runtime, tmp_path, "exp=jsonl", f"data.path={path}", "method=no_exit", *ALONE)
    message = str(caught.value)
    message.encode("utf-8")
    assert message.startswith(f"{path}, line 2: column {column!r}")
    assert "\n" not in message
