# SPDX-License-Identifier: Apache-2.0
"""Rows of gates and of units that wait for other units, in addition to those of `rows.py`."""

import json

from koordpy.api import keys
from tests.autoscalers.rows import BLOCK, GPU, NPU, ROW, Json, Row, gather, group, linked, members, pod, running

TERMS, TIED = 129, 4
"""Terms of affinity of a member, and members: a few more terms than are read."""
ZONE, SLOT, LONER = "tests/zone", "tests/slot", "tests/loner"


def gated() -> list[Row]:
    """Rows of gates."""
    ready = "NotReadyForScheduling"
    return [
        Row("names-no-group", ready, _naming_no_group(), text="listed in groups of gang default/names-no-group-a"),
        Row(
            "only-waiting",
            ready,
            [
                group("only-waiting", 2, {keys.GANG_MATCH_POLICY: "only-waiting"}),
                running("only-waiting", labels={keys.LABEL_POD_GROUP: "only-waiting"}),
                *members("only-waiting", 1),
            ],
            nodes=({}, {}),
            text="waiting for members",
        ),
        Row(
            "deleted-member",
            ready,
            [
                group("deleted-member", 2),
                running("deleted-member", holds=True, labels={keys.LABEL_POD_GROUP: "deleted-member"}),
                *members("deleted-member", 1),
            ],
            nodes=({}, {}),
            text="1 of minMember 2 exist, 1 more is being deleted",
        ),
        Row("terms", ready, [group("terms", TIED), *_tied_members()], text="terms of affinity and spread"),
        Row(
            "numa",
            ready,
            [_noted(pod("numa"), keys.NUMA_SPEC, json.dumps({"numaTopologyPolicy": "Strict"}))],
            text="'Strict' is none of",
        ),
        Row(
            "gpu-names",
            ready,
            [pod("gpu-names", room={GPU: "1", "koordinator.sh/gpu": "100"})],
            text="GPUs by more than one resource name",
        ),
        Row(
            "npu-parts",
            ready,
            _npu_parts(),
            nodes=({keys.ACCELERATOR_TYPE: "module", BLOCK: "b3"},) * 2,
            room={NPU: "16"},
            text="cannot be combined with switch affinity",
        ),
        Row(
            "part",
            "NodesCannotHelp",
            [_noted(pod("part", room={"cpu": "1"}), "gpu-fraction", "0.5")],
            text="no new node would help: unsupported: annotation gpu-fraction",
        ),
    ]


def _noted(made: Json, key: str, value: str) -> Json:
    made["metadata"].setdefault("annotations", {})[key] = value
    return made


def _naming_no_group() -> list[Json]:
    """A gang that is linked with a gang that does not exist."""
    made = linked("names-no-group", (1, 1))
    [named] = [one for one in made if one["kind"] == "PodGroup"]
    listed = json.dumps(["default/names-no-group-a", "default/names-no-group-b"])
    named["metadata"]["annotations"] = {keys.GANG_GROUPS: listed}
    return made


def _tied_members() -> list[Json]:
    """Members of different requests, with terms of anti-affinity."""
    made = []
    for number in range(TIED):
        terms = [{"topologyKey": f"t/{number}-{i}"} for i in range(TERMS)]
        apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
        room = {GPU: "1", "memory": f"{number + 1}Mi"}
        made.append(pod("terms", str(number), gang=True, room=room, affinity=apart))
    return made


def _npu_parts() -> list[Json]:
    """A gang of a SuperPoD job that asks for parts."""
    rule = {"layer": "blockLayer", "strategy": "MustGather", "scope": "replica"}
    notes = {**gather(rule), keys.SP_BLOCK: "16"}
    own = members("npu-parts", 2, room={NPU: "16"})
    return [group("npu-parts", 2, notes), *(_noted(one, keys.SP_BLOCK, "16") for one in own)]


def holding() -> list[Row]:
    """Rows with a nominated unit, and units that wait because of it or were not nominated with it."""
    apart = {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": ZONE, "labelSelector": {"matchLabels": {LONER: ""}}}
            ]
        }
    }
    return [
        Row(
            "blocking",
            "WaitingForTermination",
            [
                running("blocking", holds=True, selector={SLOT: "0"}),
                pod("blocking", priorityClassName="high", selector={SLOT: "0"}, affinity=apart),
            ],
            nodes=({ZONE: "z", SLOT: "0"}, {ZONE: "z", SLOT: "1"}),
            nominated=True,
        ),
        Row(
            "core",
            "WaitingForTermination",
            [
                *(running("core", i, holds=True) for i in range(2)),
                group("core", 2),
                *members("core", 2, priorityClassName="high"),
            ],
            nodes=({}, {}),
            nominated=True,
        ),
        Row(
            "more-than-core",
            "Unschedulable",
            [
                pod(
                    "more-than-core",
                    labels={keys.LABEL_POD_GROUP: "core"},
                    selector={ROW: "core"},
                    priorityClassName="high",
                )
            ],
            nodes=(),
            pool="core",
        ),
    ]


def blocked() -> Row:
    """A pod that may not run beside the nominated pod of row `blocking`. It would be placed before the nomination."""
    return Row(
        "blocked",
        "HeldBack",
        [pod("blocked", labels={LONER: ""}, selector={ROW: "blocking", SLOT: "1"})],
        nodes=(),
        text="placing it would block the nominated pod default/blocking",
        pool="blocking",
    )
