# SPDX-License-Identifier: Apache-2.0
"""The sdist, and the wheel from the sdist. hatchling writes both with the time of the commit (SOURCE_DATE_EPOCH)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from release.checkout import Checkout, ReleaseError


def build_python_packages(checkout: Checkout, folder: Path) -> list[Path]:
    """Writes sdist and wheel with the tools of this interpreter; no package index is used."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(checkout.tree)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(checkout.time)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"python -m build: {done.stdout}{done.stderr}")
    return [folder / f"koordpy-{checkout.version}.tar.gz", folder / wheel_name(checkout)]


def wheel_name(checkout: Checkout) -> str:
    """File name of koordpy's wheel."""
    return f"koordpy-{checkout.version}-py3-none-any.whl"
