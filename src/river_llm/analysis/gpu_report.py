"""The report of a check of a bare machine: what ran, what was reached, and all tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from river_llm.analysis.bench_figures import Arms, impossible
from river_llm.analysis.bench_table import bench_report

TARGET_SHAPE = "random-llama3.1_8b"
NO_EXIT_SHARE = 0.75
RIVER_RATIO = 0.60
TEST_SHARE = 0.05


@dataclass(frozen=True)
class Outcome:
    """What became of one part of the check.

    Attributes:
        part: its name.
        status: `done`, `failed`, `missing`, `dropped` or `cut short`.
        seconds: that it took.
        note: in a few words, why or how much.
    """

    part: str
    status: str
    seconds: float = 0.0
    note: str = ""


@dataclass(frozen=True)
class Target:
    """One thing that the check is to show.

    Attributes:
        words: what it is.
        value: that was measured; None: it was not.
        reached: whether it is there.
    """

    words: str
    value: float | None
    reached: bool | None


Benches = Mapping[str, tuple[Mapping[str, Any], Mapping[int, Arms]]]
"""Records with the figures of their contexts, by the part's name."""


def targets(benches: Benches) -> list[Target]:
    """What the 8B shape must show on the faster engine: bandwidth, river, exit tests.

    The benchmark counts in which `no_exit` is fastest; the first of its contexts.
    """
    found = [
        next(iter(contexts.values()))
        for record, contexts in benches.values()
        if record["model"] == TARGET_SHAPE and record["environment"]["device"] == "cuda"
    ]
    arms: Arms = min(found, key=lambda arms: arms["no_exit"]["ms_per_token"], default={})
    share = arms.get("no_exit", {}).get("bound_share")
    ratio = arms.get("river@3", {}).get("vs_no_exit")
    tests = arms.get("river@3", {}).get("test_share")
    return [
        Target(
            f"no_exit at {NO_EXIT_SHARE:.0%} of the bandwidth or more",
            share,
            None if share is None else share >= NO_EXIT_SHARE,
        ),
        Target(
            f"river@3 at {RIVER_RATIO:.2f} of no_exit's time or less",
            ratio,
            None if ratio is None else ratio <= RIVER_RATIO,
        ),
        Target(
            f"exit tests at {TEST_SHARE:.0%} of a river@3 step or less",
            tests,
            None if tests is None else tests <= TEST_SHARE,
        ),
    ]


def summary(
    environment: Mapping[str, Any], outcomes: Sequence[Outcome], benches: Benches
) -> dict[str, Any]:
    """The check as plain data: environment, outcomes, targets, the main figures of each part."""
    return {
        "environment": dict(environment),
        "parts": [asdict(outcome) for outcome in outcomes],
        "targets": [asdict(target) for target in targets(benches)],
        "benches": {
            name: {
                "engine": record["engine"],
                "bandwidth_gb_per_s": record["bandwidth_gb_per_s"],
                "contexts": {
                    str(context): {
                        arm: {
                            "ms_per_token": figures["ms_per_token"],
                            "bound_share": figures["bound_share"],
                            "vs_no_exit": figures["vs_no_exit"],
                        }
                        for arm, figures in arms.items()
                    }
                    for context, arms in contexts.items()
                },
            }
            for name, (record, contexts) in benches.items()
        },
    }


def report(environment: Mapping[str, Any], outcomes: Sequence[Outcome], benches: Benches) -> str:
    """Markdown: the machine, what became of each part, targets, and the tables."""
    parts = [_machine(environment)]
    rows = [
        f"| {o.part} | {o.status} | {o.seconds:.0f} | {o.note.replace('|', '/')} |"
        for o in outcomes
    ]
    parts.append("\n".join(["| part | status | s | |", "| --- | --- | ---: | --- |", *rows]))
    words = {None: "NOT MEASURED", True: "reached", False: "NOT REACHED"}
    parts.append(
        "\n".join(
            f"- {target.words}: {words[target.reached]}"
            + ("" if target.value is None else f" ({target.value:.3f})")
            for target in targets(benches)
        )
    )
    for name, (record, contexts) in benches.items():
        parts.append(f"## {name}\n\n{bench_report(record, contexts)}")
        parts += [
            f"IMPOSSIBLE: {arm} at context {context} reads faster than the memory: the bandwidth "
            "was measured too low or the bytes are counted too high"
            for context, arms in contexts.items()
            for arm in impossible(arms)
        ]
    return "\n\n".join(parts) + "\n"


def _machine(environment: Mapping[str, Any]) -> str:
    packages = environment["packages"]
    lines = [
        f"{environment['device_name'] or environment['processor']}, torch {packages['torch']}, "
        f"CUDA {environment['cuda']}, transformers {packages['transformers']}, Python "
        f"{environment['python']}, commit {environment['commit']}"
        + ("" if environment["clean"] else " (changed, or unknown)")
    ]
    for gpu in environment["gpus"] or []:
        lines.append(", ".join(f"{key} {value}" for key, value in gpu.items()))
    if environment["device"] != "cuda":
        lines.append("No GPU: a rehearsal, whose times say nothing.")
    return "\n".join(lines)
