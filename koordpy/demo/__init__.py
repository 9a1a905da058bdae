"""The demo: gangs arrive on a cluster of its own, and what the live scheduler does is held against its own forecast."""
