# SPDX-License-Identifier: Apache-2.0
"""How each version of Kubernetes serves the gangs of scheduling.k8s.io: the API version, and the feature gates.

The version is that of the kube-apiserver in the folder of the control plane. Before 1.36 Kubernetes has no PodGroups.
"""

from __future__ import annotations

import functools
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

Minor = tuple[int, int]


@dataclass(frozen=True)
class GangApi:
    """scheduling.k8s.io of one version of Kubernetes."""

    version: str
    """Version of the API, such as `v1beta1`."""
    gates: tuple[str, ...]
    """Feature gates of the API server, the controller manager and the scheduler; all are off by default."""
    all_or_nothing: object
    """disruptionMode of a PodGroup whose pods are evicted together."""

    @property
    def group_version(self) -> str:
        """apiVersion of the objects."""
        return f"scheduling.k8s.io/{self.version}"

    @property
    def groups(self) -> str:
        """Path of the PodGroups of namespace default."""
        return f"/apis/{self.group_version}/namespaces/default/podgroups"

    @property
    def workloads(self) -> str:
        """Path of the Workloads of namespace default."""
        return f"/apis/{self.group_version}/namespaces/default/workloads"

    def made_from(self, workload: str, template: str) -> dict[str, object]:
        """Returns the field of a PodGroup's spec that refers to the Workload and the template it was created from."""
        if self.version == "v1alpha2":
            reference = {"workloadName": workload, "podGroupTemplateName": template}
            return {"podGroupTemplateRef": {"workload": reference}}
        return {"workloadRef": {"workloadName": workload, "templateName": template}}


GANG_APIS: dict[Minor, GangApi] = {
    (1, 36): GangApi(
        "v1alpha2",
        ("GenericWorkload", "GangScheduling", "TopologyAwareWorkloadScheduling", "WorkloadAwarePreemption"),
        "PodGroup",
    ),
    (1, 37): GangApi("v1beta1", ("GenericWorkload", "TopologyAwareWorkloadScheduling"), {"all": {}}),
}
"""The first version of Kubernetes that serves each API -> the API."""


@functools.cache
def kubernetes_version(assets: Path) -> str:
    """Returns the version of the kube-apiserver in a folder, such as `1.37.2`."""
    program = assets / "kube-apiserver"
    done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=True)
    found = re.fullmatch(r"Kubernetes v(\S+)", done.stdout.strip())
    if found is None:
        raise ValueError(f"{program} --version: {done.stdout!r}")
    return found[1]


def minor_of(version: str) -> Minor:
    """Returns (1, 37) for `1.37.2`."""
    major, minor, *_ = version.split(".")
    return int(major), int(minor)


def gang_api(assets: Path) -> GangApi | None:
    """Returns the API of the kube-apiserver in a folder; None if that version has no PodGroups."""
    minor = minor_of(kubernetes_version(assets))
    return next((api for since, api in sorted(GANG_APIS.items(), reverse=True) if since <= minor), None)
