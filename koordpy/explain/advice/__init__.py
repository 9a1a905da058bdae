# SPDX-License-Identifier: Apache-2.0
"""The lines `Would fit if ...` of `koordpy explain`: changes that would let a pending unit start.

A generator is a function that proposes changes to one subject: nodes, pods, gangs, quotas or the queue. Its proposals
are guesses from estimates. `advise.py` plans rounds with each proposed change, those with little effort for users
first, and shows only changes with which the unit was placed.

Main types: `ClusterChange` (`cluster_change.py`): one change; `Case` (`advice_case.py`): the unit and its cluster;
`Trials` (`trials.py`): rounds on changed clusters.

Must not return a change without a successful trial. Start reading at `advise.py`, then `cluster_change.py`.
"""
