# SPDX-License-Identifier: Apache-2.0
"""Matches tolerations of pods with taints of nodes, as kube-scheduler does. Source: kube-parity.md 2.1."""

from collections.abc import Sequence

from koordpy.api.label_selectors import int64
from koordpy.api.objects import Taint, Toleration


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Returns True if one toleration matches one taint.

    The operators Lt and Gt compare numbers (KEP-5471); values that are not numbers do not match.
    """
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    match toleration.operator:
        case "Exists":
            return True
        case "" | "Equal":
            return bool(toleration.key) and toleration.value == taint.value
        case "Lt" | "Gt":
            have, bound = int64(taint.value), int64(toleration.value)
            if not toleration.key or have is None or bound is None:
                return False
            return have < bound if toleration.operator == "Lt" else have > bound
    return False


def tolerated(taint: Taint, tolerations: Sequence[Toleration]) -> bool:
    """Returns True if any toleration matches the taint."""
    return any(tolerates(toleration, taint) for toleration in tolerations)


def tolerated_forever(taint: Taint, tolerations: Sequence[Toleration]) -> bool:
    """Returns True if a toleration without tolerationSeconds matches the taint, so that the pod is never evicted."""
    return any(one.toleration_seconds is None and tolerates(one, taint) for one in tolerations)
