# SPDX-License-Identifier: Apache-2.0
"""Plans one job in logical SuperPoDs: its candidate nodes, its blocks, and the node of each rank.

A SuperPoD is a set of nodes with a fast fabric, named by a node label. A logical SuperPoD, or block, is a fixed number
of consecutive ranks that must share one SuperPoD. Pending ranks of a block with bound members are placed in the
SuperPoD of the block. The other blocks are divided among SuperPoDs by `superpod_shares` (docs/rules/ascend.md 5.1 to
5.3). O(nodes log nodes + members).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from koordpy.api import keys
from koordpy.api.counted_nouns import count_noun
from koordpy.api.natural_order import natural_key
from koordpy.devices.ascend.family.npu_round import ascend_jobs
from koordpy.devices.ascend.jobs.placed_members import Bools, usable_nodes
from koordpy.devices.ascend.tables.ascend_job import AscendJob, Blocks
from koordpy.devices.ascend.tables.superpod_shares import Grid, divide_blocks, divide_short_blocks
from koordpy.devices.placement_rules import JobPlan
from koordpy.feasibility.round_state import RoundState
from koordpy.pods.pod_info import PodInfo


class BlockJob:
    """One job in SuperPoDs on the current draft. `plan` places any of its pending pods."""

    def __init__(
        self,
        job: AscendJob,
        round_state: RoundState,
        *,
        within: Bools | None = None,
        numbers: Mapping[int, int] | None = None,
        again: Sequence[PodInfo] = (),
    ) -> None:
        """within: [nodes] allowed for members, None for all. numbers: rank -> block, if blocks are moved; None to read
        the blocks from bound members. again: evicted members, as pending pods."""
        assert job.blocks is not None
        self.job, self.round_state, self.wish = job, round_state, job.blocks
        self.grid = Grid(self.wish.size, self.wish.reserve)
        """Size of a block and reserve of a SuperPoD, in nodes."""
        self.why = ""
        """Reason why the last `plan` found no placement; empty if it found one."""
        self.stuck: tuple[int, ...] = ()
        """Blocks with bound members in a SuperPoD that has too few nodes for their pending members."""
        self.cost: tuple[Any, ...] = ()
        """Levels of the objective of the last choice of SuperPoDs; smaller is better. Empty if no block had to be
        chosen."""
        self._numbers = numbers
        able, self._chips = usable_nodes(job, round_state, again, within)
        found: dict[str, list[int]] = {}
        super_pods = ascend_jobs(round_state.inputs).super_pods
        for node in np.nonzero(able)[0].tolist():
            if node in super_pods:
                found.setdefault(super_pods[node], []).append(node)
        self.candidates: dict[str, list[int]] = {
            name: sorted(found[name], key=self._healthy_first) for name in sorted(found, key=natural_key)
        }
        """SuperPoD id -> candidate nodes, healthy nodes first, then by natural name."""

    def _healthy_first(self, node: int) -> tuple[bool, int]:
        """Returns the sort key of a node: healthy nodes first, then natural name."""
        sick = self._chips is not None and bool(self._chips.sub_healthy[node])
        return sick, int(self.round_state.snapshot.name_rank[node])

    @property
    def bound(self) -> dict[int, PodInfo]:
        """Rank -> pod, of bound members that the draft has not evicted."""
        gone = self.round_state.draft.evicted
        return {rank: pod for rank, pod in enumerate(self.job.pods) if pod.bound and pod.key not in gone}

    def plan(self, pods: Sequence[PodInfo]) -> JobPlan | None:
        """Places pending pods of the job; None if they must wait, with the reason in `why`.

        pods: in rank order. First, ranks of blocks with bound members go to the SuperPoD of their block. Then the other
        ranks get new blocks.
        """
        ranks = [self.job.ranks[pod.key] for pod in pods]
        numbers = self.numbers()
        shared = {numbers[rank] for rank in self.bound}
        homes = self.homes(numbers)
        assigned: dict[int, tuple[int, int]] = {}
        left = {name: list(nodes) for name, nodes in self.candidates.items()}
        self.why, self.stuck = "", ()
        fresh = [rank for rank in ranks if numbers[rank] not in shared]
        # ranks of blocks with bound members: on free nodes of the SuperPoD of their block
        for k in sorted({numbers[rank] for rank in ranks} & shared):
            waiting = [rank for rank in ranks if numbers[rank] == k]
            home = homes.get(k, "")
            free = left.get(home, [])
            if self.wish.soft:
                # a soft block may be incomplete: ranks that do not fit form another block
                bound_here = sum(numbers[rank] == k for rank in self.bound)
                room = max(0, min(len(free), self.grid.size - bound_here))
                waiting, more = waiting[:room], waiting[room:]
                fresh += more
            if len(free) < len(waiting):
                where = f"SuperPoD {home}" if home else "no SuperPoD"
                lacks = f"block {k} in {where} needs {count_noun(len(waiting), 'more node')}, {len(free)} usable"
                self.why = self.why or f"SuperPoD affinity: {lacks}"
                self.stuck = (*self.stuck, k)
                continue
            if waiting:
                taken, left[home] = free[: len(waiting)], free[len(waiting) :]
                assigned |= zip(waiting, ((k, node) for node in self._by_name(taken)), strict=True)
        if self.stuck:
            return None
        # the other ranks: new blocks on the nodes that are left
        if fresh:
            waiting = sorted(fresh)
            blocks = self.choose(left, len(waiting))
            if blocks is None:
                return None
            names = sorted({numbers[rank] for rank in waiting} - shared)
            names += [max(numbers.values()) + 1 + i for i in range(len(blocks) - len(names))]
            places = [(names[i], node) for i, block in enumerate(blocks) for node in block]
            assigned |= zip(waiting, places, strict=True)
        super_pods = ascend_jobs(self.round_state.inputs).super_pods
        nodes, notes = {}, {}
        for pod, rank in zip(pods, ranks, strict=True):
            number, node = assigned[rank]
            nodes[pod.key] = node
            notes[pod.key] = {keys.SUPER_POD_RANK: str(number), keys.BOUND_SUPER_POD: super_pods[node]}
        return JobPlan(nodes, notes=notes, cost=self.cost)

    def choose(self, left: Mapping[str, Sequence[int]], number: int) -> list[list[int]] | None:
        """Returns the nodes of each new block for `number` pods, in the order of block numbers; None if there are too
        few.

        left: SuperPoD -> its free candidate nodes. Whole blocks are divided first. A soft job may then get short
        blocks.
        """
        grid, soft = self.grid, self.wish.soft
        names = list(left)
        sizes = [len(left[name]) for name in names]
        need = number // grid.size
        total = sum(map(grid.most, sizes))
        if not soft and (total < need or number % grid.size):
            self.why = f"SuperPoD affinity: required {-(-number // grid.size)}, total {total}"
            return None
        if soft and sum(sizes) < number:
            self.why = f"SuperPoD affinity: required {number} nodes, total {sum(sizes)} nodes"
            return None
        # whole blocks, and the levels of their objective in the order of ascend.md 5.1
        whole = min(need, total)
        given = divide_blocks(sizes, whole, grid)
        assert given is not None
        used = [0] * len(names)
        out: list[list[int]] = []
        for i, share in given:
            for _ in range(share):
                out.append(self._by_name(left[names[i]][used[i] : used[i] + grid.size]))
                used[i] += grid.size
        shares = sorted((share for _, share in given), reverse=True)
        eaten = sum(max(0, share - grid.keep(sizes[i])) for i, share in given)
        suits = tuple(grid.key(sizes[i], share) for i, share in given)
        self.cost = (-whole, eaten, len(given), tuple(-share for share in shares), suits)
        # short blocks of a soft job; none for a hard job, because whole blocks contain all of its pods
        rest = [size - taken for size, taken in zip(sizes, used, strict=True)]
        short = divide_short_blocks(rest, [taken > 0 for taken in used], number - whole * grid.size, grid)
        assert short is not None
        for i, taken in short:
            out.append(self._by_name(left[names[i]][used[i] : used[i] + taken]))
        return out

    def _by_name(self, nodes: Sequence[int]) -> list[int]:
        """Returns nodes in natural order of their names."""
        return sorted(nodes, key=lambda node: int(self.round_state.snapshot.name_rank[node]))

    def numbers(self) -> dict[int, int]:
        """Returns rank -> number of its block.

        The annotation of a bound pod states the block. Any other rank has the block of its position, `rank // size`.
        Except if incomplete blocks of a soft job have shifted the positions: then a rank gets the block of the nearest
        bound rank, of the lower one if that block has a free place.
        """
        if self._numbers is not None:
            return dict(self._numbers)
        size = self.grid.size
        annotated: dict[int, int] = {}
        for rank, pod in self.bound.items():
            text = pod.pod.metadata.annotations.get(keys.SUPER_POD_RANK, "")
            annotated[rank] = int(text) if text.isascii() and text.isdigit() and len(text) < 9 else rank // size
        out: dict[int, int] = {}
        for rank in range(len(self.job.pods)):
            if rank in annotated:
                out[rank] = annotated[rank]
                continue
            mates = [
                annotated[other]
                for other in range(rank // size * size, rank // size * size + size)
                if other in annotated
            ]
            below = [other for other in annotated if other < rank]
            plain = all(annotated[other] == other // size for other in below)
            if plain and all(k == rank // size for k in mates):
                out[rank] = rank // size
            else:
                out[rank] = self._nearest_block(rank, annotated)
        return out

    def _nearest_block(self, rank: int, annotated: Mapping[int, int]) -> int:
        """Returns the block of the nearest bound rank below or above that still has a free place; else a new block.

        annotated: rank -> block of the bound ranks.
        """
        below = max((other for other in annotated if other < rank), default=None)
        above = min((other for other in annotated if other > rank), default=None)
        if below is not None and rank - min(r for r, k in annotated.items() if k == annotated[below]) < self.grid.size:
            return annotated[below]
        if above is not None and max(r for r, k in annotated.items() if k == annotated[above]) - rank < self.grid.size:
            return annotated[above]
        return max(annotated.values()) + 1

    def homes(self, numbers: Mapping[int, int]) -> dict[int, str]:
        """Returns block -> SuperPoD with most of the bound members of the block. numbers: rank -> block."""
        snapshot, super_pods = self.round_state.snapshot, ascend_jobs(self.round_state.inputs).super_pods
        counts: dict[int, Counter[str]] = {}
        for rank, pod in self.bound.items():
            name = super_pods.get(snapshot.index.get(pod.node, -1))
            if name is not None:
                counts.setdefault(numbers[rank], Counter())[name] += 1
        return {k: min(own, key=lambda name: (-own[name], natural_key(name))) for k, own in counts.items()}

    def remark(self) -> str:
        """Returns why the pods of the last plan wait; empty if there is no reason."""
        return self.why


def step(blocks: Blocks | None) -> int:
    """Returns by how many pods an elastic job grows or shrinks: the ranks of a block, or 1 for a job without blocks."""
    return blocks.size if blocks is not None else 1
