# SPDX-License-Identifier: Apache-2.0
"""The comparison of methods that find victims: a method that is used and replaceable, and one that is not."""

from functools import partial

import pytest

from bench.generators import METHODS, Method, Worth, compare_round, over_pods_or_gangs, watched, without
from koordpy.attempts import preemption_pipeline
from koordpy.attempts.preemption_pipeline import SearchResult
from koordpy.preemption.search.preemption_plan import SearchEnd

SEARCH = Method("search", preemption_pipeline, "_generate", lambda *_, **__: SearchResult(SearchEnd.RULED_OUT),
                lambda answer, *_, **__: answer.plan is not None)  # fmt: skip


def _compared(sizes: tuple[int, ...], *methods: Method) -> dict[str, Worth]:
    worth = {one.name: Worth() for one in methods}
    state = partial(over_pods_or_gangs, 32, sizes, gangs=False)
    compare_round("gang", lambda: (state().snapshot(0.0), None), {one.name: one for one in methods}, worth)
    return worth


def test_a_method_that_another_replaces_loses_nothing_and_one_without_a_substitute_loses_its_plan() -> None:
    worth = _compared((8, 8), SEARCH, *METHODS)
    used = {name: (own.rounds, own.lost, own.other, own.unproven) for name, own in worth.items() if own.rounds}
    assert used == {
        "search": (1, 1, 0, 0),
        "counting": (1, 0, 0, 0),
        "counting: cheapest next pod": (1, 0, 0, 0),
    }


def test_several_shapes_need_the_solver_for_the_proof() -> None:
    solver = next(one for one in METHODS if one.name == "CP-SAT")
    own = _compared((8, 4), solver)["CP-SAT"]
    assert own.rounds == 1 and own.other + own.unproven == 1


@pytest.mark.parametrize("method", METHODS, ids=lambda one: one.name)
def test_a_method_is_put_back(method: Method) -> None:
    before = getattr(method.owner, method.attribute)
    with watched({method.name: method}, set()):
        assert getattr(method.owner, method.attribute) is not before
    with without(method):
        assert getattr(method.owner, method.attribute) is not before
    assert getattr(method.owner, method.attribute) is before
