# SPDX-License-Identifier: Apache-2.0
"""Reimplements the filter and score plugins of kube-scheduler for all nodes at once, with the same messages.

One module per subject: taints and node affinity, resource fit, host ports, pod affinity, topology spread, volumes. A
test compares verdicts and messages with the real kube-scheduler, pod by pod (`tests/e2e/differential.py`).

Main types: `FilterInputs` (`filter_inputs.py`): the inputs; `OwnTerms` (`interpod_affinity.py`): a pod's affinity
terms; `VolumeBinding` (`volume_binding.py`): volumes.

Must not know gangs, quotas or victims. Start reading at `resource_fit.py`, then `interpod_affinity.py`.
"""
