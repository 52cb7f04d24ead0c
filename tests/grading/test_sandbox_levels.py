"""Which sandbox level is taken, what a program has there, and what crosses to its tests."""

from __future__ import annotations

import ctypes
import errno
import json
import math
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, OrderedDict, deque, namedtuple
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile import EVERY, RIGHT
from test_hostile_programs import require

import river_llm
from river_llm.errors import UserError
from river_llm.grading import sandbox, sandbox_levels
from river_llm.grading.sandbox import ExecutionResult, fault_of, run_program, usable_level
from river_llm.grading.sandbox_levels import CONTAINING
from river_llm.grading.sandbox_runner import held_bytes, verdict_of
from river_llm.grading.sandbox_worker import KEYCTL, Unsendable, decode, encode
from river_llm.tasks import TASKS, TaskSettings

EXPECTS_ERROR = (
    "try:\n        c(1)\n    except ValueError as e:\n        assert str(e) == 'v'\n"
    "    else:\n        assert False"
)
Point = namedtuple("Point", "x y")


class Color(IntEnum):
    RED = 3


def verdict(program: str, test: str, level: str = "process") -> ExecutionResult:
    return run_program(program, test, "f", 20.0, level=level)


# --- which level --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("faults", "taken"),
    [
        ({"bubblewrap": None, "namespaces": None}, "bubblewrap"),
        ({"bubblewrap": "not there", "namespaces": None}, "namespaces"),
        ({"bubblewrap": None, "namespaces": "not there"}, "bubblewrap"),
    ],
)
def test_auto_is_the_strongest_that_works(
    monkeypatch: pytest.MonkeyPatch, faults: dict[str, str | None], taken: str
) -> None:
    monkeypatch.setattr(sandbox, "fault_of", faults.__getitem__)
    assert usable_level("auto") == taken


def test_auto_never_falls_back_on_the_weaker_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "fault_of", {"bubblewrap": "no 1", "namespaces": "no 2"}.get)
    with pytest.raises(UserError) as caught:
        run_program(RIGHT, "def check(c):\n    assert c(2) == 4\n", "square", 5.0)
    text = str(caught.value)
    assert "\n" not in text
    assert all(word in text for word in ("bubblewrap: no 1", "namespaces: no 2"))
    assert "exp.sandbox=process" in text
    assert usable_level("process") == "process"


def test_a_level_asked_for_by_name_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "fault_of", {"bubblewrap": None, "namespaces": "no 2"}.get)
    with pytest.raises(UserError, match=r"exp\.sandbox=namespaces: .*no 2"):
        usable_level("namespaces")


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_levels.shutil, "which", lambda name: None)
    assert fault_of.__wrapped__("bubblewrap") == "bwrap is not installed"


@pytest.mark.parametrize("level", CONTAINING)
def test_other_systems_are_refused_in_one_line(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    monkeypatch.setattr(sandbox_levels.sys, "platform", "darwin")
    assert fault_of.__wrapped__(level) == "it needs Linux, this is darwin"


def test_a_level_that_contains_nothing_is_not_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    open_to_all = sandbox_levels.containment("process")
    monkeypatch.setattr(sandbox, "containment", lambda level: open_to_all)
    monkeypatch.setattr(sandbox, "missing", lambda level: None)
    # The folders are left out: the trial would leave its file in them.
    monkeypatch.setattr(sandbox, "shown_paths", list)
    probe = sandbox._PROBE.replace("for folder in folders", "for folder in ()")
    monkeypatch.setattr(sandbox, "_PROBE", probe)
    reason = fault_of.__wrapped__("namespaces")
    assert reason is not None
    for breach in ("a file of the user", "the network", "other processes"):
        assert breach in reason


@pytest.mark.parametrize("level", CONTAINING)
def test_wrapper_that_cannot_start_is_a_fault_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    broken = sandbox_levels.Containment(("/nonexistent/wrap",), "/w.py", "/tmp", None, None)
    monkeypatch.setattr(sandbox, "containment", lambda level: broken)
    monkeypatch.setattr(sandbox, "missing", lambda level: None)
    reason = fault_of.__wrapped__(level)
    assert reason is not None
    assert "/nonexistent/wrap" in reason


def test_nothing_that_holds_the_home_is_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = tmp_path / "people" / "me"
    home.mkdir(parents=True)
    monkeypatch.setattr(Path, "home", lambda: home)
    for prefix in (home, home.parent, tmp_path):
        monkeypatch.setattr(sys, "prefix", str(prefix))
        assert str(prefix) not in [place for _, place in sandbox_levels.shown_paths()]
    below = home / "venv"
    below.mkdir()
    monkeypatch.setattr(sys, "prefix", str(below))
    assert (str(below), str(below)) in sandbox_levels.shown_paths()


@pytest.mark.parametrize("works", [True, False])
def test_demo_runs_programs_only_where_a_containing_level_works(
    works: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scripts = Path(__file__).parents[2] / "scripts"
    monkeypatch.syspath_prepend(str(scripts))
    demo: dict[str, Any] = runpy.run_path(str(scripts / "demo.py"))
    monkeypatch.setattr(sandbox, "fault_of", lambda level: None if works else "not here")
    assert demo["permission"]() == (["exp.allow_code_execution=true"] if works else [])
    said = capsys.readouterr().err
    assert ("HumanEval is left ungraded" in said) is not works
    assert ("exp.sandbox=process" in said) is not works


BARE = {
    "bubblewrap": ["bwrap", "--ro-bind", "/", "/", "--unshare-pid", "--unshare-net", "true"],
    "namespaces": [
        *("unshare", "--mount", "--pid", "--net", "--fork"),
        *([] if os.getuid() == 0 else ["--user", "--map-root-user"]),
        *("mount", "-t", "tmpfs", "none", "/tmp"),
    ],
}


@pytest.mark.parametrize("level", CONTAINING)
def test_a_level_works_where_its_means_do(level: str) -> None:
    # Else a fault of ours would leave out all tests of the level.
    if shutil.which(BARE[level][0]) is None:
        pytest.skip(f"{BARE[level][0]} is not installed")
    bare = subprocess.run(BARE[level], capture_output=True, text=True, check=False)
    if bare.returncode != 0:
        pytest.skip(f"{BARE[level][0]} cannot be used here: {bare.stderr.strip()}")
    assert fault_of(level) is None


# --- what a program has ---------------------------------------------------------------------


@pytest.mark.parametrize("level", EVERY)
def test_program_has_an_empty_folder_and_a_bare_environment(
    level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    require(level)
    monkeypatch.setenv("SOME_SECRET", "swordfish")
    program = (
        "import os, sys, tempfile\n"
        "assert os.listdir('.') == []\n"
        "assert sorted(set(os.environ) - {'PWD'}) == ['HOME', 'LANG', 'OMP_NUM_THREADS',\n"
        "                              'OPENBLAS_NUM_THREADS', 'PATH', 'TMPDIR']\n"
        "assert os.path.samefile(tempfile.gettempdir(), '.')\n"
        "open('left', 'w').write('x')\n"
        "assert open('left').read() == 'x' and sys.flags.isolated\n"
        "import dataclasses, math, random, re, hashlib, threading, subprocess\n"
        "t = threading.Thread(target=print)\nt.start()\nt.join()\n"
        "assert subprocess.run([sys.executable, '-c', 'exit(7)']).returncode == 7\n"
        "def f(x):\n    return x\n"
    )
    test = "def check(c):\n    assert c(1) == 1\n"
    for _ in range(2):  # nothing is left of the first
        assert verdict(program, test, level) == ExecutionResult("passed")


@pytest.mark.parametrize("level", CONTAINING)
def test_program_has_no_rights_of_root_and_sees_only_what_it_needs(level: str) -> None:
    require(level)
    program = (
        "import os, socket\n"
        "def f():\n"
        "    return [os.getuid(), len(os.getgroups()), sorted(os.listdir('/')),\n"
        "            [name for _, name in socket.if_nameindex()], os.listdir('/tmp'),\n"
        "            sorted(os.listdir('/dev')), os.path.exists('/etc/passwd')]\n"
    )
    tops = {place.split("/")[1] for _, place in sandbox_levels.shown_paths()} | {"dev", "tmp"}
    user = os.getuid() or 65534
    test = (
        "def check(c):\n    user, groups, tops, devices, own, dev, passwd = c()\n"
        f"    assert user == {user} and tops == {sorted(tops)!r}, (user, tops)\n"
        "    assert not set(devices) - {'lo'} and own == [] and not passwd, (devices, own)\n"
        "    assert dev == ['full', 'null', 'random', 'urandom', 'zero'], dev\n"
    )
    assert verdict(program, test, level) == ExecutionResult("passed")


@pytest.mark.parametrize("level", EVERY)
def test_status_of_a_program_that_dies_is_told(level: str) -> None:
    require(level)
    test = "def check(c):\n    c()\n"
    crash = "import os\ndef f():\n    os.kill(os.getpid(), 11)\n"
    assert verdict(crash, test, level).detail.startswith("killed by signal 11")
    leave = "import os\ndef f():\n    os._exit(3)\n"
    assert verdict(leave, test, level).detail == "exited with status 3 before the last assertion"


@pytest.mark.parametrize("level", CONTAINING)
def test_nothing_lives_on_when_the_harness_is_killed(level: str, tmp_path: Path) -> None:
    require(level)
    limit = 300.0 + (os.getpid() % 100_000) / 1e7
    program = "import os, time\nif os.fork() == 0:\n    os.setsid()\ntime.sleep(600)\n"
    harness = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from river_llm.grading.sandbox import run_program\n"
            f"run_program({program!r}, 'def check(c):\\n    c()\\n', 'f', {limit!r}, {level!r})",
        ],
        env={
            **os.environ,
            "PYTHONPATH": str(Path(river_llm.__file__).parents[1]),
            "TMPDIR": str(tmp_path),
        },
    )

    def running() -> int:
        count = 0
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            words = command.split(b"\0")
            count += repr(limit).encode() in command and words[1:3][-1:] != [b"-c"]
        return count

    def wait_for(reached: Any) -> None:
        deadline = time.monotonic() + 30.0
        while not reached():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    try:
        wait_for(lambda: running() >= 3)  # wrapper, program and its child
    finally:
        harness.send_signal(signal.SIGKILL)
        harness.wait(30.0)
    wait_for(lambda: running() == 0)


@pytest.mark.parametrize(
    "written",
    ["", "{}", '{"status": "passed", "detail": ""}', "b" * 32 + '{"status": "passed"}', "a" * 31],
)
def test_what_does_not_begin_with_the_token_is_no_pass(written: str) -> None:
    refused = {"status": "failed", "detail": "the checks were ended before the last assertion"}
    assert verdict_of(written, "a" * 32, 0) == refused
    right = {"status": "passed", "detail": ""}
    assert verdict_of("a" * 32 + json.dumps(right), "a" * 32, 0) == right


# --- between program and tests ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "same"),
    [
        (None, None),
        (True, True),
        (0, 0),
        (-(2**63), -(2**63)),
        (2**64, 2**64),
        ([-(10**5000)], [-(10**5000)]),
        (0.1, 0.1),
        (math.inf, math.inf),
        (-0.0, -0.0),
        (1 + 2j, 1 + 2j),
        ("a\0\ud800\n", "a\0\ud800\n"),
        (b"\0\xff", b"\0\xff"),
        ([1, [2.0, "x"]], [1, [2.0, "x"]]),
        ((1, (2,)), (1, (2,))),
        ({"foreign": (1,), (1, 2): {3}}, {"foreign": (1,), (1, 2): {3}}),
        (set(), set()),
        (frozenset({1}), frozenset({1})),
        ({frozenset({1}): {(2, frozenset())}}, {frozenset({1}): {(2, frozenset())}}),
        (bytearray(b"\0\xff"), bytearray(b"\0\xff")),
        (range(5, 1, -2), range(5, 1, -2)),
        (deque([1]), deque([1])),
        (Fraction(1, 3), Fraction(1, 3)),
        (Decimal("0.10"), Decimal("0.10")),
        (Counter("aab"), {"a": 2, "b": 1}),
        (OrderedDict(a=1), {"a": 1}),
        (Point(1, 2), (1, 2)),
        (Color.RED, 3),
        (np.float64(0.5), 0.5),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (np.longdouble(0.5), 0.5),
    ],
)
def test_plain_values_cross_whole(value: Any, same: Any) -> None:
    crossed = decode(json.loads(json.dumps(encode(value, strict=True))))
    assert crossed == same
    assert type(crossed) is type(same)
    assert math.copysign(1, crossed) == math.copysign(1, same) if isinstance(same, float) else True


@pytest.mark.parametrize(
    ("value", "items"),
    [
        ((x * x for x in range(3)), [0, 1, 4]),
        (map(str, [1]), ["1"]),
        ({1: 2}.values(), [2]),
        (np.array([[1, 2]]), [[1, 2]]),
    ],
)
def test_other_iterables_cross_as_their_items_and_equal_nothing(value: Any, items: Any) -> None:
    crossed = decode(json.loads(json.dumps(encode(value))))
    assert [list(x) if hasattr(x, "__iter__") and x != str(x) else x for x in crossed] == items
    assert crossed != items


@pytest.mark.parametrize("value", [print, lambda: 0, object(), [object()], {1: iter(())}])
def test_what_has_no_plain_form_is_not_handed_to_a_program(value: Any) -> None:
    with pytest.raises(Unsendable):
        encode(value, strict=True)


@pytest.mark.parametrize(
    "plain",
    [{}, {"a": 1, "b": 2}, {"other": 1}, {"set": [[1]]}, {"int": "x"}, {"range": [1, 2, 0]}],
)
def test_what_encode_does_not_make_is_refused(plain: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        decode(plain)


@pytest.mark.parametrize(
    ("program", "test", "status"),
    [
        ("def f(x):\n    x.sort()\n", "a = [2, 1]\n    c(a)\n    assert a == [1, 2]", "passed"),
        ("def f(x):\n    x['k'] = 1\n", "a = {}\n    c(x=a)\n    assert a == {'k': 1}", "passed"),
        ("def f(x):\n    raise ValueError('v')\n", EXPECTS_ERROR, "passed"),
        ("def f(x):\n    return x\n", EXPECTS_ERROR, "failed"),
        ("def g(x):\n    return 2 * x\ndef f(x):\n    return x\n", "assert g(c(2)) == 4", "passed"),
        (
            "import math\nK = [3]\ndef f(x):\n    return x\n",
            "assert math.floor(K[0]) == 3",
            "passed",
        ),
        ("import math as os\ndef f(x):\n    return x\n", "assert os.floor(1.5) == 1", "failed"),
        ("def f(x):\n    return (n for n in range(x))\n", "assert tuple(c(2)) == (0, 1)", "passed"),
        ("def f(x):\n    return [1, 2]\n", "assert c(0) == (1, 2)", "failed"),
        ("def f(x):\n    return True\n", "assert c(0) is True", "passed"),
        ("class E(Exception):\n    pass\ndef f(x):\n    raise E('own')\n", "c(0)", "failed"),
        ("class E(ValueError):\n    pass\ndef f(x):\n    raise E('v')\n", EXPECTS_ERROR, "passed"),
        (
            "def f(x):\n    raise StopIteration\n",
            "for r in map(c, [2]):\n        assert r == 4",
            "failed",
        ),
        ("def f(x):\n    return x\n", "c(lambda: 0)", "error"),
        # What comes of the program and cannot go back to it is the program's fault.
        ("def f(x):\n    x.append(print)\n", "a = []\n    c(a)\n    c(a)", "failed"),
        (
            "def g(x):\n    return sum(x)\ndef f(x):\n    return (n for n in range(x))\n",
            "assert g(c(2)) == 1",
            "failed",
        ),
        # Builtins that the tests use are Python's, whatever the program defines.
        (
            "def len(x):\n    return 2\ndef f(x):\n    return []\n",
            "assert len(c(0)) == 2",
            "failed",
        ),
        (
            "range = lambda *ends: []\ndef f(x):\n    return 5\n",
            "for i in range(3):\n        assert c(i) == i",
            "failed",
        ),
        (
            "def all(x):\n    return False\ndef f(x):\n    return x\n",
            "assert all(c(i) == i for i in range(3))",
            "passed",
        ),
        # Truth is that of the value.
        (
            "class N:\n    def __bool__(self):\n        return False\ndef f(x):\n    return N()\n",
            "assert c(0)",
            "failed",
        ),
        ("def f(x):\n    return {}.keys()\n", "assert not c(0)", "passed"),
        (
            "import numpy as np\ndef f(x):\n    return np.array([1, 0])\n",
            "assert c(0)",
            "failed",
        ),
        ("f = 5\n", "assert c == 5", "passed"),
        ("def f(x):\n    return x\n", "import os\n    os.kill(os.getpid(), 9)", "failed"),
    ],
)
def test_tests_see_the_program_s_functions_as_if_they_were_there(
    program: str, test: str, status: str
) -> None:
    assert verdict(program, f"def check(c):\n    {test}\n").status == status


def test_an_iterator_of_the_program_s_that_goes_to_another_function_stops_no_run() -> None:
    # HumanEval/32, 38 and 50 hand what one function of the program returns to another.
    task = TASKS["humaneval"](TaskSettings(allow_code_execution=True, sandbox="process"))
    (sample,) = (each for each in task.samples() if each.id == "HumanEval/32")
    verdict = task.grade(sample, "    return (x for x in xs)\n", "eos")
    assert verdict.correct is False
    assert verdict.detail["status"] == "failed"


def test_memory_in_files_without_a_name_counts() -> None:
    before, (told, tell) = held_bytes(), os.pipe()
    child = os.fork()
    if child == 0:
        file = os.memfd_create("hog")
        os.truncate(file, 64 << 20)
        os.pwrite(file, b"x" * (32 << 20), 0)
        os.write(tell, b".")
        time.sleep(60)
        os._exit(0)
    try:
        assert os.read(told, 1) == b"."
        # What was written counts, what is only reserved does not; the rest is the fork's own.
        own = int(Path(f"/proc/{child}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        assert held_bytes() - own - before == pytest.approx(32 << 20, abs=8 << 20)
    finally:
        os.close(told)
        os.close(tell)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


KEYRING = """
import ctypes
assert ctypes.CDLL(None).syscall({number}, 10, -3, b"user", b"{name}", 0) > 0
def f(x):
    return x
"""


@pytest.mark.parametrize("level", EVERY)
def test_keys_of_the_session_are_not_there(level: str) -> None:
    require(level)
    # A machine without a number here gets a warning in each run, and needs one.
    number = KEYCTL[os.uname().machine]
    libc = ctypes.CDLL(None, use_errno=True)
    name = f"river-llm-{os.getpid()}"
    key = libc.syscall(number - 2, b"user", name.encode(), b"swordfish", 9, -3)
    if key < 0:
        # Nobody has keyrings here, programs neither: no kernel support, or a container's filter.
        assert ctypes.get_errno() in (errno.ENOSYS, errno.EPERM)
    else:
        assert libc.syscall(number, 10, -3, b"user", name.encode(), 0) == key
    looks = KEYRING.format(number=number, name=name)
    try:
        assert verdict(looks, "def check(c):\n    assert c(1) == 1\n", level).status == "failed"
    finally:
        libc.syscall(number, 3, key)


def test_page_tells_every_level() -> None:
    page = (Path(__file__).parents[2] / "docs" / "sandbox.md").read_text(encoding="utf-8")
    for level in sandbox.LEVELS:
        assert re.search(rf"^\| `{level}`", page, re.MULTILINE)
