# SPDX-License-Identifier: Apache-2.0
"""`python -m release.publishing STEP`: publishes what `make dist` built; the release workflow runs it.

| step | effect |
|---|---|
| check TAG | fails unless tag, chart, changelog (with a date) and upgrade notes name the version of koordpy |
| image | pushes the image of all platforms, signs it, and attests its SBOMs; the last line is `digest=sha256:...` |
| chart | pushes the chart as an OCI artifact, and signs it; the last line is `digest=sha256:...` |
| files | signs the checksums, and creates the release of the forge with all files of dist/ |

cosign signs without keys: the identity of the workflow (OIDC) is in the certificate. Programs of the PATH do the work:
skopeo, cosign, helm and gh. With DRY_RUN=1 their command lines are printed instead. Must not build anything.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from release.checkout import CHART, Checkout, ReleaseError

ROOT = Path(__file__).parents[1]
USAGE = "usage: python -m release.publishing check TAG | image | chart | files"
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
NO_DIGEST = "sha256:" + "0" * 64
"""Stands for a digest in a dry run."""


@dataclass(frozen=True)
class Publisher:
    """Runs the steps for the files below a root."""

    root: Path
    is_dry: bool = False

    @property
    def checkout(self) -> Checkout:
        """The working tree, which the workflow checked out at the tag."""
        return Checkout(self.root, "", 0)

    @property
    def dist(self) -> Path:
        """The folder of `make dist`."""
        return self.root / "dist"

    def check(self, tag: str) -> None:
        """Raises ReleaseError, with every file that does not name the version of the tag."""
        version = self.checkout.version
        chart = yaml.safe_load(self.checkout.read(f"{CHART}/Chart.yaml"))
        found = f"the tag is {tag}" if tag else "TAG is not set"
        wrong = [] if tag == f"v{version}" else [f"{found}, koordpy is {version}: tag v{version}"]
        wrong += [
            f"{CHART}/Chart.yaml: {field} is {chart[field]}, koordpy is {version}"
            for field in ("version", "appVersion")
            if chart[field] != version
        ]
        if not self.notes():
            wrong.append(f"CHANGELOG.md: no text below a heading ## [{version}] - YYYY-MM-DD")
        if f"\n## {version}\n" not in self.checkout.read("docs/upgrading.md"):
            wrong.append(f"docs/upgrading.md: no section {version}")
        if wrong:
            raise ReleaseError("\n".join(wrong))

    def notes(self) -> str:
        """The section of CHANGELOG.md about this version, without its heading; empty if there is none with a date."""
        heading = rf"^## \[{re.escape(self.checkout.version)}\] - \d{{4}}-\d\d-\d\d\n"
        found = re.search(rf"{heading}(.*?)(?=^## |^\[[^]]+\]: |\Z)", self.checkout.read("CHANGELOG.md"), re.M | re.S)
        return found[1].strip() if found else ""

    def publish_image(self) -> str:
        """Pushes the image's index with the images of all platforms, signs it and attests its SBOMs; the digest."""
        name = f"koordpy-image-{self.checkout.version}"
        archive, digest_file = self._built(f"dist/{name}.oci.tar", "make dist"), self.root / "build/image.digest"
        digest_file.parent.mkdir(exist_ok=True)
        image = self.checkout.image
        self._run("skopeo", "copy", "--all", "--digestfile", digest_file, f"oci-archive:{archive}", f"docker://{image}")
        digest = NO_DIGEST if self.is_dry else _digest_in(digest_file.read_text(encoding="utf-8"))
        signed = f"{image.rpartition(':')[0]}@{digest}"
        self._run("cosign", "sign", "--yes", "--recursive", signed)
        for sbom in sorted(self.dist.glob(f"{name}-*.cdx.json")):
            self._run("cosign", "attest", "--yes", "--type", "cyclonedx", "--predicate", sbom, signed)
        return digest

    def publish_chart(self) -> str:
        """Pushes the chart's package beside the image, in charts/, and signs it; returns the digest."""
        package = self._built(f"dist/koordpy-{self.checkout.version}.tgz", "make dist")
        folder = f"{self.checkout.image.rpartition('/')[0]}/charts"
        said = self._run("helm", "push", package, f"oci://{folder}")
        digest = NO_DIGEST if self.is_dry else _digest_in(said)
        self._run("cosign", "sign", "--yes", f"{folder}/koordpy@{digest}")
        return digest

    def publish_files(self) -> None:
        """Signs dist/checksums.txt, and creates the release of the forge with all files of dist/."""
        sums = self._built("dist/checksums.txt", "make dist")
        bundle, notes = self.dist / "checksums.txt.sigstore.json", self.root / "build/release-notes.md"
        self._run("cosign", "sign-blob", "--yes", "--bundle", bundle, sums)
        notes.parent.mkdir(exist_ok=True)
        notes.write_text(f"{self.notes()}\n", encoding="utf-8")
        tag = f"v{self.checkout.version}"
        kind = ["--prerelease"] if "-" in tag else []
        files = sorted({*self.dist.iterdir(), bundle})
        self._run(
            "gh", "release", "create", tag, "--verify-tag", "--title", f"koordpy {tag}", "--notes-file", notes, *kind,
            *files,
        )  # fmt: skip

    def _built(self, name: str, command: str) -> Path:
        """A file that an earlier command must have built."""
        path = self.root / name
        if not path.is_file():
            raise ReleaseError(f"there is no {name}: {command}")
        return path

    def _run(self, program: str, *arguments: str | Path) -> str:
        """What the program prints to stdout and stderr, which also go to stderr here; raises ReleaseError."""
        command = [program, *map(str, arguments)]
        print(f"+ {shlex.join(command)}", file=sys.stderr)
        if self.is_dry:
            return ""
        try:
            done = subprocess.run(
                command, cwd=self.root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
            )
        except FileNotFoundError:
            raise ReleaseError(f"{program} is not on the PATH") from None
        print(done.stdout, end="", file=sys.stderr)
        if done.returncode:
            raise ReleaseError(f"{program} ended with exit status {done.returncode}")
        return done.stdout


def _digest_in(text: str) -> str:
    found = DIGEST.search(text)
    if found is None:
        raise ReleaseError(f"no digest in the answer {text.strip()!r}")
    return found[0]


def main(words: Sequence[str]) -> int:
    """Runs one step and returns the exit status: 1 if it failed, 2 for a wrong use."""
    publisher = Publisher(ROOT, is_dry=bool(os.environ.get("DRY_RUN")))
    steps: dict[str, Callable[..., str | None]] = {
        "check": publisher.check,
        "image": publisher.publish_image,
        "chart": publisher.publish_chart,
        "files": publisher.publish_files,
    }
    if not words or words[0] not in steps or len(words) != (2 if words[0] == "check" else 1):
        print(USAGE, file=sys.stderr)
        return 2
    try:
        digest = steps[words[0]](*words[1:])
    except ReleaseError as error:
        print("\n".join(f"release: {line}" for line in str(error).splitlines()), file=sys.stderr)
        return 1
    if digest:
        print(f"digest={digest}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
