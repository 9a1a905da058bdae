"""What the members of one gang are to each other: ports, claims, affinity, spread (gang-network.md 2)."""
