# SPDX-License-Identifier: Apache-2.0
"""Settings of the section `numa`: NUMA zones of nodes (numa.md 1)."""

from collections.abc import Iterator
from re import fullmatch

from koordpy.api.field_faults import literal
from koordpy.api.object_names import LABEL_KEY
from koordpy.config.config_values import Section


class NumaSettings(Section, frozen=True):
    """Settings for NUMA zones of nodes."""

    enabled: bool = True
    """True if koordpy predicts the kubelets' admission by NUMA zones, on nodes with NUMA data."""
    ignore_resources: tuple[str, ...] = ()
    """Resources that the kubelets of the cluster do not align."""


def resource_faults(numa: NumaSettings) -> Iterator[tuple[str, ...]]:
    """Yields (path, text) of each entry that is not a valid resource name."""
    for i, name in enumerate(numa.ignore_resources):
        if not fullmatch(LABEL_KEY, name):
            yield f"numa.ignoreResources[{i}]", f"{literal(name)} is no resource name"
