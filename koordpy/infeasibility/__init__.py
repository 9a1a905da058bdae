"""Finds why a unit cannot be placed: the limiting rules, units that never fit, and unsatisfiable demand.

A unit is compared with the cluster without evictable pods and with the empty cluster. The results are numbers by domain
and resource.

Main types: `EmptyCluster` (`never_fits.py`): the empty cluster; `ResourceSums` (`limiting_rules.py`): sums; `Inventory`
(`domain_inventory.py`): domains.

Must not compose sentences for pods: `report` does. Start reading at `limiting_rules.py`, then `never_fits.py`.
"""
