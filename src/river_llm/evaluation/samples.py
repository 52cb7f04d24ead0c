"""Generating and grading the samples of one run, resuming where it stopped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NoReturn

from tqdm import tqdm

from river_llm.decoding import Decoder
from river_llm.engine.offload import OffloadedLayers
from river_llm.errors import UserError
from river_llm.evaluation.numerics import named
from river_llm.evaluation.offload_meter import OffloadMeter
from river_llm.evaluation.prompts import Prompt
from river_llm.generation import Generation, StopRules, generate
from river_llm.models.loading import LoadedModel
from river_llm.records import RunFolder, SampleRecord
from river_llm.tasks import Task

WARM_UP_STEPS = 4


def check_resumable(
    records: Sequence[SampleRecord],
    prompts: Sequence[Prompt],
    folder: RunFolder,
    commit: str | None,
    force: bool,
) -> None:
    """Refuses to add to records that do not belong to this run.

    Args:
        records: the finished samples.
        prompts: of the run, in order.
        folder: for the messages.
        commit: of the code that would append.
        force: allow another commit's records.

    Raises:
        UserError: other prompts, or another commit without `resume.force`.
    """
    for record, prompt in zip(records, prompts, strict=False):
        if (record.id, record.prompt_hash) != (prompt.sample.id, prompt.hash):
            raise UserError(
                f"{folder.samples_path}: line {prompt.index + 1} is sample {record.id} with "
                f"another prompt than {prompt.sample.id} has now; move the folder away"
            )
    others = {record.commit for record in records} - {commit}
    if len(records) < len(prompts) and others and not force:
        raise UserError(
            f"{folder.path} was written by commit {sorted(map(str, others))[0]}, this is "
            f"{commit}: check that nothing relevant changed and use resume.force=true, or move "
            "the folder away"
        )


def complete_samples(
    folder: RunFolder,
    prompts: Sequence[Prompt],
    *,
    decoder: Decoder,
    model: LoadedModel,
    task: Task,
    rules: StopRules,
    commit: str | None,
    title: str,
    offloaded: OffloadedLayers | None = None,
) -> list[SampleRecord]:
    """Generates and grades the samples that the folder lacks; call inside `folder.locked()`.

    Args:
        folder: holds the finished samples of the same run, in order.
        prompts: of the run, in order.
        decoder: of the run's method; its criterion is told which sample comes.
        model: for token ids and text.
        task: grades.
        rules: when a text ends.
        commit: recorded in every new sample.
        title: of the progress bar.
        offloaded: the run's backbone where part of it is out of device memory.

    Returns:
        The records of `prompts`, in order.
    """
    records = folder.samples()[: len(prompts)]
    missing = prompts[len(records) :]
    if missing:
        _warm_up(missing[0], decoder)
    bar: tqdm[NoReturn] = tqdm(total=len(prompts), initial=len(records), desc=title, unit="sample")
    with bar:
        for prompt in missing:
            meter = None if offloaded is None else OffloadMeter(offloaded)
            record = _run_sample(prompt, decoder, model, task, rules, commit, bar, meter)
            if meter is not None:
                folder.append_fetches(meter.row(record.id))
            folder.append(record)
            records.append(record)
            bar.update()
    return records


def _warm_up(prompt: Prompt, decoder: Decoder) -> None:
    """A prompt and a few steps off the clock: first uses of kernels and memory cost extra."""
    criterion = decoder.executor.criterion
    criterion.begin_sample(prompt.sample.id)
    recorded = criterion.recorded_steps(prompt.sample.id)
    steps = WARM_UP_STEPS if recorded is None else min(WARM_UP_STEPS, recorded)
    steps = min(steps, decoder.cache.slots - len(prompt.ids) - 1)
    with named(prompt.sample.id, lambda: f"step {decoder.steps_done}"):
        decoder.prefill([prompt.ids])
        for _ in range(steps):
            decoder.step()
    decoder.reset()


def _run_sample(
    prompt: Prompt,
    decoder: Decoder,
    model: LoadedModel,
    task: Task,
    rules: StopRules,
    commit: str | None,
    bar: tqdm[NoReturn],
    meter: OffloadMeter | None,
) -> SampleRecord:
    decoder.executor.criterion.begin_sample(prompt.sample.id)
    result = Generation()
    with named(prompt.sample.id, lambda: f"step {len(result.tokens)}"):
        for result in generate(decoder, prompt.ids, rules, model.decode):
            bar.set_postfix(tokens=len(result.tokens), refresh=False)
            if meter is not None:
                meter.after_step(result)
    verdict = task.grade(prompt.sample, result.text, result.finish_reason)
    return SampleRecord(
        id=prompt.sample.id,
        index=prompt.index,
        prompt_hash=prompt.hash,
        prompt_tokens=len(prompt.ids),
        completion=result.text,
        token_ids=result.tokens,
        # Single precision is all there is; more digits would only fill the disk.
        margins=[float(f"{margin:.6g}") for margin in result.margins],
        extracted=verdict.extracted,
        correct=verdict.correct,
        detail=dict(verdict.detail),
        finish_reason=result.finish_reason,
        tokens_timed=len(result.tokens),
        tokens_kept=result.tokens_kept,
        prefill_seconds=result.prefill_seconds,
        decode_seconds=result.decode_seconds,
        prefill_depth=result.prefill_exit.depth,
        exit_depths=[step.depth for step in result.step_exits],
        exit_scores=[step.score for step in result.step_exits],
        block_lengths={
            str(length): count for length, count in sorted(Counter(result.block_lengths).items())
        },
        commit=commit,
    )
