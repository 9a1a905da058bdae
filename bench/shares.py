# SPDX-License-Identifier: Apache-2.0
"""How long fair shares, quota runtimes and the order of many queues take.

`python -m bench.shares`. Processor time, the best of several runs.
"""

from collections.abc import Callable
from functools import partial

from bench.objects import node, pod
from bench.timing import Row, milliseconds, timed
from koordpy.api import keys
from koordpy.api.custom_objects import ElasticQuota, ElasticQuotaSpec
from koordpy.api.objects import ObjectMeta
from koordpy.cache.plan_draft import Draft
from koordpy.cache.snapshot import Snapshot
from koordpy.config.configuration import Fairness, Quota
from koordpy.devices.family_registry import make_state
from koordpy.fairness.fair_shares import Claim, exact_and_whole_shares, kai_shares
from koordpy.fairness.quota_runtime import quota_figures
from koordpy.gangs.queue_units import Groups
from koordpy.planner.queue.unit_order import UnitOrder

QUEUES = 10_000
REPEATS = 5
MODES = ("gpu-count", "exact", "kai")
GPU = keys.GPU_RESOURCES[0]


def _claims(count: int, *, branches: int = 0) -> list[Claim]:
    """Queues whose requests, quotas and weights differ, in no order; below that many each, or all side by side."""
    return [
        Claim(
            request=1 + i * 37 % 64,
            quota=i * 11 % 8,
            weight=1 + i * 7 % 50,
            priority=100 if i % 3 else 50,
            parent=(i - 1) // branches if branches and i else -1,
        )
        for i in range(count)
    ]


def _quotas(count: int) -> Snapshot:
    """A hundred departments of equally many quotas, each with a pod that waits."""
    state = make_state()
    state.upsert(node("n", {GPU: count * 2}))
    for d in range(100):
        labels = {keys.QUOTA_IS_PARENT: "true"}
        meta = ObjectMeta(name=f"dept-{d}", namespace="default", labels=labels)
        state.upsert(ElasticQuota(metadata=meta, spec=ElasticQuotaSpec(min={GPU: count // 100}, max={GPU: count})))
    for i in range(count):
        meta = ObjectMeta(name=f"q-{i}", namespace="default", labels={keys.QUOTA_PARENT: f"dept-{i % 100}"})
        state.upsert(ElasticQuota(metadata=meta, spec=ElasticQuotaSpec(min={GPU: 1}, max={GPU: 64})))
        state.upsert(pod(f"p-{i}", {GPU: 1 + i % 8}, labels={keys.QUOTA_NAME: f"q-{i}"}))
    return state.snapshot(0.0)


def _best(job: Callable[[], object]) -> str:
    times, _ = timed(job, REPEATS)
    return milliseconds(min(times))


def run() -> list[Row]:
    """The rows of this part."""
    claims, tree = _claims(QUEUES), _claims(QUEUES, branches=10)
    total = QUEUES * 10
    snapshot = _quotas(1000)
    units = Groups(snapshot).units()

    def order(mode: str) -> None:
        draft = Draft(snapshot)
        fairness = Fairness(mode=mode)  # type: ignore[arg-type]
        queue = UnitOrder(units, use=draft.quotas, pods=snapshot.pods.values(), config=fairness, now=0.0)
        for unit in queue:
            draft.assign(unit.pending[0], 0)
            queue.placed()

    return [
        (
            f"exact shares, {QUEUES} queues",
            _best(lambda: exact_and_whole_shares(total, claims)),
            "goal 50 ms",
        ),
        (f"exact shares, {QUEUES} queues in a tree", _best(lambda: exact_and_whole_shares(total, tree)), "goal 50 ms"),
        (f"KAI's formula, {QUEUES} queues", _best(lambda: kai_shares(total, claims)), "goal 50 ms"),
        ("runtimes of 1000 quotas in a tree", _best(lambda: quota_figures(snapshot.quotas, Quota())), ""),
        *((f"order of 1000 jobs in 1000 queues, {mode}", _best(partial(order, mode)), "") for mode in MODES),
    ]


if __name__ == "__main__":
    for what, figure, note in run():
        print(f"{what:<52}{figure:>16}  {note}")
