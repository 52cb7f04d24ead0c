"""The regions of a narrow pass, traced once and replayed without arguments, on any device.

What CUDA graphs need, checked where there is no GPU: a value that a region takes from the host is
baked into its trace, and the next step, for which it is another, comes out wrong.
"""

from __future__ import annotations

from unittest import mock

from torch.fx.experimental import proxy_tensor

from river_llm.engine.halves import HalvesExecutor
from river_llm.engine.regions import Body, RegionExecutor


class TracedRegions(RegionExecutor):
    """Buckets are small, so that short texts fill, leave and outgrow them."""

    name = "traced"
    token_buckets = (1, 4, 12)
    first_extent = 16

    def _capture(self, body: Body) -> Body:
        # Without descriptions of the values, which take most of the time.
        with mock.patch.object(proxy_tensor, "set_meta", lambda proxy, _: proxy):
            # make_fx takes no function of no arguments that is a bound method or partial.
            traced = proxy_tensor.make_fx(lambda: body())()
        return lambda: traced()


class TracedExecutor(HalvesExecutor):
    """Narrow passes replayed from traces, wide ones eagerly."""

    name = "traced"
    narrow_kind = TracedRegions
