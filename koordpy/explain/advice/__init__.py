# SPDX-License-Identifier: Apache-2.0
"""The lines `Would fit if ...` of `koordpy explain`: changes that would let a pending unit start.

A generator is a function that proposes changes of one kind: nodes, pods, gangs, quotas, the queue. Its proposals are
guesses. `advise.py` tries them on the planner in order of effort, and only changes that helped are shown.

Main types: `ClusterChange` (`cluster_change.py`): one change; `Case` (`advice_case.py`): the unit and its cluster;
`Trials` (`trials.py`): rounds on changed clusters.

Must not return a change without a successful trial. Start reading at `advise.py`, then `cluster_change.py`.
"""
