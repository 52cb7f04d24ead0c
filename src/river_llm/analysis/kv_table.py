"""The figures of a record of KV similarity as text cells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from river_llm.analysis import cells
from river_llm.analysis.kv import FULL_QUANT, LAYER_ALONE, OTHER_TOKEN
from river_llm.analysis.points import Estimate, with_interval

WORDS = {
    LAYER_ALONE: "each river layer alone",
    FULL_QUANT: "full_quant",
    OTHER_TOKEN: "entries of two tokens",
}


def entry_frame(summary: Mapping[str, Any]) -> pd.DataFrame:
    """Cosine of each arm's entries and the backbone's: mean over layers, and the last layer.

    Args:
        summary: of the record, see docs/records.md.
    """
    rows = [
        [
            _name(arm),
            *(
                cells.fixed(value, 4)
                for key in ("key_cosine", "value_cosine")
                for value in (sum(arm[key]) / len(arm[key]), arm[key][-1])
            ),
        ]
        for arm in summary["entries"]
    ]
    columns = ["Arm", "Keys, mean", "Keys, last layer", "Values, mean", "Values, last layer"]
    return pd.DataFrame(rows, columns=columns)


def correlation_frame(summary: Mapping[str, Any]) -> pd.DataFrame:
    """Pearson's r of the tested block's similarity and the last layer's value cosine.

    Args:
        summary: of the record, see docs/records.md.
    """
    rows = [
        [
            f"river, exit depth {row['depth']}, prefill {row['prefill']}",
            str(row["block"]),
            cells.NOT_AVAILABLE
            if row["r"] is None
            else with_interval(Estimate(row["r"], row["low"], row["high"]), 2),
        ]
        for row in summary["early_last"]
    ]
    return pd.DataFrame(rows, columns=["Arm", "Tested layer", "r [95%]"])


def _name(arm: Mapping[str, Any]) -> str:
    if arm["arm"] in WORDS:
        return WORDS[arm["arm"]]
    return f"river, exit depth {arm['depth']}, prefill {arm['prefill']}"
