# SPDX-License-Identifier: Apache-2.0
"""Upgrade to a version that serves resource claims: what changes is logged at the start, and without the new rights
everything is scheduled that was scheduled before."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from koordpy.cli.main import main
from koordpy.config.dra_settings import DeviceClassMapping, Dra
from koordpy.devices.dra.family.claim_notes import RIGHTS
from tests.engine.card_scenes import CLASSES
from tests.engine.live import gang, in_virtual_time, live, node, small, until
from tests.engine.test_extended_claims import CLAIMS, DRIVER, GPU, asking, bare, given, offer
from tests.engine.test_reservations import claim, claiming
from tests.engine.test_reservations import offer as offer_devices

CREATE = "no right to create resourceclaims"


@in_virtual_time
async def test_without_the_right_to_create_claims_pods_use_the_nodes_with_a_device_plugin() -> None:
    nodes = [bare("n1"), node("n2", gpus=4, cpu=8, memory_gib=64)]
    async with live(nodes) as cluster, cluster.running(rediscovery_seconds=60.0, sweep_seconds=1.0):
        offer(cluster, "n1", 8)
        cluster.server.faults.fail(403, method="POST", path="*/resourceclaims")
        for name in ("p", "q", "r"):
            cluster.create(asking(name))
        await until(lambda: len(cluster.places()) == 2)
        (left,) = {"p", "q", "r"} - set(cluster.places())
        assert set(cluster.places().values()) == {"n2"} and not given(cluster)
        await until(lambda: f"1 {CREATE}" in cluster.condition(left).get("message", ""))
        cluster.server.faults.clear()
        await until(lambda: cluster.places().get(left) == "n1", seconds=120)


@in_virtual_time
async def test_a_full_namespace_keeps_no_other_from_devices() -> None:
    """A 403 of a ResourceQuota says nothing about rights: pods of other namespaces are served by devices."""
    async with live([bare("n1")]) as cluster, cluster.running():
        offer(cluster, "n1", 2)
        text = "resourceclaims is forbidden: exceeded quota: claims, requested: count/resourceclaims=1"
        cluster.server.faults.fail(403, method="POST", path="*/resourceclaims", times=1, message=text)
        cluster.create(asking("p"))
        await until(lambda: cluster.bound("p"), seconds=30)


EVICTED = "dra.preemption is true: pods may be evicted for the devices of their ResourceClaims (1 claim in use)"
COUNTED = f"quotas of {GPU} count devices and claims of DeviceClass {DRIVER} (extendedResourceName)"
MAPPED = (DeviceClassMapping(name="example.com/other", device_class_names=(DRIVER,)),)
SETTINGS = [
    ("", Dra(), [EVICTED, COUNTED, RIGHTS]),
    ("dra: {preemption: false}", Dra(preemption=False), [COUNTED, RIGHTS]),
    (
        f"dra: {{deviceClassMappings: [{{name: example.com/other, deviceClassNames: [{DRIVER}]}}]}}",
        Dra(device_class_mappings=MAPPED),
        [EVICTED, RIGHTS],
    ),
]


def cluster_with_claims() -> list[dict[str, Any]]:
    """A class that quotas count, a claim in use, one that is allocated for no pod, and one without devices."""
    api = "resource.k8s.io/v1"
    result = {"request": "gpu", "driver": DRIVER, "pool": "n1", "device": "gpu-0"}
    allocation = {"allocation": {"devices": {"results": [result]}}}
    user = {"resource": "pods", "name": "p", "uid": "u"}
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": DRIVER}}]}}
    states = {"used": {**allocation, "reservedFor": [user]}, "idle": allocation, "new": {}}
    return [
        {"apiVersion": api, "kind": "DeviceClass", "metadata": {"name": DRIVER}, "spec": {"extendedResourceName": GPU}},
        *(
            {
                "apiVersion": api,
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": "default"},
                "spec": spec,
                "status": status,
            }
            for name, status in states.items()
        ),
    ]


@pytest.mark.parametrize(("text", "dra", "told"), SETTINGS, ids=["default", "no preemption", "mapped"])
def test_a_check_of_a_configuration_says_what_claims_change(
    text: str, dra: Dra, told: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, cluster = tmp_path / "config.yaml", tmp_path / "cluster.json"
    config.write_text(text or "{}")
    cluster.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": cluster_with_claims()}))
    assert main(["config", "check", str(config), "-f", str(cluster)]) == 0
    assert capsys.readouterr().err.splitlines() == [f"note: {config}: {line}" for line in told]
    assert main(["config", "check", str(config)]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("text", "dra", "told"), SETTINGS, ids=["default", "no preemption", "mapped"])
async def test_a_start_logs_what_claims_change(
    text: str, dra: Dra, told: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="koordpy.engine.takeover")
    async with live([small("n1")]) as cluster:
        async with cluster.running(dra=dra) as scheduler:
            await until(scheduler.synced.is_set)
        lines = {"dra.preemption", "quotas of", "resource claims need"}
        found = [one.message for one in caplog.records if any(map(one.message.startswith, lines))]
        assert found == []
        store = cluster.server.store
        for obj in cluster_with_claims():
            if obj["kind"] == "DeviceClass":
                store.create(CLASSES, obj)
                continue
            store.create(CLAIMS, obj)
            full = partial(lambda status, known: {**known, "status": status}, obj["status"])
            store.update(CLAIMS, obj["metadata"]["name"], full, namespace="default", status=True)
        async with cluster.running(dra=dra) as scheduler:
            await until(scheduler.synced.is_set)
        found = [one.message for one in caplog.records if any(map(one.message.startswith, lines))]
        assert found == told


async def test_without_any_new_right_claims_by_name_gangs_and_counted_gpus_are_bound() -> None:
    """The rights before: lists of claims, slices and classes, and patches of a claim's status."""
    async with live([small("n1"), node("n2", gpus=4, cpu=8, memory_gib=64)]) as cluster:
        offer_devices(cluster, "n1", "a")
        claim(cluster, "data")
        for method, path in (
            ("POST", "*/resourceclaims"),
            ("DELETE", "*/resourceclaims/*"),
            ("PATCH", "*/resourceclaims/data"),
            ("*", "*/devicetaintrules"),
        ):
            cluster.server.faults.fail(403, method=method, path=path)
        async with cluster.running():
            cluster.create(claiming("claiming", "data"), asking("counted"), *gang("job", 2, gpus=1))
            await until(lambda: cluster.bound("claiming", "counted", "job-0", "job-1"))
            cluster.delete("claiming")
            cluster.create(claiming("next", "data"))
            await until(lambda: cluster.bound("next"))
