"""What the demo promises, checked on the objects of the API server: against the planner's offline answer, and by hand.

The conditions by hand are those that the examples' comments state, counted from nodeName and node labels alone.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from koordpy.api import keys
from koordpy.demo import npus
from koordpy.demo.acts import Forecast
from koordpy.demo.outcome import Manifest, Outcome, gpus_of, key_of, rank_of, refusal
from koordpy.demo.programme import ASCEND, TRAINING

BLOCK, ACCELERATOR = "network.topology.koordpy.io/block", "network.topology.koordpy.io/accelerator"
"""Labels of the nodes of examples/cluster."""


@dataclass(frozen=True, slots=True)
class DemoCheck:
    """One promise: what it says, and what is wrong (empty when it holds)."""

    text: str
    faults: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not self.faults


def settled(forecast: Forecast, pods: Mapping[str, Manifest]) -> bool:
    """Whether every pod of an act is where, or waits with the text that, the planner says offline."""
    return not any(_deviations(forecast, pods, exact=True))


def _deviations(
    forecast: Forecast, pods: Mapping[str, Manifest], *, exact: bool, gone: Collection[str] = ()
) -> Iterable[str]:
    """`gone`: pods that were evicted later, and are not there any more."""
    for key in forecast.pods:
        pod = pods.get(key)
        if key in gone:
            if pod is not None:
                yield f"{key} is still there, planned: evicted"
            continue
        node = pod["spec"].get("nodeName", "") if pod is not None else ""
        if node != forecast.nodes.get(key, ""):
            yield f"{key} is on {node or 'no node'}, planned: {forecast.nodes.get(key, 'none')}"
            continue
        annotations = (pod["metadata"].get("annotations") or {}) if pod is not None else {}
        for name, value in forecast.annotations.get(key, {}).items():
            if annotations.get(name) != value:
                yield f"{key}: annotation {name} is {annotations.get(name)!r}, planned: {value!r}"
        if exact and pod is not None and key in forecast.pending and refusal(pod)[1] != forecast.pending[key]:
            yield f"{key} is told {refusal(pod)[1]!r}, planned: {forecast.pending[key]!r}"


def checks(forecasts: Iterable[Forecast], outcome: Outcome, *, programme: str = TRAINING.name) -> list[DemoCheck]:
    """Every promise of a programme with its verdict."""
    forecasts = list(forecasts)
    gone = {key for forecast in forecasts for key in forecast.evicted}
    found = [
        DemoCheck(
            f"{forecast.act.stem} is placed as the planner places it offline",
            tuple(_deviations(forecast, outcome.pods, exact=False, gone=gone))[:3],
        )
        for forecast in forecasts
    ]
    return [*found, *(DemoCheck(text, tuple(find(outcome))[:3]) for text, find in _PROMISES[programme])]


def _all_run(outcome: Outcome) -> Iterable[str]:
    waiting = {"default/elastic-8", "default/elastic-9"}
    for key, pod in outcome.pods.items():
        phase = pod.get("status", {}).get("phase")
        expected = "Pending" if key in waiting or key.startswith("default/does-not-fit-") else "Running"
        if phase != expected:
            yield f"{key} is {phase}, not {expected}"


def _ranks(outcome: Outcome) -> Iterable[str]:
    gangs = (
        "prefer-gather-",
        "must-gather-",
        "replica-",
        ("prefill-", "decode-"),
        "master-workers-",
        "multiples-",
        "train-",
        "multislice-",
    )
    for gang in gangs:
        pods = outcome.of(*([gang] if isinstance(gang, str) else gang))
        ranks = [rank_of(pod) for pod in pods]
        if ranks != [str(i) for i in range(len(pods))] or not pods:
            yield f"{gang}: ranks {', '.join(ranks)}"


def _one(label: str, *prefixes: str, members: int) -> Callable[[Outcome], Iterable[str]]:
    def find(outcome: Outcome) -> Iterable[str]:
        domains = Counter(outcome.domains(outcome.of(*prefixes), label))
        if domains.total() != members or len(domains) != 1 or "" in domains:
            yield f"{prefixes[0]}: {dict(domains)}"

    return find


def _pipelines(outcome: Outcome) -> Iterable[str]:
    domains = outcome.domains(outcome.of("replica-"), ACCELERATOR)
    if len(domains) != 4 or "" in domains or domains[0] != domains[1] or domains[2] != domains[3]:
        yield f"ranks 0 to 3 are in {', '.join(domains)}"


def _slices(outcome: Outcome) -> Iterable[str]:
    for job in ("multislice-workers-0-", "multislice-workers-1-"):
        yield from _one(BLOCK, job, members=4)(outcome)


def _sixes(outcome: Outcome) -> Iterable[str]:
    blocks = Counter(outcome.domains(outcome.of("multiples-"), BLOCK))
    if sorted(blocks.values()) != [6, 6] or "" in blocks:
        yield f"blocks hold {dict(blocks)}"


def _elastic(outcome: Outcome) -> Iterable[str]:
    blocks = Counter(outcome.domains(outcome.of("elastic-"), BLOCK))
    waiting = blocks.pop("", 0)
    if waiting != 2 or list(blocks.values()) != [4]:
        yield f"blocks hold {dict(blocks)}, {waiting} wait"


def _urgent(outcome: Outcome) -> Iterable[str]:
    domains = Counter(outcome.domains(outcome.of("urgent-"), BLOCK))
    if domains != Counter({"block-3": 4}):
        yield f"blocks hold {dict(domains)}"


def _pair(outcome: Outcome) -> Iterable[str]:
    annotations = outcome.pods["default/gpu-pair"]["metadata"].get("annotations") or {}
    given = json.loads(annotations.get(keys.GPU_ALLOCATION, "{}")).get("allocatedGPUs")
    if given != {"0": ["5", "6"]}:
        yield f"it has {given}"


def _hopeless(outcome: Outcome) -> Iterable[str]:
    pods = outcome.of("does-not-fit-")
    if len(pods) != 12:
        yield f"{len(pods)} pods"
    for pod in pods:
        reason, message = refusal(pod)
        wanted = (
            "node(s) cannot hold the whole gang",
            "gang default/does-not-fit: needed 12, available in blockLayer: ",
        )
        if pod["spec"].get("nodeName") or reason != "Unschedulable" or not all(text in message for text in wanted):
            yield f"{key_of(pod)}: {reason}: {message}"


def _within_gpus(outcome: Outcome) -> Iterable[str]:
    used: Counter[str] = Counter()
    for pod in outcome.pods.values():
        if node := pod["spec"].get("nodeName"):
            used[node] += gpus_of(pod)
    for node, gpus in used.items():
        if gpus > outcome.gpus[node]:
            yield f"{node}: {gpus} of {outcome.gpus[node]}"


_TRAINING: tuple[tuple[str, Callable[[Outcome], Iterable[str]]], ...] = (
    ("every pod runs but those that cannot fit", _all_run),
    ("no node has more GPUs given away than it has", _within_gpus),
    ("ranks of every whole gang run from 0 without a gap", _ranks),
    ("prefer-gather is in one block", _one(BLOCK, "prefer-gather-", members=4)),
    ("must-gather is in one accelerator", _one(ACCELERATOR, "must-gather-", members=4)),
    ("pipeline-2x2 is in one block", _one(BLOCK, "replica-", members=4)),
    ("each pipeline of pipeline-2x2 is in one accelerator", _pipelines),
    ("prefill and decode are in one block", _one(BLOCK, "prefill-", "decode-", members=6)),
    ("master-workers are in one block", _one(BLOCK, "master-workers-", members=4)),
    ("multiples are six and six", _sixes),
    ("elastic goes on with its minimum of four in one block", _elastic),
    ("urgent is in block-3", _urgent),
    ("train is a gang in one block", _one(BLOCK, "train-", members=4)),
    ("each Job of the workers of multislice is in one block", _slices),
    ("gpu-pair has the pair of GPUs with 256 GB/s", _pair),
    ("does-not-fit waits and is told why", _hopeless),
)

_PROMISES = {TRAINING.name: _TRAINING, ASCEND.name: npus.PROMISES}
