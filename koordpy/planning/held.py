"""Nodes that are kept for a starving job: the guard (`starvation.py`) decides, the job's verdict (`attempt.py`) tells.

Source: quota-fairness.md 2.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from koordpy.api.quantity import quantity_text
from koordpy.cluster.resources import Amounts


@dataclass(frozen=True, slots=True)
class Hold:
    """What one starving job holds. needs: node position -> what its pods there ask, their number under PODS."""

    needs: Mapping[int, Amounts]
    names: tuple[str, ...]
    lacking: Amounts
    """What is still to come free, summed over the nodes."""

    @property
    def text(self) -> str:
        """As its pods' messages say it."""
        held = f"holding nodes [{' '.join(self.names)}]"
        short = ", ".join(f"{quantity_text(name, amount)} {name}" for name, amount in sorted(self.lacking.items()))
        return f"{held}: waiting for {short}" if short else held
