# SPDX-License-Identifier: Apache-2.0
"""The chart's webhook cannot lock a cluster out: which pods depend on it, rendered and on a real API server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.e2e.chart import Denied, Helm, Release
from tests.e2e.client import Client, Refused, pods_path
from tests.e2e.installed import path_of
from tests.e2e.process import eventually

Values = dict[str, Any]
VARIABLES, QUOTAS = "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"
NOWHERE = "https://127.0.0.1:9"
"""The discard port: no server listens there."""


def selected(release: Release, namespace: str) -> bool:
    """Whether the webhook of pods is called for pods of that namespace, as an API server evaluates the selector."""
    (hook,) = release.of(VARIABLES)["webhooks"]
    (term,) = hook["namespaceSelector"]["matchExpressions"]
    assert (term["key"], term["operator"]) == ("kubernetes.io/metadata.name", "NotIn")
    return namespace not in term["values"]


@pytest.mark.parametrize(
    ("values", "own", "excluded"),
    [
        ({}, "scheduling", []),
        ({"webhook": {"excludedNamespaces": None}}, "scheduling", []),
        ({"webhook": {"excludedNamespaces": ["monitoring", "kube-system"]}}, "scheduling", ["monitoring"]),
        ({"namespaceOverride": "elsewhere"}, "elsewhere", []),
        ({"config": {"schedulerNames": ["default-scheduler"]}}, "scheduling", []),
    ],
)
def test_the_webhook_never_matches_pods_of_kube_system_and_of_the_release(
    values: Values, own: str, excluded: list[str], helm: Helm
) -> None:
    release = helm.render({**values, "webhook": {"enabled": True, **values.get("webhook", {})}})
    assert not any(selected(release, namespace) for namespace in ("kube-system", own, *excluded))
    assert selected(release, "team-a")
    (hook,) = release.of(VARIABLES)["webhooks"]
    assert hook["failurePolicy"] == "Fail" and {one["name"] for one in hook["matchConditions"]} == {"gpus", "ours"}
    (hook,) = release.of(QUOTAS)["webhooks"]
    assert hook["failurePolicy"] == "Ignore"


def test_an_invalid_namespace_is_refused(helm: Helm) -> None:
    with pytest.raises(Denied, match="/webhook/excludedNamespaces/0"):
        helm.render({"webhook": {"enabled": True, "excludedNamespaces": ["kube-*"]}})


def pod(scheduler: str, gpus: int) -> Values:
    """A pod of that scheduler."""
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {"cpu": "1"}
    container = {"name": "main", "image": "example.com/x:1", "resources": {"limits": limits}}
    spec = {"schedulerName": scheduler, "automountServiceAccountToken": False, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "p-"}, "spec": spec}


async def refusal(api: Client, body: Values, namespace: str) -> str:
    """Why the API server does not create the pod; empty if it would."""
    try:
        await api.create(f"{pods_path(namespace)}?dryRun=All", body)
    except Refused as refused:
        return refused.message
    return ""


@pytest.fixture(params=["koord-scheduler", "default-scheduler"])
async def unreachable(
    request: pytest.FixtureRequest, api: Client, crds: list[str], helm: Helm, namespace: str
) -> AsyncIterator[str]:
    """Both webhook configurations, for an address at which nothing listens; the name of the scheduler."""
    values = {
        "config": {"schedulerNames": [request.param]},
        "webhook": {"enabled": True, "url": NOWHERE, "excludedNamespaces": [f"{namespace}-excluded"]},
    }
    hooks = [helm.render(values, namespace=namespace).of(kind) for kind in (VARIABLES, QUOTAS)]
    for hook in hooks:
        await api.apply(path_of(hook), hook)
    yield request.param
    for hook in hooks:
        await api.delete(path_of(hook))

    async def admitted() -> bool:
        return not await refusal(api, pod(request.param, 1), "default")

    await eventually(admitted, what="the API server has noticed that the webhook is deleted")


async def test_only_gpu_pods_of_koordpy_depend_on_the_webhook(api: Client, unreachable: str, namespace: str) -> None:
    tenant = await api.make_namespace(f"{namespace}-tenant")
    excluded = await api.make_namespace(f"{namespace}-excluded")

    async def is_called() -> bool:
        return "gpu-variables.koordpy.io" in await refusal(api, pod(unreachable, 1), tenant)

    await eventually(is_called, what="the API server calls the webhook")
    said = {
        "no GPUs": await refusal(api, pod(unreachable, 0), tenant),
        "another scheduler": await refusal(api, pod("another-scheduler", 1), tenant),
        "kube-system": await refusal(api, pod(unreachable, 1), "kube-system"),
        "the release's namespace": await refusal(api, pod(unreachable, 1), namespace),
        "an excluded namespace": await refusal(api, pod(unreachable, 1), excluded),
    }
    assert said == dict.fromkeys(said, "")
    quota = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota", "metadata": {"name": "team"}}
    quotas = f"/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/{tenant}/elasticquotas"
    made = await api.create(f"{quotas}?dryRun=All", {**quota, "spec": {"max": {"cpu": "1"}}})
    assert made["metadata"]["name"] == "team"
