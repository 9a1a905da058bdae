# SPDX-License-Identifier: Apache-2.0
"""Jobs of training-operator v1, made by their own controller, through what happens to them: lost pods, suspension,
elastic scaling, a launcher that ends, and PodGroups that the operator makes itself (workloads.md 5, 9 and 11)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.acts import ONE_GPU, Act, Play, play, played
from tests.e2e.client import DEFINITIONS, Client, Json
from tests.e2e.conftest import CRDS
from tests.e2e.controlplane import ControlPlane
from tests.e2e.kubelets import kubelets
from tests.e2e.operators import TRAINING, Operators, operators
from tests.e2e.test_job_lives import World
from tests.e2e.test_operator_lives import an_example_starts_as_a_gang, template
from tests.e2e.test_scheduler import start
from tests.e2e.test_volcano_groups import NAME, definition

__all__ = ["operators", "play"]
pytestmark = pytest.mark.controllers
TORCH_JOBS = "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs"
MPI_JOBS = "/apis/kubeflow.org/v1/namespaces/default/mpijobs"
OF_JOB = "training.kubeflow.org/job-name"
OF_ROLE = "training.kubeflow.org/replica-type"


def replicas(number: int, gpu: int = 1) -> Json:
    pods = template(gpu)
    container = {**pods["spec"]["containers"][0], "name": "pytorch"}  # by which the operator knows it
    return {
        "replicas": number,
        "restartPolicy": "OnFailure",
        "template": {"spec": {**pods["spec"], "containers": [container]}},
    }


def torch_job(workers: int, *, master: int = 0, **spec: Any) -> Json:
    specs = {"Worker": replicas(workers), **({"Master": replicas(master)} if master else {})}
    kind = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "bert"}}
    return {**kind, "spec": {"pytorchReplicaSpecs": specs, **spec}}


def mpi_job(workers: int) -> Json:
    specs = {"Launcher": replicas(1, gpu=0), "Worker": replicas(workers)}
    kind = {"apiVersion": "kubeflow.org/v1", "kind": "MPIJob", "metadata": {"name": "sum"}}
    return {**kind, "spec": {"runPolicy": {"cleanPodPolicy": "Running"}, "mpiReplicaSpecs": specs}}


async def a_torch_job_starts_whole_and_is_suspended_and_resumed(act: Act) -> None:
    members = f"{OF_JOB}=bert"
    await act.cordon_all(3, cordoned=True)
    await act.amid(act.create(TORCH_JOBS, torch_job(3, master=1)))
    await act.waiting(members, 4, "available in the cluster: 3")
    await act.amid(act.cordon_all(3, cordoned=False))
    await act.running(members, 4)
    # a worker is deleted in a running gang: the hole alone is filled
    gone, *_ = await act.names(f"{members},{OF_ROLE}=worker", "Running")
    before = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in await act.pods(members)}
    await act.amid(act.delete(gone))

    async def again() -> bool:
        now = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in await act.pods(members)}
        return now.keys() == before.keys() and [name for name in now if now[name] != before[name]] == [gone]

    await act.until("the worker is made again, and nothing else", again)
    await act.running(members, 4)
    await act.patch(f"{TORCH_JOBS}/bert", runPolicy={"suspend": True})
    await act.running(members, 0)
    await act.amid(act.patch(f"{TORCH_JOBS}/bert", runPolicy={"suspend": False}))
    await act.running(members, 4)

    async def told() -> bool:
        notes = await act.told("PyTorchJob", "bert", "GangScheduled")
        return {note.partition(": ")[2].partition(";")[0] for note in notes} == {
            "1 member of PyTorchJob bert, role master",
            "3 members of PyTorchJob bert, role worker",
        }

    await act.until("the PyTorchJob is told of both roles", told)


async def an_elastic_torch_job_starts_with_its_least_and_scales(act: Act) -> None:
    members = f"{OF_JOB}=bert"
    elastic = {"minReplicas": 2, "maxReplicas": 4, "rdzvBackend": "c10d"}
    await act.amid(act.create(TORCH_JOBS, torch_job(4, elasticPolicy=elastic)))

    async def three_run() -> bool:
        return len(await act.names(members, "Running")) == 3 and len(await act.pods(members)) == 4

    await act.until("three run, one waits", three_run)
    await act.amid(act.make_nodes(1, start=3))
    await act.running(members, 4)

    async def scaled(number: int) -> None:
        await act.patch(f"{TORCH_JOBS}/bert", pytorchReplicaSpecs={"Worker": {"replicas": number}})

    await act.amid(scaled(2))
    await act.running(members, 2)
    await act.amid(scaled(3))
    await act.running(members, 3)


async def workers_of_an_mpi_job_end_with_its_launcher(act: Act) -> None:
    members = f"{OF_JOB}=sum"
    # what brings kubectl to the launcher asks for a disk
    await act.make_nodes(2, room={**ONE_GPU, "ephemeral-storage": "20Gi"})
    await act.cordon_all(1, cordoned=True)
    await act.amid(act.create(MPI_JOBS, mpi_job(2)))
    await act.waiting(members, 3, f"{act.namespace}/sum:worker: needed 3")
    await act.amid(act.cordon_all(1, cordoned=False))
    await act.running(members, 3)
    await act.amid(act.ends("sum-launcher"))
    await act.running(members, 0)


@played()
async def test_jobs_of_training_operator_live_on_whatever_becomes_of_koordpy(play: Play, operators: Operators) -> None:
    await operators.start(play.api, TRAINING)
    example = partial(an_example_starts_as_a_gang, "pytorchjob", TORCH_JOBS, f"{OF_JOB}=bert", 8)
    await play.run(
        {
            "torch": (4, a_torch_job_starts_whole_and_is_suspended_and_resumed),
            "elastic": (3, an_elastic_torch_job_starts_with_its_least_and_scales),
            "mpi": (0, workers_of_an_mpi_job_end_with_its_launcher),
            "example-torch": (0, example),
        }
    )


@pytest.mark.parametrize(
    ("scheduler", "waits"),
    [
        ("koord-scheduler", "minResources do not fit: nvidia.com/gpu 4, free 3"),
        ("volcano", "needed 4, available in the cluster: 3"),
    ],
)
async def test_pod_groups_of_training_operator_are_the_gangs_of_its_jobs(
    api: Client, plane: ControlPlane, operators: Operators, tmp_path: Path, scheduler: str, waits: str
) -> None:
    """Of scheduling.x-k8s.io, or Volcano's, without which being Inqueue it makes no pods."""
    volcano, members = scheduler == "volcano", f"{OF_JOB}=bert"
    await api.apply_crds(CRDS)
    if volcano:
        await api.create(DEFINITIONS, definition())
    operators.stop()
    await operators.start(api, replace(TRAINING, flags=(*TRAINING.flags, f"--gang-scheduler-name={scheduler}")))
    config = tmp_path / "config.yaml"
    config.write_text("{gangs: {volcano: take}, schedulerNames: [koord-scheduler, volcano]}")
    namespace = await api.make_namespace(scheduler)
    groups = (
        f"/apis/scheduling.{'volcano.sh/v1beta1' if volcano else 'x-k8s.io/v1alpha1'}/namespaces/{namespace}/podgroups"
    )
    await api.make_nodes(3, allocatable=ONE_GPU)
    with start(plane, tmp_path, "koordpy", "--leader-elect=false", "--config", str(config)) as process:
        async with kubelets(api) as nodes:
            world = World(api, process, nodes, namespace)
            await api.create(world.here(TORCH_JOBS), torch_job(3, master=1))
            # the operator's gang, and not the two that follow from the job
            await world.waiting(members, 4, f"gang {namespace}/bert: {waits}")
            assert (await api.get(f"{groups}/bert"))["spec"]["minMember"] == 4
            await api.make_nodes(1, allocatable=ONE_GPU, name=lambda _: "more")
            await world.running(members, 4)
            for suspended, count in ((True, 0), (False, 4)):
                await api.patch(world.here(f"{TORCH_JOBS}/bert"), {"spec": {"runPolicy": {"suspend": suspended}}})
                await world.running(members, count)
            await api.delete(world.here(f"{TORCH_JOBS}/bert"))

            async def gone() -> bool:
                return not await world.pods(members) and not await api.items(groups)

            await world.until("pods and PodGroup are gone", gone)
    operators.stop()
    if volcano:
        await api.remove_definition(NAME)
