# SPDX-License-Identifier: Apache-2.0
"""The rows of the table: what is done in each, at which scale, and which of its figures are lines."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from bench.live.cluster import LiveCluster
from bench.live.schedulers import Scheduler
from bench.yardstick import bounds, busy, hopeless, jobs, preemption, repair, starting, waiting
from bench.yardstick.figures import Goal, Line, Run

TABLE_NODES = 1000
"""The number of nodes that the goals are for."""
WINDOW_S = 24.0
"""How long the CPU of a hopeless gang is counted."""

Play = Callable[[LiveCluster, Scheduler], Awaitable[Run]]
Prepare = Callable[[LiveCluster], Awaitable[None]]
Bound = Callable[[LiveCluster], Awaitable[float]]


async def _nothing(cluster: LiveCluster) -> None:
    """No row but those that say so needs anything that stays from run to run."""


@dataclass(frozen=True, slots=True)
class Row:
    """play: one run of one scheduler, which leaves the cluster as it found it. prepare: what all runs of it need.

    bound: the machine's own limit for what is done, in the unit of the line that is `bounded`; last in a round.
    """

    key: str
    lines: Sequence[Line]
    play: Play
    prepare: Prepare = _nothing
    bound: Bound | None = None
    extra: bool = False
    """Not of the table: run only where it is named."""


def rows(nodes: int, *, window_s: float = WINDOW_S) -> list[Row]:
    """All rows for a cluster of so many nodes; the counts of the table for 1,000, in proportion for others.

    The rows with more nodes than that come last, for nodes are not taken away again.
    """
    return [
        _plain("plain", _share(3000, nodes)),
        _gangs("gang512", 1, _share(512, nodes), gpus=8, goal_s=2.0),
        _gangs("gangs100", _share(20, nodes), 100, gpus=1, goal_s=4.0),
        _gangs("gangs10", _share(200, nodes), 10, gpus=1, goal_s=4.0),
        _hopeless("hopeless511", nodes, _share(512, nodes) - 1, told_s=1.0, cpu_s=2.0, window_s=window_s),
        _hopeless("hopeless0", nodes, 0, told_s=0.6, cpu_s=1.0, window_s=window_s),
        _preempt(_share(64, nodes), nodes),
        _busy(_share(200, nodes)),
        _repair(_share(100, nodes), 8, _share(20, nodes)),
        _start("start", 5 * nodes, 20 * nodes),
        _jobs("jobs", _share(1000, nodes), 8, nodes=5 * nodes),
        _shapes(_share(300, nodes), 10, _share(300, nodes), 8, nodes=5 * nodes),
        _plain("plain5000", _share(3000, nodes), nodes=5 * nodes, extra=True),
        _start("start50000", 5 * nodes, 50 * nodes, extra=True, goal_s=30.0, goal_mb=1500.0),
    ]


def _share(count: int, nodes: int) -> int:
    return max(2, count * nodes // TABLE_NODES)


def _plain(key: str, count: int, *, nodes: int = 0, extra: bool = False) -> Row:
    what = f"{count:,} plain pods" + (f" on {nodes:,} nodes" if nodes else "")
    later = f"{waiting.LATER_S:g} s later"
    lines = (
        Line("rate", f"{what}: between first and last bind", "/s", Goal(times_other=1.2), bounded=True),
        Line("cpu_ms", "the same: CPU a pod, from the start to the last bind", "ms", Goal(at_most=1.0)),
        Line("cpu_later_ms", f"the same, {later} (events, metrics)", "ms"),
    )
    play = partial(waiting.plain, count=count)
    return Row(
        key, lines, play, partial(LiveCluster.grow, nodes=nodes), partial(bounds.binds_a_second, count=count), extra
    )


def _gangs(key: str, gangs: int, size: int, *, gpus: int, goal_s: float) -> Row:
    what = f"one gang of {size} x {gpus} GPUs" if gangs == 1 else f"{gangs} gangs of {size} x {gpus} GPU"
    line = Line("last_s", f"{what}: start to last bind", "s", Goal(at_most=goal_s), bounded=True)
    play = partial(waiting.gangs, gangs=gangs, size=size, gpus=gpus)
    return Row(key, (line,), play, bound=partial(bounds.seconds_to_bind, count=gangs * size))


def _jobs(key: str, count: int, size: int, *, nodes: int) -> Row:
    what = f"{count:,} Indexed Jobs of {size} one-GPU pods on {nodes:,} nodes"
    lines = (
        Line("cpu_ms", f"{what}: CPU a pod, from the start to the last bind", "ms"),
        Line("cpu_group_ms", "the same gangs by PodGroup", "ms"),
        Line("cpu_percent", "Jobs in percent of PodGroups: CPU", "%", Goal(at_most=110.0)),
        Line("memory_percent", "the same: peak memory", "%", Goal(at_most=110.0)),
    )
    play = partial(jobs.play, jobs=count, size=size)
    return Row(key, lines, play, partial(LiveCluster.grow, nodes=nodes), extra=True)


def _shapes(count: int, each: int, gangs: int, size: int, *, nodes: int) -> Row:
    what = f"{count * each:,} pods of {count} shapes and {gangs} gangs of {size} on {nodes:,} nodes"
    lines = (
        Line("first_s", f"{what}: start to first bind", "s", Goal(at_most=2.0)),
        Line("last_s", "the same: start to last bind", "s", bounded=True),
        Line("peak_mb", "the same: peak memory", "MB", Goal(at_most=600.0)),
    )
    play = partial(waiting.shapes, shapes=count, each=each, gangs=gangs, size=size)
    bound = partial(bounds.seconds_to_bind, count=count * each + gangs * size)
    return Row("shapes", lines, play, partial(LiveCluster.grow, nodes=nodes), bound, extra=True)


def _hopeless(key: str, nodes: int, free: int, *, told_s: float, cpu_s: float, window_s: float) -> Row:
    size = _share(512, nodes)
    what = f"hopeless gang of {size} x 8 GPUs, {free or 'none'} would fit"
    lines = (
        Line("told_s", f"{what}: last pod created to last message", "s", Goal(at_most=told_s), bounded=True),
        Line("cpu_s", f"the same: CPU in {window_s:g} s", "s", Goal(at_most=cpu_s)),
    )
    return Row(
        key,
        lines,
        partial(hopeless.play, size=size, window_s=window_s),
        partial(hopeless.prepare, full=nodes - free),
        partial(bounds.seconds_to_tell, count=size),
    )


def _preempt(size: int, nodes: int) -> Row:
    what = f"gang of {size} x 8 GPUs above {8 * nodes:,} running pods on {nodes:,} full nodes"
    lines = (
        Line("last_s", f"{what}: last bind", "s", Goal(at_most=1.5), bounded=True),
        Line("evicted", "the same: evicted", "", Goal(exactly=8 * size)),
        Line("cpu_s", "the same: CPU until then", "s", Goal(at_most=1.5)),
    )
    play = partial(preemption.play, size=size)
    return Row("preempt", lines, play, preemption.prepare, partial(bounds.seconds_to_make_room, size=size))


def _busy(units: int) -> Row:
    what = f"one-GPU pods for free nodes while {units} units wait for room"
    lines = (
        Line("worst_s", f"{what}: worst latency", "s"),
        Line("ratio", "the same: times that of the calm cluster", "", Goal(at_most=10.0)),
        Line("answered_s", "the same: all waiting units' pods told or bound", "s", Goal(at_most=15.0)),
        Line("cpu_s", "the same: CPU", "s"),
    )
    return Row("busy", lines, partial(busy.play, units=units), busy.prepare, extra=True)


def _repair(gangs: int, size: int, lost: int) -> Row:
    what = f"{lost} nodes under {gangs} gangs of {size} x 8 GPUs vanish, their pods are made again"
    lines = (
        Line("whole_s", f"{what}: until all are bound or told why not", "s"),
        Line("left", "the same: gangs that left their block although it had a node for them", "", Goal(exactly=0)),
        Line("fillers", "the same: plain pods on nodes that a gang lacks", "", Goal(exactly=0)),
    )
    play = partial(repair.play, gangs=gangs, size=size, lost=lost)
    return Row("repair", lines, play, repair.prepare, extra=True)


def _start(
    key: str, nodes: int, bound: int, *, extra: bool = False, goal_s: float | None = None, goal_mb: float | None = None
) -> Row:
    what = f"{nodes:,} nodes, {bound:,} bound pods"
    lines = (
        Line("first_s", f"{what}: start to first bind", "s", _at_most(goal_s), bounded=True),
        Line("peak_mb", "the same: peak memory", "MB", _at_most(goal_mb)),
    )
    prepare = partial(starting.prepare, nodes=nodes, bound=bound)
    return Row(key, lines, starting.play, prepare, bounds.seconds_to_list, extra)


def _at_most(value: float | None) -> Goal | None:
    return None if value is None else Goal(at_most=value)
