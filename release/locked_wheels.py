# SPDX-License-Identifier: Apache-2.0
"""Packages of a lock file: names, versions and hashes, and their wheels for a platform.

`download_wheels` lets pip fetch the wheels and verify their hashes. pip evaluates markers for the running interpreter
even if another platform is requested, so that this module evaluates them, and gives pip lines without markers.
"""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path

from packaging.markers import Marker
from packaging.utils import canonicalize_name

from release.checkout import ReleaseError
from release.platforms import Platform

IMAGE_LOCK = "requirements-image.lock"
_PIN = re.compile(r"^([\w.-]+)==(\S+)(?: ; (.*?))? \\\n((?:    --hash=\S+(?: \\)?\n)+)", re.M)


@dataclass(frozen=True)
class Pin:
    """A package of a lock file."""

    name: str
    version: str
    marker: str
    """Empty for a package of every platform."""
    hashes: tuple[str, ...]
    """SHA-256 of each file of this version on the package index, in hexadecimal."""

    def fits(self, platform: Platform) -> bool:
        """Whether a platform needs the package."""
        return not self.marker or Marker(self.marker).evaluate({**platform.markers})


def read_lock(text: str) -> list[Pin]:
    """The packages of a lock file, in its order."""
    return [
        Pin(name, version, marker, tuple(re.findall(r"sha256:(\w+)", hashes)))
        for name, version, marker, hashes in _PIN.findall(text)
    ]


def download_wheels(lock: Path, platform: Platform, folder: Path) -> list[Path]:
    """Writes the wheels of a lock file for a platform into a folder; the files, sorted. Raises ReleaseError."""
    folder.mkdir(parents=True)
    lines = [
        f"{pin.name}=={pin.version} " + " ".join(f"--hash=sha256:{one}" for one in pin.hashes)
        for pin in read_lock(lock.read_text(encoding="utf-8"))
        if pin.fits(platform)
    ]
    requirements = folder / "requirements.txt"
    requirements.write_text("\n".join(lines), encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--require-hashes", "--only-binary=:all:", "--python-version", platform.python]
    command += ["--implementation", "cp", "--abi", platform.abi, "--abi", "abi3", "--abi", "none"]
    command += [word for name in platform.names for word in ("--platform", name)]
    command += ["--dest", str(folder), "--requirement", str(requirements)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    requirements.unlink()
    if done.returncode:
        raise ReleaseError(f"wheels for {platform.os}/{platform.arch}, Python {platform.python}: {done.stderr.strip()}")
    return sorted(folder.glob("*.whl"))


def read_metadata(wheels: Iterable[Path]) -> dict[str, Message]:
    """Normalized name of a package -> its metadata."""
    found: dict[str, Message] = {}
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            (name,) = (name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
            message = Parser().parsestr(archive.read(name).decode())
        found[canonicalize_name(message["Name"])] = message
    return found
