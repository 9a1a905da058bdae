# SPDX-License-Identifier: Apache-2.0
"""helm and what it renders: the program from the control plane's folder, one release's manifests as plain objects."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.assets import REPOSITORY

CHART = REPOSITORY / "charts" / "koordpy"
HELM_TIMEOUT_S = 300
Json = dict[str, Any]
NEEDED: Json = {
    "webhook": {"renderCertificate": True},
    "tenants": {"renderCertificate": True},
}
"""What the chart has no default for where it is rendered without a cluster."""
EVERYBODY: Json = {"namespaces": [], "trustedNamespaces": [], "podLabels": "any", "labelNamespaces": []}
"""`config.quota` with which every quota and label counts, as without the chart."""


class Denied(Exception):
    """helm refused the chart or its values; the text is what it said."""


@dataclass(frozen=True)
class Helm:
    """The program, with a home of its own, so that a person's repositories and plugins play no part."""

    program: Path
    home: Path

    def call(self, *arguments: str | Path, values: Mapping[str, Any] | None = None) -> str:
        """stdout of `helm ARGUMENTS`, values given as a file of their own. Raises Denied."""
        command = [str(self.program), *(str(argument) for argument in arguments)]
        if values is not None:
            command += ["--values", "-"]
            values = _over(NEEDED, values)
        env = {"HOME": str(self.home), "PATH": "", "HELM_NO_PLUGINS": "1"}
        text = json.dumps(values) if values is not None else None
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=HELM_TIMEOUT_S, env=env, check=False
        )
        if done.returncode:
            raise Denied(done.stdout + done.stderr)
        return done.stdout

    def render(
        self,
        values: Mapping[str, Any] | None = None,
        *flags: str,
        release: str = "koordpy",
        namespace: str = "scheduling",
    ) -> Release:
        """What `helm template` gives, without the definitions; without flags also without the test. Raises Denied."""
        flags = flags or ("--skip-tests",)
        text = self.call("template", release, CHART, "--namespace", namespace, *flags, values=values or {})
        return Release([document for document in yaml.safe_load_all(text) if document])


@dataclass(frozen=True)
class Release:
    """The rendered objects of one release."""

    objects: list[Json]

    def kinds(self) -> set[str]:
        """Of the scheduler's own objects; those of components are left out."""
        return {manifest["kind"] for manifest in self.objects if _component(manifest) is None}

    def of(self, kind: str, *, component: str | None = None) -> Json:
        """The only object of its kind: the scheduler's, or that of a component."""
        (found,) = (one for one in self.objects if one["kind"] == kind and _component(one) == component)
        return found

    @property
    def pod(self) -> Json:
        """spec of the Deployment's pods."""
        spec: Json = self.of("Deployment")["spec"]["template"]["spec"]
        return spec

    @property
    def configuration(self) -> str:
        """The text of the KoordpyConfiguration."""
        text: str = self.of("ConfigMap")["data"]["config.yaml"]
        return text

    def rights(self) -> set[tuple[str, str, str, str]]:
        """(group, resource, name or "", verb) of every rule of the ClusterRole and the Role."""
        rules = [rule for manifest in self.objects for rule in manifest.get("rules", [])]
        return {
            (group, resource, name, verb)
            for rule in rules
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for name in rule.get("resourceNames", [""])
            for verb in rule["verbs"]
        }


def _over(below: Mapping[str, Any], values: Mapping[str, Any]) -> Json:
    """Values over others, mappings entry by entry."""
    merged = {**below, **values}
    both = (name for name in below if isinstance(merged[name], dict))
    return merged | {name: _over(below[name], merged[name]) for name in both if isinstance(below[name], dict)}


def _component(manifest: Json) -> str | None:
    label: str | None = manifest["metadata"].get("labels", {}).get("app.kubernetes.io/component")
    return label


def find_helm(assets: Path, home: Path) -> Helm | None:
    """The helm that was built beside the control plane, else the one on PATH, else None."""
    found = assets / "helm"
    if found.exists():
        return Helm(found, home)
    on_path = shutil.which("helm")
    return Helm(Path(on_path), home) if on_path else None
