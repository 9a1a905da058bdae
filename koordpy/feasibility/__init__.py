"""Verdicts, slots and scores of every node for each shape of pods, kept current as a plan grows.

Pods of one equivalence class share a `ShapeState`: arrays over nodes, updated for the nodes that the draft has changed.

Main types: `RoundState` (`round_state.py`): all shapes of a round; `ShapeState` (`shape_state.py`): one shape;
`PlannerCache` (`round_state.py`): state reused by later rounds.

Must not choose places or victims. Start reading at `shape_state.py`, then `filtering.py`.
"""
