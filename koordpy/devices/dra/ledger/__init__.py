# SPDX-License-Identifier: Apache-2.0
"""Resource claims, slices and device classes at one moment, and the allocations of a draft.

The book is updated with the objects of the API server. A view is its immutable state in a snapshot; a ledger records
the allocations of a draft, and can undo them.

Main types: `ClaimBook` (`claim_book.py`): claims, updated per event; `DeviceObjects` (`claim_book.py`): the objects of
a view; `ClaimLedger` (`claim_book.py`): a draft's allocations.

Must not decide which device serves a claim: the filter does that. Start reading at `claim_book.py`.
"""
