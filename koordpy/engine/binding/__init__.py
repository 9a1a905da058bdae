"""From a plan to Bindings: what is written before them, their line, and what is not confirmed (kube-parity.md 4.4)."""
