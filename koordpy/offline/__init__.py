"""Manifests as a cluster: files read strictly, filled in as an API server would, and what workloads make of them."""
