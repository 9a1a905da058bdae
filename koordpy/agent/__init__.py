"""The node side: which GPUs a node has, how they are linked and how they are, written to the node's Device.

Source: gpu-topology.md 9. `machine` says what a backend has to tell, `backends` tell it (NVML, a YAML file, the
text of `nvidia-smi topo -m`), `links` and `report` make a Device of it, `health` decides which GPUs may be given away.
"""
