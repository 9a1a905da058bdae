# SPDX-License-Identifier: Apache-2.0
"""How the package is built: its rooms, and figures of how few modules a change and a pod touch."""
