# SPDX-License-Identifier: Apache-2.0
"""Finds why a gang or pod cannot be placed: which rule or resource limits it, and whether it could ever fit.

To find out whether a unit could ever fit, it is placed on the empty cluster: the nodes as they would be after all pods
that can end have ended. Demand of units that never fit is excluded from quotas (`unsatisfiable_demand.py`).

Main types: `EmptyCluster` (`never_fits.py`): the empty cluster; `ResourceSums` (`limiting_rules.py`): sums; `Inventory`
(`domain_inventory.py`): domains.

The results are short phrases, and numbers by domain and resource. Must not compose messages of pods: `report` does.
Start reading at `limiting_rules.py`, then `never_fits.py`.
"""
