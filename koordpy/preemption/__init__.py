# SPDX-License-Identifier: Apache-2.0
"""Chooses which running pods are evicted for a unit that does not fit (victims), and where its members then run.

Three folders: `rules` decides which pods may be evicted, and limits how many. `selection` chooses the least harmful set
of victims as plain numbers. `search` tries each set on the draft with all filters (docs/rules/preemption.md).

Main types: `VictimRule` (`rule_protocol.py`): a rule that permits evictions; `PreemptionSearch`
(`preemption_search.py`): state of all searches of a round; `Choices` (`victim_choice.py`): the choice of victims as
numbers.

Must not evict pods or write to the API server: a preemption plan is a value. Start reading at `victim_rules.py`, then
`select_victims.py`.
"""
