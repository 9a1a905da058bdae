# SPDX-License-Identifier: Apache-2.0
"""Computes ProvisioningRequests, which ask an autoscaler for the nodes of a whole gang at once (repair.md 3).

For a gang that lacks nodes, one ProvisioningRequest asks for all of them, and cluster-autoscaler creates all or none.
Each round computes for which units nodes are requested (`WantedNodes`). The state of an existing request follows from
its conditions and the time, so nothing is stored outside the API server.

Main types: `Asking` (`asking_units.py`): the units for which nodes are requested; `UnitRequest` (`asking_units.py`):
the nodes of one unit; `RequestState` (`request_states.py`): the state of a unit's requests.

Must not write to the API server: `engine/provisioning` does. Start reading at `request_states.py`.
"""
