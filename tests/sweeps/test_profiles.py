"""Profiles of Table 2: what they run, and what is refused before anything is downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

from river_llm.composition import load_config
from river_llm.config import RunConfig
from river_llm.errors import UserError
from river_llm.sweeps.overrides import expand
from river_llm.sweeps.plan import parse_request
from river_llm.sweeps.preflight import GIB, gpu_bytes, is_cached, lacking
from river_llm.sweeps.profiles import load_profile, profile_names

ROWS = '{"question": "What is 1 + 1?", "answer": "1 + 1 = 2\\n#### 2"}\n'
LLAMA = "meta-llama/Llama-3.2-1B-Instruct"


def grid_of(name: str, *given: str) -> list[RunConfig]:
    """The runs that a profile spans before its recipe multiplies them."""
    request = parse_request(load_profile(name).overrides(given))
    return [load_config(cell) for cell in expand(request.grid)]


def test_the_profiles_are_those_that_the_makefile_names():
    assert profile_names() == ["embedded", "paper", "tonight"]


def test_the_paper_has_four_models_on_three_whole_test_sets():
    runs = [(config.model.name, config.exp.name, config.exp.limit) for config in grid_of("paper")]
    models = ["llama3.2_1b", "llama3.1_8b", "phi4_mini", "ministral3_8b"]
    tasks = ["gsm8k", "math", "humaneval"]
    assert runs == [(model, task, None) for model in models for task in tasks]


def test_what_is_given_wins_over_the_profile():
    assert {config.exp.limit for config in grid_of("tonight")} == {200}
    assert {config.exp.limit for config in grid_of("tonight", "exp.limit=3")} == {3}
    (only,) = grid_of("embedded", "exp=gsm_mini")
    assert (only.exp.name, only.model.path) == ("gsm_mini", "embedded")


def test_an_unknown_profile_names_the_known():
    with pytest.raises(UserError, match="'night': choose one of embedded, paper, tonight"):
        load_profile("night")


def test_a_profile_with_a_mistake_is_refused(tmp_path: Path):
    (tmp_path / "mine.yaml").write_text("about: x\nrun: exp=gsm8k\n", encoding="utf-8")
    with pytest.raises(UserError, match="needs_gpu is missing"):
        load_profile("mine", tmp_path)


# --- what is missing ----------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A run of a hub model on local rows, with an empty hub cache and no GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    rows = tmp_path / "rows.jsonl"
    rows.write_text(ROWS, encoding="utf-8")
    return ["exp=gsm8k", "exp.fewshot=0", f"data.path={rows}"]


def answer_of_hub(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> list[str]:
    """Lets the hub answer every question in one way; returns what it was asked."""
    asked: list[str] = []

    def auth_check(self: Any, repo_id: str, **_: Any) -> None:
        asked.append(repo_id)
        if error is not None:
            raise error

    monkeypatch.setattr(huggingface_hub.HfApi, "auth_check", auth_check)
    return asked


def refused(kind: type[Exception]) -> Exception:
    # What the constructor wants, a response of the hub's HTTP library, changes with its versions.
    error = kind.__new__(kind)
    error.args = ("refused",)
    return error


def test_everything_that_is_missing_is_said_at_once(
    here: list[str], monkeypatch: pytest.MonkeyPatch
):
    asked = answer_of_hub(monkeypatch, ConnectionError("no route"))
    configs = [
        load_config([*here, "model=llama3.2_1b"]),
        load_config([*here, "model=llama3.2_1b", "data.path=/not/there"]),
    ]
    gpu, hub, data = lacking(configs, needs_gpu=True)
    assert gpu.startswith("no GPU")
    assert hub.startswith(f"{LLAMA}: not in the local cache, and the hub cannot be reached")
    assert "no route" in hub
    assert data.startswith("gsm8k: data file '/not/there' does not exist")
    assert asked == [LLAMA]


@pytest.mark.parametrize(
    ("token", "error", "words"),
    [
        (None, GatedRepoError, "no token is set; accept it at https://huggingface.co/meta-llama"),
        ("hf_x", GatedRepoError, "the token that is set may not read it; accept its licence"),
        ("hf_x", RepositoryNotFoundError, "neither a folder here nor a checkpoint on the hub"),
    ],
    ids=["no token", "licence not accepted", "no such checkpoint"],
)
def test_the_hub_says_no(
    here: list[str],
    monkeypatch: pytest.MonkeyPatch,
    token: str | None,
    error: type[Exception],
    words: str,
):
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: token)
    answer_of_hub(monkeypatch, refused(error))
    (problem,) = lacking([load_config([*here, "model=llama3.2_1b"])], needs_gpu=False)
    assert words in problem
    assert "hf_x" not in problem


def test_what_is_here_is_not_asked_for(here: list[str], monkeypatch: pytest.MonkeyPatch):
    asked = answer_of_hub(monkeypatch, None)
    folder = Path(here[-1].partition("=")[2]).parent
    assert lacking([load_config([*here, f"model.path={folder}"])], needs_gpu=False) == []
    assert lacking([load_config(here)], needs_gpu=False) == []
    assert asked == []
    assert lacking([load_config([*here, "model=llama3.2_1b"])], needs_gpu=False) == []
    assert asked == [LLAMA]


def test_a_checkpoint_in_the_cache_needs_no_hub(
    here: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked = answer_of_hub(monkeypatch, ConnectionError("no route"))
    repository = tmp_path / "hub" / f"models--{LLAMA.replace('/', '--')}"
    snapshot = repository / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    (snapshot / "config.json").write_text("{}")
    assert not is_cached(LLAMA)
    (snapshot / "model.safetensors").write_text("")
    assert is_cached(LLAMA)
    assert lacking([load_config([*here, "model=llama3.2_1b"])], needs_gpu=False) == []
    assert asked == []


def test_the_cpu_may_be_asked_for(here: list[str], monkeypatch: pytest.MonkeyPatch):
    answer_of_hub(monkeypatch, None)
    on_cpu = load_config([*here, "model=llama3.2_1b", "model.device=cpu"])
    assert lacking([on_cpu], needs_gpu=True) == []


@pytest.mark.parametrize(
    ("capability", "free", "need"),
    [
        # 8.03 B parameters of 2 bytes are 15 GiB, and 2 GiB are for the rest. The 6.98 B in
        # linears take half a byte and their scales once more, or 2 bytes where no kernel serves.
        ((8, 0), 16, 21),
        ((7, 5), 24, 30),
    ],
)
def test_a_gpu_that_is_too_small_is_told(
    here: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int],
    free: int,
    need: int,
):
    answer_of_hub(monkeypatch, None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free * GIB, free * GIB))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    configs = [
        load_config([*here, f"model={name}", f"method={method}"])
        for name in ("llama3.2_1b", "llama3.1_8b")
        for method in ("no_exit", "river")
    ]
    (problem,) = lacking(configs, needs_gpu=True)
    told = f"llama3.1_8b: needs about {need} GiB of GPU memory by estimate, {free} GiB"
    assert problem.startswith(told)


def test_memory_is_estimated_for_the_papers_models_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert gpu_bytes(load_config(["method=river"])) is not None
    assert gpu_bytes(load_config(["method=river", "model.path=/ck/mine"])) is None
