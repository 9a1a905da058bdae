# SPDX-License-Identifier: Apache-2.0
"""The zones of a node with their free amounts, as a value that all nodes with equal zones share (numa.md 3 and 4).

A cluster has many nodes and few kinds of them, so nodes are in few states. States are hashable, and equal states are
one object where possible: admission and the state after it are computed once for all equal nodes and equal pods.
"""

from dataclasses import dataclass
from functools import cached_property

from koordpy.api.bounded_memory import HashedOnce, cached, shared
from koordpy.devices.numa.admission import (
    NOTHING_ALIGNED,
    PodAmounts,
    Policy,
    RequestPart,
    Scope,
    ZoneAdmission,
    Zoned,
    Zones,
    admit,
    memory_sets,
    minus,
    spread,
)
from koordpy.devices.numa.pod_amounts import NumaAsk

Row = tuple[int, ...]
Rows = tuple[tuple[str, Row], ...]
"""(resource, [zones] amount), sorted."""


@dataclass(frozen=True)
class ZoneKind(HashedOnce):
    """The zones of a node, apart from what is free. Equal nodes have equal kinds, and share results by them."""

    policy: Policy
    scope: Scope
    zones: Zones
    """Zones of all aligned resources."""
    total: Rows
    """Allocatable amounts of the aligned resources."""
    gpu_zones: Row = ()
    """[zones] mask of the GPUs of each zone; empty if the zone of a GPU is not known."""

    __hash__ = HashedOnce.__hash__

    @property
    def numbers(self) -> Row:
        """[zones] number of each zone, ascending."""
        return self.zones.numbers

    @cached_property
    def has_data(self) -> bool:
        """True if the kubelet aligns pods on the node: it has a policy and several zones."""
        return self.policy is not Policy.NONE and len(self.numbers) > 1

    @cached_property
    def allocatable(self) -> Zoned:
        """Resource -> [zones] amount; only aligned resources."""
        return dict(self.total)

    @cached_property
    def resources(self) -> frozenset[str]:
        """Resources that the node aligns."""
        return frozenset(self.allocatable)


NO_ZONES = ZoneKind(Policy.NONE, Scope.POD, Zones((), ()), ())
"""Kind of a node without known zones."""


@dataclass(frozen=True)
class ZoneState(HashedOnce):
    """The zones of a node and what is free in them."""

    kind: ZoneKind
    rows: Rows
    """Free amounts; may be negative."""
    groups: frozenset[int] = frozenset()
    """Zone sets in which pods have memory."""

    __hash__ = HashedOnce.__hash__

    @cached_property
    def free(self) -> Zoned:
        """Resource -> [zones] free amount; may be negative."""
        return dict(self.rows)

    @cached_property
    def empty(self) -> "ZoneState":
        """The node without any pod."""
        return ZoneState(self.kind, self.kind.total)

    @cached_property
    def whole(self) -> int:
        """Mask of the unused zones (positions)."""
        have = self.kind.allocatable
        zones = range(len(self.kind.numbers))
        return sum(1 << zone for zone in zones if all(row[zone] == have[name][zone] for name, row in self.rows))

    def policy_for(self, ask: NumaAsk) -> Policy:
        """Returns the stricter of the node's policy and the policy that the pod demands."""
        return max(self.kind.policy, ask.demand, key=lambda one: one.strictness)

    def amounts_of(self, ask: NumaAsk) -> PodAmounts:
        """Returns what the node aligns of a pod."""
        return ask.on(self.kind.resources, self.kind.scope)

    def admit(self, ask: NumaAsk) -> ZoneAdmission | RequestPart:
        """Returns the zones that a pod gets, or the part of the pod that the kubelet rejects first."""
        return _admit(self, ask)

    def after(self, taken: Zoned) -> "ZoneState":
        """Returns the state with one more pod. taken: resource -> [zones] amount of the pod."""
        return _after(self, tuple(taken.items())) if taken else self

    def after_pod(self, ask: NumaAsk, record: Zoned = {}) -> "ZoneState":  # noqa: B006 - it is not changed
        """Returns the state with one more pod; its zones are partly known.

        record: resource -> [zones] amount. Other resources are taken as the kubelet would; if it rejects the pod, from
        the zones in ascending order.
        """
        if not self.kind.has_data:
            return self
        unknown = [(name, amount) for name, amount in self.amounts_of(ask).held if name not in record]
        if not unknown:
            return self.after(record)
        found, all_zones = self.admit(ask), (1 << len(self.kind.numbers)) - 1
        if isinstance(found, ZoneAdmission) and found.taken:
            guess = found.taken
        else:
            guess = {name: tuple(spread(amount, self.free[name], all_zones)) for name, amount in unknown}
        return self.after({**record, **{name: guess[name] for name, _ in unknown if name in guess}})


@cached(1 << 14)
def _admit(state: ZoneState, ask: NumaAsk) -> ZoneAdmission | RequestPart:
    """Returns `ZoneState.admit`, computed once for equal states and pods."""
    pod = state.amounts_of(ask)
    if not state.kind.has_data or not pod.requests:
        return NOTHING_ALIGNED
    return admit(pod, state.kind.zones, state.free, state.policy_for(ask), state.groups)


@cached(1 << 14)
def _after(state: ZoneState, taken: Rows) -> ZoneState:
    """Returns `ZoneState.after`, one object for equal states and pods."""
    record = dict(taken)
    return shared(ZoneState(state.kind, tuple(minus(state.free, record).items()), state.groups | memory_sets([record])))
