"""Pictures of fidelity by position in the text, and of exit depths."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from math import ceil

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from river_llm.analysis import cells
from river_llm.analysis.figures import DPI, error, plain_axes
from river_llm.analysis.points import Estimate
from river_llm.analysis.positions import DepthHistogram, PositionBin
from river_llm.analysis.styles import BAND, DASHES, GREY
from river_llm.errors import UserError

# One look per run: runs of one method must be told apart here.
RUN_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9")
RUN_MARKERS = ("o", "s", "^", "X", "D", "v", "P", "<", ">", "*")
MOST_RUNS = len(RUN_MARKERS)
DODGE = 0.55  # share of a bin over which the runs' points are spread, so that bars do not hide
WIDTH, HEIGHT, NOTE_HEIGHT = 9.0, 6.6, 0.17
NOTE_COLUMNS = 150
COLUMNS = 4
PANEL_WIDTH, PANEL_HEIGHT = 3.1, 2.1
TITLE_COLUMNS = 40


def position_figure(
    runs: Mapping[str, Sequence[PositionBin]],
    title: str,
    noise_floor: float | None = None,
    notes: Sequence[str] = (),
) -> Figure:
    """Draw agreement and excess NLL against the position in the text, one line per run.

    Lines that fall to the right drift away from no_exit as their KV entries pile up. In both
    panels up is closer. Points of one bin are spread a little, so that bars do not hide.

    Args:
        runs: bins by the name of the run.
        title: of the figure.
        noise_floor: agreement of another implementation of no_exit, None where not measured.
        notes: what is not shown, below the picture.

    Raises:
        UserError: no runs, or more than can be told apart.
    """
    if not 0 < len(runs) <= MOST_RUNS:
        raise UserError(
            f"{len(runs)} runs to draw by position: give 1 to {MOST_RUNS}, more lines cannot be "
            "told apart"
        )
    text = [_counted(runs), *notes]
    if noise_floor is None:
        text.append(f"Noise floor: {cells.NOT_RUN}.")
    wrapped = [line for note in text for line in textwrap.wrap(note, NOTE_COLUMNS)]
    heights = (HEIGHT + 0.2 * ceil(len(runs) / 2), NOTE_HEIGHT * (len(wrapped) + 1))
    fig = Figure(figsize=(WIDTH, sum(heights)), dpi=DPI, layout="constrained")
    FigureCanvasAgg(fig)
    upper, lower = fig.subfigures(2, 1, squeeze=False, height_ratios=heights).flat
    above, below = upper.subplots(2, 1, sharex=True)
    if noise_floor is not None:
        label = "noise floor: another implementation of no_exit"
        above.axhspan(100 * noise_floor, 100, color=BAND, linewidth=0, zorder=0, label=label)
    below.axhline(0, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)))
    for i, (name, bins) in enumerate(runs.items()):
        shift = (i + 0.5) / len(runs) - 0.5
        _line(above, name, bins, [bin_.agreement for bin_ in bins], 100, i, shift)
        _line(below, name, bins, [bin_.excess_nll for bin_ in bins], 1, i, shift)
    above.set_ylabel("Same next token as no_exit, %\n(up: closer)")
    below.set_ylabel("Excess NLL over no_exit, nats\n(up: closer)")
    below.invert_yaxis()
    below.set_xlabel("Position in the generated text, tokens")
    for axes in (above, below):
        plain_axes(axes)
    edges = sorted({edge for bins in runs.values() for b in bins for edge in (b.first, b.end)})
    below.set_xticks(edges)
    upper.suptitle(title, fontsize=12, fontweight="bold")
    handles, labels = above.get_legend_handles_labels()
    upper.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    lower.text(0.02, 1, "\n".join(wrapped), va="top", fontsize=8, color=GREY, linespacing=1.3)
    return fig


def depth_figure(runs: Mapping[str, DepthHistogram], title: str) -> Figure:
    """Draw the share of decode steps at each exit depth, one small panel per run.

    A dashed line marks the mean depth. The shares have a scale for each panel: where all steps
    run to one depth, its bar would flatten the shapes of the others.

    Args:
        runs: histograms by the name of the run.
        title: of the figure.

    Raises:
        UserError: no runs.
    """
    if not runs:
        raise UserError("no runs to draw: the list is empty, run the arms first")
    columns = min(COLUMNS, len(runs))
    rows = ceil(len(runs) / columns)
    size = (max(PANEL_WIDTH * columns, 5.0), PANEL_HEIGHT * rows + 0.8)
    fig = Figure(figsize=size, dpi=DPI, layout="constrained")
    FigureCanvasAgg(fig)
    panels = fig.subplots(rows, columns, squeeze=False, sharex=True)
    for axes, (name, histogram) in zip(panels.flat, runs.items(), strict=False):
        _histogram(axes, name, histogram)
    for axes in panels.flat[len(runs) :]:
        axes.set_visible(False)
    fig.supxlabel("Exit depth, layers of the backbone (L: no exit)", fontsize=10)
    fig.supylabel("Decode steps, %", fontsize=10)
    fig.suptitle(textwrap.fill(title, int(size[0] * 9)), fontsize=12, fontweight="bold")
    return fig


def _line(
    axes: Axes,
    name: str,
    bins: Sequence[PositionBin],
    figures: Sequence[Estimate],
    factor: float,
    run: int,
    shift: float,
) -> None:
    color = RUN_COLORS[run % len(RUN_COLORS)]
    xs, ys = [], []
    for bin_, figure in zip(bins, figures, strict=True):
        if figure.value is None:
            continue
        width = bin_.end - bin_.first
        x, y = bin_.first + width * (0.5 + DODGE * shift), factor * figure.value
        ends = figure.interval
        scaled = None if ends is None else (factor * ends[0], factor * ends[1])
        axes.errorbar(x, y, yerr=error(y, scaled), fmt="none", ecolor=color, elinewidth=0.9)
        xs.append(x)
        ys.append(y)
    axes.plot(
        xs,
        ys,
        color=color,
        linestyle=DASHES[run % len(DASHES)],
        linewidth=1.4,
        marker=RUN_MARKERS[run],
        markersize=5.5,
        label=name,
    )


def _counted(runs: Mapping[str, Sequence[PositionBin]]) -> str:
    """How many texts there are at the beginning and at the end."""
    first = [bins[0].samples for bins in runs.values()]
    last = [bins[-1].samples for bins in runs.values()]
    return (
        f"{cells.span(first)} texts in the first bin, {cells.span(last)} in the last (the others "
        "have ended); bars: 95 % bootstrap over texts. Teacher-forced on no_exit's text."
    )


def _histogram(axes: Axes, name: str, histogram: DepthHistogram) -> None:
    steps, mean = sum(histogram.counts), histogram.mean
    if mean is None:
        axes.text(0.5, 0.5, "no decode steps", transform=axes.transAxes, ha="center", color=GREY)
        counted = "no decode steps"
    else:
        shares = [100 * count / steps for count in histogram.counts]
        axes.bar(range(len(shares)), shares, width=0.9, color=RUN_COLORS[0])
        axes.axvline(mean, color="black", linewidth=1, linestyle=(0, (3, 2)))
        counted = f"mean {mean:.1f}, {steps} {histogram.source}"
    axes.set_title(
        "\n".join([*textwrap.wrap(name, TITLE_COLUMNS), counted]), loc="left", fontsize=8
    )
    layers = len(histogram.counts) - 1
    axes.set_xticks(sorted({round(layers * quarter / 4) for quarter in range(5)}))
    axes.set_ylim(bottom=0)
    axes.tick_params(labelbottom=True)  # the panel below may be empty
    plain_axes(axes)
