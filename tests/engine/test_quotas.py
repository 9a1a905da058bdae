# SPDX-License-Identifier: Apache-2.0
"""ElasticQuotas live: their status and conditions, what wakes refused pods, the event of an unknown name."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec import convert, to_builtins
from msgspec.structs import fields, replace

from koordpy.api import keys
from koordpy.api.custom_objects import ElasticQuotaStatus
from koordpy.config.configuration import Fairness, KoordpyConfiguration, Quota
from koordpy.devices.family_registry import make_state
from koordpy.engine.status.quota_status import quota_status
from koordpy.engine.status.status_patches import status_patch
from koordpy.fairness.quota_runtime import QuotaAmounts
from koordpy.observe.gauges import quota_gauges, share_gauges
from koordpy.quota.quota_owners import QuotaFault
from tests.clusters import pod as simulated
from tests.engine.live import Live, gang, in_virtual_time, live, small, until
from tests.scenarios.cluster import World, node, pod
from tests.scenarios.quotas import GPU, belongs, quota

QUOTAS = "elasticquotas.scheduling.sigs.k8s.io"
NOW = datetime(2026, 1, 1, tzinfo=UTC).timestamp()


def manifest(name: str, least: dict[str, Any], most: dict[str, Any], **meta: Any) -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "kind": "ElasticQuota",
        "metadata": {"name": name, "namespace": "default", **meta},
        "spec": {"min": least, "max": most},
    }


def status(cluster: Live, name: str) -> dict[str, Any]:
    found: dict[str, Any] = cluster.server.store.get(QUOTAS, name, "default").get("status", {})
    return found


def conditions(cluster: Live, name: str) -> dict[str, tuple[str, str]]:
    return {c["type"]: (c["status"], c["message"]) for c in status(cluster, name).get("conditions", [])}


# -- the body ---------------------------------------------------------------------------------------------------------


def test_the_status_tells_figures_and_conditions_and_equals_itself_once_written() -> None:
    obj = quota("a", 2, 9)
    round_state = QuotaAmounts("a", {"cpu": 12_000}, {"cpu": 11_500}, {}, runtime={"cpu": 9000})
    fault = QuotaFault("default/a", "spec.min.cpu", "min cpu 12 > max 9", "lower it")
    wanted = quota_status(obj, round_state, [fault], now=NOW)
    assert (wanted.used, wanted.request, wanted.runtime) == ({"cpu": "11500m"}, {"cpu": "12"}, {"cpu": "9"})
    said = {c.type: (c.status, c.reason, c.message) for c in wanted.conditions}
    assert said == {
        "Valid": ("False", "Invalid", "spec.min.cpu: min cpu 12 > max 9 (lower it)"),
        "OverUsed": ("True", "AboveRuntime", "used is above runtime: cpu 11500m > 9"),
    }
    written = replace(obj, status=convert(to_builtins(wanted), ElasticQuotaStatus))
    assert quota_status(written, round_state, [fault], now=NOW) == written.status


def test_a_resource_that_is_no_longer_shown_is_taken_out() -> None:
    there = ElasticQuotaStatus(used={"cpu": "1", "memory": "2"})
    patch = status_patch(ElasticQuotaStatus(used={"cpu": "1"}), there)
    assert patch == {"used": {"cpu": "1", "memory": None}}


def test_a_patch_of_a_status_that_is_not_known_has_each_field() -> None:
    patch = status_patch(ElasticQuotaStatus(used={"cpu": "1"}), None)
    assert patch.keys() == {one.encode_name for one in fields(ElasticQuotaStatus)}
    assert {name: value for name, value in patch.items() if value} == {"used": {"cpu": "1"}}


@pytest.mark.parametrize("mode", ["gpu-count", "exact", "kai"])
def test_gauges_tell_limits_and_shares(mode: Any) -> None:
    world = World().add(node("n1:8", **{GPU: "4"}), quota("a", {GPU: 1}, {GPU: 4}, weight={GPU: 1}))
    world.add(
        pod("r", labels=belongs("a"), at="n1", requests={GPU: "1"}), pod("p", labels=belongs("a"), requests={GPU: "4"})
    )
    world.add(pod("q", labels=belongs(user="bob"), requests={GPU: "3"}))
    quotas = world.snapshot().quotas
    assert quota_gauges(quotas, Quota())["a", GPU, "used"] == 1
    assert quota_gauges(quotas, Quota())["a", GPU, "request"] == 5
    assert quota_gauges(quotas, Quota())[keys.DEFAULT_QUOTA, GPU, "request"] == 3
    shares = share_gauges(quotas, Fairness(mode=mode))
    assert shares["a", "used"] == 1
    assert shares["a", "fair"] + shares["bob", "fair"] == 4


def test_gauges_of_pods_without_a_quota_tell_what_nodes_have() -> None:
    world = World().add(node("n1:8"), quota("a", 0, 9))
    world.add(*(pod(f"p-{i}", requests={"cpu": "1", f"evil.example/r{i}": "1"}) for i in range(9)))
    told = {resource for _, resource, _ in quota_gauges(world.snapshot().quotas, Quota())}
    assert told == {"cpu"}


def test_a_change_of_status_alone_leaves_the_tree_as_it_is() -> None:
    state = make_state()
    obj = quota("a", 0, 9)
    state.upsert(obj)
    tree = state.quotas.tree
    state.upsert(replace(obj, status=convert({"used": {"cpu": "3"}}, ElasticQuotaStatus)))
    assert state.quotas.tree is tree


# -- against the embedded API server ----------------------------------------------------------------------------------


@in_virtual_time
async def test_a_gang_that_a_quota_holds_is_told_its_numbers_as_they_change() -> None:
    async with live([small("n")]) as cluster, cluster.running(wobble_hold_seconds=3600.0):
        cluster.server.store.create(QUOTAS, manifest("team", {}, {GPU: "4"}))
        label = {keys.QUOTA_NAME: "team"}
        for name in ("a", "b"):
            cluster.pod(name, labels=label, gpus=1)
        await until(lambda: cluster.bound("a", "b"))
        group, *members = gang("g", 4, gpus=1)
        for member in members:
            member["metadata"]["labels"] |= label
        cluster.create(group, *members)

        def told() -> str:
            return " ".join(one["message"] for one in cluster.group("g").get("conditions", ()))

        await until(lambda: f"used: {GPU}=2" in told())
        cluster.delete("a")
        await until(lambda: f"used: {GPU}=1" in told())


async def test_a_pod_waits_for_its_quota_and_starts_when_that_grows() -> None:
    async with live([small("n1")]) as cluster, cluster.running() as scheduler:
        cluster.server.store.create(QUOTAS, manifest("team", {}, {"cpu": "1"}))
        cluster.pod("p-0", labels={keys.QUOTA_NAME: "team"})
        await until(lambda: cluster.bound("p-0"))
        cluster.pod("p-1", labels={keys.QUOTA_NAME: "team"})
        await until(lambda: cluster.condition("p-1"))
        assert (
            "Insufficient quotas, quotaName: team, runtime: cpu=1, used: cpu=1" in cluster.condition("p-1")["message"]
        )
        await until(lambda: status(cluster, "team").get("request") == {"cpu": "2"})
        assert status(cluster, "team")["used"] == {"cpu": "1"}
        assert conditions(cluster, "team") == {"Valid": ("True", ""), "OverUsed": ("False", "")}
        writer = scheduler.writers.quotas if scheduler.writers is not None else None
        assert writer is not None
        sent = writer.sent
        resource = cluster.server.store.resource(QUOTAS)
        old = cluster.server.store.get(QUOTAS, "team", "default")
        cluster.server.store.replace(resource, ("default", "team"), {**old, "spec": {"min": {}, "max": {"cpu": "2"}}})
        await until(lambda: cluster.bound("p-1"))
        await until(lambda: status(cluster, "team").get("used") == {"cpu": "2"})
        await until(lambda: writer.sent > sent)  # counted once the answer is there


@in_virtual_time
async def test_two_jobs_that_a_third_kept_waiting_do_not_keep_each_other_waiting() -> None:
    def asks(name: str, gpus: int) -> dict[str, Any]:
        return simulated(name, gpus=gpus, cpu="0", memory="1Mi", labels={keys.QUOTA_NAME: name})

    async with live([small("n1", gpus=8)]) as cluster, cluster.running():
        for name in ("a", "b", "c"):
            cluster.server.store.create(QUOTAS, manifest(name, {GPU: "2"}, {GPU: "8"}))
        cluster.create(asks("c", 8))
        await until(lambda: cluster.bound("c"))
        for name in ("a", "b"):
            cluster.create(asks(name, 6))
        await until(lambda: all(cluster.condition(one) for one in ("a", "b")))
        cluster.delete("c")
        await until(lambda: cluster.bound("a") or cluster.bound("b"))
        first, second = ("a", "b") if cluster.bound("a") else ("b", "a")
        cluster.delete(first)
        await until(lambda: cluster.bound(second))


@in_virtual_time
async def test_what_a_pod_asked_for_is_kept_no_longer_once_it_is_gone() -> None:
    """b's pod fits its runtime and no node, so room is kept for it and a's waits."""

    def asks(name: str, gpus: int, team: str) -> dict[str, Any]:
        return simulated(name, gpus=gpus, cpu="0", memory="1Mi", labels={keys.QUOTA_NAME: team})

    async with live([small("n1", gpus=4), small("n2", gpus=4)]) as cluster, cluster.running():
        for name, least, most in (("a", "0", "8"), ("b", "4", "8"), ("c", "2", "2")):
            cluster.server.store.create(QUOTAS, manifest(name, {GPU: least}, {GPU: most}))
        for i in (1, 2):
            cluster.create(asks(f"c{i}", 1, "c"))
            cluster.bind(f"c{i}", f"n{i}")
        cluster.create(asks("b", 4, "b"))
        await until(lambda: cluster.condition("b"))
        cluster.create(asks("a", 3, "a"))
        await until(lambda: cluster.condition("a"))
        assert "Insufficient quotas" in cluster.condition("a")["message"]
        cluster.delete("b")
        await until(lambda: cluster.bound("a"))


async def test_a_fault_and_over_use_are_conditions_with_the_remedy() -> None:
    async with live([small("n1")]) as cluster, cluster.running() as scheduler:
        cluster.server.store.create(QUOTAS, manifest("a", {}, {"cpu": "1"}, labels={keys.QUOTA_PARENT: "gone"}))
        cluster.create(small("n2"))
        cluster.pod("p", labels={keys.QUOTA_NAME: "a"}, scheduler_name="other")
        cluster.bind("p", "n2")
        cluster.pod("q", labels={keys.QUOTA_NAME: "a"}, scheduler_name="other")
        cluster.bind("q", "n2")
        await until(lambda: conditions(cluster, "a").get("OverUsed", ("",))[0] == "True")
        found = conditions(cluster, "a")
        assert found["OverUsed"] == ("True", "used is above runtime: cpu 2 > 1")
        assert found["Valid"][0] == "False"
        said = "parent gone not found (it is placed at the top with min 0: create that quota, or correct the label)"
        assert said in found["Valid"][1]
        assert b"koordpy_quotas_invalid 1.0" in scheduler.metrics.render()


async def test_an_unknown_quota_is_told_by_an_event_and_the_pod_moves_over_when_it_comes() -> None:
    async with live([small("n1")]) as cluster, cluster.running() as scheduler:
        cluster.pod("p", labels={keys.QUOTA_NAME: "team"})
        await until(lambda: cluster.bound("p"))
        await until(lambda: any(e["reason"] == "InvalidAnnotation" for e in cluster.events()))
        (event,) = [e for e in cluster.events() if e["reason"] == "InvalidAnnotation"]
        assert event["type"] == "Warning" and "no ElasticQuota team" in event["message"]
        cluster.server.store.create(QUOTAS, manifest("team", {}, {"cpu": "4"}))
        await until(lambda: status(cluster, "team").get("used") == {"cpu": "1"})
        assert b'koordpy_quota{kind="used",quota="team",resource="cpu"} 1.0' in scheduler.metrics.render()


async def test_a_quota_whose_min_is_above_its_max_is_told_of_its_spec() -> None:
    async with live([small("n1")]) as cluster, cluster.running() as scheduler:
        cluster.server.store.create(QUOTAS, manifest("team", {"cpu": "5"}, {"cpu": "4"}))
        cluster.pod("p", labels={keys.QUOTA_NAME: "team"})
        await until(lambda: any(e["reason"] == "InvalidSpec" for e in cluster.events()))
        (event,) = [e for e in cluster.events() if e["reason"] == "InvalidSpec"]
        assert event["type"] == "Warning" and event["message"].startswith("spec.min.cpu: ")
        assert (event["involvedObject"]["kind"], event["involvedObject"]["name"]) == ("ElasticQuota", "team")
        assert (
            b'koordpy_refused_inputs_total{kind="ElasticQuota",reason="InvalidSpec"} 1.0' in scheduler.metrics.render()
        )
        assert not [e for e in cluster.events() if e["reason"] == "InvalidAnnotation"]


@in_virtual_time
async def test_a_quota_above_its_runtime_gives_back_though_nobody_waits() -> None:
    settings = Quota(monitor_all_quotas=True, delay_evict_time=0.3)
    async with live([small("n1", gpus=4)]) as cluster:
        cluster.planner.config = KoordpyConfiguration(quota=settings, fairness=Fairness(reclaim="off"))
        cluster.server.store.create(QUOTAS, manifest("a", {}, {GPU: "2"}))
        for i in range(4):
            one = simulated(f"p-{i}", gpus=1, cpu="0", memory="1Mi", labels={keys.QUOTA_NAME: "a"})
            one["spec"]["terminationGracePeriodSeconds"] = 0
            cluster.create(one)
            cluster.bind(f"p-{i}", "n1")
        async with cluster.running(quota=settings):
            await until(lambda: len(cluster.pods()) == 2)
            await until(lambda: sum(e["reason"] == "Reclaimed" for e in cluster.events()) == 2)
            await until(lambda: conditions(cluster, "a").get("OverUsed", ("",))[0] == "False")
            await asyncio.sleep(0.5)
            assert len(cluster.pods()) == 2


async def test_a_setting_of_a_quota_that_cannot_be_read_is_told_by_an_event_on_the_quota() -> None:
    async with live([small("n1")]) as cluster, cluster.running():
        cluster.server.store.create(QUOTAS, manifest("a", {}, {"cpu": "9"}, labels={keys.QUOTA_LENDS: "no"}))
        cluster.pod("p", labels={keys.QUOTA_NAME: "a"})
        await until(lambda: any(e["reason"] == "InvalidAnnotation" for e in cluster.events()))
        (event,) = [e for e in cluster.events() if e["reason"] == "InvalidAnnotation"]
        assert (event["involvedObject"]["kind"], event["involvedObject"]["name"]) == ("ElasticQuota", "a")
        said = f"label {keys.QUOTA_LENDS} cannot be read: 'no' is neither true nor false: true holds"
        assert event["message"] == said
