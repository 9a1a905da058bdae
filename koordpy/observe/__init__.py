# SPDX-License-Identifier: Apache-2.0
"""Observation of the process: metrics, health endpoints, logs and the decision log.

Metrics are Prometheus series with a bounded number of labels. The decision log writes a line for the decision on each
unit, and has the last 2,000 decisions in memory.

Main types: `Metrics` (`metrics.py`): series; `DecisionLog` (`decision_log.py`): decisions; `HealthServer`
(`health_endpoints.py`): HTTP endpoints.

Must not change a decision, and must not block the event loop.
Start reading at `metrics.py`, then `decision_log.py`.
"""
