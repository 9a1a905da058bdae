"""Who is next, who waits behind whom, and for how long (gang-network.md 2.9, docs/queueing.md)."""
