# SPDX-License-Identifier: Apache-2.0
"""What a test does on real nodes: a namespace of its own, koordpy as a process, pods that run programs of busybox."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from koordpy.api import keys
from tests.e2e.client import Client, Json, condition, pods_path
from tests.e2e.process import Process, eventually, koordpy_run
from tests.realnode.cluster import RealCluster
from tests.realnode.images import BUSYBOX

HOST = "kubernetes.io/hostname"
FOR_EVER = ("sleep", "3600")
_numbers = itertools.count(1)
_WITHIN_S = 60.0


def container(
    name: str = "main",
    command: Sequence[str] = FOR_EVER,
    *,
    requests: Mapping[str, str] | None = None,
    limits: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    **more: Any,
) -> Json:
    """env: variable -> annotation of the pod whose value it has."""
    variables = [
        {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{annotation}']"}}}
        for variable, annotation in (env or {}).items()
    ]
    resources = {"requests": dict(requests or {"cpu": "10m"}), "limits": dict(limits or {})}
    return {"name": name, "image": BUSYBOX, "command": list(command), "env": variables, "resources": resources, **more}


def pod_spec(
    *containers: Json, on: str | None = None, scheduler: str = keys.DEFAULT_SCHEDULER_NAME, **more: Any
) -> Json:
    """on: name of a node. Containers of busybox do not listen to SIGTERM: they are given one second."""
    spec = {"schedulerName": scheduler, "terminationGracePeriodSeconds": 1, "containers": list(containers)}
    return {**spec, **({"nodeSelector": {HOST: on}} if on else {}), **more}


def pod(name: str, spec: Json, *, gang: str = "", annotations: Mapping[str, str] | None = None) -> Json:
    meta = {
        "name": name,
        "labels": {keys.LABEL_POD_GROUP: gang} if gang else {},
        "annotations": dict(annotations or {}),
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def pod_group(name: str, minimum: int, annotations: Mapping[str, str] | None = None) -> Json:
    kind = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup"}
    return {**kind, "metadata": {"name": name, "annotations": dict(annotations or {})}, "spec": {"minMember": minimum}}


def running(seen: Json) -> bool:
    """All containers of a pod run, by the word of its kubelet."""
    statuses = seen.get("status", {}).get("containerStatuses") or []
    whole = len(statuses) == len(seen["spec"]["containers"])
    return whole and all("running" in status["state"] for status in statuses)


def ended(seen: Json, container: str = "main") -> Json:
    """How a container of a pod ended, empty while it has not."""
    statuses = seen.get("status", {}).get("containerStatuses") or []
    found = [status["state"].get("terminated") for status in statuses if status["name"] == container]
    return found[0] or {} if found else {}


class Work:
    """`async with Work(...)`: koordpy runs; the pods made are gone, also from their nodes, when it ends.

    alone: without koordpy, which the test installs. config: sections of koordpy's configuration.
    """

    def __init__(
        self,
        cluster: RealCluster,
        api: Client,
        folder: Path,
        *,
        alone: bool = False,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.cluster, self.api, self._alone = cluster, api, alone
        self.namespace = f"test-{os.getpid()}-{next(_numbers)}"
        flags = []
        if config is not None:
            file = folder / "configuration.json"
            head = {"apiVersion": "koordpy.io/v1alpha1", "kind": "KoordpyConfiguration"}
            file.write_text(json.dumps({**head, **config}))
            flags = [f"--config={file}"]
        self.koordpy = koordpy_run(
            "--leader-elect=false",
            "--bind-address=127.0.0.1:0",
            *flags,
            kubeconfig=cluster.plane.kubeconfig(),
            folder=folder,
        )
        self._undo = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self.api.make_namespace(self.namespace)
        self._undo.push_async_callback(self.api.delete, f"/api/v1/namespaces/{self.namespace}")
        self._undo.push_async_callback(self.clear)
        if not self._alone:
            self._undo.enter_context(self.koordpy)

        async def account() -> bool:
            path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts"
            return any(one["metadata"]["name"] == "default" for one in await self.api.items(path))

        await eventually(account, what="the namespace's service account")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._undo.aclose()

    @property
    def pods_path(self) -> str:
        return pods_path(self.namespace)

    @property
    def processes(self) -> list[Process]:
        return [] if self._alone else [self.koordpy]

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self.cluster.plane.kubectl(f"--namespace={self.namespace}", *arguments, stdin=stdin)

    def apply(self, *manifests: Json) -> None:
        """As a user does it."""
        self.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}))

    async def pods(self) -> dict[str, Json]:
        return {one["metadata"]["name"]: one for one in await self.api.items(self.pods_path)}

    async def until(self, what: str, check: Any, *, within_s: float = _WITHIN_S) -> Any:
        return await eventually(check, what=what, within_s=within_s, every_s=0.2, processes=self.processes)

    async def run(self, names: Iterable[str], *, within_s: float = _WITHIN_S) -> dict[str, Json]:
        """Waits until these pods run; the pods."""
        wanted = set(names)
        seen: dict[str, Json] = {}

        async def all_run() -> bool:
            seen.clear()
            seen.update(await self.pods())
            return all(name in seen and running(seen[name]) for name in wanted)

        try:
            await self.until(f"{', '.join(sorted(wanted))} run", all_run, within_s=within_s)
        except AssertionError as error:
            error.add_note(self.kubectl("describe", "pods")[-6000:])
            raise
        return {name: seen[name] for name in wanted}

    async def ends(self, name: str, container: str = "main") -> Json:
        """Waits until a container of a pod has ended; its end."""

        async def has() -> Json:
            return ended((await self.pods())[name], container)

        found: Json = await self.until(f"{name} ends", has)
        return found

    async def waits(self, name: str, *texts: str) -> str:
        """Waits until a pod that is on no node is told something with these texts in it; all that it is told."""

        said = ""

        async def told() -> bool:
            nonlocal said
            found = (await self.pods())[name]
            said = (condition(found, "PodScheduled") or {}).get("message", "")
            return not found["spec"].get("nodeName") and all(text in said for text in texts)

        try:
            await self.until(f"{name} waits: {', '.join(texts)}", told)
        except AssertionError as error:
            error.add_note(f"it was told: {said}")
            raise
        return said

    def said(self, name: str, container: str = "main") -> str:
        """What a container has printed."""
        return self.kubectl("logs", name, f"--container={container}")

    def inside(self, name: str, *command: str, container: str = "main") -> str:
        """Runs a command in a container; its stdout."""
        return self.kubectl("exec", name, f"--container={container}", "--", *command)

    async def delete(self, *names: str) -> None:
        """Deletes pods as kubectl does, and waits until they are gone."""
        for name in names:
            await self.api.call("DELETE", f"{self.pods_path}/{name}")
        await self._gone(names)

    async def _gone(self, names: Iterable[str]) -> None:
        wanted = set(names)

        async def gone() -> bool:
            return not wanted & (await self.pods()).keys()

        await eventually(gone, what=f"{', '.join(sorted(wanted))} are gone", within_s=_WITHIN_S, every_s=0.2)

    async def clear(self) -> None:
        """Whatever makes pods first; then the pods, with their grace, so that their nodes have room again."""
        self.kubectl("delete", "jobs,daemonsets,deployments,podgroups.scheduling.sigs.k8s.io", "--all", "--wait=false")
        names = list(await self.pods())
        for name in names:
            with contextlib.suppress(Exception):
                await self.api.call("DELETE", f"{self.pods_path}/{name}")
        await self._gone(names)
