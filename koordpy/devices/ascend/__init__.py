# SPDX-License-Identifier: Apache-2.0
"""Ascend NPUs: products and their chips, SuperPoDs and leaf switches, and jobs with placement rules for them.

Three packages, from low to high: `tables` has the data and its exact arithmetic, `family` is the device family, `jobs`
places whole jobs (docs/rules/ascend.md).

Main types: `NpuFamily` (`npu_family.py`): the device family; `NpuPlacement` (`npu_placement.py`): rules for jobs;
`AscendJob` (`ascend_job.py`): a job's settings.

Must not be imported except by the two registries of devices (checked by import-linter). A cluster without NPUs never
runs this code.
Start reading at `npu_family.py`, then `npu_placement.py`.
"""
