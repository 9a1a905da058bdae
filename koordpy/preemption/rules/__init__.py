# SPDX-License-Identifier: Apache-2.0
"""Which running pods may be evicted for a pending unit: each rule of docs/rules/preemption.md 3, with its limits.

A rule is a class and one line in `VICTIM_RULES`. The limits of a rule are linear sums over victim units, so that each
method of choosing victims (counting, CP-SAT, greedy) can apply them.

Main types: `VictimRule` (`rule_protocol.py`): the interface; `Reclaim` (`reclaim.py`): a tenant takes back its
entitlement; `AcrossUsers` (`across_users.py`): limits on priority between users.

Must not search for victims. Start reading at `victim_rules.py`, then `rule_protocol.py`.
"""
