# SPDX-License-Identifier: Apache-2.0
"""Explains why a pod or its gang fits or does not fit: verdicts of nodes, slots of domains, nearest misses, and advice.

This is `koordpy explain`. An explanation reads one planned round, which is not carried out. The folder `advice` adds
changes that let the unit start.

Main types: `Explanation` (`explanation.py`): the result; `NodeExplanation` (`explanation.py`): a node;
`DomainExplanation` (`explanation.py`): a domain.

Must not suggest a change that was not tried on the planner. Start reading at `explanation.py`, then `advise.py`.
"""
