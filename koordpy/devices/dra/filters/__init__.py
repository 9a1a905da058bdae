# SPDX-License-Identifier: Apache-2.0
"""DynamicResources: which nodes have devices for all claims of a pod together, and which devices.

Main types: `DynamicResources` (`claim_filter.py`): the filter; `DeviceSearch` (`device_search.py`): the search on one
node; `ClaimSpec` (`claim_requests.py`): the requests of a claim; `DeviceMatching` (`device_matching.py`): answers of
selectors.

Must not write claims: `engine/binding/claim_writes.py` does that. Start reading at `device_search.py`.
"""
