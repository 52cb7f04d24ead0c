"""Two runs on the same prompts: where their texts part, and which verdicts change."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from math import comb
from statistics import median
from typing import Any

from river_llm.analysis.cells import NOT_AVAILABLE, fixed, percent
from river_llm.errors import UserError

Record = Mapping[str, Any]

EXCERPT = 24
"""Characters of text that are kept on each side of a divergence."""

WIDTH = 100
INDENT = 14
END = "(end)"
WORDS = {True: "right", False: "wrong", None: "not graded"}


def compare(a: Iterable[Record], b: Iterable[Record]) -> dict[str, Any]:
    """Compare two runs sample by sample.

    A divergence is the first position at which both texts have a token and not the same one; a
    text that is the beginning of the other one (a smaller budget) does not diverge from it. The
    margins of run A at the divergences are set against its margins at all its other tokens
    (elsewhere), and at those among them that both runs chose alike, which leaves out what A went
    on with behind a divergence.

    Args:
        a: Sample records of run A: id, prompt_hash, token_ids, margins, completion and correct
            are read.
        b: Sample records of run B; its margins are not read.

    Returns:
        A dict that json.dumps(..., allow_nan=False) accepts; what cannot be computed is None.
        samples: one dict for each sample of both runs, in A's order: id, position (index into
        token_ids, None: no divergence), tokens (A's and B's there, or None), margin (A's there,
        in logits), lengths (tokens of A, of B), text (before, a, b around the first character
        that differs, or None), verdicts (A's, B's). Then only_in_a, only_in_b, never_diverge
        (share, samples, identical: those with the same length too), position (median), margins
        (at_divergence, alike and elsewhere with median and tokens; elsewhere_as_small: share of
        the last that are not above the first one's median) and verdicts (graded in both,
        right_to_wrong, wrong_to_right, mcnemar_p).

    Raises:
        UserError: No sample in both runs, or a sample with another prompt in B than in A.
    """
    of_a = {record["id"]: record for record in a}
    of_b = {record["id"]: record for record in b}
    pairs = [(record, of_b[key]) for key, record in of_a.items() if key in of_b]
    if not pairs:
        raise UserError(
            f"no sample is in both runs ({len(of_a)} and {len(of_b)} samples): "
            "compare runs of the same task"
        )
    for one, other in pairs:
        if one["prompt_hash"] != other["prompt_hash"]:
            raise UserError(
                f"sample {one['id']} has another prompt in B ({other['prompt_hash']}) than in A "
                f"({one['prompt_hash']}): compare runs with the same exp, model and exp.fewshot"
            )
    rows = [_row(one, other) for one, other in pairs]
    return {
        "samples": rows,
        "only_in_a": [key for key in of_a if key not in of_b],
        "only_in_b": [key for key in of_b if key not in of_a],
        **_divergences(rows, [one for one, _ in pairs]),
        "verdicts": _verdicts(rows),
    }


def first_divergence(a: Sequence[object], b: Sequence[object]) -> int | None:
    """The first position at which both have an item and not the same; None: there is none."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)


def mcnemar_exact(one_way: int, other_way: int) -> float:
    """Two-sided exact McNemar test: are changes one way as likely as changes the other way?

    Args:
        one_way: Pairs that changed from right to wrong.
        other_way: Pairs that changed from wrong to right.

    Returns:
        The p-value, twice the smaller tail of the binomial with probability 1/2, at most 1.

    Source: Q. McNemar, "Note on the sampling error of the difference between correlated
    proportions or percentages", Psychometrika 12 (1947), in its binomial form.
    """
    n = one_way + other_way
    ways = sum(comb(n, k) for k in range(min(one_way, other_way) + 1))
    # One division of whole numbers: 2.0**n would overflow on a large benchmark.
    return min(1.0, 2 * ways / (1 << n))


def _row(a: Record, b: Record) -> dict[str, Any]:
    tokens = a["token_ids"], b["token_ids"]
    place = first_divergence(*tokens)
    return {
        "id": a["id"],
        "position": place,
        "tokens": None if place is None else [ids[place] for ids in tokens],
        "margin": None if place is None else a["margins"][place],
        "lengths": [len(ids) for ids in tokens],
        "text": _excerpt(a["completion"], b["completion"]),
        "verdicts": [a["correct"], b["correct"]],
    }


def _excerpt(a: str, b: str) -> dict[str, str] | None:
    """What stands around the first character that differs; None: the texts are equal."""
    if a == b:
        return None
    place = first_divergence(a, b)
    if place is None:
        place = min(len(a), len(b))
    ends = slice(place, place + EXCERPT)
    return {"before": a[max(place - EXCERPT, 0) : place], "a": a[ends], "b": b[ends]}


def _divergences(rows: Sequence[Mapping[str, Any]], of_a: Sequence[Record]) -> dict[str, Any]:
    alike: list[float] = []
    elsewhere: list[float] = []
    for row, record in zip(rows, of_a, strict=True):
        place, own = row["position"], record["margins"]
        alike += own[: min(row["lengths"]) if place is None else place]
        elsewhere += own if place is None else [*own[:place], *own[place + 1 :]]
    parted = [row for row in rows if row["position"] is not None]
    margins = [row["margin"] for row in parted]
    middle = _median(margins)
    together = [row for row in rows if row["position"] is None]
    return {
        "never_diverge": {
            "share": len(together) / len(rows),
            "samples": len(together),
            "identical": sum(len(set(row["lengths"])) == 1 for row in together),
        },
        "position": {"median": _median([row["position"] for row in parted])},
        "margins": {
            "at_divergence": {"median": middle, "tokens": len(margins)},
            "alike": {"median": _median(alike), "tokens": len(alike)},
            "elsewhere": {"median": _median(elsewhere), "tokens": len(elsewhere)},
            "elsewhere_as_small": None
            if middle is None or not elsewhere
            else sum(margin <= middle for margin in elsewhere) / len(elsewhere),
        },
    }


def _verdicts(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    lost = [row["id"] for row in rows if row["verdicts"] == [True, False]]
    won = [row["id"] for row in rows if row["verdicts"] == [False, True]]
    graded = sum(None not in row["verdicts"] for row in rows)
    return {
        "graded": graded,
        "right_to_wrong": lost,
        "wrong_to_right": won,
        "mcnemar_p": mcnemar_exact(len(lost), len(won)) if graded else None,
    }


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def comparison_text(comparison: Mapping[str, Any]) -> str:
    """The comparison for a terminal: figures, then the samples that differ.

    Args:
        comparison: See :func:`compare`.
    """
    rows = comparison["samples"]
    never, margins = comparison["never_diverge"], comparison["margins"]
    verdicts, p = comparison["verdicts"], comparison["verdicts"]["mcnemar_p"]
    at, elsewhere = margins["at_divergence"], margins["elsewhere"]
    entries = {
        "samples": f"{len(rows)} in both runs; only in A: {_some(comparison['only_in_a'])}; "
        f"only in B: {_some(comparison['only_in_b'])}",
        "same text": f"{percent(never['share'])} % never diverge ({never['samples']} samples, "
        f"{never['samples'] - never['identical']} of them longer in one run)",
        "divergence": f"{at['tokens']} samples, median at token "
        f"{fixed(comparison['position']['median'], 1)} (first token: 0)",
        "A's margin": f"median {fixed(at['median'], 3)} where the texts part, "
        f"{fixed(elsewhere['median'], 3)} at A's other {elsewhere['tokens']} tokens "
        f"({percent(margins['elsewhere_as_small'])} % of them not above the first figure), "
        f"{fixed(margins['alike']['median'], 3)} at the {margins['alike']['tokens']} chosen alike",
        "verdicts": f"of {verdicts['graded']} graded in both runs: "
        f"{len(verdicts['right_to_wrong'])} right -> wrong, "
        f"{len(verdicts['wrong_to_right'])} wrong -> right, "
        f"McNemar exact p = {NOT_AVAILABLE if p is None else f'{p:.3g}'}",
        "right->wrong": ", ".join(verdicts["right_to_wrong"]) or "none",
        "wrong->right": ", ".join(verdicts["wrong_to_right"]) or "none",
    }
    lines = [
        textwrap.fill(
            text,
            WIDTH,
            initial_indent=name.ljust(INDENT),
            subsequent_indent=" " * INDENT,
            break_on_hyphens=False,
        )
        for name, text in entries.items()
    ]
    shown = [row for row in rows if row["position"] is not None or _changed(row)]
    return "\n".join([*lines, *_table(shown)])


def _table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line of figures for each sample, and under it the texts where they part."""
    if not rows:
        return []
    head = ["sample", "parts at", "tokens A, B", "A chose", "B chose", "A's margin", "verdict"]
    figures = [[row["id"], *_figures(row)] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *figures, strict=True)]
    lines = ["", _line(head, widths), "  ".join("-" * width for width in widths)]
    for row, cells in zip(rows, figures, strict=True):
        lines.append(_line(cells, widths))
        if row["text"] is not None:
            before, a, b = (row["text"][part].replace("\n", "\\n") for part in ("before", "a", "b"))
            lines += [f"    A: {before}|{a or END}", f"    B: {before}|{b or END}"]
    return lines


def _figures(row: Mapping[str, Any]) -> list[str]:
    place, (a, b) = row["position"], row["lengths"]
    chosen = ["-", "-"] if place is None else [str(token) for token in row["tokens"]]
    words = [WORDS[verdict] for verdict in row["verdicts"]]
    return [
        "never" if place is None else str(place),
        f"{a}, {b}",
        *chosen,
        fixed(row["margin"], 3, "-"),
        " -> ".join(words) if _changed(row) else words[0],
    ]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Sample and verdict to the left, figures to the right."""
    last = len(cells) - 1
    padded = [
        cell.ljust(width) if place in (0, last) else cell.rjust(width)
        for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(padded).rstrip()


def _changed(row: Mapping[str, Any]) -> bool:
    return bool(row["verdicts"][0] != row["verdicts"][1])


def _some(ids: Sequence[str]) -> str:
    """The number of ids and the first few."""
    if not ids:
        return "none"
    more = ", ..." if len(ids) > 5 else ""
    return f"{len(ids)} ({', '.join(ids[:5])}{more})"
