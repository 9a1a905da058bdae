# SPDX-License-Identifier: Apache-2.0
"""DynamicResources: claims by class, count and selectors, allocated on a draft, and the CEL that selectors need.

A node passes if it can supply all claims of a pod together. The CEL subset has comparisons, `in`, and logic over
attributes and capacities of a device.

Main types: `DynamicResources` (`claim_filter.py`): the filter; `Expression` (`cel.py`): a parsed selector; `Facts`
(`cel.py`): a device's attributes.

Must not write claims: `engine/binding/claim_writes.py` does that.
Start reading at `claim_filter.py`, then `cel.py`.
"""
