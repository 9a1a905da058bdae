# SPDX-License-Identifier: Apache-2.0
"""Finds files that are shipped with koordpy: the CustomResourceDefinitions of crds/, and examples/."""

import functools
from pathlib import Path
from typing import Any

import koordpy

Object = dict[str, Any]


def shipped_folder(name: str) -> Path:
    """Returns the path of a shipped folder (crds, examples): in the package of a wheel, else at the repository's
    root."""
    package = Path(koordpy.__file__).parent
    shipped = package / "data" / name
    return shipped if shipped.is_dir() else package.parent / name


@functools.cache
def definitions_by_file() -> dict[str, Object]:
    """Returns koordpy's CustomResourceDefinitions by the name of their file, such as `podgroups.yaml`.

    The objects are shared and must not be changed.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    paths = sorted(shipped_folder("crds").glob("*.yaml"))
    return {path.name: yaml.load(path.read_text(encoding="utf-8"), Loader=loader) for path in paths}
