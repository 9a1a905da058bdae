# SPDX-License-Identifier: Apache-2.0
"""What the API server itself refuses of ElasticQuotas and of pods, by the chart's policies."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.chart import EVERYBODY
from tests.e2e.client import Client, Refused, pod_manifest, pods_path
from tests.e2e.installed import Install, enforced
from tests.e2e.process import eventually

PREFIX = "quota.scheduling.koordinator.sh/"


def of_administrators(namespace: str) -> dict[str, Any]:
    """`config.quota` with which quotas and labels of one namespace alone count."""
    own = [namespace]
    return {"namespaces": own, "trustedNamespaces": own, "podLabels": "listed", "labelNamespaces": own}


def quota(name: str, *, labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    meta = {"name": name, "labels": {PREFIX + key: value for key, value in (labels or {}).items()}}
    return {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota", "metadata": meta, "spec": spec}


async def test_a_quota_that_cannot_be_is_refused_where_it_is_written(
    api: Client, install: Install, namespace: str
) -> None:
    await install()
    quotas = f"/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/{namespace}/elasticquotas"
    bad = quota("bad", min={"cpu": "12"}, max={"cpu": "10"})
    own_parent = quota("bad", labels={"parent": "bad"}, max={"cpu": "1"})
    await enforced(api)
    for manifest, said in (
        (bad, "min"),
        (quota("bad", min={"cpu": "1"}, max={"memory": "1Gi"}), "min"),
        (own_parent, "own parent"),
    ):
        with pytest.raises(Refused, match=said):
            await api.create(quotas, manifest)
    await api.create(quotas, quota("good", labels={"tree-id": "t"}, min={"cpu": "500m"}, max={"cpu": "1"}))
    await api.patch(f"{quotas}/good", {"spec": {"max": {"cpu": "2"}}})
    for change in ({PREFIX + "tree-id": "other"}, {PREFIX + "tree-id": None}):
        with pytest.raises(Refused, match="tree-id"):
            await api.patch(f"{quotas}/good", {"metadata": {"labels": change}})
    await api.create(quotas, quota("koordinator-default-quota", max={"cpu": "1"}))
    with pytest.raises(Refused, match="built-in"):
        await api.delete(f"{quotas}/koordinator-default-quota")
    await api.delete(f"{quotas}/good")


async def test_whether_a_pod_may_be_evicted_is_decided_when_it_is_made(api: Client, install: Install) -> None:
    await install({"config": {"quota": EVERYBODY}})
    fixed = {PREFIX + "preemptible": "false"}
    await api.create(pods_path(), pod_manifest("ours", scheduler="koord-scheduler", labels=fixed))
    await api.create(pods_path(), pod_manifest("theirs", scheduler="default-scheduler", labels=fixed))
    change = {"metadata": {"labels": {PREFIX + "preemptible": "true"}}}
    await enforced(api)
    with pytest.raises(Refused, match="recreate the pod"):
        await api.patch(f"{pods_path()}/ours", {"metadata": {"labels": {PREFIX + "preemptible": None}}})
    await api.patch(f"{pods_path()}/ours", {"metadata": {"labels": {"team": "a"}}})
    await api.patch(f"{pods_path()}/theirs", change)


QUOTAS = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/{}/elasticquotas"


async def test_quotas_are_made_where_they_count_and_go_with_any_other_namespace(
    api: Client, install: Install, namespace: str
) -> None:
    """By default they count everywhere."""
    root = quota("koordinator-root-quota", max={"cpu": "1"})
    tenant = QUOTAS.format("default")
    await api.create(tenant, quota("before", max={"cpu": "1"}))
    await api.create(tenant, root)
    await install({"config": {"quota": of_administrators(namespace)}})
    await enforced(api)
    with pytest.raises(Refused, match=f"only honoured in namespace {namespace}"):
        await api.create(tenant, quota("grab", max={"cpu": "0"}))
    await api.patch(f"{tenant}/before", {"spec": {"max": {"cpu": "2"}}})
    for name in ("before", "koordinator-root-quota"):
        await api.delete(f"{tenant}/{name}")
    own = QUOTAS.format(namespace)
    for name in ("team", "root"):
        await api.create(own, quota(name, max={"cpu": "1"}))
    await api.create(own, root)
    with pytest.raises(Refused, match="built-in"):
        await api.delete(f"{own}/koordinator-root-quota")
    for name in ("team", "root"):
        await api.delete(f"{own}/{name}")


async def test_a_namespace_takes_its_quotas_with_it_when_it_goes(api: Client, install: Install, namespace: str) -> None:
    """Without a controller of namespaces its last step, the deletion of what is in it, is made here."""
    await install({"config": {"quota": EVERYBODY}})
    going = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "going"}}
    await api.create("/api/v1/namespaces", going)
    root = QUOTAS.format("going")
    await api.create(root, quota("koordinator-root-quota", max={"cpu": "1"}))
    path = f"{root}/koordinator-root-quota"

    async def kept() -> bool:
        try:
            await api.delete(f"{path}?dryRun=All")
        except Refused:
            return True
        return False

    await enforced(api)
    assert await kept()
    await api.delete("/api/v1/namespaces/going")

    async def gone() -> bool:
        return not await kept()

    await eventually(gone, what="the namespace's deletion is seen")
    await api.delete(path)


async def test_pods_of_tenants_do_not_say_who_their_user_is_and_that_nobody_evicts_them(
    api: Client, install: Install, namespace: str
) -> None:
    user, rigid, fixed = PREFIX + "user", PREFIX + "preemptible", "scheduling.koordinator.sh/disable-preemptible"
    old = {user: "honest", rigid: "false"}
    await api.create(pods_path(), pod_manifest("before", scheduler="koord-scheduler", labels=old))
    await install({"config": {"quota": of_administrators(namespace)}})

    def create(name: str, labels: dict[str, str], *, scheduler: str = "koord-scheduler", where: str = "default") -> Any:
        manifest = pod_manifest(name, scheduler=scheduler, labels=labels)
        manifest["metadata"].pop("namespace", None)
        return api.create(f"/api/v1/namespaces/{where}/pods?dryRun=All", manifest)

    await enforced(api)
    for labels in ({user: "honest"}, {rigid: "false"}, {fixed: "true"}):
        with pytest.raises(Refused, match=f"only pods of namespace {namespace} may say {next(iter(labels))}"):
            await create("p", labels)
        await create("p", labels, scheduler="default-scheduler")
        await create("p", labels, where=namespace)
    await create("p", {rigid: "true", fixed: "false", PREFIX + "name": "team"})
    await api.patch(f"{pods_path()}/before", {"metadata": {"labels": {"team": "a"}}})
    with pytest.raises(Refused, match="may say"):
        await api.patch(f"{pods_path()}/before", {"metadata": {"labels": {user: "other"}}})
    await api.patch(f"{pods_path()}/before", {"metadata": {"labels": {user: None}}})
