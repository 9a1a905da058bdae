# SPDX-License-Identifier: Apache-2.0
"""Finds why a gang or pod cannot be placed: which rule or resource prevents it, and if it could ever fit.

To find out if a unit could ever fit, it is placed on the empty cluster: the nodes as they would be after all pods that
can end have ended. Demand of units that never fit is not counted in quotas (`unsatisfiable_demand.py`).

Main types: `EmptyCluster` (`never_fits.py`): decides if units could ever fit; `ResourceSums` (`limiting_rules.py`):
compares total requests with free amounts; `Inventory` (`domain_inventory.py`): numbers of all domains.

Results are short phrases, and numbers by domain and resource. Must not compose messages of pods: `report` does.
Start reading at `limiting_rules.py`, then `never_fits.py`.
"""
