"""The picture of similarity and KV entries by layer (paper, Figure 7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from river_llm.analysis.figures import plain_axes
from river_llm.analysis.kv import (
    FULL_QUANT,
    LAYER_ALONE,
    OTHER_TOKEN,
    RIVER,
    KVRecord,
    correlation,
    early_against_last,
    entry_profiles,
    exit_depths,
    similarity_profile,
)
from river_llm.analysis.provenance import captioned
from river_llm.analysis.styles import DASHES, GREY, STYLES
from river_llm.errors import UserError

WIDTH, HEIGHT = 11.0, 7.4
PAPER_COSINE, PAPER_R = 0.97, 0.5536
SHADES = ("#9ecae1", "#4292c6", "#08519c", "#08306b")
SCATTER_DEPTH = 3  # the paper's mean depth is 3 to 4


def kv_figure(
    record: KVRecord, title: str, notes: Sequence[str] = (), prefill: str = "sequence"
) -> Figure:
    """Draw similarity by layer, entries by layer, and early similarity against the last value.

    Args:
        record: see :class:`river_llm.analysis.kv.KVRecord`.
        title: of the figure.
        notes: the caption, below the picture.
        prefill: of the river runs that are drawn.

    Raises:
        UserError: a record without a river run that exits after a test.
    """
    layers = int(record.summary["layers"])
    depths = exit_depths(record.entries, layers)
    if not depths:
        raise UserError(
            f"the record has no river run at a depth 1 to {layers - 1}: run scripts/analyze_kv.py "
            "with one among --depths"
        )
    fig, upper = captioned((WIDTH, HEIGHT), notes)
    (similar, scatter), (keys, values) = upper.subplots(2, 2)
    _similarity(similar, record)
    chosen = SCATTER_DEPTH if SCATTER_DEPTH in depths else depths[0]
    _scatter(scatter, record, chosen, prefill)
    lows = [
        _entries(axes, record, column, depths, prefill)
        for axes, column in ((keys, "key_cosine"), (values, "value_cosine"))
    ]
    for axes, word in ((keys, "key"), (values, "value")):
        # One scale, so that keys and values can be compared.
        low = min([*lows, PAPER_COSINE])
        axes.set_ylim(low - 0.12 * (1 - low), 1 + 0.03 * (1 - low))
        axes.set_ylabel(f"Cosine with the backbone's {word}")
        axes.set_xlabel(f"Layer, of {layers}")
    keys.set_title("Keys in the cache, rotated to their position", loc="left", fontsize=10)
    values.set_title("Values in the cache", loc="left", fontsize=10)
    handles, labels = values.get_legend_handles_labels()
    upper.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    upper.suptitle(title, fontsize=12, fontweight="bold")
    return fig


def _similarity(axes: Axes, record: KVRecord) -> None:
    plain_axes(axes)
    profile = similarity_profile(record.layers)
    color = STYLES["river"][0]
    axes.fill_between(
        profile["layer"],
        profile["low"],
        profile["high"],
        color=color,
        alpha=0.2,
        linewidth=0,
        label="80 % of tokens",
    )
    axes.plot(profile["layer"], profile["mean"], color=color, linewidth=1.8, label="mean")
    axes.set_title("State transition similarity of each block", loc="left", fontsize=10)
    axes.set_xlabel(f"Layer, of {len(profile)}")
    axes.set_ylabel("Cosine of input and output state")
    axes.legend(frameon=False, fontsize=9, loc="lower center")


def _entries(
    axes: Axes, record: KVRecord, column: str, depths: Sequence[int], prefill: str
) -> float:
    """Draws the arms' lines; returns the lowest figure."""
    plain_axes(axes)
    profiles = entry_profiles(record.entries)
    drawn = [(LAYER_ALONE, 0, "", "each river layer alone")]
    if prefill == "sequence":
        drawn.append((FULL_QUANT, 0, prefill, "full_quant"))
    else:
        drawn.append((RIVER, 0, prefill, "river, exit depth 0"))
    drawn += [(RIVER, depth, prefill, f"river, exit depth {depth}") for depth in depths]
    lows = []
    for arm, depth, where, label in drawn:
        rows = profiles[
            (profiles["arm"] == arm) & (profiles["depth"] == depth) & (profiles["prefill"] == where)
        ]
        if rows.empty:
            continue
        lows.append(float(rows[column].min()))
        axes.plot(
            rows["layer"], rows[column], label=label, linewidth=1.6, **_look(arm, depths, depth)
        )
    axes.axhline(
        PAPER_COSINE, color=GREY, linewidth=1, linestyle=(0, (1, 2)), label="paper: above 0.97"
    )
    other = profiles[profiles["arm"] == OTHER_TOKEN]
    axes.text(
        0.02,
        0.03,
        f"two neighbouring tokens of the backbone: {other[column].mean():.2f}",
        transform=axes.transAxes,
        fontsize=8.5,
        color=GREY,
    )
    return min(lows)


def _look(arm: str, depths: Sequence[int], depth: int) -> dict[str, Any]:
    if arm == LAYER_ALONE:
        return {"color": "black", "linestyle": DASHES[2]}
    if arm == FULL_QUANT:
        return {"color": STYLES["full_quant"][0], "linestyle": "-"}
    shade = [0, *depths].index(depth)
    return {"color": SHADES[min(shade, len(SHADES) - 1)], "linestyle": DASHES[shade % len(DASHES)]}


def _scatter(axes: Axes, record: KVRecord, depth: int, prefill: str) -> None:
    plain_axes(axes)
    pairs = early_against_last(record.layers, record.entries, depth, prefill)
    found = correlation(pairs)
    axes.scatter(
        pairs["early"],
        pairs["last"],
        s=14,
        color=to_rgba(STYLES["river"][0], 0.45),
        linewidths=0,
        rasterized=len(pairs) > 2000,
    )
    if found.value is None:
        told = "no r, one does not vary"
    elif found.interval is None:
        told = f"r = {found.value:.2f} [no interval]"
    else:
        told = f"r = {found.value:.2f} [{found.interval[0]:.2f}, {found.interval[1]:.2f}]"
    axes.set_title(
        f"Early similarity and last value: {told}, paper {PAPER_R:.2f}",
        loc="left",
        fontsize=10,
    )
    axes.set_xlabel(f"Similarity of layer {depth - 1}, the test for an exit at depth {depth}")
    axes.set_ylabel("Cosine of river's and backbone's\nvalue in the last layer")
