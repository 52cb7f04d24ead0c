"""NaN in a sample's computation, told as the sample's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from river_llm.engine.executor import NumericsError
from river_llm.errors import UserError


@contextmanager
def named(sample_id: str, where: Callable[[], str]) -> Iterator[None]:
    """Names the sample in which a number was missing.

    Args:
        sample_id: the sample that is computed in the block.
        where: says, when it is asked, how far the computation came.

    Raises:
        UserError: the block raised a NumericsError.
    """
    try:
        yield
    except NumericsError as error:
        raise UserError(
            f"sample {sample_id}, {where()}: {error}; the finished samples are kept; check the "
            "weights, or try model.dtype=fp32"
        ) from error
