# SPDX-License-Identifier: Apache-2.0
"""Devices of resource claims (dynamic resource allocation): claims and offers, their filter, and the device family.

Three packages, from low to high: `ledger` has claims, slices and devices in use; `filters` decides on nodes; `family`
connects both with the registry.

Main types: `DeviceOffers` (`offered_devices.py`): devices by node; `DeviceSearch` (`device_search.py`): the search for
devices on one node; `DynamicResources` (`claim_filter.py`): the filter; `ClaimedDevices` (`claim_family.py`): the
family; `compile_selector` (`cel.py`): selectors.

Must not write claims to the API server: the engine's binding does that. Start reading at `device_search.py`, then
`claim_filter.py`.
"""
