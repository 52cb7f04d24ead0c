"""Frames of text cells as LaTeX tables (booktabs)."""

from __future__ import annotations

from collections.abc import Collection

import pandas as pd

SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "_": r"\_",
    "%": r"\%",
    "&": r"\&",
    "#": r"\#",
    "$": r"\$",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "\n": " ",
}


def escape(text: str) -> str:
    """The text so that LaTeX prints it as it stands."""
    return "".join(SPECIAL.get(character, character) for character in text)


def to_latex(frame: pd.DataFrame, caption: str, label: str, names: Collection[str]) -> str:
    """A floating table as wide as the text.

    Args:
        frame: text cells.
        caption: plain text; it is escaped here.
        label: for references.
        names: columns that stand to the left; the others, figures, stand to the right.
    """
    columns = "".join("l" if name in names else "r" for name in frame.columns)
    rows = [" & ".join(_cell(text) for text in row) for row in frame.to_numpy().tolist()]
    return "\n".join(
        [
            r"\begin{table*}[t]",
            r"\centering",
            rf"\caption{{{escape(caption)}}}",
            rf"\label{{{label}}}",
            r"\resizebox{\textwidth}{!}{%",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            " & ".join(_cell(name) for name in frame.columns) + r" \\",
            r"\midrule",
            *(row + r" \\" for row in rows),
            r"\bottomrule",
            r"\end{tabular}%",
            "}",
            r"\end{table*}",
            "",
        ]
    )


def _cell(text: str) -> str:
    # A bracket behind a line break would be read as that command's argument.
    return f"{{{escape(text)}}}" if text.startswith(("[", "*")) else escape(text)
