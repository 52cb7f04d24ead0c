"""The picture of oracle depth beside first-hit depth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from river_llm.errors import UserError
from river_llm.records import replacing

ORACLE, FIRST_HIT = "#0072B2", "#E69F00"
GREY = "#555555"


def depth_histogram(
    oracle: Sequence[int], first_hit: Sequence[int], title: str, path: str | Path
) -> None:
    """Write the figure of `depth_histogram_figure` as a PNG; the file's folder is made."""
    fig = depth_histogram_figure(oracle, first_hit, title)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with replacing(Path(path)) as temporary:
        fig.savefig(temporary, format="png", metadata={"Software": None})


def depth_histogram_figure(oracle: Sequence[int], first_hit: Sequence[int], title: str) -> Figure:
    """Draw at which depth no_exit's token is first predicted, and from which on it stays.

    Args:
        oracle: Decode steps with oracle depth 0..L, length L+1; nothing falls on 0.
        first_hit: The same for the first-hit depth.
        title: What was measured, in one line; written in small letters under the figure's own.

    Returns:
        The figure, on an Agg canvas.

    Raises:
        UserError: No decode steps.
    """
    if not sum(oracle):
        raise UserError("no decode steps to draw: the histogram of depths is empty")
    layers = len(oracle) - 1
    fig = Figure(figsize=(9, 4.2), dpi=150, layout="constrained")
    FigureCanvasAgg(fig)
    axes = fig.subplots()
    for counts, color, shift, word in (
        (first_hit, FIRST_HIT, -0.2, "first predicted: first-hit depth"),
        (oracle, ORACLE, 0.2, "predicted from there on: oracle depth"),
    ):
        total = sum(counts)
        mean = sum(depth * count for depth, count in enumerate(counts)) / total
        axes.bar(
            [depth + shift for depth in range(1, layers + 1)],
            [100 * count / total for count in counts[1:]],
            width=0.4,
            color=color,
            label=f"{word}, mean {mean:.1f}",
        )
        axes.axvline(mean, color=color, linewidth=1.2, linestyle=(0, (4, 3)))
    axes.set_xlim(0.4, layers + 0.6)
    axes.set_xticks(sorted({1, *range(5, layers, 5), layers}))
    axes.set_xlabel(f"Depth: backbone layers that ran, of {layers}")
    axes.set_ylabel("Decode steps, %")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, loc="upper left", title="no_exit's own token is", alignment="left")
    fig.suptitle(
        "How early norm and head on the hidden state tell no_exit's token",
        fontsize=12,
        fontweight="bold",
    )
    axes.set_title(title, fontsize=9, color=GREY, loc="left")
    return fig
