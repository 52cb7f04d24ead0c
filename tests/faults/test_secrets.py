"""Tokens and keys of the environment reach no record, no log and no message."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from command import Commands, Done
from tiny_folder import SMALL

SECRETS = {
    "HF_TOKEN": "hf_QmFzZTY0SXNOb0VuY3J5cHRpb24xMjM0NT",
    "WANDB_API_KEY": "c0ffee5ecc0ffee5ecc0ffee5ecc0ffee5ec1234",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI-not-a-key-bPxRfiCY",
}
PASSWORD = "hunter2hunter2"
PROXY = f"http://user:{PASSWORD}@127.0.0.1:9"  # nobody listens there


def found(place: Path) -> list[str]:
    """Files below a folder that hold a secret, or are named by one."""
    words = [*SECRETS.values(), PASSWORD]
    return [
        f"{path}: {word}"
        for path in place.rglob("*")
        for word in words
        if word in path.name
        or (path.is_file() and not path.is_symlink() and word.encode() in path.read_bytes())
    ]


def started(commands: Commands, here: Path, arguments: Sequence[str], **environment: str) -> Done:
    """A command with secrets in its environment and a home of its own, all of it searched."""
    home = here / "home"
    home.mkdir()
    variables = {
        **SECRETS,
        "HOME": str(home),
        "WANDB_CONFIG_DIR": str(home / "wandb"),
        "RIVER_LLM_CACHE": str(home / "cache"),
        "HTTPS_PROXY": PROXY,
        "HTTP_PROXY": PROXY,
        **environment,
    }
    done = commands.run(
        "tests/faults/faulty_run.py",
        [json.dumps({"environment": variables}), "run.py", *arguments],
        here,
    )
    printed = here / "printed"
    printed.write_text(done.stdout + done.stderr, "utf-8")
    assert found(here) == []
    return done


def test_the_search_finds_what_is_planted(tmp_path: Path):
    for number, word in enumerate([*SECRETS.values(), PASSWORD]):
        (tmp_path / "deep").mkdir(exist_ok=True)
        (tmp_path / "deep" / f"{number}.bin").write_bytes(b"\0\xff" + word.encode() + b"\0")
    assert len(found(tmp_path)) == 4


def test_a_sweep_with_its_wandb_files_holds_no_secret(commands: Commands, model: Path, empty: Path):
    arguments = ["-m", *SMALL, f"model.path={model}", "engine=eager", "logger.mode=offline"]
    done = started(commands, empty, [*arguments, "method=no_exit,river", "limit=1"])
    assert done.status == 0, done.stderr
    assert len(list(empty.rglob("*.wandb"))) == 3


def test_a_key_that_reaches_nobody_is_not_printed(commands: Commands, model: Path, empty: Path):
    arguments = [*SMALL, f"model.path={model}", "engine=eager", "method=no_exit", "limit=1"]
    own = ["logger.mode=online", "logger.timeout_s=12", "speedup.prompts=0", "fidelity.limit=0"]
    # Nobody listens there.
    done = started(commands, empty, [*arguments, *own], WANDB_BASE_URL="http://127.0.0.1:9")
    assert done.status == 0, done.stderr
    assert "not logged to W&B" in done.stderr


@pytest.mark.parametrize("kind", ["model", "data"])
def test_a_hub_that_cannot_be_reached_is_told_without_the_token(
    commands: Commands, model: Path, empty: Path, kind: str
):
    asked = {
        "model": [*SMALL, "model.path=nobody/nothing"],
        "data": [*SMALL, f"model.path={model}", "exp=gsm8k"],
    }[kind]
    # The hub's client has read its variables when it was imported: this is the offline hub.
    done = started(commands, empty, asked)
    assert done.status == 2
    assert len(done.errors) == 1
    assert "hub" in done.errors[0]
