# SPDX-License-Identifier: Apache-2.0
"""Device families: GPUs, Ascend NPUs, devices of resource claims and NUMA zones, one folder each, behind one registry.

A family has five parts: a book in the cache, a ledger in the draft, a filter, the choice of devices for a pod, and its
part of the plan check. A family with placement rules for whole jobs implements a second interface.

Main types: `Family` (`device_family.py`): the interface; `FamilyRound` (`family_round.py`): the part of a round that a
family may use; `JobPlacement` (`placement_rules.py`): the interface of rules for jobs.

Must not be imported one family at a time: other packages call `family_registry.py` and `rule_registry.py`.
Start reading at `device_family.py`, then the worked family in docs/extending.md.
"""
