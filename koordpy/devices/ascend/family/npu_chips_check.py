# SPDX-License-Identifier: Apache-2.0
"""An independent check of the NPUs that a plan allocates: as many as requested, free, healthy, and a legal set of
chips.

It runs before a plan is carried out, to find errors in the choice of chips. So it must share no code with that choice,
except the reading of objects. It uses sets of chip numbers instead of bit masks, and rules instead of costs
(docs/rules/ascend.md 1 to 3).
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from koordpy.api import keys
from koordpy.devices.ascend.family.npu_round import npu_job
from koordpy.devices.ascend.tables.ascend_job import AscendJob
from koordpy.devices.ascend.tables.npu_book import NPUS, chip_numbers, npus_of
from koordpy.plugins.filter_inputs import FilterInputs
from koordpy.pods.pod_info import PodInfo

_SINGLE_CARD = "card"
"""Value of label `npu-310-strategy`: all chips of a pod are on one card."""


def check_npus(
    placed: Sequence[tuple[PodInfo, str]], chips: Mapping[str, tuple[int, ...]], inputs: FilterInputs
) -> list[str]:
    """Returns the faults of a plan's chips, on the draft before the plan.

    placed: (pod, node name) of each pod of the plan. chips: pod key -> allocated chip numbers.
    """
    faults: list[str] = []
    used: dict[tuple[str, str], set[int]] = {}
    for pod, node in placed:
        resource = next((name for name in keys.NPU_RESOURCES if pod.requests.get(name)), None)
        if resource is None:
            continue
        job = npu_job(pod, inputs)
        if not isinstance(job, AscendJob):
            faults.append(f"{pod.key}: its job is illegal")
            continue
        own_chips = chips.get(pod.key, ())
        if len(own_chips) != pod.requests[resource] or len(set(own_chips)) != len(own_chips):
            faults.append(f"{pod.key}: gets {len(set(own_chips))} of {pod.requests[resource]} chips")
            continue
        if list(own_chips) != sorted(own_chips):
            faults.append(f"{pod.key}: its chips are not in ascending order")
        taken = used.get((node, resource))
        if taken is None:
            taken = used[node, resource] = _held(node, resource, inputs)
        multi_pod = len(job.pods) > 1
        good = _usable(node, resource, inputs, multi_pod=multi_pod)
        for chip in own_chips:
            if chip in taken:
                faults.append(f"{pod.key}: chip {chip} of node {node} is already in use")
            elif chip not in good:
                faults.append(f"{pod.key}: chip {chip} of node {node} is missing or unhealthy")
            taken.add(chip)
        fault = _group_fault(resource, set(own_chips), job, inputs, node, multi_pod=multi_pod)
        if fault:
            faults.append(f"{pod.key}: chips {', '.join(map(str, own_chips))} of node {node} {fault}")
    return faults


def _held(node: str, resource: str, inputs: FilterInputs) -> set[int]:
    """Returns the chips of bound pods that the draft has not evicted, and of pods that it has placed."""
    draft = inputs.draft
    out: set[int] = set()
    for pod in draft.snapshot.pods_on.get(node, ()):
        if pod.key not in draft.evicted:
            out |= _numbers(pod.pod.metadata.annotations.get(resource, ""), resource)
    for key, pod in draft.placed_on.get(draft.snapshot.index[node], {}).items():
        if pod.requests.get(resource):
            out.update(draft.family_devices_of(key, NPUS) or ())
    return out


def _numbers(text: str, resource: str) -> set[int]:
    """Returns the chip numbers in a list such as `Ascend910-0,Ascend910-1`; other entries are left out."""
    prefix = resource.rpartition("/")[2] + "-"
    parts = [part.strip() for part in text.split(",")]
    return {int(tail) for part in parts if part.startswith(prefix) and (tail := part[len(prefix) :]).isdigit()}


def _usable(node: str, resource: str, inputs: FilterInputs, *, multi_pod: bool) -> set[int]:
    """Returns the chips of a node that may be allocated: listed by its report, and healthy.

    multi_pod: True if the job has more than one NPU pod, so that its chips also need a healthy network.
    """
    report = npus_of(inputs.snapshot).reports.get(node, {}).get(resource)
    if report is None:
        return set()
    out = set(chip_numbers(report.listed)) - set(chip_numbers(report.unhealthy))
    return out - set(chip_numbers(report.unlinked)) if multi_pod else out


def _group_fault(
    resource: str, chips: set[int], job: AscendJob, inputs: FilterInputs, node: str, *, multi_pod: bool
) -> str:
    """Returns why a set of chips is not legal on the product of a node; empty if it is legal.

    Resources are compared by their position in `keys.NPU_RESOURCES`: 0 is Ascend910, 1 Ascend310, 2 Ascend310P, 3 npu.
    """
    number = len(chips)
    labels = job.keys.labels
    if resource == keys.NPU_RESOURCES[0]:
        return _product_fault(inputs.snapshot.nodes[inputs.snapshot.index[node]].labels, chips, multi_pod=multi_pod)
    if resource == keys.NPU_RESOURCES[1] and labels.get(keys.NPU_310_STRATEGY) == _SINGLE_CARD:
        return _spread_fault(chips, 4, "card")
    if resource == keys.NPU_RESOURCES[2] and labels.get(keys.NPU_DUO) == "true":
        if labels.get(keys.NPU_310_STRATEGY) == _SINGLE_CARD:
            return _spread_fault(chips, 2, "card")
        cards = Counter(chip // 2 for chip in chips)
        return "are single dies of several cards" if sum(n == 1 for n in cards.values()) > 1 else ""
    if resource == keys.NPU_RESOURCES[3]:
        if number < 4:
            return _spread_fault(chips, 4, "mesh")
        return _incomplete_fault(chips, 4, "meshes") if number % 4 == 0 else ""
    return ""


def _product_fault(labels: Mapping[str, str], chips: set[int], *, multi_pod: bool) -> str:
    """Returns why chips are not legal on an Ascend910 product, by the node's label; empty if they are legal."""
    number = len(chips)
    match labels.get(keys.ACCELERATOR_TYPE) or "module":
        case "module":
            return "" if number == 8 else _spread_fault(chips, 4, "ring")
        case "half":
            return _spread_fault(chips, 4, "ring")
        case "module-910b-16":
            if number <= 8:
                return _spread_fault(chips, 8, "ring")
            left = {chip for chip in chips if chip < 8}
            right = {chip - 8 for chip in chips if chip >= 8}
            alike = len(left) == len(right) if multi_pod else left == right
            return "" if alike else "do not face each other across the rings"
        case "module-a3-16" | "module-a3-16-super-pod" | "module-a3-8-super-pod":
            return "" if number == 1 and not multi_pod else _incomplete_fault(chips, 2, "cards")
        case "card" | "module-910b-8":
            return ""
    return "are of an unknown product"


def _spread_fault(chips: set[int], size: int, name: str) -> str:
    """Returns the fault of chips in more than one group of `size` chips; empty if one group contains all."""
    return f"are of more than one {name}" if len({chip // size for chip in chips}) > 1 else ""


def _incomplete_fault(chips: set[int], size: int, name: str) -> str:
    """Returns the fault of chips that fill a group of `size` chips only in part; empty if all used groups are full."""
    broken = any(n != size for n in Counter(chip // size for chip in chips).values())
    return f"are not whole {name}" if broken else ""
