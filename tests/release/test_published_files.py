# SPDX-License-Identifier: Apache-2.0
"""The files in dist/ as a user gets them: `make dist-check` runs these tests after `make dist`.

The wheel is installed into an empty environment, and its commands run in an empty folder without the repository.
"""

import hashlib
import json
import os
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pytest
import yaml

from koordpy import __version__
from release.platforms import PLATFORM_HERE
from tests.docs.worked import ROOT
from tests.loudly import skip_loudly

pytestmark = pytest.mark.published
DIST = ROOT / "dist"


def published(request: pytest.FixtureRequest, pattern: str) -> Path:
    """The file in dist/ with this name."""
    found = sorted(DIST.glob(pattern))
    if not found:
        skip_loudly(request, pattern, "not in dist/: make dist")
    return found[0]


def call(folder: Path, *words: str | Path, status: int = 0, **environment: str) -> str:
    """Standard output of a command that has an empty home and nothing of this environment."""
    done = subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env={"PATH": f"{Path(sys.base_prefix, 'bin')}:/usr/bin:/bin", "HOME": str(folder), **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout if status == 0 else done.stderr


@pytest.fixture(scope="module")
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder bin/ of an environment with the wheel and what pip installs with it."""
    wheel = published(request, f"koordpy-{__version__}-*.whl")
    folder = tmp_path_factory.mktemp("empty")
    venv.create(folder, with_pip=True)
    # the index, its proxy and authorities are the machine's
    machines = {key: value for key, value in os.environ.items() if key.startswith(("PIP_", "SSL_")) or "PROXY" in key}
    call(folder, folder / "bin/pip", "install", "--quiet", wheel, **machines)
    return folder / "bin"


def test_the_wheel_runs_the_demo(installed: Path, tmp_path: Path) -> None:
    assert call(tmp_path, installed / "koordpy", "demo", "--headless")


def test_the_wheel_simulates_its_own_examples(installed: Path, tmp_path: Path) -> None:
    command = "import koordpy, pathlib; print(pathlib.Path(koordpy.__file__).parent / 'data/examples')"
    examples = Path(call(tmp_path, installed / "python", "-c", command).strip())
    assert installed.parent in examples.parents
    words = ["simulate", "-f", examples / "cluster", "-f", examples / "workloads/job.yaml", "-o", "json"]
    assert json.loads(call(tmp_path, installed / "koordpy", *words))["bindings"]


def test_the_wheel_brings_the_kubectl_plugin(installed: Path, tmp_path: Path) -> None:
    assert call(tmp_path, installed / "kubectl-koordpy", "--version") == f"koordpy {__version__}\n"
    refusal = call(tmp_path, installed / "kubectl-koordpy", "queue", status=1)
    assert "the cluster cannot be read: no API server configured" in refusal


@pytest.fixture(scope="module")
def plugin(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    archive = published(request, f"kubectl-koordpy_v{__version__}_{PLATFORM_HERE.replace('/', '_')}.tar.gz")
    folder = tmp_path_factory.mktemp("plugin")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder / "kubectl-koordpy"


def test_the_plugin_is_one_file_that_plans(plugin: Path, tmp_path: Path) -> None:
    assert sorted(path.name for path in plugin.parent.iterdir()) == ["LICENSE", "kubectl-koordpy"]
    assert call(tmp_path, plugin, "--version") == f"koordpy {__version__}\n"
    assert "no API server configured" in call(tmp_path, plugin, "why", "a", status=1)
    # the planner and all its packages are inside
    simulate = "from koordpy.cli.main import main; raise SystemExit(main())"
    words = ["simulate", "-f", ROOT / "examples/cluster", "-f", ROOT / "examples/workloads/job.yaml", "-o", "json"]
    said = call(tmp_path, plugin, "-c", simulate, *words, PEX_INTERPRETER="1")
    assert json.loads(said)["bindings"]


def test_the_krew_manifest_has_the_hash_of_each_archive(request: pytest.FixtureRequest) -> None:
    manifest = yaml.safe_load(published(request, "koordpy.yaml").read_text())
    assert manifest["spec"]["platforms"]
    for one in manifest["spec"]["platforms"]:
        archive = DIST / one["uri"].rpartition("/")[2]
        assert one["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
        with tarfile.open(archive) as tar:
            assert {entry["from"] for entry in one["files"]} == set(tar.getnames())


def test_every_locked_package_has_a_license_in_the_bill_of_materials(request: pytest.FixtureRequest) -> None:
    document = json.loads(published(request, f"koordpy-{__version__}.cdx.json").read_text())
    assert [one["name"] for one in document["components"] if not one.get("licenses")] == []
    depends = {entry["ref"]: entry.get("dependsOn", []) for entry in document["dependencies"]}
    assert any(
        ref.startswith("absl-py==") for ref in depends[next(ref for ref in depends if ref.startswith("ortools="))]
    )


def test_checksums_are_those_of_all_other_files(request: pytest.FixtureRequest) -> None:
    sums = published(request, "checksums.txt")
    listed = dict(reversed(line.split("  ")) for line in sums.read_text().splitlines())
    assert listed == {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in DIST.iterdir() if file != sums
    }
