# SPDX-License-Identifier: Apache-2.0
"""koordpy beside kube-scheduler on one control plane, seen from outside: one table of speed, CPU and memory.

Everything is measured through the API server and /proc alone, so that any scheduler can be measured the same way.
"""
