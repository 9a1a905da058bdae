# SPDX-License-Identifier: Apache-2.0
"""Placement of whole jobs on Ascend NPUs: blocks in SuperPoDs, servers under leaf switches, and preemption for them.

A job is placed by one of three methods: in logical SuperPoDs, under leaf switches, or in rank order on its best nodes
(docs/rules/ascend.md 3 to 6).

Main types: `NpuPlacement` (`npu_placement.py`): the rules; `BlockJob` (`superpod_jobs.py`): a job in SuperPoDs;
`SwitchJob` (`switch_jobs.py`): a job under switches.

Must not be called for a cluster or a unit without NPUs. Start reading at `npu_placement.py`, then
`npu_unit_planner.py`.
"""
