# SPDX-License-Identifier: Apache-2.0
"""Whether memory goes with the pods that took it: strange pods come and go in waves, offline, in a process of its own.

    python -m bench.attack.memory [--pods 100000]

The pods go the way that an API server's do, from bytes through the mirror into the state and a round. Each asks for
resources, looks for labels and names a topology that no other one knows. What counts is resident memory after the last
wave beside that after a wave of ordinary ones. The exit status is 1 where it is more than a tenth above.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from bench.attack.session import MEMORY_BAR
from bench.live.usage import usage_of
from koordpy.api.bounded_memory import forget_all
from koordpy.api.keys import DEFAULT_SCHEDULER_NAME
from koordpy.api.objects import Node, Pod
from koordpy.decoding.wire_json import WireReader
from koordpy.devices.family_registry import make_state
from koordpy.engine.watching.object_mirror import Mirror
from koordpy.feasibility.round_state import PlannerCache
from koordpy.planner.planning_round import plan_round

WAVE = 1000
NODES = 100
Json = dict[str, Any]


def ordinary(number: int) -> Json:
    """A pod of a template."""
    return _pod(f"pod-{number}", {"cpu": "500"}, {})


def strange(number: int) -> Json:
    """A pod of which nothing is like another's."""
    requests = {"cpu": "500", **{f"evil.example/r{number}-{k}": "1" for k in range(4)}}
    selector = {"matchExpressions": [{"key": f"k{number}", "operator": "In", "values": [str(v) for v in range(5)]}]}
    term = {"topologyKey": f"t{number}", "labelSelector": selector}
    anti = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return _pod(f"strange-{number}", requests, {"affinity": anti})


def _pod(name: str, requests: Json, spec: Json) -> Json:
    meta = {"name": name, "namespace": "evil", "uid": name, "labels": {f"k{name}": "v"}}
    container = {"name": "main", "image": "img", "resources": {"requests": requests}}
    return {"metadata": meta, "spec": {"schedulerName": DEFAULT_SCHEDULER_NAME, "containers": [container], **spec}}


class _Sink:
    """The state, as the engine has it hear."""

    def __init__(self) -> None:
        self.state = make_state(scheduler_names=frozenset([DEFAULT_SCHEDULER_NAME]))

    def upsert(self, obj: Pod, old: Pod | None) -> None:
        self.state.upsert(obj)

    def delete(self, obj: Pod) -> None:
        self.state.delete(Pod, obj.key)


class Cluster:
    """What a scheduler knows, and how much memory it takes."""

    def __init__(self) -> None:
        self._sink, self._cache = _Sink(), PlannerCache()
        self._mirror: Mirror[Pod] = Mirror("pods", self._sink, None, lambda pod, why: sys.exit(why))
        self._reader = WireReader(Pod)
        for i in range(NODES):
            node = {
                "metadata": {"name": f"n{i}", "uid": f"n{i}"},
                "status": {"allocatable": {"cpu": "96", "pods": "99"}},
            }
            self._sink.state.upsert(WireReader(Node).read(json.dumps(node).encode()))

    def wave(self, first: int, count: int, make: Callable[[int], Json]) -> None:
        """So many pods come, all but one in a hundred on nodes, are planned for, and go."""
        uids = []
        for number in range(first, first + count):
            body = make(number)
            if number % 100:
                body["spec"]["nodeName"] = f"n{number % NODES}"
            pod = self._reader.read(json.dumps(body).encode())
            self._mirror.put(pod.metadata.uid, pod, None)
            uids.append(pod.metadata.uid)
        if plan_round(self._sink.state.snapshot(time.time()), planner_cache=self._cache).placements:
            sys.exit("a pod was placed that fits nowhere")
        for uid in uids:
            self._mirror.drop(uid)
        forget_all()  # as the engine does where so many are gone (`engine/forgetting.py`)
        self._sink.state.forget_labels()
        plan_round(self._sink.state.snapshot(time.time()), planner_cache=self._cache)
        gc.collect()  # else it is when the collector runs that is measured

    def megabytes(self) -> float:
        """Resident memory."""
        gc.collect()
        return usage_of(os.getpid()).resident_bytes / 2**20


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench.attack.memory", description=__doc__.split("\n")[0])
    parser.add_argument("--pods", type=int, default=100_000)
    args = parser.parse_args()
    cluster = Cluster()
    empty = cluster.megabytes()
    cluster.wave(0, WAVE, ordinary)
    before = cluster.megabytes()
    cluster.wave(0, WAVE, strange)
    first = cluster.megabytes()
    for number in range(WAVE, args.pods, WAVE):
        cluster.wave(number, WAVE, strange)
    after = cluster.megabytes()
    broken = after > before * MEMORY_BAR
    print(f"{empty:.1f} MB without pods, {before:.1f} MB after {WAVE} ordinary ones, {first:.1f} MB after as many")
    print(f"strange ones, {after:.1f} MB after {args.pods} of them{'   BROKEN' if broken else ''}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
