"""What the demo says of Ascend jobs: why they are where they are, and what is promised of them at the end.

The promises are those that the examples' comments state, counted from nodeName, labels and annotations alone.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from koordpy.api import keys
from koordpy.demo.outcome import Outcome, key_of, refusal

Manifest = dict[str, Any]
_NPU = keys.NPU_RESOURCES[0]


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


def _notes(pod: Manifest) -> Mapping[str, str]:
    return pod["metadata"].get("annotations") or {}


def _all_run(outcome: Outcome) -> Iterable[str]:
    for key, pod in outcome.pods.items():
        phase = pod.get("status", {}).get("phase")
        expected = "Pending" if key == "default/three-chips" else "Running"
        if phase != expected:
            yield f"{key} is {phase}, not {expected}"


def _chips(outcome: Outcome) -> Iterable[str]:
    """Every pod has as many chips as it asked for, and none is given twice."""
    given: Counter[tuple[str, str]] = Counter()
    for key, pod in outcome.pods.items():
        node = pod["spec"].get("nodeName")
        if not node:
            continue
        chips = [chip for chip in _notes(pod).get(_NPU, "").split(",") if chip]
        asked = outcome.asked(pod)
        if len(chips) != asked:
            yield f"{key}: {len(chips)} chips of {asked}"
        given.update((node, chip) for chip in chips)
    for (node, chip), number in given.items():
        if number > 1:
            yield f"{node}: {chip} is given to {number} pods"


def _rings(outcome: Outcome) -> Iterable[str]:
    pods = outcome.of("module-job-")
    if len(pods) != 3:
        yield f"{len(pods)} pods"
    for pod in pods:
        rings = {int(chip.rpartition("-")[2]) // 4 for chip in _notes(pod).get(_NPU, "").split(",") if chip}
        if len(rings) != 1:
            yield f"{key_of(pod)}: rings {sorted(rings)}"


def _slices(outcome: Outcome) -> Iterable[str]:
    """The number in a server's name is its slice position; leaves have four."""
    pods = outcome.of("switch-job-")
    if len(pods) != 6:
        yield f"{len(pods)} pods"
    column: dict[int, str] = {}
    for rank, pod in enumerate(pods):
        at = str(pod["spec"].get("nodeName", "")).rpartition("-")[2]
        if column.setdefault(rank % 4, at) != at:
            yield f"rank {rank} is at position {at}, rank {rank % 4} at {column[rank % 4]}"
    leaves = Counter(outcome.domains(pods, _BLOCK))
    if sorted(leaves.values()) != [2, 4]:
        yield f"leaves hold {dict(leaves)}"


def _whole_blocks(prefix: str, number: int, size: int) -> Callable[[Outcome], Iterable[str]]:
    def find(outcome: Outcome) -> Iterable[str]:
        pods = outcome.of(prefix)
        homes = outcome.domains(pods, keys.SUPER_POD_ID)
        blocks: dict[str, list[str]] = {}
        for rank, (pod, home) in enumerate(zip(pods, homes, strict=True)):
            block = _notes(pod).get(keys.SUPER_POD_RANK, "")
            blocks.setdefault(block, []).append(home)
            if block != str(rank // size):
                yield f"{key_of(pod)}: rank {rank} is in block {block}"
        if len(blocks) != number:
            yield f"{len(blocks)} blocks"
        for block, own in blocks.items():
            if len(own) != size or len(set(own)) != 1 or "" in own:
                yield f"block {block} is in SuperPoDs {', '.join(own)}"

    return find


def _ranks(outcome: Outcome) -> Iterable[str]:
    for gang in ("module-job-", "switch-job-", "superpod-job-", "urgent-"):
        ranks = [_notes(pod).get(keys.RANK_INDEX, "") for pod in outcome.of(gang)]
        if ranks != [str(i) for i in range(len(ranks))] or not ranks:
            yield f"{gang}: ranks {', '.join(ranks)}"


def _least_harm(outcome: Outcome) -> Iterable[str]:
    left = [pod["metadata"]["name"] for pod in outcome.of("background-")]
    if left != ["background-0"]:
        yield f"of background {', '.join(left) or 'none'} is left"
    homes = set(outcome.domains(outcome.of("urgent-"), keys.SUPER_POD_ID))
    if homes != {"1"}:
        yield f"urgent is in SuperPoDs {', '.join(sorted(homes))}"
    if len(outcome.of("superpod-job-")) != 8:
        yield "superpod-job is broken"


def _illegal(outcome: Outcome) -> Iterable[str]:
    pod = outcome.pods.get("default/three-chips")
    reason, message = refusal(pod) if pod is not None else ("", "")
    if reason != "JobValidateFailed" or f"{_NPU} request 3 is illegal for 910-module" not in message:
        yield f"it is told {reason}: {message}"


_BLOCK = "network.topology.koordpy.io/block"

PROMISES: tuple[tuple[str, Callable[[Outcome], Iterable[str]]], ...] = (
    ("every pod runs but the one whose job is illegal", _all_run),
    ("every pod has its chips, and no chip is given twice", _chips),
    ("ranks of every job run from 0 without a gap", _ranks),
    ("pods of module-job have their chips in one ring", _rings),
    ("ranks of switch-job that are four apart share a slice position", _slices),
    ("superpod-job is in two whole blocks of four nodes", _whole_blocks("superpod-job-", 2, 4)),
    ("urgent is one whole block of four nodes", _whole_blocks("urgent-", 1, 4)),
    ("two pods of background made room for urgent, and nobody else", _least_harm),
    ("three-chips is told that its request is illegal", _illegal),
)
"""Of the programme `ascend`."""
