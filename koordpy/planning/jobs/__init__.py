"""Jobs that have rules of their own for where they go, one module a kind (gpu-topology.md 5, ascend.md 3 to 5)."""
