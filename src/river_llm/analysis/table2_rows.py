"""Rows of Table 2: finished runs by model and task, each in its place, and places without one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from river_llm.analysis import cells
from river_llm.analysis.cells import Summary, figure, pick
from river_llm.analysis.paired import PairedDifference, paired_difference
from river_llm.analysis.paper_cells import TASKS, PaperCells
from river_llm.analysis.points import DEFAULT_QUANTIZER, OperatingPoint, operating_points
from river_llm.analysis.saved import SavedRuns
from river_llm.records import RunFolder

PROTOCOL = ("dtype", "head", "max_new_tokens", "fewshot", "fewshot_source", "model_fingerprint")
"""Settings that all runs of a block share: with others, no_exit is another reference."""


@dataclass(frozen=True)
class Place:
    """Where a run stands in a block, and how the place is called where no run is there.

    Attributes:
        name: of the row without a run.
        takes: whether a run belongs here.
        paper_accuracy: the paper's column that it is set beside; None: it has none.
        paper_speedup: the same for the speedup.
    """

    name: str
    takes: Callable[[Summary], bool]
    paper_accuracy: str | None = None
    paper_speedup: str | None = None


def _method(name: str, bits: int | None) -> Callable[[Summary], bool]:
    def takes(summary: Summary) -> bool:
        found = (summary["method"], pick(summary, "settings", "quant", "bits"))
        return found == (name, bits)

    return takes


def _river(tau: float, prefill: str) -> Callable[[Summary], bool]:
    wanted = {"name": "similarity", "tau": tau, "min_depth": 1, "max_depth": None}

    def takes(summary: Summary) -> bool:
        settings = summary["settings"]
        return (
            summary["method"] == "river"
            and pick(settings, "prefill") == prefill
            and pick(settings, "criterion") == wanted
            and pick(settings, "method", "pool") in (None, "last")
            and pick(settings, "quant", "bits") == 4
        )

    return takes


NO_EXIT = Place(cells.REFERENCE_METHOD, _method(cells.REFERENCE_METHOD, None), "backbone_accuracy")
FULL_QUANT = Place("full_quant", _method("full_quant", 4), "full_quant_accuracy")
# The paper's table has one River; its figure for Llama 3.1 8B on GSM8K is the one of tau = 0.5.
RIVER = Place(
    "river, prefill sequence, tau=0.5",
    _river(0.5, "sequence"),
    "river_accuracy",
    "river_speedup",
)
PLACES = (
    NO_EXIT,
    FULL_QUANT,
    RIVER,
    Place("river, prefill backbone, tau=0.5", _river(0.5, "backbone")),
    Place("river, prefill sequence, tau=0.7", _river(0.7, "sequence")),
    Place("river, prefill backbone, tau=0.7", _river(0.7, "backbone")),
    Place("quant_decode", _method("quant_decode", 4)),
    Place("static_first, k near River's mean depth", _method("static_first", 4)),
    Place("full_quant, 8 bits", _method("full_quant", 8)),
)


@dataclass(frozen=True)
class Row:
    """One line of a block.

    Attributes:
        name: method and settings.
        place: None for a run beyond the table's own.
        point, summary: of the run; both None where there is none.
        folder: of the run.
        difference: of its accuracy to no_exit's; None: no_exit itself, or not known.
        no_exit_engine: of the no_exit run behind the difference.
    """

    name: str
    place: Place | None
    point: OperatingPoint | None = None
    summary: Summary | None = None
    folder: Path | None = None
    difference: PairedDifference | None = None
    no_exit_engine: str | None = None

    @property
    def mean_depth(self) -> float | None:
        """Over the decode steps of the free-running texts, else over the timed ones."""
        depth = figure(self.summary, "exit_depth", "mean")
        return self.timed_depth if depth is None else depth

    @property
    def timed_depth(self) -> float | None:
        """Over the decode steps behind the speedup and its bound."""
        return figure(self.summary, "speedup", "decode", "matched", "mean_depth")

    @property
    def is_no_exit(self) -> bool:
        """Whether it is what the others are compared with."""
        return self.place is NO_EXIT


@dataclass(frozen=True)
class Block:
    """The rows of one model on one task under one protocol.

    Attributes:
        model, exp: names of `model=` and `exp=`.
        task: name of the task in tables.
        protocol: the settings in which blocks of this model and task differ; mostly empty.
        rows: in the order of :data:`PLACES`, then what else was run.
        paper: the paper's cells; None: it has no such row.
    """

    model: str
    exp: str
    task: str
    protocol: str
    rows: list[Row]
    paper: PaperCells | None

    @property
    def has_runs(self) -> bool:
        """Whether anything of it was run."""
        return any(row.summary is not None for row in self.rows)

    def first(self, place: Place) -> Row:
        """The row of a place that stands for it in a table of one column per place."""
        return next(row for row in self.rows if row.place is place)


@dataclass(frozen=True)
class _Run:
    folder: Path
    summary: Summary
    samples: list[dict[str, Any]]


def blocks(runs: SavedRuns, paper: Mapping[tuple[str, str], PaperCells]) -> list[Block]:
    """The table's blocks: those with runs, then those without, both in the paper's order.

    What the paper does not have stands behind what it has.

    Args:
        runs: finished runs, in any order.
        paper: the paper's cells by model and task.

    Raises:
        UserError: samples that cannot be read, or that are not those of no_exit.
    """
    found: dict[tuple[str, str], dict[tuple[str, ...], list[_Run]]] = {key: {} for key in paper}
    for folder, summary in zip(runs.folders, runs.summaries, strict=True):
        run = _Run(folder, summary, _samples(folder, summary["samples"]))
        of_pair = found.setdefault((summary["model"], summary["exp"]), {})
        of_pair.setdefault(_protocol(run), []).append(run)
    made = []
    for (model, exp), by_protocol in found.items():
        for protocol, members in by_protocol.items() or [((), [])]:
            task = members[0].summary["label"] if members and exp not in TASKS else TASKS[exp]
            words = _distinguishing(protocol, list(by_protocol))
            made.append(Block(model, exp, task, words, _rows(members), paper.get((model, exp))))
    return sorted(made, key=lambda block: not block.has_runs)


def _samples(folder: Path, count: int) -> list[dict[str, Any]]:
    """The records that the summary is about: the first ones of the file."""
    return [asdict(record) for record in RunFolder(folder).samples()[:count]]


def _protocol(run: _Run) -> tuple[str, ...]:
    settings = tuple(f"{key}={pick(run.summary, 'settings', key)}" for key in PROTOCOL)
    return (*settings, f"first prompt {_first_prompt(run)}")


def _first_prompt(run: _Run) -> str | None:
    """The hash of the first prompt, in which chat template and data show."""
    if run.samples:
        return str(run.samples[0]["prompt_hash"])
    # A run that was only measured: its texts are those of the no_exit that it is compared with.
    compared = pick(run.summary, "fidelity", "no_exit_run")
    texts = [] if compared is None else RunFolder(run.folder.parent / compared).samples()
    return texts[0].prompt_hash if texts else None


def _distinguishing(protocol: Sequence[str], others: Sequence[Sequence[str]]) -> str:
    """The parts of a protocol that not all of them have."""
    return ", ".join(
        part
        for part, column in zip(protocol, zip(*others, strict=True), strict=True)
        if len(set(column)) > 1
    )


def _rows(members: Sequence[_Run]) -> list[Row]:
    names = {p.identity: p for p in operating_points([run.summary for run in members])}
    references = [run for run in members if NO_EXIT.takes(run.summary)]
    by_place: dict[Place | None, list[Row]] = {place: [] for place in PLACES}
    for run in members:
        place = next((place for place in PLACES if place.takes(run.summary)), None)
        point = names[run.summary["identity"]]
        difference, engine = None, None
        if place is not NO_EXIT and references:
            own = [r for r in references if _engine(r) == _engine(run)]
            reference = (own or references)[0]
            engine = _engine(reference)
            if reference.samples and run.samples:
                difference = paired_difference(reference.samples, run.samples)
        row = Row(point.name, place, point, run.summary, run.folder, difference, engine)
        by_place.setdefault(place, []).append(row)
    rows = []
    for place, own_rows in by_place.items():
        # The default quantizer is the paper's, and stands for the place.
        rows += sorted(own_rows, key=_standing) or [Row(place.name, place)] if place else []
    return rows + sorted(by_place.get(None, []), key=lambda row: row.name)


def _engine(run: _Run) -> str:
    return str(pick(run.summary, "settings", "engine"))


def _standing(row: Row) -> tuple[bool, int]:
    """Order within a place: the default quantizer first, then by the layers at 16 bits."""
    settings = pick(row.summary, "settings")
    quantizer = pick(settings, "quant")
    name = f"{pick(quantizer, 'name')} g{pick(quantizer, 'group_size')}"
    other = quantizer is not None and name != DEFAULT_QUANTIZER
    return other, pick(settings, "method", "k") or 0
