"""HyperNode of topology.volcano.sh/v1alpha1 on the wire: read only, never written.

A HyperNode is a switch, or another domain of the network, with its members: nodes, or HyperNodes of a lower tier. The
smaller its tier, the closer its members are to each other.
"""

import msgspec

from koordpy.api.objects import LabelSelector, ObjectMeta, Wire


class ExactMatch(Wire, frozen=True):
    name: str = ""


class RegexMatch(Wire, frozen=True):
    pattern: str = ""


class MemberSelector(Wire, frozen=True):
    """Exactly one of the three; labelMatch for members of type Node only."""

    exact_match: ExactMatch | None = None
    regex_match: RegexMatch | None = None
    label_match: LabelSelector | None = None


class HyperNodeMember(Wire, frozen=True):
    type: str = ""
    """Node or HyperNode."""
    selector: MemberSelector = MemberSelector()


class HyperNodeSpec(Wire, frozen=True):
    tier: int = 0
    tier_name: str = ""
    members: list[HyperNodeMember] = msgspec.field(default_factory=list)


class HyperNode(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: HyperNodeSpec = HyperNodeSpec()
