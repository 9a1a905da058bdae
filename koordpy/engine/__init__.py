"""The live scheduler: watches, cluster cache, queue, rounds in a worker thread, commits, status, leader election.

One asyncio event loop owns all state; only the planner runs in threads. Folders: `watching`, `changes`, `binding`,
`evictions`, `status`, and `client` for the API server.

Main types: `Scheduler` (`scheduler.py`): all parts; `SchedulingLoop` (`scheduling_loop.py`): the rounds; `UnitQueue`
(`scheduling_queue.py`): pending units.

Must not write to the API server unless this process is the leader, and must not plan on the event loop.
Start reading at `scheduler.py`, then `scheduling_loop.py`.
"""
