# SPDX-License-Identifier: Apache-2.0
"""The image that `make image` wrote: what it says of itself, what its layers hold, koordpy on its own Python.

Without the archive, or with one of another revision, there is nothing to try, and these tests are skipped.
"""

import json
import os
import re
import stat
import subprocess
from collections.abc import Callable, Iterator

import pytest

from koordpy import __version__
from tests.docs.worked import ROOT
from tests.image.archive import ARCHIVE, Image
from tests.image.test_packages import MIXED, member, pins
from tests.loudly import skip_loudly

USER = 65532
EVERYBODYS = {"tmp", "var/tmp", "run/lock"}
"""Folders that every Debian has open to all."""

Run = Callable[..., str]


@pytest.fixture(scope="module")
def image(request: pytest.FixtureRequest) -> Image:
    if not ARCHIVE.exists():
        skip_loudly(request, "the image", f"there is no {ARCHIVE.relative_to(ROOT)}: make image")
    image = Image()
    asked = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    head = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    if image.config["Labels"]["org.opencontainers.image.revision"] != head:
        skip_loudly(request, "the image", f"{ARCHIVE.relative_to(ROOT)} is of another revision: make image")
    return image


def test_it_says_what_it_is_and_does_not_run_as_root(image: Image) -> None:
    labels = {key.removeprefix("org.opencontainers.image."): value for key, value in image.config["Labels"].items()}
    assert {"title", "description", "version", "revision", "source", "licenses"} <= set(labels)
    assert (labels["version"], labels["licenses"]) == (__version__, "Apache-2.0")
    assert image.config["User"] == f"{USER}:{USER}"
    assert (image.config["Entrypoint"], image.config["Cmd"]) == (["/opt/koordpy/bin/koordpy"], ["run"])


def test_nothing_in_it_can_be_written_by_its_user(image: Image) -> None:
    entries = [entry for layer in image.layers for entry in image.entries(layer) if entry.isfile() or entry.isdir()]
    writable = {entry.name for entry in entries if entry.mode & stat.S_IWOTH or USER in (entry.uid, entry.gid)}
    assert {name.removeprefix("./") for name in writable} <= EVERYBODYS and len(entries) > 1000


def test_packages_are_one_layer_and_koordpy_another(image: Image) -> None:
    def packages(names: Iterator[str]) -> set[str]:
        found = (re.search(r"/site-packages/([^/]+)\.dist-info/METADATA$", name) for name in names)
        return {one[1].lower() for one in found if one}

    locked = {pin.replace("-", "_").replace("==", "-") for pin, marker in pins("requirements-image.lock")}
    held = packages(entry.name for entry in image.entries(image.packages))
    assert held <= locked and len(held) > 20
    assert packages(entry.name for entry in image.entries(image.koordpy)) == {f"koordpy-{__version__}"}


@pytest.fixture(scope="module")
def run(request: pytest.FixtureRequest, image: Image, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a command in the image as its user, with nothing to write to but /tmp; standard output."""
    root = tmp_path_factory.mktemp("image")
    image.unpack(root)
    script = f"""
        mount --bind {root} {root} && mount -o remount,bind,ro {root} && mount -t tmpfs tmpfs {root}/tmp &&
        cat > {root}/tmp/in.yaml && chmod 644 {root}/tmp/in.yaml &&
        exec unshare --user --map-user={USER} --map-group={USER} --keep-caps chroot {root} "$@"
    """
    apart = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        skip_loudly(request, "the image's commands", "namespaces of users are not allowed here")
    environment = dict(one.split("=", 1) for one in image.config["Env"])

    def call(*words: str, given: str = "") -> str:
        done = subprocess.run(
            [*apart, "sh", "-c", script, "sh", *words],
            input=given,
            env={"PATH": os.environ["PATH"], "HOME": "/", **environment},  # HOME as container runtimes set it
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return call


def test_koordpy_runs_in_it_with_its_own_python_and_nothing_to_write_to(run: Run) -> None:
    assert run("/opt/koordpy/bin/python", "-m", "koordpy", "version") == f"koordpy {__version__}\n"
    assert (
        run("/opt/koordpy/bin/python", "-c", "import os; print(os.getuid(), os.access('/opt', os.W_OK))")
        == f"{USER} False\n"
    )
    for command in ("run", "agent"):
        assert f"usage: koordpy {command}" in run("/opt/koordpy/bin/koordpy", command, "--help")


def test_the_solver_works_in_it(run: Run) -> None:
    given = MIXED + member("a", 3) + member("b", 2)
    result = json.loads(run("/opt/koordpy/bin/koordpy", "simulate", "-f", "/tmp/in.yaml", "-o", "json", given=given))
    assert (len(result["bindings"]), result["gangs"][0]["proof"]) == (2, "optimal")


def test_everything_that_koordpy_imports_is_in_it(run: Run) -> None:
    script = "import importlib, pkgutil, koordpy; [importlib.import_module(one.name) for one in "
    script += "pkgutil.walk_packages(koordpy.__path__, 'koordpy.') if not one.name.endswith('__main__')]; "
    script += "import kubernetes_asyncio.config.kube_config"
    assert run("/opt/koordpy/bin/python", "-c", script) == ""
