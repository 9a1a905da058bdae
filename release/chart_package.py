# SPDX-License-Identifier: Apache-2.0
"""The chart as a package, and the custom resource definitions as one file.

`helm package` gives the files the time of its run, so that two packages of one commit would differ. This module writes
the same files in the same folder with the time of the commit. A test compares them with those of `helm package`.
"""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

import yaml

from release.archives import members_below, write_tar_gz
from release.checkout import CHART, Checkout, ReleaseError

IGNORED = ".helmignore"


def build_chart(checkout: Checkout, folder: Path) -> list[Path]:
    """Writes the chart's package, which `helm install` takes as it is."""
    chart = yaml.safe_load(checkout.read(f"{CHART}/Chart.yaml"))
    if chart["appVersion"] != checkout.version:
        raise ReleaseError(f"{CHART}/Chart.yaml: appVersion is {chart['appVersion']}, koordpy is {checkout.version}")
    patterns = [line.rstrip("/") for line in checkout.read(f"{CHART}/{IGNORED}").split()]
    members = [
        member
        for member in members_below(checkout.tree / CHART, f"{chart['name']}/")
        if member.path.is_file() and not any(fnmatch(member.path.name, pattern) for pattern in patterns)
    ]
    return [write_tar_gz(folder / f"{chart['name']}-{chart['version']}.tgz", members, checkout.time)]


def build_crds(checkout: Checkout, folder: Path) -> list[Path]:
    """Writes all custom resource definitions as one file, for `kubectl apply --server-side`."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((checkout.tree / "crds").glob("*.yaml"))]
    file = folder / f"koordpy-crds-{checkout.version}.yaml"
    file.write_text("".join(f"---\n{text.removeprefix('---').strip()}\n" for text in texts), encoding="utf-8")
    return [file]
