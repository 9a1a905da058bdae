# SPDX-License-Identifier: Apache-2.0
"""Checks of the demo on the objects of the API server: placements equal the forecasts, and no node is overcommitted.

Also checked: every bound pod runs.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from koordpy.demo.acts import Forecast
from koordpy.demo.demo_objects import Manifest, gpus_of, key_of, refusal


def settled(forecast: Forecast, pods: Mapping[str, Manifest]) -> bool:
    """Returns True if every pod of an act is on its forecast node, or is pending with the forecast message.

    pods: key -> pod.
    """
    return not any(_deviations(forecast, pods, exact=True))


def _deviations(
    forecast: Forecast, pods: Mapping[str, Manifest], *, exact: bool, gone: Collection[str] = ()
) -> Iterable[str]:
    """Yields each difference between the cluster and a forecast.

    exact: True to compare messages of pending pods, too; later acts change these. gone: pods that a later act evicts.
    """
    for key in forecast.pods:
        pod = pods.get(key)
        if key in gone:
            if pod is not None:
                yield f"{key} still exists, planned: evicted"
            continue
        node = pod["spec"].get("nodeName", "") if pod is not None else ""
        if node != forecast.nodes.get(key, ""):
            yield f"{key} is on {node or 'no node'}, planned: {forecast.nodes.get(key, 'none')}"
            continue
        annotations = (pod["metadata"].get("annotations") or {}) if pod is not None else {}
        for name, value in forecast.annotations.get(key, {}).items():
            if annotations.get(name) != value:
                yield f"{key}: annotation {name} is {annotations.get(name)!r}, planned: {value!r}"
        if pod is not None and key in forecast.pending:
            told = refusal(pod)
            if not told or (exact and told != forecast.pending[key]):
                yield f"{key} has the message {told!r}, planned: {forecast.pending[key]!r}"


def checks(
    forecasts: Sequence[Forecast], pods: Sequence[Manifest], gpus: Mapping[str, int]
) -> dict[str, tuple[str, ...]]:
    """Returns text of a check -> its faults (at most 3); empty if the check passed.

    gpus: node -> number of accelerators.
    """
    gone = {key for forecast in forecasts for key in forecast.evicted}
    found = {key_of(pod): pod for pod in pods}
    verdicts = {
        f"{forecast.act.stem} is placed as the planner places it offline": _deviations(
            forecast, found, exact=False, gone=gone
        )
        for forecast in forecasts
    }
    verdicts["every bound pod runs"] = idle(pods)
    verdicts["no node has more accelerators in use than it has"] = _overfull(pods, gpus)
    return {text: tuple(faults)[:3] for text, faults in verdicts.items()}


def idle(pods: Iterable[Manifest]) -> Iterable[str]:
    """Yields each bound pod that does not run."""
    for pod in pods:
        phase = pod.get("status", {}).get("phase")
        if pod["spec"].get("nodeName") and phase != "Running":
            yield f"{key_of(pod)} is {phase}, not Running"


def _overfull(pods: Iterable[Manifest], gpus: Mapping[str, int]) -> Iterable[str]:
    """Yields each node with pods that request more accelerators than the node has."""
    used: Counter[str] = Counter()
    for pod in pods:
        if node := pod["spec"].get("nodeName"):
            used[node] += gpus_of(pod)
    for node, taken in used.items():
        if taken > gpus[node]:
            yield f"{node}: {taken} of {gpus[node]}"
