"""All that the scheduler writes besides Bindings and evictions: the statuses of pods, gangs, quotas and Devices."""

import asyncio
import contextlib
from collections.abc import Sequence

from koordpy.cluster.pods import GangRef, GangSource
from koordpy.engine.context import Context
from koordpy.engine.evictions.watches import StaleWatch
from koordpy.engine.status.devices import DeviceStatusWriter
from koordpy.engine.status.gangwriter import GangWriter, NamedGangTeller
from koordpy.engine.status.groups import GroupStatusWriter
from koordpy.engine.status.pods import PodStatusWriter
from koordpy.engine.status.quotas import QuotaStatusWriter
from koordpy.engine.status.upstream import UpstreamStatusWriter
from koordpy.engine.status.volcano import VolcanoStatusWriter
from koordpy.planning.plan import Eviction


class Writers:
    """One writer a kind. A dry run has none."""

    def __init__(self, context: Context, stale: StaleWatch) -> None:
        self.pods = PodStatusWriter(context)
        self.gangs: Sequence[GangWriter] = (
            GroupStatusWriter(context, stale),
            UpstreamStatusWriter(context),
            NamedGangTeller(context),
            NamedGangTeller(context, GangSource.WORKLOAD),
            VolcanoStatusWriter(context),
        )
        self.quotas = QuotaStatusWriter(context)
        self.devices = DeviceStatusWriter(context)
        context.feeds.listeners.pod_gone.append(self.pods.gone)

    def take_over(self) -> None:
        """This process leads from now on."""
        for writer in self.gangs:
            writer.take_over()

    def evicted(self, ref: GangRef, victims: Sequence[Eviction]) -> None:
        """These members of a gang are being evicted by koordpy."""
        for writer in self.gangs:
            writer.evicted(ref, victims)

    async def run(self) -> None:
        """Writes until cancelled."""
        async with asyncio.TaskGroup() as group:
            for run in (self.pods.run, *(gangs.run for gangs in self.gangs), self.quotas.run, self.devices.run):
                group.create_task(run())

    async def drain(self, seconds: float) -> None:
        """Writes what is known of gangs, at most so long for each kind: others read there whether a job runs."""
        for writer in self.gangs:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(writer.flush(), seconds)
