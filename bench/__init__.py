# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: `make bench`, or one of them as `python -m bench.NAME`."""
