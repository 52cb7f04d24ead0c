"""How commands end: each fault in one line, with its status."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
STOPPED = ["", "stopped"]


def ending(body: str, stdout: int = subprocess.PIPE) -> tuple[int, list[str]]:
    """Status and the lines on stderr of a command whose main is this body."""
    code = f"from river_llm.entry_point import end\ndef main():\n    {body}\nend(main)\n"
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    return done.returncode, done.stderr.splitlines()


@pytest.mark.parametrize(
    ("body", "status", "lines"),
    [
        ("return 0", 0, []),
        ("return 3", 3, []),
        (
            "from river_llm.errors import UserError; raise UserError('limit=-1: give 0 or more')",
            2,
            ["error: limit=-1: give 0 or more"],
        ),
        ("raise KeyboardInterrupt", 130, STOPPED),
        ("raise ImportError('initialization failed') from KeyboardInterrupt()", 130, STOPPED),
        ("try: raise KeyboardInterrupt\n    except BaseException: open('/nowhere')", 130, STOPPED),
        (
            "raise OSError(28, 'No space left on device', 'table.md')",
            2,
            [
                "error: table.md: No space left on device; make room there, or give another place",
            ],
        ),
        (
            "raise PermissionError(13, 'Permission denied', '/x/y.csv')",
            2,
            ["error: /x/y.csv: Permission denied; make room there, or give another place"],
        ),
    ],
)
def test_an_ending_has_its_status_and_at_most_its_line(
    body: str, status: int, lines: list[str]
) -> None:
    assert ending(body) == (status, lines)


@pytest.mark.parametrize("text", ["'x'", "'x' * 100_000"], ids=["short", "long"])
def test_a_standard_output_that_is_full_is_told_once(text: str) -> None:
    with open("/dev/full", "w") as full:
        status, lines = ending(f"print({text}); return 0", full.fileno())
    assert status == 2
    assert lines == [
        "error: what the command leaves: No space left on device; make room there, or give "
        "another place"
    ]


@pytest.mark.parametrize("text", ["'x'", "'x' * 100_000"], ids=["short", "long"])
def test_a_reader_that_has_gone_is_no_fault_of_the_command(text: str) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        assert ending(f"print({text}); return 0", write_end) == (1, [])
    finally:
        os.close(write_end)


def test_a_fault_of_the_program_keeps_its_traceback() -> None:
    status, lines = ending("open('/nowhere/at/all')")
    assert status == 1
    assert lines[0].startswith("Traceback")


@pytest.mark.parametrize("path", [ROOT / "run.py", *sorted((ROOT / "scripts").glob("*.py"))])
def test_every_command_ends_so(path: Path) -> None:
    main = path.read_text("utf-8").partition('if __name__ == "__main__":\n')[2]
    assert main.lstrip().startswith("end(")
