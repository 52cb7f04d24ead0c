"""The project's scripts as commands of their own, without paying for their imports each time.

A server process imports what the scripts import and forks one child for each command; the child
runs the script as `__main__` in its own folder, with its own argument list and output files.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Done:
    """What a command came to.

    Attributes:
        status: exit status; negative: the signal that ended it.
        stdout, stderr: everything it printed.
    """

    status: int
    stdout: str
    stderr: str

    @property
    def errors(self) -> list[str]:
        """Messages on stderr."""
        return [line for line in self.stderr.splitlines() if line.startswith("error:")]

    @property
    def last_line(self) -> dict[str, Any]:
        """The JSON object that ends stdout."""
        content: dict[str, Any] = json.loads(self.stdout.splitlines()[-1])
        return content


class Commands:
    """Starts scripts of the project.

    Args:
        scratch: folder for the commands' output.
        environment: variables for all commands, beside this process's own.
    """

    def __init__(self, scratch: Path, environment: Mapping[str, str]) -> None:
        self._scratch = scratch
        self._count = 0
        self._server = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )

    def start(self, script: str, arguments: Sequence[str], folder: Path) -> int:
        """Starts a command and returns its process id; call :meth:`finish` before the next."""
        self._count += 1
        request = {
            "script": str(ROOT / script),
            "arguments": list(arguments),
            "folder": str(folder),
            "stdout": str(self._scratch / f"{self._count}.out"),
            "stderr": str(self._scratch / f"{self._count}.err"),
        }
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return self._answer()

    def finish(self) -> Done:
        """Waits for the command that was started last."""
        status = self._answer()
        stdout, stderr = (
            (self._scratch / f"{self._count}.{end}").read_text("utf-8") for end in ("out", "err")
        )
        return Done(status, stdout, stderr)

    def run(self, script: str, arguments: Sequence[str], folder: Path) -> Done:
        """Runs a command to its end."""
        self.start(script, arguments, folder)
        return self.finish()

    def close(self) -> None:
        """Ends the server."""
        self._server.communicate(timeout=60)

    def _answer(self) -> int:
        assert self._server.stdout is not None
        return int(self._server.stdout.readline())


def serve() -> None:
    """Reads requests from stdin; answers each with the child's process id, then its status."""
    import torch

    import river_llm.analysis.report
    import river_llm.evaluation.run  # noqa: F401

    torch.set_num_threads(1)
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            _become(request)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _become(request: Mapping[str, Any]) -> None:
    """Turns this process into the command; does not return."""
    os.chdir(request["folder"])
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(request[name], flags), number)
    sys.argv = [request["script"], *request["arguments"]]
    status: Any = 0
    try:
        runpy.run_path(request["script"], run_name="__main__")
    except SystemExit as ended:
        status = ended.code or 0
    except BaseException:
        # As the interpreter itself would end.
        traceback.print_exc()
        status = 1
    if not isinstance(status, int):
        print(status, file=sys.stderr)
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    serve()
