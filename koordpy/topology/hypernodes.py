# SPDX-License-Identifier: Apache-2.0
"""Reads the network topology from Volcano's HyperNodes, for clusters without a ClusterNetworkTopology.

A HyperNode is a domain of the network. Its members are nodes, or HyperNodes of lower tiers, selected by name, pattern
or label. Each tier becomes a layer: the highest tier is the top layer, and the nodes are below the lowest tier. The
name of a layer is spec.tierName if the tier has one, else `tier1`, `tier2`, ...; the name of a domain is that of its
HyperNode. A node that is in no HyperNode of a tier gets a private domain in this layer, as a node without a layer's
label (gang-network.md section 3).

Invalid parts are reported and ignored, so that one invalid object does not remove the tree. Source: vocabulary.md 3.
"""

from collections.abc import Iterable, Mapping

from koordpy.api.counted_nouns import name_first
from koordpy.api.custom_objects import HyperNode, HyperNodeMember
from koordpy.api.keys import CLUSTER_LAYER, NODE_LAYER
from koordpy.api.label_selectors import Labels, selector_matches
from koordpy.api.natural_order import natural_key
from koordpy.topology.bounded_patterns import PatternFault, read_pattern
from koordpy.topology.topology_layers import Layer, Layers

_NAMED = 3
"""Maximum number of nodes that the text of a fault names; it ends with `and N more`."""


Warnings = tuple[tuple[str, str], ...]
"""Faults: (`HyperNode/NAME`, sentence)."""


def read_hypernodes(objects: Mapping[str, HyperNode], nodes: Mapping[str, Labels]) -> tuple[Layers, Warnings]:
    """Returns (layers with the domains of each node, all faults of the HyperNodes).

    objects: name -> HyperNode. nodes: name -> labels.
    """
    reading = _HyperNodeReading(objects, nodes)
    return reading.layers(), tuple(reading.faults)


class _HyperNodeReading:
    """One reading of all HyperNodes: first the members of each, then the layers and each node's domains.

    HyperNodes and nodes are visited in natural order of names, so that the result depends only on the objects.
    """

    def __init__(self, objects: Mapping[str, HyperNode], nodes: Mapping[str, Labels]) -> None:
        self.faults: list[tuple[str, str]] = []
        self._nodes = nodes
        names = sorted(objects, key=natural_key)
        self._objects = {name: objects[name].spec for name in names if self._tier_is_good(name, objects[name])}
        self._parents: dict[str, list[str]] = {name: [] for name in self._objects}
        """HyperNode -> the HyperNodes of higher tiers that list it."""
        self._listed: dict[str, list[str]] = {}
        """Node -> the HyperNodes that list it."""
        self._doubles: dict[tuple[int, str, str], list[str]] = {}
        """(tier, HyperNode that is used, other HyperNode) -> nodes that are in both."""
        for name, spec in self._objects.items():
            for i, member in enumerate(spec.members):
                self._take(name, f"spec.members[{i}]", member)
        self._circles()

    def _fault(self, name: str, field: str, text: str) -> None:
        self.faults.append((f"HyperNode/{name}", f"{field}: {text}"))

    def _tier_is_good(self, name: str, obj: HyperNode) -> bool:
        """Returns True if the tier of a HyperNode is valid; otherwise reports it."""
        if obj.spec.tier >= 1:
            return True
        self._fault(name, "spec.tier", f"must be 1 or more, not {obj.spec.tier}: the object is ignored")
        return False

    # -- members ------------------------------------------------------------------------------------------------------

    def _take(self, name: str, field: str, member: HyperNodeMember) -> None:
        """Adds everything that one member entry of HyperNode `name` selects, or reports why it selects nothing.

        field: path of the entry in the object, for the report.
        """
        if member.type not in ("Node", "HyperNode"):
            self._fault(name, f"{field}.type", f"must be Node or HyperNode, not {member.type!r}: the member is ignored")
            return
        selector = member.selector
        given = [one for one in (selector.exact_match, selector.regex_match, selector.label_match) if one is not None]
        if len(given) != 1:
            what = "none" if not given else "several"
            text = f"{what} of exactMatch, regexMatch and labelMatch, one is required: the member is ignored"
            self._fault(name, f"{field}.selector", text)
            return
        # names that the selector matches
        of_nodes = member.type == "Node"
        known: Iterable[str] = self._nodes if of_nodes else self._objects
        found: list[str] = []
        if selector.exact_match is not None:
            wanted = selector.exact_match.name
            found = [wanted] if wanted in (self._nodes if of_nodes else self._objects) else []
            if not found:
                self._fault(name, f"{field}.selector.exactMatch.name", f"there is no {member.type} {wanted!r}")
        elif selector.regex_match is not None:
            try:
                pattern = read_pattern(selector.regex_match.pattern)
            except PatternFault as fault:
                self._fault(name, f"{field}.selector.regexMatch.pattern", f"cannot be read: {fault}")
                return
            found = [one for one in known if one != name and pattern.search(one)]
            if not of_nodes:
                # of the HyperNodes with matching names, a pattern selects only those of lower tiers
                found = [one for one in found if self._objects[one].tier < self._objects[name].tier]
            if not found:
                self._fault(name, f"{field}.selector.regexMatch.pattern", f"matches no {member.type}")
        elif not of_nodes:
            self._fault(
                name, f"{field}.selector.labelMatch", "applies to members of type Node only: the member is ignored"
            )
        elif selector.label_match is not None:
            found = [one for one, labels in self._nodes.items() if selector_matches(selector.label_match, labels)]
            if not found:
                self._fault(name, f"{field}.selector.labelMatch", "matches no Node")
        # this HyperNode contains each of them
        into = self._listed if of_nodes else self._parents
        for one in found:
            holders = into.setdefault(one, [])
            if name not in holders:
                holders.append(name)

    def _circles(self) -> None:
        """Removes members of the same or a higher tier than their HyperNode, and reports them. Afterwards the
        HyperNodes have no cycles."""
        for name in self._objects:
            for parent in list(self._parents[name]):
                if self._objects[parent].tier > self._objects[name].tier:
                    continue
                circle = self._circle(name, parent)
                self._parents[name].remove(parent)
                if circle:
                    text = f"the members form a cycle: {', '.join(circle)}; {name} is removed from {parent}"
                else:
                    mine, its = self._objects[parent].tier, self._objects[name].tier
                    text = f"HyperNode {name} has tier {its}, which is not below tier {mine}: the member is ignored"
                self._fault(parent, "spec.members", text)

    def _circle(self, name: str, parent: str) -> list[str]:
        """Returns the HyperNodes of a cycle through `name` and its parent, in natural order.

        Empty if `name` is not above `parent`, so that there is no cycle.
        """
        came = self._above(parent)
        path = [name] if name in came else []
        while path and came[path[-1]]:
            path.append(came[path[-1]])
        return sorted(path, key=natural_key)

    # -- layers -------------------------------------------------------------------------------------------------------

    def layers(self) -> Layers:
        """Returns the layers with the domains of each node, and reports nodes in two HyperNodes of a tier."""
        tiers = sorted({spec.tier for spec in self._objects.values()}, reverse=True)
        chain = [Layer(name, (), tier) for name, tier in zip(self._names(tiers), tiers, strict=True)]
        places = {node: self._place(node, tiers) for node in self._nodes}
        self._tell_doubles()
        return Layers((*chain, Layer(NODE_LAYER, ())), places)

    def _names(self, tiers: list[int]) -> list[str]:
        """Returns the layer name of each tier: spec.tierName, or `tierN` if that is missing or invalid.

        A tierName is invalid, and reported, if HyperNodes of the tier have different ones, if another tier has the same
        one, or if it is the name of another layer.
        """
        given: dict[int, list[str]] = {tier: [] for tier in tiers}
        first: dict[tuple[int, str], str] = {}
        for name, spec in self._objects.items():
            if spec.tier_name and spec.tier_name not in given[spec.tier]:
                given[spec.tier].append(spec.tier_name)
                first[spec.tier, spec.tier_name] = name
        plain = {f"tier{tier}": tier for tier in tiers}
        out = []
        for tier in tiers:
            names, word = given[tier], ""
            if len(names) > 1:
                word = f"tier {tier} has several names: {', '.join(names)}"
            elif names:
                elsewhere = [other for other in tiers if other != tier and names[0] in given[other]]
                if elsewhere:
                    word = f"{names[0]} is the name of the tiers {min(tier, *elsewhere)} and {max(tier, *elsewhere)}"
                elif names[0] in (CLUSTER_LAYER, NODE_LAYER) or plain.get(names[0], tier) != tier:
                    word = f"{names[0]} is the name of another layer"
            if word:
                self._fault(first[tier, names[-1]], "spec.tierName", f"{word}; the layer is called tier{tier}")
            out.append(names[0] if names and not word else f"tier{tier}")
        return out

    def _above(self, name: str) -> dict[str, str]:
        """Returns a HyperNode and all HyperNodes that contain it directly or indirectly, the nearest first, as keys.

        The value is the HyperNode one step below that led to it; empty for the first.
        """
        came = {name: ""}
        todo = [name]
        for at in todo:
            for up in self._parents[at]:
                if up not in came:
                    came[up] = at
                    todo.append(up)
        return came

    def _place(self, node: str, tiers: list[int]) -> tuple[str, ...]:
        """Returns the name of the node's HyperNode of each tier; an empty name if it has none.

        If a node is in several HyperNodes of a tier, one that contains the HyperNode chosen for the tier below is used;
        if that does not decide, the first in natural order. The remaining ones are recorded for a report.
        """
        # tier -> HyperNodes that contain the node
        held: dict[int, dict[str, None]] = {}
        for listed in self._listed.get(node, ()):
            for name in self._above(listed):
                held.setdefault(self._objects[name].tier, {})[name] = None
        below: dict[str, None] = {}
        chosen: dict[int, str] = {}
        for tier in sorted(held):
            names = sorted(held[tier], key=lambda name: (name not in below, natural_key(name)))
            chosen[tier] = names[0]
            for name in names[1:]:
                self._doubles.setdefault((tier, names[0], name), []).append(node)
            below.update(dict.fromkeys(self._above(names[0])))
        return tuple(chosen.get(tier, "") for tier in tiers)

    def _tell_doubles(self) -> None:
        """Reports the nodes that are in two HyperNodes of a tier."""
        for (tier, counts, other), nodes in sorted(self._doubles.items()):
            what = "node" if len(nodes) == 1 else "nodes"
            names = name_first(sorted(nodes, key=natural_key), _NAMED)
            text = f"{what} {names} in two HyperNodes of tier {tier}, {counts} and {other}: {counts} is used"
            self._fault(other, "spec.members", text)
