# SPDX-License-Identifier: Apache-2.0
"""Platforms of a release: operating system, architecture and Python version, without a machine of that kind.

Wheels are chosen by tags, and lines of a lock file by markers (packaging.python.org). Both follow from the platform.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from packaging.tags import Tag, compatible_tags, cpython_tags, mac_platforms

PYTHONS = ("3.11", "3.12", "3.13")
"""The versions that koordpy runs on, `requires-python` of pyproject.toml."""
IMAGE_PYTHON = "3.13"
"""The version in the image: that of its base, image/base.sh."""
GLIBC = 28
"""Minor version of the oldest glibc 2 that is supported: Debian 10, RHEL 8, Ubuntu 18.10."""
ARCH_HERE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
PLATFORM_HERE = f"{sys.platform}/{ARCH_HERE}"
"""`os/arch` of this machine."""
PYTHON_HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
_MACHINES = {("linux", "amd64"): "x86_64", ("linux", "arm64"): "aarch64", ("darwin", "arm64"): "arm64"}


@dataclass(frozen=True)
class Platform:
    """Where packages run; `os` and `arch` are Go's names, as images and krew use them."""

    os: str
    arch: str
    python: str

    @property
    def machine(self) -> str:
        """Name of the architecture in wheels and markers."""
        return _MACHINES[self.os, self.arch]

    @property
    def names(self) -> list[str]:
        """Platform tags of wheels, the best one first."""
        if self.os == "darwin":
            return list(mac_platforms((14, 0), self.machine))
        glibc = [f"manylinux_2_{minor}_{self.machine}" for minor in range(GLIBC, 16, -1)]
        return [*glibc, f"manylinux2014_{self.machine}", f"linux_{self.machine}"]

    @property
    def abi(self) -> str:
        return f"cp{self.python.replace('.', '')}"

    def tags(self) -> Iterator[Tag]:
        """Tags of the wheels that run here, the best one first."""
        version = tuple(int(part) for part in self.python.split("."))
        yield from cpython_tags(version, [self.abi], self.names)
        yield from compatible_tags(version, self.abi, self.names)

    @property
    def markers(self) -> dict[str, str]:
        """Values of the environment markers. Those that a platform does not fix are empty."""
        return {
            "extra": "",
            "implementation_name": "cpython",
            "implementation_version": f"{self.python}.0",
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": {"linux": "Linux", "darwin": "Darwin"}[self.os],
            "platform_version": "",
            "python_full_version": f"{self.python}.0",
            "python_version": self.python,
            "sys_platform": self.os,
        }

    def as_pex(self) -> str:
        """The platform as pex's `--complete-platform` takes it."""
        markers = {key: value for key, value in self.markers.items() if value}
        return json.dumps({"marker_environment": markers, "compatible_tags": [str(tag) for tag in self.tags()]})
