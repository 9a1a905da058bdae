"""Why a gang of the demo is where it is, in words: read off what the planner explained and wrote."""

import json
from collections.abc import Iterable, Mapping, Sequence

from koordpy.api import keys
from koordpy.api.counted_nouns import counted
from koordpy.explain.explanation import DomainExplanation, Explanation
from koordpy.pods.pod_info import PodInfo
from koordpy.topology.topology_tree import Tree

_NPU = keys.NPU_RESOURCES[0]


def gpus_text(annotations: Mapping[str, str]) -> str:
    """`GPUs 5, 6`; empty where none were chosen by name."""
    text = annotations.get(keys.GPU_ALLOCATION)
    given = json.loads(text)["allocatedGPUs"] if text else {}
    minors = [minor for container in given.values() for minor in container]
    return f"GPUs {', '.join(minors)}" if minors else ""


def domain_of(tree: Tree, nodes: Iterable[str]) -> str:
    """`block dc-0/spine-0/block-0`: the lowest domain that holds all these nodes; empty for none."""
    at = [tree.index[node] for node in nodes]
    if not at:
        return ""
    level, domain = tree.lowest_common(at)
    return f"{short(tree.layer_name(level))} {tree.path(level, domain)}".rstrip()


def short(layer: str) -> str:
    """`blockLayer` -> `block`, `ClusterTopologyLayer` -> `cluster`."""
    return "cluster" if layer == keys.CLUSTER_LAYER else layer.removesuffix("Layer")


def _needed(pods: Sequence[PodInfo], chosen: DomainExplanation) -> int:
    """What a unit needs at least, in slots of its largest kind of pod; for one kind that is the number of its pods."""
    if len({pod.shape for pod in pods}) == 1:
        return chosen.needed
    gpus = [sum(pod.requests.get(name, 0) for name in keys.GPU_RESOURCES) for pod in pods]
    return -(-sum(gpus) // max(1, *gpus))


def why_domain(told: Explanation, layers: Sequence[str], unit: Sequence[PodInfo]) -> str:
    """What speaks for the chosen domain, in the order of the goals (gang-network.md 5)."""
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
            texts[0] += f", no {short(below)} is large enough (at most {most} of {needed} slots)"
    texts.append(_choice(chosen, needed, told.domains, layers[:level]))
    return "; ".join(texts)


def _choice(chosen: DomainExplanation, needed: int, domains: Sequence[DomainExplanation], above: Sequence[str]) -> str:
    """Why this one of the domains of its layer."""
    able = [domain for domain in domains if domain.layer == chosen.layer and domain.slots >= needed]
    name = short(chosen.layer)
    if len(able) == 1:
        return f"the only {name} with {counted(needed, 'slot')}"
    slots = {(domain.layer, domain.name): domain.slots for domain in domains}
    if chosen.slots > min(domain.slots for domain in able):
        return f"of {len(able)} with room the one where it takes fewest domains"
    able = [domain for domain in able if domain.slots == chosen.slots]
    if len(able) == 1:
        return f"best fit: {counted(chosen.slots, 'slot')} for {needed}, other {name}s with room have more"
    path = chosen.name
    for layer in reversed(above):
        path = path.rpartition("/")[0]
        depth = path.count("/") + 1 if path else 0
        rooms = {other: slots[layer, other] for other in {"/".join(d.name.split("/")[:depth]) for d in able}}
        if rooms[path] < max(rooms.values()):
            left = counted(rooms[path], "slot")
            return f"best fit: of {len(able)} alike one in the {short(layer)} with least room left ({left})"
    return f"{len(able)} alike, the first by name"


# Ascend NPUs


def why_npus(members: Iterable[str], annotations: Mapping[str, Mapping[str, str]], job: Mapping[str, str]) -> str:
    """The words for a job that got NPUs; empty where it got none. job: its labels."""
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
        return "rows of leaf switches: ranks one row apart share a slice position"
    return f"chips by the product's table: {'; '.join(_chip_text(own[_NPU]) for own in notes)}"


def _chip_text(ids: str) -> str:
    """`0-3` for chips in a row, else `0, 2`."""
    numbers = [int(one.rpartition("-")[2]) for one in ids.split(",")]
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]}-{numbers[-1]}"
    return ", ".join(map(str, numbers))


def _blocks(numbers: Iterable[str]) -> str:
    known = list(dict.fromkeys(numbers))
    return f"block{'s' if len(known) > 1 else ''} {', '.join(known)}"
