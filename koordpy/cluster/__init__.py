"""What is true now: resources, nodes, pods, the topology tree; an immutable Snapshot and a Draft on it. No I/O."""
