# SPDX-License-Identifier: Apache-2.0
"""simulate and explain on a cluster of the embedded API server: what they read, what they say, and that they write
nothing."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordpy.api import keys
from koordpy.api.times import rfc3339
from koordpy.cli.main import main
from koordpy.config.configuration import Quota
from tests.cli.test_kubectl import MUST, WAITING, cluster  # noqa: F401 - a fixture
from tests.engine.live import Live, live, pod, small, until
from tests.engine.manifests import BLOCK, QUOTAS
from tests.engine.stage import blocks

Json = dict[str, Any]


@pytest.fixture
def ask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command beside the server: (status, output, lines of errors)."""

    async def run(command: str, *words: str) -> tuple[int, str, list[str]]:
        status = await asyncio.to_thread(main, [command, "--kubeconfig", str(tmp_path / "config"), *words])
        said = capsys.readouterr()
        return status, said.out, said.err.splitlines()

    return run


@pytest.fixture
async def quiet(tmp_path: Path) -> AsyncIterator[Live]:
    """Two blocks of two nodes with four GPUs."""
    nodes = [small(f"n{i}", labels={BLOCK: f"b{(i + 1) // 2}"}) for i in (1, 2, 3, 4)]
    async with live(nodes) as one:
        one.server.store.create("clusternetworktopologies.scheduling.koordinator.sh", blocks())
        (tmp_path / "config").write_text(one.server.kubeconfig())
        yield one


def stored(one: Live) -> str:
    store = one.server.store
    return json.dumps({shelf.shelf: store.list(shelf.shelf) for shelf in store.registry}, sort_keys=True)


def written(folder: Path, *manifests: Json) -> str:
    path = folder / "what-if.yaml"
    path.write_text(yaml.safe_dump_all(manifests))
    return str(path)


async def test_what_they_say_of_waiting_pods_is_what_the_scheduler_told_them(cluster: Live, ask: Any) -> None:  # noqa: F811
    async with cluster.running() as scheduler:
        await until(lambda: all(cluster.condition(name).get("message") for name in WAITING))
        await cluster.at_rest(scheduler)
        told = {name: (one["reason"], one["message"]) for name in WAITING for one in [cluster.condition(name)]}
        status, out, _ = await ask("simulate", "-o", "json", "--rounds", "1")
        assert status == 0
        said = {one["pod"]: (one["reason"], one["message"]) for one in json.loads(out)["pending"]}
        never = {name for name, (_, message) in told.items() if "never fits: " in message}
        for name, (reason, message) in told.items():  # NeverFits is a reason of offline output alone
            is_never = name in never and reason == "Unschedulable"
            assert said[name] == ("NeverFits" if is_never else reason, message)
        status, out, _ = await ask("explain", "-o", "json", "--pod", "vast")
        assert (status, json.loads(out)["feasibleNodes"]) == (0, 0)


async def test_manifests_are_laid_over_the_cluster(quiet: Live, ask: Any, tmp_path: Path) -> None:
    quiet.create(pod("there", gpus=4, cpu="1", memory="1Gi"))
    quiet.bind("there", "n1")
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train", "namespace": "default", "annotations": MUST},
        "spec": {"completionMode": "Indexed", "completions": 2, "parallelism": 2}
        | {"template": {"spec": {**pod("x", gpus=4, cpu="1", memory="1Gi")["spec"], "restartPolicy": "Never"}}},
    }
    before = stored(quiet)
    _, out, _ = await ask("simulate", "-f", written(tmp_path, job), "-o", "json")
    found = json.loads(out)
    assert {one["pod"]: one["node"] for one in found["bindings"]} == {"train-0": "n3", "train-1": "n4"}
    assert {one["pod"] for one in found["final"]} == {"there", "train-0", "train-1"}
    cordoned = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n3"}, "spec": {"unschedulable": True}}
    _, out, _ = await ask("simulate", "-f", written(tmp_path, job, cordoned), "-o", "json")
    assert json.loads(out)["bindings"] == []
    _, out, _ = await ask("simulate", "-f", written(tmp_path, job), "--fail-node", "n3", "-o", "json")
    assert [one["gone"] for one in json.loads(out)["steps"]] == [[], ["default/train-0"]]
    _, out, _ = await ask("explain", "-f", written(tmp_path, job), "--pod", "train-0", "-o", "json")
    assert json.loads(out)["gang"] == "default/train"
    assert stored(quiet) == before


async def test_the_configuration_is_that_of_the_installed_release_and_told(quiet: Live, ask: Any) -> None:
    store = quiet.server.store
    labels = {"app.kubernetes.io/name": "koordpy"}
    meta = {"name": "koordpy", "namespace": "kube-system", "labels": labels}
    text = "quota: {namespaces: [ops]}\nschedulerNames: [other]\n"
    store.create("configmaps", {"metadata": meta, "data": {"config.yaml": text}})
    store.create(QUOTAS, {"metadata": {"name": "q", "namespace": "default"}, "spec": {"max": {"cpu": "1"}}})
    mine = pod("p", gpus=0, cpu="2", memory="1Gi", labels={keys.QUOTA_NAME: "q"})
    quiet.create({**mine, "spec": {**mine["spec"], "schedulerName": "other"}})
    uncounted = "warning: quota.namespaces is [ops]: 1 ElasticQuota in namespace default is ignored: "
    uncounted += "no limit and no guarantee applies there"
    for command in (("simulate",), ("explain", "--pod", "p"), ("topology",)):
        status, out, err = await ask(*command)
        assert status == 0 and uncounted in err
        assert err[-1] == "configuration: ConfigMap kube-system/koordpy, quota.namespaces: [ops]"
    _, out, err = await ask("simulate", "-o", "json")
    assert [one["pod"] for one in json.loads(out)["final"]] == ["p"] and not [
        line for line in err if line.startswith("configuration: ")
    ]
    _, out, _ = await ask("simulate", "-o", "json", "--scheduler-name", "none")
    assert json.loads(out)["bindings"] == []


async def test_what_a_scheduler_goes_on_without_is_a_warning(quiet: Live, ask: Any) -> None:
    """Quotas that contradict each other are faults of manifests, not of a cluster that runs with them."""
    store = quiet.server.store
    spec = {"min": {"cpu": "4"}, "max": {"cpu": "1"}}
    store.create(QUOTAS, {"metadata": {"name": "q", "namespace": "default"}, "spec": spec})
    quiet.create(pod("p", gpus=1, cpu="1", memory="1Gi"))
    status, out, err = await ask("simulate", "-o", "json")
    assert status == 0 and [one["pod"] for one in json.loads(out)["bindings"]] == ["p"]
    assert any("ElasticQuota default/q: spec.min" in line for line in err), err


async def test_a_cluster_that_cannot_be_read_ends_with_status_1(ask: Any, tmp_path: Path) -> None:
    for command in (("simulate",), ("explain", "--pod", "p")):
        status, out, err = await ask(*command)
        assert (status, out) == (1, "") and err[0].startswith("the cluster cannot be read: ")


async def test_a_check_of_a_configuration_names_the_quotas_that_would_not_count(
    quiet: Live, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quotas = [
        {
            "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
            "kind": "ElasticQuota",
            "metadata": {"name": f"q{i}", "namespace": space},
            "spec": {"max": {"cpu": "1"}},
        }
        for i, space in enumerate(("team-b", "team-a", "team-a", "ops"))
    ]
    for space in ("team-a", "team-b", "ops"):
        quiet.server.store.create("namespaces", {"metadata": {"name": space}})
    for one in quotas:
        quiet.server.store.create(QUOTAS, one)
    config = tmp_path / "config.yaml"
    for sources in (["--kubeconfig", str(tmp_path / "config")], ["-f", written(tmp_path, *quotas)]):
        for namespaces, told in (
            ("[ops]", "3 ElasticQuotas in namespaces team-a, team-b are ignored: "),
            ("[ops, team-a, team-b]", ""),
            ("[]", ""),
        ):
            config.write_text(f"quota: {{namespaces: {namespaces}}}\n")
            assert await asyncio.to_thread(main, ["config", "check", str(config), *sources]) == 0
            out, err = capsys.readouterr()
            assert out == f"{config}: valid\n"
            said = f"warning: {config}: quota.namespaces is {namespaces}: {told}"
            assert err.startswith(said) if told else err == ""


async def test_a_start_of_the_scheduler_names_the_quotas_that_do_not_count(
    quiet: Live, caplog: pytest.LogCaptureFixture
) -> None:
    quiet.server.store.create(QUOTAS, {"metadata": {"name": "q", "namespace": "default"}, "spec": {}})
    for namespaces, told in ((("ops",), 1), ((), 0), (("default",), 0)):
        caplog.clear()
        async with quiet.running(quota=Quota(namespaces=namespaces)) as scheduler:
            await until(scheduler.synced.is_set)
        lines = [one.message for one in caplog.records if one.message.startswith("quota.namespaces is [ops]: ")]
        assert len(lines) == told


async def test_a_workload_of_the_cluster_whose_class_may_not_be_read_is_a_warning(quiet: Live, ask: Any) -> None:
    spec = {**pod("x", gpus=1, cpu="1", memory="1Gi")["spec"], "restartPolicy": "Never", "priorityClassName": "high"}
    store = quiet.server.store
    store.create("priorityclasses.scheduling.k8s.io", {"metadata": {"name": "high"}, "value": 7})
    meta = {"name": "urgent", "namespace": "default"}
    store.create("jobs.batch", {"metadata": meta, "spec": {"template": {"spec": spec}}})
    status, out, _ = await ask("simulate", "-o", "json")
    assert status == 0 and len(json.loads(out)["bindings"]) == 1
    quiet.server.faults.fail(403, path="/apis/scheduling.k8s.io/v1/priorityclasses")
    status, out, err = await ask("simulate", "-o", "json")
    assert status == 0 and json.loads(out)["bindings"] == []
    assert any(
        "Job default/urgent: spec.template.spec.priorityClassName: no PriorityClass high" in line for line in err
    )


async def test_pods_that_kubelets_rejected_close_their_nodes(quiet: Live, ask: Any) -> None:
    rejected = pod("r", gpus=4, cpu="1", memory="1Gi")
    rejected["spec"]["nodeName"] = "n1"
    quiet.create(rejected, pod("p", gpus=4, cpu="1", memory="1Gi"))

    def fail(obj: Json) -> Json:
        condition = {"type": "Ready", "status": "False", "lastTransitionTime": rfc3339(time.time() + 5)}
        return {**obj, "status": {"phase": "Failed", "reason": "TopologyAffinityError", "conditions": [condition]}}

    quiet.server.store.update("pods", "r", fail, namespace="default", status=True)
    status, out, _ = await ask("simulate", "-o", "json")
    document = json.loads(out)
    assert (status, [one["node"] for one in document["bindings"]]) == (0, ["n2"])
    assert [(one["node"], one["rejections"]) for one in document["backedOff"]] == [("n1", 1)]
