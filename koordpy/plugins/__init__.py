"""Filters and scores of kube-scheduler, with its sentences: one module per concept, and the inputs of all.

The results are compared with the real kube-scheduler, pod by pod and word by word (`tests/e2e/differential.py`).

Main types: `FilterInputs` (`filter_inputs.py`): the inputs; `OwnTerms` (`interpod_affinity.py`): a pod's affinity
terms; `VolumeBinding` (`volume_binding.py`): volumes.

Must not know gangs, quotas or victims. Start reading at `resource_fit.py`, then `interpod_affinity.py`.
"""
