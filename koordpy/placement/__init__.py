# SPDX-License-Identifier: Apache-2.0
"""Finds the best nodes for the pods of a gang, or proves that there are none.

If all pods have one shape, placement is decided without a solver, by counting: dynamic programming over the numbers of
pods in each domain of the topology tree, O(domains x pods^2). All other units need the CP-SAT solver (`solver`). The
order of ranks on the chosen nodes is decided last.

Main types: `Problem` and `Solution` (`problem.py`): input and result as plain numbers; `Goals` (`goals.py`): the goals
that compare placements, most important first; `NodeCounts` (`counting.py`): the result of counting.

Must not know labels, pod objects or filters: a problem is plain numbers. Start reading at `problem.py`, then
`goals.py`.
"""
