# SPDX-License-Identifier: Apache-2.0
"""The rooms of the package that tests ask about together, as folders below koordpy/."""

from pathlib import Path

import koordpy

PACKAGE = Path(koordpy.__file__).parent
PLANNER = (
    "attempts", "devices", "explain", "fairness", "feasibility", "framework", "gangs", "infeasibility", "placement",
    "plan", "planner", "plugins", "preemption", "problems", "report", "reservations", "verify",
)  # fmt: skip
"""What plans a round: pure, and nothing of the cache or of what users write."""
SAYING = (*PLANNER, "api", "cache", "config", "decoding", "pods", "quota", "topology", "workloads")
"""Rooms whose text constants are sentences for users."""
FAMILIES = {
    "GPUs": ("devices/gpu",),
    "Ascend": ("devices/ascend",),
    "claims": ("devices/dra", "gangs/claim_constraints", "engine/binding/claim_writes"),
}
"""Family of devices -> its folders and modules."""
REGISTRIES = ("devices/family_registry", "devices/rule_registry")
"""May name every family."""


def dotted(path: str) -> str:
    """The dotted name of a folder or module below koordpy/."""
    return f"koordpy.{path.replace('/', '.')}"


def is_below(module: str, paths: tuple[str, ...]) -> bool:
    """Whether a module (dotted) is one of the paths, or in one."""
    return any(module == dotted(path) or module.startswith(dotted(path) + ".") for path in paths)
