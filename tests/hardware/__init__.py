# SPDX-License-Identifier: Apache-2.0
"""Tests against the GPUs of the machine that they run on; without a driver they are skipped and say so."""
