# SPDX-License-Identifier: Apache-2.0
"""The kinds of workloads, such as Job, JobSet and RayCluster. A kind is a reader and one entry in `kind_registry.py`.

A reader turns the manifest of an object into a `Workload`: roles with their numbers of pods, the pods that the kind's
controller creates, and which of these pods start together.

Main types: `WorkloadKind` (`kind_registry.py`): kind and reader; `Child` (`kind_registry.py`): an owned kind;
`read_job` (`batch_jobs.py`): the shortest reader.

Must not plan, and must not read objects other than its own.
Start reading at `batch_jobs.py`, then `kind_registry.py`.
"""
