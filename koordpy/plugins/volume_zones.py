# SPDX-License-Identifier: Apache-2.0
"""VolumeZone filter: a node must be in the zone and region of the volumes that a pod's claims are bound to.

Zone and region are labels of the PersistentVolume, with the current or the beta name. A label may list several zones,
joined by `__`. A node without any zone or region label passes (kube-parity.md 2.8).
"""

from collections.abc import Mapping, Sequence

import numpy as np

from koordpy.cache.plan_draft import Draft
from koordpy.framework.filter_protocol import Code, Refusal, Verdict, all_fit, refused_where
from koordpy.framework.pod_rule_filter import Rule
from koordpy.plugins.volume_claims import claims_of
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.volume_book import VolumeObjects

ZONE = Refusal("VolumeZone", Code.UNRESOLVABLE, ("node(s) had no available volume zone",))

_ZONE_LABELS = {
    "topology.kubernetes.io/zone": "failure-domain.beta.kubernetes.io/zone",
    "topology.kubernetes.io/region": "failure-domain.beta.kubernetes.io/region",
}
"""Current label -> beta label of the same meaning."""
_SAME = {**_ZONE_LABELS, **{beta: ga for ga, beta in _ZONE_LABELS.items()}}
"""Each of these labels -> the other label of the same meaning."""


class VolumeZone(Rule):
    """Refuses nodes outside the zones and regions of the pod's bound volumes. Placements do not change the verdict."""

    plugin = ZONE.plugin
    is_in_problem = True

    def __init__(self, pod: PodInfo, draft: Draft, objects: VolumeObjects) -> None:
        wanted: list[tuple[str, frozenset[str]]] = []
        for key in claims_of(pod):
            claim = objects.claims.get(key)
            volume = objects.volumes.get(claim.spec.volume_name) if claim is not None else None
            labels = volume.metadata.labels if volume is not None else {}
            wanted += [(label, frozenset(labels[label].split("__"))) for label in _SAME if label in labels]
        nodes = draft.snapshot.nodes
        self.silent = not wanted
        """True if no bound volume has such a label, so that the filter passes every node."""
        self._verdict = all_fit(len(nodes))
        if wanted:
            wrong = (not _in_zones(node.labels, wanted) for node in nodes)
            self._verdict = refused_where(np.fromiter(wrong, dtype=bool, count=len(nodes)), ZONE)

    def change(self, pod: PodInfo, node: int, sign: int) -> bool:
        """Implements `Rule.change`: pods do not change the verdict."""
        return False

    def verdict(self) -> Verdict:
        """Implements `Rule.verdict`."""
        return self._verdict


def _in_zones(labels: Mapping[str, str], wanted: Sequence[tuple[str, frozenset[str]]]) -> bool:
    """Returns True if each label in `wanted` has an allowed value, or if the node has no zone or region label at all.

    wanted: (label, allowed values).
    """
    if not any(label in labels for label in _SAME):
        return True
    return all(labels.get(label, labels.get(_SAME[label])) in values for label, values in wanted)
