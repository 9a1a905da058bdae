# SPDX-License-Identifier: Apache-2.0
"""From a plan to Bindings: claims and volumes first, one POST per pod in rank order, a known outcome for each.

Pods of a plan are assumed in the cache while their Bindings are sent. The pod is read again if the outcome of a POST
is unknown.

Main types: `Committer` (`commit.py`): plans in progress; `Binder` (`binder.py`): one Binding; `UnitCommit`
(`unit_commit.py`): the Bindings of one unit.

Must not choose nodes, and must not report a failed Binding before the pod's state is known.
Start reading at `commit.py`, then `binder.py`.
"""
