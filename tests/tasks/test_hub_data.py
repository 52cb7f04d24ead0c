"""Reading from the hub: the right split is asked for, and no network is one clear line."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import httpx
import pytest
from datasets.exceptions import DatasetNotFoundError
from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

from river_llm.errors import UserError
from river_llm.tasks import TASKS, Task, TaskSettings

GSM_ROWS = [{"question": "1 + 1?", "answer": "1 + 1 = 2\n#### 2"}]
MATH_ROWS = [{"problem": "$1+1$?", "answer": "2", "unique_id": "toy/1.json", "level": 1}]


def make(name: str, **changes: Any) -> Task:
    return TASKS[name](TaskSettings(**changes))


@pytest.mark.parametrize("switch", ["HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"])
def test_offline_with_empty_cache_names_data_set_and_ways_out(tmp_path: Path, switch: str) -> None:
    script = (
        "from river_llm.errors import UserError\n"
        "from river_llm.tasks import build\n"
        "for name in ('gsm8k', 'math'):\n"
        "    try:\n"
        "        build(name, fewshot=0, fewshot_source='own', data_path=None, fewshot_path=None,\n"
        "              allow_code_execution=False, timeout_s=5.0).samples(1)\n"
        "    except UserError as error:\n"
        "        print(error)\n"
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environment |= {switch: "1", "HF_HOME": str(tmp_path)}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert "openai/gsm8k (config main, split test)" in lines[0]
    assert "HuggingFaceH4/MATH-500 (split test)" in lines[1]
    for line in lines:
        assert all(way in line for way in ("data.path=", "exp=gsm_mini", "exp=humaneval"))


@pytest.mark.parametrize(
    "failure",
    [
        ConnectionError("Couldn't reach the Hub"),
        DatasetNotFoundError("doesn't exist on the Hub\nor cannot be accessed"),
        LocalEntryNotFoundError("no such file in the cache"),
        OfflineModeIsEnabled("offline mode is enabled"),
        ValueError("Couldn't find cache for openai/gsm8k for config 'default'"),
        httpx.RemoteProtocolError("server disconnected"),
    ],
    ids=lambda failure: type(failure).__name__,
)
def test_every_kind_of_hub_failure_is_one_line(
    monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise failure

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(UserError) as error:
        make("gsm8k").samples()
    message = str(error.value)
    assert type(failure).__name__ in message
    assert "data.path=" in message
    assert "\n" not in message


def test_interrupt_while_loading_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(datasets, "load_dataset", interrupt)
    with pytest.raises(KeyboardInterrupt):
        make("gsm8k").samples()


def test_each_task_asks_for_its_own_split(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load(path: str, name: str | None = None, *, split: str) -> datasets.Dataset:
        asked.append((path, name, split))
        return datasets.Dataset.from_list(GSM_ROWS if path == "openai/gsm8k" else MATH_ROWS)

    monkeypatch.setattr(datasets, "load_dataset", load)
    gsm = make("gsm8k").samples()
    math = make("math").samples()
    shots = make("gsm8k", fewshot=1, fewshot_source="train")
    assert asked == [
        ("openai/gsm8k", "main", "test"),
        ("HuggingFaceH4/MATH-500", None, "test"),
        ("openai/gsm8k", "main", "train"),
    ]
    assert [(s.id, s.gold) for s in gsm] == [("gsm8k/test/0", "2")]
    assert [(s.id, s.gold) for s in math] == [("toy/1.json", "2")]
    assert shots.messages(gsm[0])[1]["content"] == "1 + 1 = 2\n#### 2"


def test_hub_row_without_a_column_is_refused_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = datasets.Dataset.from_list([{"question": "q", "solution": "a"}])
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **options: rows)
    with pytest.raises(UserError, match=r"openai/gsm8k .*row 0: column 'answer' is missing"):
        make("gsm8k").samples()
