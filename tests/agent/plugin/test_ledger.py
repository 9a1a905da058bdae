"""Who gets which GPUs: rules one by one, then random histories against the promise that no GPU has two users."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpy.agent.plugin.ledger import Correction, Delivery, Ledger, NoCandidateError, Reserved


def pod(name: str, *gpus: str, created: float = 0.0) -> Reserved:
    return Reserved(f"uid-{name}", "default", name, "c", gpus, created)


A, B, C = pod("a", "g0", "g1"), pod("b", "g2", "g3", created=1), pod("c", "g4", "g5", created=2)


def ledger(*pods: Reserved, deliveries: tuple[Delivery, ...] = ()) -> Ledger:
    found = Ledger(deliveries)
    found.pods(pods)
    return found


def test_ids_that_are_a_candidate_s_own_go_to_it_even_before_older_ones() -> None:
    assert ledger(A, B).deliver(["g3", "g2"]).slot == B.slot


def test_other_ids_go_to_the_oldest_candidate_which_gets_what_it_reserved() -> None:
    delivery = ledger(B, A).deliver(["g6", "g7"])
    assert (delivery.slot, delivery.gpus) == (A.slot, ("g0", "g1"))


def test_the_uid_decides_between_pods_of_one_moment() -> None:
    twin = pod("z", "g6", "g7")
    assert ledger(twin, A).deliver(["g2", "g3"]).slot == A.slot


def test_without_a_candidate_of_the_size_nothing_is_delivered() -> None:
    with pytest.raises(NoCandidateError, match="no pod of this node waits for 3 GPUs"):
        ledger(A).deliver(["g0", "g1", "g2"])
    served = ledger(A)
    served.deliver(["g0", "g1"])
    with pytest.raises(NoCandidateError):
        served.deliver(["g2", "g3"])


def test_the_same_ids_again_get_the_same_answer() -> None:
    one = ledger(A, B)
    assert one.deliver(["g6", "g7"]) == one.deliver(["g7", "g6"])


def test_the_preferred_ids_are_those_of_the_first_candidate_that_can_have_its_own() -> None:
    one = ledger(A, B)
    assert one.prefer(["g0", "g1", "g2", "g3"], [], 2) == ("g0", "g1")
    assert one.prefer(["g1", "g2", "g3"], [], 2) == ("g2", "g3")
    assert one.prefer(["g1", "g2", "g3"], ["g3"], 2) == ("g2", "g3")
    assert one.prefer(["g1", "g7"], [], 2) == ("g1", "g7")


def test_a_swap_is_put_right_in_both_pods() -> None:
    one = ledger(A, B)
    one.deliver(["g0", "g1"])
    corrections = one.reconcile({B.slot: ["g0", "g1"]})
    assert corrections == [Correction(A, ("g2", "g3")), Correction(B, ("g0", "g1"))]
    assert one.deliver(["g2", "g3"]).slot == A.slot


def test_a_circle_of_three_is_put_right() -> None:
    one = ledger(A, B, C)
    for ids in (A.gpus, B.gpus, C.gpus):
        one.deliver(ids)
    corrections = one.reconcile({A.slot: B.gpus, B.slot: C.gpus, C.slot: A.gpus})
    assert {c.one.pod: c.gpus for c in corrections} == {"a": B.gpus, "b": C.gpus, "c": A.gpus}


def test_what_the_kubelet_books_as_meant_needs_no_correction() -> None:
    one = ledger(A, B)
    one.deliver(["g6", "g7"])
    assert one.reconcile({A.slot: ["g6", "g7"]}) == []


def test_a_plugin_without_checkpoint_takes_running_pods_to_have_what_they_reserved() -> None:
    one = ledger(A, B)
    assert one.reconcile({A.slot: ["g6", "g7"]}) == []
    assert [waiting.pod for waiting in one.waiting(2)] == ["b"]


def test_a_checkpoint_remembers_who_was_served() -> None:
    first = ledger(A, B)
    first.deliver(["g2", "g9"])
    again = ledger(A, B, deliveries=first.deliveries)
    assert [waiting.pod for waiting in again.waiting(2)] == ["b"]


def test_the_ids_of_a_pod_that_has_gone_can_be_given_out_again() -> None:
    one = ledger(A, B)
    one.deliver(["g6", "g7"])
    one.pods([B])
    assert one.deliver(["g7", "g8"]).slot == B.slot


def test_whoever_was_served_in_another_s_place_may_ask_again_once_that_one_has_ended() -> None:
    one = ledger(A, B)
    one.deliver(["g0", "g1"])  # to b, which ends before anybody looks
    one.pods([A])
    for _ in range(2):
        assert one.reconcile({}) == []
    assert one.deliver(["g2", "g3"]).gpus == A.gpus


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_gpu_ever_has_two_users_whatever_the_kubelet_offers_and_to_whom(data: st.DataObject) -> None:
    """Pods of 1 and 2 GPUs come, are admitted in any order with any ids, end, and the plugin starts anew."""
    gpus = [f"g{n}" for n in range(8)]
    book = Ledger()
    alive: dict[str, Reserved] = {}
    ids_of: dict[str, list[str]] = {}
    sees: dict[str, tuple[str, ...]] = {}
    for step in range(data.draw(st.integers(1, 25))):
        reserved = {gpu for one in alive.values() for gpu in one.gpus}
        free = [gpu for gpu in gpus if gpu not in reserved]
        action = data.draw(st.sampled_from(["come", "admit", "end", "reconcile", "restart"]))
        if action == "come" and free:
            size = data.draw(st.integers(1, min(2, len(free))))
            name = f"p{step}"
            alive[name] = pod(name, *data.draw(st.permutations(free))[:size], created=step)
        elif action == "admit" and (names := [name for name in alive if name not in ids_of]):
            name = data.draw(st.sampled_from(names))
            unbooked = [gpu for gpu in gpus if not any(gpu in ids for ids in ids_of.values())]
            size = len(alive[name].gpus)
            if len(unbooked) >= size:
                ids = data.draw(st.permutations(unbooked))[:size]
                book.pods(alive.values())
                ids_of[name], sees[name] = ids, book.deliver(ids).gpus
        elif action == "end" and ids_of:
            name = data.draw(st.sampled_from(sorted(ids_of)))
            # the scheduler frees what the pod's annotations say: they must be right by then
            for correction in book.reconcile({alive[n].slot: ids for n, ids in ids_of.items()}):
                alive[correction.one.pod] = pod(correction.one.pod, *correction.gpus, created=correction.one.created)
            del alive[name], ids_of[name], sees[name]
        elif action == "reconcile":
            book.pods(alive.values())
            for correction in book.reconcile({alive[n].slot: ids for n, ids in ids_of.items()}):
                alive[correction.one.pod] = pod(correction.one.pod, *correction.gpus, created=correction.one.created)
            assert all(set(alive[name].gpus) == set(seen) for name, seen in sees.items())
        elif action == "restart":
            book = Ledger(book.deliveries)
        book.pods(alive.values())
        users = [gpu for seen in sees.values() for gpu in seen]
        assert len(users) == len(set(users))
        held = [gpu for one in alive.values() for gpu in one.gpus]
        assert len(held) == len(set(held))
