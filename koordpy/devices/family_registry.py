# SPDX-License-Identifier: Apache-2.0
"""The registry of device families: one line per `Family` (docs/extending.md), and functions that call the families.

Other packages call the functions of this module instead of a family. A function calls the families to which the given
pods have a device request, and combines their results: all must agree, the first result counts, or the results are
joined. The docstring of each function says which. Arguments are as in the method of `Family` with the same name.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koordpy.api.objects import ConfigMap, Node, Pod, Wire
from koordpy.cache.cluster_state import ClusterState
from koordpy.cache.plan_draft import Draft
from koordpy.cache.snapshot import Ints, Snapshot
from koordpy.config.configuration import Gpu, KoordpyConfiguration
from koordpy.config.dra_settings import Dra
from koordpy.devices.ascend.family.npu_family import NpuFamily
from koordpy.devices.device_family import Family
from koordpy.devices.dra.family.claim_family import ClaimedDevices
from koordpy.devices.family_round import FamilyRound, NodeFacts, Obstruction
from koordpy.devices.gpu.gpu_family import Gpus
from koordpy.devices.gpu.part_family import PartAsks
from koordpy.devices.numa.numa_family import NumaZones
from koordpy.framework.device_limits import MemberLimits
from koordpy.plan.round_plan import NOTHING_ALLOCATED, PlanAllocation
from koordpy.plugins.filter_inputs import FilterInputs
from koordpy.plugins.soft_scores import SoftScore
from koordpy.pods.device_asks import AskReaders, LatentAsk
from koordpy.pods.family_books import AllocatedDevices, DeviceFamilies
from koordpy.pods.pod_info import PodInfo

FAMILIES: tuple[Family, ...] = (
    ClaimedDevices(),
    PartAsks(),
    Gpus(),
    NpuFamily(),
    NumaZones(),
)
"""All families, in the order in which they are called and in which a pod's requests are stored."""
PLUGINS = frozenset(family.plugin for family in FAMILIES if family.plugin)
"""Names of families' filters with refusals that evictions may resolve."""
FAMILY_NAMES = frozenset(family.name for family in FAMILIES)
"""Names of all families."""
DEVICE_VARIABLES = frozenset[str]().union(*(family.variables for family in FAMILIES))
"""Environment variables of containers that families read."""
_ALLOCATING = sorted(FAMILIES, key=lambda family: not family.decides_first)
"""All families, in the order in which they allocate."""
_BY_NAME = {family.name: family for family in FAMILIES}


# -- the cluster -------------------------------------------------------------------------------------------------------


def ask_readers(config: KoordpyConfiguration) -> AskReaders:
    """Returns the readers of device requests of all families."""
    return AskReaders([family.reader(config) for family in FAMILIES])


def device_families(config: KoordpyConfiguration) -> DeviceFamilies:
    """Returns the readers and empty books of all families, with which a cache is created."""
    books = ((family.name, family.book(config)) for family in FAMILIES)
    return DeviceFamilies(ask_readers(config), {name: book for name, book in books if book is not None})


def make_state(*, gpu: Gpu | None = None, dra: Dra | None = None, **settings: Any) -> ClusterState:
    """Returns an empty cache with all families. settings: passed to `ClusterState`."""
    return ClusterState(device_families(KoordpyConfiguration(gpu=gpu or Gpu(), dra=dra or Dra())), **settings)


def apply_webhook(pod: Pod, config: KoordpyConfiguration) -> Pod:
    """Returns a new pod as the admission webhook would change it."""
    for family in FAMILIES:
        pod = family.apply_webhook(pod, config)
    return pod


def families_of(pod: PodInfo, snapshot: Snapshot | None = None) -> Iterator[Family]:
    """Yields the families to which a pod has a device request, in the order of the registry; none for most pods.

    A `LatentAsk` counts only if the snapshot has objects of the family. snapshot: None to leave such requests out.
    """
    families = snapshot.families if snapshot is not None else ()
    return (_BY_NAME[name] for name, ask in pod.asks.items() if name in families or not isinstance(ask, LatentAsk))


def _requested_families(pods: Iterable[PodInfo], snapshot: Snapshot | None = None) -> list[Family]:
    """Returns the families to which a pod has a device request; snapshot as in `families_of`."""
    names = {family.name for pod in pods if pod.asks for family in families_of(pod, snapshot)}
    return [family for family in FAMILIES if family.name in names] if names else []


def device_signature(pod: PodInfo, inputs: FilterInputs) -> str:
    """Returns the signatures of all families, which distinguish pending pods of one shape, such as their jobs; or
    empty."""
    return "".join(family.signature(pod, inputs) for family in families_of(pod, inputs.snapshot))


def counts_decide(pod: PodInfo, snapshot: Snapshot) -> bool:
    """Returns True if, in all families of the pod, the number of free devices proves whether the pod fits."""
    return all(family.counts_decide for family in families_of(pod, snapshot))


def node_warnings(pods: Iterable[PodInfo], snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    """Yields (object, text) of device settings of nodes without effect, of families that a pending pod requests."""
    for family in _requested_families(pods):
        yield from family.node_warnings(snapshot)


def setting_notes(objects: Sequence[Wire], config: KoordpyConfiguration) -> list[str]:
    """Returns sentences about what settings of devices do to objects that a cluster has, of all families."""
    return [text for family in FAMILIES for text in family.setting_notes(objects, config)]


# -- the live scheduler ------------------------------------------------------------------------------------------------


def node_reports(node: Node) -> list[object]:
    """Returns everything that affects the devices of a node besides its labels and amounts: one object for each of its
    families."""
    amounts = node.status.allocatable.keys() | node.status.capacity.keys()
    return [family.node_report(node) for family in FAMILIES if not family.resources.isdisjoint(amounts)]


def device_report_of(config_map: ConfigMap) -> ConfigMap | None:
    """Returns the ConfigMap if it describes devices; None otherwise."""
    return config_map if any(family.is_report(config_map) for family in FAMILIES) else None


def object_reports(config_map: ConfigMap) -> list[object]:
    """Returns the parts of a ConfigMap that affect devices, one object for each family."""
    return [family.object_report(config_map) for family in FAMILIES if family.is_report(config_map)]


def moment_annotations(pod: PodInfo) -> list[str]:
    """Returns the annotations of a pod's Binding that state the time of its request."""
    return [family.moment_annotation for family in families_of(pod) if family.moment_annotation]


def spans_nodes(pod: PodInfo) -> bool:
    """Returns whether rules of a family place the pod's job over several nodes."""
    return any(family.spans_nodes for family in families_of(pod))


# -- problems ----------------------------------------------------------------------------------------------------------


def left_out_of_fit(pod: PodInfo, inputs: FilterInputs) -> dict[str, NDArray[np.bool_]]:
    """Returns resource -> [nodes] True for nodes on which a family's filter, not NodeResourcesFit, checks the
    resource."""
    families = families_of(pod, inputs.snapshot)
    return {name: mask for family in families for name, mask in family.left_out_of_fit(pod, inputs).items()}


def equivalence_key(pod: PodInfo) -> Hashable:
    """Returns the keys of all families of a pod that distinguish pods with equal requests and equal feasible nodes."""
    return tuple((family.name, family.equivalence_key(pod)) for family in families_of(pod))


def shared_free_devices(pods: Sequence[PodInfo], inputs: FilterInputs) -> list[tuple[Family, Ints]]:
    """Returns (family, [nodes] free devices) of each family that limits the pods of a unit more than the nodes'
    resources do."""
    found = ((family, family.free_devices(pods, inputs)) for family in FAMILIES)
    return [(family, room) for family, room in found if room is not None]


def uses_shared_devices(pod: PodInfo) -> bool:
    """Returns True if a pod uses devices that `shared_free_devices` may limit."""
    return any(family.requested_devices(pod) for family in families_of(pod))


def fit_together(node: int, pods: Sequence[PodInfo], now: FamilyRound) -> bool:
    """Returns whether a node's devices are enough for pods of different shapes together, in every family."""
    return all(family.fit_together(node, pods, now) for family in _requested_families(pods, now.inputs.snapshot))


def limits_members(pod: PodInfo, inputs: FilterInputs) -> bool:
    """Returns whether members of a gang like this pod may limit each other by devices of claims."""
    return any(family.limits_members(pod, inputs) for family in families_of(pod, inputs.snapshot))


def member_limits(
    kinds: Mapping[bytes, PodInfo], numbers: Mapping[bytes, int], draft: Draft, config: KoordpyConfiguration, spare: int
) -> Iterator[MemberLimits]:
    """Yields the limits of pending members on each other, of each family with such limits."""
    for family in _requested_families(kinds.values(), draft.snapshot):
        asking = {shape: pod for shape, pod in kinds.items() if family.name in pod.asks}
        found = family.member_limits(asking, numbers, draft, config, spare)
        if found is not None:
            yield found


def untie(pods: Sequence[PodInfo], draft: Draft) -> bool:
    """Frees devices that tie pending pods of a unit to nodes although no pod uses them.

    Returns True if there were any.
    """
    found = [family.untie(pods, draft) for family in _requested_families(pods, draft.snapshot)]
    return any(found)


def nominated_allocation(pod: PodInfo, node: int, draft: Draft, config: KoordpyConfiguration) -> AllocatedDevices:
    """Returns family -> devices that a nominated pod on a node keeps from other pods by name."""
    families = families_of(pod, draft.snapshot) if pod.asks else ()
    found = ((family.name, family.nominated_allocation(pod, node, draft, config)) for family in families)
    return {name: own for name, own in found if own is not None}


def device_scores(pod: PodInfo, inputs: FilterInputs) -> Iterator[SoftScore]:
    """Yields the scores of nodes of all families of a pod."""
    for family in families_of(pod, inputs.snapshot):
        yield from family.scores(pod, inputs)


# -- the plan ----------------------------------------------------------------------------------------------------------


def allocate(nodes: Mapping[str, int], now: FamilyRound) -> PlanAllocation:
    """Allocates the devices of every family to the pods of a plan, on the draft before the plan.

    nodes: pod key -> node position, in rank order. The faults of all families are joined.
    """
    pods = now.inputs.snapshot.pods
    asking: dict[Family, dict[str, int]] = {}
    for key, node in nodes.items():
        for family in families_of(pods[key], now.inputs.snapshot):
            asking.setdefault(family, {})[key] = node
    if not asking:
        return NOTHING_ALLOCATED
    allocated: dict[str, dict[str, Any]] = {}
    notes: list[Mapping[str, Mapping[str, str]]] = []
    faults: list[str] = []
    for family in _ALLOCATING:
        if family in asking:
            found = family.allocate(asking[family], now)
            for key, own in found.devices.items():
                allocated.setdefault(key, {})[family.name] = own
            notes.append(found.notes)
            faults += found.faults
    return PlanAllocation(allocated, merge_notes(*notes), tuple(faults))


def merge_notes(*parts: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """Returns pod key -> annotations, combined from several sources."""
    out: dict[str, dict[str, str]] = {}
    for part in parts:
        for key, notes in part.items():
            out.setdefault(key, {}).update(notes)
    return out


def faults_of_devices(
    placed: Sequence[tuple[PodInfo, int]],
    allocated: Mapping[str, AllocatedDevices],
    notes: Mapping[str, Mapping[str, str]],
    now: FamilyRound,
) -> Iterator[tuple[str, str]]:
    """Yields (family, fault) of the devices that a plan allocates, on the draft before the plan.

    allocated: pod key -> family -> allocation. A family is asked if a pod of the plan requests its devices, or has an
    allocation of it without a request.
    """
    named = {name for own in allocated.values() for name in own}
    named |= {name for pod, _ in placed for name in pod.asks}
    for family in FAMILIES if named else ():
        if family.name in named:
            own = {key: found[family.name] for key, found in allocated.items() if family.name in found}
            for text in family.check(placed, own, notes, now):
                yield family.name, text


def uses_reserved_devices(
    placed: Sequence[tuple[PodInfo, int]], reserved: Mapping[int, Mapping[str, int]], inputs: FilterInputs
) -> str:
    """Returns the title of the first family with reserved devices that pods of a plan use; empty for none. reserved:
    node position -> resource -> amount that nominated pods will still use there."""
    families = _requested_families(pod for pod, _ in placed)
    return next((one.title for one in families if one.uses_reserved_devices(placed, reserved, inputs)), "")


# -- victims -----------------------------------------------------------------------------------------------------------


def is_counted(pods: Sequence[PodInfo], inputs: FilterInputs) -> bool:
    """Returns whether sums of devices decide if pods fit, in all of their families."""
    return all(family.is_counted(pods, inputs) for family in _requested_families(pods, inputs.snapshot))


def is_refused(nodes: Mapping[str, int], now: FamilyRound) -> bool:
    """Returns whether a dry run fails because a family cannot allocate devices to its pods. Asks only families for
    which sums do not decide (`is_counted`). nodes: pod key -> node position."""
    pods = [now.inputs.snapshot.pods[key] for key in nodes]
    asked = _requested_families(pods, now.inputs.snapshot)
    return any(
        family.allocate({pod.key: nodes[pod.key] for pod in pods if family.name in pod.asks}, now).faults
        for family in _ALLOCATING
        if family in asked and not family.is_counted(pods, now.inputs)
    )


def is_distinguished(pods: Sequence[PodInfo]) -> bool:
    """Returns whether a family distinguishes victims with equal resources (`Family.distinguishes_victims`)."""
    return any(family.distinguishes_victims for family in _requested_families(pods))


def freeable_columns(
    kinds: Sequence[PodInfo], inputs: FilterInputs, reserved: Mapping[int, Mapping[str, int]]
) -> dict[str, Ints]:
    """Returns family -> [nodes] free devices, a column of the victim problem for each family that needs one."""
    found = {
        one.name: one.freeable(kinds, inputs, reserved=reserved) for one in _requested_families(kinds, inputs.snapshot)
    }
    return {name: column for name, column in found.items() if column is not None}


def requested_devices_of(pod: PodInfo, family: str) -> int:
    """Returns the number of devices that a pending pod uses, as the family's column of the victim problem counts
    them."""
    return _BY_NAME[family].requested_devices(pod) if family in pod.asks else 0


def freed_devices_of(pod: PodInfo, family: str, inputs: FilterInputs) -> int:
    """Returns the number of devices that evicting a bound pod frees in the family's column of the victim problem."""
    return _BY_NAME[family].freed_devices(pod, inputs) if family in pod.asks else 0


def usable_columns(pods: Sequence[PodInfo], inputs: FilterInputs) -> dict[str, Ints]:
    """Returns family -> [nodes] devices of the node without pods, for the families in which the node's resource does
    not state that number."""
    found = {one.name: one.usable(inputs) for one in _requested_families(pods)}
    return {name: column for name, column in found.items() if column is not None}


# -- messages ----------------------------------------------------------------------------------------------------------


def find_obstruction(pod: PodInfo, now: FamilyRound) -> Obstruction | None:
    """Returns a pod that uses devices without which a waiting pod would fit; None if there is no such pod."""
    found = (family.obstruction(pod, now) for family in families_of(pod))
    return next((one for one in found if one is not None), None)


def bottlenecks(nodes: Mapping[str, int], now: FamilyRound) -> tuple[float, ...]:
    """Returns GB/s of the slowest link between the devices of each pod of a plan, with the plan on the draft. nodes:
    pod key -> node position."""
    asking = _requested_families(now.inputs.snapshot.pods[key] for key in nodes)
    return tuple(gbps for family in asking for gbps in family.bottlenecks(nodes, now))


def remedies(snapshot: Snapshot) -> Iterator[tuple[str, Callable[[Snapshot], Snapshot]]]:
    """Yields (text, change of a snapshot) of device faults that may keep pods pending, of all families in the
    cluster."""
    for family in FAMILIES:
        if family.name in snapshot.families:
            yield from family.remedies(snapshot)


def node_facts(pod: PodInfo, inputs: FilterInputs) -> dict[str, NodeFacts]:
    """Returns family -> the facts about nodes that `koordpy explain` shows for a pod, of the families in the
    cluster."""
    there = (family for family in FAMILIES if family.name in inputs.snapshot.families)
    found = ((family.name, family.node_facts(pod, inputs)) for family in there)
    return {name: facts for name, facts in found if facts is not None}


def missing_amounts(pod: PodInfo, inputs: FilterInputs) -> Iterator[tuple[int, str, Callable[[Snapshot], Snapshot]]]:
    """Yields (position, text, change of a snapshot) for amounts that single nodes lack for a pending pod, of all
    its families."""
    for family in families_of(pod, inputs.snapshot):
        yield from family.missing_amounts(pod, inputs)


# -- the page ----------------------------------------------------------------------------------------------------------


def cells(node: str, allocated: AllocatedDevices, snapshot: Snapshot) -> Collection[int]:
    """Returns the devices that a plan allocates to a pod, as positions among all devices of the node; of the first
    family."""
    found = (_BY_NAME[name].cells(node, own, snapshot.families) for name, own in allocated.items())
    return next((own for own in found if own), ())
