# SPDX-License-Identifier: Apache-2.0
"""What node autoscalers decide on the conditions that koordpy writes, on a real API server: nodes for the reason
`Unschedulable`, for all pending members of a gang, and for no other pod (repair.md 1).

There is one pod or gang for each row of the tables of reasons (tests/autoscalers/table.py). cluster-autoscaler decides
by a reading of its source (tests/autoscalers/cluster_autoscaler.py), Karpenter by its own code, which
`make e2e-autoscalers` builds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest

from koordpy.api import keys
from koordpy.plan.pending_reason import ERRORS, Reason
from tests.autoscalers.cluster_autoscaler import Flags, Sorted, adds_nodes, sort
from tests.autoscalers.error_rows import POLICY, policy
from tests.autoscalers.error_rows import UPSTREAM as UPSTREAM_GROUP
from tests.autoscalers.rows import (
    CHIP,
    GATED,
    GPU,
    HIGH,
    HONEST,
    ROW,
    TOPOLOGY,
    UPSTREAM,
    Row,
    group,
    members,
)
from tests.autoscalers.table import LATE, ROWS
from tests.e2e.acts import LEFT_ALONE, Koordpy
from tests.e2e.client import Client, Json, condition, pods_path
from tests.e2e.conftest import CRDS
from tests.e2e.controlplane import ControlPlane
from tests.e2e.gang_api import GangApi
from tests.e2e.karpenter import Karpenter, claimed, find_programs, make_ready
from tests.e2e.kubelets import on_node
from tests.e2e.process import WaitedInVain, always, eventually
from tests.e2e.provisioning import Autoscaler
from tests.e2e.test_devices import API as RESOURCE_API
from tests.e2e.test_gang_defaults import JOBS
from tests.e2e.test_preemption import CLASSES, EVENTS, QUOTAS
from tests.e2e.test_scheduler import GROUPS, TOPOLOGIES

RESOURCES = f"{RESOURCE_API}/namespaces/default"
PATHS = {
    "Pod": pods_path(),
    "PodGroup": GROUPS,
    "ElasticQuota": QUOTAS,
    "Job": JOBS,
    "DeviceClass": f"{RESOURCE_API}/deviceclasses",
    "ResourceSlice": f"{RESOURCE_API}/resourceslices",
    "ResourceClaim": f"{RESOURCES}/resourceclaims",
}
POLICIES = [
    f"/apis/admissionregistration.k8s.io/v1/validatingadmission{kind}" for kind in ("policies", "policybindings")
]
BYPASSED = Flags(bypassed_scheduler_names=frozenset({keys.DEFAULT_SCHEDULER_NAME}))
Found = dict[str, object]
ENDING = ("ending-running-0", "deleted-member-running-0")
"""Pods of rows that are being deleted before koordpy starts, and stay so."""
READY_AFTER_S = 5
"""NotReadyForScheduling is written once it has held for so long (repair.md 1.4)."""


class Rows:
    """The pods of all rows on an API server, and koordpy."""

    def __init__(self, api: Client, plane: ControlPlane, folder: Path, autoscaler: Autoscaler) -> None:
        self.api, self._plane, self._folder, self.autoscaler = api, plane, folder, autoscaler
        self.koordpy: Koordpy | None = None

    async def create(self) -> None:
        """Creates the rows; koordpy does not run yet."""
        for path, manifest in zip(POLICIES, policy(), strict=True):
            await self.api.create(path, manifest)
        await self.api.create(CLASSES, HIGH)
        await self.api.create(TOPOLOGIES, TOPOLOGY)
        for row in ROWS:
            await self.api.make_nodes(
                len(row.nodes),
                name=lambda i, row=row: f"{row.name}-{i}",  # type: ignore[misc]
                labels=lambda i, row=row: {ROW: row.name, **row.nodes[i]},  # type: ignore[misc]
                allocatable={"cpu": "8", "memory": "32Gi", "pods": "20", **row.room},
            )
            uids: dict[str, str] = {}
            for manifest in row.manifests:
                for owner in manifest["metadata"].get("ownerReferences") or ():
                    owner["uid"] = uids[owner["name"]]
                made = await self.api.create(*self.served(manifest))
                uids[made["metadata"]["name"]] = made["metadata"]["uid"]
        for name in ENDING:
            await self.api.delete(f"{pods_path()}/{name}")

    def served(self, manifest: Json) -> tuple[str, Json]:
        """Returns the path of a manifest's kind, and the manifest in the version that is served."""
        if manifest["apiVersion"] != UPSTREAM_GROUP:
            return PATHS[manifest["kind"]], manifest
        gangs = self.api.gangs
        return gangs.groups, {**manifest, "apiVersion": gangs.group_version}

    def start(self, config: str) -> None:
        """Starts koordpy."""
        self.koordpy = Koordpy(self._plane, self._folder, LEFT_ALONE, config)

    async def stop(self) -> None:
        if self.koordpy is not None:
            await self.koordpy.stop()
            self.koordpy = None

    async def until(self, what: str, read: Callable[[], Awaitable[Found]], wanted: Found) -> None:
        """Waits until what is read is as wanted; shows the difference otherwise."""
        assert self.koordpy is not None
        last: Found = {}

        async def equal() -> bool:
            self.autoscaler.must_watch()
            last.clear()
            last.update(await read())
            return last == wanted

        try:
            await eventually(equal, what=what, processes=[self.koordpy.leader])
        except WaitedInVain as vain:
            differing = {key: (last.get(key), wanted.get(key)) for key in last | wanted}
            listed = "\n".join(f"{key}: {a}, wanted {b}" for key, (a, b) in differing.items() if a != b)
            raise WaitedInVain(f"{vain}\n--- {listed}") from None

    async def pods(self) -> list[Json]:
        """The pending pods of all rows, by name."""
        wanted = {name for row in ROWS for name in row.pending}
        return [pod for pod in await self.api.items(pods_path()) if pod["metadata"]["name"] in wanted]

    async def are_told(self, expected: Callable[[Row], str]) -> list[Json]:
        """Waits until all pending pods have the reasons, texts and nominations of their rows; the pods."""
        texts = {name: row.text for row in ROWS for name in row.pending}

        async def told() -> Found:
            found: Found = {}
            for pod in await self.pods():
                name, said = pod["metadata"]["name"], condition(pod, "PodScheduled") or {}
                text = said.get("message", "")
                shown = texts[name] if texts[name] in text else text
                found[name] = said.get("reason", ""), shown, bool(pod["status"].get("nominatedNodeName"))
            return found

        wanted = {name: (expected(row), row.text, row.nominated) for row in ROWS for name in row.pending}
        await self.until("each pod is told the reason of its row", told, wanted)
        return await self.pods()

    async def fail_the_request(self) -> None:
        """Lets the request of row `request-failed` fail."""
        name = "koordpy-request-failed-1"

        async def there() -> Found:
            return {name: name in await self.autoscaler.uids()}

        await self.until(f"ProvisioningRequest {name}", there, {name: True})
        await self.autoscaler.answer(name, "Failed", "CapacityIsNotFound")


@pytest.fixture(scope="module")
def plane(assets: Path, gangs: GangApi, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """An API server with PodGroups of scheduling.k8s.io, without controllers."""
    with ControlPlane(assets, upstream_gangs=True, folder=tmp_path_factory.mktemp("autoscalers")) as plane:
        yield plane


@pytest.fixture
async def rows(api: Client, plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Rows]:
    await api.apply_crds(CRDS)
    async with Autoscaler(api) as autoscaler:
        made = Rows(api, plane, tmp_path, autoscaler)
        try:
            await made.create()
            yield made
        finally:
            await made.stop()
            await api.clear()
            for one in await api.items(api.gangs.groups):  # no controller removes their finalizers
                await api.patch(f"{api.gangs.groups}/{one['metadata']['name']}", {"metadata": {"finalizers": None}})
            paths = [path for kind, path in PATHS.items() if kind not in ("Pod", "Job")]
            paths += [api.gangs.groups, *(f"{path}/{POLICY}" for path in POLICIES)]
            await api.delete(f"{JOBS}?propagationPolicy=Background")
            for path in (*paths, TOPOLOGIES, EVENTS, f"{CLASSES}/high"):
                await api.delete(path)


@pytest.fixture
def programs(request: pytest.FixtureRequest) -> Path:
    """The folder of Karpenter's programs."""
    return find_programs(request)


def by_row(names: list[str]) -> dict[str, list[str]]:
    """Row -> the pods among these, sorted; rows without one are left out. Each row has all its pods, or none."""
    found = {row.name: sorted(set(row.pending) & set(names)) for row in ROWS}
    for row in ROWS:
        assert found[row.name] in ([], sorted(row.pending)), "nodes for a part of a gang"
    return {name: pods for name, pods in found.items() if pods}


def bought(pods: list[Json], flags: Flags) -> dict[str, list[str]]:
    """Row -> the pods for which cluster-autoscaler adds nodes."""
    return by_row([pod["metadata"]["name"] for pod in pods if adds_nodes(pod, flags)])


OF = {row.name: row for row in ROWS}
UNSCHEDULABLE = {row.name: sorted(row.pending) for row in ROWS if row.buys}
UNTOLD = {row.name: sorted(row.pending) for row in ROWS if row.reason != GATED}
"""Rows of pods without a condition before koordpy sees them."""
AS_UPSTREAM = {name: pods for name, pods in UNTOLD.items() if not OF[name].nominated and OF[name].reason not in ERRORS}
"""Rows that are Unschedulable with kube-scheduler's reason."""


def as_upstream(row: Row) -> str:
    """Returns the reason of a row with `reasons: upstream`."""
    return row.reason if row.reason in ERRORS or row.reason == GATED else Reason.UNSCHEDULABLE


async def test_cluster_autoscaler_adds_nodes_for_unschedulable_units_alone(rows: Rows) -> None:
    before = await rows.pods()
    assert len(before) == sum(len(row.pending) for row in ROWS)
    assert bought(before, Flags()) == {}
    assert bought(before, BYPASSED) == UNTOLD
    rows.start(HONEST)
    await rows.fail_the_request()
    pods = await rows.are_told(lambda row: row.reason)
    for flags in (Flags(), Flags(enable_provisioning_requests=True), BYPASSED):
        assert bought(pods, flags) == UNSCHEDULABLE
    placed = {pod["metadata"]["name"] for pod in pods if sort(pod, Flags()) is Sorted.NOMINATED}
    assert placed == {name for row in ROWS if row.nominated for name in row.pending}
    await bypassing_buys_for_gated_members(rows)
    await late_pods_are_told(rows)
    # kube-scheduler's reason, for comparison
    await rows.stop()
    rows.start(UPSTREAM)
    assert bought(await rows.are_told(as_upstream), Flags()) == AS_UPSTREAM


async def bypassing_buys_for_gated_members(rows: Rows) -> None:
    """Shows why docs/autoscalers.md forbids koordpy's name in `--bypassed-scheduler-names`: for some seconds the
    members of a gang that lacks others have no condition, and get nodes."""
    await rows.api.create(GROUPS, group("late", 2))
    [made] = [await rows.api.create(pods_path(), one) for one in members("late", 1)]
    assert adds_nodes(made, BYPASSED) and not adds_nodes(made, Flags())

    async def told() -> Json | None:
        return condition(await rows.api.get(f"{pods_path()}/late-0"), "PodScheduled")

    written = await eventually(told, what="late-0 is told")
    assert written is not None and written["reason"] == Reason.NOT_READY
    texts = (made["metadata"]["creationTimestamp"], written["lastTransitionTime"])
    created, at = map(datetime.fromisoformat, texts)
    assert (at - created).total_seconds() >= READY_AFTER_S - 1


async def late_pods_are_told(rows: Rows) -> None:
    """Creates the pods that must come after the others, and removes them again."""
    for row in LATE:
        for manifest in row.manifests:
            await rows.api.create(*rows.served(manifest))
        for name in row.pending:

            async def told(name: str = name) -> Json | None:
                found = await rows.api.get(f"{pods_path()}/{name}")
                return found if condition(found, "PodScheduled") else None

            found = await eventually(told, what=f"{name} is told")
            assert found is not None and not adds_nodes(found, Flags())
            said = condition(found, "PodScheduled") or {}
            assert (said["reason"], row.text in said["message"]) == (row.reason, True), said
            await rows.api.delete(f"{pods_path()}/{name}")


async def test_karpenter_adds_nodes_for_unschedulable_units_alone(
    programs: Path, rows: Rows, plane: ControlPlane, tmp_path: Path
) -> None:
    """The units that get nodes are bound to them as a whole, unless something else is in their way."""
    karpenter = Karpenter(programs, plane, ROW, {GPU: "64", CHIP: "8"}, tmp_path)
    assert karpenter.provisionable(await rows.pods()) == []
    rows.start(HONEST)
    await rows.fail_the_request()
    pods = await rows.are_told(lambda row: row.reason)
    assert by_row(karpenter.provisionable(pods)) == UNSCHEDULABLE
    wanted = Counter[str]()
    for name, names in UNSCHEDULABLE.items():
        wanted[OF[name].pool or name] += len(names)
    await karpenter.start(rows.api)
    try:

        async def claims() -> Found:
            karpenter.process.must_run()
            return {**await claimed(rows.api, ROW)}

        async def unchanged() -> bool:
            return await claims() == dict(wanted)

        await rows.until("NodeClaims", claims, dict(wanted))
        await always(unchanged, what="no further NodeClaims", for_s=3)

        async def bound() -> Found:
            await make_ready(rows.api)
            return {pod["metadata"]["name"]: on_node(pod) for pod in await rows.pods()}

        pools = {row.pool or row.name for row in ROWS if row.buys and row.helps}
        helped = {name: (row.pool or row.name) in pools for row in ROWS for name in row.pending}
        await rows.until("the units have their nodes", bound, helped)
        assert await unchanged()
    finally:
        await karpenter.stop(rows.api)
