# SPDX-License-Identifier: Apache-2.0
"""What depends on other quotas and on pods is refused where it is written, by the webhook on the real API server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.e2e.chart import EVERYBODY
from tests.e2e.client import Client, Refused, pod_manifest, pods_path
from tests.e2e.controlplane import ControlPlane
from tests.e2e.installed import Install
from tests.e2e.process import eventually, koordpy_run
from tests.e2e.test_gpu_delivery import free_port, write_certificates
from tests.e2e.test_quota_policies import PREFIX, quota


async def test_the_tree_of_quotas_stays_whole(
    api: Client, install: Install, controlplane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    port = free_port()
    installed = await install(
        {"config": {"quota": EVERYBODY}, "webhook": {"enabled": True, "url": f"https://127.0.0.1:{port}"}}
    )
    write_certificates(installed.release, tmp_path)
    kubeconfig = controlplane.kubeconfig("quotas", token=installed.token)
    flags = ["--webhook-address", f"127.0.0.1:{port}", "--webhook-certificates", str(tmp_path)]
    flags += ["--bind-address", "127.0.0.1:0", "--leader-elect=false"]
    quotas = f"/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/{namespace}/elasticquotas"
    orphan = quota("kid", labels={"parent": "org"}, min={"cpu": "1"}, max={"cpu": "8"})

    async def refused(asked: Callable[[], Awaitable[object]], why: str) -> None:
        """Dry runs until one is refused: what was written a moment ago may not be in the caches yet."""

        async def once() -> bool:
            try:
                await asked()
            except Refused as answer:
                return why in answer.message
            return False

        await eventually(once, what=f"refused: {why}", processes=[process])

    with koordpy_run(*flags, kubeconfig=kubeconfig, folder=tmp_path) as process:
        await refused(lambda: api.create(f"{quotas}?dryRun=All", orphan), "parent org not found")
        # what is not in the caches yet counts: the child follows its parent at once
        await api.create(quotas, quota("org", labels={"is-parent": "true"}, min={"cpu": "2"}, max={"cpu": "8"}))
        await api.create(quotas, orphan)
        too_much = quota("more", labels={"parent": "org"}, min={"cpu": "2"}, max={"cpu": "8"})
        await refused(lambda: api.create(f"{quotas}?dryRun=All", too_much), "sum of min 3 > parent org min 2, cpu")
        with pytest.raises(Refused, match="sum of min 3 > parent org min 2, cpu"):
            await api.create(quotas, too_much)
        with pytest.raises(Refused, match="quota org has children: kid"):
            await api.patch(f"{quotas}/org", {"metadata": {"labels": {PREFIX + "is-parent": "false"}}})
        with pytest.raises(Refused, match="quota org has children: kid"):
            await api.delete(f"{quotas}/org")
        with pytest.raises(Refused, match="sum of min 1 > parent org min 500m, cpu"):
            await api.patch(f"{quotas}/org", {"spec": {"min": {"cpu": "500m"}}})

        await api.create(pods_path(), pod_manifest("p", scheduler="koord-scheduler", labels={PREFIX + "name": "kid"}))
        await refused(lambda: api.delete(f"{quotas}/kid?dryRun=All"), "quota kid has pods (1)")
        with pytest.raises(Refused, match=r"quota kid has pods \(1\)"):
            await api.delete(f"{quotas}/kid")
        with pytest.raises(Refused, match="which a parent cannot have"):
            await api.patch(f"{quotas}/kid", {"metadata": {"labels": {PREFIX + "is-parent": "true"}}})

        await api.delete(f"{pods_path()}/p")

        async def let_go() -> bool:
            try:
                await api.delete(f"{quotas}/kid")
            except Refused:
                return False
            return True

        await eventually(let_go, what="the leaf without pods may go", processes=[process])
        await api.delete(f"{quotas}/org")
        assert await asyncio.to_thread(process.stop) == 0
