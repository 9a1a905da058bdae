# SPDX-License-Identifier: Apache-2.0
"""The device plugin of the agent: gives containers the GPUs that the scheduler wrote to the annotations of their pod.

The kubelet's Allocate request does not name a pod. The ledger finds the pod from the kubelet's list of pods
(PodResources). Each delivery, the GPUs that a container got, is recorded in a checkpoint file.

Main types: `Ledger` (`delivery_ledger.py`): deliveries; `Allocator` (`allocator.py`): answers to the kubelet;
`PluginService` (`plugin_service.py`): registration with the kubelet.

Must not choose GPUs for a pod: the scheduler has chosen them.
Start reading at `plugin_service.py`, then `delivery_ledger.py`.
"""
