"""What users and queues deserve, and whether a job may start (quota-fairness.md 3 to 5)."""
