# SPDX-License-Identifier: Apache-2.0
"""The live scheduler: connects the planner to a cluster by watches, a queue, Bindings, evictions, status and a lease.

One asyncio event loop owns all state; only the planner runs in threads. A pod passes through the subpackages in this
order: `watching` (list and watch), `changes` (handlers of events), the queue and the loop in this folder, then
`binding` or `evictions`, and `status`. `client` has the calls to the API server.

Main types: `Scheduler` (`scheduler.py`): all parts; `SchedulingLoop` (`scheduling_loop.py`): the rounds; `UnitQueue`
(`scheduling_queue.py`): pending units.

Must not write to the API server unless this process is the leader, and must not plan on the event loop.
Start reading at `scheduler.py`, then `scheduling_loop.py`.
"""
