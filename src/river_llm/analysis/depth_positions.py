"""How deep tokens run along the text: every token of the forced texts, and means of neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from river_llm.analysis.figures import error, plain_axes
from river_llm.analysis.points import Estimate
from river_llm.analysis.positions import BIN_TOKENS
from river_llm.analysis.provenance import captioned
from river_llm.analysis.statistics import bootstrap_ratio
from river_llm.analysis.styles import GREY, STYLES
from river_llm.errors import UserError

WIDTH, ROW_HEIGHT = 9.0, 1.9
JITTER = 0.6  # decode steps over which the texts' dots are spread, so that they do not hide


@dataclass(frozen=True)
class DepthBin:
    """Exit depths of some neighbouring decode steps.

    Attributes:
        first, end: decode steps first..end-1, counted from 0.
        texts: texts that reach into the bin; the interval is over these.
        steps: their decode steps in it.
        depth: mean exit depth.
    """

    first: int
    end: int
    texts: int
    steps: int
    depth: Estimate


def depth_by_position(forced: Mapping[str, Any], bin_steps: int = BIN_TOKENS) -> list[DepthBin]:
    """Mean exit depth in bins of decode steps, with a 95 % bootstrap over texts.

    Args:
        forced: content of forced_scores.json.
        bin_steps: width of a bin; the last one may be narrower.

    Raises:
        UserError: no decode steps.
    """
    texts = _depths(forced)
    longest = max(map(len, texts))
    found = []
    for first in range(0, longest, bin_steps):
        end = min(first + bin_steps, longest)
        parts = [depths[first:end] for depths in texts if len(depths) > first]
        counts = [len(part) for part in parts]
        mean = bootstrap_ratio([float(sum(part)) for part in parts], counts)
        found.append(DepthBin(first, end, len(parts), sum(counts), Estimate(*mean)))
    return found


def depth_position_figure(runs: Mapping[str, Mapping[str, Any]], layers: int, title: str) -> Figure:
    """Draw the exit depth of every decode step along the text, one panel per run.

    A dot is a decode step of one text; the bars in black are means of neighbouring ones. Runs
    that go to one depth at every step are named below instead of drawn.

    Args:
        runs: content of forced_scores.json by the name of the run.
        layers: L.
        title: of the figure.

    Raises:
        UserError: no run whose depth changes.
    """
    texts = {name: _depths(forced) for name, forced in runs.items()}
    depths = {name: {d for text in own for d in text} for name, own in texts.items()}
    drawn = [name for name, found in depths.items() if len(found) > 1]
    if not drawn:
        raise UserError(
            "no run whose exit depth changes from step to step: run method=river with "
            "criterion=similarity and fidelity.limit of 1 or more"
        )
    fixed = [f"{name} ({found.pop()})" for name, found in depths.items() if len(found) == 1]
    notes = [
        "A dot: one decode step of one text, teacher-forced on no_exit's text. Black: mean of up "
        f"to {BIN_TOKENS} steps, with a 95 % bootstrap over texts. Dashed: no exit."
    ]
    if fixed:
        notes.append(f"Not drawn, one depth at every step: {', '.join(fixed)}.")
    fig, upper = captioned((WIDTH, ROW_HEIGHT * len(drawn) + 1.2), notes)
    panels = upper.subplots(len(drawn), 1, squeeze=False, sharex=True, sharey=True)[:, 0]
    for axes, name in zip(panels, drawn, strict=True):
        _panel(axes, name, texts[name], depth_by_position(runs[name]), layers)
    panels[0].set_ylim(-0.06 * layers, 1.06 * layers)
    panels[0].set_yticks(sorted({round(layers * part / 3) for part in range(4)}))
    panels[-1].set_xlabel("Position in no_exit's text, decode steps")
    upper.supylabel(f"Exit depth, layers of {layers}", fontsize=10)
    upper.suptitle(title, fontsize=12, fontweight="bold")
    return fig


def _panel(
    axes: Axes, name: str, texts: Sequence[Sequence[int]], bins: Sequence[DepthBin], layers: int
) -> None:
    plain_axes(axes)
    axes.axhline(layers, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)))
    for i, depths in enumerate(texts):
        shift = JITTER * ((i + 0.5) / len(texts) - 0.5)
        axes.plot(
            [step + 0.5 + shift for step in range(len(depths))],
            depths,
            linestyle="none",
            marker="o",
            markersize=3,
            markeredgewidth=0,
            alpha=0.55,
            color=STYLES["river"][0],
        )
    for bin_ in bins:
        middle, mean = (bin_.first + bin_.end) / 2, bin_.depth.value
        assert mean is not None  # a bin holds one step at least
        axes.plot([bin_.first, bin_.end], [mean, mean], color="black", linewidth=1.4)
        axes.errorbar(
            middle,
            mean,
            yerr=error(mean, bin_.depth.interval),
            fmt="none",
            ecolor="black",
            elinewidth=1,
            capsize=2.5,
        )
    steps = sum(map(len, texts))
    mean = sum(map(sum, texts)) / steps
    axes.set_title(
        f"{name}: mean {mean:.1f}, n = {steps} steps of {len(texts)} text{'s' * (len(texts) > 1)}",
        loc="left",
        fontsize=9,
    )


def _depths(forced: Mapping[str, Any]) -> list[list[int]]:
    """The depths of each forced text that has decode steps."""
    texts = [scores["depths"] for scores in forced["samples"].values() if scores["depths"]]
    if not texts:
        raise UserError("no decode steps on forced texts: run with fidelity.limit of 1 or more")
    return texts
