"""Benchmarks: `make bench`, or one of them as `python -m bench.NAME`."""
