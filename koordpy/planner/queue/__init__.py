# SPDX-License-Identifier: Apache-2.0
"""The queue of a round: the order in which pending units are tried, and capacity that is reserved for some of them.

Queues of users or ElasticQuotas take turns by fair share; within a queue, units are ordered by priority. Policies
reserve capacity (`queue_policy.py`): for a large unit that would never start otherwise (starvation guard, backfill),
for missing members of broken gangs (seats), for moved pods, and for the gang of a ProvisioningRequest.

Main types: `UnitOrder` (`unit_order.py`): the order; `StarvationGuard` (`starvation.py`): reserves nodes for starving
units; `Backfill` (`backfill.py`): promises a start to the first unit that lacks capacity.

Must not place a unit or choose victims. Start reading at `unit_order.py`, then `queue_policy.py`.
"""
