# SPDX-License-Identifier: Apache-2.0
"""koordpy against the real API server: the harness (assets, control plane, client, processes) and the tests."""
