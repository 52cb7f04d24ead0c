"""Operating points: what one run of a comparison says about its method, from its summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from river_llm.analysis import cells
from river_llm.analysis.cells import Summary, figure, pick
from river_llm.analysis.styles import STYLES
from river_llm.config import HqqInt4Config, NoQuantConfig
from river_llm.errors import UserError

CRITERIA = {
    "confidence": "confidence (reads the head at every tested layer)",
    "fixed": "planned depth",
    "never": "planned depth",
    "replay": "replay",
}
"""How a line is called whose depths are not those of the similarity."""

Interval = tuple[float, float] | None
VARYING = ("engine", "dtype")
DEPTH_TOLERANCE = 1.0  # layers
OTHER_STRETCH = f"timed steps differ from the scored ones by more than {DEPTH_TOLERANCE:g} in depth"


class Estimate(NamedTuple):
    """A figure with the ends of its 95 % interval; None where it was not measured."""

    value: float | None
    low: float | None = None
    high: float | None = None

    @property
    def interval(self) -> Interval:
        """Both ends, or None."""
        return None if self.low is None or self.high is None else (self.low, self.high)


def with_interval(figure: Estimate, decimals: int, definite: bool = False) -> str:
    """`1.80 [1.70, 1.90]`; without an interval where the figure holds by definition."""
    if figure.value is None:
        return cells.NOT_RUN
    value = cells.fixed(figure.value, decimals)
    if definite:
        return value
    if figure.interval is None:
        return f"{value} [no interval]"
    return f"{value} [{', '.join(cells.fixed(end, decimals) for end in figure.interval)}]"


def percents(share: Estimate, definite: bool = False) -> str:
    """A share in percent, as :func:`with_interval` writes it."""
    return with_interval(
        Estimate(*(None if part is None else 100 * part for part in share)), 1, definite
    )


@dataclass(frozen=True)
class OperatingPoint:
    """One run as a point of its method's line.

    Attributes:
        task, model: what ran; only points of the same two can be compared.
        line: the method with everything that makes it another method: where the prompt runs,
            which criterion, which quantizer, which head where it is quantized.
        family: key of :data:`river_llm.analysis.styles.STYLES`.
        setting: what tells the points of a line apart, as in a configuration; may be empty.
        label: the same, short, for pictures.
        mean_depth: over decode steps, the teacher-forced ones where they were counted.
        layers: L of the model.
        speedup: matched decode speedup; bound: the one that the bytes read allow.
        agreement: share of equal argmax tokens; excess_nll: nats per token; both against no_exit.
        noise_floor, noise_floor_nll: agreement and excess_nll of another implementation of
            no_exit, None where not measured.
        accuracy: share of right answers in free-running text.
        tokens, texts: that agreement and excess_nll are counted over; prompts: that the speedup
            is measured on; graded: answers behind the accuracy; None where not measured.
        flags: what a reader must know about the speedup.
        identity: of the run.
    """

    task: str
    model: str
    line: str
    family: str
    setting: str
    label: str
    mean_depth: float | None
    layers: int
    speedup: Estimate
    bound: float | None
    agreement: Estimate
    excess_nll: Estimate
    noise_floor: float | None
    noise_floor_nll: float | None
    accuracy: Estimate
    tokens: int | None
    texts: int | None
    prompts: int | None
    graded: int
    flags: tuple[str, ...]
    identity: str

    @property
    def is_reference(self) -> bool:
        """Whether it is no_exit itself, which stands at 1 and at full agreement by definition."""
        return self.family == cells.REFERENCE_METHOD

    @property
    def below_full_depth(self) -> bool:
        """Whether any layer was skipped; without that a method is no_exit by another name."""
        return self.mean_depth is not None and self.mean_depth < self.layers

    @property
    def name(self) -> str:
        """Line and setting."""
        return f"{self.line}, {self.setting}" if self.setting else self.line


def operating_points(summaries: Sequence[Summary]) -> list[OperatingPoint]:
    """The points of all runs: lines in the order of legends, each by rising speed.

    A point whose speedup was not measured stands at the end of its line. Engine and dtype are
    part of a line's name where the runs differ in them.

    Args:
        summaries: of any number of runs, tasks and models.
    """
    varying = [key for key in VARYING if len({pick(s, "settings", key) for s in summaries}) > 1]
    points = [_point(summary, varying) for summary in summaries]
    order = list(STYLES)
    return sorted(
        points,
        key=lambda point: (
            order.index(point.family) if point.family in order else len(order),
            point.line,
            float("inf") if point.speedup.value is None else point.speedup.value,
        ),
    )


def check_comparable(summaries: Sequence[Summary]) -> None:
    """Refuses runs of one task and model that were compared with different texts.

    Raises:
        UserError: the no_exit runs that they were compared with.
    """
    texts: dict[tuple[str, str], set[str]] = {}
    for summary in summaries:
        compared = pick(summary, "fidelity", "no_exit_run")
        key = tuple(str(pick(summary, "settings", setting)) for setting in (*VARYING, "head"))
        if compared is not None:
            group = (f"{summary['label']}, {summary['model']}", str(key))
            texts.setdefault(group, set()).add(str(compared))
    for (name, _), found in texts.items():
        if len(found) > 1:
            raise UserError(
                f"{name}: the runs were compared with {', '.join(sorted(found))}: draw those of "
                "one no_exit run at a time"
            )


def comparisons(points: Sequence[OperatingPoint]) -> dict[tuple[str, str], list[OperatingPoint]]:
    """The points by task and model: only these can be compared."""
    groups: dict[tuple[str, str], list[OperatingPoint]] = {}
    for point in points:
        groups.setdefault((point.task, point.model), []).append(point)
    return groups


def lines(points: Sequence[OperatingPoint]) -> dict[str, list[OperatingPoint]]:
    """The points by line, in the order given."""
    found: dict[str, list[OperatingPoint]] = {}
    for point in points:
        found.setdefault(point.line, []).append(point)
    return found


def noise_floor(points: Sequence[OperatingPoint]) -> float | None:
    """The lowest noise floor of agreement among the points, None where none was measured."""
    return min((p.noise_floor for p in points if p.noise_floor is not None), default=None)


def _point(summary: Summary, varying: Sequence[str]) -> OperatingPoint:
    measured = cells.matched(summary)
    fidelity = summary["fidelity"]
    reference = summary["method"] == cells.REFERENCE_METHOD
    extra = [str(pick(summary, "settings", key)) for key in varying]
    line = ", ".join([*_line(summary), *extra])
    depth = _mean_depth(summary)
    flags = [*cells.marks(summary), *_other_stretch(depth, figure(measured, "mean_depth"))]
    setting, label = _setting(summary), _label(summary, depth)
    return OperatingPoint(
        task=summary["label"],
        model=summary["model"],
        line=line,
        family=_family(summary),
        setting=setting,
        label=label or line.replace(",", ""),
        mean_depth=depth,
        layers=summary["exit_depth"]["layers"],
        speedup=Estimate(1.0) if reference else estimate(measured, "value", ""),
        bound=1.0 if reference else figure(measured, "bound_speedup"),
        agreement=Estimate(1.0) if reference else estimate(fidelity, "agreement"),
        excess_nll=Estimate(0.0) if reference else estimate(fidelity, "excess_nll"),
        noise_floor=figure(fidelity, "noise_floor", "agreement"),
        noise_floor_nll=figure(fidelity, "noise_floor", "excess_nll"),
        accuracy=estimate(summary["accuracy"], "value", ""),
        tokens=pick(fidelity, "tokens"),
        texts=pick(fidelity, "samples"),
        prompts=pick(measured, "prompts"),
        graded=summary["accuracy"]["graded"],
        flags=tuple(flags),
        identity=summary["identity"],
    )


def estimate(block: Mapping[str, Any] | None, key: str, prefix: str | None = None) -> Estimate:
    """A figure of a summary with the ends of its interval, under `<prefix>low` and `high`.

    Args:
        block: the part of the summary; None: not measured.
        key: of the figure.
        prefix: of the ends; None: the key and an underscore.
    """
    start = f"{key}_" if prefix is None else prefix
    return Estimate(*(figure(block, name) for name in (key, f"{start}low", f"{start}high")))


def _mean_depth(summary: Summary) -> float | None:
    """Of the steps that agreement is counted on, where they were counted."""
    paths = (
        ("fidelity", "mean_depth"),
        ("speedup", "decode", "matched", "mean_depth"),
        ("exit_depth", "mean"),
    )
    return next((d for path in paths if (d := figure(summary, *path)) is not None), None)


def _other_stretch(depth: float | None, timed: float | None) -> list[str]:
    """Says where the steps that were timed were not as deep as those that fidelity is of."""
    if depth is None or timed is None or abs(timed - depth) <= DEPTH_TOLERANCE:
        return []
    return [OTHER_STRETCH]


def _family(summary: Summary) -> str:
    method = str(summary["method"])
    if method == "river" and pick(summary, "settings", "prefill") == "backbone":
        return "river backbone"
    return method


def _line(summary: Summary) -> list[str]:
    """The words of a line's name."""
    method = summary["method"]
    settings = summary["settings"]
    words = [method]
    prefill = pick(settings, "prefill")
    # The other methods have one prefill each; a shuffled run has that of the run it repeats.
    if prefill is not None and (
        method == "river" or (method == "river_shuffled" and prefill == "backbone")
    ):
        words.append(f"prefill {prefill}")
    if pick(settings, "method", "pool") not in (None, "last"):
        words.append(f"pool {settings['method']['pool']}")
    if pick(settings, "method", "form") == "schedule":
        words.append(f"schedule {settings['method']['place']}")
    if pick(settings, "method", "max_pending") is not None:
        words.append(f"max_pending {settings['method']['max_pending']}")
    if pick(settings, "method", "restart") not in (None, "embedding"):
        words.append(f"restart at the {settings['method']['restart']}")
    criterion = pick(settings, "criterion", "name")
    if criterion in CRITERIA and method != "river_shuffled":
        words.append(CRITERIA[criterion])
    quantizer = _quantizer(settings)
    if quantizer is not None and (method == "full_quant" or quantizer != DEFAULT_QUANTIZER):
        words.append(quantizer)
    if (head := pick(settings, "head")) is not None:
        words.append(f"head {head}")
    return words


def _quantizer(settings: Mapping[str, Any]) -> str | None:
    name, size = pick(settings, "quant", "name"), pick(settings, "quant", "group_size")
    if name is None:
        return None
    if name == NoQuantConfig().name:
        return "quant none"
    return str(name) if size is None else f"{name} g{size}"


DEFAULT_QUANTIZER = f"{HqqInt4Config().name} g{HqqInt4Config().group_size}"


def _setting(summary: Summary) -> str:
    settings = summary["settings"]
    criterion = pick(settings, "criterion")
    words = []
    if pick(settings, "method", "k") is not None:
        words.append(f"k={settings['method']['k']}")
    if pick(settings, "method", "form") == "schedule":
        method = settings["method"]
        most = "all" if method["most"] is None else method["most"]
        words.append(f"{most} to {method['fewest']} in {method['length']}")
    match pick(criterion, "name"):
        case "similarity" | "confidence":
            words.append(f"tau={criterion['tau']:.6g}")
        case "fixed":
            words.append(f"depth={criterion['depth']}")
        case "never":
            words.append(f"depth={summary['exit_depth']['layers']}")
        case "replay":
            # Which run is repeated stands in the name of the arm alone.
            words.append(summary["arm"].removeprefix(summary["method"]).strip())
    if pick(criterion, "min_depth") not in (None, 1):
        words.append(f"min={criterion['min_depth']}")
    if pick(criterion, "max_depth") is not None:
        words.append(f"max={criterion['max_depth']}")
    if pick(settings, "offload") is not None:
        words.append(f"offload k={settings['offload']['after']}")
        if settings["offload"]["on_miss"] != "fetch":
            words.append(settings["offload"]["on_miss"])
    return " ".join(words)


def _label(summary: Summary, depth: float | None) -> str:
    if pick(summary, "settings", "criterion", "name") == "replay":
        return "replay" if depth is None else f"mean d={depth:.1f}"
    return _setting(summary).replace("tau=", "τ=").replace("depth=", "d=")
