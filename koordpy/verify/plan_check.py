# SPDX-License-Identifier: Apache-2.0
"""Checks the placements of a unit before they are added to the round's draft.

It checks capacity, quotas, filters, devices, and the constraints of gangs, in plain Python over objects, names and
labels. A plan with a fault is not carried out: the unit stays pending with the reason SchedulerError.
`preemption_check.py` checks victims.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from koordpy.api import keys
from koordpy.api.counted_nouns import count_noun
from koordpy.api.label_selectors import term_matches
from koordpy.cache.plan_draft import Draft
from koordpy.cache.snapshot import UNSCHEDULABLE_TAINT, NodeInfo, Snapshot
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.devices.family_registry import faults_of_devices, uses_reserved_devices
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.gathered_parts import parts_of
from koordpy.gangs.queue_units import Unit
from koordpy.plugins import node_filters as node_filters
from koordpy.plugins.spare_nodes import spare_names
from koordpy.pods.claim_refs import CLAIMS
from koordpy.pods.family_books import AllocatedDevices
from koordpy.pods.pod_info import PodInfo, stays
from koordpy.pods.tolerations import tolerated
from koordpy.rejections.closed_nodes import NOTHING_CLOSED
from koordpy.topology.topology_tree import domain_parts
from koordpy.verify.claim_check import faults_of_claims
from koordpy.verify.plan_fault import Check, PlanFault, check_of
from koordpy.verify.quota_check import check_quotas
from koordpy.verify.tie_check import check_ties


def found(check: Check, texts: Iterable[str]) -> list[PlanFault]:
    """Returns faults with the given texts. check: the check that has found them."""
    return [PlanFault(text, check) for text in texts]


def check_plan(
    unit: Unit,
    nodes: Mapping[str, str],
    round_state: RoundState,
    devices: Mapping[str, AllocatedDevices] | None = None,
    notes: Mapping[str, Mapping[str, str]] | None = None,
    *,
    whole: bool = False,
) -> list[PlanFault]:
    """Returns the faults of a plan; empty for a valid plan.

    nodes: pod key -> node name of each member that the plan places. round_state: its draft must not contain the plan
    yet. devices: pod key -> devices of each family that are allocated by name. notes: pod key -> annotations of its
    Binding. whole: True to check also a single pod against all pods of the cluster, as plans of several pods always
    are.
    """
    pods = {pod.key: pod for pod in unit.members}
    unknown = [
        f"{key} is not a pending member of the unit" for key in nodes if key not in pods or not pods[key].pending
    ]
    index = round_state.snapshot.index
    unknown += [f"{key}: node {node} does not exist" for key, node in nodes.items() if node not in index]
    if unknown:
        return found(Check.MEMBERS, unknown)
    placed = [(pods[key], node) for key, node in nodes.items()]
    faults = found(Check.CAPACITY, _capacity_faults(placed, round_state))
    if round_state.snapshot.quotas.tree.quotas:
        faults += found(Check.QUOTAS, check_quotas([pod for pod, _ in placed], round_state, devices))
    faults += check_filters(placed, round_state, whole=whole)
    if devices or any(pod.asks for pod, _ in placed):
        seats = [(pod, index[node]) for pod, node in placed]
        found_faults = faults_of_devices(seats, devices or {}, notes or {}, round_state)
        faults += [PlanFault(text, check_of(name)) for name, text in found_faults]
    if unit.plain is None:
        faults += found(Check.GANG, _minimum_faults(unit, nodes))
        faults += found(Check.GANG, check_gathered(unit, nodes, round_state))
    return faults


def check_filters(
    placed: Sequence[tuple[PodInfo, str]], round_state: RoundState, *, whole: bool = False
) -> list[PlanFault]:
    """Returns the faults by filters that read only the node, and by constraints between pods. Arguments as in
    `check_ties`."""
    faults = found(Check.NODES, _node_faults(placed, round_state))
    whole = whole or len(placed) > 1
    if whole or any(pod.ties or pod.pod.spec.topology_spread_constraints for pod, _ in placed):
        faults += found(Check.TIES, check_ties(placed, round_state.draft, whole=whole))
    return faults


def check_returns(placed: Sequence[tuple[PodInfo, str]], round_state: RoundState) -> list[PlanFault]:
    """Returns the faults of moved pods on their new nodes.

    placed: (the pod as it will be created again, node name). In the draft, the moved pods must be evicted and the
    preemptor placed.
    """
    faults = [
        *_capacity_faults(placed, round_state),
        *_reservation_faults(placed, round_state),
        *check_quotas([pod for pod, _ in placed], round_state),
    ]
    return found(Check.RETURNS, [*faults, *check_filters(placed, round_state)])


def check_claims(placed: Iterable[PodInfo], draft: Draft) -> list[PlanFault]:
    """Returns the faults of the volumes and devices that are allocated to the claims of pods on the draft."""
    devices = CLAIMS in draft.ledgers
    claiming = [
        pod
        for pod in placed
        if pod.pod.spec.volumes or (devices and CLAIMS in pod.asks) or pod.pod.spec.resource_claims
    ]
    return found(Check.CLAIMS, faults_of_claims(claiming, draft)) if claiming else []


def _capacity_faults(placed: Sequence[tuple[PodInfo, str]], round_state: RoundState) -> list[str]:
    """Returns the faults of nodes that lack capacity for the placed pods."""
    draft: Draft = round_state.draft
    index, columns = round_state.snapshot.index, round_state.snapshot.columns
    asked: dict[str, dict[str, int]] = {}
    for pod, node in placed:
        request = asked.setdefault(node, {"pods": 0})
        for resource, amount in pod.requests.items():
            request[resource] = request.get(resource, 0) + amount
        request["pods"] += 1
    faults = []
    for node, request in asked.items():
        allocatable = dict(round_state.snapshot.nodes[index[node]].allocatable)
        for resource, amount in request.items():
            if amount <= 0 or round_state.ignored(resource):
                continue
            used = int(draft.used[index[node], columns[resource]])
            if used + amount > allocatable.get(resource, 0):
                faults.append(f"node {node}: {resource} {used} + {amount} > {allocatable.get(resource, 0)}")
    return faults


def _reservation_faults(placed: Sequence[tuple[PodInfo, str]], round_state: RoundState) -> list[str]:
    """Returns the faults of moved pods that use capacity which is reserved for pods nominated to their node.

    The requests of a moved pod are added to those of the moved pods on its node with the same or a lower priority.
    """
    draft: Draft = round_state.draft
    index, columns = round_state.snapshot.index, round_state.snapshot.columns
    faults = []
    for pod, node in placed:
        kept = round_state.available_to(pod)
        row = kept.positions.tolist().index(index[node]) if kept is not None and index[node] in kept.pods else -1
        if kept is None or row < 0:
            continue
        coming = [one for one, at in placed if at == node and one.priority <= pod.priority]
        allocatable = dict(round_state.snapshot.nodes[index[node]].allocatable)
        promised = kept.requests(row, columns)
        for resource, held in promised.items():
            asked = sum(one.requests.get(resource, 0) for one in coming)
            used = int(draft.used[index[node], columns[resource]])
            if pod.requests.get(resource) and used + held + asked > allocatable.get(resource, 0):
                faults.append(f"{pod.key}: {held} {resource} of node {node} are reserved for other pods")
        seats = [(one, index[node]) for one in coming]
        devices = uses_reserved_devices(seats, {index[node]: promised}, round_state.inputs)
        if devices:
            faults.append(f"{pod.key}: {devices} of node {node} are reserved for other pods")
    return faults


def _node_faults(placed: Sequence[tuple[PodInfo, str]], round_state: RoundState) -> list[str]:
    """Returns the faults by taints, node selector and node affinity. Pods of one shape are checked once per node."""
    faults = []
    keeps = round_state.snapshot.keeps_spares and not round_state.inputs.opens_spares
    spares = frozenset(spare_names(round_state.snapshot) if keeps else ())
    seen: set[tuple[bytes, str]] = set()
    closed = round_state.snapshot.closed_nodes
    for pod, name in placed:
        if closed is not NOTHING_CLOSED and closed.takes_no(pod.pod, pod.requests, name):
            faults.append(f"{pod.key}: node {name} rejected such pods lately")
        if (pod.shape, name) in seen:
            continue
        seen.add((pod.shape, name))
        lost = round_state.snapshot.lost_nodes.get(name)
        if lost is not None and lost.condition:
            faults.append(f"{pod.key}: node {name} has condition {lost.condition}")
        if name in spares and not _may_use_spares(pod, round_state):
            faults.append(f"{pod.key}: node {name} is a spare")
        faults += _refusals(pod, round_state.snapshot.nodes[round_state.snapshot.index[name]])
    return faults


def _may_use_spares(pod: PodInfo, round_state: RoundState) -> bool:
    """Returns True for a pod of a DaemonSet, a mirror pod, a system priority, or a member of a broken gang."""
    return stays(pod) or pod.priority >= keys.SYSTEM_PRIORITY_FLOOR or round_state.inputs.repairs(pod)


def _refusals(pod: PodInfo, node: NodeInfo) -> list[str]:
    """Returns the faults of a pod on a node by taints, node selector, node affinity and declared features."""
    faults, spec, name = [], pod.pod.spec, node.name
    for taint in node.taints:
        effect = taint.effect in node_filters.FILTERING_EFFECTS
        if effect and not tolerated(taint, spec.tolerations):
            faults.append(f"{pod.key}: node {name} has taint {taint.key} that it does not tolerate")
    if any(node.labels.get(key) != value for key, value in spec.node_selector.items()):
        faults.append(f"{pod.key}: node {name} does not match its node selector")
    affinity = spec.affinity.node_affinity if spec.affinity else None
    required = affinity.required if affinity else None
    if required and not any(term_matches(t, name, node.labels) for t in required.node_selector_terms):
        faults.append(f"{pod.key}: node {name} does not match its node affinity")
    lacking = set(node_filters.required_features(pod.pod)) - set(node.node.status.declared_features)
    faults += [f"{pod.key}: node {name} does not declare feature {feature}" for feature in sorted(lacking)]
    return faults


def allows(pod: PodInfo, node: NodeInfo, config: KoordpyConfiguration) -> bool:
    """Returns True if the labels, taints and cordon of a node admit a pending pod."""
    if node.unschedulable and not tolerated(UNSCHEDULABLE_TAINT, pod.pod.spec.tolerations):
        return False
    added = config.filters.node_affinity.added_affinity
    terms = added.required.node_selector_terms if added is not None and added.required is not None else []
    if terms and not any(term_matches(term, node.name, node.labels) for term in terms):
        return False
    return not _refusals(pod, node)


def _minimum_faults(unit: Unit, nodes: Mapping[str, str]) -> list[str]:
    """Returns the faults of gangs that get fewer members than they need to start."""
    faults = []
    for gang in unit.gangs:
        new = sum(pod.key in nodes for pod in gang.pending)
        if new < unit.need(gang):
            faults.append(f"gang {gang.key}: {new} placed, needed {unit.need(gang)}")
    return faults


def path_of(name: str, snapshot: Snapshot) -> tuple[object, ...]:
    """Returns the domains of a node by its labels, from the top layer down; the last one is the node itself."""
    labels = snapshot.nodes[snapshot.index[name]].labels
    return (*domain_parts(snapshot.tree.layers, name, labels), (False, name))


def check_gathered(unit: Unit, nodes: Mapping[str, str], round_state: RoundState) -> list[str]:
    """Returns the faults by MustGather (of gangs and of parts), by podCountMultiple, and by required topology keys.

    Bound members and newly placed members are checked together. Their domains are read from node labels.
    """
    if not any(gang.wish.gather or gang.hard_keys or gang.has_parts for gang in unit.gangs):
        return []
    snapshot = round_state.snapshot
    layers = snapshot.tree.layers
    at = [nodes.get(pod.key) or pod.node for pod in unit.members if pod.key in nodes or pod.bound]
    known = {name: path_of(name, snapshot) for name in dict.fromkeys(at) if name in snapshot.index}
    paths = [known[name] for name in at if name in known]
    faults = []
    # parts of gangs: the members of each part must share one domain
    for part in parts_of(unit, layers):
        names = {nodes.get(pod.key) or pod.node for pod in part.members if pod.key in nodes or pod.bound}
        layer = part.label or snapshot.tree.layer_name(part.level)
        where = {
            snapshot.nodes[snapshot.index[name]].labels.get(part.label) if part.label else known[name][: part.level]
            for name in names & known.keys()
        }
        if (len(where) > 1 or None in where) and any(pod.key in nodes for pod in part.members):
            faults.append(f"MustGather {layer}: a {part.scope} in {count_noun(len(where), 'domain')}")
    # the whole unit: it must share the domains that each of its gangs requires, by layer and by topology key
    for gang in unit.gangs:
        for rule in gang.wish.gather:
            level = layers.level(rule.layer)
            if level is None:
                continue
            counts = Counter(path[:level] for path in paths)
            if rule.whole and len(counts) > 1:
                faults.append(f"MustGather {rule.layer}: members in {len(counts)} domains")
            if rule.multiple > 1 and any(n % rule.multiple for n in counts.values()):
                faults.append(f"podCountMultiple {rule.layer}={rule.multiple} is broken")
        for key in gang.hard_keys:
            values = {snapshot.nodes[snapshot.index[name]].labels.get(key) for name in at if name in snapshot.index}
            if len(values) > 1 or None in values:
                faults.append(f"topology key {key}: members in several domains")
    return faults
