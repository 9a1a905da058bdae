# SPDX-License-Identifier: Apache-2.0
"""Gangs of workloads that are watched: whole starts, and nobody waits for a pod that is not to come."""

from typing import Any

import pytest

from koordpy.config.configuration import Gangs
from koordpy.engine.engine_settings import EngineSettings
from tests.engine.live import QUICK, Live, gang, in_virtual_time, live, pod, small, until
from tests.engine.tuning import tuned
from tests.workloads.test_of_projects import EXAMPLES

Json = dict[str, Any]
JOBS = "jobs.batch"
INDEX = "batch.kubernetes.io/job-completion-index"
VOLCANO = "podgroups.scheduling.volcano.sh"
LWS = "leaderworkerset.sigs.k8s.io/"


def template(notes: Json | None = None) -> Json:
    resources = {"requests": {"cpu": "1", "memory": "1Mi"}}
    spec = {"schedulerName": "koord-scheduler", "containers": [{"name": "c", "resources": resources}]}
    return {"metadata": {"annotations": notes or {}}, "spec": spec}


def job(cluster: Live, number: int, name: str = "train", **spec: Any) -> Json:
    """A Job as the API server has it."""
    body = {"completionMode": "Indexed", "completions": number, "parallelism": number, "template": template(), **spec}
    made: Json = cluster.server.store.create(
        JOBS,
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": "default"}, "spec": body},
    )
    return made


def member(index: int, uid: str, name: str = "train", kind: str = "Job", **labels: str) -> Json:
    """A pod of a Job."""
    owner = {"apiVersion": "batch/v1", "kind": kind, "name": name, "uid": uid, "controller": True}
    meta = {
        "name": f"{name}-{index}",
        "namespace": "default",
        "labels": {INDEX: str(index), **labels},
        "ownerReferences": [owner],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": template()["spec"]}


def serve(cluster: Live, api_group: str, version: str, kind: str) -> None:
    """A definition of a kind of workloads."""
    plural = f"{kind.lower()}s"
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    served = {"name": version, "served": True, "storage": True, "schema": schema, "subresources": {"status": {}}}
    names = {"plural": plural, "kind": kind, "listKind": f"{kind}List", "singular": kind.lower()}
    spec = {"group": api_group, "scope": "Namespaced", "names": names, "versions": [served]}
    made = {"metadata": {"name": f"{plural}.{api_group}"}, "spec": spec}
    cluster.server.store.create("customresourcedefinitions.apiextensions.k8s.io", made)


def set_phase(cluster: Live, name: str, phase: str) -> None:
    def change(obj: Json) -> Json:
        return {**obj, "status": {**obj.get("status", {}), "phase": phase}}

    cluster.server.store.update("pods", name, change, namespace="default", status=True)


def change_job(cluster: Live, name: str = "train", status: Json | None = None, **spec: Any) -> None:
    def change(obj: Json) -> Json:
        return {**obj, "spec": {**obj["spec"], **spec}, "status": status or obj.get("status", {})}

    cluster.server.store.update(JOBS, name, change, namespace="default", status=status is not None)


def hold_back(cluster: Live, resource: str, name: str) -> None:
    """A finalizer: who deletes it sees it go on until somebody takes that away."""

    def change(obj: Json) -> Json:
        return {**obj, "metadata": {**obj["metadata"], "finalizers": ["foregroundDeletion"]}}

    cluster.server.store.update(resource, name, change, namespace="default")


def urgent(cluster: Live, *made: Json) -> None:
    """Makes pods that may evict others."""
    name = {"metadata": {"name": "high"}, "value": 1000}
    cluster.server.store.create("priorityclasses.scheduling.k8s.io", name)
    cluster.create(*({**one, "spec": {**one["spec"], "priorityClassName": "high"}} for one in made))


def orphaned(obj: Json) -> Json:
    return {**obj, "metadata": {**obj["metadata"], "ownerReferences": []}}


def uid_of(made: Json) -> str:
    return str(made["metadata"]["uid"])


def said(cluster: Live, name: str) -> str:
    return str(cluster.condition(name).get("message", ""))


@in_virtual_time
async def test_an_indexed_job_starts_whole_and_says_why_on_the_job() -> None:
    async with live([small("n1", cpu=2)]) as cluster, cluster.running():
        uid = uid_of(job(cluster, 3))
        cluster.create(member(0, uid), member(1, uid))
        await until(lambda: "waiting for members, 2 of minMember 3 exist" in said(cluster, "train-0"))
        cluster.create(member(2, uid))
        await until(lambda: "gang default/train: needed 3, available in the cluster: 2" in said(cluster, "train-2"))
        assert cluster.places() == {}
        await until(lambda: [one for one in cluster.events() if one["reason"] == "GangUnschedulable"])
        cluster.create(small("n2", cpu=2))
        await until(lambda: cluster.bound("train-0", "train-1", "train-2"))
        await until(lambda: [one for one in cluster.events() if one["reason"] == "GangScheduled"])
        events = {one["reason"]: one for one in cluster.events() if one["involvedObject"]["kind"] == "Job"}
        assert events["GangScheduled"]["message"].endswith(": 3 members of Job train (Indexed, parallelism 3)")
        assert events["GangUnschedulable"]["involvedObject"]["uid"] == uid
        ranks = {
            name: obj["metadata"]["annotations"]["scheduling.koordinator.sh/rank"]
            for name, obj in cluster.pods().items()
        }
        assert ranks == {"train-0": "0", "train-1": "1", "train-2": "2"}


@in_virtual_time
async def test_who_has_succeeded_or_is_not_to_come_is_not_waited_for() -> None:
    async with live([small("n1", cpu=4)]) as cluster, cluster.running():
        uid = uid_of(job(cluster, 3))
        cluster.create(*(member(i, uid) for i in range(3)))
        await until(lambda: cluster.bound("train-0", "train-1", "train-2"))
        # two are done, the third fails and comes again
        set_phase(cluster, "train-0", "Succeeded")
        set_phase(cluster, "train-1", "Succeeded")
        cluster.delete("train-2")
        cluster.create(member(2, uid))
        await until(lambda: cluster.bound("train-2"))
        # all stop; of a Job that now wants two, two start
        for i in range(3):
            cluster.delete(f"train-{i}")
        change_job(cluster, parallelism=2, completions=2)
        cluster.create(member(0, uid))
        await until(lambda: "1 of minMember 2 exist" in said(cluster, "train-0"))
        cluster.create(member(1, uid))
        await until(lambda: cluster.bound("train-0", "train-1"))


@in_virtual_time
async def test_a_job_that_is_scaled_down_frees_who_waited_for_others() -> None:
    async with live([small("n1", cpu=2)]) as cluster, cluster.running():
        uid = uid_of(job(cluster, 3))
        cluster.create(member(0, uid), member(1, uid))
        await until(lambda: "2 of minMember 3 exist" in said(cluster, "train-0"))
        change_job(cluster, parallelism=2, completions=2)
        await until(lambda: cluster.bound("train-0", "train-1"))


@in_virtual_time
async def test_pods_wait_for_their_owner_to_be_seen_but_not_for_ever() -> None:
    async with live([small("n1", cpu=2)]) as cluster, cluster.running() as scheduler:
        cluster.create(member(0, "nobody"))
        await until(lambda: "gang default/train: Job train is not known yet" in said(cluster, "train-0"))
        began = scheduler.feeds.queue.clock()
        await until(lambda: cluster.bound("train-0"))
        assert 5.0 < scheduler.feeds.queue.clock() - began < 12.0
        assert [one for one in cluster.events() if one["involvedObject"]["kind"] == "Job"] == []


@in_virtual_time
async def test_a_kind_that_is_not_served_goes_by_labels_and_a_leader_waits_for_its_workers() -> None:
    async with live([small("n1", cpu=4)]) as cluster, cluster.running():

        def stateful_set(name: str, kind: str, owner: str, uid: str) -> str:
            reference = {"apiVersion": "v1", "kind": kind, "name": owner, "uid": uid, "controller": True}
            meta = {"name": name, "namespace": "default", "ownerReferences": [reference]}
            spec = {"replicas": 1, "template": template()}
            return uid_of(cluster.server.store.create("statefulsets.apps", {"metadata": meta, "spec": spec}))

        leaders = stateful_set("llm", "LeaderWorkerSet", "llm", "l1")

        def of_group(i: int, uid: str) -> Json:
            labels = {
                LWS + "name": "llm",
                LWS + "group-index": "0",
                LWS + "worker-index": str(i),
                LWS + "group-key": "k",
            }
            made = member(i, uid, "llm-0", "StatefulSet", **labels)
            made["metadata"]["annotations"] = {LWS + "size": "3"}
            return made

        cluster.create(of_group(0, leaders))
        await until(lambda: "waiting for members" in said(cluster, "llm-0-0") or cluster.bound("llm-0-0"))
        assert not cluster.bound("llm-0-0")
        await until(lambda: cluster.bound("llm-0-0"))
        workers = stateful_set("llm-0", "Pod", "llm-0-0", cluster.pods()["llm-0-0"]["metadata"]["uid"])
        cluster.create(of_group(1, workers))
        await until(lambda: "1 of minMember 2 exist" in said(cluster, "llm-0-1"))
        cluster.create(of_group(2, workers))
        await until(lambda: cluster.bound("llm-0-1", "llm-0-2"))


@in_virtual_time
async def test_a_kind_that_may_not_be_listed_goes_by_labels_until_it_may(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with live([small("n1", cpu=3)]) as cluster:
        cluster.server.faults.fail(403, path="/apis/batch/v1/jobs*")
        async with cluster.running() as scheduler:
            kinds = scheduler.feeds.kinds
            assert kinds is not None
            await until(lambda: kinds.states.get("Job") == "forbidden")
            uid = uid_of(job(cluster, 4))
            cluster.create(*(member(i, uid) for i in range(4)))
            await until(lambda: len([name for name in cluster.pods() if cluster.bound(name)]) == 3)
            cluster.server.faults.clear()
            await until(lambda: kinds.states.get("Job") == "watched", 1200.0)
            again = uid_of(job(cluster, 2, "again"))
            cluster.create(*(member(i, again, "again") for i in range(2)))
            await until(lambda: "gang default/again: needed 2, available in the cluster: 0" in said(cluster, "again-0"))
    (line,) = [one.getMessage() for one in caplog.records if "may not be listed" in one.getMessage()]
    assert line.startswith("gangs.auto: jobs.batch may not be listed (403): ")
    assert line.endswith(": its pods are grouped by labels")


@in_virtual_time
async def test_workers_whose_leader_is_gone_do_not_start_one_by_one() -> None:
    async with live([small("n1", cpu=4)]) as cluster:
        serve(cluster, "leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet")
        async with cluster.running():
            leader = {"apiVersion": "v1", "kind": "Pod", "name": "llm-0", "uid": "gone", "controller": True}
            meta = {"name": "llm-0", "namespace": "default", "ownerReferences": [leader]}
            made = cluster.server.store.create(
                "statefulsets.apps", {"metadata": meta, "spec": {"template": template()}}
            )
            labels = {LWS + "name": "llm", LWS + "group-index": "0", LWS + "worker-index": "1"}
            worker = member(1, uid_of(made), "llm-0", "StatefulSet", **labels)
            worker["metadata"]["annotations"] = {LWS + "size": "3"}
            cluster.create(worker)
            await until(lambda: "gang default/llm-0:workers: waiting for members, 1 of" in said(cluster, "llm-0-1"))
            assert cluster.places() == {}


@in_virtual_time
async def test_workers_whose_leader_is_deleted_are_held() -> None:
    async with live([small("n1", cpu=2)]) as cluster:
        serve(cluster, "leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet")
        async with cluster.running():

            def stateful_set(name: str, version: str, kind: str, above: Json) -> str:
                owner = {"apiVersion": version, "kind": kind, "controller": True}
                owner |= {key: above["metadata"][key] for key in ("name", "uid")}
                meta = {"name": name, "namespace": "default", "ownerReferences": [owner]}
                body = {"metadata": meta, "spec": {"template": template()}}
                return uid_of(cluster.server.store.create("statefulsets.apps", body))

            def of_group(i: int, uid: str) -> Json:
                labels = {LWS + "name": "llm", LWS + "group-index": "0", LWS + "worker-index": str(i)}
                made = member(i, uid, "llm-0", "StatefulSet", **labels)
                made["metadata"] |= {"annotations": {LWS + "size": "3"}, **({} if i else {"name": "llm-0"})}
                return made

            spec = {"leaderWorkerTemplate": {"size": 3, "workerTemplate": template()}}
            made = {"metadata": {"name": "llm", "namespace": "default"}, "spec": spec}
            above = cluster.server.store.create("leaderworkersets.leaderworkerset.x-k8s.io", made)
            leaders = stateful_set("llm", "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", above)
            cluster.create(of_group(0, leaders))
            workers = stateful_set("llm-0", "v1", "Pod", cluster.pods()["llm-0"])
            cluster.create(of_group(1, workers), of_group(2, workers))
            await until(lambda: "gang default/llm-0: needed 3, available in the cluster: 2" in said(cluster, "llm-0-2"))
            cluster.delete("llm-0")
            await until(lambda: said(cluster, "llm-0-2") == "gang default/llm-0: Pod llm-0 is deleted")
            assert cluster.places() == {}


@in_virtual_time
async def test_an_index_beyond_those_of_a_job_that_was_scaled_down_has_not_succeeded_for_it() -> None:
    async with live([small("n1", cpu=2)]) as cluster, cluster.running():
        uid = uid_of(job(cluster, 4))
        cluster.create(member(3, uid))
        set_phase(cluster, "train-3", "Succeeded")
        change_job(cluster, status={"succeeded": 1, "completedIndexes": "3"})
        change_job(cluster, parallelism=2, completions=2)
        cluster.create(member(0, uid), member(1, uid))
        await until(lambda: cluster.bound("train-0", "train-1"))


@in_virtual_time
async def test_a_suspended_job_and_one_made_again_start_clean() -> None:
    async with live([small("n1", cpu=2)]) as cluster, cluster.running():
        uid = uid_of(job(cluster, 2))
        cluster.create(member(0, uid), member(1, uid))
        await until(lambda: cluster.bound("train-0", "train-1"))
        change_job(cluster, suspend=True)
        cluster.delete("train-0")
        cluster.delete("train-1")
        change_job(cluster, suspend=False)
        cluster.create(member(0, uid))
        await until(lambda: "1 of minMember 2 exist" in said(cluster, "train-0"))
        cluster.create(member(1, uid))
        await until(lambda: cluster.bound("train-0", "train-1"))
        cluster.server.store.remove(JOBS, "train", "default")
        cluster.delete("train-0")
        cluster.delete("train-1")
        again = uid_of(job(cluster, 2))
        assert again != uid
        cluster.create(member(0, again))
        await until(lambda: "1 of minMember 2 exist" in said(cluster, "train-0"))
        cluster.create(member(1, again))
        await until(lambda: cluster.bound("train-0", "train-1"))


@in_virtual_time
async def test_pods_of_a_suspended_job_are_held_until_it_is_resumed() -> None:
    async with live([small("n1", cpu=2)]) as cluster, cluster.running():
        uid = uid_of(job(cluster, 2, suspend=True))
        cluster.create(member(0, uid), member(1, uid))
        await until(lambda: said(cluster, "train-1") == "gang default/train: Job train is suspended")
        assert cluster.places() == {}
        change_job(cluster, suspend=False)
        await until(lambda: cluster.bound("train-0", "train-1"))
        assert [one for one in cluster.events() if one["reason"] == "GangUnschedulable"] == []


@in_virtual_time
async def test_a_new_leader_knows_the_gangs_of_the_one_before() -> None:
    async with live([small("n1", cpu=3)]) as cluster:
        async with cluster.running():
            uid = uid_of(job(cluster, 3))
            cluster.create(member(0, uid), member(1, uid))
            await until(lambda: "2 of minMember 3 exist" in said(cluster, "train-0"))
        cluster.create(member(2, uid))
        async with cluster.running() as scheduler:
            await until(lambda: cluster.bound("train-0", "train-1", "train-2"))
            assert {len(only) for only in cluster.planner.rounds[-1:]} == {1}
            assert not scheduler.queue.counts()["active"] if "active" in scheduler.queue.counts() else True


@in_virtual_time
async def test_labels_alone_need_no_job() -> None:
    settings: EngineSettings = tuned(QUICK, gangs=Gangs(auto="labels"))
    async with live([small("n1", cpu=3)]) as cluster, cluster.running(settings):
        uid = uid_of(job(cluster, 3))
        cluster.create(member(0, uid))
        await until(lambda: cluster.bound("train-0"))
        pods = gang("g", 2, gpus=0)[1:]
        for i, one in enumerate(pods):
            del one["metadata"]["labels"]["pod-group.scheduling.sigs.k8s.io"]
            one["metadata"]["labels"]["kueue.x-k8s.io/pod-group-name"] = "g"
            one["metadata"]["annotations"] = {"kueue.x-k8s.io/pod-group-total-count": "2"}
            cluster.create(one)
            if not i:
                await until(lambda: "1 of minMember 2 exist" in said(cluster, pods[0]["metadata"]["name"]))
        await until(lambda: cluster.bound(*(one["metadata"]["name"] for one in pods)))


@in_virtual_time
async def test_the_queue_shows_why_pods_are_a_gang_and_which_steps_are_not_made_yet() -> None:
    role = {"template": {"spec": {"completionMode": "Indexed", "parallelism": 2, "completions": 2}}, "replicas": 1}
    role["template"]["spec"]["template"] = template()
    steps = [{"name": "first", **role}, {"name": "second", "dependsOn": [{"name": "first", "status": "Ready"}], **role}]
    async with live([small("n1", cpu=1)]) as cluster:
        serve(cluster, "jobset.x-k8s.io", "v1alpha2", "JobSet")
        async with cluster.running() as scheduler:
            made = {"metadata": {"name": "js", "namespace": "default"}, "spec": {"replicatedJobs": steps}}
            uid = uid_of(cluster.server.store.create("jobsets.jobset.x-k8s.io", made))
            owner = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "js", "uid": uid}
            labels = {"jobset.sigs.k8s.io/jobset-name": "js", "jobset.sigs.k8s.io/replicatedjob-name": "first"}
            meta = {"name": "js-first-0", "namespace": "default", "labels": labels}
            meta["ownerReferences"] = [{**owner, "controller": True}]
            body = {**role["template"]["spec"]}
            of_job = uid_of(cluster.server.store.create(JOBS, {"metadata": meta, "spec": body}))
            cluster.create(member(0, of_job, "js-first-0", **labels), member(1, of_job, "js-first-0", **labels))
            cluster.create(*gang("g", 1, gpus=9))
            await until(lambda: "needed 2" in said(cluster, "js-first-0-1") and said(cluster, "g-0"))
            shown = {one["name"]: one for entry in scheduler.inspection.queue() for one in entry["gangs"]}
            assert shown == {
                "default/js:first": {
                    "name": "default/js:first",
                    "origin": "2 members of JobSet js, role first (1 Job of 2)",
                    "waiting": [{"role": "second", "pods": 2, "for": "role first Ready"}],
                },
                "default/g": {"name": "default/g", "origin": "PodGroup g", "waiting": []},
            }


@pytest.mark.parametrize("finalizer", [False, True], ids=["gone at once", "after its pods"])
@in_virtual_time
async def test_pods_of_a_deleted_job_are_placed_no_more_and_nobody_is_evicted_for_them(finalizer: bool) -> None:
    async with live([small("n1", cpu=2)]) as cluster, cluster.running():
        cluster.create(pod("low-0", cpu="1", memory="1Mi", gpus=0), pod("low-1", cpu="1", memory="1Mi", gpus=0))
        await until(lambda: cluster.bound("low-0", "low-1"))
        made = job(cluster, 3)
        if finalizer:
            hold_back(cluster, JOBS, "train")
        urgent(cluster, *(member(i, uid_of(made)) for i in range(3)))
        await until(lambda: "needed 3" in said(cluster, "train-0"))
        cluster.server.store.delete(JOBS, "train", namespace="default")
        await until(lambda: said(cluster, "train-2") == "gang default/train: Job train is deleted")
        cluster.create(small("n2", cpu=2))
        cluster.create(pod("other", cpu="1", memory="1Mi", gpus=0))
        await until(lambda: cluster.bound("other"))
        assert cluster.places().keys() == {"low-0", "low-1", "other"}
        # without its owner, as by --cascade=orphan, a pod is one like any other
        cluster.server.store.update("pods", "train-1", orphaned, namespace="default")
        await until(lambda: cluster.bound("train-1"))


@in_virtual_time
async def test_pods_of_a_suspended_job_are_placed_no_more_and_nobody_is_evicted_for_them() -> None:
    async with live([small("n1", cpu=2)]) as cluster, cluster.running():
        cluster.create(pod("low-0", cpu="1", memory="1Mi", gpus=0), pod("low-1", cpu="1", memory="1Mi", gpus=0))
        await until(lambda: cluster.bound("low-0", "low-1"))
        uid = uid_of(job(cluster, 3))
        urgent(cluster, *(member(i, uid) for i in range(3)))
        await until(lambda: "needed 3" in said(cluster, "train-0"))
        change_job(cluster, suspend=True)
        await until(lambda: said(cluster, "train-2") == "gang default/train: Job train is suspended")
        cluster.create(pod("other", cpu="1", memory="1Mi", gpus=0), small("n2", cpu=2))
        await until(lambda: cluster.bound("other"))
        assert cluster.places().keys() == {"low-0", "low-1", "other"}


@in_virtual_time
async def test_what_a_job_says_in_vain_and_who_made_room_for_it_are_events_on_it() -> None:
    async with live([small("n1", cpu=2)]) as cluster, cluster.running():
        cluster.create(pod("low-0", cpu="2", memory="1Mi", gpus=0))
        await until(lambda: cluster.bound("low-0"))
        notes = {"gang.scheduling.koordinator.sh/mode": "strict"}
        uid = uid_of(job(cluster, 2, template=template(notes)))
        urgent(cluster, *(member(i, uid) for i in range(2)))

        def told(reason: str) -> list[str]:
            found = [one for one in cluster.events() if one["reason"] == reason]
            return [one["message"] for one in found if one["involvedObject"]["kind"] == "Job"]

        await until(lambda: bool(told("RoomMade") and told("InvalidAnnotation")))
        assert "'strict' is neither Strict nor NonStrict: Strict holds" in told("InvalidAnnotation")[0]


@pytest.mark.parametrize("kind", ["Job", "PodGroup"])
@in_virtual_time
async def test_annotations_beyond_those_that_are_kept_are_told_on_the_workload_or_group_of_volcano(kind: str) -> None:
    many = {f"example.com/{i}": "x" for i in range(257)}
    async with live([small("n1", cpu=1)]) as cluster:
        serve(cluster, "scheduling.volcano.sh", "v1beta1", "PodGroup")
        uid = uid_of(job(cluster, 2))
        meta = {"name": "v", "namespace": "default", "annotations": many if kind == "PodGroup" else {}}
        cluster.server.store.create(VOLCANO, {"metadata": meta, "spec": {"minMember": 2}})
        named = [pod(f"v-{i}", gpus=0, annotations={"scheduling.k8s.io/group-name": "v"}) for i in range(2)]
        async with cluster.running():
            cluster.create(*named, *(member(i, uid) for i in range(2)))
            if kind == "Job":
                await until(lambda: said(cluster, "train-0"))
                note = lambda obj: {**obj, "metadata": {**obj["metadata"], "annotations": many}}  # noqa: E731
                cluster.server.store.update(JOBS, "train", note, namespace="default")
            told = lambda: [one for one in cluster.events() if one["reason"] == "InvalidAnnotation"]  # noqa: E731
            await until(told)
            assert [(one["involvedObject"]["kind"], one["message"]) for one in told()] == [
                (
                    kind,
                    "metadata.annotations: 257 annotations, at most 256 are read, "
                    "in addition to those that koordpy knows",
                )
            ]


@in_virtual_time
async def test_pods_that_a_job_wants_no_more_are_placed_no_more_and_nobody_is_evicted_for_them() -> None:
    async with live([small("n1", cpu=3)]) as cluster, cluster.running():
        cluster.create(*(pod(f"low-{i}", cpu="1", memory="1Mi", gpus=0) for i in range(3)))
        await until(lambda: cluster.bound("low-0", "low-1", "low-2"))
        uid = uid_of(job(cluster, 4))
        urgent(cluster, *(member(i, uid) for i in range(4)))
        await until(lambda: "needed 4" in said(cluster, "train-0"))
        change_job(cluster, parallelism=1, completions=1)
        await until(lambda: "train@beyond: Job train wants 1 pod, and there are more" in said(cluster, "train-3"))
        evicted = {name for name, one in cluster.pods().items() if one["metadata"].get("deletionTimestamp")}
        assert len(evicted) <= 1 and evicted <= {"low-0", "low-1", "low-2"}
        cluster.create(small("n2", cpu=4))
        await until(lambda: cluster.bound("train-0"))
        cluster.create(pod("other", cpu="1", memory="1Mi", gpus=0))
        await until(lambda: cluster.bound("other"))
        assert not cluster.bound("train-1") and not cluster.bound("train-2")
        change_job(cluster, parallelism=3, completions=3)
        await until(lambda: cluster.bound("train-1", "train-2"))
        assert not cluster.bound("train-3")


@in_virtual_time
async def test_a_jobset_of_more_jobs_than_are_read_is_told_on_it_and_counted() -> None:
    async with live([small("n1")]) as cluster:
        serve(cluster, "jobset.x-k8s.io", "v1alpha2", "JobSet")
        many = {"name": "a", "replicas": 5001, "template": {"spec": {"parallelism": 1, "template": template()}}}
        head = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet"}
        made = {**head, "metadata": {"name": "js", "namespace": "default"}, "spec": {"replicatedJobs": [many]}}
        cluster.server.store.create("jobsets.jobset.x-k8s.io", made)
        async with cluster.running() as scheduler:
            await until(lambda: any(one["involvedObject"]["kind"] == "JobSet" for one in cluster.events()))
            assert [one["message"] for one in cluster.events() if one["involvedObject"]["kind"] == "JobSet"] == [
                "its last readable state stays in effect, as it cannot be read: "
                "spec.replicatedJobs: makes 5001 Jobs, 5000 at most"
            ]
            counted = b'koordpy_refused_inputs_total{kind="JobSet",reason="UnreadableObject"} 1.0'
            assert counted in scheduler.metrics.render()


@in_virtual_time
async def test_a_driver_of_spark_starts_alone_and_its_executors_together() -> None:
    executors = EXAMPLES["spark"].objects
    driver = {**executors[0], "metadata": {"name": "pi-driver", "labels": {"spark-role": "driver"}}}
    async with live([small("n1")]) as cluster, cluster.running():
        cluster.create(driver)
        await until(lambda: cluster.bound("pi-driver"))
        above = cluster.server.store.get("pods", "pi-driver", namespace="default")
        owner = {"apiVersion": "v1", "kind": "Pod", "name": "pi-driver", "uid": uid_of(above), "controller": True}
        made = [{**one, "metadata": {**one["metadata"], "ownerReferences": [owner]}} for one in executors]
        cluster.create(made[0])
        await until(lambda: "1 of minMember 2 exist" in said(cluster, "pi-exec-1"))
        cluster.create(made[1])
        await until(lambda: cluster.bound("pi-exec-1", "pi-exec-2"))


@in_virtual_time
async def test_a_train_job_starts_whole_by_what_its_controllers_make_of_it() -> None:
    _, train_job = EXAMPLES["trainjob"].objects
    body = {"completionMode": "Indexed", "completions": 2, "parallelism": 2, "template": template()}
    steps = {"replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": body}}]}
    labels = {"jobset.sigs.k8s.io/jobset-name": "tune", "jobset.sigs.k8s.io/replicatedjob-name": "node"}

    def made(name: str, above: Json) -> Json:
        owner = {key: above[key] for key in ("apiVersion", "kind")}
        whose = {**owner, "name": above["metadata"]["name"], "uid": uid_of(above), "controller": True}
        return {"metadata": {"name": name, "namespace": "default", "labels": labels, "ownerReferences": [whose]}}

    async with live([small("n1")]) as cluster:
        serve(cluster, "jobset.x-k8s.io", "v1alpha2", "JobSet")
        serve(cluster, "trainer.kubeflow.org", "v1alpha1", "TrainJob")
        store = cluster.server.store
        async with cluster.running() as scheduler:
            top = store.create("trainjobs.trainer.kubeflow.org", train_job)
            job_set = store.create("jobsets.jobset.x-k8s.io", {**made("tune", top), "spec": steps})
            of_job = store.create(JOBS, {**made("tune-node-0", job_set), "spec": body})
            cluster.create(member(0, uid_of(of_job), "tune-node-0", **labels))
            await until(lambda: "1 of minMember 2 exist" in said(cluster, "tune-node-0-0"))
            ((shown,),) = (entry["gangs"] for entry in scheduler.inspection.queue())
            assert (shown["name"], "TrainJob tune" in shown["origin"]) == ("default/tune", True)
            cluster.create(member(1, uid_of(of_job), "tune-node-0", **labels))
            await until(lambda: cluster.bound("tune-node-0-0", "tune-node-0-1"))
