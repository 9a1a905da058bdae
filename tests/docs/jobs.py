# SPDX-License-Identifier: Apache-2.0
"""The pods that the Job controller makes of a Job, for pages and examples that show Jobs: `simulate` reads pods."""

from collections.abc import Iterable
from typing import Any

Json = dict[str, Any]
INDEX = "batch.kubernetes.io/job-completion-index"


def pods_of(job: Json) -> list[Json]:
    """As many as may run at a time; an Indexed Job's have their index in label, annotation and name."""
    name, spec = job["metadata"]["name"], job["spec"]
    count = min(spec.get("parallelism", 1), spec.get("completions") or spec.get("parallelism", 1))
    return [_pod(name, i, spec["template"], indexed=spec.get("completionMode") == "Indexed") for i in range(count)]


def _pod(job: str, index: int, template: Json, *, indexed: bool) -> Json:
    meta = template.get("metadata", {})
    place = {INDEX: str(index)} if indexed else {}
    labels = {**meta.get("labels", {}), "batch.kubernetes.io/job-name": job, "job-name": job, **place}
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": f"uid-{job}", "controller": True}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{job}-{index}-x{index}yz" if indexed else f"{job}-a{index}bcd",
            "labels": labels,
            "annotations": {**meta.get("annotations", {}), **place},
            "ownerReferences": [owner],
        },
        "spec": template["spec"],
    }


def with_pods(objects: Iterable[Json]) -> list[Json]:
    """The objects, each Job with its pods in its place; Services are of no concern to a scheduler."""
    made: list[Json] = []
    for one in objects:
        made += pods_of(one) if one["kind"] == "Job" else [] if one["kind"] == "Service" else [one]
    return made
