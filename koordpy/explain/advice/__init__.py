"""Changes that would let a pending unit start: each was tried on the planner and helped.

A generator is a module that proposes changes of one kind: nodes, pods, gangs, quotas, the queue. `advise.py` tries them
in order of effort.

Main types: `ClusterChange` (`cluster_change.py`): one change; `Case` (`advice_case.py`): the unit and its cluster;
`Trials` (`trials.py`): rounds on changed clusters.

Must not return a change without a successful trial. Start reading at `advise.py`, then `cluster_change.py`.
"""
