"""Manifests as a cluster: files read strictly, defaults as an API server sets them, and pods that workloads create.

A scenario is a list of steps: each changes the cluster that the last run has left.

Main types: `Loaded` (`loaded_manifests.py`): files as objects; `FilledInput` (`preparing.py`): a complete cluster;
`Step` (`scenario_steps.py`): a change.

Must not plan: `simulation` runs the rounds.
Start reading at `preparing.py`, then `manifests.py`.
"""
