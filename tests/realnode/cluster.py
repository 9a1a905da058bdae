# SPDX-License-Identifier: Apache-2.0
"""A control plane and real nodes, in a network of their own: `with RealCluster(find_assets()) as cluster:`.

From then on this process (its main thread, and what that starts) is in that network, so that kubectl, helm, koordpy
and the tests' client reach the API server. When it ends, however it ends, so do all processes; the next cluster, or
`make realnode-down`, removes the folders and control groups that a killed one left.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import yaml

from tests.e2e.client import Json, condition
from tests.e2e.components import ForNodes
from tests.e2e.controlplane import ControlPlane
from tests.e2e.process import wait_until
from tests.realnode import cgroups, images, leftovers
from tests.realnode.namespaces import API_SERVER, SERVICES, Network
from tests.realnode.needs import obstacle, program
from tests.realnode.node import RealNode

NODES = 3
_READY_S = 120.0


class RealCluster:
    """nodes: how many; they are n1, n2, ..."""

    def __init__(self, assets: Path, *, nodes: int = NODES, gates: Sequence[str] = ()) -> None:
        self.assets, self._gates = assets, gates
        self._names = [f"n{number}" for number in range(1, nodes + 1)]
        self._undo = contextlib.ExitStack()
        self.nodes: dict[str, RealNode] = {}

    def __enter__(self) -> Self:
        if (reason := obstacle()) is not None:
            raise cgroups.Unsupported(reason)
        leftovers.sweep()
        with contextlib.ExitStack() as undo:
            self.folder = leftovers.new_folder()
            undo.callback(leftovers.clear, self.folder)
            network = undo.enter_context(Network())
            self.plane = undo.enter_context(self._control_plane())
            undo.callback(self._stop_nodes)
            self._start_nodes(network)
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def must_run(self) -> None:
        """Raises ProcessDied, with the end of its log, when a process has ended by itself."""
        self.plane.must_run()
        for node in self.nodes.values():
            node.must_run()

    @property
    def archives(self) -> list[Path]:
        """The images that every node has."""
        return sorted((self.folder / "images").iterdir())

    def import_image(self, archive: Path) -> None:
        """Onto every node."""
        with ThreadPoolExecutor() as at_once:
            list(at_once.map(lambda node: node.import_image(archive), self.nodes.values()))

    def boot(self, node: RealNode) -> None:
        """Starts a node again after its death."""
        node.boot()
        self._start_programs([node])

    def wait_ready(self, names: Iterable[str]) -> None:
        """Until these nodes are Ready."""
        wanted = set(names)

        def ready() -> bool:
            found = {one["metadata"]["name"] for one in self.nodes_seen() if _is_ready(one)}
            return wanted <= found

        processes = [self.nodes[name].kubelet for name in sorted(wanted)]
        wait_until(
            ready,
            what=f"{', '.join(sorted(wanted))} are Ready",
            within_s=_READY_S,
            every_s=0.5,
            processes=[one for one in processes if one is not None],
        )

    def nodes_seen(self) -> list[Json]:
        """The Nodes that the API server has."""
        found: list[Json] = yaml.safe_load(self.plane.kubectl("get", "nodes", "-o", "json"))["items"]
        return found

    # The parts

    def _control_plane(self) -> ControlPlane:
        self._kubelet_client = self.folder / "kubelet-client.pem"
        _self_signed(self._kubelet_client, "/O=system:masters/CN=kube-apiserver-kubelet-client")
        return ControlPlane(
            self.assets,
            controller_manager=True,
            scheduler=True,
            gates=self._gates,
            users={f"system:node:{name}": ("system:nodes",) for name in self._names},
            folder=self.folder / "plane",
            # What Services give as the API server's port; its Service's address is its own.
            port=443,
            for_nodes=ForNodes(API_SERVER, SERVICES, self._kubelet_client),
        )

    def _start_nodes(self, network: Network) -> None:
        busybox = images.static_busybox()
        assert busybox is not None, "obstacle() was not asked"
        (self.folder / "images").mkdir()
        images.write_images(self.folder / "images", busybox)
        parents = cgroups.hierarchies()
        for number, name in enumerate(self._names, 1):
            group = f"{self.folder.name}/{name}"
            with (self.folder / leftovers.GROUPS).open("a") as ledger:
                ledger.writelines(f"{one.parent / self.folder.name}\n" for one in parents)
            made = dict(zip((one.controllers for one in parents), cgroups.make(parents, group), strict=True))
            node = RealNode(name, number, folder=self.folder / name, groups=made, network=network)
            self.nodes[name] = node
            node.boot()
        self._start_programs(list(self.nodes.values()))

    def _start_programs(self, nodes: Sequence[RealNode]) -> None:
        """Step by step, so that what takes time does it on all nodes at once."""
        kubelet = find_kubelet(self.assets)
        for node in nodes:
            node.plug()
            node.start_containerd()
        for node in nodes:
            node.containerd_ready()
            for archive in self.archives:
                node.import_image(archive)
            kubeconfig = self.plane.kubeconfig(f"system:node:{node.name}")
            node.start_kubelet(kubelet, kubeconfig=kubeconfig, client_ca=self._kubelet_client)
        self.wait_ready(node.name for node in nodes)

    def _stop_nodes(self) -> None:
        with contextlib.ExitStack() as stack:
            for node in self.nodes.values():
                stack.callback(node.stop)


def find_kubelet(assets: Path) -> Path:
    """The kubelet that was built beside the control plane, else the one on PATH. Raises FileNotFoundError."""
    found = assets / "kubelet"
    on_path = program("kubelet")
    if found.exists() or on_path is None:
        if not found.exists():
            raise FileNotFoundError(f"no kubelet: it is neither in {assets} nor on PATH")
        return found
    return on_path


def _is_ready(node: Json) -> bool:
    ready = condition(node, "Ready")
    return ready is not None and ready["status"] == "True"


def _self_signed(file: Path, subject: str) -> None:
    """A certificate for a client, which is its own authority, and its key, in one PEM file."""
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(file)]
    usage = ["-addext", "extendedKeyUsage=clientAuth", "-addext", "keyUsage=digitalSignature"]
    out = file.with_suffix(".crt")
    command = ["openssl", "req", "-x509", *key, "-out", str(out), "-days", "30", "-subj", subject, *usage]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    with file.open("a") as both:
        both.write(out.read_text())
