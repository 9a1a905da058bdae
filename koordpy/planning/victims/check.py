"""An independent check of the victims of a plan: who may be evicted at all, what is left of their gangs, and the rules.

Pod by pod over the objects, sharing no arithmetic with the search. The placement is checked by `planning.verify` on a
draft without the victims. A plan that fails is a bug and is not carried out.
"""

from collections.abc import Mapping, Sequence

from koordpy.cluster.pods import GangRef, PodInfo
from koordpy.cluster.snapshot import Draft
from koordpy.planning.units import Groups, Unit
from koordpy.planning.victims.units import untouchable


def check_victims(
    unit: Unit, victims: Sequence[tuple[PodInfo, str]], nodes: Mapping[str, int], *, groups: Groups, draft: Draft
) -> list[str]:
    """Faults of evicting pods, each under a rule, for members of a unit. The draft has the victims out already."""
    faults: list[str] = []
    if not nodes:
        faults.append("somebody is evicted for nobody")
    own = {gang.ref for gang in unit.gangs}
    priority = min((draft.snapshot.pods[key].priority for key in nodes), default=0)
    gangs: dict[GangRef, None] = {}
    for pod, rule in victims:
        if not pod.bound or untouchable(pod):
            faults.append(f"{pod.key} must not be evicted")
        if pod.key in draft.placed:
            faults.append(f"{pod.key} is bound in this round")
        if pod.gang is not None:
            gangs[pod.gang] = None
            if pod.gang in own:
                faults.append(f"{pod.key} is a member of the gang that it is evicted for")
        if rule == "priority" and pod.priority >= priority:
            faults.append(f"{pod.key} has priority {pod.priority}, not below {priority}")
    for ref in gangs:
        for gang in groups.unit(ref).gangs:
            bound = [pod for pod in gang.bound if pod.pod.metadata.deletion_timestamp is None]
            left = [pod for pod in bound if pod.key not in draft.evicted]
            whole = len(bound) + gang.succeeded >= gang.min_member
            if left and gang.one_victim and len(left) < len(bound):
                faults.append(f"gang {gang.key} is to be disrupted as one and keeps {len(left)}")
            if left and whole and len(left) < len(bound) and len(left) < gang.min_member:
                faults.append(f"gang {gang.key} keeps {len(left)} of minMember {gang.min_member}")
    return faults
