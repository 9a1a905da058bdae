# SPDX-License-Identifier: Apache-2.0
"""Every value of the chart changes what is rendered: none is read by nobody, or by a template that is misspelt.

And every one that is null is as if it were not set, or is refused where koordpy cannot do without.
"""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.e2e.chart import CHART, Denied, Helm

Values = dict[str, Any]
Path = tuple[str, ...]

SWITCHES = ("serviceMonitor", "prometheusRule", "dashboards", "networkPolicy", "agent", "webhook", "tenants")
"""Parts that are off by default; for all that is below them they are on."""
OTHERS: dict[Path, Any] = {
    ("image", "digest"): "sha256:" + "0" * 64,
    ("image", "pullPolicy"): "Always",
    ("imagePullSecrets",): [{"name": "pull"}],
    ("podSecurityContext",): {"runAsUser": 1},
    ("securityContext",): {"privileged": True},
    ("dnsPolicy",): "Default",
    ("extraArgs",): ["--kube-api-qps=9"],
    ("extraEnv",): [{"name": "A", "value": "b"}],
    ("extraVolumes",): [{"name": "more", "emptyDir": {}}],
    ("extraVolumeMounts",): [{"name": "more", "mountPath": "/more"}],
    ("log", "level"): "debug",
    ("log", "format"): "text",
    ("config",): {"podMaxBackoff": "20s"},
    ("resources",): {"requests": {"cpu": "2"}},
    ("tolerations",): [{"key": "x", "operator": "Exists"}],
    ("affinity",): {"nodeAffinity": {}},
    ("topologySpreadConstraints",): [{"maxSkew": 1, "topologyKey": "x", "whenUnsatisfiable": "ScheduleAnyway"}],
    ("serviceMonitor", "interval"): "1m",
    ("serviceMonitor", "scrapeTimeout"): "9s",
    ("serviceMonitor", "relabelings"): [{"action": "labeldrop"}],
    ("serviceMonitor", "metricRelabelings"): [{"action": "labeldrop"}],
    ("networkPolicy", "from"): [{"namespaceSelector": {}}],
    ("networkPolicy", "egress"): [{}],
    ("agent", "delivery"): "device-plugin",
    ("agent", "affinity"): {"nodeAffinity": {}},
    ("agent", "backend"): "topo:/etc/topo.txt",
    ("agent", "measurements"): "/etc/measured.yaml",
    ("agent", "ignoreXids"): [13],
    ("agent", "resource"): "example.com/gpu",
    ("agent", "kubeletFolder"): "/data/kubelet",
    ("agent", "tolerations"): [],
    ("agent", "resources"): {"requests": {"cpu": "2"}},
    ("webhook", "url"): "https://10.0.0.1:9443",
    ("webhook", "existingSecret"): "theirs",
    ("webhook", "excludedNamespaces"): ["monitoring"],
    ("webhook", "certManager", "issuerRef"): {"name": "theirs"},
    ("tenants", "groups"): ["researchers"],
    ("tenants", "existingSecret"): "theirs",
    ("tenants", "certManager", "issuerRef"): {"name": "theirs"},
    ("gpuPolicies", "enabled"): False,
    ("gpuPolicies", "schedulers"): ["system:serviceaccount:green:koordpy"],
    ("gpuPolicies", "agents"): ["system:serviceaccount:green:koordpy-agent"],
    ("nodePolicies", "labels"): ["example.com/rack"],
}
CONTEXTS = ("podSecurityContext", "securityContext")
POD = (*CONTEXTS, "dnsPolicy", "extraArgs", "extraEnv", "extraVolumes", "extraVolumeMounts")
"""Values that the scheduler and the agent have alike."""
OTHERS |= {("agent", name): OTHERS[name,] for name in POD}
"""Where `other` would not give a value that the schema takes."""
BESIDE: dict[Path, Values] = {
    ("agent", "cdi"): {"agent": {"delivery": "device-plugin"}},
    ("agent", "resource"): {"agent": {"delivery": "device-plugin"}},
    ("agent", "kubeletFolder"): {"agent": {"delivery": "device-plugin"}},
    ("gpuPolicies", "agents"): {"agent": {"enabled": True}},
    ("rbac", "watchDefinitions"): {"rbac": {"create": True}},
    ("serviceAccount", "create"): {"serviceAccount": {"name": "theirs"}},
    ("webhook", "caBundle"): {"webhook": {"existingSecret": "theirs"}},
    ("webhook", "certManager", "enabled"): {"webhook": {"enabled": True}},
    ("webhook", "certManager", "issuerRef"): {"webhook": {"certManager": {"enabled": True}}},
    ("tenants", "caBundle"): {"tenants": {"existingSecret": "theirs"}},
    ("tenants", "certManager", "enabled"): {"tenants": {"enabled": True}},
    ("tenants", "certManager", "issuerRef"): {"tenants": {"certManager": {"enabled": True}}},
}
"""What must be set for a value to mean anything."""
WHOLE = {(name,) for name in ("config", "resources", "affinity", "nodeSelector", *CONTEXTS)} | {
    ("agent", name) for name in ("resources", "affinity", "nodeSelector", *CONTEXTS)
}
"""Mappings that are handed on as they are."""


def leaves(values: Values, at: Path = ()) -> Iterator[tuple[Path, Any]]:
    for name, value in values.items():
        path = (*at, name)
        if isinstance(value, dict) and value and path not in WHOLE:
            yield from leaves(value, path)
        else:
            yield path, value


DEFAULTS = dict(leaves(yaml.safe_load((CHART / "values.yaml").read_text())))


def other(path: Path, value: Any) -> Any:
    """Another value than the default."""
    if path in OTHERS:
        return OTHERS[path]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, dict):
        return {"x": "y"}
    return f"{value}x" if value else "theirs"


def put(values: Values, path: Path, value: Any) -> Values:
    """The values with one more of them."""
    found = copy.deepcopy(values)
    inner = found
    for name in path[:-1]:
        inner = inner.setdefault(name, {})
    inner[path[-1]] = value
    return found


def rendered(helm: Helm, values: Values) -> list[Any]:
    """The objects, without what is drawn by lot: certificates, and when they end. To be read only."""
    return _rendered(helm, json.dumps(values))


@functools.cache  # what is beside a value is the same for most
def _rendered(helm: Helm, values: str) -> list[Any]:
    objects = helm.render(json.loads(values), "--include-crds=false").objects
    for one in objects:
        if one["kind"] == "Secret":
            one["data"] = sorted(one["data"])
            one["metadata"]["annotations"].pop("koordpy.io/renew-after")
            if one["metadata"]["name"].endswith("-tenants"):
                drawn = [other["spec"] for other in objects if other["kind"] == "APIService"]
            else:
                drawn = [hook["clientConfig"] for other in objects for hook in other.get("webhooks", [])]
            for trusting in drawn:
                trusting.pop("caBundle")
    return objects


WITHOUT = {(part, name) for part in ("webhook", "tenants") for name in ("certificateDays", "renderCertificate")}
WITHOUT |= {("notes", "readCluster")}
"""Values with tests of their own."""


@pytest.mark.parametrize("path", [path for path in DEFAULTS if path not in WITHOUT], ids=".".join)
def test_it_has_an_effect(path: Path, helm: Helm) -> None:
    base = copy.deepcopy(BESIDE.get(path, {}))
    if path[0] in SWITCHES and path[-1] != "enabled":
        base = put(base, (path[0], "enabled"), True)
    value = other(path, DEFAULTS[path])
    assert value != DEFAULTS[path]
    assert rendered(helm, put(base, path, value)) != rendered(helm, base)


def test_the_certificate_holds_as_long_as_is_said(helm: Helm) -> None:
    def renewed(days: int) -> int:
        release = helm.render({"webhook": {"enabled": True, "certificateDays": days}})
        (secret,) = (one for one in release.objects if one["kind"] == "Secret")
        return int(secret["metadata"]["annotations"]["koordpy.io/renew-after"])

    two_thirds = (renewed(3000) - renewed(30)) / 86_400
    assert two_thirds == pytest.approx(1980, abs=1)


def test_the_tables_speak_of_values_that_are_there() -> None:
    assert (set(OTHERS) | set(BESIDE) | WHOLE) <= set(DEFAULTS)
    assert {name for name in SWITCHES if (name, "enabled") not in DEFAULTS} == set()


SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def needed(schema: Any, at: Path = ()) -> Iterator[Path]:
    """Values that may not be null."""
    for name, one in schema.get("properties", {}).items():
        if name in schema.get("required", ()):
            yield (*at, name)
        if at or name not in ("config", "resources"):
            yield from needed(one, (*at, name))


NEEDED = set(needed(SCHEMA))
SECTIONS = {path[:depth] for path in DEFAULTS for depth in range(1, len(path))}
LEFT_TO_THE_API_SERVER = {"replicas", "revisionHistoryLimit", "terminationGracePeriodSeconds"}


def nulls(value: Any, at: str = "") -> Iterator[str]:
    """Keys of what is null, and flags without a value."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from nulls(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from nulls(inner, at)
    elif value is None or (at == "args" and value.endswith("=")):
        yield f"{at} {value}"


@pytest.mark.parametrize("delivery", ["foreign", "device-plugin"])
def test_what_is_null_is_not_set(delivery: str, helm: Helm) -> None:
    values: Values = {}
    ours = {("image", "repository"), ("webhook", "renderCertificate"), ("tenants", "renderCertificate")}
    for path in set(DEFAULTS) - NEEDED - ours - {(name, "enabled") for name in SWITCHES}:
        values = put(values, path, None)
    for name in SWITCHES:
        values = put(values, (name, "enabled"), True)
    objects = rendered(helm, put(values, ("agent", "delivery"), delivery))
    assert {one["kind"] for one in objects} >= {"Deployment", "DaemonSet", "NetworkPolicy", "ServiceMonitor"}
    assert {found.split()[0] for found in nulls(objects)} <= LEFT_TO_THE_API_SERVER


def test_sections_that_are_null_are_not_set(helm: Helm) -> None:
    optional = {path[0]: None for path in SECTIONS - NEEDED if len(path) == 1}
    assert set(optional) >= {*SWITCHES, "log", "startupProbe", "service", "test"}
    objects = rendered(helm, optional)
    assert not list(nulls(objects))
    assert {one["kind"] for one in objects} >= {"Deployment", "ValidatingAdmissionPolicy", "PodDisruptionBudget"}


@pytest.mark.parametrize("depth", [1, 2])
def test_what_koordpy_cannot_do_without_is_refused_by_its_name_when_it_is_null(depth: int, helm: Helm) -> None:
    paths = {path for path in NEEDED if len(path) == depth}
    values: Values = {}
    for path in paths:
        values = put(values, path, None)
    with pytest.raises(Denied) as refused:
        helm.render(values)
    assert not [path for path in paths if f"'{path[-1]}'" not in str(refused.value)]


def test_a_policy_without_egress_says_nothing_of_where_the_replicas_go(helm: Helm) -> None:
    spec = helm.render({"networkPolicy": {"enabled": True, "egress": None}}).of("NetworkPolicy")["spec"]
    assert spec["policyTypes"] == ["Ingress"] and "egress" not in spec
