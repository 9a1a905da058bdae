# SPDX-License-Identifier: Apache-2.0
"""Resource claims, the devices that drivers offer, and devices in use, at one moment and on a draft.

The book is updated with the objects of the API server. A view is its state in a snapshot; a ledger has the allocations
of a draft, and can undo them.

Main types: `ClaimBook` (`claim_book.py`): updated per event; `DeviceOffers` (`offered_devices.py`): pools and devices
by node; `ClaimLedger` (`claim_ledger.py`): a draft's allocations; `DeviceUsage` (`device_usage.py`): devices in use.

Must not decide which device serves a claim: the filter does that. Start reading at `claim_book.py`.
"""
