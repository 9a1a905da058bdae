# SPDX-License-Identifier: Apache-2.0
"""The nodes that can take a pod, how many copies each can take, and how good each is. Updated as a round places pods.

These are the Filter and Score results of kube-scheduler, but for all nodes at once. Pods of one equivalence class (a
*shape*: equal in everything that a filter or score reads) share a `ShapeState`. It has arrays over nodes. After a
change of the draft, only the entries of the changed nodes are computed again.

Main types: `RoundState` (`round_state.py`): results for all shapes of a round; `ShapeState` (`shape_state.py`): results
for one shape; `PlannerCache` (`round_state.py`): results that later rounds use again.

Must not choose nodes for pods, or victims. Start reading at `shape_state.py`, then `filtering.py`.
"""
