"""The exact core: placements as counts over a tree, their worth goal by goal, and the methods that need no solver.

Counting is exact for pods of one shape: min-plus convolution bottom up, O(domains x pods^2). Ranks are ordered last.

Main types: `Problem` (`problem.py`) and `Solution` (`problem.py`): plain numbers; `Goals` (`goals.py`): lexicographic
goals; `NodeCounts` (`counting.py`): counting.

Must not know labels, pods or filters: a problem is plain numbers.
Start reading at `problem.py`, then `goals.py`.
"""
