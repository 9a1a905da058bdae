# SPDX-License-Identifier: Apache-2.0
"""A node whose kubelet sees a machine of two NUMA zones, and the reports of its zones.

The machine is a stand-in for the folders of /sys that the kubelet reads; most of its CPUs do not exist. So runc is
wrapped: containers run on the CPUs that there are. What the kubelet's managers of CPUs and devices decide, and which
pods it therefore rejects, is its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

from tests.e2e.client import Client, Json
from tests.e2e.process import eventually
from tests.realnode.cluster import RealCluster
from tests.realnode.gpus import GPU
from tests.realnode.needs import program
from tests.realnode.node import RealNode

ZONES, CPUS, GPUS = 2, 10, 8
"""Zones, and CPUs and GPUs of each."""
RESERVED = tuple(zone * CPUS for zone in range(ZONES))
"""CPUs that the kubelet keeps for the system: one of each zone."""
MACHINE = {"gpus": [{"minor": n, "uuid": f"GPU-{n}", "numa": n // GPUS} for n in range(ZONES * GPUS)]}
"""The machine for the agent."""
POLICY, SCOPE = "single-numa-node", "container"
GROUP, PLURAL, VERSION = "topology.node.k8s.io", "noderesourcetopologies", "v1alpha2"
REPORTS = f"/apis/{GROUP}/{VERSION}/{PLURAL}"
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": f"{PLURAL}.{GROUP}",
        # the API server asks for the page of the decision
        "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/1870"},
    },
    "spec": {
        "group": GROUP,
        "names": {"kind": "NodeResourceTopology", "plural": PLURAL, "singular": "noderesourcetopology"},
        "scope": "Cluster",
        "versions": [
            {
                "name": VERSION,
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}
_DIRECTORIES = ("/sys/devices/system/cpu", "/sys/devices/system/node")
# CPUs that a container was given are the kubelet's account alone.
_RUNC = """\
#!/bin/sh
case " $* " in
*" create "*)
    previous=
    for word in "$@"; do
        if [ "$previous" = --bundle ]; then sed -i 's/"cpus":"[^"]*"/"cpus":""/' "$word/config.json"; fi
        previous=$word
    done
    ;;
*" update "*)
    sed 's/"cpus":"[^"]*"/"cpus":""/' | exec REAL "$@"
    exit $?
    ;;
esac
exec REAL "$@"
"""


def _write_machine(folder: Path) -> None:
    """Writes the folders that stand in for those of /sys, and the wrapper of runc."""
    cpus, nodes = folder / "cpu", folder / "node"
    for zone in range(ZONES):
        own = nodes / f"node{zone}"
        own.mkdir(parents=True)
        (own / "meminfo").write_text(f"Node {zone} MemTotal:       8388608 kB\n")
        (own / "distance").write_text(" ".join("10" if zone == other else "20" for other in range(ZONES)) + "\n")
        for cpu in range(zone * CPUS, (zone + 1) * CPUS):
            topology = cpus / f"cpu{cpu}/topology"
            topology.mkdir(parents=True)
            (topology / "core_id").write_text(f"{cpu}\n")
            (topology / "physical_package_id").write_text(f"{zone}\n")
            (own / f"cpu{cpu}").symlink_to(f"../../cpu/cpu{cpu}")
    (cpus / "online").write_text(f"0-{ZONES * CPUS - 1}\n")
    runc = program("runc")
    assert runc is not None, "obstacle() was not asked"
    shutil.copy2(runc, folder / "real-runc")
    (folder / "runc").write_text(_RUNC.replace("REAL", str(folder / "real-runc")))
    (folder / "runc").chmod(0o755)


@contextlib.asynccontextmanager
async def zoned(cluster: RealCluster, node: RealNode) -> AsyncIterator[None]:
    """The node has zones, with Topology Manager and static CPU Manager; afterwards it is as before."""
    folder = node.folder / "zones"
    runc = program("runc")
    assert runc is not None, "obstacle() was not asked"
    _write_machine(folder)
    mounts = {folder / "cpu": _DIRECTORIES[0], folder / "node": _DIRECTORIES[1], folder / "runc": str(runc.resolve())}

    def mount() -> None:
        for source, target in mounts.items():
            node.call("mount", "--bind", source, target)

    def unmount() -> None:
        for target in mounts.values():
            node.call("umount", target)

    node.restart_kubelet(
        mount,
        cpuManagerPolicy="static",
        cpuManagerReconcilePeriod="1m",
        reservedSystemCPUs=",".join(map(str, RESERVED)),
        topologyManagerPolicy=POLICY,
        topologyManagerScope=SCOPE,
    )
    try:
        await _has_cpus(cluster, node, ZONES * CPUS)
        yield
    finally:
        node.restart_kubelet(unmount)
        shutil.rmtree(folder)
        await _has_cpus(cluster, node, None)


async def _has_cpus(cluster: RealCluster, node: RealNode, count: int | None) -> None:
    """Waits until the Node has so many CPUs; None: another number than that of the zones."""

    def said() -> bool:
        (found,) = (one for one in cluster.nodes_seen() if one["metadata"]["name"] == node.name)
        cpus = int(found["status"]["capacity"]["cpu"])
        return cpus == count if count is not None else cpus != ZONES * CPUS

    processes = [node.kubelet] if node.kubelet is not None else []
    await eventually(said, what=f"{node.name} has its CPUs", within_s=90, every_s=0.5, processes=processes)


@contextlib.asynccontextmanager
async def reporting(api: Client, node: RealNode) -> AsyncIterator[None]:
    """The node's report is written each second, as an exporter does it; afterwards it is gone."""
    path = f"{REPORTS}/{node.name}"

    async def write_again() -> None:
        while True:
            await asyncio.sleep(1)
            await api.apply(path, report(node))

    await api.apply(path, report(node))
    writing = asyncio.create_task(write_again())
    try:
        yield
        assert not writing.done(), "the exporter ended"
    finally:
        writing.cancel()
        await asyncio.wait([writing])
        await api.delete(path)


def report(node: RealNode) -> Json:
    """The NodeResourceTopology of a node, from the files in which its kubelet keeps what it has given to containers."""
    kubelet = node.root / "var/lib/kubelet"
    cpus = json.loads((kubelet / "cpu_manager_state").read_text())
    free_cpus = _numbers(cpus["defaultCpuSet"]) - set(RESERVED)
    checkpoint = kubelet / "device-plugins/kubelet_internal_checkpoint"
    entries = json.loads(checkpoint.read_text())["Data"]["PodDeviceEntries"] or [] if checkpoint.exists() else []
    given = [
        int(zone)
        for entry in entries
        if entry["ResourceName"] == GPU
        for zone, ids in entry["DeviceIDs"].items()
        for _ in ids
    ]

    def zone_of(number: int) -> Json:
        cpu = sum(one // CPUS == number for one in free_cpus)
        amounts = {"cpu": (CPUS, CPUS - 1, cpu), GPU: (GPUS, GPUS, GPUS - given.count(number))}
        resources = [
            {"name": name, "capacity": str(capacity), "allocatable": str(allocatable), "available": str(available)}
            for name, (capacity, allocatable, available) in amounts.items()
        ]
        return {"name": f"node-{number}", "type": "Node", "resources": resources}

    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "NodeResourceTopology",
        "metadata": {"name": node.name},
        "attributes": [
            {"name": "topologyManagerPolicy", "value": POLICY},
            {"name": "topologyManagerScope", "value": SCOPE},
            {"name": "cpuManagerPolicy", "value": "static"},
        ],
        "zones": [zone_of(number) for number in range(ZONES)],
    }


def _numbers(cpuset: str) -> set[int]:
    """CPUs of a list such as 0-3,7."""
    found: set[int] = set()
    for part in filter(None, cpuset.split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found
