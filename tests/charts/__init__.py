# SPDX-License-Identifier: Apache-2.0
"""The Helm chart, as far as it can be checked without helm."""
