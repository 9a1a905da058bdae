# SPDX-License-Identifier: Apache-2.0
"""Ascend NPUs as a device family: the filter, the chips of a pod, and the cost of nodes for a gang.

The filter compares a node's product, labels and free chips with a pod's request. Chips are allocated node by node on
the draft, and an independent check repeats the sums.

Main types: `NpuFamily` (`npu_family.py`): the family; `AscendChips` (`npu_filter.py`): the filter; `deal`
(`chip_dealing.py`): chips of each pod.

Must not know the placement of whole jobs: `jobs` does that. Start reading at `npu_family.py`, then `npu_filter.py`.
"""
