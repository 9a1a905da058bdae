# SPDX-License-Identifier: Apache-2.0
"""`kubectl koordpy` of a user without the right to list the cluster's pods: answers and refusals."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from koordpy.cli.kubectl import main

GROUP = "/apis/view.koordpy.io"
WHY = {
    "kind": "Job",
    "name": "team-a/train",
    "namespace": "team-a",
    "pods": [
        {
            "namespace": "team-a",
            "pod": "train-0",
            "gang": "team-a/train",
            "reason": "Unschedulable",
            "message": "0/4 nodes are available: 4 Insufficient nvidia.com/gpu.",
            "node": None,
            "lastTold": None,
        }
    ],
    "podsNotListed": 3,
    "gang": {
        "name": "team-a/train",
        "status": "Unschedulable",
        "members": 4,
        "minMember": 4,
        "bound": 0,
        "message": "m",
    },
    "queue": {"place": 2, "waiting": 7},
    "explanation": {
        "pod": "team-a/train-0",
        "feasibleNodes": 1,
        "allNodes": 4,
        "reasons": {"Insufficient nvidia.com/gpu": 3},
        "domains": [{"layer": "rack", "name": "r1", "slots": 1, "needed": 4, "reason": "room for 1 of 4 members"}],
        "wouldFitIf": ["3 more slots were free in rack r1"],
        "queue": {"place": 2, "waiting": 7, "mode": "off", "owner": "", "held": {}, "share": {}},
    },
    "explanationInSeconds": None,
    "secondsAgo": 1.5,
}
QUEUE = {
    "namespace": "team-a",
    "units": [
        {
            "place": 2,
            "unit": "gang team-a/train",
            "pods": 4,
            "priority": 0,
            "quota": "",
            "user": "ann",
            "asks": {"nvidia.com/gpu": "4"},
            "waitingSeconds": 60,
            "reason": "Unschedulable",
            "message": "m",
        }
    ],
    "unitsNotListed": 0,
    "others": {"waiting": 6, "held": 1, "pods": 40},
    "secondsAgo": 0.1,
}
SLOTS = {
    "resource": "nvidia.com/gpu",
    "each": 8,
    "gangs": [
        {"layer": "cluster", "domains": 1, "gangs": {"8": 3, "64": 0, "512": 0}, "largest": {"pods": 3, "domain": ""}}
    ],
    "domains": [{"layer": "rack", "name": "r1", "nodes": 4, "slots": 3}],
    "domainsNotListed": 2,
    "secondsAgo": 0.1,
}


class Server:
    """Refuses lists, and answers the questions that it has an answer for: (status, body)."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, dict[str, Any]]] = {}
        self.is_served = True
        self.asked: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        path = request.raw_path
        if path.startswith(GROUP):
            self.asked.append(path)
        if path == GROUP:
            return web.json_response({}) if self.is_served else status(404, "NotFound", "no such group")
        for part, (code, body) in self.answers.items():
            if path.startswith(GROUP) and part in path:
                return web.json_response(body, status=code)
        return status(403, "Forbidden", f"pods is forbidden: User ann cannot get {path.partition('?')[0]}")


def status(code: int, reason: str, message: str) -> web.Response:
    return web.json_response(refused(code, reason, message)[1], status=code)


def refused(code: int, reason: str, message: str) -> tuple[int, dict[str, Any]]:
    return code, {"kind": "Status", "apiVersion": "v1", "code": code, "reason": reason, "message": message}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    made = Server()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", made.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    context = {"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "team-a"}}
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    config = {
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [context],
    }
    (tmp_path / "config").write_text(json.dumps(config))
    yield made
    await runner.cleanup()


@pytest.fixture
def ask(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    async def run(*words: str) -> tuple[int, str, str]:
        code = await asyncio.to_thread(main, [*words, "--kubeconfig", str(tmp_path / "config")])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


async def test_an_answer_is_printed_as_the_same_view_of_a_cluster_is(server: Server, ask: Any) -> None:
    server.answers = {
        "/explanations/job.train": (200, {"report": WHY}),
        "/queues/current": (200, {"report": QUEUE}),
        "/slots/current?gpus=8": (200, {"report": SLOTS}),
    }
    code, out, err = await ask("why", "job/train")
    assert (code, err) == (0, "")
    assert out.startswith("gang team-a/train: Unschedulable, 0 of 4 required members bound\n")
    assert "team-a/train-0 (gang team-a/train): Unschedulable\n    0/4 nodes are available" in out
    assert "and 3 more pods\n" in out and "  3 more slots were free in rack r1\n" in out and "  place 2 of 7" in out
    assert "as of 1.5 s ago of http://127.0.0.1:" in out and out.endswith("configuration: the scheduler's own\n")
    wide = (await ask("why", "job/train", "-o", "wide"))[1]
    assert "team-a/train-0: fits on 1 of 4 nodes" in wide and "rack   r1" in wide
    assert "3      Insufficient nvidia.com/gpu" in wide
    queue = (await ask("queue"))[1]
    assert (
        "gang team-a/train" in queue
        and "other tenants: 6 units waiting, 1 blocked before planning, 40 pods in total\n" in queue
    )
    slots = (await ask("slots", "--gpus", "8", "-o", "wide"))[1]
    assert "OF 8" in slots and "rack   r1    4      3" in slots and "and 2 more domains" in slots
    found = json.loads((await ask("queue", "-o", "json"))[1])
    assert found["others"] == QUEUE["others"] and found["asOf"]["resourceVersion"] is None


async def test_an_answer_without_an_explanation_says_when_to_ask_again(server: Server, ask: Any) -> None:
    server.answers = {"explanations": (200, {"report": {**WHY, "explanation": None, "explanationInSeconds": 12}})}
    out = (await ask("why", "train"))[1]
    assert "  place 2 of 7\n" in out and "The explanation is not ready yet: ask again in 12 s\n" in out
    server.answers = {"slots": (200, {"report": {**SLOTS, "gangs": None, "retryInSeconds": 4}})}
    assert (await ask("slots", "--gpus", "8"))[1].startswith("Slots are not counted yet: ask again in 4 s\n")


async def test_the_name_and_the_namespace_are_quoted(server: Server, ask: Any) -> None:
    server.answers = {"explanations": (200, {"report": WHY})}
    for words, path in (
        (("why", "train"), "team-a/explanations/any.train"),
        (("-n", "b", "why", "lws/x.y"), "b/explanations/leaderworkerset.x.y"),
        (("why", "other/train"), "other/explanations/any.train"),
        (("why", "pg/run%2f..@a b"), "team-a/explanations/podgroup.run%252f..%40a%20b"),
        (("-n", "a%2e", "why", "x"), "a%252e/explanations/any.x"),
    ):
        server.asked.clear()
        await ask(*words)
        assert server.asked[0] == f"{GROUP}/v1alpha1/namespaces/{path}", words


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            refused(403, "Forbidden", "ann may not get pods in namespace team-a"),
            "error: ann may not get pods in namespace team-a: ask for a Role there with get of pods",
        ),
        (
            refused(403, "Forbidden", 'queues.view.koordpy.io "current" is forbidden: User "ann" cannot get'),
            'error: queues.view.koordpy.io "current" is forbidden: User "ann" cannot get: '
            "ask for a Role in namespace team-a with get of queues.view.koordpy.io and of pods",
        ),
        (refused(404, "NotFound", "no pod x"), "error: no pod x"),
        (refused(503, "ServiceUnavailable", "being read"), "error: the scheduler does not answer: 503"),
    ],
)
async def test_a_refusal_names_the_right_and_the_next_step(
    server: Server, ask: Any, answer: tuple[int, dict[str, Any]], said: str
) -> None:
    server.answers = {"queues": answer}
    code, out, err = await ask("queue")
    assert (code, out) == (1, "") and err.startswith(said) and err.count("\n") == 1


async def test_without_the_api_both_missing_rights_are_named(server: Server, ask: Any) -> None:
    server.is_served = False
    code, _, err = await ask("queue")
    assert code == 1 and err.startswith("error: the cluster cannot be read: 403 Forbidden: pods is forbidden")
    assert "the API view.koordpy.io" in err and "tenants.enabled" in err
    code, _, err = await ask("tree")
    assert code == 1 and "tree needs the right to list pods and nodes of the whole cluster" in err
