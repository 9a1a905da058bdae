# SPDX-License-Identifier: Apache-2.0
"""The node agent: writes the GPUs of a node, their links and their health to the node's Device.

A backend reads the facts. Errors make a GPU unhealthy, and clean polls make it healthy again. The `plugin` delivers
GPUs to containers.

Main types: `NodeAgent` (`agent_loop.py`): the loop; `HealthBook` (`gpu_health.py`): health by GPU; `DevicePublisher`
(`publisher.py`): the writes.

Must not know the planner. Only this package imports pynvml and grpc (import-linter).
Start reading at `agent_loop.py`, then `gpu_facts.py`.
"""
