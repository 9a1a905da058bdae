"""What is written besides Bindings: conditions, statuses, events (kube-parity.md 4.5 and 4.6)."""
