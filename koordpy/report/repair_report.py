# SPDX-License-Identifier: Apache-2.0
"""Reports what a gang has lost, for its status and for `koordpy simulate` (repair.md 4.5 and 7)."""

from koordpy.api.natural_order import natural_key
from koordpy.cache.lost_nodes import GONE
from koordpy.cache.snapshot import Snapshot
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.broken_gangs import missing_members, missing_ranks, repair_policy
from koordpy.gangs.gang_settings import Gang
from koordpy.plan.gang_repair import GangRepair, LostMember


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
    sick = frozenset[str]().union(*(view.sick_holders for view in snapshot.families.values()))
    found = (pod for pod in gang.bound if pod.key in sick) if sick else ()
    return tuple(pod.key for pod in sorted(found, key=lambda pod: natural_key(pod.name)))


def gang_repair(gang: Gang, round_state: RoundState) -> GangRepair | None:
    """Returns the losses of a gang after a round; None for a gang without any.

    gang: with the pods of the round's plan bound.
    """
    if not gang.bound and not gang.lost:
        return None
    snapshot = round_state.snapshot
    missing, lost, hurt = missing_members(gang), lost_members(gang, snapshot), hurt_members(gang, snapshot)
    if not (missing or lost or hurt):
        return None
    return GangRepair(
        policy=repair_policy(gang, snapshot, round_state.config.repair),
        have=gang.present,
        min_member=gang.min_member,
        missing=missing,
        ranks=missing_ranks(gang, missing),
        lost=lost,
        hurt=hurt,
    )
