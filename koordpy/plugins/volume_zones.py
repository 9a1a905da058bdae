"""VolumeZone: zone and region of the volumes that a pod's claims are bound to (kube-parity.md 2.8)."""

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
_SAME = {**_ZONE_LABELS, **{beta: ga for ga, beta in _ZONE_LABELS.items()}}


class VolumeZone(Rule):
    """Checks zone and region labels of bound volumes, on nodes that have any of these labels."""

    plugin = ZONE.plugin
    together = True

    def __init__(self, pod: PodInfo, draft: Draft, objects: VolumeObjects) -> None:
        wanted: list[tuple[str, frozenset[str]]] = []
        for key in claims_of(pod):
            claim = objects.claims.get(key)
            volume = objects.volumes.get(claim.spec.volume_name) if claim is not None else None
            labels = volume.metadata.labels if volume is not None else {}
            wanted += [(label, frozenset(labels[label].split("__"))) for label in _SAME if label in labels]
        nodes = draft.snapshot.nodes
        self.silent = not wanted
        self._verdict = all_fit(len(nodes))
        if wanted:
            wrong = (not _in_zones(node.labels, wanted) for node in nodes)
            self._verdict = refused_where(np.fromiter(wrong, dtype=bool, count=len(nodes)), ZONE)

    def change(self, pod: PodInfo, node: int, sign: int) -> bool:
        return False

    def verdict(self) -> Verdict:
        return self._verdict


def _in_zones(labels: Mapping[str, str], wanted: Sequence[tuple[str, frozenset[str]]]) -> bool:
    if not any(label in labels for label in _SAME):
        return True
    return all(labels.get(label, labels.get(_SAME[label])) in values for label, values in wanted)
