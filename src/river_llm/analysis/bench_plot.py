"""The picture of a decode benchmark: ms per token over exit depth, with the memory's bound."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Bbox

from river_llm.analysis.bench_figures import Arms
from river_llm.analysis.figures import DPI, boxes, error, plain_axes, text_color
from river_llm.analysis.labels import place_labels
from river_llm.analysis.styles import GREY, OTHER_STYLE, STYLES
from river_llm.records import replacing

PEERS = {"hf_generate": "transformers generate", "llama_cpp": "llama.cpp"}
BOUND_COLOR = "#D55E00"
PEER_COLORS = {"hf_generate": "#8a5a00", "llama_cpp": "#7b4fa3"}


def decode_plot(contexts: Mapping[int, Arms], layers: int, subtitle: str, path: Path) -> None:
    """Write the figure of `decode_figure` as a PNG; the file's folder is made."""
    fig = decode_figure(contexts, layers, subtitle)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        fig.savefig(temporary, format="png", metadata={"Software": None})


def decode_figure(contexts: Mapping[int, Arms], layers: int, subtitle: str) -> Figure:
    """Draw the time of every arm over its exit depth, one panel for each context.

    Args:
        contexts: figures of the arms, by length of the prompt.
        layers: number of backbone layers L.
        subtitle: what was measured on what.

    Returns:
        The figure, on an Agg canvas.
    """
    width = 9.0 if len(contexts) == 1 else 6.2 * len(contexts)
    fig = Figure(figsize=(width, 5.6), dpi=DPI, layout="constrained")
    canvas = FigureCanvasAgg(fig)
    panels = fig.subplots(1, len(contexts), squeeze=False)[0]
    fig.suptitle("Time per token by exit depth", fontsize=12, fontweight="bold")
    for axes, (context, arms) in zip(panels, contexts.items(), strict=True):
        _panel(axes, arms, layers)
        axes.set_title(f"Behind {context} tokens", fontsize=9, color=GREY, loc="left")
        axes.set_xlabel(f"Exit depth: layers in the backbone, of {layers}")
    panels[0].set_ylabel("ms per token (median, quartiles)")
    handles, words = panels[0].get_legend_handles_labels()
    fig.legend(
        handles, words, title=subtitle, frameon=False, loc="outside lower left", ncols=2, fontsize=8
    ).get_title().set(fontsize=8, color=GREY)
    # Labels need the final layout.
    canvas.draw()
    fig.set_layout_engine("none")
    for axes, arms in zip(panels, contexts.values(), strict=True):
        _label(axes, canvas.get_renderer(), arms, layers)
    return fig


def _panel(axes: Axes, arms: Arms, layers: int) -> None:
    plain_axes(axes)
    line = _river_line(arms)
    depths = [depth for depth, _ in line]
    axes.plot(
        depths,
        [arm["ms_per_token"] for _, arm in line],
        color=STYLES["river"][0],
        linewidth=2.0,
        zorder=2,
        label="river at a planned depth, up to no_exit",
    )
    bounds = [(depth, arm["bound_ms"]) for depth, arm in line if arm["bound_ms"] is not None]
    axes.plot(
        [depth for depth, _ in bounds],
        [bound for _, bound in bounds],
        color=BOUND_COLOR,
        linewidth=1.6,
        linestyle=(0, (5, 2)),
        zorder=2,
        label="their bound: bytes read / bandwidth",
    )
    for name, arm in arms.items():
        depth = arm.get("mean_depth")
        if depth is None:
            color = PEER_COLORS[name]
            axes.axhline(arm["ms_per_token"], color=color, linewidth=1.4, zorder=1)
            axes.axhspan(arm["q1"], arm["q3"], color=color, alpha=0.12, linewidth=0, zorder=0)
            continue
        color, marker = STYLES.get(family_of(name), OTHER_STYLE)
        axes.errorbar(
            depth,
            arm["ms_per_token"],
            yerr=error(arm["ms_per_token"], (arm["q1"], arm["q3"])),
            color=color,
            marker=marker,
            markersize=7,
            elinewidth=1.2,
            zorder=3,
        )
    axes.set_xlim(-0.1 * layers, 1.08 * layers)
    top = max(arm["q3"] for arm in arms.values())
    axes.set_ylim(0, 1.12 * top)


def _label(axes: Axes, renderer: Any, arms: Arms, layers: int) -> None:
    anchors, texts, colors = [], [], []
    marks: list[Bbox] = []
    for name, arm in arms.items():
        value = arm["ms_per_token"]
        depth = arm.get("mean_depth")
        if depth is None:
            cache = f", {arm['cache']} cache" if "cache" in arm else ""
            axes.annotate(
                f"{PEERS[name]}{cache}: {value:.1f}",
                (0.62, value),
                (0, 2),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                ha="center",
                va="bottom",
                fontsize=8,
                color=text_color(PEER_COLORS[name]),
                path_effects=[withStroke(linewidth=2.5, foreground="white")],
            )
            marks += boxes(axes, [((0, value), (layers, value), 3)])
            continue
        anchors.append((depth, value))
        texts.append(f"{name} {value:.1f}")
        colors.append(text_color(STYLES.get(family_of(name), OTHER_STYLE)[0]))
        marks += boxes(axes, [((depth, arm["q1"]), (depth, arm["q3"]), 6)])
    line = _river_line(arms)
    for key in ("ms_per_token", "bound_ms"):
        marks += _along(axes, [(depth, arm[key]) for depth, arm in line if arm[key] is not None])
    place_labels(axes, renderer, anchors, texts, colors, marks)


def _along(axes: Axes, points: list[tuple[float, float]]) -> list[Bbox]:
    """Boxes along a line, small enough to follow its slope."""
    found = []
    pieces = 8
    for (x0, y0), (x1, y1) in pairwise(points):
        for piece in range(pieces):
            ends = [
                (x0 + (x1 - x0) * part / pieces, y0 + (y1 - y0) * part / pieces)
                for part in (piece, piece + 1)
            ]
            found += boxes(axes, [(ends[0], ends[1], 2)])
    return found


def family_of(name: str) -> str:
    """The method of an arm's name."""
    return name.partition("@")[0].partition("~")[0].partition("/")[0]


def _river_line(arms: Arms) -> list[tuple[float, Mapping[str, Any]]]:
    """River's planned depths and no_exit, by depth."""
    points = [
        (arm["mean_depth"], arm)
        for name, arm in arms.items()
        if name.startswith("river@") or name == "no_exit"
    ]
    return sorted(points, key=lambda point: point[0])
