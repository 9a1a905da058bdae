# SPDX-License-Identifier: Apache-2.0
"""The page and what it draws."""
