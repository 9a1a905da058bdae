# SPDX-License-Identifier: Apache-2.0
"""Device families: GPUs, Ascend NPUs and devices of resource claims, one folder each, behind one registry.

A family has a book in the cache, a ledger in the draft, a filter, the choice of devices for a pod, and its part of the
plan check. Placement rules for whole jobs are a second, optional interface.

Main types: `Family` (`device_family.py`): the interface; `FamilyRound` (`family_round.py`): a family's view of a
round; `JobPlacement` (`placement_rules.py`): rules for jobs.

Must not be imported family by family: other packages call `family_registry.py` and `rule_registry.py`.
Start reading at `device_family.py`, then the worked family in docs/extending.md.
"""
