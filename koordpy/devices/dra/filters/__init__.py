# SPDX-License-Identifier: Apache-2.0
"""DynamicResources: claims by class, count and selectors, allocated on a draft.

A node passes if it can supply all claims of a pod together.

Main types: `DynamicResources` (`claim_filter.py`): the filter; `resource_claims_refusal` (`claim_filter.py`): the test
before any node; `Taken` (`claim_filter.py`): devices of a claim.

Must not write claims: `engine/binding/claim_writes.py` does that.
Start reading at `claim_filter.py`.
"""
