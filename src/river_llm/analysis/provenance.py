"""What a picture's caption says of where its figures come from."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, SubFigure

from river_llm.analysis.figures import DPI
from river_llm.analysis.styles import GREY

COLUMNS_PER_INCH = 15.5  # of small text
LINE_HEIGHT = 0.165  # inches


def machine(environment: Mapping[str, Any]) -> str:
    """The machine of a record in a few words.

    Args:
        environment: as `river_llm.environment.snapshot` writes it.
    """
    if environment["device_name"] is not None:
        return str(environment["device_name"])
    processor = re.sub(r"\((R|TM)\)|\bCPU\b|@.*", "", str(environment["processor"] or "CPU"))
    name = " ".join(processor.split())
    threads = environment["threads"]
    return f"{name}, {threads} thread{'s' if threads != 1 else ''}"


def commits(marks: Iterable[str | None]) -> str:
    """`commit 0b29542`, with `+changes` where the checkout was not clean."""
    short = {
        "unknown" if mark is None else re.sub(r"^([0-9a-f]{7})[0-9a-f]+", r"\1", mark)
        for mark in marks
    }
    return f"commit{'s' if len(short) > 1 else ''} {', '.join(sorted(short))}"


def captioned(size: tuple[float, float], notes: Iterable[str]) -> tuple[Figure, SubFigure]:
    """A figure with a caption in small grey letters below.

    Args:
        size: width and height in inches, without the caption.
        notes: sentences.

    Returns:
        The figure, on an Agg canvas, and the part of it to draw in.
    """
    columns = int(size[0] * COLUMNS_PER_INCH)
    lines = [line for note in notes for line in textwrap.wrap(note, columns)]
    heights = (size[1], LINE_HEIGHT * (len(lines) + 1))
    fig = Figure(figsize=(size[0], sum(heights)), dpi=DPI, layout="constrained")
    FigureCanvasAgg(fig)
    upper, lower = fig.subfigures(2, 1, squeeze=False, height_ratios=heights).flat
    lower.text(0.012, 1, "\n".join(lines), va="top", fontsize=8, color=GREY, linespacing=1.3)
    return fig, upper
