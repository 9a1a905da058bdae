"""Which GPUs of a node pods get, and what nodes are worth to pods with GPUs (gpu-topology.md 4 and 5)."""
