"""One run: samples, measurements, summary, all in one folder that can be resumed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from river_llm.analysis.summary import summarize
from river_llm.config import (
    ConfidenceConfig,
    CriterionConfig,
    FidelityConfig,
    FixedConfig,
    HqqInt4Config,
    MonoDecreasingConfig,
    NeverConfig,
    NoExitConfig,
    RecomputeConfig,
    ReplayConfig,
    RiverConfig,
    RunConfig,
    SimilarityConfig,
    StaticFirstConfig,
    StaticLastConfig,
    effective_settings,
    identity,
    parse,
)
from river_llm.decoding import Decoder
from river_llm.environment import git_state, snapshot
from river_llm.errors import UserError
from river_llm.evaluation import measure
from river_llm.evaluation.criteria import depths_fingerprint, recorded_depths
from river_llm.evaluation.fidelity import ReferenceScores
from river_llm.evaluation.prompts import data_fingerprint, encode_all
from river_llm.evaluation.runtime import Runtime
from river_llm.evaluation.samples import check_resumable, complete_samples
from river_llm.generation import StopRules
from river_llm.quant.store import quant_record
from river_llm.records import RunFolder, SampleRecord
from river_llm.tasks import Task, build

CONFIG = "config.json"
SUMMARY = "summary.json"
ENVIRONMENT = "environment.json"
MEASUREMENTS = "measurements.json"
REFERENCE = "reference_scores.json"


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


def code_mark() -> str | None:
    """Commit of the code, marked where it was changed since; None outside a checkout."""
    commit, clean = git_state()
    return None if commit is None else commit if clean else f"{commit}+changes"


def build_task(config: RunConfig) -> Task:
    """The task of a run."""
    return build(
        config.exp.name,
        fewshot=config.exp.fewshot,
        fewshot_source=config.exp.fewshot_source,
        data_path=config.data.path,
        fewshot_path=config.data.fewshot_path,
        allow_code_execution=config.exp.allow_code_execution,
        timeout_s=config.exp.timeout_s,
    )


class Run:
    """A run that is about to happen: task and prompts are read and checked, nothing is written.

    Args:
        config: the settings.
        runtime: the loaded model.

    Raises:
        UserError: data that cannot be read, prompts that do not fit, recorded depths missing.
    """

    def __init__(self, config: RunConfig, runtime: Runtime) -> None:
        self.config = config
        self.runtime = runtime
        self.task = build_task(config)
        samples = self.task.samples()
        model = runtime.model
        budget = config.exp.max_new_tokens
        self.prompts = encode_all(model, self.task, samples[: config.exp.limit], budget)
        self.data = data_fingerprint(self.task, samples)
        self.depths = recorded_depths(config)
        resolved: dict[str, Any] = {
            "data": self.data,
            "first_prompt": self.prompts[0].hash,
            "model": model.fingerprint,
            "eos_ids": sorted(model.eos_ids),
            "device": runtime.adapter.device.type,
            "chat": model.chat,
        }
        if config.method.needs_river:
            resolved["quantizer"] = quant_record(config.quant)
        if self.depths is not None:
            resolved["depths"] = depths_fingerprint(self.depths)
        layers = runtime.adapter.num_layers
        self.settings = effective_settings(config, layers=layers)
        self.identity = identity(config, layers=layers, resolved=resolved)
        self.folder = RunFolder(
            Path(config.output.dir)
            / "runs"
            / config.exp.name
            / config.model.name
            / f"{config.method.name}-{self.identity}"
        )
        longest = max(len(prompt.ids) for prompt in self.prompts)
        self.slots = min(runtime.adapter.context, longest + max(budget, config.speedup.tokens))

    def decoder(self) -> Decoder:
        """A decoder of the run's method with a cache of its own."""
        criterion = self.runtime.criterion(self.config, self.depths)
        return self.runtime.decoder(self.config, criterion, self.slots)

    def complete(self, decoder: Decoder, limit: int | None = None) -> list[SampleRecord]:
        """Generates what the folder lacks of the first `limit` prompts (None: all).

        Call inside `folder.locked()`.
        """
        marked = code_mark()
        prompts = self.prompts[:limit]
        self.folder.drop_half_line()
        found = self.folder.samples()
        check_resumable(found, prompts, self.folder, marked, self.config.resume.force)
        if len(found) < len(prompts):
            self._write_head()
        return complete_samples(
            self.folder,
            prompts,
            decoder=decoder,
            model=self.runtime.model,
            task=self.task,
            rules=StopRules(
                max_new_tokens=self.config.exp.max_new_tokens,
                eos_ids=self.runtime.model.eos_ids,
                stop_strings=self.task.stop_strings(self.runtime.model.chat),
            ),
            commit=marked,
            title=f"{self.config.exp.name} {arm_name(self.config)}",
        )

    def _write_head(self) -> None:
        """Settings and environment, before the first sample that this process adds."""
        self.folder.write_json(CONFIG, asdict(self.config))
        starts = self.folder.read_json(ENVIRONMENT) or []
        starts.append(self.environment())
        self.folder.write_json(ENVIRONMENT, starts)

    def environment(self) -> dict[str, Any]:
        """What the run runs on now, its linears' backends included."""
        river = self.runtime.river_of(self.config)
        return {
            **snapshot(self.runtime.adapter.device),
            "linears_per_backend": {} if river is None else river.backend_counts(),
        }


def execute(config: RunConfig, runtime: Runtime | None = None) -> RunResult:
    """Runs a configuration from its first missing sample to its summary.

    Args:
        config: the run.
        runtime: a loaded model to share between runs; None: load it.

    Raises:
        UserError: bad input, or a run folder that cannot be used.
    """
    torch.manual_seed(config.seed)
    if runtime is None:
        # Loading a large model takes minutes: what is wrong with the data is told before.
        build_task(config).samples()
        runtime = Runtime.load(config)
    run = Run(config, runtime)
    decoder = run.decoder()
    with run.folder.locked():
        records = run.complete(decoder)
        measured = _measurements(run, decoder, records)
        run.folder.write_steps(run.folder.samples())
        return write_summary(run.folder, run.task, records, measured)


def _measurements(run: Run, decoder: Decoder, records: list[SampleRecord]) -> dict[str, Any]:
    """Fidelity, speedup and memory; from disk where the same code measured the same before."""
    config = run.config
    most = max(config.fidelity.limit, config.speedup.prompts)
    size = {
        "commit": code_mark(),
        "samples": min(len(run.prompts), most),
        "fidelity": asdict(config.fidelity),
        "speedup": asdict(config.speedup),
        "seed": config.seed,
    }
    stored = run.folder.read_json(MEASUREMENTS)
    if stored is not None and stored["size"] == size:
        return dict(stored)
    reference = Run(config.as_no_exit(), run.runtime)
    no_exit = reference.decoder()
    measured = {
        "size": size,
        "header": _header(run),
        "data": run.data,
        "environment": run.environment(),
        "fidelity": _fidelity(run, decoder, records, reference, no_exit),
        "speedup": {
            "decode": {
                "matched": measure.speedup(run.runtime, config, decoder, no_exit, run.prompts)
            }
        },
        "memory": run.runtime.memory(config, decoder),
    }
    run.folder.write_json(MEASUREMENTS, measured)
    return measured


def _fidelity(
    run: Run, decoder: Decoder, records: list[SampleRecord], reference: Run, no_exit: Decoder
) -> dict[str, Any] | None:
    size: FidelityConfig = run.config.fidelity
    if size.limit == 0:
        return None
    is_no_exit = isinstance(run.config.method, NoExitConfig)
    # no_exit is its own reference, and its folder is locked already.
    with nullcontext() if is_no_exit else reference.folder.locked():
        of_no_exit = records if is_no_exit else reference.complete(no_exit, size.limit)
        of_no_exit = of_no_exit[: size.limit]
        scores = ReferenceScores(reference.folder.read_json(REFERENCE), size.tokens)
        whole = measure.forced_texts(run.prompts, of_no_exit, run.config, no_exit)
        if scores.complete(whole, no_exit, run.runtime.adapter):
            reference.folder.write_json(REFERENCE, scores.as_dict())
    texts = measure.forced_texts(run.prompts, of_no_exit, run.config, decoder)
    return {**measure.fidelity(decoder, texts, scores), "no_exit_run": reference.folder.path.name}


def _header(run: Run) -> dict[str, Any]:
    config = run.config
    settings = {key: value for key, value in run.settings.items() if key not in ("exp", "model")}
    settings |= {key: value for key, value in run.settings["exp"].items() if key != "name"}
    settings |= {
        "dtype": config.model.dtype,
        "engine": config.engine.name,
        "prefill": config.method.prompt_in,
        "model_fingerprint": run.runtime.model.fingerprint[:12],
    }
    if config.method.needs_river:
        settings["quant"] = quant_record(config.quant)
    return {
        "exp": config.exp.name,
        "label": run.task.label,
        "model": config.model.name,
        "method": config.method.name,
        "arm": arm_name(config),
        "identity": run.identity,
        "settings": settings,
        "layers": run.runtime.adapter.num_layers,
    }


def arm_name(config: RunConfig) -> str:
    """Short name of a method with its settings, for tables and plots."""
    method = config.method
    words: list[str] = [method.name]
    if method.exits:
        words.append(_criterion_name(config.criterion))
    match method:
        case RiverConfig(prefill=prefill, pool=pool):
            words.append(prefill if pool == "last" else f"{prefill} pool={pool}")
        case RecomputeConfig(max_pending=int(most)):
            words.append(f"max_pending={most}")
        case MonoDecreasingConfig(form="schedule", most=most, fewest=fewest, place=place):
            words.append(f"{'all' if most is None else most}->{fewest} {place}")
        case StaticFirstConfig(k=k) | StaticLastConfig(k=k):
            words.append(f"k={k}")
    # What differs from the defaults shows, lest two rows of a table carry one name.
    if method.needs_river and config.quant != HqqInt4Config():
        size = getattr(config.quant, "group_size", None)
        words.append(config.quant.name if size is None else f"{config.quant.name} g{size}")
    if config.model.dtype != "bf16":
        words.append(config.model.dtype)
    return " ".join(words)


def _criterion_name(criterion: CriterionConfig) -> str:
    match criterion:
        case SimilarityConfig():
            return f"tau={criterion.tau:.4g}{_tested_depths(criterion)}"
        case ConfidenceConfig():
            return f"confidence={criterion.tau:.4g}{_tested_depths(criterion)}"
        case FixedConfig(depth=depth):
            return f"depth={depth}"
        case NeverConfig():
            return "never exits"
        case ReplayConfig(from_run=source):
            return f"replay of {Path(source).name}"


def _tested_depths(criterion: SimilarityConfig | ConfidenceConfig) -> str:
    low = f" min={criterion.min_depth}" if criterion.min_depth != 1 else ""
    return low + (f" max={criterion.max_depth}" if criterion.max_depth is not None else "")


def write_summary(
    folder: RunFolder, task: Task, records: Sequence[SampleRecord], measured: dict[str, Any]
) -> RunResult:
    """Writes summary.json from records and measurements; call inside `folder.locked()`."""
    parts = {key: measured[key] for key in ("fidelity", "speedup", "memory")}
    if parts["fidelity"] is not None:
        # From the records as they are now, so that new verdicts give new figures here too.
        no_exit = RunFolder(folder.path.parent / parts["fidelity"]["no_exit_run"]).samples()
        compared = no_exit[: measured["size"]["fidelity"]["limit"]]
        parts["fidelity"]["equal_answers"] = measure.equal_answers(task, records, compared)
    summary = summarize(
        [asdict(record) for record in records], header={**measured["header"], **parts}
    )
    summary["commits"] = sorted(
        {str(mark) for mark in (measured["size"]["commit"], *(r.commit for r in records))}
    )
    folder.write_json(SUMMARY, summary)
    ungraded = sum(record.correct is None for record in records)
    return RunResult(folder.path, summary, ungraded)


def regrade(path: Path, *, allow_code_execution: bool) -> RunResult:
    """New verdicts and a new summary from stored completions, without a model.

    Args:
        path: a run's folder.
        allow_code_execution: permission to run generated programs.

    Raises:
        UserError: no finished run there, its data cannot be read or is other data, or verdicts
            would be lost for want of the permission.
    """
    folder = RunFolder(path)
    settings, measured, summary = (
        folder.read_json(name) for name in (CONFIG, MEASUREMENTS, SUMMARY)
    )
    if settings is None or measured is None or summary is None:
        raise UserError(f"{path} is not the folder of a finished run: run it to its end first")
    settings["exp"]["allow_code_execution"] = allow_code_execution
    # Exemplars are of no use to a grader.
    settings["exp"]["fewshot"] = 0
    config = parse(settings)
    task = build_task(config)
    samples = task.samples()
    by_id = {sample.id: sample for sample in samples}
    with folder.locked():
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
