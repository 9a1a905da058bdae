# SPDX-License-Identifier: Apache-2.0
"""The rights that the chart gives are enough to schedule, and they are no more than what is listed here.

What helm renders is applied to the real API server, and koordpy runs as a process with a token of the rendered service
account, the rendered configuration and the rendered arguments.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.e2e.client import MERGE, STRATEGIC, Client, Refused, condition, pod_manifest, pods_path
from tests.e2e.controlplane import ControlPlane
from tests.e2e.installed import DEFINITIONS, KOORD, RELEASE, SIGS, Install, Json, X, make_work
from tests.e2e.process import eventually
from tests.e2e.recording import Recorder
from tests.e2e.test_scheduler import GROUPS, TOPOLOGIES, places

EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
Right = tuple[str, str, str]

READ = {
    ("", "pods nodes namespaces persistentvolumes persistentvolumeclaims"),
    ("scheduling.k8s.io", "priorityclasses podgroups workloads"),
    ("policy", "poddisruptionbudgets"),
    ("storage.k8s.io", "storageclasses csinodes csidrivers csistoragecapacities volumeattachments"),
    ("resource.k8s.io", "resourceclaims resourceslices deviceclasses devicetaintrules"),
    (KOORD, "clusternetworktopologies devices"),
    ("topology.volcano.sh", "hypernodes"),
    ("topology.node.k8s.io", "noderesourcetopologies"),
    (SIGS, "podgroups elasticquotas"),
    (X, "podgroups elasticquotas"),
    ("batch", "jobs"),
    ("apps", "statefulsets replicasets"),
    ("", "replicationcontrollers"),
    ("jobset.x-k8s.io", "jobsets"),
    ("leaderworkerset.x-k8s.io", "leaderworkersets"),
    ("kubeflow.org", "pytorchjobs tfjobs xgboostjobs paddlejobs jaxjobs mpijobs"),
    ("trainer.kubeflow.org", "trainjobs"),
    ("ray.io", "rayclusters"),
    ("scheduler.grove.io", "podgangs"),
    ("scheduling.volcano.sh", "podgroups"),
}
WRITTEN: set[Right] = {
    ("", "pods", "delete"),
    ("", "pods/status", "patch"),
    ("", "pods/binding", "create"),
    ("", "pods/eviction", "create"),
    ("", "persistentvolumes", "patch"),
    ("", "persistentvolumes", "update"),
    ("", "persistentvolumeclaims", "patch"),
    ("", "persistentvolumeclaims", "update"),
    ("events.k8s.io", "events", "create"),
    ("events.k8s.io", "events", "patch"),
    ("scheduling.k8s.io", "podgroups/status", "patch"),
    ("scheduling.volcano.sh", "podgroups/status", "patch"),
    ("resource.k8s.io", "resourceclaims", "create"),
    ("resource.k8s.io", "resourceclaims", "delete"),
    ("resource.k8s.io", "resourceclaims", "patch"),
    ("resource.k8s.io", "resourceclaims/status", "patch"),
    ("resource.k8s.io", "resourceclaims/binding", "patch"),
    ("resource.k8s.io", "resourceclaims/binding", "update"),
    (KOORD, "clusternetworktopologies/status", "patch"),
    (KOORD, "devices/status", "patch"),
    *((group, resource, "patch") for group in (SIGS, X) for resource in ("podgroups/status", "elasticquotas/status")),
}
RIGHTS = WRITTEN | {
    (group, resource, verb) for group, named in READ for resource in named.split() for verb in ("get", "list", "watch")
}
"""What the ClusterRole gives: the RBAC list of the live protocol, and nothing besides."""


async def test_the_rights_are_enough(api: Client, install: Install, controlplane: ControlPlane, tmp_path: Path) -> None:
    """A gang is bound, another is told why not, statuses and events are written, the Lease is held and given back."""
    installed = await install()
    await make_work(api)
    async with Recorder(controlplane.url, controlplane.ca) as recorder:
        process = installed.run(recorder.kubeconfig(tmp_path, installed.token), tmp_path)
        with process:

            async def placed() -> bool:
                return set(await places(api)) == {f"fits-{i}" for i in range(4)}

            async def told() -> bool:
                large = [p for p in await api.items(pods_path()) if p["metadata"]["name"].startswith("large")]
                return all((condition(p, "PodScheduled") or {}).get("reason") == "Unschedulable" for p in large)

            async def reported() -> bool:
                topology = await api.get(f"{TOPOLOGIES}/default")
                groups = {group["metadata"]["name"]: group.get("status", {}) for group in await api.items(GROUPS)}
                valid = (condition(topology, "Valid") or {}).get("status") == "True"
                return valid and groups["fits"].get("scheduled") == 4 and bool(groups["large"].get("phase"))

            async def announced() -> bool:
                events = await api.items(EVENTS)
                uids = {pod["metadata"]["uid"] for pod in await api.items(pods_path())}
                reasons = {event["reason"] for event in events if event["regarding"].get("uid") in uids}
                return {"Scheduled", "FailedScheduling"} <= reasons

            def handled() -> bool:
                # the handlers' own watch, beside the scheduler's
                watched = [
                    call for call in recorder.calls if call.right == (KOORD, "clusternetworktopologies", "watch")
                ]
                return len(watched) >= 2

            for what in (placed, told, reported, announced, handled):
                await eventually(what, what=what.__name__, processes=[process])
            lease = await api.get(f"{installed.leases}/{RELEASE}")
            assert lease["spec"]["holderIdentity"]
            assert await asyncio.to_thread(process.stop) == 0
        lease = await api.get(f"{installed.leases}/{RELEASE}")
        assert not lease["spec"]["holderIdentity"], "given back"

    refused = {(call.group, call.resource) for call in recorder.calls if call.refused}
    assert refused == {DEFINITIONS}, "asked once, and left out where that is refused"
    used = {call.right for call in recorder.calls if call.resource and not call.refused}
    leases = {("coordination.k8s.io", "leases", verb) for verb in ("get", "update")}
    reports = {("", "configmaps", verb) for verb in ("list", "watch")}
    assert used - RIGHTS == leases | reports
    assert {
        ("", "pods/binding", "create"),
        ("", "pods/status", "patch"),
        ("events.k8s.io", "events", "create"),
        (KOORD, "clusternetworktopologies/status", "patch"),
        (SIGS, "podgroups/status", "patch"),
    } <= used


EVERYONE = ("system:serviceaccounts", "system:authenticated")
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "*")
OTHER_VERBS = {"roles": "bind escalate", "clusterroles": "bind escalate", "serviceaccounts": "impersonate"}


async def served(api: Client) -> set[tuple[str, str]]:
    """(group, resource or resource/subresource) of everything that the API server serves."""
    groups = (await api.get("/apis"))["groups"]
    found = {("", entry["name"]) for entry in (await api.get("/api/v1"))["resources"]}
    for group in groups:
        for version in group["versions"]:
            listed = await api.get(f"/apis/{version['groupVersion']}")
            found |= {(group["name"], entry["name"]) for entry in listed["resources"]}
    return found


async def test_the_rights_are_no_more_than_listed(api: Client, install: Install) -> None:
    """Every resource that is served, with every verb: the API server's own answer for the account."""
    installed = await install()
    resources = await served(api) | {(group, resource) for group, resource, _ in RIGHTS}
    resources |= {("", "users"), ("", "groups"), ("", "*"), ("*", "*")}
    asked = [
        (group, resource, verb)
        for group, resource in sorted(resources)
        for verb in (*VERBS, *OTHER_VERBS.get(resource, "").split())
    ]
    assert len(asked) > 1000
    allowed: set[Right] = set()
    anyone: set[Right] = set()

    async def ask(question: tuple[Right, str]) -> None:
        right, user = question
        group, resource, verb = right
        plural, _, subresource = resource.partition("/")
        attributes = {"namespace": "default", "group": group, "resource": plural, "subresource": subresource}
        spec = {"user": user, "groups": EVERYONE, "resourceAttributes": {**attributes, "verb": verb}}
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        answer = await api.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
        if answer["status"]["allowed"]:
            (allowed if user == installed.account else anyone).add(right)

    await api.each([(right, user) for right in asked for user in (installed.account, "somebody")], ask)
    assert allowed - anyone == RIGHTS
    # Since 1.37 every service account may read the trust bundles of the cluster, which are certificates.
    read = {("certificates.k8s.io", "clustertrustbundles", verb) for verb in ("get", "list", "watch")}
    assert {resource for _, resource, _ in anyone - read} <= {
        "selfsubjectaccessreviews",
        "selfsubjectrulesreviews",
        "selfsubjectreviews",
    }


NODE, POD, GROUP = "/api/v1/nodes/n00000", f"{pods_path()}/fits-0", f"{GROUPS}/fits"
CLUSTER_ROLE = f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{RELEASE}"
LABEL = {"metadata": {"labels": {"a": "b"}}}
REFUSED: list[tuple[str, str, Json | None]] = [
    ("GET", "/api/v1/secrets", None),
    ("GET", "/api/v1/namespaces/default/secrets/any", None),
    ("GET", "/api/v1/configmaps", None),
    ("GET", "/api/v1/serviceaccounts", None),
    ("GET", "/apis/coordination.k8s.io/v1/leases", None),
    ("GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", None),
    ("GET", f"{NODE}/proxy/pods", None),
    ("GET", f"{POD}/log", None),
    ("GET", "/metrics", None),
    ("PATCH", NODE, LABEL),
    ("PATCH", f"{NODE}/status", LABEL),
    ("PUT", NODE, LABEL),
    ("DELETE", NODE, None),
    ("POST", "/api/v1/nodes", LABEL),
    ("POST", pods_path(), LABEL),
    ("PATCH", POD, LABEL),
    ("PUT", f"{POD}/status", LABEL),
    ("PATCH", f"{POD}/ephemeralcontainers", LABEL),
    ("POST", f"{POD}/exec?command=id", None),
    ("DELETE", pods_path(), None),
    ("PATCH", GROUP, LABEL),
    ("PUT", f"{GROUP}/status", LABEL),
    ("DELETE", GROUP, None),
    ("POST", GROUPS, LABEL),
    ("PATCH", f"{TOPOLOGIES}/default", LABEL),
    ("DELETE", f"{TOPOLOGIES}/default", None),
    ("PATCH", f"/apis/{KOORD}/v1alpha1/devices/n00000", LABEL),
    ("POST", "/api/v1/namespaces/default/events", LABEL),
    ("DELETE", EVENTS, None),
    ("DELETE", "/api/v1/namespaces/default", None),
    ("POST", "/api/v1/persistentvolumes", LABEL),
    ("DELETE", "/api/v1/namespaces/default/persistentvolumeclaims/any", None),
    ("POST", "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates", LABEL),
    ("POST", "/apis/resource.k8s.io/v1/resourceslices", LABEL),
    ("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", LABEL),
    ("PATCH", CLUSTER_ROLE, {"rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]}),
    ("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", LABEL),
    ("POST", f"/api/v1/namespaces/{{namespace}}/serviceaccounts/{RELEASE}/token", {"spec": {}}),
    ("GET", "{leases}", None),
    ("GET", "{leases}/other", None),
    ("PUT", "{leases}/other", LABEL),
    ("PATCH", "{leases}/koordpy", LABEL),
    ("DELETE", "{leases}/koordpy", None),
    ("GET", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/koordpy", None),
    ("POST", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases", LABEL),
    ("PUT", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n00000", LABEL),
]


async def test_these_calls_are_refused(api: Client, install: Install) -> None:
    """With the token itself, on objects that are there: 403, not by their content."""
    installed = await install()
    await make_work(api)
    other = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    await api.create(installed.leases, {**other, "metadata": {"name": "other"}})
    places = {"leases": installed.leases, "namespace": installed.namespace}
    answers = {}
    for method, template, body in REFUSED:
        path = template.format(**places)
        content = MERGE if method == "PATCH" else "application/json"
        answers[method, template] = await status_of(installed.client, method, path, body, content=content)
    assert {call: status for call, status in answers.items() if status != 403} == {}
    assert len(await api.items(pods_path())) == 9 and len(await api.items("/api/v1/nodes")) == 4


async def status_of(client: Client, method: str, path: str, body: Json | None, *, content: str) -> int:
    """The answer's status; 200 for every success."""
    try:
        await client.call(method, path, body, content=content)
    except Refused as refused:
        return refused.status
    return 200


async def test_what_no_run_here_has_called_for_is_allowed_too(api: Client, install: Install) -> None:
    """Making room, volumes and claims: the calls that the live protocol names, as they will be sent."""
    installed = await install()
    mine = installed.client
    (node,) = await api.make_nodes(1)
    for one in ("victim", "moved"):
        pod = await api.create(pods_path(), pod_manifest(one, scheduler="nobody"))
        await api.bind(pod, node)
    marked = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "x"}
    await mine.patch(f"{pods_path()}/victim/status", {"status": {"conditions": [marked]}}, content=STRATEGIC)
    await mine.delete(f"{pods_path()}/victim")
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "moved", "namespace": "default"}}
    await mine.create(f"{pods_path()}/moved/eviction", eviction)
    assert await api.items(pods_path()) == []

    size = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}
    name = f"v-{installed.namespace}"
    volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}}
    local = {"spec": {**size, "csi": {"driver": "d.example", "volumeHandle": "v"}}}
    await api.create("/api/v1/persistentvolumes", {**volume, **local})
    claims = f"/api/v1/namespaces/{installed.namespace}/persistentvolumeclaims"
    wanted = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "c"}, "spec": wanted}
    await api.create(claims, claim)
    path = f"/api/v1/persistentvolumes/{name}"
    taken = await mine.patch(path, {"spec": {"claimRef": {"namespace": installed.namespace, "name": "c"}}})
    assert taken["spec"]["claimRef"]["name"] == "c"
    selected = {"metadata": {"annotations": {"volume.kubernetes.io/selected-node": node}}}
    assert (await mine.patch(f"{claims}/c", selected))["metadata"]["annotations"]
    await api.delete(path)


async def test_a_claim_is_allocated_by_its_status(api: Client, install: Install) -> None:
    installed = await install()
    base = "/apis/resource.k8s.io/v1"
    claims = f"{base}/namespaces/{installed.namespace}/resourceclaims"
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.example"}}
    claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c"}}
    await api.create(claims, {**claim, "spec": {"devices": {"requests": [request]}}})
    result = {"request": "gpu", "driver": "d.example", "pool": "n", "device": "gpu-0"}
    user = {"resource": "pods", "name": "p", "uid": "u"}
    status = {"status": {"allocation": {"devices": {"results": [result]}}, "reservedFor": [user]}}
    written = await installed.client.patch(f"{claims}/c/status", status)
    assert written["status"]["reservedFor"] == [user]
