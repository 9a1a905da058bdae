# SPDX-License-Identifier: Apache-2.0
"""Random clusters for the golden run, of what the other generators have little of: GPUs given by name, Ascend NPUs,
capacity that is reserved (starving units, promised starts, nominated and ending pods), resource claims, and the filters
of kube-scheduler. The same seed gives the same cluster.
"""

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.objects import Node, Pod
from koordpy.api.pod_groups import PodGroup
from koordpy.config.configuration import Ascend, Fairness, Gpu, KoordpyConfiguration, Preemption, Queue
from tests.e2e.random_pods import Maker
from tests.planning.gpu.machines import BRIDGES, UNIFORM, M
from tests.planning.test_filter_dra import CLASS, DRIVER, asks, facts, held, offers, resource_claim, user
from tests.scenarios.cluster import TWO_LAYERS, group, node, wish
from tests.scenarios.gpus import GPU, gpu_node, gpu_pod, measured
from tests.scenarios.npus import device_info, npu_gang, npu_node, npu_pod, super_pods, switched
from tests.scenarios.quotas import belongs, quota
from tests.scenarios.turmoil import Turmoil

Cluster = tuple[list[Any], KoordpyConfiguration]
"""(objects, configuration)."""

FOUR = [row[:4] for row in M[:4]]
MATRICES: tuple[Any, ...] = (M, M, UNIFORM, FOUR)
BIG, COMMON = {keys.TOR_AFFINITY: "large-model-schema"}, {keys.TOR_AFFINITY: "normal-schema"}
MODULES = ("module-910b-8", "module-910b-8", "module", "module-910b-16")


def gpu_cluster(seed: int) -> Cluster:
    """Machines with measured links, pods of several containers, GPU groups, gangs, quotas and victims."""
    random = Random(seed)
    out: list[Any] = [TWO_LAYERS]
    free: dict[str, set[int]] = {}
    for i in range(random.randint(2, 6)):
        name, labels = f"n{i}", {"spine": f"s{random.randint(0, 1)}", "block": f"b{random.randint(0, 2)}"}
        if random.random() < 0.15:
            out.append(gpu_node(name, labels, gpus=4))
            continue
        matrix = random.choice(MATRICES)
        sick = {random.randrange(len(matrix))} if random.random() < 0.2 else set[int]()
        if random.random() < 0.2:
            matrix, made = BRIDGES, measured(name, matrix=BRIDGES, sick=sick)
            made[1] = replace(made[1])
        else:
            made = measured(name, matrix=matrix, sick=sick)
        made[0] = gpu_node(name, labels, gpus=len(matrix))
        out += made
        free[name] = set(range(len(matrix))) - sick
    leaves = [""]
    for i in range(random.choice([0, 0, 2])):
        out.append(quota(f"q{i}", {GPU: random.randint(0, 8)}, {GPU: random.choice([8, 1000])}, forced=True))
        leaves.append(f"q{i}")
    for i in range(random.randint(0, 8)):
        at = random.choice([*free, ""])
        count = random.randint(1, 4)
        if at and len(free[at]) >= count:
            chosen = random.sample(sorted(free[at]), count)
            free[at] -= set(chosen)
            silent = random.random() < 0.1
            out.append(
                gpu_pod(
                    f"r{i}", count, held=None if silent else chosen, at=at, created=random.randint(1, 900),
                    priority=random.choice([0, 0, 5]), labels=belongs(random.choice(leaves)),
                )
            )  # fmt: skip
    for i in range(random.randint(1, 5)):
        counts = [random.choice([1, 1, 2, 2, 3, 4, 8]) for _ in range(random.choice([1, 1, 1, 2]))]
        settings: dict[str, Any] = {
            "created": 1000 + random.randint(0, 900),
            "priority": random.choice([0, 0, 1, 9]),
            "labels": belongs(random.choice(leaves)),
        }
        if random.random() < 0.3:
            settings["annotations"] = {keys.GPU_MIN_BANDWIDTH: random.choice(["15", "40", "90"])}
        kind = random.choice(["plain", "plain", "group", "gang", "gang", "gathered"])
        if kind == "plain":
            out.append(gpu_pod(f"p{i}", *counts, **settings))
        elif kind == "group":
            out += [gpu_pod(f"p{i}-{k}", *counts, group=f"j{i}", **settings) for k in range(2)]
        else:
            members = random.randint(2, 5)
            layer, how = random.choice(["blockLayer", "spineLayer"]), random.choice(["Prefer", "Must"])
            notes = wish({layer: how}, pp=random.choice([1, 1, 2])) if kind == "gathered" else None
            out.append(group(f"g{i}", random.choice([members, members, members - 1]), notes))
            out += [gpu_pod(f"p{i}-{k}", *counts, gang=f"g{i}", **settings) for k in range(members)]
    config = KoordpyConfiguration(
        gpu=Gpu(objective=random.choice(["bottleneck", "bottleneck", "sum"])),
        preemption=Preemption(enabled=random.random() < 0.7),
    )
    return out, config


def npu_cluster(seed: int) -> Cluster:
    """Modules, SuperPoDs, or servers below switches, with jobs that run and jobs that wait, of several priorities."""
    random = Random(seed)
    kind = random.choice(["modules", "modules", "blocks", "soft blocks", "switches 1", "switches 2", "common"])
    out: list[Any] = []
    chips = 8
    if kind == "modules":
        product = random.choice(MODULES)
        chips = 16 if product.endswith("16") else 8
        names = [f"n{i}" for i in range(random.randint(2, 6))]
        out += [npu_node(name, chips, product) for name in names]
        if random.random() < 0.3:
            out.append(device_info(names[0], unhealthy=f"Ascend910-{random.randrange(chips)}"))
    elif "blocks" in kind:
        chips, sizes = 16, [random.randint(1, 4) for _ in range(random.randint(1, 3))]
        out += super_pods(*sizes)
        names = [one.metadata.name for one in out]
    else:
        positions = random.choice([2, 3])
        leaves = {
            name: sorted(random.sample(range(positions), random.randint(1, positions)))
            for name in "abc"[: random.randint(1, 3)]
        }
        out += switched(leaves, positions)
        names = [f"{leaf}s{at}" for leaf, own in leaves.items() for at in own]
    left = random.sample(names, len(names))
    for i in range(random.randint(0, 4)):
        size = random.randint(1, 2)
        places, left = left[:size], left[size:]
        if not places:
            break
        whole = kind != "modules" or random.random() < 0.5
        number = chips if whole else random.choice([1, 2, 4])
        priority = random.choice([0, 0, 1, 20])
        out.append(npu_gang(f"v{i}", 0, minimum=len(places))[0])
        out += [
            npu_pod(f"v{i}-{k}", number, gang=f"v{i}", at=at, holds=range(number), priority=priority)
            for k, at in enumerate(places)
        ]
    for i in range(random.randint(1, 3)):
        count, notes, labels = random.randint(1, 4), dict[str, str](), dict[str, str]()
        number = chips if kind != "modules" else random.choice([1, 2, 4, chips])
        if "blocks" in kind:
            notes[keys.SP_BLOCK] = str(16 * random.choice([b for b in (1, 2) if count % b == 0]))
            labels = {keys.SUPER_POD_AFFINITY: "soft"} if "soft" in kind else {}
        elif kind != "modules":
            labels = COMMON if kind == "common" else BIG
        settings: dict[str, Any] = {"priority": random.choice([0, 5, 10]), "created": 100 + i}
        if kind == "modules" and random.random() < 0.3:
            out.append(npu_pod(f"w{i}", number, labels=labels, **settings))
        else:
            made = npu_gang(f"g{i}", count, number, prefix=f"w{i}", annotations=notes, labels=labels, **settings)
            out += made
    ascend = Ascend(nslb_version="2.0" if kind == "switches 2" else "1.0", reserve_nodes=random.choice([0, 2]))
    return out, KoordpyConfiguration(ascend=ascend, preemption=Preemption(enabled=random.random() < 0.8))


def reserved_cluster(seed: int) -> Cluster:
    """A turmoil in which units starve, starts are promised, and pods are nominated; seen half an hour later."""
    random = Random(seed)
    turmoil = Turmoil(random)
    out: list[Any] = []
    nodes = [one.metadata.name for one in turmoil.objects if isinstance(one, Node)]
    for one in turmoil.objects:
        if isinstance(one, Pod | PodGroup) and random.random() < 0.7:
            length = {keys.MAX_RUNTIME: random.choice(["30m", "90m", "3h", "12h"])}
            one = replace(one, metadata=replace(one.metadata, annotations={**one.metadata.annotations, **length}))
        if isinstance(one, Pod):
            if not one.spec.node_name and random.random() < 0.15:
                one = replace(one, status=replace(one.status, nominated_node_name=random.choice(nodes)))
            if one.spec.node_name and random.random() < 0.1:
                meta = replace(one.metadata, deletion_timestamp="2026-01-01T01:30:20Z")
                one = replace(one, metadata=meta)
        out.append(one)
    config = replace(
        turmoil.config,
        queue=Queue(backfill=random.random() < 0.6),
        fairness=replace(turmoil.config.fairness, starvation_after=random.choice([0.0, 1800.0, 3600.0])),
    )
    return out, config


def claim_cluster(seed: int) -> Cluster:
    """Devices that pods claim: claims of one pod or of several, held ones, of models, gangs with a claim a member."""
    random = Random(seed)
    names = [f"n{i}" for i in range(random.randint(2, 4))]
    out: list[Any] = [CLASS, *(node(f"{name}:{random.choice([4, 8])}") for name in names)]
    models = ["a", "b"]
    for name in names:
        for k, model in enumerate(models):
            devices = [f"{model}{i}" for i in range(random.randint(0, 3))]
            out.append(offers(name, *devices, slices=2, number=k, attributes=facts(model=model)))

    def wanted() -> Any:
        texts = [f'device.attributes["{DRIVER}"].model == "{random.choice(models)}"'] if random.random() < 0.5 else []
        return asks(random.choice([None, 1, 1, 2]), *texts)

    for i in range(random.randint(0, 3)):
        at = random.choice(names)
        out.append(resource_claim(f"held{i}", wanted(), allocation=held(f"a{i}", at=at)))
        out.append(user(f"r{i}", f"held{i}", at=at, priority=random.choice([0, 0, 5])))
    for i in range(random.randint(1, 4)):
        settings: dict[str, Any] = {"priority": random.choice([0, 1, 9]), "created": 100 + i}
        if random.random() < 0.4:
            members = random.randint(2, 4)
            out.append(group(f"g{i}", members))
            out += [resource_claim(f"c{i}-{k}", wanted()) for k in range(members)]
            out += [user(f"p{i}-{k}", f"c{i}-{k}", gang=f"g{i}", **settings) for k in range(members)]
            continue
        out.append(resource_claim(f"c{i}", wanted()))
        out += [user(f"p{i}-{k}", f"c{i}", **settings) for k in range(random.choice([1, 1, 2]))]
    return out, KoordpyConfiguration(fairness=Fairness(reclaim="off"))


def _without_nulls(value: Any) -> Any:
    """A manifest as the API server would give it back."""
    if isinstance(value, dict):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


def filter_cluster(seed: int) -> Cluster:
    """Pods of all fields that kube-scheduler's filters and scores read, some running, some waiting."""
    maker = Maker(seed)
    out: list[Any] = []
    names = [f"n{i}" for i in range(maker.rng.randint(3, 6))]
    for name in names:
        labels = {"kubernetes.io/hostname": name, **maker.node_labels()}
        status = {"allocatable": {**maker.allocatable(), "cpu": "8"}, "images": maker.images()}
        made = {"metadata": {"name": name, "labels": labels}, "spec": maker.node_spec(), "status": status}
        out.append(msgspec.convert(_without_nulls(made), Node, strict=False))
    for i in range(maker.rng.randint(6, 14)):
        manifest = maker.pod(f"p{i}")
        manifest["metadata"].update(uid=f"uid-{i}", creationTimestamp=f"2026-01-01T00:00:{i:02}Z")
        manifest["spec"]["schedulerName"] = keys.DEFAULT_SCHEDULER_NAME
        manifest["spec"]["priority"] = maker.rng.choice([0, 0, 0, 10])
        if i < 5 and not manifest["spec"].get("nodeName"):
            manifest["spec"]["nodeName"], manifest["status"] = maker.rng.choice(names), {"phase": "Running"}
        out.append(msgspec.convert(_without_nulls(manifest), Pod, strict=False))
    return out, KoordpyConfiguration()


CLUSTERS: dict[str, Callable[[int], Cluster]] = {
    "gpus": gpu_cluster,
    "npus": npu_cluster,
    "reserved": reserved_cluster,
    "claims": claim_cluster,
    "filters": filter_cluster,
}
