# SPDX-License-Identifier: Apache-2.0
"""The image has what koordpy needs at run time and no more: its lock, and koordpy with exactly those packages."""

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest
import yaml
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from koordpy import __version__
from tests.docs.worked import ROOT

LEFT_OUT = {"pandas", "tzdata", "pygments"}
_PIN = re.compile(r"^(\S+==\S+)(?: ; (.*?))? \\\n((?:    --hash=\S+(?: \\)?\n)+)", re.M)


def pins(name: str) -> dict[tuple[str, str], str]:
    """(package and version, marker) -> hashes, of a lock file."""
    return {(pin, marker): hashes for pin, marker, hashes in _PIN.findall((ROOT / name).read_text(encoding="utf-8"))}


def packages() -> list[str]:
    """Names in the image's lock that this interpreter would install."""
    found = [pin.partition("==")[0] for pin, marker in pins("requirements-image.lock") if fits(marker)]
    return sorted(found)


def fits(marker: str) -> bool:
    return not marker or Marker(marker).evaluate()


def asked_for(name: str, extra: str = "") -> Iterator[str]:
    for text in distribution(name).requires or ():
        asked = Requirement(text)
        if asked.marker is None or asked.marker.evaluate({"extra": extra}):
            yield canonicalize_name(asked.name)


def closure() -> set[str]:
    """Everything that koordpy[agent] asks for, and those ask for."""
    todo, found = list(asked_for("koordpy", "agent")), set[str]()
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += asked_for(name)
    return found


def test_the_image_and_its_build_take_what_the_tests_take() -> None:
    everything = {pin: hashes for (pin, _), hashes in pins("requirements.lock").items()}
    for name in ("requirements-image.lock", "requirements-build.lock"):
        for (pin, _), hashes in pins(name).items():
            assert everything.get(pin) == hashes, f"{name}: {pin}: run `make lock`"


def test_the_image_lacks_what_is_left_out_and_nothing_else() -> None:
    assert set(packages()) == closure() - LEFT_OUT


def test_the_build_asks_for_its_backend_alone() -> None:
    (backend,) = (pin for pin, _ in pins("requirements-build.lock") if pin.startswith("hatchling=="))
    assert backend in {pin for pin, _ in pins("requirements.lock")}
    assert len(pins("requirements-build.lock")) < 10


def test_the_label_of_the_image_tells_this_version() -> None:
    labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="(.*)"', (ROOT / "Dockerfile").read_text()))
    assert labels["version"] == __version__ and labels["licenses"] == "Apache-2.0"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the image's packages, and koordpy, for an interpreter without any others."""
    folder = tmp_path_factory.mktemp("site")
    for name in packages():
        files = distribution(name).files or []
        for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
            place, source = folder / top, Path(str(distribution(name).locate_file(top)))
            if not place.exists():
                place.symlink_to(source)
    for name in ("koordpy", "crds", "examples"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def python(site: Path, *words: str, timeout_s: float = 300) -> str:
    """Standard output of an interpreter that has nothing but these packages."""
    environment = {
        "PYTHONPATH": str(site),
        "PATH": os.environ["PATH"],
        "HOME": str(site),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        [sys.executable, "-S", *words], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def imported() -> set[str]:
    """Every module that a statement of koordpy imports, wherever it stands."""
    found = set()
    for file in (ROOT / "koordpy").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module)
    return found


def test_everything_that_koordpy_imports_is_there_and_pandas_is_not(site: Path) -> None:
    # OR-Tools is imported by the one module that lets it do without pandas
    names = sorted(name for name in imported() if not name.startswith("ortools"))
    assert {"kopf", "koordpy.placement.solver.cpsat", "grpc", "networkx"} <= set(names)
    script = f"import importlib, json, sys\nfor name in {names!r}: importlib.import_module(name)\n"
    loaded = json.loads(python(site, "-c", f"{script}print(json.dumps(sorted(sys.modules)))"))
    assert "ortools.sat.python.cp_model" in loaded
    assert not {name.partition(".")[0] for name in loaded} & {"pandas", "pygments", "setuptools", "pytest"}


MIXED = """
kind: Node
metadata: {name: n1}
status: {allocatable: {cpu: "8", memory: 8Gi, pods: "110"}}
---
apiVersion: scheduling.sigs.k8s.io/v1alpha1
kind: PodGroup
metadata: {name: g}
spec: {minMember: 2}
"""


def member(name: str, cpu: int) -> str:
    requests = {"resources": {"requests": {"cpu": cpu}}}
    spec = {"schedulerName": "koord-scheduler", "containers": [{"name": "c", **requests}]}
    meta = {"name": name, "labels": {"pod-group.scheduling.sigs.k8s.io": "g"}}
    return "---\n" + yaml.safe_dump({"kind": "Pod", "metadata": meta, "spec": spec})


def test_the_commands_work_with_it_the_solver_among_them(site: Path, tmp_path: Path) -> None:
    file = tmp_path / "in.yaml"
    file.write_text(MIXED + member("a", 3) + member("b", 2))
    assert python(site, "-m", "koordpy", "version") == f"koordpy {__version__}\n"
    result = json.loads(python(site, "-m", "koordpy", "simulate", "-f", str(file), "-o", "json"))
    assert (len(result["bindings"]), result["gangs"][0]["proof"]) == (2, "optimal")
    assert "total" in python(site, "-m", "koordpy", "explain", "-f", str(file), "--pod", "a")
    for command in ("run", "agent"):
        assert f"usage: koordpy {command}" in python(site, "-m", "koordpy", command, "--help")


def test_the_demo_plays_with_it(site: Path) -> None:
    assert "checks passed" in python(site, "-m", "koordpy", "demo", "--headless", "--speed", "50")
