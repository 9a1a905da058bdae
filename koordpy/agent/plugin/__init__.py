# SPDX-License-Identifier: Apache-2.0
"""The device plugin: each pod gets the GPUs that the scheduler has written to its annotations.

The kubelet's request does not name a pod; the ledger finds the pod that the kubelet lists (PodResources) without
devices. A checkpoint on disk records the deliveries.

Main types: `Ledger` (`delivery_ledger.py`): deliveries; `Allocator` (`allocator.py`): replies; `PluginService`
(`plugin_service.py`): registration.

Must not choose GPUs for a pod with reserved GPUs: the scheduler has chosen.
Start reading at `plugin_service.py`, then `delivery_ledger.py`.
"""
