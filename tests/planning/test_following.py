# SPDX-License-Identifier: Apache-2.0
"""Rules and scores that follow a draft say what they would say had they started from it."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpy.api.objects import (
    Affinity,
    AwsDisk,
    Container,
    ContainerPort,
    LabelSelector,
    PodAffinity,
    TopologySpreadConstraint,
    Volume,
    WeightedPodAffinityTerm,
)
from koordpy.cache.plan_draft import Draft
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.devices.family_registry import make_state
from koordpy.feasibility.round_state import RoundState
from tests.planning.node_rules import leaving, node, pod, term

HOST = "kubernetes.io/hostname"
NODES = [node("n1:9", {"zone": "a"}), node("n2:9", {"zone": "a"}), node("n3:9", {"zone": "b"}), node("n4:9")]
LABELS = st.sampled_from([{"app": "web"}, {"app": "db"}, {}])


def wishes(kind: str, key: str, labels: dict[str, str]) -> dict[str, Any]:
    one = term(key, labels)
    preferred = [WeightedPodAffinityTerm(weight=7, pod_affinity_term=one)]
    match kind:
        case "near":
            return {"affinity": Affinity(pod_affinity=PodAffinity(required=[one]))}
        case "anti":
            return {"affinity": Affinity(pod_anti_affinity=PodAffinity(required=[one]))}
        case "likes":
            return {"affinity": Affinity(pod_affinity=PodAffinity(preferred=preferred))}
        case "spread" | "soft":
            when = "DoNotSchedule" if kind == "spread" else "ScheduleAnyway"
            selector = LabelSelector(match_labels=labels)
            constraint = TopologySpreadConstraint(topology_key=key, when_unsatisfiable=when, label_selector=selector)
            return {"topology_spread_constraints": [constraint]}
        case "disk":
            return {"volumes": [Volume(name="v", aws_elastic_block_store=AwsDisk(volume_id="d"))]}
        case "port":
            port = ContainerPort(container_port=80, host_port=80)
            return {"init_containers": [Container(name="i", restart_policy="Always", ports=[port])]}
    return {}


@st.composite
def pods(draw: st.DrawFn, name: str, *, at: bool) -> Any:
    kind = draw(st.sampled_from(["", "near", "anti", "likes", "spread", "soft", "port", "disk"]))
    key = draw(st.sampled_from([HOST, "zone"]))
    where = draw(st.sampled_from(["n1", "n2", "n3", "n4"])) if at else ""
    wire = pod(name, at=where, labels=draw(LABELS), cpu="100m", **wishes(kind, key, draw(LABELS)))
    return leaving(wire) if at and draw(st.booleans()) else wire


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_figures_that_followed_a_draft_are_those_of_a_fresh_look(data: st.DataObject) -> None:
    state = make_state()
    for one in NODES:
        state.upsert(one)
    for i in range(4):
        state.upsert(data.draw(pods(f"run-{i}", at=True)))
        state.upsert(data.draw(pods(f"p-{i}", at=False)))
    snapshot = state.snapshot(0.0)
    draft, config = Draft(snapshot), KoordpyConfiguration()
    following = RoundState(draft, config)
    marks = [draft.mark()]
    for i in data.draw(st.permutations(range(4))):
        for info in snapshot.pending:
            following.of(info)
        step = data.draw(st.sampled_from(["place", "evict", "undo"]))
        if step == "place":
            draft.assign(snapshot.pods[f"default/p-{i}"], data.draw(st.integers(0, 3)))
        elif step == "evict":
            draft.evict(snapshot.pods[f"default/run-{i}"])
        else:
            draft.undo(marks[data.draw(st.integers(0, len(marks) - 1))])
        marks = [mark for mark in [*marks, draft.mark()] if mark <= draft.mark()]
    fresh = RoundState(draft, config)
    for info in snapshot.pending:
        was, now = following.of(info), fresh.of(info)
        for i in range(len(NODES)):
            assert was.verdict().of(i) == now.verdict().of(i)
        np.testing.assert_array_equal(was.slots, now.slots)
        np.testing.assert_array_equal(was.total, now.total)
