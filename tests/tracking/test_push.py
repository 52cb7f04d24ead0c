"""The process that logs: what it may not do to the one that waits for it."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from saved_run import contents, sample, save
from wandb_file import written

from river_llm.config import RunConfig, WandbConfig
from river_llm.errors import UserError
from river_llm.tracking import track
from river_llm.tracking.payload import Payload, run_payload
from river_llm.tracking.push import NotLoggedError, mode_of, push

ROOT = Path(__file__).resolve().parents[2]
NO_KEY = ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_BASE_URL", "NETRC")
KEY = "0123456789" * 4


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A home in which nobody has logged in, and no word about modes."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("WANDB_MODE")
    for name in (*NO_KEY, "WANDB_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(track, "_given_up", False)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "results"


@pytest.fixture
def folder(output: Path) -> Path:
    return save(output / "runs/gsm_mini/tiny/river-ab12cd34ef56", [sample(0), sample(1)])


@pytest.fixture
def payload(folder: Path) -> Payload:
    return run_payload(folder, WandbConfig())


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Puts a package in wandb's place whose calls do what a test says."""

    def install(**actions: str) -> None:
        lines = {"init": "", "log": "", "finish": "", **actions}
        package = tmp_path / "packages" / "wandb"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(
            "import os, signal, time\n"
            "Table = Histogram = Image = Settings = lambda **given: given\n"
            "def login(**given): return True\n"
            "class Run:\n"
            "    url, dir, summary = 'https://host/run', '/nowhere/files', {}\n"
            f"    def log(self, row): {lines['log'] or 'pass'}\n"
            "    def __enter__(self): return self\n"
            f"    def __exit__(self, *error): {lines['finish'] or 'pass'}\n"
            "def init(**given):\n"
            f"    {lines['init'] or 'pass'}\n"
            "    return Run()\n",
            "utf-8",
        )
        path = os.pathsep.join([str(package.parent), os.environ.get("PYTHONPATH", "")])
        monkeypatch.setenv("PYTHONPATH", path)

    return install


@pytest.fixture
def run_config(output: Path) -> RunConfig:
    from river_llm.composition import load_config

    return load_config([f"output.dir={output}", "logger.timeout_s=20"])


# --- modes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "variable", "mode"),
    [
        ("auto", None, "auto"),
        ("auto", "", "auto"),
        ("auto", "offline", "offline"),
        ("auto", "Online", "online"),
        ("auto", "dryrun", "offline"),
        ("auto", "disabled", None),
        ("offline", "disabled", "offline"),
        ("online", "offline", "online"),
    ],
)
def test_the_variable_wins_over_auto_alone(
    monkeypatch: pytest.MonkeyPatch, setting: Any, variable: str | None, mode: str | None
):
    if variable is not None:
        monkeypatch.setenv("WANDB_MODE", variable)
    assert mode_of(WandbConfig(mode=setting)) == mode


def test_an_unknown_mode_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WANDB_MODE", "of line")
    with pytest.raises(UserError, match="WANDB_MODE=of line: choose one of online"):
        mode_of(WandbConfig())


# --- the real client ----------------------------------------------------------------------


def test_without_a_key_it_logs_offline_and_asks_nobody(folder: Path, output: Path, tmp_path: Path):
    # On a terminal the package asks for a key, and would wait for the answer.
    here = tmp_path / "here"
    here.mkdir()
    script = [sys.executable, str(ROOT / "scripts/push_to_wandb.py"), str(folder)]
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(here)
        os.execv(sys.executable, script)
    printed = b"".join(_until_closed(terminal))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, printed
    assert b"offline, upload it with: wandb sync" in printed
    assert b"Create a W&B account" not in printed
    assert list(here.iterdir()) == []

    (run,) = written(output).values()
    assert (run.record.run_id, run.record.host) == ("river-ab12cd34ef56", "")
    # The project is the one that config.json names.
    assert run.record.project == "mine"
    assert run.config["settings"]["criterion"]["tau"] == 0.5
    assert set(run.later_config) <= {"_wandb"}
    assert run.summary["speedup/decode/matched"] == 1.5
    assert run.summary["arm"] == "river tau=0.5 sequence"
    (row,) = run.history
    assert row["speedup/decode/matched"] == 1.5
    assert row["exit_depth/histogram.values"] == [0, 3, 0, 0, 3]
    assert row["exit_depth/histogram.bins"] == [-0.5, 0.5, 1.5, 2.5, 3.5, 4.5]
    table = json.loads(run.media("samples").read_text("utf-8"))
    assert [line[0] for line in table["data"]] == ["q0", "q1"]
    assert table["columns"][-1] == "completion"
    assert run.exit_code == 0

    again = subprocess.run(script, capture_output=True, text=True, cwd=here, timeout=60)
    assert "nothing new since it was logged offline" in again.stdout, again.stderr
    assert len(written(output)) == 1


def _until_closed(terminal: int) -> Iterator[bytes]:
    stop = time.monotonic() + 60
    while time.monotonic() < stop:
        if not select.select([terminal], [], [], 1)[0]:
            continue
        try:
            part = os.read(terminal, 4096)
        except OSError:
            # Linux says so when the other end is closed.
            return
        if not part:
            return
        yield part
    raise AssertionError("it still waits after a minute")


@pytest.fixture
def silent_server() -> Iterator[str]:
    """An address that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_with_a_key_it_goes_online_and_waits_no_longer_than_allowed(
    payload: Payload, output: Path, monkeypatch: pytest.MonkeyPatch, silent_server: str
):
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_BASE_URL", silent_server)
    started = time.monotonic()
    with pytest.raises(NotLoggedError) as error:
        push(payload, WandbConfig(timeout_s=8), output, "auto")
    assert time.monotonic() - started < 20
    assert KEY not in str(error.value)
    assert not list((output / "wandb").glob("logged/*"))


def test_a_service_that_is_killed_leaves_the_records(
    folder: Path, run_config: RunConfig, capsys: pytest.CaptureFixture
):
    before = contents(folder)
    done = threading.Event()
    killed: list[int] = []

    def kill() -> None:
        while not done.is_set() and not killed:
            killed.extend(_services())
        for pid in killed:
            os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    config = replace(run_config, logger=replace(run_config.logger, mode="offline"))
    track.track_run(config, folder)
    done.set()
    killer.join()
    assert killed
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("warning: not logged to W&B (")
    assert line.endswith(f"python scripts/push_to_wandb.py {folder}")
    assert contents(folder) == before


def _services() -> list[int]:
    """Processes of wandb's service that a descendant of this process started."""
    parents, services = {}, []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            name, _, rest = (entry / "stat").read_text().rpartition(")")
        except OSError:
            continue
        parents[int(entry.name)] = int(rest.split()[1])
        if name.endswith("(wandb-core"):
            services.append(int(entry.name))
    return [pid for pid in services if parents.get(parents[pid]) == os.getpid()]


# --- whatever else the client may do --------------------------------------------------------

FAILURES = [
    ("init", "raise RuntimeError('no\\n   space')", "RuntimeError: no space"),
    ("log", "raise ValueError('x')", "ValueError: x"),
    ("finish", "raise TimeoutError('upload')", "TimeoutError: upload"),
    ("log", "os.kill(os.getpid(), signal.SIGKILL)", "its process was ended by SIGKILL"),
    ("log", "os._exit(3)", "it ended without a word"),
    ("init", "raise SystemExit('bye')", "bye"),
]


@pytest.mark.parametrize(("where", "action", "reason"), FAILURES)
def test_a_client_that_fails_is_one_line_and_no_more(
    fake: Callable[..., None],
    folder: Path,
    run_config: RunConfig,
    capsys: pytest.CaptureFixture,
    where: str,
    action: str,
    reason: str,
):
    fake(**{where: action})
    before = contents(folder)
    track.track_run(run_config, folder)
    assert capsys.readouterr().err == (
        f"warning: not logged to W&B ({reason}; this process tries no more); the records are "
        f"whole, log them later with: python scripts/push_to_wandb.py {folder}\n"
    )
    assert contents(folder) == before
    # The next cell does not wait for the same failure again.
    track.track_run(run_config, folder)
    assert capsys.readouterr().err == ""


def test_a_client_that_hangs_is_ended(
    fake: Callable[..., None], payload: Payload, output: Path, tmp_path: Path
):
    mark = tmp_path / "pid"
    fake(finish=f"open({str(mark)!r}, 'w').write(str(os.getpid())), time.sleep(600)")
    started = time.monotonic()
    with pytest.raises(NotLoggedError, match=r"no end after logger\.timeout_s=4 seconds"):
        push(payload, WandbConfig(timeout_s=4), output, "offline")
    assert time.monotonic() - started < 20
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)


def test_one_that_works_says_where_it_is(
    fake: Callable[..., None], folder: Path, run_config: RunConfig, capsys: pytest.CaptureFixture
):
    fake()
    track.track_run(run_config, folder)
    assert capsys.readouterr().err == "W&B: https://host/run\n"
    track.track_run(run_config, folder)
    assert capsys.readouterr().err == "W&B: nothing new since it was logged online\n"


def test_what_is_offline_may_still_go_online(
    fake: Callable[..., None], payload: Payload, output: Path
):
    fake()
    settings = WandbConfig()
    first = push(payload, settings, output, "offline")
    assert first == "offline, upload it with: wandb sync /nowhere"
    assert push(payload, settings, output, "online") == "https://host/run"
    assert push(payload, settings, output, "offline").startswith("nothing new")
    assert push(payload, settings, output, "online", again=True) == "https://host/run"
    elsewhere = replace(settings, project="other")
    assert push(payload, elsewhere, output, "online") == "https://host/run"


@pytest.mark.parametrize("how", ["logger=none", "WANDB_MODE"])
def test_nothing_is_started_where_nothing_is_wanted(
    fake: Callable[..., None],
    folder: Path,
    run_config: RunConfig,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    how: str,
):
    from river_llm.config import NoLoggerConfig

    fake(init="raise RuntimeError")
    if how == "WANDB_MODE":
        monkeypatch.setenv("WANDB_MODE", "disabled")
    else:
        run_config = replace(run_config, logger=NoLoggerConfig())
    track.track_run(run_config, folder)
    assert capsys.readouterr() == ("", "")
    assert not (folder.parents[3] / "wandb").exists()
