# SPDX-License-Identifier: Apache-2.0
"""Turns manifests into a complete cluster: reads files strictly, sets API server defaults, creates pods of workloads.
A scenario is a list of steps. Each step changes the cluster as the run before it left it.

Main types: `Loaded` (`loaded_manifests.py`): files as objects; `FilledInput` (`preparing.py`): a complete cluster;
`Step` (`scenario_steps.py`): a change.

Must not plan: `simulation` runs the rounds.
Start reading at `preparing.py`, then `manifests.py`.
"""
