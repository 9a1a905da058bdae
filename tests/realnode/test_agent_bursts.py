# SPDX-License-Identifier: Apache-2.0
"""Many pods at once, with init containers and sidecars, under the device plugin: no GPU ever has two holders."""

from __future__ import annotations

import random

from tests.realnode.gpus import agree, gpu_nodes, gpu_pod, names
from tests.realnode.work import Work


async def test_a_burst_of_containers_shares_48_gpus_without_ever_sharing_one(work: Work) -> None:
    machines = {name: {"gpus": 16} for name in ("n1", "n2", "n3")}
    chance = random.Random(16)
    async with gpu_nodes(work, machines) as nodes:
        # those that stay: containers of one to three GPUs, which init containers use before them
        staying = [gpu_pod(f"stay-{n}", *(chance.choice((1, 1, 2)) for _ in range(2)), inits=(1, 2)) for n in range(8)]
        # those that come and go, more than there is room for
        passing = [
            gpu_pod(
                f"pass-{n}",
                *(chance.choice((0, 1, 2, 3)) for _ in range(2)),
                seconds=chance.choice((1, 2, 4)),
                inits=chance.choice(((), (1,), (2, 1))),
            )
            for n in range(24)
        ]
        work.apply(*staying, *passing)

        await _pass(work, names(passing), within_s=180)
        await agree(work, nodes, names(staying))


async def test_sidecars_have_gpus_of_their_own_beside_containers_and_other_pods(work: Work) -> None:
    chance = random.Random(0)
    async with gpu_nodes(work, {"n1": {"gpus": 16}}) as nodes:
        pods = [
            gpu_pod(f"p{n}", chance.choice((1, 2)), inits=(chance.choice((1, 2)),), sidecar=1) for n in range(4)
        ] + [gpu_pod(f"q{n}", 1, seconds=2, sidecar=1) for n in range(4)]
        work.apply(*pods)
        await agree(work, nodes, [f"p{n}" for n in range(4)])

        await _pass(work, [f"q{n}" for n in range(4)], within_s=60)
        assert not nodes[0].held_twice()


async def _pass(work: Work, wanted: list[str], *, within_s: float) -> None:
    """Waits until these pods have Succeeded; one that Failed ends the wait."""

    async def done() -> bool:
        now = await work.pods()
        found = {name: now[name]["status"] for name in wanted}
        assert not {name: status for name, status in found.items() if status["phase"] == "Failed"}
        return all(status["phase"] == "Succeeded" for status in found.values())

    await work.until(f"{', '.join(wanted)} have passed", done, within_s=within_s)
