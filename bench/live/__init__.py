# SPDX-License-Identifier: Apache-2.0
"""What measurements against a real control plane share: the cluster, the watch, the schedulers and their figures."""
