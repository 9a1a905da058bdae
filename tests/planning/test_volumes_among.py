# SPDX-License-Identifier: Apache-2.0
"""Members of a gang whose claims take local volumes: as many as there are, told by trying every placement."""

import itertools
import random
from typing import Any

import pytest

from koordpy.api.storage_objects import TopologyLabelRequirement, TopologyTerm
from tests.planning.node_rules import node, planned
from tests.planning.test_filter_volumes import HOST, attached, claim, csi, disk, limited, storage_class, user
from tests.scenarios.cluster import bound, group, messages

GIB = {"4Gi": 4, "8Gi": 8, "5Gi": 5, "10Gi": 10, "20Gi": 20, "30Gi": 30}


def holds(wanted: list[str], volumes: list[str]) -> bool:
    """Whether each claim finds a volume of its own, by trying every way."""
    return any(
        all(GIB[size] <= GIB[volume] for size, volume in zip(wanted, chosen, strict=True))
        for chosen in itertools.permutations(volumes, len(wanted))
    )


def possible(pods: list[list[str]], volumes: dict[str, list[str]], made_on: set[str]) -> bool:
    """Whether the members have places; where volumes are made, any number of claims is served."""
    for places in itertools.product(volumes, repeat=len(pods)):
        there: dict[str, list[str]] = {name: [] for name in volumes}
        for own, at in zip(pods, places, strict=True):
            there[at] += own
        if all(name in made_on or holds(wanted, volumes[name]) for name, wanted in there.items()):
            return True
    return False


@pytest.mark.parametrize("seed", range(60))
def test_a_gang_with_local_volumes_is_placed_exactly_where_some_placement_serves_every_claim(seed: int) -> None:
    dice = random.Random(seed)
    names = ["n1", "n2", "n3"][: dice.choice([2, 3])]
    volumes = {name: dice.choices(["5Gi", "10Gi", "20Gi"], k=dice.randrange(4)) for name in names}
    pods = [
        dice.choices(["4Gi", "8Gi", "20Gi", "30Gi"], (6, 5, 2, 1), k=dice.choice([1, 1, 2]))
        for _ in range(dice.choice([2, 3, 4]))
    ]
    made_on = {dice.choice(names)} if dice.random() < 0.3 else set()
    objects: list[Any] = [node(f"{name}:8") for name in names]
    if made_on:
        term = TopologyTerm(match_label_expressions=[TopologyLabelRequirement(key=HOST, values=sorted(made_on))])
        objects.append(storage_class(provisioner="csi.example.com", allowed_topologies=[term]))
    else:
        objects.append(storage_class())
    sizes: dict[str, str] = {}
    for name, there in volumes.items():
        for i, size in enumerate(there):
            sizes[f"{name}-{i}"] = size
            objects.append(disk(f"{name}-{i}", size, name))
    members = []
    for i, own in enumerate(pods):
        claims = [f"c{i}-{k}" for k in range(len(own))]
        objects += [claim(name, size) for name, size in zip(claims, own, strict=True)]
        members.append(user(f"p-{i}", *claims, gang="g"))
    plan = planned([*objects, group("g", len(pods)), *members])
    where = bound(plan)
    assert bool(where) is possible(pods, volumes, made_on), messages(plan)
    taken = {key: volume for placement in plan.placements for key, volume in placement.claims.items()}
    if where:
        assert len(where) == len(pods) and len(taken) == sum(map(len, pods))
        chosen = [volume for volume in taken.values() if volume]
        assert len(chosen) == len(set(chosen))
        for i, own in enumerate(pods):
            for k, size in enumerate(own):
                volume, at = taken[f"default/c{i}-{k}"], where[f"p-{i}"]
                assert (at in made_on) if not volume else volume.startswith(at) and GIB[size] <= GIB[sizes[volume]]


def test_a_gang_that_lacks_a_volume_is_told_what_is_there() -> None:
    objects = [node("n1:8"), node("n2:8"), storage_class(), disk("v", "5Gi", "n1"), disk("w", "5Gi", "n2")]
    members = [user(f"p-{i}", f"c{i}", gang="g") for i in range(3)]
    plan = planned([*objects, *(claim(f"c{i}") for i in range(3)), group("g", 3), *members])
    assert bound(plan) == {}
    assert messages(plan)["p-0"].startswith("gang default/g: needed 3, available in the cluster: 2. 0/2")


@pytest.mark.parametrize(
    ("limits", "attachments", "gone"),
    [
        ((1, 1), [], ["a", "b"]),
        ((2, 1), [], ["b"]),
        ((3, 1), [], []),
        ((1, 1), [attached("v-a", "n1")], []),  # the volume stays attached without its pod
    ],
)
def test_members_evict_pods_for_attachable_volumes(
    limits: tuple[int, int], attachments: list[Any], gone: list[str]
) -> None:
    placed = bool(gone) or limits == (3, 1)
    objects = [node("n1:8"), node("n2:8"), *(csi(name) for name in ("a", "b", "c", "d"))]
    flat = [one for some in objects for one in (some if isinstance(some, list) else [some])]
    running = [user("a", "a", at="n1", priority=0), user("b", "b", at="n2", priority=0)]
    members = [user("p-0", "c", gang="g", priority=10), user("p-1", "d", gang="g", priority=10)]
    limited_nodes = [limited("n1", limits[0]), limited("n2", limits[1])]
    plan = planned([*flat, *limited_nodes, *attachments, *running, group("g", 2), *members])
    assert sorted(one.pod_key.partition("/")[2] for one in plan.evictions) == gone
    assert len(bound(plan)) == 2 * placed, messages(plan)
