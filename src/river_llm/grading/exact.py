"""Exact answers: the last line of a completion is the gold answer, letter by letter."""


def extract_answer(completion: str, finish_reason: str = "stop") -> str | None:
    """The last line that is not blank; None without one.

    Args:
        completion: Generated text, without the prompt.
        finish_reason: ``"eos"``, ``"stop"`` or ``"length"``. With ``"length"`` (the token limit
            cut the text) there is no last line.
    """
    lines = [line.strip() for line in completion.splitlines() if line.strip()]
    return lines[-1] if lines and finish_reason != "length" else None


def answers_equal(a: str | None, b: str | None) -> bool:
    """Whether two answers are the same text, blanks at the ends and their number aside."""
    return a is not None and b is not None and a.split() == b.split() != []
