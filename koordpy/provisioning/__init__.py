# SPDX-License-Identifier: Apache-2.0
"""ProvisioningRequests: asks an autoscaler for the nodes of a whole gang at once (repair.md 3).

A gang that lacks nodes may ask for all of them by one object, which cluster-autoscaler serves all or nothing. Each
round computes which units ask and for what (`WantedNodes`). The state of an existing request follows from its
conditions and the time alone, so nothing is stored outside the API server.

Main types: `Asking` (`asking_units.py`): which units ask; `UnitRequest` (`asking_units.py`): what one unit asks for;
`RequestState` (`request_states.py`): the state of a unit's requests.

Must not write to the API server: `engine/provisioning` does. Start reading at `request_states.py`.
"""
