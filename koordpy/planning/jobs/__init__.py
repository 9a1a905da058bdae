"""Jobs with rules of their own for where they go, before the order of goals (gpu-topology.md 5, ascend.md 3 to 5)."""
