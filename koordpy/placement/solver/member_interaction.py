# SPDX-License-Identifier: Apache-2.0
"""Pod affinity, anti-affinity, spread and one-domain rules among the members of a plan, as CP-SAT constraints.

They can be added to any model that counts new pods per shape and node: the model of a placement, and the model of
victims, in which evictions reduce the running pods. A rule applies in a domain only if a pod with the rule is placed
there. So there is a 0/1 variable per shape and domain, the *presence*, which must be 1 if pods of the shape are there,
and which activates the constraint. The final counts decide, not an order of placing. An unlinked match of a pod is a
pod that satisfies its required affinity and has no required affinity itself, or runs before the plan
(`LinkedAffinity`). Sources: docs/rules/gang-network.md 5 and 7, kube-parity.md 2.6 and 2.7.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from koordpy.cache.snapshot import Ints
from koordpy.placement.member_interactions import (
    AntiAffinity,
    InOneDomain,
    Interaction,
    LinkedAffinity,
    RequiredAffinity,
    Spread,
)
from koordpy.placement.solver.cpsat import cp_model
from koordpy.placement.solver.staged_model import Term, linear

Leaving = Mapping[int, Sequence[Term]]
"""Domain -> number of running pods there that match a term and are evicted, as terms of the model."""
ModelNode = tuple[int, Mapping[int, Sequence[Term]]]
"""(node, shape -> number of its new pods there as terms). The node may be the first of several nodes with equal
labels."""


class Interacting:
    """Adds the constraints of interactions to a model.

    nodes: the nodes or cells of the model. most: shape -> upper bound of its new pods in the whole model. every: True
    if exactly that many pods are placed; False if the model may leave pods out.
    """

    def __init__(
        self, model: cp_model.CpModel, nodes: Sequence[ModelNode], *, most: Mapping[int, int], every: bool = True
    ) -> None:
        self.model, self.nodes, self.most, self.every = model, nodes, most, every
        self._present: dict[tuple[int, bytes, int], cp_model.IntVar] = {}

    def add(self, one: Interaction, leaving: Sequence[Leaving] = ()) -> None:
        """Adds one interaction.

        leaving: for each topology key of the interaction, the evictions that lower the number of running pods; empty if
        the model evicts no pods.
        """
        if isinstance(one, InOneDomain):
            self._add_one_domain(one)
            return
        if isinstance(one, LinkedAffinity):
            self._linked(one, leaving)
            return
        if not any(pods.get(one.shape) for _, pods in self.nodes):
            return
        if isinstance(one, AntiAffinity):
            self._add_anti_affinity(one)
        else:
            self._spread(one, leaving[0] if leaving else {})

    def _sums(self, shapes: Iterable[int], groups: Ints) -> dict[int, list[Term]]:
        """Returns domain -> number of new pods of the shapes there, as terms. Domain -1 is the nodes in no domain."""
        out: dict[int, list[Term]] = {}
        for shape in shapes:
            for node, pods in self.nodes:
                if pods.get(shape):
                    out.setdefault(int(groups[node]), []).extend(pods[shape])
        return out

    def _most_of(self, shapes: Iterable[int]) -> int:
        """Returns an upper bound of the new pods of the shapes together.

        It also serves to deactivate constraints (big M).
        """
        return sum(self.most.get(shape, 0) for shape in shapes)

    def _add(self, terms: Sequence[Term], *, least: int | None = None, most: int | None = None) -> None:
        """Adds `least <= sum of terms <= most`; None for no limit."""
        expression = linear(terms)
        if least is not None:
            self.model.add(expression >= least)
        if most is not None:
            self.model.add(expression <= most)

    def _presence(self, shape: int, groups: Ints) -> dict[int, cp_model.IntVar]:
        """Returns domain -> 0/1 variable that must be 1 if pods of a shape are placed there."""
        out = {}
        for domain, terms in self._sums((shape,), groups).items():
            if domain < 0:
                continue
            key = (shape, groups.tobytes(), domain)
            var = self._present.get(key)
            if var is None:
                var = self._present[key] = self.model.new_bool_var("")
                self._add([*terms, (var, -self.most[shape])], most=0)
            out[domain] = var
        return out

    def _unlabelled(self, shape: int, groups: Ints) -> None:
        """Forbids a shape on the nodes that are in no domain."""
        outside = self._sums((shape,), groups).get(-1)
        if outside:
            self._add(outside, most=0)

    def _add_one_domain(self, one: InOneDomain) -> None:
        """Allows at most one domain with pods of the part."""
        opened: list[Term] = []
        for terms in self._sums(one.meant, one.groups).values():
            var = self.model.new_bool_var("")
            self._add([*terms, (var, -self._most_of(one.meant))], most=0)
            opened.append((var, 1))
        if opened:
            self._add(opened, most=1)

    def _add_anti_affinity(self, one: AntiAffinity) -> None:
        """Allows no matching pod in a domain with a pod of the shape, except the pod itself if it matches."""
        itself = one.shape in one.meant
        meant, most = self._sums(one.meant, one.groups), self._most_of(one.meant)
        if one.meant == (one.shape,):
            for domain, terms in meant.items():
                if domain >= 0:
                    self._add(terms, most=1)
            return
        for domain, present in self._presence(one.shape, one.groups).items():
            if domain in meant:
                self._add([*meant[domain], (present, most)], most=most + itself)

    # --- required affinity ------------------------------------------------------------------------------------------

    def _linked(self, one: LinkedAffinity, leaving: Sequence[Leaving]) -> None:
        """Adds required affinity of linked pods (`LinkedAffinity`).

        Pods with an unlinked match must be in domains with such a match. All linked pods without an unlinked match
        share one new place.
        """
        # shape -> for each term, the evictions of running pods that match
        labels = iter(leaving or [{}] * sum(len(near.groups) for near in one.owners))
        away = {near.shape: [next(labels) for _ in near.groups] for near in one.owners}
        placed = {shape for shape in one.shapes if any(pods.get(shape) for _, pods in self.nodes)}
        for owners in one.sets(placed):
            first = {near.shape: self._first(near, one.unlinked(near), away[near.shape]) for near in owners}
            for near in owners:
                self._add_matches(near, one.unlinked(near), away[near.shape], first[near.shape])
            self._add_new_place(owners, first)

    def _first(
        self, near: RequiredAffinity, unlinked: Sequence[int], away: Sequence[Leaving]
    ) -> cp_model.IntVar | bool:
        """Returns a 0/1 variable that is 1 only if the shape has no unlinked match, so that its pods may open a new
        place.

        An unlinked match here is a running pod that is not evicted, or a new pod without required terms. True or False
        instead of a variable if the answer is the same for every choice of the model.
        """
        pairs = list(zip(near.existing_matches, away, strict=True))
        if any(not gone.get(domain) for existing, gone in pairs for domain in existing.nonzero()[0].tolist()):
            return False
        everywhere = self._sums(unlinked, near.labelled.astype("int64")).get(1, [])
        if not everywhere and not near.has_existing:
            return True
        first = self.model.new_bool_var("")
        most = self._most_of(unlinked)
        if everywhere:
            self._add([*everywhere, (first, most)], most=most)
        for existing, gone in pairs:
            for domain in existing.nonzero()[0].tolist():
                # all of them are evicted
                self._add([*gone[domain], (first, -int(existing[domain]))], least=0)
        return first

    def _add_matches(
        self, near: RequiredAffinity, unlinked: Sequence[int], away: Sequence[Leaving], first: cp_model.IntVar | bool
    ) -> None:
        """Requires a match in each domain with a pod of the shape, for each term.

        If there is an unlinked match (`first` is 0), the match in the domain must be an unlinked one. Otherwise any
        matching pod is enough, including the pod itself if it matches its own terms.
        """
        itself = near.matches_itself
        for groups, existing, leaving in zip(near.groups, near.existing_matches, away, strict=True):
            self._unlabelled(near.shape, groups)
            if first is True and itself:
                continue
            alone, every = self._sums(unlinked, groups), self._sums(near.meant, groups)
            # the presence is not needed if every domain has a running match that is not evicted
            standing = self._presence(near.shape, groups) if first is not False or leaving or not existing.all() else {}
            for domain, present in standing.items():
                have, gone = int(existing[domain]), [(var, -c) for var, c in leaving.get(domain, ())]
                if have and not gone:
                    continue
                if first is not True:
                    opened = [(first, 1)] if not isinstance(first, bool) else []
                    self._add([*alone.get(domain, []), *gone, *opened, (present, -1)], least=-have)
                if first is not False and not itself:
                    self._add([*every.get(domain, []), *gone, (present, -1)], least=-have)

    def _add_new_place(self, owners: Sequence[RequiredAffinity], first: Mapping[int, cp_model.IntVar | bool]) -> None:
        """Places all linked pods without an unlinked match in the domains of one node.

        owners: one set of linked shapes. first: shape -> result of `_first`. A place is a combination of domains, one
        per topology key, that some node has; at most one place is chosen.
        """
        # the places: rows of domains, one column per topology key of the shapes that may open a place
        opening = [near for near in owners if first[near.shape] is not False]
        keys = {key: groups for near in opening for key, groups in near.keys.items()}
        if not keys:
            return
        rows = np.unique(np.stack(list(keys.values()), axis=1), axis=0)
        column = {key: rows[:, i] for i, key in enumerate(keys)}
        inside = {
            (near.shape, key): {d: terms for d, terms in self._sums((near.shape,), groups).items() if d >= 0}
            for near in opening
            for key, groups in near.keys.items()
        }
        # only places in which some pod may be placed; such pods are then allowed in a domain only if it is of a chosen
        # place
        useful = np.logical_or.reduce([np.isin(column[key], list(found)) for (_, key), found in inside.items()])
        column = {key: of[useful] for key, of in column.items()}
        for chosen, shapes in self._chosen(owners, int(useful.sum())):
            for near in opening:
                if near.shape not in shapes:
                    continue
                most, sure = self.most[near.shape], first[near.shape]
                other = [] if isinstance(sure, bool) else [(sure, most)]
                for key in near.keys:
                    for domain, terms in inside[near.shape, key].items():
                        here = [(chosen[i], -most) for i in np.nonzero(column[key] == domain)[0].tolist()]
                        self._add([*terms, *here, *other], most=most if other else 0)

    def _chosen(
        self, owners: Sequence[RequiredAffinity], places: int
    ) -> Iterator[tuple[list[cp_model.IntVar], frozenset[int]]]:
        """Yields (0/1 variable per place, at most one of them 1; the shapes that must be in the chosen place).

        Usually there is one choice for all shapes. If the model may leave shapes out, each shape has a separate choice:
        two shapes that are linked only by a third may use separate places if the third is not placed. Two shapes that
        are linked directly must have the same choice if both are placed.
        """
        apart = not self.every and len(owners) > 2
        choices: dict[int, list[cp_model.IntVar]] = {}
        for near in owners if apart else owners[:1]:
            choices[near.shape] = [self.model.new_bool_var("") for _ in range(places)]
            self.model.add_at_most_one(choices[near.shape])
        if not apart:
            yield choices[owners[0].shape], frozenset(near.shape for near in owners)
            return
        present = {near.shape: self._is_placed(near.shape) for near in owners}
        for i, near in enumerate(owners):
            for other in owners[i + 1 :]:
                if other.shape not in near.meant and near.shape not in other.meant:
                    continue
                both = present[near.shape], present[other.shape]
                for one, two in zip(choices[near.shape], choices[other.shape], strict=True):
                    self.model.add(one == two).only_enforce_if(both)
        for shape, chosen in choices.items():
            yield chosen, frozenset([shape])

    def _is_placed(self, shape: int) -> cp_model.IntVar:
        """Returns a 0/1 variable that must be 1 if any pod of a shape is placed."""
        placed = self.model.new_bool_var("")
        terms = [term for _, pods in self.nodes for term in pods.get(shape, ())]
        self._add([*terms, (placed, -self.most[shape])], most=0)
        return placed

    # --- spread -----------------------------------------------------------------------------------------------------

    def _spread(self, one: Spread, leaving: Leaving) -> None:
        """Adds a topology spread constraint.

        A variable is limited to the number of matching pods in every eligible domain, so it can be the global minimum.
        In each domain with a pod of the shape, the number may exceed this variable by at most maxSkew.
        """
        self._unlabelled(one.shape, one.groups)
        meant = self._sums(one.meant, one.groups)
        gone = {domain: [(var, -c) for var, c in terms] for domain, terms in leaving.items()}
        least: list[Term] = []
        if not one.from_zero:
            top = int(one.base.max(initial=0)) + self._most_of(one.meant)
            var = self.model.new_int_var(0, top, "")
            least = [(var, -1)]
            for domain in one.eligible.nonzero()[0].tolist():
                terms = [*meant.get(domain, []), *gone.get(domain, []), *least]
                self._add(terms, least=-int(one.base[domain]))
        # in a domain without a pod of the shape, the limit is increased by `reach`, which no number of pods exceeds
        reach = int(one.base.max(initial=0)) + self._most_of(one.meant)
        for domain, present in self._presence(one.shape, one.groups).items():
            terms = [*meant.get(domain, []), *gone.get(domain, []), *least, (present, reach)]
            self._add(terms, most=one.max_skew - int(one.base[domain]) + reach)
