# SPDX-License-Identifier: Apache-2.0
"""The image for all platforms as one OCI archive, and a bill of materials for each platform.

Layers as of the Dockerfile: the base (Debian with Python), the locked packages, koordpy. The image of another
architecture than the machine's is assembled from wheels; only its base needs qemu-user (image/base.sh).
"""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

from release.archives import members_below, write_tar
from release.build_state import BuildOptions, BuildState
from release.checkout import ReleaseError
from release.image_archive import Blobs, add_image, image_settings, write_archive
from release.image_tree import (
    compile_bytecode,
    make_base,
    make_environment,
    trim,
    unpack_base,
    unpack_wheels,
    write_scripts,
)
from release.locked_wheels import IMAGE_LOCK, read_lock, read_metadata
from release.platforms import ARCH_HERE, IMAGE_PYTHON, Platform
from release.sbom import debian_component, sbom_text

_STATUS = "./var/lib/dpkg/status"


def check_programs(options: BuildOptions) -> None:
    """Raises ReleaseError if mmdebstrap is missing, or cannot run programs of an architecture of the image."""
    if shutil.which("mmdebstrap") is None:
        raise ReleaseError("the image needs mmdebstrap, a package of Debian and Ubuntu; leave it out with PARTS")
    if shutil.which("arch-test") is None:
        return  # Debian installs it with mmdebstrap; without it, mmdebstrap itself fails for a foreign architecture.
    for name in options.image_platforms:
        arch = name.partition("/")[2]
        if subprocess.run(["arch-test", arch], capture_output=True, check=False).returncode:
            raise ReleaseError(
                f"this machine runs no programs of {name}: the image needs qemu-user with binfmt_misc (Debian and "
                f"Ubuntu: qemu-user-static); choose other architectures with IMAGES, or leave the image out with PARTS"
            )


def build_image(build: BuildState) -> list[Path]:
    """Writes the archive of the image and a bill of materials for each platform; needs the wheel."""
    checkout, blobs = build.checkout, Blobs(build.scratch / "blobs")
    blobs.folder.mkdir()
    archs = [name.partition("/")[2] for name in build.options.image_platforms]
    bases = {arch: build.scratch / f"base-{arch}.tar" for arch in sorted({*archs, ARCH_HERE})}
    for arch, file in bases.items():
        make_base(checkout.tree, arch, file, checkout.time)
    python_base = build.scratch / "python-base"
    unpack_base(bases[ARCH_HERE], python_base)
    arguments = {"SOURCE": checkout.repository, "REVISION": checkout.commit}
    settings = image_settings(checkout.read("Dockerfile"), arguments)
    images: list[dict[str, Any]] = []
    files = [build.folder / f"koordpy-image-{checkout.version}.oci.tar"]
    for arch in archs:
        layers = [bases[arch], *_layers(build, arch, python_base)]
        images.append(add_image(blobs, layers, settings, arch, checkout.time))
        files.append(_write_sbom(build, arch, bases[arch]))
    write_archive(files[0], checkout.image, images, blobs, checkout.time)
    return files


def _layers(build: BuildState, arch: str, python_base: Path) -> list[Path]:
    """The layers of the packages and of koordpy."""
    wheels = {"packages": build.wheels(Platform("linux", arch, IMAGE_PYTHON)), "koordpy": [build.wheel()]}
    files = []
    for name, of_layer in wheels.items():
        root = build.scratch / f"{name}-{arch}"
        unpack_wheels(of_layer, root, IMAGE_PYTHON)
        trim(build.checkout.tree, root)
        compile_bytecode(root, python_base, IMAGE_PYTHON)
        if name == "packages":
            make_environment(root, IMAGE_PYTHON)
            trim(build.checkout.tree, root)  # again: compiled files that nothing imports
        else:
            write_scripts(root, IMAGE_PYTHON, "koordpy")
        file = build.scratch / f"{name}-{arch}.tar"
        with file.open("wb") as out:
            write_tar(out, members_below(root, ""), build.checkout.time)
        files.append(file)
    return files


def _write_sbom(build: BuildState, arch: str, base: Path) -> Path:
    target = Platform("linux", arch, IMAGE_PYTHON)
    pins = [pin for pin in read_lock(build.checkout.read(IMAGE_LOCK)) if pin.fits(target)]
    packages = [debian_component(fields) for fields in dpkg_status(base)]
    file = build.folder / f"koordpy-image-{build.checkout.version}-{arch}.cdx.json"
    metadata = read_metadata(build.wheels(target))
    file.write_text(sbom_text(build.checkout, file.name, pins, metadata, packages), encoding="utf-8")
    return file


def dpkg_status(base: Path) -> list[dict[str, str]]:
    """The installed packages of a base, each as the fields of its paragraph in dpkg's status file."""
    with tarfile.open(base) as tar:
        content = tar.extractfile(_STATUS)
        text = content.read().decode() if content else ""
    paragraphs = [paragraph.splitlines() for paragraph in text.split("\n\n") if paragraph.strip()]
    return [
        {key: value.strip() for key, _, value in (line.partition(":") for line in lines if not line.startswith(" "))}
        for lines in paragraphs
    ]
