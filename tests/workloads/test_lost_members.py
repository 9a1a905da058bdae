# SPDX-License-Identifier: Apache-2.0
"""Members of derived gangs on lost nodes: they do not count, and their gang is broken (repair.md 4.1, workloads.md
5.6)."""

from pathlib import Path

import pytest

from koordpy.api import keys
from tests.workloads.cluster import Json, job, nodes, pod, simulate

TAINT = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}


def member(index: int, node: str = "", name: str = "", together: int = 3) -> Json:
    """Member train-INDEX; with a node it was bound together with `together` members, at the rank of its index."""
    made = pod(name or f"train-{index}", index, node=node)
    if node:
        bound = {keys.BOUND_RANK: str(index), keys.BIND_GROUP_ID: "default/train"}
        made["metadata"]["annotations"] |= {**bound, keys.BIND_MEMBER_COUNT: str(together)}
    return made


def cluster(at: str) -> list[Json]:
    """Nodes n0 to n3, where n1 is unreachable, and a Job of 3 with one member on n0, `at` and n2 each."""
    found = nodes(4)
    found[1]["spec"] = {"taints": [TAINT]}
    return [*found, job(meta={"uid": "j1"}), member(0, "n0"), member(1, at), member(2, "n2")]


@pytest.mark.parametrize(("at", "cause"), [("n1", "NodeTaint"), ("n9", "NodeGone")])
def test_a_member_of_a_job_on_a_lost_node_is_missing(at: str, cause: str, tmp_path: Path) -> None:
    gang = simulate(tmp_path, *cluster(at)).gangs["train"]
    assert (gang["status"], gang["bound"], gang["members"]) == ("Degraded", 2, 2)
    assert gang["repair"] == {
        "policy": "replace",
        "missing": 1,
        "ranks": [1],
        "lost": [{"pod": "default/train-1", "node": at, "cause": cause}],
        "hurt": [],
        "seats": {"n3": 1},
        "seatsUntil": "2026-01-01T00:05:00Z",
    }


@pytest.mark.parametrize("at", ["n1", "n9"])
def test_its_replacement_gets_the_rank(at: str, tmp_path: Path) -> None:
    answer = simulate(tmp_path, *cluster(at), member(1, name="train-1-new"))
    assert answer.ranks == {"train-1-new": 1}
    gang = answer.gangs["train"]
    assert (gang["status"], gang["bound"], gang["members"]) == ("Scheduled", 3, 3)


def test_a_job_whose_members_were_not_bound_together_has_lost_none(tmp_path: Path) -> None:
    found = nodes(4)
    found[1]["spec"] = {"taints": [TAINT]}
    members = [member(i, f"n{i}", together=1) for i in range(3)]
    gang = simulate(tmp_path, *found, job(meta={"uid": "j1"}), *members).gangs["train"]
    assert (gang["status"], gang["bound"], gang["repair"]["missing"]) == ("Incomplete", 2, 0)
    assert gang["message"] == "2 of 3 members, Job train has not made the others"
