# SPDX-License-Identifier: Apache-2.0
"""Defines the amounts by which a pending unit would raise the usage that one limit of a quota counts."""

from typing import NamedTuple


class QuotaNeed(NamedTuple):
    """The least amount of one resource that a unit would add to the usage of a quota. Cpu is in milli-cores."""

    quota: str
    rigid: bool
    """False for the max of the quota, which counts all pods. True for its min, which counts non-preemptible pods."""
    resource: str
    amount: int
