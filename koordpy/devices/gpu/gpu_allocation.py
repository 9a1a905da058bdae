# SPDX-License-Identifier: Apache-2.0
"""Allocates GPUs to the pods of a plan, and builds the annotations of their Bindings (gpu-topology.md 4, 5 and 7).

On each node, the pods of one GPU group or gang get their GPUs together. Nodes on which GPUs are known by number only
are left out, because their device plugin chooses the GPUs.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from koordpy.api import keys
from koordpy.devices.gpu.choice.gpu_choosers import chooser_of
from koordpy.devices.gpu.choice.gpu_wants import GpuWant, Sets, want_on
from koordpy.devices.gpu.gpu_machine import GPUS, Machine
from koordpy.devices.gpu.gpu_nodes import GpuNodes, want_of
from koordpy.devices.gpu.zone_limits import PodZones
from koordpy.devices.links.device_masks import bits_of
from koordpy.plan.round_plan import FamilyAllocation
from koordpy.pods.gang_refs import GroupKey
from koordpy.pods.pod_info import PodInfo

WHOLE_CARD = {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100"}
"""Resources of a card in annotations, if its Device states none."""


@dataclass(frozen=True, slots=True)
class _Chosen:
    """GPUs of one pod. mask: all of them. containers: mask of each container of `GpuAsk.per_container`."""

    pod: PodInfo
    mask: int
    containers: tuple[int, ...]

    def places(self) -> dict[str, int]:
        """Returns the GPUs of each container with GPUs, by index; init containers by `init-` and index.

        Init containers run one by one and end before the containers start. So they reuse GPUs of the containers first,
        then GPUs of no container, then GPUs of restartable init containers that start later.
        """
        ask = self.pod.ask(GPUS)
        assert ask is not None
        number = len(ask.containers)
        own, restarting = self.containers[:number], list(self.containers[number:])
        out = {str(i): mask for (i, _), mask in zip(ask.containers, own, strict=True)}
        spare = self.mask & ~sum(self.containers)
        for i, count, restarts in ask.inits:
            pool = [bit for mask in (*own, spare, *restarting) for bit in bits_of(mask)]
            out[f"{keys.INIT_PREFIX}{i}"] = restarting.pop(0) if restarts else sum(1 << bit for bit in pool[:count])
        return out


def choice_sets(pods: Sequence[PodInfo]) -> list[list[PodInfo]]:
    """Returns the sets of pods of a plan on one node for which GPUs are chosen together.

    A set is a GPU group, a gang, or a single pod.
    """
    ordered = sorted(pods, key=attrgetter("order"))
    return [[ordered[i] for i in chosen] for chosen in choice_sets_at(ordered)]


def choice_sets_at(ordered: Sequence[PodInfo]) -> list[list[int]]:
    """Returns `choice_sets` as positions in the pods. ordered: in rank order."""
    sets: dict[object, list[int]] = {}
    for i, pod in enumerate(ordered):
        sets.setdefault(pod.group or pod.gang or pod.key, []).append(i)
    return list(sets.values())


def allocate(placed: Sequence[tuple[PodInfo, int]], gpus: GpuNodes) -> FamilyAllocation:
    """Returns the GPUs of the pods of a plan, on the draft before the plan. placed: (pod, node position)."""
    at: dict[int, list[PodInfo]] = {}
    for pod, node in placed:
        if pod.ask(GPUS) is not None:
            at.setdefault(node, []).append(pod)
    chips: dict[str, tuple[int, ...]] = {}
    notes: dict[str, dict[str, str]] = {}
    faults: list[str] = []
    for node, pods in at.items():
        machine = gpus.state(node).by_name
        if machine is None:
            continue
        chosen = _choose_on_node(pods, node, machine, gpus)
        if chosen is None:
            name = gpus.draft.snapshot.nodes[node].name
            faults.append(f"{pods[0].key}: the free GPUs of node {name} do not serve all of its pods together")
            continue
        for one in chosen:
            chips[one.pod.key] = machine.minors_of(one.mask)
            visible = _visible_mask(one, chosen, node, gpus)
            notes[one.pod.key] = _annotations(one, visible, machine, gpus)
    return FamilyAllocation(chips, notes, tuple(faults))


def _choose_on_node(pods: Sequence[PodInfo], node: int, machine: Machine, gpus: GpuNodes) -> list[_Chosen] | None:
    """Chooses GPUs for the pods of one node; None if its free GPUs cannot serve all of them.

    The sets of `choice_sets` choose one after the other. If a set finds too few GPUs left, all pods choose together.
    """
    sets = choice_sets(pods)
    chosen = _choose_in_turn(sets, node, machine, gpus)
    if chosen is None and len(sets) > 1:
        chosen = _choose_in_turn([[pod for one in sets for pod in one]], node, machine, gpus)
    return chosen


def _choose_in_turn(
    sets: Sequence[Sequence[PodInfo]], node: int, machine: Machine, gpus: GpuNodes
) -> list[_Chosen] | None:
    """Chooses GPUs for one set of pods after the other; None if the GPUs that are left cannot serve a set."""
    state = gpus.state(node)
    free = state.free
    out: list[_Chosen] = []
    every = sorted((pod for pods in sets for pod in pods), key=attrgetter("order"))
    zones = dict(zip((pod.key for pod in every), gpus.pod_zones(node, every) or (), strict=False))
    for pods in sets:
        group = pods[0].group
        held = state.groups.get(group, 0) if group is not None else 0
        wants = [_parts(want_on(machine, want_of(pod)), zones.get(pod.key, _ANYWHERE)) for pod in pods]
        flat = tuple(part for parts in wants for part in parts)
        chosen: Sets | None = chooser_of(machine).choose(free, held, flat, gpus.config.objective)
        if chosen is None:
            return None
        found = iter(chosen)
        for pod, parts in zip(pods, wants, strict=True):
            own = [next(found) for _ in parts]
            mask = sum(part for part, _ in own)
            containers = own[0][1] if len(own) == 1 else tuple(part for part, inner in own if inner)
            out.append(_Chosen(pod, mask, containers))
            free &= ~mask
    return out


_ANYWHERE = PodZones(0)


def _parts(want: GpuWant, zones: PodZones) -> list[GpuWant]:
    """Returns the requests for which GPUs of one pod are chosen inside its zones.

    It is one request for the whole pod, or one for each container if the containers are aligned to different zones.
    GPUs of no container belong to an init container.
    """
    if not zones.containers:
        return [replace(want, within=zones.mask)]
    sizes = zip(want.containers, zones.containers, strict=True)
    parts = [replace(want, count=count, containers=(count,), listed=None, within=mask) for count, mask in sizes]
    left = want.count - sum(want.containers)
    if left:
        parts.append(replace(want, count=left, containers=(), listed=None, within=zones.mask))
    return parts


def _visible_mask(one: _Chosen, chosen: Sequence[_Chosen], node: int, gpus: GpuNodes) -> int:
    """Returns the mask of the GPUs that a pod sees: those of its group on the node, or only its own.

    Only its own without a group, or if `gpu.groupVisibility` is `own`. chosen: the allocations of the plan on the node.
    """
    group: GroupKey | None = one.pod.group
    if group is None or gpus.config.group_visibility == "own":
        return one.mask
    out = gpus.state(node).groups.get(group, 0)
    for other in chosen:
        if other.pod.group == group:
            out |= other.mask
    return out


def _annotations(one: _Chosen, visible: int, machine: Machine, gpus: GpuNodes) -> dict[str, str]:
    """Returns all annotations of gpu-topology.md 7 for one pod."""
    own = one.places()

    def names(mask: int) -> list[str]:
        return [str(minor) for minor in machine.minors_of(mask)]

    numbered = {place: names(mask) for place, mask in own.items() if not place.startswith(keys.INIT_PREFIX)}
    allocation = {"allocatedGPUs": numbered, "visibleGPUs": names(visible)}
    out = {
        keys.GPU_ALLOCATION: _json(allocation),
        keys.GPU_NVIDIA_VISIBLE: _ids(machine, visible),
        **{f"{keys.GPU_CUDA_VISIBLE_PREFIX}{place}": _ids(machine, mask) for place, mask in own.items()},
        keys.DEVICE_ALLOCATED: _json({"gpu": [_card_entry(machine, i) for i in bits_of(one.mask)]}),
    }
    if gpus.config.annotation_style == "gpushare":
        out[keys.GPUSHARE_ASSIGNED] = "false"
        out[keys.GPUSHARE_ASSUME_TIME] = str(int(gpus.draft.snapshot.now))
        for i in bits_of(one.mask):
            tail = machine.ids[i].rpartition("-")[2] or str(machine.minors[i])
            out[f"{keys.GPUSHARE_ID_PREFIX}{machine.minors[i]}"] = tail
    return out


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _ids(machine: Machine, mask: int) -> str:
    """Returns the UUIDs of GPUs as a list in text, or their minors if one of the GPUs has no id.

    UUIDs are preferred because a minor or index may mean another GPU inside the container.
    """
    at = bits_of(mask)
    if all(machine.ids[i] for i in at):
        return ",".join(machine.ids[i] for i in at)
    return ",".join(str(machine.minors[i]) for i in at)


def _card_entry(machine: Machine, at: int) -> dict[str, object]:
    """Returns the entry of one GPU (position) in annotation `device-allocated`."""
    resources: Mapping[str, object] = machine.entries[at].resources or WHOLE_CARD
    out: dict[str, object] = {"minor": machine.minors[at]}
    if machine.ids[at]:
        out["id"] = machine.ids[at]
    return {**out, "resources": {name: str(amount) for name, amount in sorted(resources.items())}}
