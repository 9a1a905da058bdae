# SPDX-License-Identifier: Apache-2.0
"""What a tenant says of quotas decides about others only where the configuration lets it."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from koordpy.api import keys, reading_limits
from koordpy.api.custom_objects import ElasticQuota
from koordpy.config.configuration import Fairness, KoordpyConfiguration, Quota
from koordpy.devices.family_registry import make_state
from koordpy.fairness.quota_runtime import all_quota_amounts
from koordpy.planner.planning_round import plan_round
from koordpy.quota.quota_owners import EVERYBODY
from koordpy.quota.quota_reading import read_quotas
from koordpy.simulation.simulated_rounds import SimulationResult, simulate
from tests.scenarios.cluster import World, node, pod
from tests.scenarios.quotas import belongs, quota

NOW = datetime(2026, 1, 1, 1, tzinfo=UTC)
PARENT = f"metadata.labels[{keys.QUOTA_PARENT}]"
SPACES = f"metadata.annotations[{keys.QUOTA_NAMESPACES}]"
LISTED = Quota(pod_labels="listed")


def of(namespace: str, name: str, **settings: Any) -> Any:
    """A pod of a namespace."""
    made = pod(name, **settings)
    return replace(made, metadata=replace(made.metadata, namespace=namespace))


def opened(one: ElasticQuota, *namespaces: str) -> ElasticQuota:
    """The quota, with children from these namespaces."""
    notes = {**one.metadata.annotations, keys.QUOTA_CHILDREN_FROM: json.dumps(namespaces)}
    return replace(one, metadata=replace(one.metadata, annotations=notes))


def run(objects: Sequence[Any], settings: Quota, **more: Any) -> SimulationResult:
    state = World(make_state(quota=settings)).add(*objects).state
    config = KoordpyConfiguration(quota=settings, **more)
    return simulate(state, config, planner=plan_round, now=NOW, rounds=20)


def bound(result: SimulationResult) -> set[str]:
    return {one.pod_key for one in result.bindings}


def told(result: SimulationResult, about: str) -> list[str]:
    return [text for name, text in result.warnings if name == about]


def trusting(*namespaces: str) -> Quota:
    return Quota(trusted_namespaces=namespaces)


def counting(*namespaces: str) -> Quota:
    return Quota(namespaces=namespaces)


HONEST_POD = of("honest", "p")
ADMIN_ONLY = "ElasticQuotas of namespace evil are ignored"
NO_TOP = f"{PARENT}: is missing"

# -- a quota that lists somebody else's namespace --------------------------------------------------------------------

GRAB = quota("grab", 0, 0, namespace="evil", namespaces=["honest"])


@pytest.mark.parametrize(
    ("settings", "starts", "said"),
    [
        pytest.param(EVERYBODY, False, "", id="everybody is believed"),
        pytest.param(counting("admin"), True, ADMIN_ONLY, id="quotas of admin count"),
        pytest.param(trusting("admin"), True, NO_TOP, id="quotas of admin are trusted"),
        pytest.param(trusting("evil"), False, "", id="quotas of evil are"),
    ],
)
def test_a_quota_takes_pods_of_namespaces_only_that_are_its_own_to_list(
    settings: Quota, starts: bool, said: str
) -> None:
    result = run([node("n1:8"), GRAB, HONEST_POD], settings)
    assert bound(result) == ({"honest/p"} if starts else set())
    assert [said in text for text in told(result, "ElasticQuota/evil/grab")] == ([True] if said else [])


def test_a_quota_below_an_open_parent_lists_its_own_namespace_and_no_other() -> None:
    org = opened(quota("org", 0, 9, inner=True, namespace="admin"), "evil")
    below = quota("below", 0, 0, parent="org", namespace="evil", namespaces=["evil", "honest"])
    result = run([node("n1:8"), org, below, HONEST_POD, of("evil", "own")], trusting("admin"))
    assert bound(result) == {"honest/p"}
    assert result.warnings and told(result, "ElasticQuota/evil/below") == [
        f"{SPACES}: a quota of namespace evil may not list namespace honest (it is ignored: only quotas "
        "of the configuration's quota.trustedNamespaces may list other namespaces)"
    ]


# -- a quota of somebody else's name ---------------------------------------------------------------------------------

TWINS = (quota("teamx", 0, 0, namespace="evil", created=0), quota("teamx", 8, 8, namespace="honest", created=1))


@pytest.mark.parametrize(
    ("settings", "starts"),
    [
        pytest.param(EVERYBODY, False, id="the older one"),
        pytest.param(counting("evil", "honest"), False, id="the order says evil"),
        pytest.param(counting("honest", "evil"), True, id="the order says honest"),
        pytest.param(counting("honest"), True, id="only one counts"),
        pytest.param(trusting("honest"), True, id="only one is trusted"),
    ],
)
def test_of_two_quotas_of_a_name_counts_what_the_configuration_names_first(settings: Quota, starts: bool) -> None:
    wanted = of("honest", "p", labels=belongs("teamx"))
    result = run([node("n1:8"), *TWINS, wanted], settings)
    assert bound(result) == ({"honest/p"} if starts else set())
    loser = "evil" if starts else "honest"
    assert len(told(result, f"ElasticQuota/{loser}/teamx")) == 1
    assert not told(result, f"ElasticQuota/{'honest' if starts else 'evil'}/teamx")


# -- a quota below somebody else's -----------------------------------------------------------------------------------

ORG = quota("org", 8, 8, inner=True, namespace="honest")
TEAM = quota("team", 0, 8, parent="org", namespace="honest")
SNEAK = quota("sneak", 8, 8, parent="org", namespace="evil", created=1)
CLOSED = f"{PARENT}: parent honest/org does not allow children from namespace evil"


@pytest.mark.parametrize(
    ("org", "settings", "stays", "said"),
    [
        pytest.param(ORG, EVERYBODY, False, "", id="everybody is believed"),
        pytest.param(ORG, trusting("honest"), True, CLOSED, id="nobody is allowed in"),
        pytest.param(opened(ORG, "other"), trusting("honest"), True, CLOSED, id="another namespace is"),
        pytest.param(opened(ORG, "evil"), trusting("honest"), False, "", id="it is"),
        pytest.param(ORG, counting("honest"), True, ADMIN_ONLY, id="quotas of honest count"),
    ],
)
def test_a_parent_has_children_of_its_namespace_and_of_those_that_it_allows(
    org: ElasticQuota, settings: Quota, stays: bool, said: str
) -> None:
    running = of("honest", "r", labels=belongs("team"), cpu="8", at="n1")
    taker = of("evil", "t", labels=belongs("sneak"), cpu="8")
    result = run([node("n1:8"), org, TEAM, SNEAK, running, taker], settings, fairness=Fairness(reclaim="quotas"))
    assert [one.eviction.pod_key for one in result.evictions] == ([] if stays else ["honest/r"])
    assert [said in text for text in told(result, "ElasticQuota/evil/sneak")] == ([True] if said else [])


def test_rights_go_down_a_tree_and_a_circle_without_a_trusted_quota_does_not_count() -> None:
    """Each quota of evil names a parent; what counts is what hangs, link by link, on a trusted one that lets it in."""
    org = opened(quota("org", 8, 8, inner=True, namespace="admin"), "evil")
    quotas = [
        quota("leaf", 1, 8, parent="inner", namespace="evil"),
        quota("inner", 1, 8, parent="org", inner=True, namespace="evil", created=1),
        quota("left", 0, 8, parent="right", inner=True, namespace="evil"),
        quota("right", 0, 8, parent="left", inner=True, namespace="evil"),
        quota("self", 0, 8, parent="self", inner=True, namespace="evil"),
        quota("guest", 0, 8, parent="inner", namespace="other"),
        quota("orphan", 0, 8, parent="gone", namespace="evil"),
        org,
    ]
    for order in (quotas, quotas[::-1]):
        tree = read_quotas(order, trusting("admin"))
        assert list(tree.quotas) == ["inner", "leaf", "org"]
        assert tree.path("leaf") == ("org", "inner", "leaf")
        assert {fault.key for fault in tree.faults} == {f"evil/{n}" for n in ("left", "right", "self", "orphan")} | {
            "other/guest"
        }


def test_a_quota_without_a_right_holds_no_name() -> None:
    """An older one that nobody lets in does not keep the name from a younger one that is let in."""
    org = opened(quota("org", 8, 8, inner=True, namespace="admin"), "late")
    quotas = [
        quota("q", 0, 8, parent="org", namespace="early"),
        quota("q", 0, 8, parent="org", namespace="late", created=9),
    ]
    assert read_quotas([org, *quotas], trusting("admin")).quotas["q"].key == "late/q"


# -- pods that name somebody else's quota ----------------------------------------------------------------------------

SMALL = quota("small", 0, 2, namespace="honest")
GUEST = quota("small", 0, 2, namespace="honest", namespaces=["evil"])
TAKEN = of("evil", "e", labels=belongs("small"), cpu="2", at="n1")


@pytest.mark.parametrize(
    ("team", "settings", "starts"),
    [
        pytest.param(SMALL, EVERYBODY, False, id="anybody may"),
        pytest.param(SMALL, LISTED, True, id="its namespace may"),
        pytest.param(GUEST, LISTED, False, id="a guest may"),
    ],
)
def test_a_quota_is_filled_by_pods_of_namespaces_only_that_may_name_it(
    team: ElasticQuota, settings: Quota, starts: bool
) -> None:
    wanted = of("honest", "p", labels=belongs("small"))
    assert bound(run([node("n1:8"), team, TAKEN, wanted], settings)) == ({"honest/p"} if starts else set())


@pytest.mark.parametrize("label", ["unknown", "honest", keys.DEFAULT_QUOTA, keys.SYSTEM_QUOTA, keys.ROOT_QUOTA])
@pytest.mark.parametrize(("settings", "starts"), [(EVERYBODY, True), (LISTED, False)], ids=["any", "listed"])
def test_a_label_leads_out_of_the_quota_of_a_namespace_only_where_any_label_counts(
    label: str, settings: Quota, starts: bool
) -> None:
    quotas = [quota("cap", 0, 0, namespace="admin", namespaces=["evil"]), quota("honest", 0, 9, namespace="honest")]
    result = run([node("n1:8"), *quotas, of("evil", "p", labels=belongs(label))], settings)
    assert bound(result) == ({"evil/p"} if starts else set())
    assert len(told(result, "Pod/evil/p")) == (not starts or label in ("unknown", keys.ROOT_QUOTA))


def test_a_label_without_a_right_is_told_on_the_pod() -> None:
    wanted = of("evil", "p", labels=belongs("small"))
    result = run([node("n1:8"), SMALL, wanted], LISTED)
    said = "pods of namespace evil may not use quota small: the pod counts in quota koordinator-default-quota"
    assert told(result, "Pod/evil/p") == [f"label {keys.QUOTA_NAME}: {said}"]


def test_several_quotas_may_list_a_namespace_where_listing_says_who_may_name_them() -> None:
    train = quota("train", 0, 4, namespace="admin", namespaces=["team"])
    serve = quota("serve", 0, 4, namespace="admin", namespaces=["team"], created=1)
    tree = read_quotas([serve, train], LISTED)
    assert not tree.faults
    assert [tree.quota_of("team", label) for label in ("", "train", "serve")] == ["train", "train", "serve"]
    assert [fault.key for fault in read_quotas([serve, train]).faults] == ["admin/serve"]


# -- users, and who is never evicted ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "user"),
    [
        (EVERYBODY, "honest"),
        (Quota(label_namespaces=("portal",)), "evil"),
        (Quota(label_namespaces=("evil",)), "honest"),
    ],
    ids=["any", "portal's", "evil's"],
)
def test_pods_name_their_user_where_labels_of_their_namespace_count(settings: Quota, user: str) -> None:
    world = World(make_state(quota=settings)).add(node("n1:8"), of("evil", "p", labels=belongs(user="honest")))
    snapshot = world.snapshot()
    assert snapshot.quotas.user_of(snapshot.pending[0]) == user


@pytest.mark.parametrize("label", [{keys.QUOTA_PREEMPTIBLE: "false"}, {keys.DISABLE_PREEMPTIBLE: "true"}])
@pytest.mark.parametrize(
    ("settings", "goes"),
    [(EVERYBODY, False), (Quota(label_namespaces=("portal",)), True), (Quota(label_namespaces=("evil",)), False)],
    ids=["any", "portal's", "evil's"],
)
def test_pods_are_shielded_by_a_label_where_labels_of_their_namespace_count(
    label: dict[str, str], settings: Quota, goes: bool
) -> None:
    squatter = of("evil", "e", labels=label, cpu="8", at="n1")
    result = run([node("n1:8"), squatter, of("honest", "p", cpu="8", priority=100)], settings)
    assert [one.eviction.pod_key for one in result.evictions] == (["evil/e"] if goes else [])


def test_labels_that_do_not_count_are_told_on_the_pod() -> None:
    labels = {**belongs(user="honest", rigid=True), keys.DISABLE_PREEMPTIBLE: "true"}
    result = run([node("n1:8"), of("evil", "p", labels=labels)], Quota(label_namespaces=("portal",)))
    assert told(result, "Pod/evil/p") == [
        f"label {key} is ignored on pods of namespace evil"
        for key in (keys.QUOTA_PREEMPTIBLE, keys.QUOTA_USER, keys.DISABLE_PREEMPTIBLE)
    ]


# -- how much of it is read ------------------------------------------------------------------------------------------


def lists(notes: dict[str, str]) -> ElasticQuota:
    one = quota("long", 0, 9, namespace="evil")
    return replace(one, metadata=replace(one.metadata, annotations=notes))


@pytest.mark.parametrize("key", [keys.QUOTA_NAMESPACES, keys.QUOTA_CHILDREN_FROM, keys.QUOTA_WEIGHT, keys.QUOTA_TOTAL])
def test_an_annotation_of_a_quota_has_the_limit_of_any_json(key: str) -> None:
    text = "[]" if key in (keys.QUOTA_NAMESPACES, keys.QUOTA_CHILDREN_FROM) else "{}"
    assert not read_quotas([lists({key: text.ljust(reading_limits.JSON_BYTES)})]).faults
    (fault,) = read_quotas([lists({key: text.ljust(reading_limits.JSON_BYTES + 1)})]).faults
    assert fault.text == "65537 bytes, at most 65536 are read"


def test_whom_a_parent_allows_is_read_once_for_all_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []

    def counting_reads(text: str) -> object:
        reads.append(text)
        return json.loads(text)

    monkeypatch.setattr("koordpy.quota.quota_owners.json_in", counting_reads)
    org = opened(quota("org", 0, 9, inner=True, namespace="admin"), "evil")
    below = [quota(f"q{i}", 0, 1, parent="org", namespace="evil") for i in range(20)]
    for _ in range(3):
        assert len(read_quotas([org, *below], trusting("admin")).quotas) == 21
    assert reads == ['["evil"]']


# -- a hostile tenant who may write ElasticQuotas in a namespace of its own -------------------------------------------

TEAM_OWN = quota("honest", 8, 8, namespace="honest")
"""The quota that is named like its namespace: pods there are in it without a label."""
OTHERS_LIST = quota("cap", 8, 8, namespace="admin", namespaces=["honest"])
LATE = {"namespace": "evil", "created": 9}


@pytest.mark.parametrize("there", [TEAM_OWN, OTHERS_LIST], ids=["named like the namespace", "lists the namespace"])
@pytest.mark.parametrize(
    "hostile",
    [
        pytest.param(quota("honest", 0, 0, **LATE), id="has its name"),
        pytest.param(quota("cap", 0, 0, **LATE), id="has the name of the quota that lists it"),
        pytest.param(quota("grab", 0, 0, namespaces=["honest"], **LATE), id="lists its namespace"),
    ],
)
def test_a_later_quota_takes_no_pods_from_a_quota_that_is_there(there: ElasticQuota, hostile: ElasticQuota) -> None:
    """Also with the open default: what is written first counts."""
    result = run([node("n1:8"), there, hostile, of("honest", "p", cpu="8")], EVERYBODY)
    assert bound(result) == {"honest/p"}


MINE = of("honest", "r", labels=belongs("honest"), cpu="8", at="n1")
GREEDY = quota("greedy", 1000, 1000, **LATE)
TAKER = of("evil", "t", labels=belongs("greedy"), cpu="8")


@pytest.mark.parametrize(
    ("settings", "runtime"),
    [
        pytest.param(EVERYBODY, 63, id="everybody is believed"),
        pytest.param(trusting("honest"), 8000, id="quotas of honest are trusted"),
        pytest.param(counting("honest"), 8000, id="quotas of honest count"),
    ],
)
def test_a_large_min_shrinks_guarantees_of_others_only_where_its_namespace_is_trusted(
    settings: Quota, runtime: int
) -> None:
    """The guarantee of honest is scaled to floor(8000 * 8 / 1008) milli-cores; what runs within its min stays."""
    wanted = of("honest", "p", labels=belongs("honest"), cpu="8")
    world = World(make_state(quota=settings)).add(node("n1:8"), TEAM_OWN, GREEDY, wanted, TAKER)
    assert all_quota_amounts(world.snapshot().quotas, settings)["honest"].runtime["cpu"] == runtime
    assert not run([node("n1:8"), TEAM_OWN, GREEDY, MINE, TAKER], settings).evictions
