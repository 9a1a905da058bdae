# SPDX-License-Identifier: Apache-2.0
"""The node agent: writes the GPUs of its node, their links and their health to the node's Device object.

A backend reads facts about the GPUs from the driver. An error makes a GPU unhealthy; polls without an error make it
healthy again. The subpackage `plugin` gives containers the GPUs that the scheduler chose.

Main types: `NodeAgent` (`agent_loop.py`): the loop; `HealthBook` (`gpu_health.py`): health of each GPU;
`DevicePublisher` (`publisher.py`): writes to the API server.

Must not import the planner. Only this package imports pynvml and grpc (import-linter).
Start reading at `agent_loop.py`, then `gpu_facts.py`.
"""
