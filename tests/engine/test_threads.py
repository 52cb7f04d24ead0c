"""How many threads compute, and the pool that they form."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from head_only import head, make_case

from river_llm.engine import threads
from river_llm.engine.native.compilation import COMPILERS, SOURCES
from river_llm.engine.threads import physical_cores, use_threads

STRESS = Path(__file__).parent / "pool_stress.cpp"


@pytest.fixture(autouse=True)
def _same_threads_afterwards():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def processors(tmp_path, monkeypatch):
    """Lets this process run on given processors, whose cores are given."""

    def pretend(siblings: dict[int, str | None]) -> None:
        for processor, names in siblings.items():
            if names is not None:
                folder = tmp_path / f"cpu{processor}" / "topology"
                folder.mkdir(parents=True)
                (folder / "thread_siblings_list").write_text(f"{names}\n")
        template = str(tmp_path / "cpu{}" / "topology" / "thread_siblings_list")
        monkeypatch.setattr(threads, "_TOPOLOGY", template)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(siblings))

    return pretend


@pytest.mark.parametrize(
    ("siblings", "cores"),
    [
        ({0: "0,4", 1: "1,5", 4: "0,4", 5: "1,5"}, 2),
        ({0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}, 2),
        ({0: "0", 1: "1", 2: "2"}, 3),
        ({4: "0,4"}, 1),
        ({0: None, 1: None}, 2),
        ({0: "0,2", 1: None, 2: "0,2"}, 2),
    ],
    ids=["two by two", "ranges", "no siblings", "one of a pair", "untold", "half told"],
)
def test_physical_cores_count_two_threads_of_a_core_once(siblings, cores, processors):
    processors(siblings)
    assert physical_cores() == cores


def test_the_users_word_goes_before_the_cores(processors, monkeypatch):
    processors({0: "0,4", 1: "1,5", 2: "2,6", 4: "0,4", 5: "1,5", 6: "2,6"})
    monkeypatch.delenv("OMP_NUM_THREADS")
    torch.set_num_threads(1)
    use_threads(None)
    assert torch.get_num_threads() == 3
    use_threads(2)
    assert torch.get_num_threads() == 2


def test_omp_num_threads_is_respected_also_after_a_run_that_set_its_own(processors, monkeypatch):
    processors({0: "0", 1: "1", 2: "2"})
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    use_threads(None)
    assert torch.get_num_threads() == 1
    use_threads(2)
    assert torch.get_num_threads() == 2
    use_threads(None)
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize("count", [1, 3, 16])
def test_any_number_of_threads_gives_the_same_numbers(count):
    """More threads than this machine has cores, and fewer after more."""
    case = make_case("bf16", 2050, 96, True, torch.bfloat16)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(96, generator=generator).bfloat16()
    signs = (torch.randint(0, 2, (5, 96), generator=generator) * 2.0 - 1).bfloat16()
    expected = head(case.linear, inputs, signs, threads=1)
    for _ in range(50):
        answer = head(case.linear, inputs, signs, threads=count)
        assert torch.equal(answer.logits, expected.logits)
        assert (answer.tokens, answer.seconds) == (expected.tokens, expected.seconds)


def test_every_chunk_runs_exactly_once_however_many_threads(tmp_path):
    """20,000 phases, under ThreadSanitizer where the compiler has it."""
    compiler = next(found for name in COMPILERS if (found := shutil.which(name)))
    program = tmp_path / "stress"
    for sanitizer in (["-fsanitize=thread"], []):
        command = [compiler, "-std=c++17", "-O1", "-g", "-pthread", *sanitizer]
        command += [f"-I{SOURCES}", str(STRESS), "-o", str(program)]
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            break
    done = subprocess.run(
        [program, "20000"], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.stdout.strip(), done.returncode) == ("each chunk once", 0), done.stderr[-2000:]
