# SPDX-License-Identifier: Apache-2.0
"""Carries out the placements of a plan: binds claims and volumes, then sends one Binding (a POST) per pod.

The Bindings of a gang are sent in rank order. Pods are assumed in the cache while their Bindings are in progress. If
the reply to a POST does not say whether the pod is bound, the pod is read until that is known.

Main types: `Committer` (`commit.py`): plans in progress; `Binder` (`binder.py`): one Binding; `UnitCommit`
(`unit_commit.py`): the Bindings of one unit.

Must not choose nodes, and must not report that a Binding has failed before a read of the pod confirms it.
Start reading at `commit.py`, then `binder.py`.
"""
