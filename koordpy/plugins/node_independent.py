# SPDX-License-Identifier: Apache-2.0
"""Finds reasons why no new node would take a pod, whatever the node's size, labels and taints are (repair.md 1.3).

`find_cause` checks the pod's node names, node affinity, volumes and pod affinity. A cause is reported only if it is
certain that no new node would help. The cost is O(matching pods) per required affinity term.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import combinations

from koordpy.api.keys import HOSTNAME
from koordpy.api.label_selectors import field_valid, int64
from koordpy.api.natural_order import natural_key
from koordpy.api.objects import NodeAffinity, NodeSelectorTerm, Requirement
from koordpy.cache.plan_draft import Draft
from koordpy.framework.filter_protocol import Refusal
from koordpy.plugins.disk_limits import exclusive_claims, users_of
from koordpy.plugins.interpod_affinity import pods_matching, term_matches
from koordpy.plugins.volume_claims import claims_of
from koordpy.pods.pod_info import PodInfo

NODE_NAME = "metadata.name"
NAMED = "it asks for nodes by name"
NO_MATCH = "its required node affinity matches nothing"
NO_FRIEND = "no pod matches its required pod affinity"
SHARED_NODE = "it must share the node of other pods"


def find_cause(
    pod: PodInfo,
    members: Collection[PodInfo],
    draft: Draft,
    added: NodeAffinity | None,
    refusals: Sequence[Refusal],
) -> str:
    """Returns the first cause of a pod in the order of repair.md 1.3; empty if a new node may help.

    members: pods of the pod's unit, including the pod. added: node affinity that the configuration adds to every pod;
    None without one. refusals: the refusal of the pod as a whole; or the refusals of all nodes if each node is refused;
    else empty.
    """
    checks: tuple[Callable[[], str], ...] = (
        lambda: _named(pod, added),
        lambda: _contradicted_key(pod),
        lambda: NO_MATCH if _matches_nothing(pod) else "",
        lambda: _claim_in_use(pod, draft),
        lambda: next((one.no_node_helps for one in refusals if one.no_node_helps), ""),
        lambda: _fixed_volume(pod, draft),
        lambda: _affinity(pod, members, draft),
        lambda: _unsupported(refusals),
    )
    return next((cause for check in checks if (cause := check())), "")


# --- node names and node affinity -------------------------------------------------------------------------------------


def _terms(pod: PodInfo) -> Sequence[NodeSelectorTerm] | None:
    """Returns the terms of the pod's required node affinity; None without one."""
    affinity = pod.pod.spec.affinity.node_affinity if pod.pod.spec.affinity else None
    return affinity.required.node_selector_terms if affinity and affinity.required else None


def _names_nodes(term: NodeSelectorTerm) -> bool:
    return any(one.key == NODE_NAME and one.operator == "In" for one in term.match_fields) or any(
        one.key == HOSTNAME and one.operator == "In" for one in term.match_expressions
    )


def _named(pod: PodInfo, added: NodeAffinity | None) -> str:
    """Returns `NAMED` if the pod's node affinity, or the configured one, selects nodes only by name; else empty."""
    own, extra = _terms(pod), added.required.node_selector_terms if added and added.required else None
    named = HOSTNAME in pod.pod.spec.node_selector
    return NAMED if named or any(terms and all(map(_names_nodes, terms)) for terms in (own, extra)) else ""


def _contradicted_key(pod: PodInfo) -> str:
    """Returns a sentence if each term, together with nodeSelector, has two requirements that exclude each other; else
    empty.

    The sentence names the label key of such a pair in the first term; of several keys the first in natural order.
    """
    terms = _terms(pod)
    selector = [Requirement(key, "In", (value,)) for key, value in pod.pod.spec.node_selector.items()]
    found = [contradicted_keys([*selector, *term.match_expressions]) for term in terms or ()]
    if not found or not all(found):
        return ""
    return f"its node selector and affinity contradict each other on {min(found[0], key=natural_key)}"


def contradicted_keys(requirements: Iterable[Requirement]) -> list[str]:
    """Returns the label keys with two requirements that exclude each other: no value, and no absent label, meets
    both."""
    by_key: dict[str, list[Requirement]] = {}
    for one in requirements:
        by_key.setdefault(one.key, []).append(one)
    return [key for key, some in by_key.items() if any(_exclude_each_other(a, b) for a, b in combinations(some, 2))]


def _exclude_each_other(one: Requirement, other: Requirement) -> bool:
    """Returns True if no value of a label, and no absent label, meets both requirements on it."""
    first, second = sorted((one, other), key=lambda requirement: _ORDER.get(requirement.operator, len(_ORDER)))
    match first.operator, second.operator:
        case "In", "In":
            return not set(first.values) & set(second.values)
        case "In", "NotIn":
            return set(first.values) <= set(second.values)
        case "In", "Gt" | "Lt":
            return not any(_in_range(value, second) for value in first.values)
        case "Gt", "Lt":
            low, high = _bound(first), _bound(second)
            return low is not None and high is not None and high - low < 2
        case "In" | "Gt" | "Lt" | "Exists", "DoesNotExist":
            return True
    return False


_ORDER = {"In": 0, "NotIn": 1, "Gt": 2, "Lt": 3, "Exists": 4, "DoesNotExist": 5}
"""Order of the operators in the cases of `_exclude_each_other`."""


def _bound(requirement: Requirement) -> int | None:
    """Returns the number of a Gt or Lt requirement; None if it is invalid."""
    return int64(requirement.values[0]) if len(requirement.values) == 1 else None


def _in_range(value: str, requirement: Requirement) -> bool:
    """Returns True if a value meets a Gt or Lt requirement. Also True for an invalid requirement, so that no cause is
    claimed."""
    number, bound = int64(value), _bound(requirement)
    if bound is None:
        return True
    return number is not None and (number > bound if requirement.operator == "Gt" else number < bound)


def _matches_nothing(pod: PodInfo) -> bool:
    """Returns True if the required node affinity has no terms, or only empty or invalid terms."""
    terms = _terms(pod)
    return terms is not None and not any(map(_may_match, terms))


def _may_match(term: NodeSelectorTerm) -> bool:
    """Returns True if a term is not empty, and all its requirements are valid."""
    return bool(term.match_fields or term.match_expressions) and all(
        (*map(field_valid, term.match_fields), *map(_is_valid, term.match_expressions))
    )


def _is_valid(one: Requirement) -> bool:
    """Returns True if the API server accepts the requirement."""
    match one.operator:
        case "In" | "NotIn":
            return bool(one.values)
        case "Exists" | "DoesNotExist":
            return not one.values
        case "Gt" | "Lt":
            return _bound(one) is not None
    return False


# --- volumes ----------------------------------------------------------------------------------------------------------


def _claim_in_use(pod: PodInfo, draft: Draft) -> str:
    """Returns a sentence on the first ReadWriteOncePod claim of the pod that another pod uses; else empty."""
    for key in exclusive_claims(pod, draft) if pod.ties.volumes else ():
        if users_of(key, draft):
            return f"claim {key.partition('/')[2]} is in use and ReadWriteOncePod"
    return ""


def _fixed_volume(pod: PodInfo, draft: Draft) -> str:
    """Returns a sentence on the pod's first bound volume with node affinity in which every term names nodes; else
    empty."""
    objects = draft.snapshot.storage
    for key in claims_of(pod) if pod.ties.volumes else ():
        claim = objects.claims.get(key)
        volume = objects.volumes.get(claim.spec.volume_name) if claim is not None else None
        required = volume.spec.node_affinity.required if volume is not None and volume.spec.node_affinity else None
        terms = required.node_selector_terms if required is not None else ()
        if terms and all(map(_asks_for_name, terms)):
            return f"volume {volume.metadata.name} is tied to a node" if volume is not None else ""
    return ""


def _asks_for_name(term: NodeSelectorTerm) -> bool:
    return any(one.key == NODE_NAME for one in term.match_fields) or any(
        one.key in (HOSTNAME, NODE_NAME) for one in term.match_expressions
    )


# --- other pods -------------------------------------------------------------------------------------------------------


def _affinity(pod: PodInfo, members: Collection[PodInfo], draft: Draft) -> str:
    """Returns a sentence if required pod affinity can be met only on existing nodes, or on no node; else empty."""
    terms = pod.ties.terms.affinity.required if pod.ties.terms else ()
    if not terms:
        return ""
    namespaces = draft.snapshot.namespaces

    def is_match(other: PodInfo) -> bool:
        labels = other.pod.metadata.labels
        return all(term_matches(term, pod.namespace, other.namespace, labels, namespaces) for term in terms)

    if any(map(is_match, members)):
        return ""
    there = pods_matching(terms, pod.namespace, draft.snapshot).any() or any(map(is_match, _placed(draft)))
    if not there:
        return NO_FRIEND
    return SHARED_NODE if any(term.topology_key == HOSTNAME for term in terms) else ""


def _placed(draft: Draft) -> Iterator[PodInfo]:
    """Yields the pods that the draft has placed."""
    return (draft.snapshot.pods[key] for key in draft.placed)


def _unsupported(refusals: Iterable[Refusal]) -> str:
    """Returns the text `unsupported: ...` of the first refusal if all refusals have such a text; else empty."""
    texts = [next((text for text in one.reasons if text.startswith("unsupported: ")), "") for one in refusals]
    return texts[0] if texts and all(texts) else ""
