"""How queues are compared, one module a mode of `fairness.mode` (quota-fairness.md 2)."""
