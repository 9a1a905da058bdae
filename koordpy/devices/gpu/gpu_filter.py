# SPDX-License-Identifier: Apache-2.0
"""GPUDevices: the filter of nodes by free devices, minimum bandwidth, partitions and delivery.

NodeResourcesFit compares the GPUs that a node states as a resource. This filter compares the GPUs of the node's Device:
they must be free and healthy, and their links and partition table must satisfy the annotations of the pod. It also
checks that the node can deliver the chosen GPUs to containers. Sources: docs/rules/kube-parity.md 1, row 14;
gpu-topology.md 2, 6, 8 and 10.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np

from koordpy.api import keys
from koordpy.cache.snapshot import Ints
from koordpy.devices.gpu.choice.gpu_choosers import chooser_of
from koordpy.devices.gpu.choice.gpu_wants import GpuWant, PodWant, want_on
from koordpy.devices.gpu.gpu_machine import GPUS, Machine
from koordpy.devices.gpu.gpu_nodes import GpuNodes, GpuState, UnreadableWish, want_of, wants_in
from koordpy.devices.gpu.gpu_variables import is_injected
from koordpy.framework.filter_protocol import Code, Refusal, Verdict, wrong_ask
from koordpy.framework.pod_rule_filter import ANY_NUMBER, Rule
from koordpy.pods.pod_info import PodInfo

PLUGIN = "GPUDevices"
"""Name of the filter in messages."""
# reasons of refusals (gpu-topology.md 2, 8 and 10)
INSUFFICIENT = "Insufficient gpu devices"
NO_TABLE = "node(s) missing GPU Partition Table"
UNSUPPORTED_NUMBER = "node(s) Unsupported number of GPU requests"
NO_PARTITION = "Insufficient Partitioned GPU Devices"
NOT_INJECTED = "node(s) deliver GPUs by env and the pod lacks the injected variables"
NOT_BY_NAME = "node(s) deliver GPUs by env and their GPUs are known by count only"
NOT_WRITTEN = "node(s) have GPUs known by count only and the pod reads its own from injected variables"
"""Without names the injected variables would be empty: the container would get no GPU, whatever the device plugin
says."""
UNAVAILABLE = "node(s) cannot deliver GPUs now (Device condition DeliveryUnavailable)"
ONE_SHARE = "node(s) share GPUs: a container gets one share"
_DELIVERY_REASONS = (NOT_INJECTED, NOT_BY_NAME, NOT_WRITTEN, UNAVAILABLE)
"""Refusals that say nothing about the number or the links of GPUs; `GPUDevices.refusal` reports them last."""


def gpu_refusal(pod: PodInfo) -> Refusal | None:
    """Returns why a pod's GPU request is invalid, before any node is tried; None if it is valid."""
    if pod.ask(GPUS) is None:
        return None
    try:
        want_of(pod)
    except UnreadableWish as what:
        return wrong_ask(PLUGIN, str(what))
    return None


class GPUDevices(Rule):
    """The devices of every node for pods of one shape.

    Updated with the draft: a placement recomputes the copies of its node, an eviction may change verdicts.
    """

    plugin = PLUGIN
    is_in_problem = True
    """The problem of a unit represents how its pods share GPUs, so placements need not be tried on this filter."""
    local = True
    """A pod on a node changes the result for this node alone."""

    def __init__(self, pod: PodInfo, nodes: GpuNodes) -> None:
        self._pod, self._gpus = pod, nodes
        self._want: PodWant = want_of(pod)
        self._nodes = nodes.draft.snapshot.nodes
        several = (
            any(count > 1 for _, count, *_ in (*pod.ask(GPUS).containers, *pod.ask(GPUS).inits))
            if pod.ask(GPUS)
            else False
        )
        self._shared = nodes.view.shared if several else frozenset[str]()
        """Nodes that give a container at most one GPU; empty unless a container of the pod requests more."""
        self._room = np.fromiter((self._copies(i) for i in range(len(self._nodes))), dtype=np.int64)
        """[nodes] number of pods of the shape that the devices of the node take, one after the other."""

    @cached_property
    def _injected(self) -> bool:
        """True if the webhook has injected the variables of delivery `env` into the pod."""
        ask = self._pod.ask(GPUS)
        return ask is not None and is_injected(self._pod.pod, ask.resources)

    def change(self, pod: PodInfo, node: int, sign: int) -> bool:
        """Implements `Rule.change`.

        True only if an eviction makes a full node usable. A placement changes only the copies, which the caller reads
        anyway.
        """
        if pod.ask(GPUS) is None:
            return False
        before = int(self._room[node])
        self._room[node] = self._copies(node)
        return sign < 0 and before == 0 < int(self._room[node])

    def copies(self) -> Ints:
        """Implements `Rule.copies`."""
        return self._room

    def copies_with_nominated(self, node: int, held: Mapping[str, int]) -> tuple[int, Refusal] | None:
        """Implements `Rule.copies_with_nominated`: returns (copies that fit next to nominated pods, refusal of further
        copies).

        Nominated pods will use healthy GPUs; a node may have fewer of these than it states. None if they use no GPUs,
        or if the node has no Device. held: resource -> amount that they request.
        """
        cards, devices = self._gpus.cards(held), self._gpus.devices(node, self._pod)
        if not cards or devices is None:
            return None
        left = max(0, devices - cards) // self._want.count
        return min(left, int(self._room[node])), Refusal(PLUGIN, Code.UNSCHEDULABLE, (INSUFFICIENT,))

    def capacity(self) -> Ints | None:
        """Implements `Rule.capacity`: None if the number of devices decides, because `Family.free_devices` then states
        it."""
        return self._room if self.constrained else None

    outlasts_pods = True
    """`is_lasting` recognises refusals that do not depend on pods."""

    def is_lasting(self, refusal: Refusal) -> bool:
        """Implements `Rule.is_lasting`: a node that cannot deliver GPUs now may do so later."""
        return refusal.code is Code.UNRESOLVABLE and UNAVAILABLE not in refusal.reasons

    @property
    def is_number(self) -> bool:
        """Implements `Rule.is_number`: True if the number of free devices decides on every node."""
        return not self.constrained

    @cached_property
    def constrained(self) -> bool:
        """True if more than the number of free devices decides on some node."""
        want, view = self._want, self._gpus.view
        if (want.least_kbs and want.count > 1) or want.restricted:
            return True
        if self._injected or self._gpus.config.delivery == "env":
            return True
        machines = (known.machine for known in view.nodes.values())
        if any(machine.delivery == "env" or machine.honor or not machine.delivers for machine in machines):
            return True
        return view.partition_policies

    @cached_property
    def is_monotone(self) -> bool:
        """Implements `Rule.is_monotone`: False if links or listed sets decide inside zones that the kubelet chooses.

        With fewer pods on the node, the kubelet may choose a zone with slower links.
        """
        return self._gpus.zones is None or not self.constrained

    def _wants(self, node: int, machine: Machine, number: int) -> tuple[GpuWant, ...]:
        """Returns what a number of copies of the pod request of a machine, inside their zones."""
        zones = self._gpus.pod_zones(node, [self._pod] * number)
        return wants_in(machine, [self._want] * number, zones)

    def _constrained(self, machine: Machine) -> bool:
        """Returns whether links or listed sets, not only the number of free GPUs, decide on a machine."""
        want = self._want
        return bool(want.least_kbs and want.count > 1) or machine.honor or want.restricted

    def _copies(self, node: int) -> int:
        """Returns the number of pods that a node's devices take one after the other; `ANY_NUMBER` for a node without a
        Device."""
        gpus, want = self._gpus, self._want
        state = gpus.state(node)
        if self._fixed_refusal(node, state) is not None:
            return 0
        devices = gpus.devices(node, self._pod)
        if devices is None:
            return ANY_NUMBER
        most = max(0, devices) // want.count
        machine = state.by_name
        if not most or machine is None or not self._constrained(machine):
            return most
        chooser, taken = chooser_of(machine), 0
        while taken < most and chooser.can(state.free, self._wants(node, machine, taken + 1)):
            taken += 1
        return taken

    def _needs_listed_set(self, node: int, machine: Machine | None) -> bool:
        """Returns whether the pod must get a set of the node's partition table (Honor or Restricted, gpu-topology.md
        8)."""
        label = self._nodes[node].labels.get(keys.GPU_PARTITION_POLICY) == "Honor"
        return self._want.restricted or (machine.honor if machine is not None else label)

    def _fixed_refusal(self, node: int, state: GpuState) -> Refusal | None:
        """Returns the refusal of a node that does not depend on which GPUs are free; None for none."""
        want, machine = self._want, state.machine
        if self._shared and self._nodes[node].name in self._shared:
            return _unresolvable(ONE_SHARE)
        if want.least_kbs and want.count > 1 and state.by_name is None:
            return self._too_slow(machine)
        if self._needs_listed_set(node, machine):
            if machine is None or machine.table is None:
                return _unresolvable(NO_TABLE)
            if not machine.table.of(want.count):
                return _unresolvable(UNSUPPORTED_NUMBER)
            if state.unknown:
                return self._no_partition(machine)
        delivery = (machine.delivery if machine is not None else "") or self._gpus.config.delivery
        if delivery == "env" and not self._injected:
            return _unresolvable(NOT_INJECTED)
        if self._injected and state.by_name is None:
            reason = NOT_BY_NAME if delivery == "env" else NOT_WRITTEN
            return Refusal(PLUGIN, Code.UNSCHEDULABLE if state.unknown else Code.UNRESOLVABLE, (reason,))
        if machine is not None and not machine.delivers:
            return _unresolvable(UNAVAILABLE)
        return None

    def _too_slow(self, machine: Machine | None) -> Refusal:
        """Returns the refusal of a node with too low a bandwidth. machine: None if the node's GPUs are not known.

        Evictions may resolve it only if the healthy GPUs of the machine contain a set that is fast enough.
        """
        text = self._pod.pod.metadata.annotations.get(keys.GPU_MIN_BANDWIDTH, "")
        able = False
        if machine is not None and machine.has_matrix:
            own = want_on(machine, self._want)
            only = GpuWant(own.count, own.containers, own.near)
            able = chooser_of(machine).can(machine.healthy, (only,))
        code = Code.UNSCHEDULABLE if able else Code.UNRESOLVABLE
        return Refusal(PLUGIN, code, (f"node(s) lack free GPUs linked at {text} GB/s or more",))

    def _no_partition(self, machine: Machine) -> Refusal:
        """Returns the refusal of a machine without a free listed set; evictions may resolve it if a listed set is
        healthy."""
        listed = want_on(machine, self._want).listed or ()
        able = any(not one.mask & ~machine.healthy for one in listed)
        return Refusal(PLUGIN, Code.UNSCHEDULABLE if able else Code.UNRESOLVABLE, (NO_PARTITION,))

    def refusal(self, node: int) -> Refusal | None:
        """Returns why a node does not take one pod; None if it does.

        Reasons are tried in this order: number of GPUs, bandwidth, partition table, delivery.
        """
        gpus, want = self._gpus, self._want
        state = gpus.state(node)
        devices, machine = gpus.devices(node, self._pod), state.by_name
        if devices is not None and devices < want.count:
            never = want.count > (state.healthy or 0)
            return Refusal(PLUGIN, Code.UNRESOLVABLE if never else Code.UNSCHEDULABLE, (INSUFFICIENT,))
        if want.least_kbs and want.count > 1:
            if machine is None:
                return self._too_slow(state.machine)
            own = self._wants(node, machine, 1)[0]
            if not chooser_of(machine).can(state.free, (replace(own, listed=None, must=False),)):
                return self._too_slow(machine)
        hard = self._fixed_refusal(node, state)
        if hard is not None and hard.reasons[0] not in _DELIVERY_REASONS:
            return hard
        if machine is not None and self._needs_listed_set(node, machine):
            own = self._wants(node, machine, 1)[0]
            free = state.free & own.within if own.within else state.free
            if not any(not one.mask & ~free for one in own.listed or ()):
                return self._no_partition(machine)
            if not chooser_of(machine).can(free, (own,)):
                return self._too_slow(machine)
        return hard

    def permanent_verdict(self) -> Verdict:
        """Implements `Rule.permanent_verdict`: keeps only the refusals that no eviction resolves."""
        verdict = self.verdict()
        never = np.array([0, *(one.code is Code.UNRESOLVABLE for one in verdict.refusals)], dtype=bool)
        return Verdict(np.where(never[verdict.which], verdict.which, 0).astype(np.int32), verdict.refusals)

    def verdict(self) -> Verdict:
        """Implements `Rule.verdict`."""
        which = np.zeros(len(self._nodes), dtype=np.int32)
        refusals: dict[Refusal, int] = {}
        for node in np.nonzero(self._room <= 0)[0].tolist():
            refusal = self.refusal(node)
            if refusal is None:
                raise AssertionError(f"node {self._nodes[node].name} rejects the pod without a reason")
            which[node] = refusals.setdefault(refusal, len(refusals) + 1)
        return Verdict(which, tuple(refusals))


def _unresolvable(reason: str) -> Refusal:
    """Returns a refusal that no eviction resolves."""
    return Refusal(PLUGIN, Code.UNRESOLVABLE, (reason,))
