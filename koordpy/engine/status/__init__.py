# SPDX-License-Identifier: Apache-2.0
"""Writes all objects except Bindings and evictions: conditions of pods, statuses of gangs, quotas, Devices, and events.

A status is a pure function of the scheduler's state. A reconciler writes it, and only if it has changed. Events may be
dropped under load.

Main types: `Reconciler` (`reconciler.py`): status writes; `EventRecorder` (`event_recorder.py`): events; `Writers`
(`status_writers.py`): all writers.

Must not influence a plan, and must not write a status that has not changed.
Start reading at `reconciler.py`, then `status_writers.py`.
"""
