# SPDX-License-Identifier: Apache-2.0
"""The image and the chart on real nodes: installed with default values, through what happens to the leader, removed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from tests.e2e.chart import Helm
from tests.realnode.release import Release
from tests.realnode.work import HOST, Work, container, pod, pod_spec


@pytest.fixture
async def release(alone: Work, helm: Helm, image: str) -> AsyncIterator[Release]:
    """Installed with the chart's default values; gone at the end."""
    made = Release(helm, alone)
    try:
        await made.install()
        yield made
    except BaseException as error:
        with contextlib.suppress(Exception):
            error.add_note(made.logs())
        raise
    finally:
        with contextlib.suppress(Exception):
            await made.uninstall()


async def test_it_is_ready_with_default_values_and_goes_on_on_a_cordoned_node_until_that_is_drained(
    release: Release,
) -> None:
    work = release.work
    replicas = await release.ready()
    assert len({one["spec"]["nodeName"] for one in replicas}) == 2
    assert all(status["restartCount"] == 0 for one in replicas for status in one["status"]["containerStatuses"])
    assert await release.allowed() == 1
    leader, holder = await release.leader(), await release.holder()
    node = leader["spec"]["nodeName"]

    try:
        await asyncio.to_thread(work.kubectl, "cordon", node)
        seen = await release.gang_runs("cordoned")
        assert node not in {one["spec"]["nodeName"] for one in seen.values()}
        assert await release.holder() == holder
        assert leader["metadata"]["uid"] in {one["metadata"]["uid"] for one in await release.ready()}

        # drained: the budget is kept, the Lease is handed over, the replica is made again elsewhere
        flags = ("--ignore-daemonsets", "--force", "--delete-emptydir-data", "--timeout=120s")
        await asyncio.to_thread(work.kubectl, "drain", node, *flags)
        await release.leader(other_than=leader["metadata"]["name"])
        seen = await release.gang_runs("drained")
        assert node not in {one["spec"]["nodeName"] for one in seen.values()}
        assert node not in {one["spec"]["nodeName"] for one in await release.ready()}
    finally:
        work.kubectl("uncordon", node)


async def test_it_hands_over_when_its_node_dies(release: Release) -> None:
    work = release.work
    await release.ready()
    leader = await release.leader()
    dead = work.cluster.nodes[leader["spec"]["nodeName"]]
    dead.kill()
    try:
        standby = await release.leader(other_than=leader["metadata"]["name"])
        # that the node is dead may not be known yet
        work.apply(pod("bereft", pod_spec(container(), on=standby["spec"]["nodeName"])))
        await work.run(["bereft"])
    finally:
        await asyncio.to_thread(work.cluster.boot, dead)
    await release.ready()


async def test_an_upgrade_replaces_the_replicas_while_gangs_come_and_removal_frees_the_lease(release: Release) -> None:
    before = {one["metadata"]["uid"] for one in await release.ready()}
    upgrade = asyncio.create_task(
        release.helm("upgrade", "--wait", "--timeout=240s", values={"config": {"queue": {"backfill": True}}})
    )
    number = 0
    while not upgrade.done() or number < 2:
        await release.gang_runs(f"gang-{number}")
        number += 1
    await upgrade
    after = await release.ready()
    assert not before & {one["metadata"]["uid"] for one in after}
    await release.gang_runs("after")
    await release.uninstall()
    assert not await release.replicas()
    assert await release.holder() == ""
    # who is bound stays
    await release.work.run(["after-0", "after-1", "after-2"])


async def test_replicas_and_the_surge_of_an_upgrade_fit_one_node_of_two_cores_and_helm_test_is_content(
    alone: Work, helm: Helm, image: str
) -> None:
    small = {"nodeSelector": {HOST: "n1"}}
    release = Release(helm, alone)
    try:
        await release.install(small)
        await release.helm("test", "--timeout=55s")
        await release.helm(
            "upgrade", "--wait", "--timeout=120s", values={**small, "config": {"queue": {"backfill": True}}}
        )
        await release.helm("test", "--timeout=55s")
        assert {one["spec"]["nodeName"] for one in await release.ready()} == {"n1"}
    finally:
        await release.uninstall()
