"""Ascend NPUs: which chips of a node a pod takes, and jobs that ask for switches or SuperPoDs (ascend.md 1)."""
