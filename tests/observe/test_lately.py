# SPDX-License-Identifier: Apache-2.0
"""What is said of an object in a minute."""

from koordpy.observe.message_rates import MINUTE, MOST_A_MINUTE, MOST_OF_A_NAMESPACE, Lately


def test_so_much_is_said_of_an_object_and_of_a_namespace_in_a_minute() -> None:
    lately = Lately()
    assert [lately.lets("a", 0.0, "ns") for _ in range(MOST_A_MINUTE + 1)] == [True] * MOST_A_MINUTE + [False]
    others = sum(lately.lets(f"b{i}", 1.0, "ns") for i in range(MOST_OF_A_NAMESPACE))
    assert others == MOST_OF_A_NAMESPACE - MOST_A_MINUTE
    assert lately.lets("c", 1.0) and lately.lets("a", MINUTE, "ns")


def test_who_was_spoken_of_a_minute_ago_is_forgotten() -> None:
    lately = Lately()
    assert all(lately.lets(f"a{i}", float(i % 7), f"ns{i}") for i in range(100))
    assert len(lately._times) == 200
    assert lately.lets("b", MINUTE + 7.0, "ns1")
    assert [*lately._times] == [(None, "ns1"), ("b", "ns1")]
