# SPDX-License-Identifier: Apache-2.0
"""Nodes with GPUs that are not there: the agent with a described machine, containers that mark what they hold."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.assets import REPOSITORY
from tests.e2e.client import Client, Json
from tests.e2e.process import eventually
from tests.realnode.node import Inside, RealNode
from tests.realnode.work import Work, container, pod, pod_spec

GPU = "nvidia.com/gpu"
ALLOCATION = "topology.scheduling.koordinator.sh/gpu"
DEVICES = "/apis/scheduling.koordinator.sh/v1alpha1/devices"
HELD = "/held"
ON_NODE = "/var/local/held"
# Writes its name on each GPU again and again as long as it has processes, however they end. Another name that stands
# there after its own is that of a container that runs beside it, and is written down.
_HOLD = f"""
echo "$NVIDIA_VISIBLE_DEVICES"
IFS=,
me="$(hostname)/$0"
hold() {{
    first=yes
    while true; do
        for gpu in $NVIDIA_VISIBLE_DEVICES; do
            who=
            read -r who 2>/dev/null < {HELD}/$gpu
            if [ -z "$first" ] && [ -n "$who" ] && [ "$who" != "$me" ]; then
                echo "$gpu: $me beside $who" >> {HELD}/twice
            fi
            echo "$me" > {HELD}/$gpu
        done
        first=
        sleep 0.2
    done
}}
trap 'sleep LINGER; exit 0' TERM
hold 2>/dev/null &
sleep SECONDS & wait $!
exit 0
"""
_PODRESOURCES = """
import asyncio, json, sys
from pathlib import Path
from koordpy.agent.plugin.kubelet_api import listed_pods
view = asyncio.run(listed_pods(Path("/var/lib/kubelet/pod-resources/kubelet.sock"), resource=sys.argv[1]))
print(json.dumps([[*pod, name, sorted(ids)] for pod, own in view.items() for name, ids in own.items()]))
"""


def holder(name: str, gpus: int, *, owner: str, seconds: int = 3600, lingers: int = 0, **more: Any) -> Json:
    """A container that prints its GPUs and holds them for so long; lingers: seconds that it takes to end."""
    script = _HOLD.replace("SECONDS", str(seconds)).replace("LINGER", str(lingers))
    program = ["sh", "-c", script, f"{owner}/{name}"]
    mounts = [{"name": "held", "mountPath": HELD}]
    limits = {GPU: str(gpus)} if gpus else {}
    return container(name, program, requests={"cpu": "1m", **limits}, limits=limits, volumeMounts=mounts, **more)


VOLUMES = [{"name": "held", "hostPath": {"path": ON_NODE, "type": "DirectoryOrCreate"}}]


def links(*pairs: tuple[int, int, str], gpus: int) -> list[list[str]]:
    """All SYS, but for these pairs."""
    matrix = [["X" if i == j else "SYS" for j in range(gpus)] for i in range(gpus)]
    for i, j, link in pairs:
        matrix[i][j] = matrix[j][i] = link
    return matrix


class GpuNode:
    """A node's agent, and what can be asked of the node."""

    def __init__(self, node: RealNode, api: Client, kubeconfig: Path, machine: Mapping[str, Any], *flags: str) -> None:
        self.node, self.api = node, api
        file = node.folder / "gpus.yaml"
        file.write_text(yaml.safe_dump(dict(machine)))
        self._command: list[str | Path] = [sys.executable, "-m", "koordpy", "agent", f"--kubeconfig={kubeconfig}"]
        self._command += [
            f"--node={node.name}",
            f"--backend=fake:{file}",
            "--delivery=device-plugin",
            "--poll=1",
            *flags,
        ]
        self.agent: Inside | None = None

    def start(self) -> Inside:
        self.agent = self.node.service("agent", self._command, env={"PYTHONPATH": str(REPOSITORY)})
        return self.agent

    def _registrations(self) -> int:
        log = self.node.folder / "agent.log"
        return log.read_text().count("registered with the kubelet") if log.exists() else 0

    async def restart_kubelet(self, *, crash: bool = False) -> None:
        """Until the plugin is registered with the new one: what it is asked to start before then it turns down."""
        before = self._registrations()
        assert self.node.kubelet is not None
        self.node.restart(self.node.kubelet, with_=signal.SIGKILL if crash else signal.SIGTERM)
        await self._registers(before)

    async def restart_agent(self, *, crash: bool = True, away_s: float = 0) -> None:
        """Ends the agent, without a word or as its pod is ended, and starts it again."""
        before = self._registrations()
        assert self.agent is not None
        await asyncio.to_thread(self.agent.kill if crash else lambda agent=self.agent: agent.stop(grace_s=60))
        await asyncio.sleep(away_s)
        self.agent.start()
        await self._registers(before)

    async def _registers(self, before: int) -> None:
        processes = [self.agent] if self.agent is not None else []
        what = f"the agent on {self.node.name} registers"
        await eventually(lambda: self._registrations() > before, what=what, within_s=60, processes=processes)

    async def offers(self, count: int) -> None:
        """Waits until the kubelet lets pods have so many GPUs."""

        async def so_many() -> bool:
            node = await self.api.get(f"/api/v1/nodes/{self.node.name}")
            return bool(node["status"]["allocatable"].get(GPU, "0") == str(count))

        processes = [self.agent] if self.agent is not None else []
        await eventually(so_many, what=f"{self.node.name} has {count} GPUs", within_s=60, processes=processes)

    def booked(self) -> dict[tuple[str, str], list[str]]:
        """(pod, container) -> GPUs, as the kubelet's PodResources have it."""
        told = self.node.call("env", f"PYTHONPATH={REPOSITORY}", sys.executable, "-c", _PODRESOURCES, GPU)
        return {(pod, container): ids for _, pod, container, ids in json.loads(told)}

    def held_twice(self) -> list[str]:
        """What containers found held by another one when they started."""
        file = self.node.root / ON_NODE.strip("/") / "twice"
        return file.read_text().splitlines() if file.exists() else []

    async def device(self) -> Json:
        return await self.api.get(f"{DEVICES}/{self.node.name}")


@contextlib.asynccontextmanager
async def gpu_nodes(work: Work, machines: Mapping[str, Mapping[str, Any]], *flags: str) -> AsyncIterator[list[GpuNode]]:
    """Agents on some nodes, each with its machine; at the end the kubelets have no GPUs again."""
    kubeconfig = work.cluster.plane.kubeconfig()
    nodes = [GpuNode(work.cluster.nodes[name], work.api, kubeconfig, one, *flags) for name, one in machines.items()]
    try:
        for one in nodes:
            one.start()
        for one, machine in zip(nodes, machines.values(), strict=True):
            gpus = machine["gpus"]
            await one.offers(gpus if isinstance(gpus, int) else len(gpus))
        yield nodes
    finally:
        await work.clear()
        for one in nodes:
            if one.agent is not None:
                one.agent.kill()
                one.agent = None
        for one in nodes:
            # else the next test takes what the Node still says for what its own agent offers
            await one.offers(0)
            one.node.call("rm", "-rf", ON_NODE)
            await one.api.delete(f"{DEVICES}/{one.node.name}")
            # else the next test finds the checkpoint of this one's
            one.node.call("sh", "-c", "rm -f /var/lib/kubelet/device-plugins/koordpy*")


def chosen(pod: Json) -> dict[str, list[str]]:
    """Container -> GPUs, as the pod's annotation has it."""
    allocated = json.loads(pod["metadata"]["annotations"][ALLOCATION])["allocatedGPUs"]
    names = [one["name"] for one in pod["spec"]["containers"]]
    return {names[int(index)]: sorted(f"GPU-{minor}" for minor in minors) for index, minors in allocated.items()}


def whole(pod: Json) -> set[str]:
    """All GPUs of a pod, as its annotation has it."""
    return {f"GPU-{minor}" for minor in json.loads(pod["metadata"]["annotations"][ALLOCATION])["visibleGPUs"]}


def seen_inside(work: Work, pod: str, container: str) -> list[str]:
    """GPUs that a container has printed that it sees."""
    return sorted(filter(None, work.said(pod, container).strip().split(",")))


def names(pods: Sequence[Json]) -> list[str]:
    return [one["metadata"]["name"] for one in pods]


def gpu_pod(
    name: str,
    *counts: int,
    seconds: int = 3600,
    inits: tuple[int, ...] = (),
    sidecar: int = 0,
    on: str = "",
    lingers: int = 0,
    gang: str = "",
) -> Json:
    """A pod with a container for each count, one init container for each of inits, and a sidecar where it has GPUs.

    lingers: seconds that its containers take to end.
    """
    containers = [
        holder(f"c{n}", count, owner=name, seconds=seconds, lingers=lingers) for n, count in enumerate(counts)
    ]
    first = [holder(f"i{n}", count, owner=name, seconds=1) for n, count in enumerate(inits)]
    if sidecar:
        first.append(holder("side", sidecar, owner=name, restartPolicy="Always"))
    more: Json = {
        "initContainers": first,
        "volumes": VOLUMES,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 5 + lingers,
    }
    return pod(name, pod_spec(*containers, on=on or None, **more), gang=gang)


def failed(pods: Mapping[str, Json]) -> dict[str, str]:
    """Pods that have failed, with the reason."""
    return {
        name: f"{one['status'].get('reason')}: {one['status'].get('message')}"
        for name, one in pods.items()
        if one["status"]["phase"] == "Failed"
    }


def gpu_job(name: str, count: int, *, seconds: int = 3600, **more: Any) -> Json:
    """A Job of so many pods with a GPU each, as a user writes it who knows nothing of koordpy."""
    container = holder("c0", 1, owner="job", seconds=seconds)
    spec = pod_spec(container, restartPolicy="Never", volumes=VOLUMES)
    whole = {"parallelism": count, "completions": count, "template": {"spec": spec}, **more}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": whole}


async def agree(work: Work, nodes: list[GpuNode], wanted: list[str]) -> None:
    """Waits until annotation, environment and PodResources say the same of every container; no GPU has two holders.

    The kubelet may list a container of a pod with init containers with others of the pod's GPUs.
    """
    pods = await work.run(wanted, within_s=120)
    inside = {
        (name, one["name"]): seen_inside(work, name, one["name"])
        for name, seen in pods.items()
        for one in staying_containers(seen)
        if one["resources"].get("limits", {}).get(GPU)
    }

    def differences() -> list[object]:
        now = {one["metadata"]["name"]: one for one in json.loads(work.kubectl("get", "pods", "-o", "json"))["items"]}
        booked = {key: gpus for node in nodes for key, gpus in node.booked().items()}
        found: list[object] = []
        for (name, key), gpus in inside.items():
            said, lists = chosen(now[name]), booked.get((name, key), [])
            listed = set(lists) <= whole(now[name]) if now[name]["spec"].get("initContainers") else lists == gpus
            # the annotation lists no sidecars: theirs is what is left
            right = said[key] == gpus if key in said else set(gpus) <= whole(now[name]) - set().union(*said.values())
            if not (right and listed and len(lists) == len(gpus)):
                found.append((name, key, gpus, said.get(key), lists))
        return found

    try:
        await eventually(
            lambda: not differences(),
            what="annotation, environment and PodResources agree",
            within_s=90,
            every_s=1,
        )
    except AssertionError as error:
        error.add_note(f"pod, container, environment, annotation, PodResources: {differences()}")
        raise
    holders = [(pods[name]["spec"]["nodeName"], gpu) for (name, _), gpus in inside.items() for gpu in gpus]
    assert len(holders) == len(set(holders))
    assert not [line for node in nodes for line in node.held_twice()]


def staying_containers(pod: Json) -> list[Json]:
    """Those that run at the same time: containers and sidecars."""
    inits = pod["spec"].get("initContainers") or []
    return [*pod["spec"]["containers"], *(one for one in inits if one.get("restartPolicy") == "Always")]
