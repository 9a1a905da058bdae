# SPDX-License-Identifier: Apache-2.0
"""Tenants with the rights of a tenant who harm others as much as they can, beside one who is honest (SECURITY.md)."""
