# SPDX-License-Identifier: Apache-2.0
"""How fast pods come in and how much room they take: the reflector over loopback, from a process of its own.

`python -m bench.reflector [PODS]`; the aims: 20,000 events a second, 10 kB a pod at 50,000 pods.
"""

import asyncio
import contextlib
import gc
import json
import multiprocessing
import os
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

from aiohttp import web

from bench.live.usage import usage_of
from koordpy.api.objects import Pod
from koordpy.engine.client.api_client import ApiClient
from koordpy.engine.client.api_resources import PODS
from koordpy.engine.client.credentials import ClusterAccess
from koordpy.engine.watching.pod_intake import PodIntake
from koordpy.engine.watching.reflector import Reflector
from koordpy.engine.watching.reflector_policy import ReflectorPolicy

GANG_SIZE = 64


def pod_json(index: int, *, version: int = 1) -> bytes:
    """A running member of a 64-pod training job as a real API server sends it, about 5.8 kB with managedFields."""
    job, rank = divmod(index, GANG_SIZE)
    uid = f"{index:08x}-58a4-4b6e-9d1c-{job:012x}"
    labels = {
        "app.kubernetes.io/name": "trainer",
        "app.kubernetes.io/instance": f"job-{job}",
        "batch.kubernetes.io/job-name": f"job-{job}",
        "batch.kubernetes.io/controller-uid": f"{job:08x}-2a1b-4c3d-8e9f-0123456789ab",
        "batch.kubernetes.io/job-completion-index": str(rank),
        "pod-group.scheduling.sigs.k8s.io": f"job-{job}",
        "team": f"team-{job % 20}",
    }
    annotations = {
        "batch.kubernetes.io/job-completion-index": str(rank),
        "gang.scheduling.koordinator.sh/networkTopologyAware": json.dumps(
            {"gatherStrategy": [{"layer": "spine", "strategy": "PreferGather"}]}
        ),
        "scheduling.koordinator.sh/domain": f"datacenter-0/spine-{job % 8}/block-{job % 32}",
        "scheduling.koordinator.sh/rank": str(rank),
        "internal.scheduling.koordinator.sh/bind-gang-group-id": f"team-{job % 20}/job-{job}",
        "internal.scheduling.koordinator.sh/bind-gang-member-count": str(GANG_SIZE),
    }
    env = [{"name": f"NCCL_SETTING_{n}", "value": f"value-of-setting-{n}"} for n in range(14)]
    rank_of_us = {
        "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.annotations['scheduling.koordinator.sh/rank']"}
    }
    resources = {
        "requests": {"cpu": "12", "memory": "128Gi", "nvidia.com/gpu": "1"},
        "limits": {"cpu": "12", "memory": "128Gi", "nvidia.com/gpu": "1"},
    }
    image = "registry.example/research/trainer:2026.11.1"
    token = "kube-api-access-x7k2p"
    now = "2026-11-01T12:00:00Z"
    managed = {
        "f:metadata": {
            "f:labels": {".": {}, **{f"f:{key}": {} for key in labels}},
            "f:annotations": {".": {}, **{f"f:{key}": {} for key in annotations}},
        },
        "f:spec": {
            "f:containers": {'k:{"name":"main"}': {"f:image": {}, "f:resources": {}, "f:env": {".": {}}}},
            "f:schedulerName": {},
        },
    }
    pod = {
        "metadata": {
            "name": f"job-{job}-worker-{rank}-{index % 97:05x}",
            "generateName": f"job-{job}-worker-{rank}-",
            "namespace": f"team-{job % 20}",
            "uid": uid,
            "resourceVersion": str(1000 + index + version * 1_000_000),
            "generation": 1,
            "creationTimestamp": now,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [
                {
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "name": f"job-{job}",
                    "uid": labels["batch.kubernetes.io/controller-uid"],
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
            "finalizers": ["batch.kubernetes.io/job-tracking"],
            "managedFields": [
                {"manager": name, "operation": "Update", "apiVersion": "v1", "time": now, "fieldsV1": managed}
                for name in ("kube-controller-manager",)
            ],
        },
        "spec": {
            "schedulerName": "koord-scheduler",
            "nodeName": f"node-{index // 8:05d}",
            "priority": 1000,
            "priorityClassName": "training",
            "preemptionPolicy": "PreemptLowerPriority",
            "restartPolicy": "Never",
            "serviceAccountName": "default",
            "securityContext": {},
            "terminationGracePeriodSeconds": 30,
            "nodeSelector": {"accelerator": "h100"},
            "tolerations": [
                {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute",
                 "tolerationSeconds": 300},
                {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute",
                 "tolerationSeconds": 300},
            ],
            "containers": [
                {
                    "name": "main",
                    "image": image,
                    "command": ["python", "-m", "train", "--config", "/etc/train/config.yaml"],
                    "env": [*env, {"name": "RANK", "valueFrom": rank_of_us}],
                    "resources": resources,
                    "ports": [{"containerPort": 29500, "protocol": "TCP"}],
                    "terminationMessagePath": "/dev/termination-log",
                    "imagePullPolicy": "IfNotPresent",
                    "volumeMounts": [
                        {"name": "shm", "mountPath": "/dev/shm"},
                        {"name": token, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": True},
                    ],
                }
            ],
            "volumes": [
                {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Gi"}},
                {"name": token, "projected": {"defaultMode": 420, "sources": [
                    {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                    {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                ]}},
            ],
        },
        "status": {
            "phase": "Running",
            "qosClass": "Guaranteed",
            "hostIP": "10.0.0.1",
            "podIP": f"10.{index >> 16 & 255}.{index >> 8 & 255}.{index & 255}",
            "startTime": now,
            "conditions": [
                {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": now}
                for kind in ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
            ],
            "containerStatuses": [
                {
                    "name": "main",
                    "image": image,
                    "imageID": f"registry.example/research/trainer@sha256:{'0123456789abcdef' * 4}",
                    "containerID": f"containerd://{index:064x}",
                    "ready": True,
                    "started": True,
                    "restartCount": 0,
                    "state": {"running": {"startedAt": now}},
                    "lastState": {},
                    "allocatedResources": resources["requests"],
                    "resources": resources,
                }
            ],
        },
    }  # fmt: skip
    return json.dumps(pod, separators=(",", ":")).encode()


def _serve(pods: int, events: int, channel: Connection) -> None:
    """The other process: an API server with `pods` pods that sends `events` changes when told so."""
    items = [pod_json(index) for index in range(pods)]
    lines = [
        b'{"type":"MODIFIED","object":%s}\n' % pod_json(number % pods, version=2 + number // pods)
        for number in range(events)
    ]

    async def handle(request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            response = web.StreamResponse()
            await response.prepare(request)
            await asyncio.to_thread(channel.recv)
            for first in range(0, events, 8):
                await response.write(b"".join(lines[first : first + 8]))
            await asyncio.sleep(600)
            return response
        first = int(request.query.get("continue") or 0)
        following = first + int(request.query["limit"])
        token = str(following) if following < pods else ""
        head = b'{"kind":"PodList","metadata":{"resourceVersion":"1","continue":"%s"},"items":[' % token.encode()
        return web.Response(body=head + b",".join(items[first:following]) + b"]}", content_type="application/json")

    async def main() -> None:
        app = web.Application()
        app.router.add_get("/api/v1/pods", handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        channel.send(runner.addresses[0][1])
        await asyncio.sleep(3600)

    asyncio.run(main())


class _Counting:
    """The cheapest sink there is."""

    def __init__(self) -> None:
        self.upserts = 0

    def upsert(self, obj: Pod, old: Pod | None) -> None:
        self.upserts += 1

    def delete(self, obj: Pod) -> None:
        pass


async def _measure(port: int, pods: int, events: int, channel: Connection) -> list[tuple[str, str, str]]:
    sink, slices = _Counting(), []

    async def longest_pause() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            slices.append(time.perf_counter() - before - 0.001)

    async with ApiClient(ClusterAccess(f"http://127.0.0.1:{port}"), qps=0) as client:
        reflector = Reflector(client, PODS, Pod, sink, transform=PodIntake(), policy=ReflectorPolicy())
        gc.collect()
        before, began, cpu = usage_of(os.getpid()).resident_bytes, time.perf_counter(), time.process_time()
        task = asyncio.create_task(reflector.run())
        watcher = asyncio.create_task(longest_pause())
        await reflector.synced.wait()
        listed, listed_cpu = time.perf_counter() - began, time.process_time() - cpu
        gc.collect()
        size = usage_of(os.getpid()).resident_bytes - before
        await asyncio.sleep(0.5)  # the watch is opened
        slices.clear()
        channel.send("go")
        began, cpu = time.perf_counter(), time.process_time()
        while reflector.events < events:  # noqa: ASYNC110 - a counter, not an event
            await asyncio.sleep(0.005)
        watched, watched_cpu = time.perf_counter() - began, time.process_time() - cpu
        after = usage_of(os.getpid()).resident_bytes - before
        for each in (task, watcher):
            each.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await each
        assert sink.upserts == pods + events and len(reflector.objects) == pods
    return [
        ("reflector: wire size of a pod", f"{len(pod_json(pods - 1)) / 1000:.1f} kB", ""),
        ("reflector: list", f"{pods / listed:,.0f} pods/s", f"{1e6 * listed_cpu / pods:.0f} us CPU a pod"),
        ("reflector: watch", f"{events / watched:,.0f} events/s", f"{1e6 * watched_cpu / events:.0f} us CPU an event"),
        ("reflector: longest pause for other tasks", f"{1000 * max(slices):.0f} ms", "while events pour in"),
        (
            "reflector: memory",
            f"{size / pods / 1000:.2f} kB a pod",
            f"{pods:,} pods; {after / pods / 1000:.2f} kB after",
        ),
    ]


def run(pods: int = 50_000, events: int = 100_000) -> list[tuple[str, str, str]]:
    """Rows of (what, figure, note). The server is a process of its own, so its work is not counted."""
    import uvloop

    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=_serve, args=(pods, events, theirs), daemon=True)
    server.start()
    try:
        port: Any = ours.recv()
        return uvloop.run(_measure(port, pods, events, ours))
    finally:
        server.terminate()
        server.join()


if __name__ == "__main__":
    for row in run(*map(int, sys.argv[1:])):
        print("{:<44}{:>18}  {}".format(*row))
