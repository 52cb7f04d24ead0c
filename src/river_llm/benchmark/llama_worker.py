"""A llama.cpp server in a process of its own, driven over pipes:

    python -m river_llm.benchmark.llama_worker

In one process, llama.cpp's OpenMP threads and torch's slow each other down threefold. Each line of
standard input is one JSON object: first the server's settings (`path`, `slots`, `threads`), then
requests for completions; each answer is one line of JSON, `{"error": ...}` where it failed.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def main() -> None:
    """Serves until standard input ends."""
    # What llama.cpp prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(content: dict[str, Any]) -> None:
        answers.write(json.dumps(content) + "\n")
        answers.flush()

    settings = json.loads(sys.stdin.readline())
    try:
        server = start(settings)
    except (ImportError, RuntimeError) as error:
        answer({"error": f"{type(error).__name__}: {error}"})
        return
    answer({"ready": True})
    for line in sys.stdin:
        result = server.handle_completions(json.loads(line))
        timings = result.get("timings")
        answer({"error": str(result)} if timings is None else timings)


def start(settings: dict[str, Any]) -> Any:
    """The server of settings."""
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = settings["path"]
    parameters.n_ctx = settings["slots"]
    parameters.n_parallel = 1
    parameters.cpuparams.n_threads = settings["threads"]
    parameters.cpuparams_batch.n_threads = settings["threads"]
    # Saves the states of other requests, of which there are none.
    parameters.cache_ram_mib = 0
    parameters.verbosity = 0
    return xllamacpp.Server(parameters)


if __name__ == "__main__":
    main()
