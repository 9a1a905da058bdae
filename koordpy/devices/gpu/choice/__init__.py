# SPDX-License-Identifier: Apache-2.0
"""Chooses the GPUs of one machine for a set of pods: optimal over all sets, or by a heuristic on large machines.

Sets are bit masks. Tables over all sets of a machine (`koordpy.devices.links`) are cached by the pattern of its links:
O(3^n) for n <= 16 GPUs.

Main types: `Chooser` (`gpu_choice.py`): the choice; `Divider` (`gpu_splits.py`): costs of divisions of a set among
pods; `GpuWant` (`gpu_wants.py`): the request of a pod. `koordpy.devices.links` divides sets among pods (`Partitioner`).

Must not know nodes, drafts or names of pods. Start reading at `gpu_choice.py`, then `gpu_splits.py`.
"""
