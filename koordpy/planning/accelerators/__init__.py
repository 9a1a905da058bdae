"""Devices that pods are given by name, one module a family (vocabulary.md 5 and 6)."""
