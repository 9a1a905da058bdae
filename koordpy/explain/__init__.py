# SPDX-License-Identifier: Apache-2.0
"""Explains why a pod or its gang is placed or not (`koordpy explain`): verdicts of nodes, slots of domains,
suggestions.

An explanation is read from one planned round, which is not carried out. The folder `advice` adds suggestions: changes
with which the unit would start.

Main types: `Explanation` (`explanation.py`): the result; `NodeExplanation` (`explanation.py`): a node;
`DomainExplanation` (`explanation.py`): a domain.

Must not suggest a change that was not tried on the planner. Start reading at `explanation.py`, then `advise.py`.
"""
