# SPDX-License-Identifier: Apache-2.0
"""Creates and runs all writers of status: for pods, gangs of each source, quotas and Devices. `--dry-run` has none."""

import asyncio
import contextlib
from collections.abc import Sequence

from koordpy.engine.engine_context import Context
from koordpy.engine.evictions.timed_rounds import StaleWatch
from koordpy.engine.status.device_status import DeviceStatusWriter
from koordpy.engine.status.gang_writer import GangWriter, NamedGangTeller
from koordpy.engine.status.group_writer import GroupStatusWriter
from koordpy.engine.status.pod_status import PodStatusWriter
from koordpy.engine.status.quota_status import QuotaStatusWriter
from koordpy.engine.status.repair_outcomes import RepairOutcomes
from koordpy.engine.status.upstream_status import UpstreamStatusWriter
from koordpy.engine.status.volcano_status import VolcanoStatusWriter
from koordpy.plan.round_plan import Eviction
from koordpy.pods.gang_refs import GangRef, GangSource


class Writers:
    """One writer per kind of object, and per source of gangs."""

    def __init__(self, context: Context, stale: StaleWatch) -> None:
        """stale: state of gangs that have lost members."""
        self.pods = PodStatusWriter(context)
        self.gangs: Sequence[GangWriter] = (
            GroupStatusWriter(context, stale),
            UpstreamStatusWriter(context, stale),
            NamedGangTeller(context, stale),
            NamedGangTeller(context, stale, GangSource.WORKLOAD),
            VolcanoStatusWriter(context),
        )
        self.repairs = RepairOutcomes(context, stale)
        self.quotas = QuotaStatusWriter(context)
        self.devices = DeviceStatusWriter(context)
        context.feeds.listeners.pod_gone.append(self.pods.gone)

    def take_over(self) -> None:
        """Called when this process becomes the leader, so that events of the last leader are not repeated."""
        for writer in self.gangs:
            writer.take_over()

    def evicted(self, ref: GangRef, victims: Sequence[Eviction]) -> None:
        """Called with the members of a gang that one plan has evicted."""
        for writer in self.gangs:
            writer.evicted(ref, victims)
        self.repairs.members_evicted(victims)

    async def run(self) -> None:
        """Writes until cancelled."""
        async with asyncio.TaskGroup() as group:
            for run in (self.pods.run, *(gangs.run for gangs in self.gangs), self.quotas.run, self.devices.run):
                group.create_task(run())

    async def drain(self, seconds: float) -> None:
        """Writes pending statuses of gangs, at most `seconds` per kind, because other programs depend on them."""
        for writer in self.gangs:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(writer.flush(), seconds)
