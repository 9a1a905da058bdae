# SPDX-License-Identifier: Apache-2.0
"""Devices of resource claims (dynamic resource allocation): the book of claims, their filter, and the device family.

Three packages, from low to high: `ledger` has claims, slices and classes; `filters` decides on nodes; `family` connects
both with the registry. Beside them, `cel.py` evaluates selectors; the other `cel_*` modules belong to it.

Main types: `ClaimView` (`claim_book.py`): claims of a snapshot; `DynamicResources` (`claim_filter.py`): the filter;
`ClaimedDevices` (`claim_family.py`): the family; `Selector` and `DeviceFacts` (`cel.py`): an expression and a device.

Must not write claims to the API server: the engine's binding does that. Start reading at `claim_filter.py`, then
`claim_book.py`.
"""
