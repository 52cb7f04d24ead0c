"""The dry run of a sweep: every cell with an estimate of its time.

A few steps of each cell are run: a cell that cannot run is found before the night, not in it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence

from river_llm.composition import load_config
from river_llm.config import EagerConfig, NoExitConfig, RunConfig
from river_llm.errors import UserError, raise_interruption
from river_llm.sweeps.folder import FROM_RUN, Cell
from river_llm.sweeps.job import unexpected

STEPS = 4


def dry_run(cells: Sequence[Cell], failed: Mapping[Cell, str], finished: int = 0) -> int:
    """Lists cells with estimates, and those that cannot run; returns the exit status.

    Args:
        cells: whose settings compose, and which are not finished.
        failed: the others, with the reason.
        finished: number of cells that are not listed, since they are done.
    """
    totals: dict[str, float] = {}
    problems = dict(failed)
    for cell in cells:
        title = " ".join(cell.overrides)
        if cell.takes == FROM_RUN:
            print(f"   later  {title} (after the run whose depths it replays)", flush=True)
            continue
        try:
            config = load_config(cell.provisional)
            seconds = estimated_seconds(config)
        except UserError as error:
            problems[cell] = str(error)
            continue
        except Exception as error:
            raise_interruption(error)
            # As in the sweep itself: one cell does not hide what the others say.
            problems[cell] = unexpected(error)
            continue
        totals[config.model.name] = totals.get(config.model.name, 0.0) + seconds
        follows = "" if cell.takes is None else f" {cell.takes}=(of another run; here 1)"
        print(f"{_span(seconds)}  {title}{follows}", flush=True)
    if len(totals) > 1:
        for name, seconds in totals.items():
            print(f"{_span(seconds)}  {name}, all its cells")
    print(
        f"{_span(sum(totals.values()))}  about, for "
        f"{sum(cell.takes != FROM_RUN for cell in cells)} cells on this machine as it is now, "
        "where texts use up their budget"
    )
    if finished:
        print(f"{finished} finished cells take no time")
    sys.stdout.flush()
    for cell, reason in problems.items():
        print(f"error: cell {' '.join(cell.overrides)} cannot run: {reason}", file=sys.stderr)
    return 2 if problems else 0


def estimated_seconds(config: RunConfig) -> float:
    """Time that a run takes when every text uses up its budget, from a prompt and a few steps.

    Raises:
        UserError: what the run itself would refuse.
    """
    # Imported late: a mistake on the command line is told without waiting for torch.
    from river_llm.evaluation.decode_speedup import eager_no_exit
    from river_llm.evaluation.run import Run
    from river_llm.evaluation.runtime import Runtime

    runtime = Runtime.shared(config)
    run = Run(config, runtime)
    count = len(run.prompts)
    free = count if config.exp.limit is None else min(count, config.exp.limit)
    forced = min(config.fidelity.limit, count)
    if isinstance(config.method, NoExitConfig):
        free = max(free, forced)  # the texts that all arms are forced on
    free -= len(run.folder.samples())
    prompt = run.prompts[0]
    arm = run.decoder()
    arm.executor.criterion.begin_sample(prompt.sample.id)
    prefill, step = _timed(arm, prompt.ids)
    total = max(free, 0) * (prefill + config.exp.max_new_tokens * step)
    if isinstance(config.method, NoExitConfig):
        full_prefill, full_step = prefill, step
    else:
        full_prefill, full_step = _timed(run.as_no_exit().decoder(), prompt.ids)
    total += forced * (prefill + config.fidelity.tokens * step)
    # What else computes no_exit is taken to cost what the eager engine does.
    other_prefill, other_step = full_prefill, full_step
    on_eager = isinstance(run.config.engine, EagerConfig)
    more = config.speedup.vs_hf + (config.speedup.vs_eager and not on_eager)
    if not on_eager and (more or isinstance(config.method, NoExitConfig)):
        other = eager_no_exit(runtime, run.config, run.slots)
        other_prefill, other_step = _timed(other, prompt.ids)
    if isinstance(config.method, NoExitConfig):
        # As the reference, by transformers, and on the eager engine, where that is another one.
        total += forced * (full_prefill + config.fidelity.tokens * full_step)
        floors = 1 if on_eager else 2
        total += floors * forced * (other_prefill + config.fidelity.tokens * other_step)
    timed = min(config.speedup.prompts, count)
    passes = 2 * config.speedup.rounds
    total += timed * (2 * full_prefill + prefill)
    total += timed * config.speedup.tokens * ((passes + 1) * full_step + passes * step)
    total += timed * more * (other_prefill + prefill)
    total += timed * more * config.speedup.tokens * passes * (other_step + step)
    return total


def _timed(decoder: object, prompt: list[int]) -> tuple[float, float]:
    """Seconds of a prefill and of a step, after one of each off the clock."""
    from river_llm.decoding import Decoder

    assert isinstance(decoder, Decoder)
    decoder.prefill([prompt])
    decoder.step()
    started = time.perf_counter()
    decoder.prefill([prompt])
    middle = time.perf_counter()
    # Small budgets leave room for fewer.
    steps = min(STEPS, decoder.cache.slots - len(prompt))
    for _ in range(steps):
        decoder.step()
    ended = time.perf_counter()
    return middle - started, (ended - middle) / steps


def _span(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60:3d}h{minutes % 60:02d}m" if minutes else f"{seconds:6.0f}s"
