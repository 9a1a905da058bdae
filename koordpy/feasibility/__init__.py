# SPDX-License-Identifier: Apache-2.0
"""Which nodes can take a pod, how many copies, and how good are they? The answers are updated as a round places pods.

These are the Filter and Score results of kube-scheduler, but for all nodes at once. Pods of one equivalence class (a
*shape*: equal in everything that a filter or score reads) share a `ShapeState`: arrays over nodes, recomputed for the
nodes that the draft has changed.

Main types: `RoundState` (`round_state.py`): all shapes of a round; `ShapeState` (`shape_state.py`): one shape;
`PlannerCache` (`round_state.py`): state reused by later rounds.

Must not choose places or victims. Start reading at `shape_state.py`, then `filtering.py`.
"""
