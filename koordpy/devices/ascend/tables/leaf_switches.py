# SPDX-License-Identifier: Apache-2.0
"""The leaves of the switch network for one job: usable servers, and the other jobs that use the uplinks.

A job spans if its pods are under several leaves; it then uses the uplinks of these leaves. Nothing is stored between
rounds: the state of a leaf is read from the pods under it and their annotations (docs/rules/ascend.md 4).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from koordpy.api import keys
from koordpy.devices.ascend.tables.ascend_job import AscendJob, Tor
from koordpy.devices.ascend.tables.ascend_jobs import AscendJobs
from koordpy.devices.ascend.tables.npu_book import npus_of
from koordpy.devices.ascend.tables.switch_table import Switches
from koordpy.pods.gang_refs import GangRef
from koordpy.pods.pod_info import PodInfo


class Server(NamedTuple):
    """A usable node under a leaf."""

    node: int
    """Position of the node."""
    at: int
    """Slice position under the leaf."""
    affinity: int
    """AscendAffinity of the node for the job's pods; higher is better."""


@dataclass(frozen=True, slots=True)
class LeafState:
    """One leaf switch as one job sees it."""

    number: int
    """Index into `Table.leaves`."""
    tor_id: int
    """Id of the switch in the table."""
    tor_ip: str
    """IP address of the switch; empty if unknown."""
    servers: tuple[Server, ...]
    """Usable servers by slice position."""
    spanning: tuple[Tor, ...] = ()
    """Switch affinity of each other job with pods under this leaf and under further leaves."""
    whole: bool = False
    """True if the only spanning job has marked the leaf as exclusively used."""

    @property
    def count(self) -> int:
        """Number of usable servers."""
        return len(self.servers)

    @property
    def idle(self) -> bool:
        """True if no other spanning job has pods under the leaf."""
        return not self.spanning

    @property
    def exclusive(self) -> bool:
        """True if one foundation model uses the leaf alone, by the marks on its pods."""
        return self.spanning == (Tor.FOUNDATION,) and self.whole

    @property
    def shared(self) -> bool:
        """True if other spanning jobs use the leaf, and none exclusively."""
        return not self.idle and not self.exclusive

    @property
    def healthy(self) -> bool:
        """True if every spanning job under the leaf is a foundation model or a padding job."""
        return all(kind in (Tor.FOUNDATION, Tor.PADDING) for kind in self.spanning)

    def part(self, number: int) -> tuple[Server, ...]:
        """Returns the best `number` servers by AscendAffinity, then slice position; in the order of positions."""
        chosen = sorted(self.servers, key=lambda server: (-server.affinity, server.at))[:number]
        return tuple(sorted(chosen, key=lambda server: server.at))


class PlannedServer(NamedTuple):
    """A server that a plan uses, and its leaf."""

    server: Server
    leaf: LeafState


def leaf_order(leaves: Sequence[LeafState]) -> list[LeafState]:
    """Returns leaves with most usable servers first, then by tor_id."""
    return sorted(leaves, key=lambda leaf: (-leaf.count, leaf.tor_id))


def tightest(leaves: Sequence[LeafState], number: int) -> LeafState | None:
    """Returns the leaf with the fewest usable servers that has at least `number`; None for none."""
    able = [leaf for leaf in leaves if leaf.count >= number]
    return min(able, key=lambda leaf: (leaf.count, leaf.tor_id), default=None)


def servers_of(leaf: LeafState, number: int) -> list[PlannedServer]:
    """Returns `number` servers of a leaf, in the order of slice positions; fewer if it has fewer."""
    return [PlannedServer(server, leaf) for server in leaf.part(number)]


def used_up(leaves: Iterable[LeafState], number: int) -> list[PlannedServer]:
    """Returns at most `number` servers of leaves; each leaf is used up before the next."""
    found: list[PlannedServer] = []
    for leaf in leaves:
        found += servers_of(leaf, number - len(found))
    return found


@dataclass(frozen=True, slots=True)
class _Spanning:
    """A job that spans several leaves."""

    kind: Tor
    """Switch affinity of the job."""
    leaves: frozenset[int]
    """Numbers of the leaves."""
    marks: Mapping[int, frozenset[str]]
    """Leaf -> values of isSharedTor of the job's pods under it."""


class Uplinks:
    """Finds the jobs that span several leaves, from the bound pods of the snapshot and the changes of the draft."""

    def __init__(self, jobs: AscendJobs, switches: Switches) -> None:
        self._jobs, self._switches = jobs, switches
        self._base: dict[GangRef, tuple[PodInfo, ...]] = dict(npus_of(jobs.snapshot).jobs)

    def of(
        self,
        placed: Mapping[str, int],
        evicted: Mapping[str, PodInfo],
        marks: Mapping[str, Mapping[str, str]],
        *,
        without: GangRef | None,
    ) -> dict[int, list[_Spanning]]:
        """Returns leaf number -> spanning jobs with pods under the leaf, without one gang.

        placed: pod key -> node position of pods on the draft. evicted: pods that the draft evicts. marks: pod key ->
        annotations of the Bindings of placed pods.
        """
        snapshot, leaf_of = self._jobs.snapshot, self._switches.leaf_of
        added: dict[GangRef, list[tuple[str, int]]] = {}
        for key, node in placed.items():
            gang = snapshot.pods[key].gang
            if gang is not None and gang != without:
                added.setdefault(gang, []).append((key, node))
        out: dict[int, list[_Spanning]] = {}
        for ref in dict.fromkeys((*self._base, *added)):
            if ref == without:
                continue
            leaf_marks: dict[int, set[str]] = {}
            for pod in self._base.get(ref, ()):
                at = leaf_of.get(snapshot.index.get(pod.node, -1))
                if at is not None and pod.key not in evicted:
                    leaf_marks.setdefault(at, set()).add(pod.pod.metadata.annotations.get(keys.SHARED_TOR, ""))
            for key, node in added.get(ref, ()):
                at = leaf_of.get(node)
                if at is not None and key in self._npu_keys(ref):
                    leaf_marks.setdefault(at, set()).add(marks.get(key, {}).get(keys.SHARED_TOR, ""))
            if len(leaf_marks) > 1:
                frozen = {leaf: frozenset(texts) for leaf, texts in leaf_marks.items()}
                one = _Spanning(self._jobs.tor(ref), frozenset(frozen), frozen)
                for leaf in frozen:
                    out.setdefault(leaf, []).append(one)
        return out

    def _npu_keys(self, ref: GangRef) -> frozenset[str]:
        """Returns the keys of the NPU members of a gang."""
        return frozenset(pod.key for pod in self._jobs.members(ref))


def read_leaves(
    switches: Switches, usable: Mapping[int, int], spanning: Mapping[int, Sequence[_Spanning]]
) -> tuple[LeafState, ...]:
    """Returns the leaves by tor_id. usable: node position -> AscendAffinity, of nodes that the job may use."""
    servers: dict[int, list[Server]] = {}
    for node, affinity in usable.items():
        home = switches.leaf_of.get(node)
        if home is not None:
            servers.setdefault(home, []).append(Server(node, switches.slice_of[node], affinity))
    out = []
    for number, leaf in enumerate(switches.table.leaves):
        own = sorted(servers.get(number, ()), key=lambda server: server.at)
        jobs = spanning.get(number, ())
        whole = len(jobs) == 1 and jobs[0].marks[number] == {"2"}
        kinds = tuple(sorted((job.kind for job in jobs), key=lambda kind: kind.value))
        out.append(LeafState(number, leaf.tor_id, leaf.tor_ip, tuple(own), kinds, whole))
    return tuple(out)


def bound_nodes(
    job: AscendJob, switches: Switches, index: Mapping[str, int], gone: Mapping[str, PodInfo]
) -> dict[int, int]:
    """Returns rank -> node position of the job's bound pods under a leaf. gone: pods that the draft evicts."""
    out = {}
    for rank, pod in enumerate(job.pods):
        node = index.get(pod.node, -1) if pod.bound and pod.key not in gone else -1
        if node in switches.leaf_of:
            out[rank] = node
    return out


def per_position(leaves: Sequence[LeafState], positions: int) -> str:
    """Returns the number of usable servers at each slice position as text, such as `0: 4, 1: 3`."""
    counts = Counter(server.at for leaf in leaves for server in leaf.servers)
    return ", ".join(f"{at}: {counts[at]}" for at in range(positions))
