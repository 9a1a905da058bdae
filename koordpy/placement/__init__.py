# SPDX-License-Identifier: Apache-2.0
"""Finds the best nodes for the pods of a gang, or proves that there are none: problem, goals, and methods.

Pods of one shape are counted over the topology tree without a solver: min-plus convolution bottom up, O(domains x
pods^2). All other units need the CP-SAT solver (`solver`). Which rank gets which node is decided last.

Main types: `Problem` and `Solution` (`problem.py`): plain numbers; `Goals` (`goals.py`): lexicographic goals;
`NodeCounts` (`counting.py`): the result of counting.

Must not know labels, pods or filters: a problem is plain numbers. Start reading at `problem.py`, then `goals.py`.
"""
