"""The kinds of workloads: a reader each, and one line in `kind_registry.py`.

A reader turns a manifest into roles with numbers of pods, and states which pods start together.

Main types: `WorkloadKind` (`kind_registry.py`): kind and reader; `Child` (`kind_registry.py`): an owned kind;
`read_job` (`batch_jobs.py`): the shortest reader.

Must not plan, and must not read objects other than its own.
Start reading at `batch_jobs.py`, then `kind_registry.py`.
"""
