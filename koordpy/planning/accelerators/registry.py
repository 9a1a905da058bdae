"""Every family of devices: an `Accelerator` in a module of its own, and one line here (docs/extending.md)."""

from collections.abc import Hashable, Iterator, Mapping, Sequence

from koordpy.cluster.pods import PodInfo
from koordpy.cluster.snapshot import Ints
from koordpy.planning.accelerators.base import NOTHING, Accelerator, FamilyRound, Given, NodeWorth, merged
from koordpy.planning.accelerators.gpus import Gpus
from koordpy.planning.accelerators.npus import NpuFamily
from koordpy.planning.scene import Scene

ACCELERATORS: tuple[Accelerator, ...] = (
    Gpus(),
    NpuFamily(),
)
PLUGINS = frozenset(family.plugin for family in ACCELERATORS)
"""Filters whose word on a node evictions may change."""


def families_of(pod: PodInfo) -> Iterator[Accelerator]:
    """The families of which a pod asks for devices; none is asked about a pod without extended resources."""
    return (family for family in ACCELERATORS if pod.extended and family.asks(pod))


def give(nodes: Mapping[str, int], now: FamilyRound) -> Given:
    """Devices of every family for a plan (pod key -> node position), on the draft as it is before it."""
    pods = now.scene.snapshot.pods
    asking: dict[Accelerator, dict[str, int]] = {}
    for key, node in nodes.items():
        for family in families_of(pods[key]):
            asking.setdefault(family, {})[key] = node
    if not asking:
        return NOTHING
    given = [family.give(asking[family], now) for family in ACCELERATORS if family in asking]
    chips = {key: own for one in given for key, own in one.chips.items()}
    return Given(chips, merged(*(one.notes for one in given)), tuple(fault for one in given for fault in one.faults))


def apart(pod: PodInfo) -> Hashable:
    """What tells pods apart that are equal in requests and nodes."""
    return tuple(family.apart(pod) if family.asks(pod) else None for family in ACCELERATORS)


def shared_room(pods: Sequence[PodInfo], scene: Scene) -> list[tuple[Accelerator, Ints]]:
    """[nodes] devices that all pods of a unit share, of each family that says so."""
    found = ((family, family.room(pods, scene)) for family in ACCELERATORS)
    return [(family, room) for family, room in found if room is not None]


def worth(kinds: Sequence[PodInfo], members: Sequence[PodInfo], now: FamilyRound, *, gather: bool) -> NodeWorth | None:
    """What nodes are worth to a unit by the first family that has something to say of it."""
    for family in ACCELERATORS:
        found = family.worth(kinds, members, now, gather=gather)
        if found is not None:
            return found
    return None
