# SPDX-License-Identifier: Apache-2.0
"""Exact placement by the constraint solver CP-SAT, for units that counting does not decide.

Such units have pods of several shapes, or rules among their members. A model is solved in stages, one goal after the
other. One worker, a fixed seed and a deterministic time limit make a plan reproducible. Of large regions only a part of
the nodes is modelled.

Main types: `CountModel` (`count_model.py`): the model, with the number of pods on each group of equal nodes as
variables; `StagedModel` (`staged_model.py`): solves goals in stages; `TimeBudget` (`time_budget.py`): time limit of all
solves.

Must not import OR-Tools except through `cpsat.py`, which only this package and the exact model of victims use. Start
reading at `exact_placement.py`, then `count_model.py`.
"""
