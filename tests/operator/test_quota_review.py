# SPDX-License-Identifier: Apache-2.0
"""Which changes of ElasticQuotas the webhook refuses, and why (quota-fairness.md 7)."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.custom_objects import ElasticQuota
from koordpy.config.configuration import Quota
from koordpy.operator.gpu_injection import ReviewError
from koordpy.operator.quota_review import objection, read_change
from koordpy.quota.quota_owners import EVERYBODY
from tests.scenarios.quotas import GPU, quota

ORG = quota("org", 10, 20, inner=True)
KID = quota("kid", 6, 20, parent="org", created=1)
LATE = quota("late", 4, 20, parent="org", created=2)
FREE = quota("free", 1, 9, created=3)
TREE = (ORG, KID, LATE, FREE)


def by_key(quotas: Sequence[ElasticQuota]) -> dict[str, ElasticQuota]:
    return {f"{one.metadata.namespace}/{one.metadata.name}": one for one in quotas}


def without(*names: str) -> tuple[ElasticQuota, ...]:
    return tuple(one for one in TREE if one.metadata.name not in names)


def said(
    before: ElasticQuota | None,
    after: ElasticQuota | None,
    quotas: Sequence[ElasticQuota] = TREE,
    pods: Mapping[str, int] | None = None,
    settings: Quota = EVERYBODY,
) -> str:
    """The objection to a change, through an AdmissionReview."""
    one = after or before
    assert one is not None
    request: dict[str, Any] = {"uid": "u", "operation": "UPDATE", "namespace": one.metadata.namespace}
    if before is None:
        request["operation"] = "CREATE"
    elif after is None:
        request["operation"] = "DELETE"
    for field, one in (("oldObject", before), ("object", after)):
        request[field] = msgspec.to_builtins(one) if one is not None else None
    uid, change = read_change(json.dumps({"request": request}).encode())
    assert uid == "u"
    return objection(change, by_key(quotas), lambda name: (pods or {}).get(name, 0), settings)


PARENT, IS_PARENT, TREE_ID = (f"metadata.labels[{keys.QUOTA_PREFIX}{x}]" for x in ("parent", "is-parent", "tree-id"))

REFUSED = {
    "a parent that is not there": (None, quota("new", 0, 9, parent="nope"), f"{PARENT}: parent nope not found"),
    "a parent that is a leaf": (None, quota("new", 0, 9, parent="free"), "parent free lacks the label"),
    "its own parent": (None, quota("new", 0, 9, parent="new", inner=True), "parents form a cycle: new -> new"),
    "a cycle with what is there": (ORG, quota("org", 10, 20, inner=True, parent="kid"), "cycle"),
    "other keys than the parent": (None, quota("new", {}, {GPU: 1}, parent="org"), "differ from those of parent org"),
    "mins beyond the parent's": (
        None,
        quota("new", 1, 20, parent="org"),
        "spec.min.cpu: sum of min 11 > parent org min 10, cpu",
    ),
    "a parent's min below its children's": (
        ORG,
        quota("org", 9, 20, inner=True),
        "ElasticQuota default/late: spec.min.cpu: sum of min 10 > parent org min 9, cpu",
    ),
    "min above max": (FREE, quota("free", 10, 9, created=3), "spec.min.cpu: min cpu 10 > max 9"),
    "a negative quantity": (FREE, quota("free", 1, {"cpu": "-9"}, created=3), "spec.max.cpu: '-9' is negative"),
    "a name that is taken": (None, quota("free", 0, 1, namespace="b"), "the name free is used by"),
    "another tree-id": (FREE, quota("free", 1, 9, tree="t", created=3), f"{TREE_ID}: cannot be changed"),
    "a leaf's tree-id that is not its parent's": (None, quota("new", 0, 20, parent="org", tree="t"), "is not that of"),
    "no parent any more while it has children": (
        ORG,
        quota("org", 10, 20),
        f"{IS_PARENT}: quota org has children: kid, late",
    ),
    "a quota with children": (ORG, None, "quota org has children: kid, late"),
    "a built-in quota": (quota(keys.SYSTEM_QUOTA, 0, 1), None, "a built-in quota cannot be deleted"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_is(case: str) -> None:
    before, after, text = REFUSED[case]
    assert text in said(before, after)


ALLOWED = {
    "a new leaf within its parent": (None, quota("new", 0, 20, parent="org")),
    "a new top quota whatever the others ask": (None, quota("new", 99, 99)),
    "mins beyond the parent's where that is forced": (None, quota("new", 9, 20, parent="org", forced=True)),
    "a larger min of the parent": (ORG, quota("org", 12, 20, inner=True)),
    "a leaf that moves to the top": (KID, quota("kid", 6, 20, created=1)),
    "a leaf that goes": (KID, None),
    "an empty parent that becomes a leaf": (
        quota("empty", 0, 9, inner=True),
        quota("empty", 0, 9),
    ),
}


@pytest.mark.parametrize("case", ALLOWED)
def test_allowed_is(case: str) -> None:
    assert said(*ALLOWED[case]) == ""


def test_a_namespace_is_listed_once() -> None:
    there = quota("a", 0, 9, namespaces=["ml"])
    assert "namespace ml is listed by ElasticQuota default/a" in said(
        None, quota("b", 0, 9, namespaces=["ml"]), [there]
    )


def test_a_quota_with_pods_stays_and_stays_a_leaf() -> None:
    assert said(FREE, None, pods={"free": 3}) == "quota free has pods (3)"
    parent = quota("free", 1, 9, inner=True, created=3)
    assert said(FREE, parent, pods={"free": 3}).startswith(f"{IS_PARENT}: quota free has pods (3)")
    assert said(FREE, parent) == ""


def test_where_another_of_the_name_remains_its_children_and_pods_do_too() -> None:
    twin = quota("org", 1, 2, namespace="b")
    request = {"uid": "u", "operation": "DELETE", "namespace": "b", "oldObject": msgspec.to_builtins(twin)}
    change = read_change(json.dumps({"request": request}).encode())[1]
    assert objection(change, by_key([*TREE, twin]), lambda name: 5) == ""


EVIL = quota("evil", 0, 20, parent="org", namespace="evil")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (EVERYBODY, ""),
        (Quota(namespaces=("default",)), "metadata.namespace: ElasticQuotas of namespace evil are ignored"),
        (Quota(trusted_namespaces=("default",)), f"{PARENT}: parent default/org does not allow children from"),
        (Quota(trusted_namespaces=("default", "evil")), ""),
    ],
)
def test_a_quota_without_a_right_is_refused_and_one_that_is_there_may_go(settings: Quota, text: str) -> None:
    said_of_new = said(None, EVIL, settings=settings)
    assert said_of_new.startswith(text) and bool(said_of_new) == bool(text)
    gone = said(EVIL, None, [*TREE, EVIL], {"evil": 3}, settings)
    assert gone == ("" if text else "quota evil has pods (3)")


def test_a_quota_with_a_built_in_name_can_be_deleted_where_quotas_do_not_count() -> None:
    root = quota(keys.ROOT_QUOTA, 0, 1, namespace="evil")
    assert said(root, None, [*TREE, root], settings=Quota(namespaces=("default",))) == ""
    assert said(root, None, [*TREE, root]) == "a built-in quota cannot be deleted"


BROKEN = (quota("org", 5, 20, inner=True), KID, LATE)


def test_a_tree_that_is_bad_already_may_get_better_and_not_worse() -> None:
    kid = by_key(BROKEN)["default/kid"]
    assert "sum of min 11 > parent org min 5" in said(kid, quota("kid", 7, 20, parent="org", created=1), BROKEN)
    assert said(kid, quota("kid", 5, 20, parent="org", created=1), BROKEN) == ""
    assert said(kid, quota("kid", 6, 20, parent="org", lends=False, created=1), BROKEN) == ""
    assert said(BROKEN[0], quota("org", 8, 20, inner=True), BROKEN) == ""
    assert "sum of min 10 > parent org min 4" in said(BROKEN[0], quota("org", 4, 20, inner=True), BROKEN)


def test_one_unreadable_value_does_not_become_another() -> None:
    bad, worse = quota("a", 0, {"cpu": "abc"}), quota("a", 0, {"cpu": "-1"})
    assert "is negative" in said(bad, worse, [bad])
    assert said(bad, quota("a", 0, {"cpu": "abc"}, lends=False), [bad]) == ""


def test_what_is_on_its_way_out_and_what_stays_the_same_pass() -> None:
    bad = quota("a", 5, 1, parent="nope")
    going = replace(bad, metadata=replace(bad.metadata, deletion_timestamp="2026-01-01T00:00:00Z"))
    assert said(quota("a", 1, 5), going, [quota("a", 1, 5)]) == ""
    assert said(bad, replace(bad, metadata=replace(bad.metadata, resource_version="7")), [bad]) == ""


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ([], "array"),
        ({}, "uid"),
        ({"request": {"uid": "u"}}, "operation"),
        ({"request": {"uid": "u", "operation": "CONNECT"}}, "operation"),
        ({"request": {"uid": "u", "operation": "CREATE"}}, "object"),
        ({"request": {"uid": "u", "operation": "DELETE", "object": {}}}, "oldObject"),
        ({"request": {"uid": "u", "operation": "CREATE", "object": {"spec": []}}}, "object"),
    ],
)
def test_what_is_no_review_of_a_quota_is_told(body: Any, what: str) -> None:
    with pytest.raises(ReviewError, match=what):
        read_change(json.dumps(body).encode())


@pytest.mark.parametrize(
    ("hostile", "text"),
    [
        (quota("team", 0, 0, namespace="evil"), "the name team is used by ElasticQuota honest/team"),
        (quota("grab", 0, 0, namespace="evil", namespaces=["shared"]), "namespace shared is listed by ElasticQuota"),
        (quota("deep", 9, 9, namespace="evil", parent="org"), "sum of min 17 > parent org min 8, cpu"),
        (quota("top", 9, 9, namespace="evil"), ""),
    ],
    ids=["a name that is taken", "a namespace that is listed", "more than a parent has", "a quota at the top"],
)
def test_what_a_hostile_tenant_may_write_with_the_open_default(hostile: ElasticQuota, text: str) -> None:
    """A large min at the top is no fault of the tree: only quota.trustedNamespaces refuses it."""
    there = [
        quota("org", 8, 20, inner=True, namespace="honest"),
        quota("team", 8, 8, parent="org", namespace="honest", namespaces=["shared"]),
    ]
    found = said(None, hostile, there)
    assert text in found and bool(found) == bool(text)
    trusted = Quota(trusted_namespaces=("honest",))
    assert said(None, hostile, there, settings=trusted)
