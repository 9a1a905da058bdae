# SPDX-License-Identifier: Apache-2.0
"""Jobs that start anew together, as a JobSet does it: the PodGroup stays, every Job and pod is made again."""

from __future__ import annotations

import asyncio

from koordpy.api import keys
from tests.e2e.client import Json, Refused
from tests.realnode.gpus import GPU, GpuNode, agree, gpu_nodes, gpu_pod
from tests.realnode.work import Work, container, pod_group, pod_spec

ATTEMPT = "jobset.sigs.k8s.io/restart-attempt"
PODS = {"set-driver-0": 1, "set-worker-0": 2, "set-worker-1": 1}
GPUS = 2
# ends when it is asked to, and badly
DRIVER = ["sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES; until test -e /tmp/fail; do sleep 0.2; done; exit 1"]


def job(name: str, attempt: int) -> Json:
    """A child Job of the set."""
    spec = gpu_pod(name, GPUS)["spec"]
    if "driver" in name:
        driver = container("c0", DRIVER, requests={"cpu": "1m", GPU: str(GPUS)}, limits={GPU: str(GPUS)})
        spec = pod_spec(driver, restartPolicy="Never")
    labels = {ATTEMPT: str(attempt)}
    template = {"metadata": {"labels": {**labels, keys.LABEL_POD_GROUP: "set"}}, "spec": spec}
    indexed = {"completionMode": "Indexed", "parallelism": PODS[name], "completions": PODS[name], "backoffLimit": 0}
    kind = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "labels": labels}}
    return {**kind, "spec": {**indexed, "template": template}}


async def remake(work: Work, name: str, attempt: int) -> None:
    """A Job goes with its pods, and comes again as soon as it is gone, whether or not the others are."""
    path = f"/apis/batch/v1/namespaces/{work.namespace}/jobs"
    await work.api.call("DELETE", f"{path}/{name}?propagationPolicy=Foreground")

    async def made() -> bool:
        try:
            await work.api.create(path, job(name, attempt))
        except Refused as refused:
            if refused.status != 409:
                raise
            return False
        return True

    await work.until(f"{name} is gone", made)


async def runs(work: Work, nodes: list[GpuNode], attempt: int) -> list[str]:
    """Waits until all pods of an attempt run with the GPUs that they were given; their names, the driver's first."""

    async def whole() -> list[str]:
        names = [
            name for name, one in (await work.pods()).items() if one["metadata"]["labels"][ATTEMPT] == str(attempt)
        ]
        return sorted(names) if len(names) == sum(PODS.values()) else []

    names: list[str] = await work.until(f"attempt {attempt} is made", whole)
    await agree(work, nodes, names)
    return names


async def test_a_set_of_jobs_has_all_gpus_in_each_of_its_attempts(work: Work) -> None:
    machine = {"gpus": GPUS * sum(PODS.values()) // 2}
    async with gpu_nodes(work, {"n1": machine, "n2": machine}) as nodes:
        work.apply(pod_group("set", sum(PODS.values())), *(job(name, 0) for name in PODS))
        first = await runs(work, nodes, 0)

        # the driver fails, so all start anew
        work.inside(first[0], "touch", "/tmp/fail", container="c0")
        assert (await work.ends(first[0], "c0"))["exitCode"] == 1
        await asyncio.gather(*(remake(work, name, 1) for name in PODS))
        await runs(work, nodes, 1)

        # and while all run
        await asyncio.gather(*(remake(work, name, 2) for name in PODS))
        third = await runs(work, nodes, 2)
        assert set(await work.pods()) == set(third)
