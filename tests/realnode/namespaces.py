# SPDX-License-Identifier: Apache-2.0
"""The network that nodes, control plane and tests share: a namespace of its own, in which this process goes on.

A namespace that only processes hold ends with them, so that nothing of it can be left over.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path
from typing import Self

NEW_CGROUP, NEW_NET = 0x02000000, 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)

API_SERVER = "10.99.0.1"
SERVICES = "10.96.0.0/16"
FIRST_SERVICE = "10.96.0.1"
BRIDGE = "nodes"
BRIDGE_ADDRESS = "02:00:00:00:00:01"


def unshare(kinds: int) -> None:
    """Gives the calling thread namespaces of its own. Raises OSError."""
    if _libc.unshare(kinds):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "unshare")


def address_of(number: int) -> str:
    """Of a node, counted from 1."""
    return f"10.99.0.{10 + number}"


def pods_of(number: int) -> str:
    """The addresses of a node's pods."""
    return f"10.244.{number}.0/24"


def ip(*lines: str, of: int | None = None) -> None:
    """Runs lines of `ip` in this process's network, or in that of a process."""
    inside = ["nsenter", f"--net=/proc/{of}/ns/net"] if of else []
    text = "".join(f"{line}\n" for line in lines)
    done = subprocess.run([*inside, "ip", "-batch", "-"], input=text, capture_output=True, text=True, timeout=30)
    if done.returncode:
        raise RuntimeError(f"ip: {done.stderr.strip()}\n{text}")


def forward() -> None:
    """Lets the network namespace of this thread pass packets on."""
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


class Network:
    """`with Network():` the calling thread, and what it starts from then on, is in a network of its own."""

    def __enter__(self) -> Self:
        self._before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        unshare(NEW_NET)
        ip(
            "link set lo up",
            # Else it has the lowest address of its cables, and another one when that node dies: the other nodes would
            # not reach the API server for seconds.
            f"link add {BRIDGE} address {BRIDGE_ADDRESS} type bridge",
            f"address add {API_SERVER}/24 dev {BRIDGE}",
            # No kube-proxy is needed for the one Service that pods ask: its address is the API server's own.
            f"address add {FIRST_SERVICE}/32 dev {BRIDGE}",
            f"link set {BRIDGE} up",
        )
        forward()
        return self

    def __exit__(self, *_: object) -> None:
        _libc.setns(self._before, NEW_NET)
        os.close(self._before)

    def plug(self, number: int, process: int) -> None:
        """A cable from the bridge to eth0 of the network of a process; a cable from before is gone, or goes."""
        cable = f"node{number}"
        subprocess.run(["ip", "link", "delete", cable], capture_output=True, timeout=30, check=False)
        ip(
            f"link add {cable} type veth peer name eth0 netns {process}",
            f"link set {cable} master {BRIDGE} up",
            f"route replace {pods_of(number)} via {address_of(number)}",
        )
        ip(
            "link set lo up",
            f"address add {address_of(number)}/24 dev eth0",
            "link set eth0 up",
            f"route add default via {API_SERVER}",
            of=process,
        )
