# SPDX-License-Identifier: Apache-2.0
"""The image as an OCI archive: its configuration, its layers, and what they hold. As a program: how large it is."""

import json
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.docs.worked import ROOT

ARCHIVE = ROOT / "build/koordpy.oci.tar"
REPOSITORY: str = yaml.safe_load((ROOT / "charts/koordpy/values.yaml").read_text(encoding="utf-8"))["image"][
    "repository"
]
"""Name of the image without its tag: the chart's default."""


@dataclass(frozen=True)
class Layer:
    size: int
    blob: str


class Image:
    def __init__(self, archive: Path = ARCHIVE) -> None:
        self._tar = tarfile.open(archive)  # noqa: SIM115
        found = self._json("index.json")
        while "layers" not in found:
            found = self._json(_blob(found["manifests"][0]))
        self.config: dict[str, Any] = self._json(_blob(found["config"]))["config"]
        *self.base, self.packages, self.koordpy = (Layer(one["size"], _blob(one)) for one in found["layers"])

    @property
    def layers(self) -> list[Layer]:
        return [*self.base, self.packages, self.koordpy]

    def entries(self, layer: Layer) -> Iterator[tarfile.TarInfo]:
        with tarfile.open(fileobj=self._tar.extractfile(layer.blob)) as tar:
            yield from tar

    def unpack(self, root: Path) -> None:
        for layer in self.layers:
            with tarfile.open(fileobj=self._tar.extractfile(layer.blob)) as tar:
                tar.extractall(root, filter="tar")

    def _json(self, name: str) -> Any:
        file = self._tar.extractfile(name)
        assert file is not None
        return json.load(file)


def _blob(descriptor: dict[str, Any]) -> str:
    return "blobs/" + descriptor["digest"].replace(":", "/")


def sizes(image: Image) -> str:
    parts = {"base": image.base, "packages": [image.packages], "koordpy": [image.koordpy]}
    told = [f"{name} {sum(layer.size for layer in layers) / 1e6:.0f} MB" for name, layers in parts.items()]
    return f"{ARCHIVE.relative_to(ROOT)}: {sum(layer.size for layer in image.layers) / 1e6:.0f} MB, {', '.join(told)}"


if __name__ == "__main__":
    sys.stdout.write(sizes(Image()) + "\n")
