# SPDX-License-Identifier: Apache-2.0
"""Real nodes: kubelet, containerd and runc in namespaces of their own, for tests that a fake kubelet would let pass."""
