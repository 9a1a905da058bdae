# SPDX-License-Identifier: Apache-2.0
"""Tests of what the benchmarks compute and observe; what they measure is nobody's promise."""
