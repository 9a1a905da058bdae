# SPDX-License-Identifier: Apache-2.0
"""The kubectl plugin as one file per platform, and its manifest for krew.

The file is a PEX: koordpy and its packages as wheels for every supported Python version. It runs on the first Python of
the PATH that fits, and unpacks into the user's cache at its first start. Each file is in an archive, because krew
installs archives only.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from release.archives import Member, write_tar_gz
from release.build_state import BuildState
from release.checkout import Checkout, ReleaseError
from release.locked_wheels import read_metadata
from release.platforms import PYTHONS, Platform

PROGRAM = "kubectl-koordpy"
NOT_LOCKED = ("pandas", "pygments", "tzdata")
"""Dependencies of packages that koordpy never imports: NOT_IN_IMAGE of the Makefile."""
_ARCHIVE = f"{PROGRAM}_v%s_%s_%s.tar.gz"


def build_plugin(build: BuildState) -> list[Path]:
    """Writes an archive with the plugin for each platform; needs the wheel, and the package index."""
    return [_archive(build, *name.split("/")) for name in build.options.plugin_platforms]


def _archive(build: BuildState, system: str, arch: str) -> Path:
    program = build.scratch / f"{system}-{arch}" / PROGRAM
    program.parent.mkdir()
    platforms = [Platform(system, arch, python) for python in build.options.plugin_pythons]
    wheels = {
        file.name: file
        for platform in platforms
        for file in needed(build.checkout.project["dependencies"], build.wheels(platform), platform)
    }
    _write_pex(build, platforms, [build.wheel(), *wheels.values()], program)
    members = [Member("LICENSE", build.checkout.tree / "LICENSE"), Member(PROGRAM, program)]
    return write_tar_gz(
        build.folder / (_ARCHIVE % (build.checkout.version, system, arch)), members, build.checkout.time, level=1
    )


def needed(requirements: Iterable[str], wheels: Iterable[Path], platform: Platform) -> list[Path]:
    """The wheels that requirements ask for, directly or through other wheels; without those of extras."""
    files = {name: wheel for wheel in wheels for name in read_metadata([wheel])}
    metadata = read_metadata(files.values())
    todo, found = [Requirement(text) for text in requirements], set[str]()
    while todo:
        one = todo.pop()
        name = canonicalize_name(one.name)
        asked = one.marker is None or one.marker.evaluate({**platform.markers})
        if asked and name in files and name not in found:
            found.add(name)
            todo += [Requirement(str(text)) for text in metadata[name].get_all("Requires-Dist", ())]
    return [files[name] for name in sorted(found)]


def _write_pex(build: BuildState, platforms: list[Platform], wheels: list[Path], program: Path) -> None:
    command = [sys.executable, "-m", "pex", f"koordpy=={build.checkout.version}", "--no-pypi"]
    command += ["--entry-point", "koordpy.cli.kubectl:main", "--output-file", str(program)]
    # A wheel is compressed, and verified by hash: it is stored as it is.
    command += ["--sh-boot", "--venv", "--no-pre-install-wheels", "--no-compress"]
    command += ["--disable-cache", "--tmpdir", str(program.parent)]
    for platform in platforms:
        command += ["--complete-platform", platform.as_pex()]
    for wheel in wheels:
        command += ["--pre-resolved-dist", str(wheel)]
    for name in NOT_LOCKED:
        command += ["--exclude", name]
    environment = {**os.environ, "PEX_IGNORE_RCFILES": "true", "SOURCE_DATE_EPOCH": str(build.checkout.time)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode or not program.exists():
        raise ReleaseError(f"pex: {done.stdout}{done.stderr}")


def build_krew(build: BuildState) -> list[Path]:
    """Writes the manifest for krew; needs the plugin's archives."""
    archives = {}
    for file in build.made["plugin"]:
        system, arch = file.name.removesuffix(".tar.gz").split("_")[-2:]
        archives[system, arch] = file
    file = build.folder / "koordpy.yaml"
    file.write_text(yaml.safe_dump(krew_manifest(build.checkout, archives), sort_keys=False), encoding="utf-8")
    return [file]


def krew_manifest(checkout: Checkout, archives: dict[tuple[str, str], Path]) -> dict[str, Any]:
    """The manifest of the plugin for archives by (os, arch): krew.sigs.k8s.io/docs/developer-guide/plugin-manifest."""
    platforms = [
        {
            "selector": {"matchLabels": {"os": system, "arch": arch}},
            "uri": checkout.download(file.name),
            "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
            "bin": PROGRAM,
            "files": [{"from": PROGRAM, "to": "."}, {"from": "LICENSE", "to": "."}],
        }
        for (system, arch), file in archives.items()
    ]
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "koordpy"},
        "spec": {
            "version": f"v{checkout.version}",
            "homepage": checkout.repository,
            "shortDescription": "Explain why gangs and pods are pending",
            "description": (
                "Shows why a pod, gang or workload is pending and what would help, the queue, how many gangs fit in\n"
                "each topology domain, free accelerators, quotas and fair shares.\n"
            ),
            "caveats": f"Needs Python {PYTHONS[0]} to {PYTHONS[-1]} on the PATH.\n",
            "platforms": platforms,
        },
    }
