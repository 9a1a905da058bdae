# SPDX-License-Identifier: Apache-2.0
"""The files of the image above its base: koordpy and its packages in a virtual environment, for any architecture.

Wheels are unpacked, not installed, so that no program of the image's architecture must run. The bytecode is that of the
base's Python. It is compiled with unchecked hashes, so that file times do not matter.
"""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import zipfile
from collections.abc import Iterable
from pathlib import Path

from release.checkout import ReleaseError

HOME = "opt/koordpy"
"""Folder of the virtual environment in the image, as in the Dockerfile."""
SCRIPT = """#!/{home}/bin/python
import sys
from {module} import {function}
sys.exit({function}())
"""


def site_packages(root: Path, python: str) -> Path:
    """Folder of the packages below the root of the image."""
    return root / HOME / f"lib/python{python}/site-packages"


def make_environment(root: Path, python: str) -> None:
    """Makes the folder a virtual environment of the base's Python."""
    (root / HOME / "bin").mkdir(parents=True)
    for name in ("python", "python3", f"python{python}"):
        (root / HOME / "bin" / name).symlink_to(f"/usr/bin/python{python}")
    settings = f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {python}\n"
    (root / HOME / "pyvenv.cfg").write_text(settings, encoding="utf-8")


def unpack_wheels(wheels: Iterable[Path], root: Path, python: str) -> None:
    """Unpacks wheels into the environment, without scripts and headers. Raises ReleaseError for other data."""
    site = site_packages(root, python)
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
        for data in site.glob("*.data"):
            for part in sorted(data.iterdir()):
                if part.name in ("purelib", "platlib"):
                    shutil.copytree(part, site, dirs_exist_ok=True)
                elif part.name not in ("scripts", "headers"):
                    raise ReleaseError(f"{wheel.name} has files for {part.name}, which the image has no place for")
            shutil.rmtree(data)


def write_scripts(root: Path, python: str, package: str) -> None:
    """Writes the console scripts of a package that is unpacked there."""
    (file,) = site_packages(root, python).glob(f"{package}-*.dist-info/entry_points.txt")
    entries = configparser.ConfigParser()
    entries.read_string(file.read_text(encoding="utf-8"))
    for name, target in entries["console_scripts"].items():
        module, _, function = target.partition(":")
        script = root / HOME / "bin" / name
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(SCRIPT.format(home=HOME, module=module, function=function), encoding="utf-8")
        script.chmod(0o755)


def trim(tree: Path, root: Path) -> None:
    """Removes what the image leaves out, by image/trim.sh of the source."""
    _run(["sh", str(tree / "image/trim.sh"), str(root / HOME)])


def compile_bytecode(root: Path, base: Path, python: str) -> None:
    """Compiles the packages below a root with the Python of an unpacked base of this machine's architecture.

    The base's own dynamic linker starts it, so that neither root's rights nor a container are needed.
    """
    (linker,) = base.glob("usr/lib/*-linux-gnu/ld-linux-*.so.*")
    command = [str(linker), "--library-path", str(linker.parent), str(base / f"usr/bin/python{python}")]
    command += ["-m", "compileall", "-q", "-f", "--invalidation-mode=unchecked-hash"]
    command += ["-s", str(root), "-p", "/", str(root / HOME / "lib")]
    environment = {"PYTHONHOME": str(base / "usr"), "PYTHONHASHSEED": "0", "PATH": "/usr/bin:/bin"}
    # A wheel may have files that are no Python of this version: compileall names them, goes on, and ends with 1.
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if not any(root.rglob("*.pyc")):
        raise ReleaseError(f"Python {python} of the image's base compiles nothing: {done.stderr.strip()[-2000:]}")


def _run(command: list[str], environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"{' '.join(command[:2])}: {done.stderr.strip()[-2000:]}")


def make_base(tree: Path, arch: str, file: Path, time: int) -> None:
    """Writes the base of the image for an architecture as a tar archive, by image/base.sh of the source."""
    _run(["sh", str(tree / "image/base.sh"), arch, str(file)], {**os.environ, "SOURCE_DATE_EPOCH": str(time)})


def unpack_base(file: Path, folder: Path) -> None:
    """Unpacks a base for `compile_bytecode`, without device files."""
    folder.mkdir()
    _run(["tar", "--extract", "--file", str(file), "--directory", str(folder), "--exclude=./dev/*", "--no-same-owner"])
