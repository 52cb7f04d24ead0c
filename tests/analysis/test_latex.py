"""LaTeX tables: what is escaped, and where a cell begins."""

from __future__ import annotations

import pandas as pd

from river_llm.analysis.latex import escape, to_latex


def test_special_characters_are_escaped_once() -> None:
    assert escape(r"a_b & 5 % {x} \n # $ ~ ^ < > |") == (
        r"a\_b \& 5 \% \{x\} \textbackslash{}n \# \$ \textasciitilde{} \textasciicircum{} "
        r"\textless{} \textgreater{} \textbar{}"
    )


def test_a_table_by_hand() -> None:
    frame = pd.DataFrame([{"Run": "a & b", "n %": "4"}, {"Run": "[c]", "n %": "5"}])
    assert to_latex(frame, "50 % of all.", "tab:x", ["Run"]).splitlines() == [
        r"\begin{table*}[t]",
        r"\centering",
        r"\caption{50 \% of all.}",
        r"\label{tab:x}",
        r"\resizebox{\textwidth}{!}{%",
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"Run & n \% \\",
        r"\midrule",
        r"a \& b & 4 \\",
        r"{[c]} & 5 \\",  # else the bracket would be the argument of the line break above
        r"\bottomrule",
        r"\end{tabular}%",
        "}",
        r"\end{table*}",
    ]
