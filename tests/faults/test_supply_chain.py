"""Checkpoints are numbers: no pickle is read, and no code that one brings along is run."""

from __future__ import annotations

import ast
import builtins
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, dynamic_module_utils

from command import ROOT
from river_llm.config import ModelConfig
from river_llm.errors import UserError
from river_llm.models.loading import load_model
from tiny_folder import LAYERS, save_llama


class Trap:
    """Leaves a file when it is read from a pickle."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.mark,)


def load(folder: Path):
    return load_model(ModelConfig(name="x", path=str(folder), dtype="fp32", device="cpu"))


def refusal(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        load(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert f"model.path={folder}" in message
    return message


# --- pickles ------------------------------------------------------------------------------


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """There once a trap has been sprung."""
    return tmp_path / "sprung"


NAMES = ("pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "consolidated.00.pth", "model.pt")


@pytest.mark.parametrize("name", NAMES)
def test_pickled_weights_are_refused_unread(tmp_path: Path, mark: Path, name: str):
    folder = save_llama(tmp_path / "llama")
    (folder / "model.safetensors").unlink()
    torch.save({"model.embed_tokens.weight": Trap(mark)}, folder / name)
    message = refusal(folder)
    assert not mark.exists()
    for word in (name, "pickled", "use a checkpoint in safetensors"):
        assert word in message
    torch.load(folder / name, weights_only=False)
    assert mark.exists(), "the trap works"


def test_a_pickle_beside_safetensors_is_left_unread(tmp_path: Path, mark: Path):
    folder = save_llama(tmp_path / "llama")
    for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt"):
        torch.save({"x": Trap(mark)}, folder / name)
    assert load(folder).adapter.num_layers == LAYERS
    assert not mark.exists()


# --- code of a checkpoint -----------------------------------------------------------------

CODE = """
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
Path({mark!r}).touch()
class OwnConfig(LlamaConfig):
    model_type = "own"
class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig
class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""


def with_code(folder: Path, mark: Path, model_type: str) -> Path:
    """A checkpoint whose classes are said to lie in a file of its own."""
    save_llama(folder)
    (folder / "own.py").write_text(CODE.format(mark=str(mark)), "utf-8")
    for name, places in (
        ("config.json", {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}),
        ("tokenizer_config.json", {"AutoTokenizer": [None, "own.OwnTokenizer"]}),
    ):
        content = json.loads((folder / name).read_text("utf-8"))
        content["auto_map"] = places
        if name == "config.json":
            content["model_type"] = model_type
        (folder / name).write_text(json.dumps(content), "utf-8")
    return folder


@pytest.fixture(autouse=True)
def yes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """Somebody who answers yes to every question, and what was asked."""
    asked: list[str] = []

    def answer(question: str = "") -> str:
        asked.append(question)
        return "y"

    monkeypatch.setattr(builtins, "input", answer)
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    return asked


def test_a_known_architecture_is_loaded_without_its_code(
    tmp_path: Path, mark: Path, yes: list[str]
):
    folder = with_code(tmp_path / "llama", mark, "llama")
    assert load(folder).adapter.num_layers == LAYERS
    assert not mark.exists()
    assert yes == []


def test_an_architecture_of_its_own_is_refused_unasked(tmp_path: Path, mark: Path, yes: list[str]):
    folder = with_code(tmp_path / "own", mark, "own")
    message = refusal(folder)
    assert "is not run here" in message
    assert "trust_remote_code" not in message, "there is no such setting"
    assert not mark.exists()
    assert yes == []
    AutoConfig.from_pretrained(folder, trust_remote_code=True)
    assert mark.exists(), "the trap works"


def test_a_tokenizer_of_its_own_is_refused_unasked(tmp_path: Path, mark: Path, yes: list[str]):
    folder = with_code(tmp_path / "llama", mark, "llama")
    (folder / "tokenizer.json").unlink()
    settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    settings["tokenizer_class"] = "OwnTokenizer"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    message = refusal(folder)
    assert "is not run here" in message
    assert not mark.exists()
    assert yes == []


# --- the sources --------------------------------------------------------------------------

SOURCES = [*(ROOT / "src").rglob("*.py"), *(ROOT / "scripts").glob("*.py"), ROOT / "run.py"]
UNSAFE = re.compile(
    r"^(import|from) (pickle|dill|joblib|shelve|marshal)\b|torch\.load\(|yaml\.load\("
    r"|allow_pickle=True|trust_remote_code(=|\": )True",
    re.M,
)


@pytest.mark.parametrize(
    "line", ["import pickle", "x = torch.load(f)", "f(trust_remote_code=True)", "yaml.load(f)"]
)
def test_an_unsafe_line_is_found(line: str):
    assert UNSAFE.search(f"import json\n{line}\n")


def test_nothing_here_reads_pickles_or_trusts_code():
    assert len(SOURCES) > 100
    assert [path for path in SOURCES if UNSAFE.search(path.read_text("utf-8"))] == []


def test_every_call_of_from_pretrained_says_so():
    calls = [
        ast.unparse(node)
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".from_pretrained")
    ]
    assert len(calls) >= 5
    # `settings` holds it where a model is loaded.
    assert [c for c in calls if "**NO_FOREIGN_CODE" not in c and "**settings" not in c] == []
