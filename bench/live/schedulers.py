# SPDX-License-Identifier: Apache-2.0
"""The schedulers that are measured: how each is started, and how a gang is written for it."""

from __future__ import annotations

import asyncio
import compileall
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bench.live.cluster import PLAIN, SIGS_GROUPS, LiveCluster
from koordpy.api.keys import DEFAULT_SCHEDULER_NAME, LABEL_POD_GROUP
from tests.e2e import components
from tests.e2e.assets import REPOSITORY
from tests.e2e.process import Process, koordpy_run

Json = dict[str, Any]


class Scheduler(Protocol):
    """One that can be measured: its own process, pods by schedulerName, gangs in the API that it reads."""

    @property
    def name(self) -> str:
        """As the tables call it."""

    @property
    def scheduler_name(self) -> str:
        """spec.schedulerName of its pods."""

    def process(self, cluster: LiveCluster) -> Process:
        """A process of it, not started yet, alone and without a limit on requests."""

    async def gang(
        self, cluster: LiveCluster, gang: str, size: int, *, gpus: int, wave: str = "", priority: str = ""
    ) -> set[str]:
        """Makes a group and its members, pods of a wave; uids of the members. priority: a PriorityClass."""


@dataclass(frozen=True)
class Koordpy:
    """`koordpy run`. flags: more of them."""

    flags: tuple[str, ...] = ()
    elect: bool = False
    name: str = "koordpy"
    scheduler_name: str = DEFAULT_SCHEDULER_NAME

    def process(self, cluster: LiveCluster) -> Process:
        """The installed command, whose modules are compiled, without a fixed port."""
        compileall.compile_dir(REPOSITORY / "koordpy", quiet=1)
        flags = ("--bind-address", "127.0.0.1:0", "--kube-api-qps", "0", "--log-level", "warning", *self.flags)
        alone = () if self.elect else ("--leader-elect=false",)
        kubeconfig, name = cluster.plane.kubeconfig(), cluster.name("koordpy-")
        return koordpy_run(*flags, *alone, kubeconfig=kubeconfig, folder=cluster.folder, name=name)

    async def gang(
        self, cluster: LiveCluster, gang: str, size: int, *, gpus: int, wave: str = "", priority: str = ""
    ) -> set[str]:
        """By a PodGroup of scheduling.sigs.k8s.io and the label of its members."""
        group = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup", "metadata": {"name": gang}}
        await cluster.api.create(SIGS_GROUPS, {**group, "spec": {"minMember": size, "scheduleTimeoutSeconds": 600}})
        return await cluster.pods(
            size,
            gang,
            wave=wave,
            scheduler=self.scheduler_name,
            requests=accelerated(gpus),
            labels={LABEL_POD_GROUP: gang},
            spec=_priority(priority),
        )


@dataclass(frozen=True)
class KubeScheduler:
    """kube-scheduler, with the gates of its gangs where the cluster serves scheduling.k8s.io's PodGroups."""

    program: Path
    name: str = "kube-scheduler"
    scheduler_name: str = "default-scheduler"

    def process(self, cluster: LiveCluster) -> Process:
        """The binary with a configuration of its own."""
        plane = cluster.plane
        configuration = cluster.folder / "kube-scheduler.yaml"
        configuration.write_text(json.dumps(components.scheduler_configuration(plane.kubeconfig())))
        command = components.kube_scheduler(
            self.program,
            configuration=configuration,
            gangs=plane.gangs,
        )
        name = cluster.name("kube-scheduler-")
        return Process(name, command, log=cluster.folder / f"{name}.log")

    async def gang(
        self, cluster: LiveCluster, gang: str, size: int, *, gpus: int, wave: str = "", priority: str = ""
    ) -> set[str]:
        """By a PodGroup of scheduling.k8s.io and spec.schedulingGroup of its members."""
        api = cluster.api.gangs
        group = {"apiVersion": api.group_version, "kind": "PodGroup", "metadata": {"name": gang}}
        policy = {"schedulingPolicy": {"gang": {"minCount": size}}}
        await cluster.api.create(api.groups, {**group, "spec": {**policy, **_priority(priority)}})
        return await cluster.pods(
            size,
            gang,
            wave=wave,
            scheduler=self.scheduler_name,
            requests=accelerated(gpus),
            spec={"schedulingGroup": {"podGroupName": gang}, **_priority(priority)},
        )


def accelerated(gpus: int) -> Json:
    """Requests of a pod of so many GPUs."""
    return {**PLAIN, "nvidia.com/gpu": str(gpus)}


def _priority(name: str) -> Json:
    return {"priorityClassName": name} if name else {}


@contextlib.asynccontextmanager
async def running(scheduler: Scheduler, cluster: LiveCluster) -> AsyncIterator[Process]:
    """A process of the scheduler while the block lasts."""
    process = scheduler.process(cluster)
    try:
        yield process.start()
    finally:
        await asyncio.to_thread(process.stop)
