# SPDX-License-Identifier: Apache-2.0
"""The range of supported versions of Kubernetes is the same everywhere: code, chart, docs, and what can be built."""

import re
import subprocess
from pathlib import Path

import yaml

from koordpy.api.kubernetes_versions import NEWEST, OLDEST, minor_version, supported_range

REPOSITORY = Path(__file__).resolve().parents[2]
PINNED = REPOSITORY / "controlplane" / "kubernetes"


def dotted(minor: tuple[int, int]) -> str:
    return ".".join(map(str, minor))


def test_each_supported_version_can_be_built_and_no_other() -> None:
    supported = [dotted((OLDEST[0], minor)) for minor in range(OLDEST[1], NEWEST[1] + 1)]
    assert sorted(folder.name for folder in PINNED.iterdir()) == supported
    for name in supported:
        found = re.findall(r"k8s\.io/kubernetes (v\S+)", (PINNED / name / "go.mod").read_text())
        assert [minor_version(one) for one in found] == [minor_version(name)]


def test_the_chart_declines_older_versions() -> None:
    chart = yaml.safe_load((REPOSITORY / "charts" / "koordpy" / "Chart.yaml").read_text())
    assert chart["kubeVersion"] == f">={dotted(OLDEST)}.0-0"


def test_the_pages_state_the_range() -> None:
    pages = {name: (REPOSITORY / "docs" / f"{name}.md").read_text() for name in ("compatibility", "install")}
    build = (REPOSITORY / "controlplane" / "build.sh").read_text()
    (default,) = re.findall(r"^wanted=\$\{KUBERNETES:-(\S+)\}$", build, re.MULTILINE)
    assert default == dotted(NEWEST)
    run_on = f"all end-to-end tests run on {default}, a part of them on {dotted(OLDEST)} (`make e2e-oldest`)"
    assert f"| 0.1 | {supported_range()}; {run_on} |" in pages["compatibility"]
    assert f"You need Kubernetes {supported_range()} " in pages["install"]
    header = next(line for line in pages["compatibility"].splitlines() if line.startswith("| | 1."))
    assert header.split(" | ")[1:-1] == [dotted((OLDEST[0], minor)) for minor in range(OLDEST[1], NEWEST[1] + 1)]


def test_a_version_that_cannot_be_built_gets_one_line() -> None:
    for asked in ("1.33", "../etcd", "newest"):
        done = subprocess.run(
            [REPOSITORY / "controlplane" / "build.sh"],
            env={"PATH": "/usr/bin:/bin", "KUBERNETES": asked},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 1
        versions = " ".join(sorted(folder.name for folder in PINNED.iterdir()))
        assert done.stderr.strip() == f"controlplane: KUBERNETES={asked} cannot be built; it can be one of: {versions}"
