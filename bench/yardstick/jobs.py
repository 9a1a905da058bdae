# SPDX-License-Identifier: Apache-2.0
"""Many Jobs at once, and the same gangs by PodGroup: what it costs that gangs follow from workloads."""

from __future__ import annotations

from functools import partial

from bench.live.cluster import JOBS, LiveCluster, job_labels
from bench.live.schedulers import Koordpy, Scheduler, accelerated
from bench.yardstick import waiting
from bench.yardstick.figures import Run


async def play(cluster: LiveCluster, scheduler: Scheduler, *, jobs: int, size: int) -> Run:
    """By PodGroup first, then by Job; a scheduler that does not read Jobs plays the first alone."""
    groups = await waiting.gangs(cluster, scheduler, gangs=jobs, size=size, gpus=1)
    if not isinstance(scheduler, Koordpy) or not groups.figures:
        return Run({"cpu_group_ms": groups.figures.get("cpu_ms")}, groups.usage, groups.notes)
    made = await waiting.drain(cluster, scheduler, cluster.name("jobs-"), partial(_make, jobs=jobs, size=size))
    if not made.figures or made.usage is None or groups.usage is None:
        return Run({}, made.usage, made.notes)
    figures = {
        "cpu_ms": made.figures["cpu_ms"],
        "cpu_group_ms": groups.figures["cpu_ms"],
        "cpu_percent": _percent(made.figures["cpu_ms"], groups.figures["cpu_ms"]),
        "memory_percent": _percent(made.usage.peak_bytes, groups.usage.peak_bytes),
    }
    return Run(figures, made.usage)


def _percent(one: float | None, other: float | None) -> float | None:
    return 100 * one / other if one is not None and other else None


async def _make(cluster: LiveCluster, scheduler: Scheduler, wave: str, *, jobs: int, size: int) -> set[str]:
    """Indexed Jobs and their pods as their controller makes them. The Jobs are managed by nobody, so that the pace is
    the client's as with PodGroups."""
    uids: set[str] = set()
    for i in range(jobs):
        name = f"{wave}-{i}"
        container = {"name": "main", "image": "example/train:1"}
        template = {
            "spec": {"schedulerName": scheduler.scheduler_name, "restartPolicy": "Never", "containers": [container]}
        }
        spec = {
            "completionMode": "Indexed",
            "parallelism": size,
            "completions": size,
            "managedBy": "bench.example.com/nobody",
            "template": template,
        }
        body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}
        made = await cluster.api.create(JOBS, body)
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": made["metadata"]["uid"]}
        uids |= await cluster.pods(
            size,
            name,
            wave=wave,
            scheduler=scheduler.scheduler_name,
            requests=accelerated(1),
            labels=partial(job_labels, name),
            spec={"restartPolicy": "Never"},
            owner={**owner, "controller": True},
        )
    return uids
