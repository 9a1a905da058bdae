"""What the API server itself refuses of ElasticQuotas and of pods, by the chart's policies."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.client import Client, Refused, pod_manifest, pods_path
from tests.e2e.installed import Install
from tests.e2e.process import eventually

PREFIX = "quota.scheduling.koordinator.sh/"


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

    async def refused() -> bool:
        try:
            await api.create(f"{quotas}?dryRun=All", own_parent)
        except Refused:
            return True
        return False

    await eventually(refused, what="the policies are enforced", within_s=30)
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
    await install()
    fixed = {PREFIX + "preemptible": "false"}
    await api.create(pods_path(), pod_manifest("ours", scheduler="koord-scheduler", labels=fixed))
    await api.create(pods_path(), pod_manifest("theirs", scheduler="default-scheduler", labels=fixed))
    change = {"metadata": {"labels": {PREFIX + "preemptible": "true"}}}

    async def refused() -> bool:
        try:
            await api.patch(f"{pods_path()}/ours?dryRun=All", change)
        except Refused:
            return True
        return False

    await eventually(refused, what="the policies are enforced", within_s=30)
    with pytest.raises(Refused, match="make the pod anew"):
        await api.patch(f"{pods_path()}/ours", {"metadata": {"labels": {PREFIX + "preemptible": None}}})
    await api.patch(f"{pods_path()}/ours", {"metadata": {"labels": {"team": "a"}}})
    await api.patch(f"{pods_path()}/theirs", change)
