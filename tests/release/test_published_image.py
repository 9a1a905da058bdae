# SPDX-License-Identifier: Apache-2.0
"""The image in dist/: `koordpy simulate` of each architecture, under qemu-user where it is not the machine's.

`make dist PARTS=image` builds it, and `make dist-check` runs these tests.
"""

import json
import os
import platform
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from koordpy import __version__
from tests.docs.worked import ROOT
from tests.loudly import skip_loudly
from tests.release.test_published_files import published

pytestmark = pytest.mark.published
QEMU = {"amd64": "x86_64", "arm64": "aarch64"}
"""Go's name of an architecture -> the name of the kernel and of qemu."""
EXAMPLES = ("examples/cluster", "examples/workloads/job.yaml")


class PublishedImage:
    """The archive, and what its blobs say."""

    def __init__(self, archive: Path) -> None:
        self.tar = tarfile.open(archive)  # noqa: SIM115
        (top,) = self.read("index.json")["manifests"]
        self.name = top["annotations"]["io.containerd.image.name"]
        self.images = {one["platform"]["architecture"]: self.blob(one) for one in self.blob(top)["manifests"]}

    def read(self, name: str) -> Any:
        return json.load(self.tar.extractfile(name))  # type: ignore[arg-type]

    def blob(self, descriptor: dict[str, Any]) -> Any:
        return self.read("blobs/" + descriptor["digest"].replace(":", "/"))

    def unpack(self, arch: str, folder: Path) -> None:
        for layer in self.images[arch]["layers"]:
            content = self.tar.extractfile("blobs/" + layer["digest"].replace(":", "/"))
            with tarfile.open(fileobj=content) as tar:
                tar.extractall(folder, [entry for entry in tar if not entry.isdev()], filter="tar")


@pytest.fixture(scope="module")
def image(request: pytest.FixtureRequest) -> PublishedImage:
    return PublishedImage(published(request, f"koordpy-image-{__version__}.oci.tar"))


def test_the_index_has_amd64_and_arm64_under_the_charts_name(image: PublishedImage) -> None:
    assert sorted(image.images) == ["amd64", "arm64"]
    assert image.name.endswith(f":{__version__}")
    for arch, manifest in image.images.items():
        config = image.blob(manifest["config"])
        assert (config["architecture"], config["config"]["User"]) == (arch, "65532:65532")


@pytest.mark.parametrize("arch", ["amd64", "arm64"])
def test_simulate_works_in_the_image(
    request: pytest.FixtureRequest, image: PublishedImage, tmp_path: Path, arch: str
) -> None:
    if arch not in image.images:
        skip_loudly(request, f"the image for {arch}", "it is not in the archive")
    run = ["unshare", "--user", "--map-root-user", "chroot", str(tmp_path / "root")]
    if subprocess.run([*run[:3], "true"], capture_output=True, check=False).returncode:
        skip_loudly(request, f"the image for {arch}", "namespaces of users are not allowed here")
    (tmp_path / "root").mkdir()
    image.unpack(arch, tmp_path / "root")
    if platform.machine() != QEMU[arch]:
        name = f"qemu-{QEMU[arch]}-static"
        emulator = shutil.which(name)
        if emulator is None:
            skip_loudly(request, f"the image for {arch}", f"{name} is not here (Debian: qemu-user-static)")
        shutil.copy(emulator, tmp_path / "root/emulator")
        run.append("/emulator")
    for example in EXAMPLES:
        source, copy = ROOT / example, tmp_path / "root/tmp" / example
        copy.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, copy)
    settings = image.blob(image.images[arch]["config"])["config"]
    environment = {"PATH": os.environ["PATH"], "HOME": "/", **dict(one.split("=", 1) for one in settings["Env"])}
    given = [word for example in EXAMPLES for word in ("-f", f"/tmp/{example}")]
    words = ["/opt/koordpy/bin/python", *settings["Entrypoint"], "simulate", *given, "-o", "json"]
    done = subprocess.run([*run, *words], env=environment, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["bindings"]
    uname = [*run, "/opt/koordpy/bin/python", "-c", "import platform; print(platform.machine())"]
    assert subprocess.run(uname, env=environment, capture_output=True, text=True).stdout.strip() == QEMU[arch]
