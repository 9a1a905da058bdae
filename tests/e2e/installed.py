# SPDX-License-Identifier: Apache-2.0
"""A release of the chart on the real API server: its objects applied, koordpy run as its Deployment would run it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.chart import Helm, Release
from tests.e2e.client import Client, Refused, pod_manifest, pods_path
from tests.e2e.controlplane import ControlPlane
from tests.e2e.process import Process, eventually, koordpy_run
from tests.e2e.test_scheduler import GROUPS, TOPOLOGIES, gang

RELEASE = "koordpy"
KOORD, SIGS, X = "scheduling.koordinator.sh", "scheduling.sigs.k8s.io", "scheduling.x-k8s.io"
POLICIES = "admissionregistration.k8s.io"
DEFINITIONS = ("apiextensions.k8s.io", "customresourcedefinitions")
Json = dict[str, Any]


@dataclass(frozen=True)
class Installed:
    """A release in a namespace of its own, and a client that speaks with its service account's token."""

    release: Release
    namespace: str
    token: str
    client: Client

    @property
    def account(self) -> str:
        return f"system:serviceaccount:{self.namespace}:{RELEASE}"

    @property
    def leases(self) -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases"

    def run(self, kubeconfig: Path, folder: Path, env: Mapping[str, str] | None = None) -> Process:
        """koordpy as the Deployment would start it, but at a free port of loopback."""
        (container,) = self.release.pod["containers"]
        command, *flags = container["args"]
        assert command == "run"
        file = folder / "config.yaml"
        file.write_text(self.release.configuration)
        (mount,) = (mount for mount in container["volumeMounts"] if mount["name"] == "config")
        flags = [flag.replace(f"{mount['mountPath']}/config.yaml", str(file)) for flag in flags]
        assert f"--config={file}" in flags
        return koordpy_run(*flags, "--bind-address", "127.0.0.1:0", kubeconfig=kubeconfig, folder=folder, env=env)


def path_of(manifest: Json) -> str:
    """An object's own path."""
    group = manifest["apiVersion"].rpartition("/")[0]
    plural = manifest["kind"].lower() + "s"
    if plural.endswith("policys"):
        plural = plural.removesuffix("ys") + "ies"
    root = f"/apis/{manifest['apiVersion']}" if group else "/api/v1"
    namespace = manifest["metadata"].get("namespace")
    within = f"/namespaces/{namespace}" if namespace else ""
    return f"{root}{within}/{plural}/{manifest['metadata']['name']}"


Install = Callable[..., Awaitable[Installed]]
"""(values of the chart, or nothing for its defaults) -> what was installed."""


@contextlib.asynccontextmanager
async def installer(api: Client, plane: ControlPlane, helm: Helm, namespace: str) -> AsyncIterator[Install]:
    """Gives what applies the rendered chart and takes a token of its account; at the end all of it is removed."""
    clients: list[Client] = []
    made: list[str] = []

    async def apply(values: Mapping[str, Any] | None = None) -> Installed:
        release = helm.render(values, release=RELEASE, namespace=namespace)
        for manifest in release.objects:
            path = path_of(manifest)
            made.append(path)
            # Server-side apply refuses fields that the API server does not know.
            await api.apply(path, manifest)
        wanted = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
        account = release.of("ServiceAccount")["metadata"]["name"]
        answer = await api.create(f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token", wanted)
        token: str = answer["status"]["token"]
        client = await Client(plane.url, token=token, ca=plane.ca).__aenter__()
        clients.append(client)
        return Installed(release, namespace, token, client)

    try:
        yield apply
    finally:
        for client in clients:
            await client.__aexit__()
        for path in (*made, GROUPS, TOPOLOGIES):
            await api.delete(path)
        await eventually(lambda: lets_in(api), what="the policies are gone")
        await enforced(api)  # the API server has heard of every deletion before


_numbers = itertools.count(1)


async def enforced(api: Client) -> None:
    """Waits until the API server heeds every policy that was applied before: it hears of them in the order in which
    they were made, so that of one that is made now last. Under a name of its own: it heeds deleted ones for a while."""
    meta = {"name": f"koordpy-tests-last-{next(_numbers)}"}
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
    spec = {
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": [{"name": "asked", "expression": f"object.metadata.name == '{meta['name']}'"}],
        "validations": [{"expression": "false"}],
    }
    bound = {"policyName": meta["name"], "validationActions": ["Deny"]}
    kinds = (("ValidatingAdmissionPolicy", "ies", spec), ("ValidatingAdmissionPolicyBinding", "ybindings", bound))

    async def forbids() -> bool:
        try:
            asked = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}
            await api.create("/api/v1/namespaces/default/configmaps?dryRun=All", asked)
        except Refused:
            return True
        return False

    paths = [f"/apis/{POLICIES}/v1/validatingadmissionpolic{end}" for _, end, _ in kinds]
    try:
        for path, (kind, _, made) in zip(paths, kinds, strict=True):
            await api.create(path, {"apiVersion": f"{POLICIES}/v1", "kind": kind, "metadata": meta, "spec": made})
        await eventually(forbids, what="the policies are enforced")
    finally:
        for path in paths:
            await api.delete(f"{path}/{meta['name']}")


async def lets_in(api: Client) -> bool:
    """Whether no policy of the chart is enforced any more: the API server forgets one a moment after it is deleted."""
    spec = {"max": {"cpu": "1"}}
    quota = {"apiVersion": f"{SIGS}/v1alpha1", "kind": "ElasticQuota", "metadata": {"name": "probe"}, "spec": spec}
    label = {"quota.scheduling.koordinator.sh/user": "probe"}
    pod = pod_manifest("probe", scheduler="koord-scheduler", labels=label)
    try:
        await api.create(f"/apis/{SIGS}/v1alpha1/namespaces/default/elasticquotas?dryRun=All", quota)
        await api.create(f"{pods_path()}?dryRun=All", pod)
    except Refused as answer:
        return "ValidatingAdmissionPolicy" not in answer.message
    return True


async def make_work(api: Client) -> None:
    """Four nodes of eight GPUs in two blocks, a gang that fits there and one that cannot."""
    await api.make_nodes(4, labels=lambda i: {"net/block": f"b{i // 2}"})
    layers = [
        {"topologyLayer": "blockLayer", "labelKey": ["net/block"], "parentTopologyLayer": "ClusterTopologyLayer"},
        {"topologyLayer": "nodeTopologyLayer", "parentTopologyLayer": "blockLayer"},
    ]
    topology = {
        "apiVersion": f"{KOORD}/v1alpha1",
        "kind": "ClusterNetworkTopology",
        "metadata": {"name": "default"},
        "spec": {"networkTopologySpec": layers},
    }
    await api.create(TOPOLOGIES, topology)
    await gang(api, "fits", 4, gpus=4)
    await gang(api, "large", 5, gpus=8)
