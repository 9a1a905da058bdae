"""A job that asks for switches: usable servers, its plan by the configured rule set, annotations (ascend.md 4)."""

from collections.abc import Mapping, Sequence

import numpy as np

from koordpy.api import keys
from koordpy.cluster.pods import PodInfo
from koordpy.planning.ascend import tor1, tor2
from koordpy.planning.ascend.job import AscendJob, Tor
from koordpy.planning.ascend.leaves import (
    LeafState,
    Seat,
    Uplinks,
    bound_seats,
    per_position,
    read_leaves,
    seats,
    tightest,
)
from koordpy.planning.ascend.switches import Switches
from koordpy.planning.figures import Figures
from koordpy.planning.jobs.ascend.standing import Bools, Placed, usable_nodes


class SwitchJob:
    """One job on a draft; `plan` answers for any of its pending pods."""

    def __init__(
        self, job: AscendJob, figures: Figures, *, within: Bools | None = None, again: Sequence[PodInfo] = ()
    ) -> None:
        """within: [nodes] where members may go at all; again: evicted members as they come back."""
        switches = figures.jobs.switches
        assert isinstance(switches, Switches)
        self.job, self.figures, self.switches = job, figures, switches
        draft, snapshot = figures.draft, figures.snapshot
        self._bound = bound_seats(job, switches, snapshot.index, draft.evicted)
        able, chips = usable_nodes(job, figures, again, within)
        where = np.nonzero(able)[0]
        usable = dict(zip(where.tolist(), chips.affinity[where].tolist(), strict=True)) if chips is not None else {}
        gang = job.pods[0].gang
        spanning = Uplinks(figures.jobs, switches).of(draft.placed, draft.evicted, figures.notes, without=gang)
        self.leaves: tuple[LeafState, ...] = read_leaves(switches, usable, spanning)

    @property
    def positions(self) -> int:
        """Slice positions of a leaf."""
        return self.switches.table.positions

    def plan(self, pods: Sequence[PodInfo]) -> Placed | None:
        """Places pending pods of the job, in rank order; None where they wait."""
        job, config = self.job, self.figures.config.ascend
        second = config.nslb_version == "2.0"
        found: Sequence[Seat] | None
        own: dict[int, str] = {}
        if self._bound:
            own = self._own_marks()
            if self.switches.table.single_layer or (second and not own):
                found = tor2.place_again(self.leaves, own, len(pods), kind=Tor.PADDING, shared_most=0)
            elif second:
                most = config.shared_tor_num
                found = tor2.place_again(self.leaves, own, len(pods), kind=job.tor, shared_most=most)
            else:
                found = self._return(pods)
        elif self.switches.table.single_layer:
            one = tightest(self.leaves, len(pods))
            found = seats(one, len(pods)) if one is not None else None
        elif second:
            most = config.shared_tor_num
            found = tor2.place(self.leaves, len(pods), self.positions, kind=job.tor, shared_most=most)
        else:
            found = tor1.place(self.leaves, len(pods), self.positions, job.tor)
        if found is None:
            return None
        nodes = {pod.key: seat.server.node for pod, seat in zip(pods, found, strict=True)}
        notes: dict[str, Mapping[str, str]] = {}
        if second:
            notes = {pod.key: own for pod, own in zip(pods, tor2.marks(found, job.tor, own), strict=True)}
        return Placed(nodes, notes=notes, worth=(len({seat.leaf.number for seat in found}),))

    def _own_marks(self) -> dict[int, str]:
        """Leaf -> isSharedTor of the job's pods that stand under it."""
        out: dict[int, str] = {}
        for rank, node in self._bound.items():
            said = self.job.pods[rank].pod.metadata.annotations.get(keys.SHARED_TOR, "")
            leaf = self.switches.leaf_of[node]
            out[leaf] = max(out.get(leaf, ""), said)
        return out

    def _return(self, pods: Sequence[PodInfo]) -> list[Seat] | None:
        switches = self.switches
        at = {rank: (switches.leaf_of[node], switches.slice_of[node]) for rank, node in self._bound.items()}
        ranks = [self.job.ranks[pod.key] for pod in pods]
        found = tor1.place_again(self.leaves, at, ranks, self.positions, self.job.tor)
        return [found[rank] for rank in ranks] if found is not None else None

    def remark(self) -> str:
        """Why the pods wait."""
        text = f"switch affinity: needed {len(self.job.pods)}"
        if self._bound:
            text += f", {len(self._bound)} of them bound"
        if self.figures.config.ascend.nslb_version == "2.0":
            idle = sum(leaf.count for leaf in self.leaves if leaf.idle)
            shared = sum(leaf.count for leaf in self.leaves if leaf.shared)
            own = sum(leaf.count for leaf in self.leaves if leaf.exclusive)
            return (
                f"{text}, usable servers: {idle} under idle leaves, {shared} under shared, {own} under exclusive ones"
            )
        return f"{text}, usable servers per slice position: {per_position(self.leaves, self.positions)}"
