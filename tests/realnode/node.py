# SPDX-License-Identifier: Apache-2.0
"""One real node: its machine, and containerd and the kubelet on it, which can be stopped and started one by one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.e2e.assets import REPOSITORY
from tests.e2e.process import Process, ProcessDied, wait_until
from tests.realnode import machine, settings
from tests.realnode.namespaces import Network, address_of
from tests.realnode.needs import SYSTEM_PATH, containerd_major, program

_START_S = 90.0
NAMESPACES = ("--mount", "--net", "--pid", "--uts", "--ipc", "--cgroup")


class Inside(Process):
    """A program in a node: signals go to the program, and not to nsenter, which waits for it."""

    def signal(self, number: int) -> None:
        for child in children(self.pid) if self.running else ():
            os.kill(child, number)

    def stop(self, *, grace_s: float = 10.0) -> int | None:
        """SIGTERM, after grace_s seconds SIGKILL; the exit status."""
        self.signal(signal.SIGTERM)
        try:
            wait_until(lambda: not self.running, what=f"{self.name} ends", within_s=grace_s)
        except AssertionError:
            return self.kill()
        return self.exit_status

    def kill(self) -> int | None:
        self.signal(signal.SIGKILL)
        wait_until(lambda: not self.running, what=f"{self.name} is killed")
        return self.exit_status


def children(pid: int) -> list[int]:
    """Of a process, as seen from here."""
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


class RealNode:
    """A node of a cluster (cluster.py), which starts it step by step, all nodes side by side.

    folder: for everything that the node keeps over a new start. groups: its control groups by hierarchy.
    """

    def __init__(self, name: str, number: int, *, folder: Path, groups: Mapping[str, Path], network: Network) -> None:
        self.name, self.number, self.folder = name, number, folder
        self._groups, self._network = groups, network
        folder.mkdir()
        file = machine.Spec(name, str(folder), {key: str(group) for key, group in groups.items()}).write()
        command = [sys.executable, "-m", machine.__name__, "launch", str(file)]
        self.machine = Process(name, command, log=folder / "machine.log", env={"PYTHONPATH": str(REPOSITORY)})
        self.containerd: Inside | None = None
        self.kubelet: Inside | None = None

    @property
    def address(self) -> str:
        return address_of(self.number)

    # Life

    def boot(self) -> None:
        """Starts the machine, without its programs; also again, after `kill`."""
        (self.folder / machine.READY).unlink(missing_ok=True)
        self.machine.start()

    def plug(self) -> None:
        """Waits for the machine, and connects it."""
        wait_until(
            (self.folder / machine.READY).exists,
            what=f"{self.name} has its file systems",
            within_s=_START_S,
            processes=[self.machine],
        )
        self._network.plug(self.number, self.first_process)

    @property
    def first_process(self) -> int:
        """The machine's process 1, as seen from here."""
        (found,) = children(self.machine.pid)
        return found

    @property
    def root(self) -> Path:
        """The node's file systems, as seen from here."""
        return Path(f"/proc/{self.first_process}/root")

    def kill(self) -> None:
        """The machine's death, as of one that loses its power."""
        self.machine.kill()

    def stop(self) -> None:
        for service in (self.kubelet, self.containerd):
            if service is not None and service.running:
                service.kill()
        self.machine.kill()

    def must_run(self) -> None:
        for process in (self.machine, self.containerd, self.kubelet):
            if process is not None:
                process.must_run()

    # Programs on it

    def entering(self, command: Sequence[str | Path]) -> list[str | Path]:
        """The command line that runs a command on the node."""
        return ["nsenter", f"--target={self.first_process}", *NAMESPACES, "--", *command]

    def call(self, *command: str | Path, timeout_s: float = 120.0) -> str:
        """Runs a command on the node; its stdout. ProcessDied when it fails."""
        done = subprocess.run(
            [str(part) for part in self.entering(command)],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            env={**os.environ, "PATH": SYSTEM_PATH},
        )
        if done.returncode:
            raise ProcessDied(f"{' '.join(map(str, command))} on {self.name}: {done.stdout}{done.stderr}")
        return done.stdout

    def service(self, name: str, command: Sequence[str | Path], *, env: Mapping[str, str] | None = None) -> Inside:
        """A program on the node, started, with its log in the node's folder."""
        log = self.folder / f"{name}.log"
        env = {"PATH": SYSTEM_PATH, **(env or {})}
        process = Inside(f"{name} on {self.name}", self.entering(command), log=log, env=env)
        process.start()
        return process

    def start_containerd(self) -> None:
        runc, plugins = program("runc"), settings.cni_folder()
        assert runc is not None and plugins is not None, "obstacle() was not asked"
        etc = self.root / "etc"
        for name in ("cni/net.d", "cdi"):
            (etc / name).mkdir(parents=True, exist_ok=True)
        (etc / "cni/net.d/10-pods.conflist").write_text(settings.pod_network(self.number))
        file = self.folder / "containerd.toml"
        file.write_text(settings.containerd(containerd_major(), runc, plugins))
        self.containerd = self.service("containerd", ["containerd", "--config", file])

    def containerd_ready(self) -> None:
        def answers() -> bool:
            try:
                return bool(self.call("ctr", "version"))
            except ProcessDied:
                return False

        assert self.containerd is not None
        wait_until(
            answers,
            what=f"containerd answers on {self.name}",
            within_s=_START_S,
            every_s=0.2,
            processes=[self.containerd],
        )

    def import_image(self, archive: Path) -> None:
        self.call("ctr", "--namespace", "k8s.io", "images", "import", archive)

    def start_kubelet(self, program: Path, *, kubeconfig: Path, client_ca: Path) -> None:
        self._client_ca = client_ca
        self._configure_kubelet({})
        flags = [
            f"--config={self.folder / 'kubelet.json'}",
            f"--kubeconfig={kubeconfig}",
            f"--node-ip={self.address}",
            "--v=2",
        ]
        self.kubelet = self.service("kubelet", [program, *flags, f"--hostname-override={self.name}"])

    def _configure_kubelet(self, more: Mapping[str, Any]) -> None:
        resolv = self.folder / "resolv.conf"
        # No name is resolved on the nodes.
        resolv.write_text("")
        (self.folder / "kubelet.json").write_text(settings.kubelet(self._client_ca, resolv, more))

    def restart_kubelet(self, before: Callable[[], None], **more: Any) -> None:
        """Ends the kubelet, calls a function, and starts the kubelet with further fields of its configuration.

        What its managers of CPUs and memory remember is removed: a kubelet with another policy would not start.
        """
        assert self.kubelet is not None
        self.kubelet.stop(grace_s=30)
        before()
        self.call("sh", "-c", "rm -f /var/lib/kubelet/*_manager_state")
        self._configure_kubelet(more)
        self.kubelet.start()

    def restart(self, service: Inside, *, with_: int = signal.SIGTERM) -> None:
        """Ends a program of the node by a signal, and starts it again with the same command line."""
        service.signal(with_)
        wait_until(lambda: not service.running, what=f"{service.name} ends", within_s=30)
        service.start()
