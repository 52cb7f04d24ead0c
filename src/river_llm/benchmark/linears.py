"""How fast each linear of a stack reads its weights, one token at a time, alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import nn

from river_llm.engine.weights import Layers
from river_llm.models.adapter import BackboneAdapter
from river_llm.quant.linear import KernelLinear
from river_llm.timing import Timer

REPEATS = 9


@torch.no_grad()
def linear_rates(
    adapter: BackboneAdapter, stack: Layers, repeats: int = REPEATS
) -> dict[str, dict[str, Any]]:
    """GB/s of packed weights (scales and zeros with them) of each linear of a layer.

    One pass runs the linear of every layer in turn, so that a cache smaller than all of them
    together does not serve; on CUDA the pass is captured once and replayed, so that launching is
    not what is measured.

    Args:
        adapter: the backbone.
        stack: the backbone or a river, all of it in memory.
        repeats: passes that are timed, behind one that is not.

    Returns:
        By the linear's name inside a layer: `rows`, `columns`, `nbytes` of one layer's, `gb_per_s`
        (median).
    """
    layers = [dict(stack.acquire(layer, 1).named_modules()) for layer in range(adapter.num_layers)]
    found = {}
    for name, linear in adapter.linears(0).items():
        rows, columns = linear.weight.shape
        modules = [layer[name] for layer in layers]
        state = torch.ones(1, columns, dtype=adapter.dtype, device=adapter.device)
        once = partial(_each, modules, state)
        seconds = _median_seconds(once, adapter.device, repeats)
        size = sum(_nbytes(module) for module in modules)
        found[name] = {
            "rows": rows,
            "columns": columns,
            "nbytes": size // len(modules),
            "gb_per_s": size / seconds / 1e9,
        }
    return found


def _nbytes(module: nn.Module) -> int:
    if isinstance(module, KernelLinear):
        return module.nbytes
    weight = module.weight
    assert isinstance(weight, torch.Tensor)
    return weight.nbytes


def _each(modules: Sequence[nn.Module], state: torch.Tensor) -> None:
    for module in modules:
        module(state)


def _median_seconds(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    run = captured(work) if device.type == "cuda" else work
    run()
    timer = Timer(device)
    seconds = []
    for _ in range(repeats):
        with timer:
            run()
        seconds.append(timer.seconds)
    return median(seconds)


def captured(work: Callable[[], object]) -> Callable[[], None]:
    """A CUDA graph of `work`: calling it replays the same kernels on the same memory."""
    # First on a stream beside the default one, as PyTorch's notes on CUDA graphs ask for.
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        work()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay
