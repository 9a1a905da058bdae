"""Exact placement: pods as counts over the topology tree, goals that compare placements, and methods without a solver.

Counting is exact for pods of one shape: min-plus convolution bottom up, O(domains x pods^2). Ranks are ordered last.

Main types: `Problem` and `Solution` (`problem.py`): plain numbers; `Goals` (`goals.py`): lexicographic goals;
`NodeCounts` (`counting.py`): the result of counting.

Must not know labels, pods or filters: a problem is plain numbers. Start reading at `problem.py`, then `goals.py`.
"""
