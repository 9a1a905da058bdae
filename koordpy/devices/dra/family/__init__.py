# SPDX-License-Identifier: Apache-2.0
"""Devices of resource claims as a device family, for the registry: pods with claims, and a plan's allocations.

A claim is allocated with the first pod of a plan that uses it; further pods of the plan share the allocation.

Main types: `ClaimedDevices` (`claim_family.py`): the family; `ClaimReader` (`claim_family.py`): which pods may need
devices; `MemberLimitReader` (`member_limits.py`): how members of a gang limit each other.

Must not be imported except by the registry and one named module (import-linter). Start reading at `claim_family.py`.
"""
