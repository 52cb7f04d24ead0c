"""How methods look in figures, and in which order they are named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Okabe and Ito's palette for the methods of the paper: told apart by colour-blind readers. The
# controls are grey. Markers tell all of them apart in grey print. In the order of legends.
STYLES = {
    "no_exit": ("#000000", "D"),
    "river": ("#0072B2", "o"),
    "river backbone": ("#00305c", "d"),  # the same method with its prompt at 16 bits
    "river_shuffled": ("#3d3d3d", "H"),
    "static_first": ("#6b6b6b", "<"),
    "static_last": ("#6b6b6b", ">"),
    "static_ranked": ("#6b6b6b", "*"),
    "quant_decode": ("#3d3d3d", "p"),
    "full_quant": ("#D55E00", "s"),
    "recompute": ("#009E73", "^"),
    "mask": ("#CC79A7", "X"),
    "state_propagation": ("#E69F00", "v"),
    "mono_decreasing": ("#56B4E9", "P"),
}
OTHER_STYLE = ("#444444", "h")
GREY = "#555555"
BAND = "#dddddd"
DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.6)),
    (0, (1.2, 1.4)),
    (0, (6, 1.5, 1.2, 1.5)),
    (0, (2.6, 1.6)),
    (0, (6, 1.4, 1.2, 1.4, 1.2, 1.4)),
)
FILLS = ("full", "none", "left", "bottom", "right", "top")
EMPHASIZED = ("river", "river backbone")
SIZES = {"*": 1.5, "d": 1.2}
"""Markers that look smaller than others of their size."""


@dataclass(frozen=True)
class Look:
    """How a line is drawn; told apart by marker, filling and dashes where colour is lost."""

    color: str
    marker: str
    dash: Any
    fill: str
    width: float

    def markers(self, size: float) -> dict[str, Any]:
        """Arguments of matplotlib's Line2D for the markers, `size` points wide."""
        hollow = self.fill == "none"
        return {
            "marker": self.marker,
            "markersize": size * SIZES.get(self.marker, 1.0),
            "fillstyle": "full" if hollow else self.fill,
            "markerfacecolor": "white" if hollow else self.color,
            "markerfacecoloralt": "white",
            "markeredgecolor": self.color,
            "markeredgewidth": 1.0,
        }


def line_looks(families: Mapping[str, str]) -> dict[str, Look]:
    """A look for each line: colour and marker by method, filling and dashes by variant of it.

    Args:
        families: for each line the key of STYLES; shorter names are taken first.
    """
    looks = {}
    order = list(STYLES)
    counted: dict[str, int] = {}
    for line in sorted(families, key=lambda name: (len(name), name)):
        family = families[line]
        color, marker = STYLES.get(family, OTHER_STYLE)
        variant = counted.get(family, 0)
        counted[family] = variant + 1
        # River's own line is solid; its neighbours in the legend each have other dashes.
        start = order.index(family) - 1 if family in order else 0
        looks[line] = Look(
            color=color,
            marker=marker,
            dash=DASHES[(start + variant) % len(DASHES)],
            fill=FILLS[variant % len(FILLS)],
            width=2.2 if family in EMPHASIZED and not variant else 1.2,
        )
    return looks
