# SPDX-License-Identifier: Apache-2.0
"""Compares admission by zones with the kubelet's own hint merging: `make kubelet-differential`.

The Go program in `kubelet_merging` runs k8s.io/kubernetes/pkg/kubelet/cm/topologymanager of the release that the
end-to-end tests use. Nodes and pods are random. The hints of each resource are built here as the kubelet's managers
build them: every zone set with enough free, preferred if no smaller set of the node could hold the amount. memory and
huge pages have their hints together, and none for sets that overlap with memory of pods in other sets. Under
best-effort only requests that can be aligned are compared, because the rules choose another set than the kubelet where
none is preferred (numa.md 3).
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from koordpy.devices.numa.admission import (
    PodAmounts,
    Policy,
    Request,
    RequestPart,
    ZoneAdmission,
    Zones,
    admit,
    is_memory,
)

HERE = Path(__file__).parent
MODULES = HERE.parents[1] / "controlplane" / "kubernetes" / "1.37"
RESOURCES = ("cpu", "nvidia.com/gpu", "example.com/nic", "memory", "hugepages-2Mi", "hugepages-1Gi")
Json = dict[str, Any]
Case = tuple[Json, Zones, dict[str, tuple[int, ...]], PodAmounts, frozenset[int]]


def random_case(rng: random.Random) -> Case:
    """Returns (input of the kubelet, zones, free amounts, pod, zone sets with memory) of a random node and request."""
    count = rng.choice((2, 2, 2, 3, 4))
    names = rng.sample(RESOURCES, rng.randint(1, 4))
    size = {name: rng.randint(1, 8) for name in names}
    sizes = {
        name: tuple(size[name] if rng.random() < 0.8 else rng.randint(0, 8) for _ in range(count)) for name in names
    }
    free = {name: tuple(rng.randint(0, one) if rng.random() < 0.6 else one for one in sizes[name]) for name in names}
    wanted = {name: rng.randint(1, max(1, sum(sizes[name]) // rng.choice((1, 2, 4)))) for name in names}
    policy = rng.choice(("best-effort", "restricted", "single-numa-node"))
    groups = frozenset(rng.randrange(1, 1 << count) for _ in range(rng.choice((0, 0, 1, 2))))
    memory = [name for name in names if is_memory(name)]
    hints = {name: hints_of(wanted[name], sizes[name], free[name]) for name in names if name not in memory}
    hints |= dict.fromkeys(memory, memory_hints([(wanted[name], sizes[name], free[name]) for name in memory], groups))
    row = tuple(sorted(wanted.items()))
    zones = Zones(tuple(range(count)), tuple(sorted(sizes.items())))
    return (
        {"zones": count, "policy": policy, "hints": hints},
        zones,
        free,
        PodAmounts((Request(RequestPart.POD, row),), row),
        groups,
    )


def hints_of(amount: int, sizes: Sequence[int], free: Sequence[int]) -> list[Json]:
    """Returns the hints of the manager of one resource, as `generateCPUTopologyHints` of the kubelet builds them."""
    count, least, found = len(sizes), len(sizes), []
    for mask in range(1, 1 << count):
        inside = [i for i in range(count) if mask >> i & 1]
        if sum(sizes[i] for i in inside) >= amount:
            least = min(least, len(inside))
        if sum(free[i] for i in inside) >= amount:
            found.append(mask)
    return [{"mask": mask, "preferred": mask.bit_count() == least} for mask in found]


def memory_hints(types: Sequence[tuple[int, Sequence[int], Sequence[int]]], groups: frozenset[int]) -> list[Json]:
    """Returns the hints of the Memory Manager, as its `calculateHints` builds them.

    types: (amount, [zones] allocatable, [zones] free) of each requested type. groups: zone sets with memory of pods.
    """
    count = len(types[0][1]) if types else 0
    least, found = count, []
    for mask in range(1, 1 << count):
        inside, size = [i for i in range(count) if mask >> i & 1], mask.bit_count()
        if any(sum(sizes[i] for i in inside) < amount for amount, sizes, _ in types):
            continue
        least = min(least, size)
        # a zone of a group of several zones serves no single zone, and no other group
        others = [one for one in groups if one & mask and one != mask]
        if any(size > 1 or one.bit_count() > 1 for one in others):
            continue
        if all(sum(free[i] for i in inside) >= amount for amount, _, free in types):
            found.append(mask)
    return [{"mask": mask, "preferred": mask.bit_count() == least} for mask in found]


def kubelet_answers(inputs: Sequence[Json]) -> list[Json]:
    """Returns what the kubelet decides for each input. Raises CalledProcessError if the program cannot be built."""
    with tempfile.TemporaryDirectory() as folder:
        for file in (HERE / "kubelet_merging" / "main.go", MODULES / "go.mod", MODULES / "go.sum"):
            shutil.copy(file, folder)
        program = Path(folder) / "merging"
        subprocess.run(["go", "build", "-mod=mod", "-o", str(program), "main.go"], cwd=folder, check=True)
        text = "\n".join(json.dumps(one) for one in inputs)
        done = subprocess.run([str(program)], input=text, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def main() -> int:
    """Returns 1 if a decision differs."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.numa.kubelet_differential")
    parser.add_argument("--count", type=int, default=20000, help="random requests")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    cases = [random_case(rng) for _ in range(arguments.count)]
    answers = kubelet_answers([case[0] for case in cases])
    outcomes, differences = Counter[str](), 0
    for (given, zones, free, pod, groups), kubelet in zip(cases, answers, strict=True):
        ours = admit(pod, zones, free, Policy(given["policy"]), groups)
        admitted = isinstance(ours, ZoneAdmission)
        mask = ours.sets[0] if isinstance(ours, ZoneAdmission) else 0
        aligned = all(any(h["mask"] == mask and h["preferred"] for h in one) for one in given["hints"].values())
        alike = admitted == kubelet["admitted"]
        if admitted and aligned:
            alike = alike and mask == kubelet["mask"]
        outcomes[
            f"{given['policy']}: {'aligned' if admitted and aligned else 'admitted' if admitted else 'rejected'}"
        ] += 1
        if not alike:
            differences += 1
            print(f"differs: {given} {free} {pod} {groups}: koordpy {ours}, the kubelet {kubelet}")
    for outcome, number in sorted(outcomes.items()):
        print(f"{number:7} {outcome}")
    print(f"{len(cases)} requests, {differences} decided differently")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
