"""What is true now: resource vectors, nodes, pods, the topology tree; an immutable Snapshot and a Draft on it. No I/O."""
