"""The summary of a run from its records, and new verdicts on stored completions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from river_llm.analysis.offload import summarize_offload
from river_llm.analysis.summary import summarize
from river_llm.config import RANDOM, RunConfig, parse
from river_llm.errors import UserError
from river_llm.evaluation import measure
from river_llm.evaluation.prompts import data_fingerprint
from river_llm.records import RunFolder, SampleRecord
from river_llm.tasks import NamedColumns, Task, build

CONFIG = "config.json"
SUMMARY = "summary.json"
MEASUREMENTS = "measurements.json"


@dataclass(frozen=True)
class RunResult:
    """What a run came to.

    Attributes:
        folder: where its records lie.
        summary: content of summary.json.
        ungraded: samples without a verdict.
    """

    folder: Path
    summary: dict[str, Any]
    ungraded: int


def build_task(config: RunConfig) -> Task:
    """The task of a run.

    Raises:
        UserError: a model without a tokenizer, or the task's own reasons.
    """
    if config.model.path == RANDOM:
        raise UserError(
            f"model.path={RANDOM} has no tokenizer, so there is nothing to evaluate: its decode "
            "steps are timed by scripts/bench_decode.py"
        )
    exp = config.exp
    columns = None
    if exp.columns is not None and exp.grader is not None:
        columns = NamedColumns(exp.grader, exp.columns.prompt, exp.columns.answer, exp.columns.id)
    return build(
        config.exp.name,
        fewshot=config.exp.fewshot,
        fewshot_source=config.exp.fewshot_source,
        data_path=config.data.path,
        fewshot_path=config.data.fewshot_path,
        allow_code_execution=config.exp.allow_code_execution,
        timeout_s=config.exp.timeout_s,
        sandbox=config.exp.sandbox,
        columns=columns,
    )


def write_summary(
    folder: RunFolder, task: Task, records: Sequence[SampleRecord], measured: dict[str, Any]
) -> RunResult:
    """Writes summary.json from records and measurements; call inside `folder.locked()`."""
    made = {key: measured[key] for key in ("fidelity", "speedup")}
    # Runs of before it was measured lack it, as they lack two of the speedups.
    peak = measured.get("peak") or {"value": None}
    not_measured = {"peak_bytes": None, "peak_source": None, "tensor_bytes": None}
    parts = {
        "fidelity": made["fidelity"]["value"],
        "speedup": {
            "decode": {
                "matched": made["speedup"]["value"],
                "vs_eager": made["speedup"].get("vs_eager"),
                "vs_hf": made["speedup"].get("vs_hf"),
            }
        },
        "memory": {**measured["memory"], **not_measured, **(peak["value"] or {})},
    }
    offload = measured.get("offload")
    parts["offload"] = offload and summarize_offload(
        offload, [asdict(record) for record in records], folder.fetches(), parts["memory"]
    )
    if parts["fidelity"] is not None:
        # From the records as they are now, so that new verdicts give new figures here too.
        no_exit = RunFolder(folder.path.parent / parts["fidelity"]["no_exit_run"]).samples()
        compared = no_exit[: made["fidelity"]["made_by"]["limit"]]
        parts["fidelity"]["equal_answers"] = measure.equal_answers(task, records, compared)
    summary = summarize(
        [asdict(record) for record in records], header={**measured["header"], **parts}
    )
    marks = {
        part["made_by"]["commit"] for part in (*made.values(), peak) if part["value"] is not None
    }
    summary["commits"] = sorted({str(mark) for mark in marks | {r.commit for r in records}})
    folder.write_json(SUMMARY, summary)
    ungraded = sum(record.correct is None for record in records)
    return RunResult(folder.path, summary, ungraded)


def regrade(path: Path, *, allow_code_execution: bool, sandbox: str | None = None) -> RunResult:
    """New verdicts and a new summary from stored completions, without a model.

    Args:
        path: a run's folder.
        allow_code_execution: permission to run generated programs.
        sandbox: how they are contained (`exp.sandbox`); None: as the run asked.

    Raises:
        UserError: no finished run there, a grader that does not work here, its data cannot be
            read or is other data, or verdicts would be lost for want of the permission.
    """
    folder = RunFolder(path)
    settings, measured, summary = (
        folder.read_json(name) for name in (CONFIG, MEASUREMENTS, SUMMARY)
    )
    if settings is None or measured is None or summary is None:
        raise UserError(f"{path} is not the folder of a finished run: run it to its end first")
    settings["exp"]["allow_code_execution"] = allow_code_execution
    if sandbox is not None:
        settings["exp"]["sandbox"] = sandbox
    # Exemplars are of no use to a grader.
    settings["exp"]["fewshot"] = 0
    config = parse(settings)
    task = build_task(config)
    task.self_check()
    samples = task.samples()
    by_id = {sample.id: sample for sample in samples}
    with folder.locked():
        # Again, since a run may have ended in between.
        measured, summary = (folder.read_json(name) for name in (MEASUREMENTS, SUMMARY))
        stored = folder.samples()
        for record in stored:
            if record.id not in by_id:
                raise UserError(
                    f"sample {record.id} of {path} is not in the data it would be graded with: "
                    "give that run's own data back its place"
                )
        if data_fingerprint(task, samples) != measured["data"]:
            raise UserError(
                f"the data of {path} has changed since it ran: put the run's own data back"
            )
        records = []
        for record in stored:
            verdict = task.grade(by_id[record.id], record.completion, record.finish_reason)
            if verdict.correct is None and record.correct is not None:
                raise UserError(
                    f"sample {record.id} of {path} has a verdict, which would be lost: grading "
                    "it again needs --allow-code-execution"
                )
            changed = {
                "extracted": verdict.extracted,
                "correct": verdict.correct,
                "detail": dict(verdict.detail),
            }
            records.append(SampleRecord(**{**asdict(record), **changed}))
        folder.rewrite(records)
        shown = records[: summary["samples"]]
        return write_summary(folder, task, shown, measured)


def last_line(result: RunResult) -> str:
    """The JSON object that ends a run's standard output."""
    return json.dumps({"run_dir": str(result.folder), **result.summary}, allow_nan=False)
