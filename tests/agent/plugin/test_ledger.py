# SPDX-License-Identifier: Apache-2.0
"""Who gets which GPUs: rules one by one. Whole histories are in test_histories."""

import pytest

from koordpy.agent.plugin.delivery_ledger import (
    Delivery,
    Ledger,
    NoCandidateError,
    Part,
    ReservedGpus,
    StillHeldError,
    View,
)


def part(name: str, *gpus: str, once: bool = False) -> Part:
    return Part(name, name, len(gpus), gpus, once)


def pod(name: str, *parts: Part | str, created: float = 0.0, settled: bool = False) -> ReservedGpus:
    """With one container of the GPUs that are given, or with these parts."""
    gpus = tuple(one for one in parts if isinstance(one, str))
    own = tuple(one for one in parts if isinstance(one, Part)) or (part("c", *gpus),)
    return ReservedGpus(f"uid-{name}", "default", name, own, created, settled)


def listed(*names: str, **booked: dict[str, list[str]]) -> View:
    """Pods without anything booked, and others with what is."""
    return {("default", name): booked.get(name, {}) for name in (*names, *booked)}


A, B, C = pod("a", "g0", "g1"), pod("b", "g2", "g3", created=1), pod("c", "g4", "g5", created=2)
LONG = pod("long", part("i", "g0", once=True), part("s", "g4"), part("c", "g0", "g1"))


def ledger(*pods: ReservedGpus, deliveries: tuple[Delivery, ...] = (), view: View | None = None) -> Ledger:
    found = Ledger(deliveries)
    found.pods(pods, view or {})
    return found


def test_the_pod_that_the_kubelet_lists_and_has_not_booked_gets_what_it_reserved() -> None:
    delivery = ledger(A, B, C).deliver(listed("b", a={"c": ["g6", "g7"]}), ["g0", "g1"])
    assert (delivery.slot, delivery.gpus) == (B.slot(0), ("g2", "g3"))


def test_the_containers_of_a_pod_are_served_in_the_order_of_the_kubelet() -> None:
    book = ledger(LONG)
    got = [
        book.deliver(view, offered).gpus
        for view, offered in (
            (listed("long"), ["x"]),
            (listed("long"), ["x"]),
            (listed(long={"s": ["x"]}), ["x", "y"]),
        )
    ]
    assert got == [("g0",), ("g4",), ("g0", "g1")]


def test_after_a_restart_of_both_the_kubelet_s_list_says_how_far_a_pod_is() -> None:
    assert ledger(LONG).deliver(listed(long={"s": ["x"]}), ["y", "z"]).slot == LONG.slot(2)


@pytest.mark.parametrize(
    ("pods", "view", "size", "why"),
    [
        ([A], listed("a"), 3, "no pod of this node is waiting for 3 GPUs"),
        ([A], listed(a={"c": ["g0", "g1"]}), 2, "no pod of this node is waiting for 2 GPUs"),
        ([A], listed(), 2, "no pod of this node is waiting"),
        ([pod("a", "g0", settled=True)], listed("a"), 1, "no pod of this node is waiting"),
        ([LONG], listed("long"), 2, "no pod of this node is waiting for 2"),
        ([pod("a", Part("0", "c", 2, ()))], listed("a"), 2, "no GPUs are reserved for container c of pod default/a"),
        (
            [LONG, pod("d", "g7", created=1)],
            listed("long", "d"),
            1,
            "request for 1 GPU, possible pods: default/long, default/d",
        ),
        ([pod("x", Part("0", "c", 2, ())), A], listed("x", "a"), 2, "ambiguous request"),
    ],
)
def test_what_is_not_sure_is_refused(pods: list[ReservedGpus], view: View, size: int, why: str) -> None:
    with pytest.raises(NoCandidateError, match=why):
        ledger(*pods).deliver(view, [f"g{n}" for n in range(size)])


def test_a_gpu_that_another_pod_has_is_refused() -> None:
    book = ledger(A, B)
    book.deliver(listed("a"), ["g0", "g1"])
    thief = pod("thief", "g1", "g7")
    book.pods([A, thief], {})
    with pytest.raises(NoCandidateError, match="another pod of this node uses g1, reserved for pod default/thief"):
        book.deliver(listed("thief", a={"c": ["g0", "g1"]}), ["g2", "g3"])


def test_so_is_one_that_a_pod_has_which_was_deleted_by_force_and_still_runs() -> None:
    book = ledger(A)
    book.deliver(listed("a"), ["g0", "g1"])
    late, still = pod("late", "g0", "g1"), listed("late", a={"c": ["g0", "g1"]})
    book.pods([late], still)
    with pytest.raises(
        StillHeldError, match="deleted pod default/a may still use g0, g1, reserved for pod default/late"
    ):
        book.deliver(still, ["g2", "g3"])
    book.pods([late], listed("late"))
    assert book.deliver(listed("late"), ["g2", "g3"]).gpus == ("g0", "g1")


def test_the_preferred_ids_are_the_container_s_own_then_its_pod_s() -> None:
    book = ledger(A, LONG)
    every = [f"g{n}" for n in range(8)]
    assert book.prefer(listed("a"), [*every[2:], "g1", "g0"], [], 2) == ("g0", "g1")
    assert book.prefer(listed("long"), every, [], 1) == ("g0",)
    begun = listed(long={"s": ["g0"]})
    assert book.prefer(begun, ["g1", "g2", "g4"], [], 2) == ("g1", "g4")
    assert book.prefer(begun, ["g1", "g2", "g4"], ["g4"], 2) == ("g4", "g1")
    assert book.prefer(listed(), ["g1", "g7"], [], 2) == ("g1", "g7")


def test_two_alike_pods_that_got_each_other_s_gpus_exchange_all_of_them() -> None:
    one, other = (
        pod("one", part("i", "g0", once=True), part("c", "g0", "g1")),
        pod("other", part("i", "g2", once=True), part("c", "g2", "g3"), created=1),
    )
    book = ledger(one, other)
    assert book.deliver(listed("one", "other"), ["g2"]).slot == one.slot(0)  # the oldest; it was the other one
    assert book.deliver(listed("one", "other"), ["g2", "g3"]).slot == one.slot(1)
    book.reconcile(listed("one", other={"c": ["g2", "g3"]}))
    assert [(p.pod, p.gpus) for p in book.corrections()] == [
        ("one", (("g2",), ("g2", "g3"))),
        ("other", (("g0",), ("g0", "g1"))),
    ]
    assert book.deliver(listed("one", other={"c": ["g2", "g3"]}), ["g0"]).gpus == ("g2",)
    book.pods(book.corrections(), {})
    assert book.corrections() == []


def test_a_circle_of_three_is_put_right() -> None:
    book = ledger(A, B, C)
    held: dict[str, dict[str, list[str]]] = {}
    sees: dict[str, tuple[str, ...]] = {}
    for name, ids in (("c", ["g0", "g1"]), ("a", ["g2", "g3"]), ("b", ["g4", "g5"])):
        waiting = [n for n in "abc" if n not in held]
        sees[name] = book.deliver(listed(*waiting, **held), ids).gpus
        held[name] = {"c": ids}
    book.reconcile(listed(**held))
    said = {"a": A.gpus, "b": B.gpus, "c": C.gpus} | {p.pod: p.gpus for p in book.corrections()}
    assert said == {name: (gpus,) for name, gpus in sees.items()}
    assert sees["c"] == ("g0", "g1")


def test_a_plugin_without_checkpoint_takes_running_pods_to_have_what_they_reserved() -> None:
    book = ledger(A, B)
    book.reconcile(listed(a={"c": ["g6", "g7"]}))
    assert book.corrections() == []
    assert book.deliveries == (Delivery(("g6", "g7"), ("g0", "g1"), A.slot(0), "default/a"),)


def test_a_checkpoint_remembers_who_was_served() -> None:
    book = ledger(LONG)
    book.deliver(listed("long"), ["x"])
    assert ledger(LONG, deliveries=book.deliveries).deliver(listed("long"), ["x"]).slot == LONG.slot(1)


def test_a_kubelet_that_ended_amid_a_pod_may_ask_for_its_init_container_again() -> None:
    two = pod("two", part("i", "g6", "g7", once=True), part("c", "g6"))
    book = ledger(two, LONG)
    book.deliver(listed("two"), ["g6", "g7"])
    book.registered()
    book.pods([two, LONG], {})
    assert book.deliver(listed("two"), ["g6", "g7"]).slot == two.slot(0)
    assert book.deliver(listed("two"), ["g6"]).slot == two.slot(1)
    book.deliver(listed("long"), ["g4"])
    book.registered()
    book.pods([two, LONG], {})
    with pytest.raises(NoCandidateError, match="a restarted kubelet for a container of pod default/long"):
        book.deliver(listed("long"), ["g4"])
