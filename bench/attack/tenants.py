# SPDX-License-Identifier: Apache-2.0
"""The attacks: what a tenant may write, as large and as many as an API server takes.

Each runs for some seconds and leaves its objects behind. One that the API server refuses has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator

import aiohttp

from bench.attack.session import CLAIMS, EVIL, HONEST, JOBS, Arena, Attack, text
from koordpy.api import keys
from koordpy.api.reading_limits import GATHER_ENTRIES, JSON_BYTES, LINKED_GANGS, TIES_BYTES

SEVERAL = "all at once"
NOTES_BYTES = 250_000
"""An API server takes 256 KiB of annotations on one object."""
SECONDS = 3.0
TOPOLOGY, GROUPS = keys.GANG_TOPOLOGY, keys.GANG_GROUPS
ATTACKS: dict[str, Attack] = {}


def attack(run: Attack) -> Attack:
    """Adds one to the table under its own name."""
    ATTACKS[getattr(run, "__name__", "").replace("_", "-")] = run
    return run


def _while(seconds: float = SECONDS) -> Iterator[int]:
    """Numbers, for so many seconds."""
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        yield number
        number += 1


def _object(size: int, entry: Callable[[int], str]) -> str:
    """A JSON object of at most so many bytes."""
    parts, length = [], 2
    for number in range(size):
        part = entry(number)
        length += len(part) + 1
        if length > size:
            break
        parts.append(part)
    return "{" + ",".join(parts) + "}"


@attack
async def long_json(arena: Arena) -> None:
    """A setting of 29,000 keys, one of them twice, written again and again."""
    long = _object(NOTES_BYTES, lambda i: f'"k{i % 29000}":1')
    await arena.group("long", notes={TOPOLOGY: long})
    await arena.member("long")
    for i in _while():
        await arena.rewrite("long", {TOPOLOGY: f" {' ' * (i % 9)}{long}"})


@attack
async def fields(arena: Arena) -> None:
    """As many unknown fields as are read, on a gang that waits, changed all the time."""
    await arena.group("fields")
    await arena.member("fields")
    for i in _while():
        await arena.rewrite("fields", {TOPOLOGY: _object(JSON_BYTES, lambda k: f'"gatherStrateg{k}":1') + " " * i})


@attack
async def misspelt(arena: Arena) -> None:
    """5,000 annotations that look misspelt, other ones all the time."""
    for i in _while():
        notes = {f"{keys.GANG_PREFIX}mod{i % 5}{k}": "Strict" for k in range(NOTES_BYTES // 50)}
        await arena.group(f"mis{i}", notes=notes)
        await arena.member(f"mis{i}")


@attack
async def misspelt_pods(arena: Arena) -> None:
    """Pods that say thousands of things that nobody reads."""
    for i in _while():
        notes = {f"{keys.GANG_PREFIX}waiting-tim{i % 5}{k}": "x" for k in range(NOTES_BYTES // 60)}
        await arena.pod(f"odd-{i}", annotations=notes, requests={"cpu": "500"})


@attack
async def squat(arena: Arena) -> None:
    """A gang without pods that names the honest one, and pods that do."""
    named = {GROUPS: text([f"{HONEST}/train"])}
    await arena.group("squat", least=5, notes=named)
    many = {GROUPS: text([f"{HONEST}/train", *(f"{HONEST}/g{i}" for i in range(30))])}
    await arena.pod("named", annotations={keys.GANG_NAME: "other", keys.GANG_MIN: "5", **many})


@attack
async def strange_names(arena: Arena) -> None:
    """20 pods with 4,000 resources each that nothing offers, and 200 with 40."""
    for i in range(20):
        await arena.pod(f"huge-{i}", requests={f"evil.example/r{i}-{k}": "1" for k in range(4000)})
    await arena.many(200, lambda i: arena.pod(f"few-{i}", requests={f"evil.example/s{i}-{k}": "1" for k in range(40)}))


@attack
async def linked(arena: Arena) -> None:
    """Gangs that each name as many others as are read, and a chain as long."""
    names = [f"g{i}" for i in range(LINKED_GANGS)]
    await arena.many(40, lambda i: arena.group(f"g{i}", notes={GROUPS: text(names)}))
    await arena.many(300, lambda i: arena.group(f"c{i}", notes={GROUPS: text([f"c{i - 1}"])}))
    await arena.many(40, lambda i: arena.member(f"g{i}"))
    await arena.many(40, lambda i: arena.member(f"c{i * 7}"))
    for i in _while():
        await arena.rewrite("g0", {GROUPS: text([*names, f"h{i}"][1:])})


@attack
async def thousand_gangs(arena: Arena) -> None:
    """1,000 gangs that wait for members."""
    await arena.many(1000, lambda i: arena.group(f"k{i}", least=3))
    await arena.many(1000, lambda i: arena.member(f"k{i}"))


@attack
async def mixed_gangs(arena: Arena) -> None:
    """100 gangs of two kinds of pods that never fit, woken again and again."""
    block = {"gatherStrategy": [{"layer": "blockLayer", "strategy": "PreferGather"}] * GATHER_ENTRIES}
    await arena.many(100, lambda i: arena.group(f"m{i}", least=6, notes={TOPOLOGY: text(block)} if i % 2 else {}))

    async def pods(i: int) -> None:
        for k in range(6):
            asked = {"cpu": "90" if k % 2 else "50", "nvidia.com/gpu": "8" if k else "400"}
            await arena.member(f"m{i}", k, requests=asked)

    await arena.many(100, pods)
    for i in _while():
        await arena.rewrite(f"m{i % 100}", {"example.com/turn": str(i)})


@attack
async def many_kinds(arena: Arena) -> None:
    """A gang of 310 kinds of pods that fits by every sum and not in the end, woken again and again."""
    await arena.group("kinds", least=310)

    async def one(i: int) -> None:
        size = 70_000 if i < 100 else 60_000 if i < 160 else 1
        await arena.member("kinds", i, requests={"cpu": f"{size + i}m"})

    await arena.many(310, one)
    for i in _while():
        await arena.rewrite("kinds", {"example.com/turn": str(i)})


@attack
async def jobs(arena: Arena) -> None:
    """100 Jobs of as many pods as the API server takes, changed all the time."""
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": "a"}]}}
    head = {"apiVersion": "batch/v1", "kind": "Job"}
    every = {"completions": 100_000, "parallelism": 10_000, "completionMode": "Indexed"}

    async def one(i: int) -> None:
        spec = {**(every if i % 2 else {"parallelism": 2**31 - 1}), "template": template}
        await arena.evil.create(JOBS, {**head, "metadata": {"name": f"j{i}"}, "spec": spec})

    await arena.many(100, one)
    for i in _while():
        await arena.evil.patch(f"{JOBS}/j{i % 100}", {"metadata": {"annotations": {keys.GANG_MIN: str(i)}}})


@attack
async def terms(arena: Arena) -> None:
    """Terms of node affinity: as many as are read, and far more."""
    for count, i in ((450, 0), (450, 1), (10_000, 2)):
        expressions = [{"key": f"k{i}", "operator": "NotIn", "values": [f"v{v}" for v in range(20)]}]
        some = [{"matchExpressions": expressions} for _ in range(count)]
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": some}}}
        await arena.pod(f"t-{i}", requests={"cpu": "500"}, spec={"affinity": affinity})


@attack
async def spread(arena: Arena) -> None:
    """Affinity and spread over keys that no node has, with thousands of values."""
    for i in _while():
        selector = {
            "matchExpressions": [{"key": "a", "operator": "In", "values": [f"v{v}" for v in range(TIES_BYTES // 200)]}]
        }
        term = {"topologyKey": f"k{i}", "labelSelector": selector}
        anti = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term] * 20}}
        await arena.pod(f"s-{i}", labels={"a": "v1"}, requests={"cpu": "500"}, spec={"affinity": anti})


@attack
async def anti_affinity(arena: Arena) -> None:
    """200 pods that fit, with as many terms of anti-affinity as are read, all different."""

    async def pod(i: int) -> None:
        some = [
            {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {f"k{i}-{k}": "v"}}}
            for k in range(TIES_BYTES // 91)
        ]
        anti = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": some}}
        await arena.pod(f"a-{i}", requests={"cpu": "10m"}, spec={"affinity": anti})

    await arena.many(200, pod)


@attack
async def label_keys(arena: Arena) -> None:
    """Pods that each look for labels that nobody has looked for before."""
    for i in _while():
        selector = {"matchExpressions": [{"key": f"k{i}-{k}", "operator": "Exists"} for k in range(TIES_BYTES // 45)]}
        term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": selector}
        anti = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        await arena.pod(f"l-{i}", requests={"cpu": "500"}, spec={"affinity": anti})


@attack
async def numbers(arena: Arena) -> None:
    """Numbers of thousands of digits, control characters, names of 200 kB."""
    huge = "9" * 60_000
    for i, note in enumerate((
        {TOPOLOGY: f'{{"parallelModel":[{{"name":"a","size":{huge}}}]}}'},
        {keys.GANG_WAITING_TIME: huge, keys.GANG_TOTAL: huge},
        {TOPOLOGY: text({"gatherStrategy": [{"layer": "x\n\x1b[31m" * 9000, "strategy": "MustGather"}]})},
        {keys.GANG_MODE: "x\n" * 100_000, keys.GANG_MATCH_POLICY: "\x1b" * 10_000},
        {TOPOLOGY: "[" * 60_000},
    )):  # fmt: skip
        await arena.group(f"n{i}", notes=note)
        await arena.member(f"n{i}")


@attack
async def churn(arena: Arena) -> None:
    """Pods that come and go as quickly as one client can make them."""

    async def turn(i: int) -> None:
        for k in _while():
            await arena.pod(f"churn-{i}-{k}", requests={"cpu": f"{500 + k}"})
            await arena.evil.delete(f"/api/v1/namespaces/{EVIL}/pods/churn-{i}-{k}")

    await arena.evil.each(range(4), turn)


@attack
async def claims(arena: Arena) -> None:
    """500 claims and pods that name five of them each, and claims that are not there."""
    asked = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}

    async def claim(i: int) -> None:
        body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": f"c{i}"}}
        await arena.evil.create(CLAIMS, {**body, "spec": {**asked, "storageClassName": f"none-{i % 50}"}})

    async def pod(i: int) -> None:
        names = [*(f"c{(5 * i + k) % 500}" for k in range(5)), *(f"gone{i}-{k}" for k in range(50))]
        volumes = [{"name": f"v{k}", "persistentVolumeClaim": {"claimName": n}} for k, n in enumerate(names)]
        await arena.pod(f"p{i}", spec={"volumes": volumes})

    await arena.many(500, claim)
    await arena.many(100, pod)


@attack
async def http(arena: Arena) -> None:
    """16 clients on the port of health and metrics."""
    url = f"http://127.0.0.1:{arena.port}"

    async def ask(i: int) -> None:
        async with aiohttp.ClientSession() as session:
            for k in _while():
                path = ("/metrics", "/debug/snapshot", "/configz", "/readyz?verbose")[(i + k) % 4]
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.get(url + path) as answer:
                        await answer.read()
                await asyncio.sleep(0.01)  # its own work would take the core else

    await arena.evil.each(range(16), ask)


@attack
async def quota_of_all(arena: Arena) -> None:
    """A quota of nothing that names the honest namespace, and one of the honest quota's name."""
    await arena.quota("grab", notes={keys.QUOTA_NAMESPACES: text([HONEST])}, max={"cpu": "0"})
    await arena.quota("teamx", max={"cpu": "0"})


@attack
async def quota_users(arena: Arena) -> None:
    """Pods that name the honest quota, more of them than it has room for, which never run."""
    name = {keys.QUOTA_NAME: "teamx"}
    await arena.many(60, lambda i: arena.pod(f"q{i}", requests={"cpu": "90"}, labels=name))
    labels = {**name, keys.QUOTA_USER: HONEST, keys.QUOTA_PREEMPTIBLE: "false"}
    await arena.many(60, lambda i: arena.pod(f"u{i}", requests={"cpu": "90"}, labels=labels))


@attack
async def quota_tree(arena: Arena) -> None:
    """2,000 quotas in a tree, of which one is written again and again."""
    label = {keys.QUOTA_IS_PARENT: "true"}
    await arena.quota("root", labels=label, max={"cpu": "9000"}, min={"cpu": "10"})
    one = {keys.QUOTA_PARENT: "root"}
    await arena.many(2000, lambda i: arena.quota(f"q{i}", labels=one, max={"cpu": "9"}, min={"cpu": "1"}))
    for i in _while():
        await arena.evil.patch(
            f"/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/{EVIL}/elasticquotas/q{i % 2000}",
            {"metadata": {"annotations": {"example.com/turn": str(i)}}},
        )
