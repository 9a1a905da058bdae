# SPDX-License-Identifier: Apache-2.0
"""The state of one build: its source, its output folder, the files of finished parts, and downloaded wheels."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from release.checkout import Checkout
from release.locked_wheels import IMAGE_LOCK, download_wheels
from release.platforms import PYTHONS, Platform

PLUGIN_PLATFORMS = ("linux/amd64", "linux/arm64", "darwin/arm64")
IMAGE_PLATFORMS = ("linux/amd64", "linux/arm64")


@dataclass(frozen=True)
class BuildOptions:
    """What can be chosen for a build."""

    plugin_platforms: tuple[str, ...] = PLUGIN_PLATFORMS
    """`os/arch` of each kubectl plugin."""
    plugin_pythons: tuple[str, ...] = PYTHONS
    """Python versions that each kubectl plugin runs on."""
    image_platforms: tuple[str, ...] = IMAGE_PLATFORMS
    """`os/arch` of each image in the index."""


@dataclass
class BuildState:
    """One build. A part reads the source and the files of earlier parts, and returns its own files."""

    checkout: Checkout
    folder: Path
    """Where the release's files are written."""
    scratch: Path
    """A folder for intermediate files."""
    options: BuildOptions = field(default_factory=BuildOptions)
    made: dict[str, list[Path]] = field(default_factory=dict)
    """Name of a finished part -> its files."""

    def wheels(self, platform: Platform) -> list[Path]:
        """Wheels of the image's lock file for a platform, downloaded once a build."""
        folder = self.scratch / f"wheels-{platform.os}-{platform.arch}-{platform.python}"
        if not folder.exists():
            try:
                download_wheels(self.checkout.tree / IMAGE_LOCK, platform, folder)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
        return sorted(folder.glob("*.whl"))

    def wheel(self) -> Path:
        """koordpy's wheel; the part `python` must be finished."""
        (wheel,) = (file for file in self.made["python"] if file.suffix == ".whl")
        return wheel
