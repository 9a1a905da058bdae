"""Of pods that are gone nothing stays with those who had to do with them."""

import gc
import weakref
from typing import Any

from koordpy.cluster.pods import PodInfo
from tests.engine.live import in_virtual_time, live, small, until


@in_virtual_time
async def test_a_pod_that_was_bound_goes_with_its_deletion() -> None:
    async with live([small("n1")]) as cluster, cluster.running() as scheduler:
        known: list[weakref.ref[Any]] = []
        cluster.pod("short-lived")
        await until(lambda: scheduler.state.pod("default/short-lived") is not None)
        gc.collect()
        gc.disable()
        try:
            infos = [one for one in gc.get_objects() if isinstance(one, PodInfo) and one.name == "short-lived"]
            known += [weakref.ref(one.pod.metadata) for one in infos]
            del infos
            await until(lambda: cluster.bound("short-lived"))
            cluster.delete("short-lived")
            cluster.pod("q")  # the last plan of all is kept
            await until(lambda: cluster.bound("q"))
            assert known and not any(one() for one in known)
        finally:
            gc.enable()
