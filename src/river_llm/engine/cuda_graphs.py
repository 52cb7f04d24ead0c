"""CUDA graphs: the regions of a narrow pass, each launched as one.

Written after PyTorch's notes on CUDA graphs. Branching on the device (conditional graph nodes) is
left out, since not every supported PyTorch has it: each exit test is one small read of the host.
"""

from __future__ import annotations

import torch

from river_llm.cache import SlotCache
from river_llm.engine.executor import EngineUnavailable
from river_llm.engine.halves import HalvesExecutor
from river_llm.engine.regions import Body, RegionExecutor
from river_llm.engine.weights import Layers
from river_llm.exits import Criterion
from river_llm.models.adapter import BackboneAdapter
from river_llm.models.head import Head

_WARM_UPS = 2
"""Runs before a capture: libraries allocate and choose their kernels at the first."""


class GraphExecutor(RegionExecutor):
    """Regions captured as CUDA graphs; see :class:`river_llm.engine.regions.RegionExecutor`.

    Raises:
        EngineUnavailable: no CUDA device, or a backbone whose layers come and go.
    """

    name = "cuda_graphs"

    def __init__(
        self,
        adapter: BackboneAdapter,
        cache: SlotCache,
        criterion: Criterion,
        backbone: Layers,
        river: Layers | None,
        head: Head,
    ) -> None:
        if adapter.device.type != "cuda":
            raise EngineUnavailable(f"CUDA graphs run on a CUDA device, not on {adapter.device}")
        super().__init__(adapter, cache, criterion, backbone, river, head)
        self._stream = torch.cuda.Stream(self.device)
        # One pool: what a region allocates is used by none that runs after it.
        self._pool_handle = torch.cuda.graph_pool_handle()

    def _capture(self, body: Body) -> Body:
        """See :meth:`river_llm.engine.regions.RegionExecutor._capture`.

        Raises:
            EngineUnavailable: something in the region cannot be captured.
        """
        graph = torch.cuda.CUDAGraph()
        try:
            current = torch.cuda.current_stream(self.device)
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                for _ in range(_WARM_UPS):
                    body()
            current.wait_stream(self._stream)
            # A capture is made on the current device, whatever the stream's is.
            with (
                torch.cuda.device(self.device),
                torch.cuda.graph(graph, pool=self._pool_handle, stream=self._stream),
            ):
                body()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise EngineUnavailable(f"a region cannot be captured: {reason}") from error
        return graph.replay


class CudaGraphsExecutor(HalvesExecutor):
    """Narrow passes as CUDA graphs, wide ones one operator after another."""

    name = "cuda_graphs"
    narrow_kind = GraphExecutor
