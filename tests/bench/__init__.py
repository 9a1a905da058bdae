"""Tests of what the benchmarks compute and observe; what they measure is nobody's promise."""
