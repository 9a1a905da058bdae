# SPDX-License-Identifier: Apache-2.0
"""Input of the offline commands: turns manifests into a complete cluster.

Files are read strictly, an API server's defaults are set, and pods of workloads are created. A scenario is a list of
steps; each step changes the cluster as it is at the end of the run before.

Main types: `Loaded` (`loaded_manifests.py`): files as objects; `FilledInput` (`preparing.py`): a complete cluster;
`Step` (`scenario_steps.py`): a change.

Must not plan: `simulation` runs the rounds.
Start reading at `preparing.py`, then `manifests.py`.
"""
