# SPDX-License-Identifier: Apache-2.0
"""An independent check of the nodes of a plan for jobs under switches or in SuperPoDs (ascend.md 4 and 5).

It runs before a plan is carried out, to find errors in the placement of jobs. It applies the rules to node names,
annotations and the switch table, for bound and new pods together. It does not use the planner's rows, leaves and
blocks. A rule that bound pods already violate is no fault of new pods, because a plan does not move bound pods.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from koordpy.api import keys
from koordpy.devices.ascend.family.npu_round import ascend_jobs, bind_placed, npu_job
from koordpy.devices.ascend.tables.ascend_job import AscendJob, Tor
from koordpy.devices.ascend.tables.npu_book import npu_resource, npus_of, super_pod_of
from koordpy.devices.ascend.tables.switch_table import Switches
from koordpy.devices.family_round import FamilyRound
from koordpy.pods.gang_refs import GangRef
from koordpy.pods.pod_info import PodInfo

Notes = Mapping[str, Mapping[str, str]]
"""Pod key -> annotations of its Binding."""


def check_places(placed: Sequence[tuple[PodInfo, str]], notes: Notes, now: FamilyRound) -> list[str]:
    """Returns the faults of a plan's nodes, on the draft before the plan.

    placed: (pod, node name) of each pod of the plan. notes: pod key -> annotations of its Binding.
    """
    jobs: dict[int, tuple[AscendJob, dict[str, str]]] = {}
    for pod, node in placed:
        job = npu_job(pod, now.inputs)
        if isinstance(job, AscendJob) and job.own_order:
            key = id(job) if pod.gang is not None else id(pod)
            if key not in jobs:
                jobs[key] = bind_placed(job, now), {}
            jobs[key][1][pod.key] = node
    faults: list[str] = []
    for job, new in jobs.values():
        old = {pod.key: pod.node for pod in job.pods if pod.bound and pod.key not in now.inputs.draft.evicted}
        faults += _check_servers(job, new, old)
        if job.blocks is not None:
            faults += _check_blocks(job, new, old, notes, now)
        else:
            faults += _SwitchCheck(job, new, old, notes, now).faults()
    return faults


def _check_servers(job: AscendJob, new: Mapping[str, str], old: Mapping[str, str]) -> list[str]:
    """Returns a fault for each node with more than one pod of the job. new, old: pod key -> node name of new and bound
    pods."""
    on = Counter([*new.values(), *old.values()])
    crowded = (node for node in dict.fromkeys(new.values()) if on[node] > 1)
    return [f"{job.name}: {on[node]} pods are on server {node}, at most 1 is possible" for node in crowded]


def _check_blocks(
    job: AscendJob, new: Mapping[str, str], old: Mapping[str, str], notes: Notes, now: FamilyRound
) -> list[str]:
    """Checks the blocks of a SuperPoD job: each is in one SuperPoD, and a block of a hard job has all of its ranks.

    A block is a number of consecutive ranks. new, old: pod key -> node name of new and bound pods.
    """
    wish = job.blocks
    assert wish is not None
    nodes = {info.name: info for info in now.inputs.snapshot.nodes}
    faults: list[str] = []
    homes: dict[str, dict[str, None]] = {}
    before: dict[str, set[str]] = {}
    sizes: Counter[str] = Counter()
    touched: dict[str, None] = {}
    # for each block: SuperPoDs of all its pods (`homes`) and of its bound pods (`before`), its number of nodes
    # (`sizes`), and whether the plan places a pod of it (`touched`)
    for rank, pod in enumerate(job.pods):
        node = new.get(pod.key) or old.get(pod.key)
        if pod.bound and pod.key not in old:
            sizes[_block_of(pod, rank, wish.size)] += 1  # the pod is moved, and returns to its block
        if node is None or node not in nodes:
            continue
        home = super_pod_of(nodes[node].node)
        number = _block_of(pod, rank, wish.size)
        if pod.key in new:
            noted = notes.get(pod.key, {})
            number = noted.get(keys.SUPER_POD_RANK, "")
            if not home or noted.get(keys.BOUND_SUPER_POD) != home:
                faults.append(f"{pod.key}: node {node} is in SuperPoD {home or '-'}, not in the one of its annotation")
            if not wish.soft and not old and number != str(rank // wish.size):
                faults.append(f"{pod.key}: rank {rank} is in block {number}, blocks have {wish.size} nodes")
            touched[number] = None
        else:
            before.setdefault(number, set()).add(home)
        homes.setdefault(number, {})[home] = None
        sizes[number] += 1
    # faults only of blocks with a new pod
    for number in touched:
        if len(homes[number]) > max(1, len(before.get(number, ()))):
            faults.append(f"{job.name}: block {number} is in SuperPoDs {', '.join(homes[number])}")
        if sizes[number] > wish.size or (not wish.soft and number not in before and sizes[number] < wish.size):
            faults.append(f"{job.name}: block {number} has {sizes[number]} of {wish.size} nodes")
    return faults


def _block_of(pod: PodInfo, rank: int, size: int) -> str:
    """Returns the block of a bound pod: its annotation, else the block of its rank."""
    return pod.pod.metadata.annotations.get(keys.SUPER_POD_RANK, "") or str(rank // size)


@dataclass
class _SwitchCheck:
    """Checks one job under leaf switches. new, old: pod key -> node name of new and bound pods."""

    job: AscendJob
    new: Mapping[str, str]
    old: Mapping[str, str]
    notes: Notes
    now: FamilyRound

    def faults(self) -> list[str]:
        """Returns the faults of the job's new nodes by the configured rule set."""
        switches = ascend_jobs(self.now.inputs).switches
        if not isinstance(switches, Switches):
            return [f"{self.job.name}: {switches}"]
        index = self.now.inputs.snapshot.index
        self.leaf = {name: switches.leaf_of[i] for name, i in index.items() if i in switches.leaf_of}
        self.slice = {name: switches.slice_of[i] for name, i in index.items() if i in switches.leaf_of}
        self.switches = switches
        stray = [node for node in self.new.values() if node not in self.leaf]
        if stray:
            return [f"{self.job.name}: node {stray[0]} is not under a leaf of the switch table"]
        before = {self.leaf[node] for node in self.old.values() if node in self.leaf}
        after = before | {self.leaf[node] for node in self.new.values()}
        confined = self.job.tor is Tor.PADDING or switches.table.single_layer
        if confined and len(after) > max(1, len(before)):
            return [f"{self.job.name}: at most one leaf is allowed, the plan uses {len(after)}"]
        if len(after) < 2 or confined:
            return []
        if self.now.inputs.config.ascend.nslb_version == "2.0":
            return self._check_rules_v2(after)
        return [*self._check_uplinks(), *self._check_positions()]

    def _spanning(self) -> dict[int, list[GangRef]]:
        """Returns leaf -> other gangs that span several leaves and have pods under this leaf."""
        draft = self.now.inputs.draft
        snapshot = draft.snapshot
        own = self.job.pods[0].gang
        where: dict[GangRef, set[int]] = {}
        for ref, members in npus_of(snapshot).jobs.items():
            where[ref] = {self.leaf[p.node] for p in members if p.node in self.leaf and p.key not in draft.evicted}
        for key, node in draft.placed.items():
            pod = snapshot.pods[key]
            name = snapshot.nodes[node].name
            if pod.gang is not None and npu_resource(pod.requests) is not None and name in self.leaf:
                where.setdefault(pod.gang, set()).add(self.leaf[name])
        out: dict[int, list[GangRef]] = {}
        for ref, leaves in where.items():
            if ref != own and len(leaves) > 1:
                for leaf in leaves:
                    out.setdefault(leaf, []).append(ref)
        return out

    def _check_uplinks(self) -> list[str]:
        """Checks rule set 1.0: no new pod of a spanning job is under the leaf of another spanning job.

        A common job avoids only leaves of foundation models, and a returning common job avoids none.
        """
        common = self.job.tor is Tor.COMMON
        if common and self.old:
            return []
        spanning = self._spanning()
        faults = []
        for leaf in sorted({self.leaf[node] for node in self.new.values()}):
            kinds = [ascend_jobs(self.now.inputs).tor(ref) for ref in spanning.get(leaf, ())]
            if any(kind is Tor.FOUNDATION or not common for kind in kinds):
                tor = self.switches.table.leaves[leaf].tor_id
                faults.append(f"{self.job.name}: leaf {tor} carries another spanning job")
        return faults

    def _check_positions(self) -> list[str]:
        """Checks rule set 1.0 for a foundation model: each slice position belongs to one column.

        A column is the ranks that are congruent modulo c, the slice positions of a leaf. All of them must be at one
        position, and ranks of other columns must not be there.
        """
        if self.job.tor is not Tor.FOUNDATION:
            return []
        c = self.switches.table.positions
        columns: dict[int, set[int]] = {}
        before: dict[int, set[int]] = {}
        for rank, pod in enumerate(self.job.pods):
            node = self.new.get(pod.key) or self.old.get(pod.key)
            if node in self.slice:
                columns.setdefault(rank % c, set()).add(self.slice[node])
                if pod.key in self.old:
                    before.setdefault(rank % c, set()).add(self.slice[node])
        faults = [
            f"{self.job.name}: ranks {column}, {column + c}, ... are at slice positions {sorted(found)}"
            for column, found in sorted(columns.items())
            if len(found) > max(1, len(before.get(column, ())))
        ]
        for at in range(c):
            here = [column for column, found in sorted(columns.items()) if at in found]
            if len(here) > max(1, sum(at in found for found in before.values())):
                faults.append(f"{self.job.name}: columns {here} share slice position {at}")
        return faults

    def _check_rules_v2(self, after: set[int]) -> list[str]:
        """Checks rule set 2.0: at most q healthy shared leaves, and no leaf that another job uses exclusively.

        Only a new common job may take an unhealthy shared leaf. after: leaves of the bound and the new pods.
        """
        spanning = self._spanning()
        taken = {self.leaf[node] for node in self.new.values()}
        before = {self.leaf[node] for node in self.old.values() if node in self.leaf}
        shared = 0
        faults = []
        for leaf in sorted(after & spanning.keys()):
            refs = spanning[leaf]
            kinds = {ascend_jobs(self.now.inputs).tor(ref) for ref in refs}
            alone = len(refs) == 1 and kinds == {Tor.FOUNDATION} and self._shared_marks(refs[0], leaf) == {"2"}
            if alone and leaf in taken - before:
                tor = self.switches.table.leaves[leaf].tor_id
                faults.append(f"{self.job.name}: leaf {tor} is used exclusively by another job")
            elif not alone and kinds <= {Tor.FOUNDATION, Tor.PADDING}:
                shared += 1
            elif not alone and leaf in taken - before and (self.old or self.job.tor is not Tor.COMMON):
                tor = self.switches.table.leaves[leaf].tor_id
                faults.append(f"{self.job.name}: leaf {tor} is shared with a job that is not a foundation model")
        most = self.now.inputs.config.ascend.shared_tor_num
        if shared > most and not taken <= before:
            faults.append(f"{self.job.name}: {shared} healthy shared leaves, at most {most}")
        return faults

    def _shared_marks(self, ref: GangRef, leaf: int) -> set[str]:
        """Returns the values of isSharedTor of a gang's pods under a leaf."""
        draft = self.now.inputs.draft
        snapshot = draft.snapshot
        out = {
            pod.pod.metadata.annotations.get(keys.SHARED_TOR, "")
            for pod in npus_of(snapshot).jobs.get(ref, ())
            if self.leaf.get(pod.node) == leaf and pod.key not in draft.evicted
        }
        for key, node in draft.placed.items():
            pod = snapshot.pods[key]
            if pod.gang == ref and self.leaf.get(snapshot.nodes[node].name) == leaf and npu_resource(pod.requests):
                out.add(self.now.notes.get(key, {}).get(keys.SHARED_TOR, ""))
        return out
