"""Waiting for pods that are leaving already: a unit that fits once they are gone has nobody evicted.

Source: preemption.md 1 (step 2) and 4. A pod's room counts as coming free until 120 s after its
deletionTimestamp; later it is stuck. A unit whose nominated node still holds pods that end for it waits likewise.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from koordpy.api.counted import counted, named
from koordpy.api.natural import natural_key
from koordpy.cluster.pods import PodInfo
from koordpy.cluster.snapshot import Snapshot
from koordpy.planning.accelerators.base import NOTHING
from koordpy.planning.accelerators.registry import give
from koordpy.planning.build import build
from koordpy.planning.figures import Figures
from koordpy.planning.filters.base import Code
from koordpy.planning.jobs.ascend.place import has_own_order, place_npus
from koordpy.planning.joint import place_jointly
from koordpy.planning.nominated_capacity import coming_free
from koordpy.planning.units import Unit
from koordpy.planning.verify.plan import check_plan

_LISTED = 3


@dataclass(frozen=True, slots=True)
class Awaited:
    """Where a unit will stand: pod key -> node, and the pods that it waits for."""

    nodes: Mapping[str, int]
    names: frozenset[str]
    """Names of these nodes."""
    pods: tuple[PodInfo, ...]

    @property
    def what(self) -> str:
        """The pods that it waits for, and where they are."""
        return f"{counted(len(self.pods), 'terminating pod')} on {_listed({pod.node for pod in self.pods})}"

    @property
    def text(self) -> str:
        """For the message of a plain pod."""
        return f"waiting for {self.what}."

    @property
    def stable_text(self) -> str:
        """For the message of every member of a gang: the same for as long as it waits, however many are left."""
        return f"waiting for terminating pods: its room on {_listed(self.names)} is kept."


def _listed(nodes: Iterable[str]) -> str:
    return named(sorted(nodes, key=natural_key), _LISTED)


def await_ending(unit: Unit, figures: Figures) -> Awaited | None:
    """Where a unit fits, on nodes and in its quotas, once the ending pods are gone; None where it does not. In the room
    that was made for it, where it fits there: nobody else is to have that meanwhile.

    The draft is left as it was.
    """
    draft, snapshot = figures.draft, figures.snapshot
    ending = [pod for pod in figures.promises.ending if pod.key not in draft.evicted]
    if not ending:
        return None
    admission, quotas = figures.admission, snapshot.quotas
    refused = admission.core_refusal(unit, draft.quotas) is not None
    nodes: dict[str, int] = {}
    with draft.trial(without=ending):
        if refused and admission.core_refusal(unit, draft.quotas) is not None:
            return None
        if nodes := _as_nominated(unit, figures):
            pass
        elif has_own_order(unit, figures):
            own = place_npus(unit, figures)
            nodes = dict(own.nodes) if own is not None and not own.evicted else {}
        else:
            found = place_jointly(unit, build(unit, figures), figures)
            nodes = {unit.members[rank].key: node for rank, node in sorted(found.nodes.items())}
    if not nodes:
        return None
    used = {snapshot.nodes[node].name for node in nodes.values()}
    tops = {quotas.tree.path(quotas.quota_of(pod))[:1] for pod in unit.pending} if refused else set()
    there = [pod for pod in ending if pod.node in used or quotas.tree.path(quotas.quota_of(pod))[:1] in tops]
    return Awaited(nodes, frozenset(used), tuple(there or ending))


def _as_nominated(unit: Unit, figures: Figures) -> dict[str, int]:
    """Pod key -> node of the members that room is kept for, where all of them can start in it on the draft, beside the
    others that room is kept for, and their unit needs no more of them; else nothing."""
    draft, pods, names, kept = figures.draft, figures.snapshot.pods, figures.snapshot.nodes, figures.promises.kept
    nominated = [pod.key for pod in unit.pending if pod.nominated_node]
    nodes = {key: kept[key] for key in nominated if key in kept}
    if not nodes or len(nodes) < len(nominated):
        return {}
    own = {pod.key for pod in unit.members}
    with draft.trial():
        for key, node in kept.items():
            if key not in own and key not in draft.placed:
                draft.assign(pods[key], node)
        if any(not figures.of(pods[key]).slots[node] for key, node in nodes.items()):
            return {}
        given = give(nodes, figures) if any(pods[key].extended for key in nodes) else NOTHING
        named = {key: names[node].name for key, node in nodes.items()}
        return {} if given.faults or check_plan(unit, named, figures, given.chips, given.notes) else nodes


def waits_on_nominated(pod: PodInfo, figures: Figures) -> bool:
    """Whether the node a pod is nominated to still holds victims that are ending: less important pods, or others'."""
    name = pod.nominated_node
    if not name or name not in figures.snapshot.index:
        return False
    refusal = figures.of(pod).verdict().of(figures.snapshot.index[name])
    if refusal is not None and refusal.code is Code.UNRESOLVABLE:
        return False
    snapshot = figures.snapshot
    return any(
        coming_free(other, snapshot.now) and (other.priority < pod.priority or _others(other, pod, snapshot))
        for other in snapshot.pods_on.get(name, ())
    )


def crowds_siblings(unit: Unit, nodes: Mapping[str, int], figures: Figures) -> bool:
    """Whether some members (pod key -> node) would start elsewhere than where they are nominated, while pods end there
    for them and others of their unit go without: that room would be nobody's when it comes. Likewise where those that
    are left would be too few to start by themselves (only-waiting)."""
    names, pods = figures.snapshot.nodes, figures.snapshot.pods
    left = [pod for pod in unit.pending if pod.key not in nodes]
    return (
        any(pod.nominated_node for pod in left)
        and any(waits_on_nominated(pod, figures) for pod in unit.pending)
        and (
            any(pods[key].nominated_node != names[node].name for key, node in nodes.items())
            or any(
                gang.match_policy == "only-waiting" and 0 < sum(p.gang == gang.ref for p in left) < unit.need(gang)
                for gang in unit.gangs
            )
        )
    )


def _others(victim: PodInfo, pod: PodInfo, snapshot: Snapshot) -> bool:
    """Whether a pod may be taken from for another without a look at priorities: its user or its quota is another."""
    quotas = snapshot.quotas
    return quotas.user_of(victim) != quotas.user_of(pod) or quotas.quota_of(victim) != quotas.quota_of(pod)
