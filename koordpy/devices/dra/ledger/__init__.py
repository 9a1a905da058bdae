"""Resource claims, slices and device classes as a snapshot shows them, and the allocations of a draft.

The book follows the objects of the API server. A view is its immutable state in a snapshot; a ledger records a draft's
allocations, with undo.

Main types: `ClaimBook` (`claim_book.py`): follows claims; `DeviceObjects` (`claim_book.py`): the view's objects;
`ClaimLedger` (`claim_book.py`): a draft's allocations.

Must not decide which device serves a claim: the filter does that.
Start reading at `claim_book.py`.
"""
