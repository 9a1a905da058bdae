"""An independent check of the GPUs that a plan gives by name: none twice, none sick, as many as asked.

It reads minors from the objects and the draft and shares nothing with the choice.
"""

from collections.abc import Mapping, Sequence

from koordpy.api.keys import NPU_RESOURCES
from koordpy.cluster.gpu_env import is_injected
from koordpy.cluster.pods import PodInfo
from koordpy.cluster.snapshot import Draft


def check_gpus(placed: Sequence[tuple[PodInfo, str]], chips: Mapping[str, tuple[int, ...]], draft: Draft) -> list[str]:
    """Faults of the GPUs of pods placed on nodes, by name, on the draft as it was before them."""
    faults: list[str] = []
    taken: dict[str, set[int]] = {}
    for pod, node in placed:
        given = chips.get(pod.key, ())
        known = draft.snapshot.gpus.nodes.get(node)
        if pod.gpus is not None and not given and is_injected(pod.pod, pod.gpus.resources):
            faults.append(f"{pod.key}: reads its GPUs from variables, and none is named")
        if pod.gpus is None or known is None:
            if given and known is not None and not any(pod.requests.get(name) for name in NPU_RESOURCES):
                faults.append(f"{pod.key}: is given GPUs that it did not ask for")
            continue
        if not given:
            if not _counted_only(node, draft):
                faults.append(f"{pod.key}: no GPU of node {node} is named")
            continue
        if len(set(given)) != pod.gpus.count:
            faults.append(f"{pod.key}: {len(set(given))} GPUs of {pod.gpus.count}")
        healthy = {entry.minor for entry in known.machine.entries if entry.health}
        used = taken.get(node)
        if used is None:
            used = taken[node] = _used(node, draft)
        for minor in given:
            if minor not in healthy:
                faults.append(f"{pod.key}: GPU {minor} of node {node} is not there or sick")
            elif minor in used:
                faults.append(f"{pod.key}: GPU {minor} of node {node} is taken")
            used.add(minor)
    return faults


def _used(node: str, draft: Draft) -> set[int]:
    out: set[int] = set()
    for key, holding in draft.snapshot.gpus.nodes[node].holders.items():
        if key not in draft.evicted:
            out.update(holding.minors or ())
    for key, pod in draft.placed_on.get(draft.snapshot.index[node], {}).items():
        if pod.gpus is not None:
            out.update(draft.chips.get(key, ()))
    return out


def _counted_only(node: str, draft: Draft) -> bool:
    """Whether some pod on the node holds GPUs that cannot be told."""
    known = draft.snapshot.gpus.nodes[node]
    minors = set(known.machine.minors)
    for key, one in known.holders.items():
        if key not in draft.evicted and (one.minors is None or len(minors.intersection(one.minors)) < one.count):
            return True
    placed = draft.placed_on.get(draft.snapshot.index[node], {})
    return any(pod.gpus is not None and not draft.chips.get(key) for key, pod in placed.items())
