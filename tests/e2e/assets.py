# SPDX-License-Identifier: Apache-2.0
"""Where the real control plane's binaries come from, and what to say when they cannot be had.

`controlplane/build.sh` decides: KUBEBUILDER_ASSETS, else what it built before, else a build with the Go toolchain
(about 6 minutes on 2 cores). This module only runs it and tells "not here" (tests are skipped) from "broken" (they
fail where CI=true).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD = REPOSITORY / "controlplane" / "build.sh"
BUILD_TIMEOUT_S = 3600


class AssetsMissing(Exception):
    """This computer has neither the binaries nor what it takes to build them; the text says what to do."""


class BuildFailed(Exception):
    """The binaries could be built here, but the build failed; the text has the end of its output."""


def find_assets() -> Path:
    """The folder with etcd and kube-apiserver (and, unless KUBEBUILDER_ASSETS has fewer, the others of build.sh).

    Raises AssetsMissing or BuildFailed. The build's progress goes to this process's stderr.
    """
    try:
        done = subprocess.run(
            [str(BUILD)], stdout=subprocess.PIPE, text=True, timeout=BUILD_TIMEOUT_S, cwd=REPOSITORY, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise BuildFailed(f"{BUILD.name} did not end within {BUILD_TIMEOUT_S} s") from error
    if done.returncode == 0:
        *_, last = done.stdout.splitlines()
        return Path(last.removeprefix("KUBEBUILDER_ASSETS="))
    if shutil.which("go") is None:
        raise AssetsMissing(
            "no etcd and kube-apiserver: set KUBEBUILDER_ASSETS to a folder that has both, or install Go and run "
            "`make controlplane`"
        )
    raise BuildFailed(
        f"controlplane/build.sh ended with exit status {done.returncode}; run `make controlplane` to see why"
    )


def a_failed_build_is_a_failure() -> bool:
    """Continuous integration must not turn green because nothing could be tested; a person offline may go on."""
    return os.environ.get("CI", "").lower() in ("1", "true")
