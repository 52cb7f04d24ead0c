"""One run: samples, measurements, summary, all in one folder that can be resumed."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from river_llm.config import (
    EagerConfig,
    FidelityConfig,
    NoExitConfig,
    RiverShuffledConfig,
    RunConfig,
    StaticRankedConfig,
    effective_settings,
    identity,
)
from river_llm.decoding import Decoder
from river_llm.environment import git_state, snapshot
from river_llm.errors import UserError
from river_llm.evaluation import decode_speedup, measure
from river_llm.evaluation.criteria import depths_fingerprint, recorded_depths
from river_llm.evaluation.decode_speedup import eager_no_exit
from river_llm.evaluation.fidelity import ReferenceScores
from river_llm.evaluation.naming import arm_name, shown_settings
from river_llm.evaluation.offload_depth import with_offload
from river_llm.evaluation.peak import measure_peak, peak_request
from river_llm.evaluation.prompts import data_fingerprint, encode_all
from river_llm.evaluation.ranking import rank_layers
from river_llm.evaluation.runtime import Runtime
from river_llm.evaluation.samples import check_resumable, complete_samples
from river_llm.evaluation.summary import (
    CONFIG,
    MEASUREMENTS,
    SUMMARY,
    RunResult,
    build_task,
    write_summary,
)
from river_llm.generation import StopRules
from river_llm.quant.head import head_backend, head_record
from river_llm.quant.quantizers import quant_record
from river_llm.records import FORCED_SCORES, RunFolder, SampleRecord

ENVIRONMENT = "environment.json"
REFERENCE = "reference_scores.json"


def code_mark() -> str | None:
    """Commit of the code, marked where it was changed since; None outside a checkout."""
    commit, clean = git_state()
    return None if commit is None else commit if clean else f"{commit}+changes"


class Run:
    """A run that is about to happen: task and prompts are read and checked, no record is written.

    The ranking of `static_ranked` is measured here once, since it is part of the identity.

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
        # The measurements may ask for more prompts than are answered freely.
        most = max(config.fidelity.limit, config.speedup.prompts)
        used = None if config.exp.limit is None else max(config.exp.limit, most)
        if used == 0:
            raise UserError("limit=0, fidelity.limit=0 and speedup.prompts=0 leave nothing to run")
        budget = config.exp.max_new_tokens
        self.prompts = encode_all(runtime.model, self.task, samples[:used], budget)
        longest = max(len(prompt.ids) for prompt in self.prompts)
        self.slots = min(runtime.adapter.context, longest + max(budget, config.speedup.tokens))
        self.problems = len(samples)
        self.data = data_fingerprint(self.task, samples)
        self.depths = recorded_depths(config)
        # Last, since it may build a river and compile: what is refused above is refused at once.
        self.config = runtime.with_engine(config)
        self.config = with_offload(runtime, self.config, self.prompts, self.depths)
        self._identify()

    def as_no_exit(self) -> Run:
        """The run that this one is compared with: the same prompts, already read."""
        reference = copy.copy(self)
        reference.config = self.config.as_no_exit()
        reference.depths = None
        reference._identify()
        return reference

    def _identify(self) -> None:
        """Sets what follows from the settings: those that count, the identity, the folder."""
        config, runtime, model = self.config, self.runtime, self.runtime.model
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
        if config.quant.head != "none":
            resolved["head_quantizer"] = head_record(config.quant.head)
        if isinstance(config.method, StaticRankedConfig):
            ranking = rank_layers(runtime, config)
            resolved["backbone_layers"] = sorted(ranking[: config.method.k])
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

    def decoder(self) -> Decoder:
        """A decoder of the run's method with a cache of its own."""
        criterion = self.runtime.criterion(self.config, self.depths)
        return self.runtime.decoder(self.config, criterion, self.slots)

    def header(self) -> dict[str, Any]:
        """What the summary says of the run beside its figures."""
        config = self.config
        fingerprint = self.runtime.model.fingerprint
        shown = shown_settings(config, self.settings, fingerprint)
        layers = self.runtime.adapter.num_layers
        if isinstance(config.method, RiverShuffledConfig) and self.depths is not None:
            in_backbone = all(prompt == layers for prompt, _ in self.depths.values())
            shown["prefill"] = "backbone" if in_backbone else "sequence"
        return {
            "exp": config.exp.name,
            "label": self.task.label,
            "model": config.model.name,
            "method": config.method.name,
            "arm": arm_name(config),
            "identity": self.identity,
            "settings": shown,
            "layers": layers,
            "problems": self.problems,
        }

    def check_resumable(self, limit: int | None) -> None:
        """Refuses early what :meth:`complete` would refuse; call inside `folder.locked()`."""
        check_resumable(
            self.folder.samples(),
            self.prompts[:limit],
            self.folder,
            code_mark(),
            self.config.resume.force,
        )

    def complete(self, decoder: Decoder, limit: int | None) -> list[SampleRecord]:
        """Generates what the folder lacks of the first `limit` prompts (None: all).

        Call inside `folder.locked()`.
        """
        prompts = self.prompts[:limit]
        self.folder.drop_half_line()
        self.check_resumable(limit)
        if len(self.folder.samples()) < len(prompts) or self.folder.read_json(CONFIG) is None:
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
            commit=code_mark(),
            title=f"{self.config.exp.name} {arm_name(self.config)}",
            offloaded=self.runtime.offloaded(self.config),
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
            "head_backend": head_backend(
                self.runtime.adapter, self.runtime.head(self.config.quant)
            ),
        }


def execute(config: RunConfig, runtime: Runtime | None = None) -> RunResult:
    """Runs a configuration from its first missing sample to its summary.

    Args:
        config: the run.
        runtime: a loaded model to share between runs; None: load it.

    Raises:
        UserError: bad input, a grader that does not work here, or a run folder that cannot be used.
    """
    torch.manual_seed(config.seed)
    task = build_task(config)
    task.self_check()
    if runtime is None:
        # Loading a large model takes minutes: what is wrong with the data is told before.
        task.samples()
        runtime = Runtime.load(config)
    run = Run(config, runtime)
    reference = run.as_no_exit()
    decoder = run.decoder()
    compares = config.fidelity.limit and not isinstance(config.method, NoExitConfig)
    if compares and reference.folder.path.exists():
        # A reference that cannot be used is told now, not after the last sample.
        with reference.folder.locked():
            reference.check_resumable(config.fidelity.limit)
    with run.folder.locked():
        records = run.complete(decoder, config.exp.limit)
        measured = _measurements(run, decoder, reference)
        on_disk = run.folder.samples()
        run.folder.write_steps(on_disk)
        if config.exp.limit == 0:
            # Nothing runs freely now, which is no reason to leave out what did before.
            before = run.folder.read_json(SUMMARY)
            records = on_disk if before is None else on_disk[: before["samples"]]
        return write_summary(run.folder, run.task, records, measured)


def _measurements(run: Run, decoder: Decoder, reference: Run) -> dict[str, Any]:
    """Fidelity, speedup and memory, from disk where they need not be made again."""
    config = run.config
    stored = run.folder.read_json(MEASUREMENTS) or {}
    by = {"commit": code_mark(), "seed": config.seed}
    sizes = {
        "fidelity": {**by, **asdict(config.fidelity)},
        "speedup": {**by, **asdict(config.speedup)},
    }
    fidelity = _kept(stored, "fidelity", sizes, config.fidelity.limit)
    speedup = _kept(stored, "speedup", sizes, config.speedup.prompts)
    request = peak_request(config, decoder, run.prompts) if config.memory.peak else None
    if request is not None:
        sizes["peak"] = {**by, "prompt_tokens": len(request.prompt), "slots": request.slots}
    peak = _kept(stored, "peak", sizes, request is not None)
    if fidelity is not None and speedup is not None and (peak is not None or request is None):
        return dict(stored)
    no_exit = reference.decoder()
    environment = run.environment()
    if fidelity is None:
        value = _fidelity(run, decoder, reference, no_exit)
        fidelity = {"made_by": sizes["fidelity"], "environment": environment, "value": value}
    if speedup is None:
        found = decode_speedup.decode_speedups(run.runtime, config, decoder, no_exit, run.prompts)
        speedup = {
            "made_by": sizes["speedup"],
            "environment": environment,
            "value": found.pop("matched"),
            **found,
        }
    if peak is None and request is not None:
        value = measure_peak(request)
        # One that failed is tried again by the next start.
        if value is not None:
            peak = {"made_by": sizes["peak"], "environment": environment, "value": value}
    measured = {
        "header": run.header(),
        "data": run.data,
        "memory": run.runtime.memory(config, decoder),
        "offload": _offload(run),
        "fidelity": fidelity,
        "speedup": speedup,
        "peak": peak,
    }
    run.folder.write_json(MEASUREMENTS, measured)
    return measured


def _offload(run: Run) -> dict[str, Any] | None:
    """What the summary of offloading needs beside the samples; None: nothing is offloaded."""
    stack = run.runtime.offloaded(run.config)
    if stack is None:
        return None
    return {
        "after": stack.first,
        "on_miss": run.config.offload.on_miss,
        "layers": run.runtime.adapter.num_layers,
        "layer_bytes": stack.layer_nbytes,
    }


def _kept(
    stored: dict[str, Any], part: str, sizes: dict[str, dict[str, Any]], asked: int
) -> dict[str, Any] | None:
    """A measurement of an earlier start: of the same code in the same size, or not asked for."""
    found: dict[str, Any] | None = stored.get(part)
    if found is None or not asked:
        return found
    # What is switched off now may well have been measured then.
    size = {key: value for key, value in sizes[part].items() if value is not False}
    return found if found["made_by"].items() >= size.items() else None


def _fidelity(
    run: Run, decoder: Decoder, reference: Run, no_exit: Decoder
) -> dict[str, Any] | None:
    size: FidelityConfig = run.config.fidelity
    if size.limit == 0:
        return None
    is_no_exit = isinstance(run.config.method, NoExitConfig)
    # no_exit is its own reference, and its folder is locked already.
    with nullcontext() if is_no_exit else reference.folder.locked():
        of_no_exit = reference.complete(no_exit, size.limit)
        scores = ReferenceScores(reference.folder.read_json(REFERENCE), size.tokens)
        whole = measure.forced_texts(run.prompts, of_no_exit, run.config, no_exit)
        # transformers' model has the head at 16 bits, and would be compared with another model.
        floor = run.runtime.adapter if run.config.quant.head == "none" else None
        on_eager = isinstance(run.config.engine, EagerConfig)
        eager = None if on_eager else eager_no_exit(run.runtime, run.config, run.slots)
        if scores.complete(whole, no_exit, floor, eager):
            reference.folder.write_json(REFERENCE, scores.as_dict())
    texts = measure.forced_texts(run.prompts, of_no_exit, run.config, decoder)
    figures, rows = measure.fidelity(decoder, texts, scores, run.config.seed)
    compared = {"no_exit_run": reference.folder.path.name}
    run.folder.write_json(FORCED_SCORES, {"tokens": size.tokens, **compared, "samples": rows})
    return {**figures, **compared}
