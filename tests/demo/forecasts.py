# SPDX-License-Identifier: Apache-2.0
"""The demo's acts as a scheduler leaves their pods that does what the planner says."""

import copy
from collections.abc import Iterator
from typing import Any

from koordpy.demo.acts import Forecast
from koordpy.demo.demo_objects import key_of

Pods = dict[str, dict[str, Any]]


def manifests(forecast: Forecast) -> Iterator[dict[str, Any]]:
    """Pods of an act; those that a Job makes, as far as anybody looks at them."""
    given = {key_of(obj): obj for obj in forecast.act.objects if obj["kind"] == "Pod"}
    for key in forecast.pods:
        if key in given:
            yield given[key]
            continue
        spec = forecast.act.objects[0]["spec"]
        for role in spec.get("replicatedJobs", ()):
            if f"-{role['name']}-" in key:
                spec = role["template"]["spec"]
        namespace, _, name = key.partition("/")
        yield {"kind": "Pod", "metadata": {"namespace": namespace, "name": name}, "spec": spec["template"]["spec"]}


def as_forecast(forecasts: list[Forecast]) -> Pods:
    """Every pod at the end, by key."""
    pods: Pods = {}
    for forecast in forecasts:
        for key in forecast.evicted:
            pods.pop(key, None)
        for obj in manifests(forecast):
            pod = pods[key_of(obj)] = copy.deepcopy(obj)
            key = key_of(pod)
            if node := forecast.nodes.get(key):
                pod["spec"]["nodeName"] = node
                pod["metadata"]["annotations"] = dict(forecast.annotations[key])
                pod["status"] = {"phase": "Running"}
            else:
                refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
                pod["status"] = {"phase": "Pending", "conditions": [{**refused, "message": forecast.pending[key]}]}
    return pods
