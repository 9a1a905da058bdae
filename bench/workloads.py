# SPDX-License-Identifier: Apache-2.0
"""`koordpy simulate` of workloads at size: CPU of the whole process, modules included, which are compiled once as those
of an installed package are."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.timing import Row

Json = dict[str, Any]
ROUNDS = 3


def _node(i: int) -> Json:
    room = {"cpu": "8", "memory": "64Gi", "pods": "110"}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{i}"}, "status": {"allocatable": room}}


def _job(name: str, size: int) -> Json:
    container = {"name": "main", "image": "example/train:1", "resources": {"requests": {"cpu": "1"}}}
    pod = {"schedulerName": "koord-scheduler", "restartPolicy": "Never", "containers": [container]}
    spec = {"completionMode": "Indexed", "completions": size, "parallelism": size, "template": {"spec": pod}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def _cpu(objects: Sequence[Json], pods: int) -> float:
    """The least of some runs, in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in.yaml"
        path.write_text("\n---\n".join(map(json.dumps, objects)))
        command = [sys.executable, "-m", "koordpy", "simulate", "-f", str(path), "-o", "json"]
        compiled = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        took = []
        for _ in range(ROUNDS):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            done = subprocess.run(command, check=True, capture_output=True, env=compiled)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
            assert len(json.loads(done.stdout)["bindings"]) == pods
    return min(took)


def run() -> Iterator[Row]:
    """(what, figure, note)."""
    nodes = [_node(i) for i in range(1000)]
    many = _cpu([*nodes, *(_job(f"train-{i}", 8) for i in range(1000))], 8000)
    yield "simulate: 1,000 Jobs of 8 pods on 1,000 nodes", f"{many:.1f} s", f"bar 3 s, {_verdict(many, 3)}"
    large = _cpu([*nodes, _job("train", 4096)], 4096)
    yield "simulate: one Job of 4,096 pods on 1,000 nodes", f"{large:.1f} s", f"bar 6 s, {_verdict(large, 6)}"


def _verdict(seconds: float, bar: float) -> str:
    return "holds" if seconds < bar else "missed"


if __name__ == "__main__":
    for row in run():
        print(*row, sep="  ")
