# SPDX-License-Identifier: Apache-2.0
"""Which quota a pod is in, and what is wrong with ElasticQuotas (quota-fairness.md 1 and 7)."""

from typing import Any

import pytest
from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.custom_objects import ElasticQuota
from koordpy.api.reading_limits import QUOTA_RESOURCES
from koordpy.cache.plan_draft import Draft
from koordpy.quota.quota_book import QuotaBook, ShareQueue
from koordpy.quota.quota_owners import EVERYBODY
from koordpy.quota.quota_reading import _QuotaReading, read_quotas
from koordpy.quota.quota_tree import QuotaNode
from tests.scenarios.cluster import World, node, pod
from tests.scenarios.quotas import belongs, quota


def texts(*objects: ElasticQuota) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for fault in read_quotas(objects).faults:
        out.setdefault(fault.key, []).append(f"{fault.field}: {fault.text}")
        assert fault.remedy
    return out


PARENT = f"metadata.labels[{keys.QUOTA_PARENT}]"
ORG = quota("org", 60, 100, inner=True)

FAULTS: list[tuple[str, list[ElasticQuota], dict[str, list[str]]]] = [
    ("nothing", [ORG, quota("a", 30, 100, parent="org"), quota("b", 30, 90, parent="org")], {}),
    ("a negative quantity", [quota("a", -1, 10)], {"default/a": ["spec.min.cpu: '-1' is negative"]}),
    (
        "an unreadable one",
        [quota("a", 0, {"cpu": "lots"})],
        {
            "default/a": [
                "spec.max.cpu: 'lots' is no quantity (as in 2, 500m, 16Gi)",
                "spec.min.cpu: min names cpu, max does not",
            ]
        },
    ),
    (
        "a weight that is none",
        [quota("a", 0, 10, weight={"cpu": -3})],
        {"default/a": [f"metadata.annotations[{keys.QUOTA_WEIGHT}].cpu: '-3' is negative"]},
    ),
    (
        "a weight that is no JSON",
        [quota("a", 0, 10, weight="12")],
        {"default/a": [f"metadata.annotations[{keys.QUOTA_WEIGHT}]: '12' is not a JSON mapping of resources"]},
    ),
    (
        "a min key that max lacks",
        [quota("a", {"cpu": 1, "memory": 5}, {"cpu": 2})],
        {"default/a": ["spec.min.memory: min names memory, max does not"]},
    ),
    (
        "too many resources",
        [quota("a", {}, {f"example.com/r{i}": 1 for i in range(QUOTA_RESOURCES + 1)})],
        {"default/a": ["spec.max: 65 resources, at most 64 are read"]},
    ),
    (
        "too many weights",
        [quota("a", 0, 10, weight={f"r{i}": "x" for i in range(QUOTA_RESOURCES + 1)})],
        {"default/a": [f"metadata.annotations[{keys.QUOTA_WEIGHT}]: 65 resources, at most 64 are read"]},
    ),
    (
        "as many as are read",
        [quota("a", {}, {f"example.com/r{i}": 1 for i in range(QUOTA_RESOURCES)})],
        {},
    ),
    (
        "a number of pods",
        [quota("a", 1, {"cpu": 2, "pods": 5})],
        {"default/a": ["spec.max.pods: the number of pods is not counted, only what they request"]},
    ),
    ("min above max", [quota("a", 12, 10)], {"default/a": ["spec.min.cpu: min cpu 12 > max 10"]}),
    ("no such parent", [quota("a", 1, 10, parent="gone")], {"default/a": [f"{PARENT}: parent gone not found"]}),
    (
        "a parent that is a leaf",
        [quota("leaf", 1, 10), quota("a", 1, 10, parent="leaf")],
        {"default/a": [f'{PARENT}: parent leaf lacks the label {keys.QUOTA_IS_PARENT}: "true"']},
    ),
    (
        "a cycle",
        [quota("a", 1, 10, parent="b", inner=True), quota("b", 1, 10, parent="a", inner=True)],
        {
            "default/a": [f"{PARENT}: parents form a cycle: a -> b -> a"],
            "default/b": [f"{PARENT}: parents form a cycle: b -> a -> b"],
        },
    ),
    (
        "a quota that is its own parent",
        [quota("a", 1, 10, parent="a", inner=True)],
        {"default/a": [f"{PARENT}: parents form a cycle: a -> a"]},
    ),
    (
        "other keys than the parent's",
        [ORG, quota("a", {}, {"cpu": 9, "memory": 1}, parent="org")],
        {"default/a": ["spec.max: keys of max (cpu, memory) differ from those of parent org (cpu)"]},
    ),
    (
        "children that are promised more than the parent",
        [ORG, quota("a", 40, 90, parent="org", created=1), quota("b", 30, 90, parent="org", created=2)],
        {"default/b": ["spec.min.cpu: sum of min 70 > parent org min 60, cpu"]},
    ),
    (
        "a forced child",
        [ORG, quota("a", 40, 90, parent="org", forced=True), quota("b", 30, 90, parent="org")],
        {},
    ),
    (
        "a forced parent",
        [quota("org", 6, 90, inner=True, forced=True), quota("a", 40, 90, parent="org")],
        {},
    ),
    ("mins at the top are not summed", [quota("a", 40, 90), quota("b", 90, 90)], {}),
    (
        "a name twice",
        [quota("a", 1, 10, namespace="x", created=2), quota("a", 1, 10, namespace="y", created=1)],
        {"x/a": ["metadata.name: the name a is used by ElasticQuota y/a"]},
    ),
    (
        "a namespace twice",
        [quota("a", 1, 10, namespaces=["ml"], created=2), quota("b", 1, 10, namespaces=["ml", "x"], created=1)],
        {
            "default/a": [
                f"metadata.annotations[{keys.QUOTA_NAMESPACES}]: "
                "namespace ml is listed by ElasticQuota default/b already"
            ]
        },
    ),
    (
        "namespaces that are no list",
        [quota("a", 1, 10, namespaces="ml")],
        {"default/a": [f"metadata.annotations[{keys.QUOTA_NAMESPACES}]: 'ml' is not a JSON list of namespaces"]},
    ),
    (
        "another tree than the parent's",
        [quota("org", 6, 9, inner=True, tree="t1"), quota("a", 1, 9, parent="org", tree="t2")],
        {"default/a": [f"metadata.labels[{keys.QUOTA_TREE_ID}]: tree-id t2 is not that of parent org (t1)"]},
    ),
    (
        "the parent's tree goes without saying",
        [quota("org", 6, 9, inner=True, tree="t1"), quota("a", 1, 9, parent="org")],
        {},
    ),
    ("the root that Koordinator makes", [quota("a", 1, 10, parent=keys.ROOT_QUOTA), quota(keys.ROOT_QUOTA, 0, 0)], {}),
]


@pytest.mark.parametrize(("objects", "faults"), [f[1:] for f in FAULTS], ids=[f[0] for f in FAULTS])
def test_each_fault_is_told_once(objects: list[ElasticQuota], faults: dict[str, list[str]]) -> None:
    assert {key: sorted(lines) for key, lines in texts(*objects).items()} == faults
    assert {key: sorted(lines) for key, lines in texts(*reversed(objects)).items()} == faults


def test_a_quota_without_a_proper_parent_counts_at_the_top_with_min_0() -> None:
    tree = read_quotas([quota("a", 5, 10, parent="gone"), quota("b", 5, 10, parent="a")])
    assert [(q.name, q.parent, q.min) for q in tree.quotas.values()] == [("a", "", {}), ("b", "", {})]


def test_min_above_max_counts_as_max() -> None:
    tree = read_quotas([quota("a", 12, 10)])
    assert tree.quotas["a"].min == {"cpu": 10_000}


def test_a_weight_is_max_unless_it_is_given() -> None:
    tree = read_quotas(
        [quota("a", 1, {"cpu": 10, "memory": 7}, weight={"cpu": "1500m"}), quota("b", 1, 10, weight="?")]
    )
    assert tree.quotas["a"].weight == {"cpu": 1500, "memory": 7000}
    assert tree.quotas["b"].weight == {"cpu": 10_000}


def test_paths_and_children() -> None:
    tree = read_quotas(
        [
            quota("org", 6, 9, inner=True),
            quota("team", 1, 9, parent="org", inner=True),
            quota("a", 1, 9, parent="team"),
            quota("b", 0, 9, parent="org"),
            quota("c", 0, 9),
        ]
    )
    assert tree.path("a") == ("org", "team", "a")
    assert tree.path(keys.DEFAULT_QUOTA) == ()
    assert tree.children["org"] == ("b", "team")


# -- pods -------------------------------------------------------------------------------------------------------------


def owned(name: str, namespace: str, labels: dict[str, str] | None = None, **settings: Any) -> Any:
    from msgspec.structs import replace

    made = pod(name, labels=labels, **settings)
    return replace(made, metadata=replace(made.metadata, namespace=namespace))


PLACES = [
    ("by label", owned("p", "ml", belongs("shared")), "shared", "shared", ShareQueue("shared")),
    ("named like the namespace", owned("p", "ml"), "ml", "ml", ShareQueue("ml")),
    ("named like another namespace", owned("p", "shared"), keys.DEFAULT_QUOTA, "shared", ShareQueue("", "shared")),
    ("listed", owned("p", "web"), "shared", "shared", ShareQueue("shared")),
    ("of the system", owned("p", "kube-system"), keys.SYSTEM_QUOTA, "kube-system", ShareQueue("", "kube-system")),
    ("nobody's", owned("p", "free"), keys.DEFAULT_QUOTA, "free", ShareQueue("", "free")),
    ("of an unknown quota", owned("p", "ml", belongs("typo")), keys.DEFAULT_QUOTA, "ml", ShareQueue("", "ml")),
    ("of a user", owned("p", "free", belongs(user="bob")), keys.DEFAULT_QUOTA, "bob", ShareQueue("", "bob")),
    ("of a user in a quota", owned("p", "ml", belongs(user="bob")), "ml", "bob", ShareQueue("ml")),
]


@pytest.mark.parametrize(("wire", "name", "user", "queue"), [p[1:] for p in PLACES], ids=[p[0] for p in PLACES])
def test_where_a_pod_belongs(wire: Any, name: str, user: str, queue: ShareQueue) -> None:
    quotas = [quota("ml", 0, 9, namespace="ml"), quota("shared", 0, 9, namespaces=["web", "ml"])]
    snapshot = World().add(node("n1:4"), quotas, wire).snapshot()
    info = snapshot.pending[0]
    found = snapshot.quotas
    assert (found.quota_of(info), found.user_of(info), found.queue_of(info)) == (name, user, queue)
    assert found.unknown(info) == ("typo" if "typo" in str(wire.metadata.labels) else "")


def test_a_pod_moves_over_when_its_quota_appears_and_back_when_it_goes() -> None:
    world = World().add(node("n1:4"), pod("p", labels=belongs("team"), at="n1"), pod("q", labels=belongs("team")))
    assert dict(world.snapshot().quotas.used) == {keys.DEFAULT_QUOTA: {"cpu": 1000, "pods": 1}}
    world.add(quota("team", 0, 9))
    quotas = world.snapshot().quotas
    assert (quotas.used["team"]["cpu"], quotas.own_waiting["team"]["cpu"]) == (1000, 1000)
    world.state.delete(ElasticQuota, "default/team")
    assert "team" not in world.snapshot().quotas.used


def test_use_follows_pods_as_they_come_and_go() -> None:
    world = World().add(node("n1:4"), quota("org", 0, 9, inner=True), quota("a", 0, 9, parent="org"))

    def used() -> tuple[int, int, int]:
        quotas = world.snapshot().quotas
        return (
            quotas.used.get("org", {}).get("cpu", 0),
            quotas.rigid_used.get("a", {}).get("cpu", 0),
            quotas.own_waiting.get("a", {}).get("cpu", 0),
        )

    world.add(pod("p", labels=belongs("a"), cpu="2"), pod("r", labels=belongs("a", rigid=True), at="n1"))
    assert used() == (1000, 1000, 2000)
    world.state.assume("default/p", "n1")
    assert used() == (3000, 1000, 0)
    world.state.forget("default/p")
    assert used() == (1000, 1000, 2000)
    world.add(pod("r", labels=belongs("a", rigid=True), at="n1", phase="Succeeded"))
    assert used() == (0, 0, 2000)
    world.add(pod("p", labels=belongs("a"), cpu="3"))
    assert used() == (0, 0, 3000)


def test_a_draft_counts_what_it_places_and_takes_away_and_undoes_it() -> None:
    world = World().add(node("n1:4"), quota("org", 0, 9, inner=True), quota("a", 0, 9, parent="org"))
    world.add(pod("p", labels=belongs("a", rigid=True), cpu="2"), pod("r", labels=belongs("a"), at="n1"))
    snapshot = world.snapshot()
    draft = Draft(snapshot)
    use = draft.quotas
    mark = draft.mark()
    draft.assign(snapshot.pods["default/p"], 0)
    assert (use.used("org", "cpu"), use.used("a", "cpu"), use.rigid_used("org", "cpu")) == (3000, 3000, 2000)
    draft.evict(snapshot.pods["default/r"])
    assert (use.used("a", "cpu"), use.user("a", "cpu"), use.queue(ShareQueue("a"), "cpu")) == (2000, 2000, 2000)
    draft.undo(mark)
    assert (use.used("org", "cpu"), use.rigid_used("a", "cpu"), use.user("a", "cpu")) == (1000, 0, 1000)


def test_the_total_leaves_out_nodes_that_are_being_deleted_and_counts_cordoned_ones() -> None:
    from msgspec.structs import replace

    going = node("n2:4")
    going = replace(going, metadata=replace(going.metadata, deletion_timestamp="2026-01-01T00:00:00Z"))
    cordoned = node("n3:8")
    cordoned = replace(cordoned, spec=replace(cordoned.spec, unschedulable=True))
    world = World().add(node("n1:2"), going, cordoned)
    assert world.snapshot().quotas.total["cpu"] == 10_000
    world.add(node("n2:4"))
    assert world.snapshot().quotas.total["cpu"] == 14_000


def test_a_quota_named_like_its_namespace_has_it_before_one_that_lists_it_and_the_lister_is_told() -> None:
    lister, own = (
        quota("a", 1, 10, namespaces=["ml", "other"], created=1),
        quota("ml", 1, 10, namespace="ml", created=2),
    )
    tree = read_quotas([lister, own])
    assert (tree.faults, tree.namespaces) == ((), {"ml": "ml", "other": "a"})
    told = f"annotation {keys.QUOTA_NAMESPACES}: namespace ml belongs to ElasticQuota ml/ml"
    assert {name: one.doubts for name, one in tree.quotas.items()} == {"a": (told,), "ml": ()}
    listed_by_itself = read_quotas([quota("ml", 1, 10, namespace="ml", namespaces=["ml"])])
    assert listed_by_itself.quotas["ml"].doubts == ()


def test_what_says_nothing_of_quotas_leaves_the_tree_as_it_is_and_one_change_reads_one_quota(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def made(name: str, most: int, **notes: str) -> ElasticQuota:
        one = quota(name, 0, most)
        return replace(one, metadata=replace(one.metadata, annotations=notes))

    book = QuotaBook(EVERYBODY)
    for i in range(20):
        book.put(made(f"q{i}", 9))
    tree = book.tree
    book.put(made("q3", 9, **{"example.com/turn": "1"}))
    assert book.tree is tree
    misspelt = {f"{keys.QUOTA_PREFIX}shared-wight": "1"}
    book.put(made("q3", 9, **misspelt))
    assert book.tree.quotas["q3"].doubts
    read: list[str] = []
    whole = _QuotaReading._read

    def counting(self: _QuotaReading, key: str, obj: ElasticQuota) -> QuotaNode:
        read.append(key)
        return whole(self, key, obj)

    monkeypatch.setattr(_QuotaReading, "_read", counting)
    book.put(made("q4", 7))
    assert book.tree.quotas["q4"].max == {"cpu": 7000}
    assert read == ["default/q4"]
    book.drop("default/q4")
    book.put(made("q4", 5, **misspelt))
    assert book.tree.quotas["q4"].max == {"cpu": 5000}
    assert len(book.tree.quotas) == 20


def test_in_a_quota_that_is_not_read_whole_nothing_starts() -> None:
    many = {"cpu": 8, **{f"example.com/r{i}": 1 for i in range(QUOTA_RESOURCES)}}
    world = World().add(node("n1:8"), quota("a", 0, many), pod("p", labels=belongs("a")))
    plan = world.plan()
    assert not plan.placements
    assert "quota a cannot be read: no more pods start in it" in plan.pending[0].message
