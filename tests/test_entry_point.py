"""How commands end: each fault in one line, with its status."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
STOPPED = ["", "stopped"]
MISTAKE = "from river_llm.errors import UserError; raise UserError('limit=-1: give 0 or more')"
TOLD = ["error: limit=-1: give 0 or more"]
NO_ROOM = (
    "error: what the command leaves: No space left on device; make room there, or give another "
    "place"
)


def ending(body: str, stdout: int = subprocess.PIPE) -> tuple[int, list[str]]:
    """Status and the lines on stderr of a command whose main is this body."""
    code = f"from river_llm.entry_point import end\ndef main():\n    {body}\nend(main)\n"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    # It would write every line at once, where commands as they are started keep a buffer.
    environment.pop("PYTHONUNBUFFERED", None)
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        env=environment,
    )
    return done.returncode, done.stderr.splitlines()


@contextmanager
def bad(stdout: str) -> Iterator[int]:
    """A standard output that takes nothing."""
    if stdout == "full":
        descriptor = os.open("/dev/full", os.O_WRONLY)
    else:
        read_end, descriptor = os.pipe()
        os.close(read_end)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("body", "status", "lines"),
    [
        ("return 0", 0, []),
        ("return 3", 3, []),
        (MISTAKE, 2, TOLD),
        ("raise KeyboardInterrupt", 130, STOPPED),
        ("raise ImportError('initialization failed') from KeyboardInterrupt()", 130, STOPPED),
        ("try: raise KeyboardInterrupt\n    except BaseException: open('/nowhere')", 130, STOPPED),
        (
            "raise OSError(28, 'No space left on device', 'table.md')",
            2,
            ["error: table.md: No space left on device; make room there, or give another place"],
        ),
        (
            "raise PermissionError(13, 'Permission denied', '/x/y.csv')",
            2,
            [
                "error: /x/y.csv: Permission denied; give a place that can be read and written",
            ],
        ),
        (
            "open('/')",
            2,
            ["error: /: Is a directory; give a place that can be read and written"],
        ),
    ],
)
def test_an_ending_has_its_status_and_at_most_its_line(
    body: str, status: int, lines: list[str]
) -> None:
    assert ending(body) == (status, lines)


@pytest.mark.parametrize("text", ["'x'", "'x' * 100_000"], ids=["short", "long"])
@pytest.mark.parametrize(
    ("stdout", "after", "status", "lines"),
    [
        ("full", "return 0", 2, [NO_ROOM]),
        ("gone", "return 0", 1, []),
        ("full", MISTAKE, 2, TOLD),
        ("gone", MISTAKE, 2, TOLD),
        ("full", "raise KeyboardInterrupt", 130, STOPPED),
        ("gone", "raise KeyboardInterrupt", 130, STOPPED),
    ],
)
def test_a_standard_output_that_takes_nothing(
    stdout: str, after: str, status: int, lines: list[str], text: str
) -> None:
    # A long text fails at once, before the command's own ending.
    if len(text) > 5 and after != "return 0":
        status, lines = {"full": (2, [NO_ROOM]), "gone": (1, [])}[stdout]
    with bad(stdout) as descriptor:
        assert ending(f"print({text}); {after}", descriptor) == (status, lines)


def test_a_closed_standard_output_is_none() -> None:
    code = "import os; os.close(1); os.execv(sys.executable, [sys.executable, '-c', {inner!r}])"
    inner = "from river_llm.entry_point import end; end(lambda: print('x') or 0)"
    done = subprocess.run(
        [sys.executable, "-c", "import sys; " + code.format(inner=inner)],
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "body",
    [
        "open('/nowhere/at/all')",
        # A pipe that broke, but not that of standard output.
        "import os; r, w = os.pipe(); os.close(r); os.write(w, b'x')",
    ],
)
def test_a_fault_of_the_program_keeps_its_traceback(body: str) -> None:
    status, lines = ending(body)
    assert status == 1
    assert lines[0].startswith("Traceback")


@pytest.mark.parametrize("path", [ROOT / "run.py", *sorted((ROOT / "scripts").glob("*.py"))])
def test_every_command_ends_so(path: Path) -> None:
    main = path.read_text("utf-8").partition('if __name__ == "__main__":\n')[2]
    assert main.lstrip().startswith("end(")
