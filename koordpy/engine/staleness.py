# SPDX-License-Identifier: Apache-2.0
"""Detects stale plans: checks a unit's plan against changes of the cluster since the plan's snapshot.

A plan is made on a snapshot in another thread, so it may be outdated when it is carried out. On a Binding the API
server checks neither the capacity nor the existence of the node. Therefore a plan is checked before its pods are
assumed, and again before each Binding. Units of one round need no check against each other, because they were planned
on one draft.
Sources: kube-parity.md 4.4, 4.10.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import is_
from typing import TypeVar

from koordpy.api.pod_groups import PodGroup, UpstreamPodGroup
from koordpy.cache.cluster_state import ClusterState
from koordpy.cache.snapshot import PODS, NodeInfo, Snapshot
from koordpy.devices.family_registry import spans_nodes
from koordpy.engine.wakeups import changes_itself
from koordpy.plan.round_plan import Eviction, Placement, RoundPlan
from koordpy.pods.family_books import PlannedAllocation
from koordpy.pods.gang_refs import GangRef, GangSource
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.resource_amounts import Amounts, add_amounts
from koordpy.preemption.selection.preemption_names import RuleName

T = TypeVar("T")


def group_by(things: Iterable[T], by: Callable[[T], str]) -> dict[str, list[T]]:
    """Returns a dict from each value of `by` to the things with that value, in order."""
    out: dict[str, list[T]] = {}
    for one in things:
        out.setdefault(by(one), []).append(one)
    return out


def find_stale_reason(
    state: ClusterState,
    snapshot: Snapshot,
    placements: Sequence[Placement],
    foreign: Mapping[str, Sequence[PodInfo]],
    victims: Collection[str] = (),
    evictions: Sequence[Eviction] = (),
) -> str:
    """Returns why a unit's plan is stale, as a word for logs and metrics; empty if it is not stale.

    `pod`: a pod was deleted or changed. `node`: a node was removed, recreated, relabelled, tainted or reported broken.
    `room`: a node has too little capacity now. `neighbour`: another scheduler bound a pod to the node, and one of the
    pods has affinity or spread terms or host ports. `group`: settings of the gang changed. `topology`: the layers
    changed. Name of a device family: a planned device is not available any more. `victim`: a victim of the unit was
    deleted or changed.

    The nodes to which moved pods return are checked as those of the placements, but not their devices.

    foreign: node -> pods that other schedulers bound to it since the snapshot. victims: keys of pods that the plan
    evicts; their devices, and devices of terminating pods, count as free. evictions: of the unit.
    """
    # node -> number of placed and returning pods, sum of their requests, True if one has inter-pod rules or host ports
    need: dict[str, tuple[int, Amounts, bool]] = {}
    gangs: dict[GangRef, None] = {}
    for placement in placements:
        key = placement.pod_key
        now, then = state.pod(key), snapshot.pods[key]
        if now is None or now.uid != placement.uid or not now.pending:
            return "pod"
        if now is not then and changes_itself(then.pod, now.pod):
            return "pod"
        if now.gang is not None:
            gangs[now.gang] = None
        _add_need(need, placement.node, now)
    for eviction in evictions:
        if eviction.returns_to:
            _add_need(need, eviction.returns_to, snapshot.pods[eviction.pod_key])
    for name, (count, amounts, interacts) in need.items():
        node = state.nodes.get(name)
        planned = snapshot.nodes[snapshot.index[name]]
        if node is None or differs(state, node, planned):
            return "node"
        neighbours = foreign.get(name, ())
        # placements of this process need no check here: ordinary rounds follow one another, and for a search
        # `ConcurrentPlacements` has the check
        if neighbours or (node is not planned and node.allocatable != planned.allocatable):
            if not _fits(state, node, count, amounts):
                return "room"
            if any(interacts or _interacts(pod) for pod in neighbours):
                return "neighbour"
    new_pods = [pod for name in need for pod in foreign.get(name, ())]
    if lost := devices_lost(state, placements, victims, new_pods):
        return lost
    return _group_changed(state, snapshot, gangs, need) or ("" if _victims_unchanged(state, evictions) else "victim")


def _add_need(need: dict[str, tuple[int, Amounts, bool]], node: str, pod: PodInfo) -> None:
    """Adds a pod to what a plan needs on a node."""
    count, amounts, interacts = need.get(node) or (0, {}, False)
    add_amounts(amounts, pod.requests)
    need[node] = (count + 1, amounts, interacts or _interacts(pod))


def _victims_unchanged(state: ClusterState, victims: Iterable[Eviction]) -> bool:
    """Returns True if all victims are still running on their nodes and are not terminating."""
    for victim in victims:
        info = state.pod(victim.pod_key)
        if info is None or info.uid != victim.uid or info.node != victim.node or info.finished:
            return False
        if info.pod.metadata.deletion_timestamp:
            return False
    return True


def devices_lost(
    state: ClusterState,
    placements: Sequence[Placement],
    victims: Collection[str] = (),
    new_pods: Sequence[PodInfo] = (),
) -> str:
    """Returns the device family of a planned device that is not available any more; empty if all are available.

    A device is not available if another pod uses it, if it is unhealthy or removed, or if the node cannot deliver it to
    containers. For a plan with victims, a node that cannot deliver is ignored, because this is temporary while the
    node's agent is replaced.

    victims: keys of pods that the plan evicts. If there are any, their devices and the devices of terminating pods
    count as free. new_pods: pods that other schedulers bound to the nodes since the snapshot.
    """
    # device family -> allocations of the plan
    planned: dict[str, list[PlannedAllocation]] = {}
    for one in placements:
        pod = state.pod(one.pod_key)
        for family in pod.asks if pod is not None else ():
            assert pod is not None
            own = PlannedAllocation(pod, one.node, one.devices.get(family), one.annotations)
            planned.setdefault(family, []).append(own)

    ending = set(victims)
    if victims:
        ending.update(pod.key for node in {one.node for one in placements} for pod in state.leaving(node))
    # pods of other schedulers may use the same devices
    asking = [pod for pod in new_pods if pod.asks]
    for family, book in state.families.items():
        if family in planned or asking:
            own_plan = planned.get(family, [])
            if book.is_lost(own_plan, ending, new_pods=[pod for pod in asking if family in pod.asks]):
                return family
            if not victims and not book.is_delivered({one.node for one in own_plan}):
                return family
    return ""


class ConcurrentPlacements:
    """Placements and evictions of ordinary rounds that ran after the snapshot of a search was taken.

    The plan of the search was made without them, so each unit's part of the plan is checked against them (`touches`).
    """

    def __init__(self) -> None:
        self.placed: list[PodInfo] = []
        """Pods that these rounds bind."""
        self._gained: list[tuple[PodInfo, str, tuple[str, ...], str]] = []
        """Pods that were placed or nominated: (pod, node, its quotas from the root down, its user). The quotas may be
        newer than those in the snapshot of the search."""
        self._evicted = False
        """True if one of these rounds evicts a pod."""

    def add(self, plan: RoundPlan, snapshot: Snapshot) -> None:
        """Records the plan of an ordinary round."""
        self.placed += [snapshot.pods[one.pod_key] for one in plan.placements]
        quotas = snapshot.quotas
        at = [(one.pod_key, one.node) for one in plan.placements]
        for key, node in (*at, *((one.pod_key, one.node) for one in plan.awaiting_nominations)):
            pod = snapshot.pods[key]
            self._gained.append((pod, node, quotas.tree.path(quotas.quota_of(pod)), quotas.user_of(pod)))
        self._evicted |= bool(plan.evictions)

    def touches(self, snapshot: Snapshot, placements: Sequence[Placement], evictions: Sequence[Eviction]) -> bool:
        """Returns True if the recorded rounds may affect a unit's part of a search's plan.

        They may if a recorded pod
        - is on a node that the part uses,
        - is charged to the same quota as a pod of the part, or to the same user if the part evicts by fair share,
        - is a member of a gang with victims in the part,
        - has affinity or spread terms or host ports, or if a pod of the part has,
        - uses claims or devices across nodes, and a pod of the part does, too.

        Two plans with evictions always affect each other, because both may use up the same disruption budget or the
        same minimum of a quota. Quotas and users of victims are not compared: if they get further pods, the evictions
        are still right. placements, evictions: of the unit's part.
        """
        if self._evicted and evictions:
            return True
        if not self._gained:
            return False
        # nodes, pods, quotas, users and gangs of this part of the plan; `wide`: whether it has inter-pod rules, and
        # whether it uses resources across nodes
        quotas = snapshot.quotas
        nodes = {one.node for one in placements} | {one.returns_to for one in evictions}
        pods = [snapshot.pods[one.pod_key] for one in placements]
        gains = {name for pod in pods for name in quotas.tree.path(quotas.quota_of(pod))}
        fair = any(one.rule == RuleName.FAIR_SHARE for one in evictions)
        users = {quotas.user_of(pod) for pod in pods} if fair else set()
        leave = {snapshot.pods[one.pod_key].gang for one in evictions} - {None}
        wide = any(_interacts(pod) for pod in pods), any(_spans_nodes(pod) for pod in pods)
        return any(
            node in nodes
            or not gains.isdisjoint(path)
            or user in users
            or pod.gang in leave
            or wide[0]
            or _interacts(pod)
            or (wide[1] and _spans_nodes(pod))
            for pod, node, path, user in self._gained
        )


class PlanGround:
    """The nodes and devices of a plan with victims, as they were when its evictions began.

    Evictions take seconds. `lost` is called before each eviction, so that no pod is evicted for a plan that is not
    possible any more.
    """

    def __init__(
        self,
        state: ClusterState,
        placements: Sequence[Placement],
        victims: Collection[str],
        evictions: Sequence[Eviction] = (),
    ) -> None:
        """victims: keys of all pods that the plan evicts. evictions: of the unit; moved pods need their new nodes."""
        self._state, self._placements, self._victims = state, placements, victims
        names = {one.node for one in placements} | {one.returns_to for one in evictions if one.returns_to}
        self._nodes = {name: state.nodes.get(name) for name in names}
        self._seen: list[object] = []
        """Result of `ClusterState.ground` for which `_lost` was computed; empty before the first call of `lost`."""
        self._lost = ""

    def lost(self) -> str:
        """Returns what the plan has lost: `node`, or the name of a device family; empty if nothing.

        The result is cached until a node of the plan changes, or an object that its devices depend on.
        """
        state = self._state
        # a changed object is replaced by a new one, so comparing identities is enough
        seen = state.ground(self._nodes)
        if len(seen) != len(self._seen) or not all(map(is_, seen, self._seen)):
            self._seen = seen
            gone = any(differs(state, state.nodes.get(name), then) for name, then in self._nodes.items())
            self._lost = "node" if gone else devices_lost(state, self._placements, self._victims)
        return self._lost


def units_waiting_for_victims(plan: RoundPlan, snapshot: Snapshot) -> frozenset[str]:
    """Returns units with placements that may depend on victims of other units in the same plan.

    On the planner's draft the victims of earlier units are removed, but in the cluster they are still terminating. So a
    unit waits for a later round if it was planned after an eviction on its node or in its quota. A unit that was
    planned before the eviction does not depend on it, and is bound now.
    """
    if not plan.evictions:
        return frozenset()
    quotas = snapshot.quotas
    # A turn is the position of a unit in the order of planning. For each node and quota: the first turn that evicts.
    turns = {unit.unit: turn for turn, unit in enumerate(plan.units)}
    nodes: dict[str, int] = {}
    freed: dict[str, int] = {}
    for eviction in plan.evictions:
        # quotas above runtime evict before the first unit is tried, stale gangs are evicted after the last one
        otherwise = len(turns) if eviction.rule == RuleName.STALE_GANG else -1
        turn = turns.get(eviction.unit, otherwise)
        quota = quotas.quota_of(snapshot.pods[eviction.pod_key])
        nodes[eviction.node] = min(turn, nodes.get(eviction.node, turn))
        for name in quotas.tree.path(quota) if quota else ():
            freed[name] = min(turn, freed.get(name, turn))
    evicting = {eviction.unit for eviction in plan.evictions}
    out: set[str] = set()
    for placement in plan.placements:
        if placement.unit in evicting or placement.unit in out:
            continue
        pod = snapshot.pods[placement.pod_key]
        quota = quotas.quota_of(pod)
        turn = turns.get(placement.unit, len(turns))
        path = quotas.tree.path(quota) if quota else ()
        first = min((freed[name] for name in path if name in freed), default=turn)
        # units with inter-pod rules may have been tried again at the end of the round
        if min(first, nodes.get(placement.node, turn)) < turn or _interacts(pod):
            out.add(placement.unit)
    return frozenset(out)


def is_overcommitted(state: ClusterState, node: NodeInfo, resources: Iterable[str]) -> bool:
    """Returns True if a node has more pods than allowed, or if its pods request more of one of these resources than is
    allocatable. Assumed pods count. Other resources are not checked, as on the kubelet (kube-parity.md 2.5)."""
    return not _fits(state, node, 0, dict.fromkeys(resources, 0))


def lacks_capacity_of(now: NodeInfo, then: NodeInfo, resources: Iterable[str]) -> bool:
    """Returns True if a node allows fewer pods than before, or if less of one of these resources is allocatable."""
    return any(now.allocatable.get(name, 0) < then.allocatable.get(name, 0) for name in (PODS, *resources))


def _fits(state: ClusterState, node: NodeInfo, count: int, amounts: Amounts) -> bool:
    """Returns True if a node has capacity for further pods. count: number of pods; amounts: sum of their requests."""
    pods, used = state.usage.usage_of(node.name)
    if pods + count > node.allocatable.get(PODS, 0):
        return False
    return all(used.get(name, 0) + more <= node.allocatable.get(name, 0) for name, more in amounts.items())


def is_replaced(now: NodeInfo | None, then: NodeInfo | None) -> bool:
    """Returns True if a node was removed or recreated under its name. now, then: None if the node does not exist."""
    if now is None or then is None:
        return True
    return now.node.metadata.uid != then.node.metadata.uid


def differs(state: ClusterState, now: NodeInfo | None, then: NodeInfo | None) -> bool:
    """Returns True if a node was removed or recreated, or if its labels, taints, declared features or reports of a loss
    (`repair.lostConditions`) changed. now, then: None if the node does not exist."""
    if now is then:
        return now is None
    if now is None or then is None or is_replaced(now, then):
        return True
    if now.labels != then.labels or now.taints != then.taints:
        return True
    if now.node.status.declared_features != then.node.status.declared_features:
        return True
    return state.nodes.reported_losses(now) != state.nodes.reported_losses(then)


def _interacts(pod: PodInfo) -> bool:
    """Returns True if a pod has host ports, affinity or spread terms, so that other pods affect where it fits."""
    if pod.pod.spec.topology_spread_constraints:
        return True
    return bool(pod.ties.ports or pod.ties.terms)


def _spans_nodes(pod: PodInfo) -> bool:
    """Returns True if a pod uses resources that are not local to one node: claims, or devices of a family with
    placement rules across nodes."""
    spec = pod.pod.spec
    claims = any(one.persistent_volume_claim or one.ephemeral is not None for one in spec.volumes)
    return bool(claims or spec.resource_claims or (pod.asks and spans_nodes(pod)))


def _group_changed(state: ClusterState, snapshot: Snapshot, gangs: Iterable[GangRef], nodes: Iterable[str]) -> str:
    """Returns `group` if the PodGroup of a gang changed, `topology` if the layers of these nodes changed; else
    empty."""
    for ref in gangs:
        now: PodGroup | UpstreamPodGroup | None = None
        then: PodGroup | UpstreamPodGroup | None = None
        if ref.source is GangSource.UPSTREAM:
            now, then = state.gangs.upstream.get(ref.key), snapshot.upstream_groups.get(ref.key)
        elif ref.source is GangSource.GROUP:
            now, then = state.gangs.groups.get(ref.key), snapshot.pod_groups.get(ref.key)
        if now is not then and _spec_and_annotations(now) != _spec_and_annotations(then):
            return "group"
    # Without a ClusterNetworkTopology, `nodes.layers` is current only after the tree was built from the HyperNodes.
    if gangs and not (state.nodes.layers if state.nodes.topology is not None else state.nodes.tree.layers).agree(
        snapshot.tree.layers, nodes
    ):
        return "topology"
    return ""


def _spec_and_annotations(group: PodGroup | UpstreamPodGroup | None) -> object:
    return group and (group.spec, group.metadata.annotations)
