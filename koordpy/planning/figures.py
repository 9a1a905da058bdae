"""What every node offers to pods of one shape: verdicts, slots and scores, kept up to date as a plan grows.

The part that depends on labels and taints alone is computed once a shape and shared between rounds (PlannerCache); the
part that depends on room is an array whose rows of changed nodes are computed anew (kube-parity.md sections 2 and 3).
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from koordpy.api.config import KoordpyConfiguration
from koordpy.api.quantity import is_extended
from koordpy.cluster.pods import PodInfo
from koordpy.cluster.snapshot import Draft, Ints, Snapshot
from koordpy.planning.filters import node as node_filters
from koordpy.planning.filters.base import Refusal, Verdict, chain
from koordpy.planning.filters.fit import check_fit
from koordpy.planning.filters.interpod import check_existing
from koordpy.planning.filters.unsupported import unsupported
from koordpy.planning.scores import PACKING, StaticScores, normalised, resources_fit, static_scores


@dataclass(frozen=True, eq=False)
class Static:
    """Verdicts and scores of a shape that do not depend on room."""

    before: Verdict
    """Filters 1 to 4 of the table."""
    refusal: Refusal | None
    """The pod as a whole is refused: no node is tried."""
    scores: StaticScores


@dataclass
class PlannerCache:
    """Static figures of shapes, kept between rounds for as long as the nodes' labels and taints stay."""

    version: int = -1
    shapes: dict[bytes, Static] = field(default_factory=dict)

    def at(self, version: int) -> dict[bytes, Static]:
        """The figures that hold for a snapshot's static_version."""
        if self.version != version or len(self.shapes) > 4096:
            self.version = version
            self.shapes = {}
        return self.shapes


class ShapeFigures:
    """Figures of one shape on a Draft. `slots` and `total` are current after `refresh`."""

    def __init__(self, owner: "Figures", pod: PodInfo, static: Static) -> None:
        self._owner = owner
        self.pod = pod
        self.static = static
        self.refusal = static.refusal
        snapshot = owner.snapshot
        ignored = owner.ignored
        asked = {name: amount for name, amount in pod.requests.items() if not ignored(name)}
        request = snapshot.vector(asked)
        if request is None:
            raise AssertionError(f"{pod.key} asks for a resource the snapshot has no column of")
        self.request = request
        self.names = ("", *asked)
        """Resource of each entry of `request`; the first is the pod itself."""
        self.after = check_existing(snapshot.nodes, snapshot.index, pod.pod, snapshot.anti_affine, snapshot.namespaces)
        passes = static.before.fits & self.after.fits
        if static.refusal is not None:
            passes = np.zeros_like(passes)
        self.allowed: Ints = passes.astype(np.int64)
        count = len(snapshot.nodes)
        self.slots: Ints = np.zeros(count, dtype=np.int64)
        self.fit: Ints = np.zeros(count, dtype=np.int64)
        self._seen = len(owner.draft.touched)
        self._update(slice(None))
        self._level()

    def refresh(self) -> None:
        """Catches up with the draft's changes."""
        touched = self._owner.draft.touched
        if self._seen == len(touched):
            return
        changed = touched[self._seen :]
        self._seen = len(touched)
        rows = np.array(changed if len(changed) == 1 else sorted(set(changed)), dtype=np.int64)
        self._update(rows)
        if self._varies:
            self._level()
        else:
            self.total[rows] = self._constant[rows] + self._fit_weight * self.fit[rows]

    def _update(self, rows: NDArray[np.int64] | slice) -> None:
        owner = self._owner
        free = owner.snapshot.allocatable[rows] - owner.draft.used[rows]
        room = free[:, 0]
        for column, amount in self.request[1:]:
            room = np.minimum(room, np.floor_divide(free[:, column], amount))
        self.slots[rows] = np.maximum(room, 0) * self.allowed[rows]
        self.fit[rows] = resources_fit(
            owner.snapshot,
            owner.draft.used,
            owner.draft.score_used,
            self.pod,
            rows=rows,
            config=owner.config.scores.node_resources_fit,
        )

    def _level(self) -> None:
        """Normalises the scores over the nodes that are feasible now."""
        scores = self._owner.config.scores
        raw = self.static.scores
        self._varies = bool(raw.untolerated.any() or raw.preferred.any())
        self._constant: Ints = np.zeros(len(self.slots), dtype=np.int64)
        for plugin, values in normalised(raw, self.slots > 0).items():
            self._constant = self._constant + scores.weight(plugin) * values
        self._fit_weight = scores.weight(PACKING)
        self.total: Ints = self._constant + self._fit_weight * self.fit

    @property
    def soft(self) -> Ints:
        """The total without what packs: what counts where a gather goal exists."""
        return self._constant

    def plugin_scores(self) -> dict[str, Ints]:
        """Plugin -> [nodes] 0..100, unweighted."""
        return {**normalised(self.static.scores, self.slots > 0), PACKING: self.fit}

    def verdict(self) -> Verdict:
        """Every filter's word on the draft as it is, this pod alone."""
        owner = self._owner
        fit = check_fit(owner.snapshot.allocatable, owner.draft.used, self.request, self.names)
        return chain([self.static.before, fit, self.after])


class Figures:
    """Figures of every shape that a round meets."""

    def __init__(self, draft: Draft, config: KoordpyConfiguration, cache: PlannerCache | None = None) -> None:
        self.draft = draft
        self.snapshot: Snapshot = draft.snapshot
        self.config = config
        self._static = (cache or PlannerCache()).at(self.snapshot.static_version)
        self._shapes: dict[bytes, ShapeFigures] = {}

    def ignored(self, resource: str) -> bool:
        """Whether the configuration takes a resource out of the fit check; extended ones only (kube-parity.md 2.5)."""
        fit = self.config.filters.node_resources_fit
        if not (fit.ignored_resources or fit.ignored_resource_groups) or not is_extended(resource):
            return False
        return resource in fit.ignored_resources or resource.partition("/")[0] in fit.ignored_resource_groups

    def of(self, pod: PodInfo) -> ShapeFigures:
        """The figures of a pending pod's shape, current."""
        found = self._shapes.get(pod.shape)
        if found is None:
            static = self._static.get(pod.shape)
            if static is None:
                static = self._static[pod.shape] = self._look(pod)
            found = self._shapes[pod.shape] = ShapeFigures(self, pod, static)
        else:
            found.refresh()
        return found

    def _look(self, pod: PodInfo) -> Static:
        nodes, wire = self.snapshot.nodes, pod.pod
        refusal = unsupported(wire)
        affinity = node_filters.check_affinity(nodes, wire)
        parts = [node_filters.check_named(nodes, wire), node_filters.check_unschedulable(nodes, wire)]
        parts.append(node_filters.check_taints(nodes, wire))
        if isinstance(affinity, Refusal):
            refusal = affinity
        else:
            parts.append(node_filters.check_added(nodes, self.config.filters.node_affinity.added_affinity))
            parts.append(affinity)
        return Static(before=chain(parts), refusal=refusal, scores=static_scores(nodes, wire))
