# SPDX-License-Identifier: Apache-2.0
"""Rolling updates of Deployments that are gangs, with the controllers of Kubernetes: each rollout ends where there is
room, whatever becomes of koordpy in the middle (workloads.md 4)."""

from __future__ import annotations

from typing import Any

import pytest

from koordpy.api import keys
from tests.e2e.acts import Act, Play, play, played
from tests.e2e.kubelets import on_node
from tests.e2e.test_workload_lives import DEPLOYMENTS, template

__all__ = ["play"]
pytestmark = pytest.mark.controllers
RESTARTED = "kubectl.kubernetes.io/restartedAt"
APP = "app=web"


async def deployment(act: Act, replicas: int, **spec: Any) -> None:
    """A Deployment that is a gang of all its replicas."""
    made = template({keys.GANG_MIN: str(replicas)}, app="web")
    body = {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": made, **spec}
    await act.create(
        DEPLOYMENTS, {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": body}
    )


async def restart(act: Act, at: str = "now") -> None:
    """What `kubectl rollout restart` does."""
    await act.patch(f"{DEPLOYMENTS}/web", template={"metadata": {"annotations": {RESTARTED: at}}})


async def ends(act: Act, replicas: int, at: str = "now") -> None:
    """Waits until all pods are those of the last restart, and run."""

    async def rolled() -> bool:
        pods = [pod for pod in await act.pods(APP) if not pod["metadata"].get("deletionTimestamp")]
        new = [pod for pod in pods if pod["metadata"]["annotations"].get(RESTARTED, "") == at]
        return len(pods) == len(new) == replicas and all(map(on_node, pods))

    await act.until("the rollout ends", rolled)


async def of_two(act: Act) -> None:
    await deployment(act, 2)
    await act.running(APP, 2)
    await act.amid(restart(act))
    await ends(act, 2)
    await act.amid(restart(act, "again"))
    await ends(act, 2, "again")


async def of_four(act: Act) -> None:
    await deployment(act, 4)
    await act.running(APP, 4)
    await act.amid(restart(act))
    await ends(act, 4)


async def without_a_spare_node(act: Act) -> None:
    await deployment(act, 3, strategy={"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}})
    await act.running(APP, 3)
    await act.amid(restart(act))
    await ends(act, 3)


async def beside_a_spare_node_that_comes_late(act: Act) -> None:
    await deployment(act, 2)
    await act.running(APP, 2)
    await act.amid(restart(act))

    async def told() -> bool:
        waits = [pod for pod in await act.pods(APP) if not on_node(pod)]
        said = [one.get("message", "") for pod in waits for one in pod["status"].get("conditions") or ()]
        return len(waits) == 1 and any("of ReplicaSet web-" in text and "uses the capacity" in text for text in said)

    await act.until("the new pod names the old one", told)
    await act.amid(act.make_nodes(1, start=2))
    await ends(act, 2)


async def all_at_once(act: Act) -> None:
    await deployment(act, 2, strategy={"type": "Recreate"})
    await act.running(APP, 2)
    await act.amid(act.cordon(act.node(0), cordoned=True))
    await restart(act)
    await act.waiting(APP, 2, "needed 2, available in the cluster: 1")
    await act.amid(act.cordon(act.node(0), cordoned=False))
    await ends(act, 2)


@played()
async def test_rollouts_of_gangs_end(play: Play) -> None:
    await play.run(
        {
            "two": (3, of_two),
            "four": (5, of_four),
            "full": (3, without_a_spare_node),
            "recreate": (2, all_at_once),
            "late": (2, beside_a_spare_node_that_comes_late),
        }
    )
