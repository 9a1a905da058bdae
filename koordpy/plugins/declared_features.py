# SPDX-License-Identifier: Apache-2.0
"""NodeDeclaredFeatures filter: a node must declare the features of Kubernetes that the spec of a pod needs.

Kubelets list their features in `status.declaredFeatures` (KEP-5328, since Kubernetes 1.36). A kubelet without a needed
feature rejects the pod. `required_features` in `node_filters.py` returns the features that a pod needs, so that this
module is imported only for such pods.
"""

import numpy as np

from koordpy.cache.snapshot import NodeInfo
from koordpy.framework.filter_protocol import Code, Refusal, Verdict, refused_where
from koordpy.framework.pod_rule_filter import Rule
from koordpy.pods.pod_info import PodInfo

UNMATCHED = Refusal("NodeDeclaredFeatures", Code.UNRESOLVABLE, ("node(s) didn't match Pod's required features",))


def lacks_features(node: NodeInfo, required: tuple[str, ...]) -> bool:
    """Returns True if a node lacks one of the required features."""
    return not set(required) <= set(node.node.status.declared_features)


class DeclaredFeatures(Rule):
    """Refuses nodes that lack a required feature. Placements do not change the verdict."""

    plugin = UNMATCHED.plugin
    is_in_problem = True

    def __init__(self, nodes: tuple[NodeInfo, ...], required: tuple[str, ...]) -> None:
        lacking = (lacks_features(node, required) for node in nodes)
        self._verdict = refused_where(np.fromiter(lacking, dtype=bool, count=len(nodes)), UNMATCHED)

    def change(self, pod: PodInfo, node: int, sign: int) -> bool:
        """Implements `Rule.change`: pods do not change the verdict."""
        return False

    def verdict(self) -> Verdict:
        """Implements `Rule.verdict`."""
        return self._verdict
