# SPDX-License-Identifier: Apache-2.0
"""Gangs whose members are processes: they run, know their ranks, and their Jobs end."""

from __future__ import annotations

import itertools
import json

from koordpy.api import keys
from tests.e2e.client import Json
from tests.realnode.work import Work, container, pod, pod_group, pod_spec


async def test_a_gang_of_24_runs_and_every_process_knows_its_rank(work: Work, blocks: dict[str, str]) -> None:
    say = ["sh", "-c", "echo $RANK; sleep 3600"]
    spec = pod_spec(container(command=say, requests={"cpu": "190m"}, env={"RANK": keys.BOUND_RANK}))
    names = [f"train-{number}" for number in range(24)]
    gather = {"gatherStrategy": [{"layer": "blockLayer", "strategy": "PreferGather"}]}
    group = pod_group("train", 24, {keys.GANG_TOPOLOGY: json.dumps(gather)})
    work.apply(group, *(pod(name, spec, gang="train") for name in names))
    seen = await work.run(names)
    ranks = {int(work.said(name)): seen[name] for name in names}
    assert sorted(ranks) == list(range(24))
    assert all(one["metadata"]["annotations"][keys.BOUND_RANK] == str(rank) for rank, one in ranks.items())
    hosts = [ranks[rank]["spec"]["nodeName"] for rank in range(24)]
    runs = [host for host, _ in itertools.groupby(hosts)]
    assert sorted(runs) == ["n1", "n2", "n3"], "the ranks of a node follow one another"
    assert [block for block, _ in itertools.groupby(runs, key=lambda host: blocks[host])] in (["a", "b"], ["b", "a"])


async def test_an_indexed_job_prints_its_ranks_in_the_order_of_the_network(work: Work, blocks: dict[str, str]) -> None:
    """Nothing of koordpy is in its manifest but schedulerName and one annotation."""
    say = ["sh", "-c", "echo $RANK $NODE; sleep 3600"]
    main = container(command=say, requests={"cpu": "600m"}, env={"RANK": keys.BOUND_RANK})
    main["env"].append({"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}})
    gather = {"gatherStrategy": [{"layer": "blockLayer", "strategy": "PreferGather"}]}
    meta = {"name": "train", "annotations": {keys.GANG_TOPOLOGY: json.dumps(gather)}}
    template = {"spec": pod_spec(main, restartPolicy="Never")}
    spec = {"completionMode": "Indexed", "completions": 8, "parallelism": 8, "template": template}
    work.apply({"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec})

    async def made() -> list[str]:
        names = list(await work.pods())
        return names if len(names) == 8 else []

    seen = await work.run(await work.until("its pods are made", made))
    hosts: dict[int, str] = {}
    for name, one in seen.items():
        rank, host = work.said(name).split()
        hosts[int(rank)] = host
        assert rank == one["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]
        assert host == one["spec"]["nodeName"]
    assert sorted(hosts) == list(range(8))
    runs = [host for host, _ in itertools.groupby(hosts[rank] for rank in range(8))]
    assert sorted(runs) == ["n1", "n2", "n3"], "the ranks of a node follow one another"
    assert [block for block, _ in itertools.groupby(runs, key=lambda host: blocks[host])] in (["a", "b"], ["b", "a"])


async def test_a_job_whose_index_is_tried_again_is_done_beside_a_daemon_set(work: Work) -> None:
    failures, index = (f"batch.kubernetes.io/job-{name}" for name in ("index-failure-count", "completion-index"))
    # index 1 fails at its first try, when the others run
    program = ["sh", "-c", "sleep 3; test $INDEX != 1 -o $FAILURES != 0"]
    spec = pod_spec(container(command=program, env={"INDEX": index, "FAILURES": failures}), restartPolicy="Never")
    template = {"metadata": {"labels": {keys.LABEL_POD_GROUP: "job"}}, "spec": spec}
    job = {"parallelism": 3, "completions": 3, "completionMode": "Indexed", "backoffLimitPerIndex": 2}
    label = {"app": "beside"}
    daemon = {"metadata": {"labels": label}, "spec": pod_spec(container(requests={"cpu": "500m"}))}
    work.apply(
        pod_group("job", 3),
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}, "spec": {**job, "template": template}},
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": "beside"},
            "spec": {"selector": {"matchLabels": label}, "template": daemon},
        },
    )

    async def done() -> Json | None:
        status = (await work.api.get(f"/apis/batch/v1/namespaces/{work.namespace}/jobs/job")).get("status", {})
        return status if status.get("succeeded") == 3 else None

    status = await work.until("the Job is done", done)
    assert (status["completedIndexes"], status["failed"]) == ("0-2", 1)
    beside = await work.run([name for name in await work.pods() if name.startswith("beside-")])
    assert sorted(one["spec"]["nodeName"] for one in beside.values()) == ["n1", "n2", "n3"]


async def test_a_victim_has_its_grace_before_the_gang_that_needs_its_room_starts(work: Work) -> None:
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    await work.api.create(classes, {**kind, "metadata": {"name": work.namespace}, "value": 1000})
    try:
        # ends by itself, with a status of its own, 4 s after it was asked to
        stubborn = ["sh", "-c", "trap 'sleep 4; exit 42' TERM; while true; do sleep 0.1; done"]
        low = pod_spec(container(command=stubborn, requests={"cpu": "1500m"}), terminationGracePeriodSeconds=60)
        names = ["low-0", "low-1", "low-2"]
        work.apply(*(pod(name, low) for name in names))
        await work.run(names)
        since = (await work.api.get(work.pods_path))["metadata"]["resourceVersion"]
        high = pod_spec(container(requests={"cpu": "1500m"}), priorityClassName=work.namespace)
        work.apply(pod_group("high", 2), *(pod(f"high-{n}", high, gang="high") for n in range(2)))
        seen = await work.run(["high-0", "high-1"])
        started = [one["status"]["containerStatuses"][0]["state"]["running"]["startedAt"] for one in seen.values()]
        left: dict[str, Json] = {}
        async for event, one in work.api.watch(work.pods_path, since=since, seconds=5):
            if event == "DELETED":
                left[one["metadata"]["name"]] = one
        assert len(left) == 2, "no more than are needed"
        for victim in left.values():
            (status,) = victim["status"]["containerStatuses"]
            assert status["state"]["terminated"]["exitCode"] == 42
            assert status["state"]["terminated"]["finishedAt"] <= min(started)
        assert len(left.keys() & set(names)) == 2
    finally:
        await work.api.delete(f"{classes}/{work.namespace}")
