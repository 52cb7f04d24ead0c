"""`llama_cpp`: the same model in llama.cpp, through the package xllamacpp (extra `peers`)."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gguf import GGUFReader

from river_llm.benchmark.arms import LLAMA_CPP
from river_llm.errors import UserError
from river_llm.models.embedded import find_gguf
from river_llm.models.loading import EMBEDDED

SETTLE_SECONDS = 0.3
"""Idle threads of OpenMP go on polling for a while; longer than any of their default times."""

WORKER = "river_llm.benchmark.llama_worker"

KV_ELEMENT_BYTES = 2
"""llama.cpp keeps keys and values in fp16 unless told otherwise."""


class LlamaCpp:
    """A llama.cpp server in a process of its own, asked for greedy tokens one request at a time.

    Args:
        path: the GGUF file.
        traffic: of that file.
        threads: for the prompt and for decoding.
        slots: longest text.
        steps: decode steps in a pass.

    Attributes:
        prefill_seconds: of the last prefill, by llama.cpp's own clock.

    Raises:
        UserError: the package or the file is missing, or cannot be used.
    """

    def __init__(
        self, path: Path, traffic: GgufTraffic, threads: int, slots: int, steps: int
    ) -> None:
        if importlib.util.find_spec("xllamacpp") is None:
            raise UserError(
                f"arm {LLAMA_CPP}: the package xllamacpp is not installed: "
                "pip install -e '.[peers]', or leave gguf out"
            )
        self._worker = subprocess.Popen(
            [sys.executable, "-m", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        weakref.finalize(self, self._worker.kill)
        self._path = path
        self._ask({"path": str(path), "slots": slots, "threads": threads})
        self.name = LLAMA_CPP
        self.prefill_seconds = 0.0
        self._traffic = traffic
        self._steps = steps
        self._prompt: list[int] = []

    def prefill(self, prompt: Sequence[int]) -> None:
        """Feeds a prompt, which stays in the server's cache."""
        self._prompt = list(prompt)
        self.prefill_seconds = self._complete(1, reuse=False)["prompt_ms"] / 1000

    def timed_pass(self) -> float:
        """Seconds of the decode steps behind the prompt's first token, by llama.cpp's clock.

        Torch's threads poll for a while after work: the pass waits until they sleep.
        """
        time.sleep(SETTLE_SECONDS)
        # The first token comes with the prompt, whose last token is fed anew.
        timings = self._complete(self._steps + 1, reuse=True)
        if timings["predicted_n"] != self._steps + 1 or timings["prompt_n"] != 1:
            raise RuntimeError(f"llama.cpp did not decode {self._steps} steps alone: {timings}")
        seconds: float = timings["predicted_ms"] / 1000
        return seconds

    def bytes_per_token(self) -> dict[str, float]:
        """Mean bytes of the decode steps of a pass, by kind."""
        return self._traffic.bytes_per_token(len(self._prompt), self._steps)

    def details(self) -> dict[str, Any]:
        """Version of the package, which is that of llama.cpp in it."""
        return {"version": importlib.metadata.version("xllamacpp")}

    def _complete(self, tokens: int, reuse: bool) -> dict[str, Any]:
        return self._ask(
            {
                "prompt": self._prompt,
                "n_predict": tokens,
                "ignore_eos": True,
                "cache_prompt": reuse,
                "samplers": ["top_k"],
                "top_k": 1,
            }
        )

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Wakes the worker for one request; between them it is stopped, and disturbs no one."""
        worker = self._worker
        assert worker.stdin and worker.stdout
        worker.send_signal(signal.SIGCONT)
        try:
            worker.stdin.write(json.dumps(request) + "\n")
            worker.stdin.flush()
            line = worker.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise UserError(f"arm {LLAMA_CPP}: llama.cpp ended while it served {self._path}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            reason = " ".join(str(answer["error"]).split())[:200]
            raise UserError(f"arm {LLAMA_CPP}: llama.cpp cannot serve {self._path} ({reason})")
        worker.send_signal(signal.SIGSTOP)
        return answer


def gguf_path(given: str) -> Path:
    """The file that `gguf=` names.

    Raises:
        UserError: there is no such file.
    """
    path = find_gguf() if given == EMBEDDED else Path(given)
    if not path.is_file():
        raise UserError(f"gguf={given} is no file: give a GGUF file, or gguf=embedded")
    return path


class GgufTraffic:
    """Bytes that llama.cpp reads for one token.

    Args:
        path: a GGUF file.

    Attributes:
        vocab_size: rows of its embedding.

    Raises:
        UserError: not a GGUF file of a language model.
    """

    def __init__(self, path: Path) -> None:
        try:
            reader = GGUFReader(path)
            sizes = {str(t.name): int(t.n_bytes) for t in reader.tensors}
            architecture = reader.fields["general.architecture"].contents()

            def number(key: str) -> int:
                return int(reader.fields[f"{architecture}.{key}"].contents())

            layers, kv_heads = number("block_count"), number("attention.head_count_kv")
            width = number("embedding_length") // number("attention.head_count")
            # Where it is not the hidden size divided by the heads, the file says so.
            if f"{architecture}.attention.key_length" in reader.fields:
                width = number("attention.key_length")
            embedding = next(t for t in reader.tensors if t.name == "token_embd.weight")
        except (ValueError, KeyError, OSError, StopIteration) as error:
            raise UserError(f"gguf={path} is no GGUF file of a language model ({error})") from error
        self.vocab_size = int(embedding.shape[-1])
        row = sizes["token_embd.weight"] // self.vocab_size
        tied = "output.weight" not in sizes
        head = sizes["token_embd.weight" if tied else "output.weight"]
        head += sizes["output_norm.weight"]
        matrices = sum(
            size
            for name, size in sizes.items()
            if name.startswith("blk.") and name.endswith(".weight") and "norm" not in name
        )
        rest = sum(sizes.values()) - head - matrices
        self._fixed = {
            "backbone": matrices,
            "river": 0,
            "head": head,
            # One row of the embedding in place of all; where it is the head too, that counts it.
            "other": row + (rest if tied else rest - sizes["token_embd.weight"]),
        }
        self._kv_slot = 2 * layers * kv_heads * width * KV_ELEMENT_BYTES

    def bytes_per_token(self, context: int, steps: int) -> dict[str, float]:
        """Mean bytes of the decode steps behind a prompt of `context` tokens, by kind."""
        return {**self._fixed, "kv": self._kv_slot * (context + (steps + 1) / 2)}
