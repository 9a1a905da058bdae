# SPDX-License-Identifier: Apache-2.0
"""Reports the members that a gang has lost, for its status and for `koordpy simulate` (repair.md 4.5 and 7)."""

from koordpy.api.natural_order import natural_key
from koordpy.cache.lost_nodes import GONE
from koordpy.cache.snapshot import Snapshot
from koordpy.config.node_failures import Repair
from koordpy.gangs.broken_gangs import missing_members, missing_ranks, repair_policy, sick_holders
from koordpy.gangs.gang_reading import read_gang
from koordpy.gangs.gang_settings import Gang
from koordpy.plan.gang_repair import GangRepair, LostMember
from koordpy.pods.gang_refs import GangRef
from koordpy.preemption.search.stale_gangs import may_be_stale
from koordpy.preemption.selection.victim_units import terminating


def lost_members(gang: Gang, snapshot: Snapshot) -> tuple[LostMember, ...]:
    """Returns the members of a gang on lost nodes, in natural order."""
    out = []
    for pod in sorted(gang.lost, key=lambda pod: natural_key(pod.name)):
        lost = snapshot.lost_nodes.get(pod.node)
        loss = lost.loss_of(pod.pod) if lost is not None and pod.node in snapshot.index else GONE
        loss = loss or GONE
        out.append(LostMember(pod.key, pod.node, str(loss.cause), loss.text))
    return tuple(out)


def hurt_members(gang: Gang, snapshot: Snapshot) -> tuple[str, ...]:
    """Returns the keys of the live members that use an unhealthy device, in natural order."""
    sick = sick_holders(snapshot)
    found = (pod for pod in gang.bound if pod.key in sick) if sick else ()
    return tuple(pod.key for pod in sorted(found, key=lambda pod: natural_key(pod.name)))


def gang_repair(gang: Gang, snapshot: Snapshot, settings: Repair) -> GangRepair | None:
    """Returns the losses of a gang, without its seats. None if no member is missing, lost, or uses an unhealthy device.

    gang: as it is now, or as if the placements of a round were bound.
    """
    if not gang.bound and not gang.lost:
        return None
    missing, lost, hurt = missing_members(gang), lost_members(gang, snapshot), hurt_members(gang, snapshot)
    if not (missing or lost or hurt):
        return None
    return GangRepair(
        policy=repair_policy(gang, snapshot, settings),
        have=gang.present,
        min_member=gang.min_member,
        missing=missing,
        ranks=missing_ranks(gang, missing),
        lost=lost,
        hurt=hurt,
    )


def broken_gang(ref: GangRef, snapshot: Snapshot, settings: Repair) -> GangRepair | None:
    """Returns the losses of a gang of the snapshot; None if it is not broken.

    Also None if all live members are terminating, and for gangs of other schedulers.
    """
    names = snapshot.scheduler_names
    if not may_be_stale(ref, snapshot) or not any(
        pod.pod.spec.scheduler_name in names for pod in snapshot.members[ref]
    ):
        return None
    gang = read_gang(snapshot, ref)
    if not missing_members(gang) or all(map(terminating, gang.bound)):
        return None
    return gang_repair(gang, snapshot, settings)
