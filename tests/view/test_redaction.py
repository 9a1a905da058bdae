# SPDX-License-Identifier: Apache-2.0
"""Names of other tenants in sentences: masked by what they are, and no ordinary word with them."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from bench import objects
from koordpy.api import keys
from koordpy.api.objects import Namespace, ObjectMeta
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.devices.family_registry import make_state
from koordpy.observe.decision_log import DecisionLog
from koordpy.planner.planning_round import plan_round
from koordpy.view.live_documents import told_by
from koordpy.view.redaction import MASK, Redactor, names_of, vocabulary
from koordpy.view.tenant_view import (
    board_of,
    explanation_document,
    first_waiting,
    page_document,
    queue_document,
    subject_of,
    why_document,
)
from tests.halves import own_half
from tests.scenarios.quotas import quota
from tests.view.two_tenants import MARK, OWN, loaded, two_tenants
from tests.view.vocabulary import words

CONFIG = KoordpyConfiguration()


@pytest.fixture(scope="module")
def redactor() -> Redactor:
    """Of namespace `own`, whose pods are in quota `mine` of users `ann`; beside it namespaces, users and quotas of
    others, some with names that are ordinary words."""
    state = make_state(gpu=CONFIG.gpu)
    for i in range(2):
        state.upsert(objects.node(f"n-{i}", {"nvidia.com/gpu": "8", "cpu": "64"}))
    for name in ("own", "other", "nodes", "team-zq", "com", "quiet-space"):
        state.upsert(Namespace(metadata=ObjectMeta(name=name)))
    state.upsert(quota("mine", 1, 9))
    state.upsert(quota("theirs-1", 1, 9))
    state.upsert(quota("research", 1, 9))
    for space, name, labels in (
        ("own", "a-0", {keys.QUOTA_NAME: "mine", keys.QUOTA_USER: "ann"}),
        ("other", "b-0", {keys.QUOTA_USER: "bob"}),
        ("other", "b-1", {keys.QUOTA_USER: "nodes"}),
        ("other", "b-2", {keys.QUOTA_USER: "64"}),
        ("team-zq", "b-3", {keys.QUOTA_USER: "n-1"}),
    ):
        pod = objects.pod(name, {"cpu": "1"})
        meta = replace(pod.metadata, namespace=space, uid=f"{space}{name}", labels=labels)
        state.upsert(replace(pod, metadata=meta))
    odd = objects.pod("odd", {"cpu": "1"})
    notes = {keys.GANG_NAME: "big run, (zq) 7", keys.GANG_MIN: "2"}
    meta = replace(odd.metadata, namespace="other", uid="odd", annotations=notes)
    state.upsert(replace(odd, metadata=meta))
    snapshot = state.snapshot(0.0)
    own = [pod for pod in snapshot.pods.values() if pod.namespace == "own"]
    return Redactor(names_of(snapshot), "own", own, snapshot)


PLAIN = [
    "0/64 nodes are available: 3 Insufficient cpu, 61 node(s) didn't match Pod's node affinity/selector.",
    "gang own/train: waiting for members, 3 of minMember 4 exist",
    "Insufficient quotas, quotaName: mine, runtime: nvidia.com/gpu=7, used: nvidia.com/gpu=2",
    "runtime of quota mine left 2 more nvidia.com/gpu, and node n-1 had 3 more nvidia.com/gpu free (now 0)",
    "user ann holds 4 gpus",
    "1 node(s) had untolerated taint {topology.kubernetes.io/zone: a}",
    "64 nodes",
    "weakest link 400 GB/s",
]
MASKED = [
    ("room on 3 nodes is reserved for gang other/train until 12:00", "gang {} until 12:00"),
    ("room is reserved for pod team-zq/x-0.", "pod {}."),
    ("room is reserved for gang nowhere/none:", "gang {}:"),
    ("evicts other/b-0, own/a-0 and other/b-1", "evicts {}, own/a-0 and {}"),
    ("PodGroup/other/train is there", "PodGroup/{} is there"),
    ("gang other/a,own/b,other/c waits", "gang {},own/b,{} waits"),
    ("for:other/x", "for:{}"),
    ("(other/x)", "({})"),
    ("gang other/big run, (zq) 7 waits", "gang {} waits"),
    ("quota theirs-1 uses 4 of min 2 cpu", "quota {} uses 4 of min 2 cpu"),
    ("asks for 18 in theirs-1, 2 in mine, 3 in research", "18 in {}, 2 in mine, 3 in {}"),
    ("user bob is above its share", "user {} is above its share"),
    ("users ann, bob and nodes", "users ann, {} and {}"),
    ("quotas: [mine theirs-1]", "quotas: [mine {}]"),
    ("pods of bob. bob: 3", "pods of {}. {}: 3"),
    ('the label names "research"', 'the label names "{}"'),
    ("a quota of namespace own may not list namespace quiet-space", "namespace own may not list namespace {}"),
    ("Own/other/x", "Own/{}"),
]


@pytest.mark.parametrize("text", PLAIN)
def test_a_sentence_about_own_objects_stays_as_it_is(redactor: Redactor, text: str) -> None:
    assert redactor.text(text) == text


@pytest.mark.parametrize(("text", "wanted"), MASKED)
def test_names_of_others_are_masked(redactor: Redactor, text: str, wanted: str) -> None:
    assert wanted.format(*[MASK] * wanted.count("{}")) in redactor.text(text)


def test_a_mask_does_not_tell_whether_there_is_such_an_object(redactor: Redactor) -> None:
    there, nowhere = (redactor.text(f"gang {space}/x waits") for space in ("other", "no-such-space"))
    assert there == nowhere


@pytest.mark.parametrize("seed", own_half(range(12)))
def test_no_answer_to_one_tenant_has_a_name_of_another(seed: int, tmp_path: Path) -> None:
    ready = loaded(two_tenants(seed), tmp_path)
    snapshot = ready.state.snapshot(ready.now.timestamp())
    plan = plan_round(snapshot, ready.config)
    log = DecisionLog()
    log.record(plan, number=1, at=snapshot.now)
    said = {one.unit: one.message for one in plan.pending}
    view = board_of(snapshot, ready.config, {**log.messages, **said})
    own = [pod for pod in snapshot.pods.values() if pod.namespace == OWN]
    documents = [queue_document(view, OWN)]
    explained = 0
    for pod in own:
        subject = subject_of(view, OWN, f"pod/{pod.name}")
        first = first_waiting(view, subject)
        explains = first is not None and explained < 4
        explained += explains
        found = explanation_document(view, OWN, first) if first is not None and explains else None
        documents.append(why_document(view, OWN, subject, found))
    documents.append(page_document(view, OWN, told_by(log, source="scheduler")))
    text = json.dumps(documents)
    assert any(f"{MARK}" in key for key in snapshot.pods) and own
    assert MARK not in text, text[max(0, text.index(MARK) - 200) :][:300]
    # numbers of others are there all the same
    others = documents[0]["others"]
    waiting = sum(pod.pending for pod in snapshot.pods.values() if pod.namespace != OWN)
    assert others["pods"] + sum(row["podsOfOthers"] for row in documents[0]["units"]) == waiting


def test_the_words_of_our_sentences_are_known() -> None:
    """The list may be a little behind; then a tenant could blot out the words that it lacks."""
    now = words()
    lacking = [word for word in now if word not in vocabulary()]
    assert len(lacking) < len(now) / 20, "run `python -m tests.view.vocabulary`"
