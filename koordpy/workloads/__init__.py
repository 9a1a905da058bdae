# SPDX-License-Identifier: Apache-2.0
"""Workloads as users create them (Jobs, JobSets, RayClusters and others), their roles, and the gangs of their pods.

A kind of workload is a function in `kinds` and a line in its registry. If a pod names no gang, its gang is derived from
its workload or from its labels.

Main types: `Workload` (`workload_model.py`): roles and pods; `DerivedBook` (`gang_derivation.py`): derived gangs,
updated with every change; `Minimum` (`gang_minimum.py`): the minimum number of members.

Must not know nodes, plans or the API server, and must not trust a manifest. Start reading at `workload_model.py`, then
`batch_jobs.py`.
"""
