# SPDX-License-Identifier: Apache-2.0
"""The demo's texts that say why a gang was placed in a domain, or which GPUs and NPUs a pod got.

The facts are from explanations of the planner (`Explanation`) and from annotations of Bindings. Nothing is computed
again here.
"""

import json
from collections.abc import Iterable, Mapping, Sequence

from koordpy.api import keys
from koordpy.api.counted_nouns import count_noun
from koordpy.explain.explanation import DomainExplanation, Explanation
from koordpy.pods.pod_info import PodInfo
from koordpy.topology.topology_tree import Tree

_NPU = keys.NPU_RESOURCES[0]
"""Resource of the NPUs in the examples; an annotation of the same name has the chosen chips."""


def gpus_text(annotations: Mapping[str, str]) -> str:
    """Returns the selected GPUs, such as `GPUs 5, 6`; empty if none were selected by number."""
    text = annotations.get(keys.GPU_ALLOCATION)
    given = json.loads(text)["allocatedGPUs"] if text else {}
    minors = [minor for container in given.values() for minor in container]
    return f"GPUs {', '.join(minors)}" if minors else ""


def domain_of(tree: Tree, nodes: Iterable[str]) -> str:
    """Returns the lowest domain that contains all nodes, such as `block dc-0/spine-0/block-0`; empty for no nodes."""
    at = [tree.index[node] for node in nodes]
    if not at:
        return ""
    level, domain = tree.lowest_common(at)
    return f"{short(tree.layer_name(level))} {tree.path(level, domain)}".rstrip()


def short(layer: str) -> str:
    """Returns the short name of a layer: `block` for `blockLayer`, `cluster` for `ClusterTopologyLayer`."""
    return "cluster" if layer == keys.CLUSTER_LAYER else layer.removesuffix("Layer")


def _needed(pods: Sequence[PodInfo], chosen: DomainExplanation) -> int:
    """Returns the number of slots that a domain must have for a unit. Here a slot is capacity for the unit's largest
    pod.

    If all pods are equal, the explanation states the number. Otherwise it is the sum of the pods' GPUs, divided by the
    GPUs of such a slot.
    """
    if len({pod.shape for pod in pods}) == 1:
        return chosen.needed
    gpus = [sum(pod.requests.get(name, 0) for name in keys.GPU_RESOURCES) for pod in pods]
    return -(-sum(gpus) // max(1, *gpus))


def why_domain(told: Explanation, layers: Sequence[str], unit: Sequence[PodInfo]) -> str:
    """Returns the reasons for the chosen domain, in the order of the goals (gang-network.md 5).

    The first reason is about the layer, the next about the domain in this layer. If no domain was chosen, returns what
    would make the gang fit, or an empty text.

    told: explanation of the gang. layers: names, from the top. unit: pods that were planned together.
    """
    chosen = next((domain for domain in told.domains if domain.chosen), None)
    if chosen is None:
        return f"would fit if {told.would_fit_if[0]}" if told.would_fit_if else ""
    level, needed = layers.index(chosen.layer), _needed(unit, chosen)
    both = " of both gangs" if len({pod.gang for pod in unit}) == 2 else ""
    texts = [f"lowest common layer{both}: {short(chosen.layer)}"]
    if level + 1 < len(layers) - 1:
        below = layers[level + 1]
        most = max(domain.slots for domain in told.domains if domain.layer == below)
        if most < needed:
            texts[0] += f" (no {short(below)} domain has {count_noun(needed, 'free slot')}, at most {most})"
    texts.append(_choice(chosen, needed, told.domains, layers[:level]))
    return "; ".join(texts)


def _choice(chosen: DomainExplanation, needed: int, domains: Sequence[DomainExplanation], above: Sequence[str]) -> str:
    """Returns why the domain was chosen among the domains of its layer.

    The planner's criteria are applied in order, until only the chosen domain is left. needed: number of slots. above:
    layers above the domain's layer.
    """
    able = [domain for domain in domains if domain.layer == chosen.layer and domain.slots >= needed]
    name = short(chosen.layer)
    if len(able) == 1:
        return f"the only {name} with {count_noun(needed, 'free slot')}"
    slots = {(domain.layer, domain.name): domain.slots for domain in domains}
    if chosen.slots > min(domain.slots for domain in able):
        return f"of {len(able)} {name}s with enough free slots, the one that splits the gang into the fewest domains"
    able = [domain for domain in able if domain.slots == chosen.slots]
    if len(able) == 1:
        return f"best fit: fewest free slots ({chosen.slots}) of all {name}s that hold {needed}"
    path = chosen.name
    for layer in reversed(above):
        path = path.rpartition("/")[0]
        depth = path.count("/") + 1 if path else 0
        rooms = {other: slots[layer, other] for other in {"/".join(d.name.split("/")[:depth]) for d in able}}
        if rooms[path] < max(rooms.values()):
            left = count_noun(rooms[path], "slot")
            return f"best fit: one of {len(able)} equal {name}s, in the fullest {short(layer)} ({left} left)"
    return f"the first by name of {len(able)} equal {name}s"


# Ascend NPUs


def why_npus(members: Iterable[str], annotations: Mapping[str, Mapping[str, str]], job: Mapping[str, str]) -> str:
    """Returns the reason for the NPUs of a job; empty if the job got none.

    members: keys of its pods. annotations: pod key -> annotations of its Binding. job: labels of the job.
    """
    notes = [annotations[key] for key in members if _NPU in annotations.get(key, {})]
    if not notes:
        return ""
    blocks: dict[str, list[str]] = {}
    for own in notes:
        if keys.SUPER_POD_RANK in own:
            blocks.setdefault(own[keys.BOUND_SUPER_POD], []).append(own[keys.SUPER_POD_RANK])
    if blocks:
        parts = [f"{_blocks(numbers)} in SuperPoD {home}" for home, numbers in blocks.items()]
        return f"whole blocks: {', '.join(parts)}"
    if job.get(keys.TOR_AFFINITY, "null") != "null":
        return "in rows over the leaf switches: ranks one row apart have the same slice position"
    return f"chips by the product's table: {'; '.join(_chip_text(own[_NPU]) for own in notes)}"


def _chip_text(ids: str) -> str:
    """Returns the numbers of chips: `0-3` for consecutive numbers, else `0, 2`."""
    numbers = [int(one.rpartition("-")[2]) for one in ids.split(",")]
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]}-{numbers[-1]}"
    return ", ".join(map(str, numbers))


def _blocks(numbers: Iterable[str]) -> str:
    """Returns `block 0` or `blocks 0, 1`."""
    known = list(dict.fromkeys(numbers))
    return f"block{'s' if len(known) > 1 else ''} {', '.join(known)}"
