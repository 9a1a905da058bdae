"""The constraints among members, for any model that counts pods per shape and place.

Sources: gang-network.md sections 5 and 7, kube-parity.md 2.6 and 2.7. A 0/1 variable per shape and domain must be 1 if
pods of the shape are placed there; it activates their constraints on the domain. The final counts decide, not an order
of placing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from koordpy.cache.snapshot import Ints
from koordpy.placement.member_interactions import Apart, InOneDomain, Interaction, LinkedAffinity, Near, Spread
from koordpy.placement.solver.cpsat import cp_model
from koordpy.placement.solver.staged_model import Term, linear

Leaving = Mapping[int, Sequence[Term]]
"""Domain -> sum of the running pods that match there and are evicted."""
Place = tuple[int, Mapping[int, Sequence[Term]]]
"""A node (any one of several with equal labels), and shape -> sum of the new pods of the shape there."""


class Interacting:
    """Adds constraints to a model.

    most: shape -> upper bound on its new pods in the whole model. every: True if that many are placed.
    """

    def __init__(
        self, model: cp_model.CpModel, places: Sequence[Place], *, most: Mapping[int, int], every: bool = True
    ) -> None:
        self.model, self.places, self.most, self.every = model, places, most, every
        self._present: dict[tuple[int, bytes, int], cp_model.IntVar] = {}

    def add(self, one: Interaction, leaving: Sequence[Leaving] = ()) -> None:
        """Adds one interaction.

        leaving: per label, the evictions that lower the count of running pods; empty for none.
        """
        if isinstance(one, InOneDomain):
            self._add_one_domain(one)
            return
        if isinstance(one, LinkedAffinity):
            self._linked(one, leaving)
            return
        if not any(held.get(one.shape) for _, held in self.places):
            return
        if isinstance(one, Apart):
            self._add_anti_affinity(one)
        else:
            self._spread(one, leaving[0] if leaving else {})

    def _sums(self, shapes: Iterable[int], groups: Ints) -> dict[int, list[Term]]:
        """Returns domain -> new pods of the shapes there; -1 for nodes in no domain."""
        out: dict[int, list[Term]] = {}
        for shape in shapes:
            for node, held in self.places:
                if held.get(shape):
                    out.setdefault(int(groups[node]), []).extend(held[shape])
        return out

    def _most_of(self, shapes: Iterable[int]) -> int:
        return sum(self.most.get(shape, 0) for shape in shapes)

    def _add(self, terms: Sequence[Term], *, least: int | None = None, most: int | None = None) -> None:
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
        opened: list[Term] = []
        for terms in self._sums(one.meant, one.groups).values():
            var = self.model.new_bool_var("")
            self._add([*terms, (var, -self._most_of(one.meant))], most=0)
            opened.append((var, 1))
        if opened:
            self._add(opened, most=1)

    def _add_anti_affinity(self, one: Apart) -> None:
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
        """Adds required affinity of linked pods: existing matches, and one new place for pods without a match."""
        labels = iter(leaving or [{}] * sum(len(near.groups) for near in one.owners))
        away = {near.shape: [next(labels) for _ in near.groups] for near in one.owners}
        placed = {shape for shape in one.shapes if any(held.get(shape) for _, held in self.places)}
        for owners in one.sets(placed):
            first = {near.shape: self._first(near, one.unlinked(near), away[near.shape]) for near in owners}
            for near in owners:
                self._add_matches(near, one.unlinked(near), away[near.shape], first[near.shape])
            self._add_new_place(owners, first)

    def _first(self, near: Near, unlinked: Sequence[int], away: Sequence[Leaving]) -> cp_model.IntVar | bool:
        """Returns a 0/1 that is 1 only if no unlinked match exists; True or False if no choice decides it."""
        pairs = list(zip(near.existing, away, strict=True))
        if any(not gone.get(domain) for existing, gone in pairs for domain in existing.nonzero()[0].tolist()):
            return False
        everywhere = self._sums(unlinked, near.counted.astype("int64")).get(1, [])
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
        self, near: Near, unlinked: Sequence[int], away: Sequence[Leaving], first: cp_model.IntVar | bool
    ) -> None:
        """Requires a match in each domain: an unlinked one, or any if there is no unlinked match.

        A pod may be the match itself.
        """
        itself = near.matches_itself
        for groups, existing, leaving in zip(near.groups, near.existing, away, strict=True):
            self._unlabelled(near.shape, groups)
            if first is True and itself:
                continue
            alone, every = self._sums(unlinked, groups), self._sums(near.meant, groups)
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

    def _add_new_place(self, owners: Sequence[Near], first: Mapping[int, cp_model.IntVar | bool]) -> None:
        """Places pods without an existing match in the domains of one node, common to all that are linked."""
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

    def _chosen(self, owners: Sequence[Near], places: int) -> Iterator[tuple[list[cp_model.IntVar], frozenset[int]]]:
        """Yields (0/1 per place that may be opened, at most one of them 1; the shapes that the choice applies to).

        If shapes may be left out, two shapes that are linked only by a third may use separate places without it.
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
        terms = [term for _, held in self.places for term in held.get(shape, ())]
        self._add([*terms, (placed, -self.most[shape])], most=0)
        return placed

    # --- spread -----------------------------------------------------------------------------------------------------

    def _spread(self, one: Spread, leaving: Leaving) -> None:
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
        reach = int(one.base.max(initial=0)) + self._most_of(one.meant)
        for domain, present in self._presence(one.shape, one.groups).items():
            terms = [*meant.get(domain, []), *gone.get(domain, []), *least, (present, reach)]
            self._add(terms, most=one.max_skew - int(one.base[domain]) + reach)
