"""Metrics, health endpoints, events, logs."""
