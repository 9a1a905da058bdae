# SPDX-License-Identifier: Apache-2.0
"""The chart's life on the real API server by helm itself, and the dry run that it offers before that."""

from __future__ import annotations

import asyncio
import base64
import re
from pathlib import Path

import aiohttp

from tests.e2e.chart import CHART, Helm
from tests.e2e.client import Client, Refused, condition, pods_path
from tests.e2e.controlplane import ControlPlane
from tests.e2e.installed import DEFINITIONS, KOORD, SIGS, Install, Json, make_work, path_of
from tests.e2e.process import Process, eventually
from tests.e2e.recording import Recorder
from tests.e2e.test_scheduler import places

HOOKS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")


async def test_helm_installs_upgrades_and_removes_it_and_the_definitions_stay(
    api: Client, controlplane: ControlPlane, helm: Helm, namespace: str
) -> None:
    where = ("--namespace", namespace, "--kubeconfig", controlplane.kubeconfig())

    async def objects() -> dict[str, Json | None]:
        found: dict[str, Json | None] = {}
        for manifest in helm.render(release="blue", namespace=namespace).objects:
            try:
                found[manifest["kind"]] = await api.get(path_of(manifest))
            except Refused as refused:
                if refused.status != 404:
                    raise
                found[manifest["kind"]] = None
        return found

    async def definitions() -> set[str]:
        listed = await api.items("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")
        return {definition["metadata"]["name"] for definition in listed}

    said = helm.call("install", "blue", CHART, *where, values={})
    assert "schedulerName: koord-scheduler" in said and "get lease blue-koordpy" in said
    first = await objects()
    assert None not in first.values()
    shared = {"config": {"schedulerNames": ["koord-scheduler", "default-scheduler"]}}
    warned = [
        "two schedulers with one name bind the same pods" in text
        for text in (said, helm.call("upgrade", "blue", CHART, *where, "--dry-run=server", values=shared))
    ]
    assert warned == [False, True]
    helm.call("upgrade", "blue", CHART, *where, values={"replicaCount": 3, "config": {"queue": {"backfill": True}}})
    second = await objects()
    assert second["Deployment"] is not None and second["Deployment"]["spec"]["replicas"] == 3
    assert second["ConfigMap"] is not None and "backfill: true" in second["ConfigMap"]["data"]["config.yaml"]
    helm.call("uninstall", "blue", *where)
    assert set((await objects()).values()) == {None}
    assert {f"podgroups.{SIGS}", f"clusternetworktopologies.{KOORD}"} <= await definitions()


async def test_an_upgrade_keeps_the_certificate_of_the_webhook_as_long_as_it_holds(
    api: Client, controlplane: ControlPlane, helm: Helm, namespace: str
) -> None:
    where = ("--namespace", namespace, "--kubeconfig", controlplane.kubeconfig())
    hook = {"enabled": True, "renderCertificate": False}
    release = helm.render({"webhook": {"enabled": True}}, release="blue", namespace=namespace)
    secret, *hooks = (path_of(one) for one in release.objects if one["kind"] in ("Secret", *HOOKS))

    async def certificate() -> tuple[Json, set[str]]:
        found = await api.get(secret)
        trusted = [one["clientConfig"]["caBundle"] for path in hooks for one in (await api.get(path))["webhooks"]]
        return found["data"], {base64.b64decode(text).decode() for text in trusted}

    helm.call("install", "blue", CHART, *where, values={"webhook": hook})
    try:
        first, trusted = await certificate()
        assert trusted == {base64.b64decode(first["ca.crt"]).decode()}
        helm.call("upgrade", "blue", CHART, *where, values={"webhook": hook, "replicaCount": 3})
        assert await certificate() == (first, trusted)
        helm.call("upgrade", "blue", CHART, *where, values={"webhook": {**hook, "url": "https://127.0.0.1:9443"}})
        other, both = await certificate()
        assert other["tls.crt"] != first["tls.crt"]
        assert both == {"".join(base64.b64decode(one["ca.crt"]).decode() for one in (first, other))}
    finally:
        helm.call("uninstall", "blue", *where)


async def test_a_dry_run_with_rights_to_read_plans_and_sends_nothing_but_reads(
    api: Client, install: Install, controlplane: ControlPlane, tmp_path: Path
) -> None:
    installed = await install({"dryRun": True, "rbac": {"watchDefinitions": True}})
    await make_work(api)
    async with Recorder(controlplane.url, controlplane.ca) as recorder:
        process = installed.run(recorder.kubeconfig(tmp_path, installed.token), tmp_path)
        with process:

            async def planned() -> bool:
                counted = await gang_attempts(process)
                return counted.get("scheduled", 0) >= 1 and counted.get("unschedulable", 0) >= 1

            def handled() -> bool:
                return any(call.right == (*DEFINITIONS, "watch") for call in recorder.calls)

            for what in (planned, handled):
                await eventually(what, what=what.__name__, processes=[process])
            # longer than any status, event or lease is held back, by the loop that would send them
            since = await waited(process)
            await eventually(lambda: waited_longer(process, since + 3), what="a later scrape", processes=[process])
            await metrics(process)
            assert await asyncio.to_thread(process.stop) == 0

    assert {call.method for call in recorder.calls} == {"GET"}
    assert [call for call in recorder.calls if call.refused] == []
    pods = await api.items(pods_path())
    assert len(pods) == 9 and await places(api) == {}
    assert [condition(pod, "PodScheduled") for pod in pods] == [None] * 9
    assert await api.items(installed.leases) == []


async def metrics(process: Process) -> str:
    """What /metrics of a running process says; empty until it listens."""
    found = re.search(r"health checks and metrics are served on port (\d+)", process.log.read_text())
    if found is None:
        return ""
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{found[1]}/metrics") as answer:
        return await answer.text()


async def waited(process: Process) -> float:
    """Seconds that the oldest pending pod has waited, by the loop of the process."""
    [text] = re.findall(r"^koordpy_pending_oldest_seconds (\S+)$", await metrics(process), re.MULTILINE)
    return float(text)


async def waited_longer(process: Process, seconds: float) -> bool:
    return await waited(process) > seconds


async def gang_attempts(process: Process) -> dict[str, float]:
    """scheduler_podgroup_schedule_attempts_total of a running process by its label `result`; empty until it listens."""
    text = await metrics(process)
    samples = re.findall(r"^scheduler_podgroup_schedule_attempts_total{(.*)} (\S+)$", text, re.MULTILINE)
    return {re.findall(r'result="(\w+)"', labels)[0]: float(value) for labels, value in samples}
