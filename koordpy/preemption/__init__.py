# SPDX-License-Identifier: Apache-2.0
"""Victims for a unit that does not fit: rules state which pods may be evicted, searches find the least harmful set.

Three folders: `rules` states which victims are allowed, and limits on them. `selection` chooses sets of victims as
plain numbers. `search` tries each set on the draft with all filters (docs/rules/preemption.md).

Main types: `VictimRule` (`rule_protocol.py`): a rule; `PreemptionSearch` (`preemption_search.py`): a round's search;
`Choices` (`victim_choice.py`): the numbers.

Must not evict pods or write to the API server: a preemption plan is a value. Start reading at `victim_rules.py`, then
`select_victims.py`.
"""
