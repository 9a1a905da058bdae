"""The constraints that members put on each other, for any model that counts pods per shape and place.

Sources: gang-network.md sections 5 and 7, kube-parity.md 2.6 and 2.7. A 0/1 per shape and domain says that pods of the
shape may stand there; what a pod asks of its domain is asked where it is 1. Final counts decide, no order.
"""

from collections.abc import Iterable, Mapping, Sequence

from koordpy.cluster.snapshot import Ints
from koordpy.planning.placement.ties import Apart, InOneDomain, Interaction, Near, Spread
from koordpy.planning.solver.cpsat import cp_model
from koordpy.planning.solver.staged import Term, linear

Leaving = Mapping[int, Sequence[Term]]
"""Domain -> sum of running pods that count there and leave."""
Place = tuple[int, Mapping[int, Sequence[Term]]]
"""A node (of several that share all labels, any one) and shape -> sum of the new pods of the shape there."""


class Interacting:
    """Adds constraints to a model. most: shape -> upper bound on the new pods of it in the whole model."""

    def __init__(self, model: cp_model.CpModel, places: Sequence[Place], *, most: Mapping[int, int]) -> None:
        self.model, self.places, self.most = model, places, most
        self._present: dict[tuple[int, bytes, int], cp_model.IntVar] = {}

    def add(self, one: Interaction, leaving: Sequence[Leaving] = ()) -> None:
        """leaving: per label that it goes by what leaves its count of running pods; nothing by default."""
        if isinstance(one, InOneDomain):
            self._together(one)
            return
        if not any(held.get(one.shape) for _, held in self.places):
            return
        if isinstance(one, Apart):
            self._apart(one)
        elif isinstance(one, Near):
            self._near(one, leaving or [{}] * len(one.groups))
        else:
            self._spread(one, leaving[0] if leaving else {})

    def _sums(self, shapes: Iterable[int], groups: Ints) -> dict[int, list[Term]]:
        """Domain -> new pods of the shapes there; -1 for the nodes in none."""
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

    def _standing(self, shape: int, groups: Ints) -> dict[int, cp_model.IntVar]:
        """Domain -> 0/1 that must be 1 where pods of a shape stand."""
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
        """Keeps a shape off the nodes that are in no domain."""
        outside = self._sums((shape,), groups).get(-1)
        if outside:
            self._add(outside, most=0)

    def _together(self, one: InOneDomain) -> None:
        opened: list[Term] = []
        for terms in self._sums(one.meant, one.groups).values():
            var = self.model.new_bool_var("")
            self._add([*terms, (var, -self._most_of(one.meant))], most=0)
            opened.append((var, 1))
        if opened:
            self._add(opened, most=1)

    def _apart(self, one: Apart) -> None:
        itself = one.shape in one.meant
        meant, most = self._sums(one.meant, one.groups), self._most_of(one.meant)
        if one.meant == (one.shape,):
            for domain, terms in meant.items():
                if domain >= 0:
                    self._add(terms, most=1)
            return
        for domain, present in self._standing(one.shape, one.groups).items():
            if domain in meant:
                self._add([*meant[domain], (present, most)], most=most + itself)

    def _near(self, one: Near, leaving: Sequence[Leaving]) -> None:
        itself = one.shape in one.meant
        first: list[Term] = []
        if one.may_be_first or (itself and any(leaving)):
            alone = self.model.new_bool_var("")
            first = [(alone, 1)]
            everywhere = self._sums(one.meant, one.counted.astype("int64")).get(1, [])
            most = self._most_of(one.meant)
            self._add([*everywhere, (alone, most)], most=most + 1)
            for existing, away in zip(one.existing, leaving, strict=True):
                for domain in existing.nonzero()[0].tolist():
                    # nobody else of the kind is left anywhere
                    self._add([*away.get(domain, ()), (alone, -int(existing[domain]))], least=0)
        for groups, existing, away in zip(one.groups, one.existing, leaving, strict=True):
            self._unlabelled(one.shape, groups)
            meant = self._sums(one.meant, groups)
            for domain, present in self._standing(one.shape, groups).items():
                gone = [(var, -c) for var, c in away.get(domain, ())]
                have, asked = int(existing[domain]), 1 + itself
                if have < asked or gone:
                    terms = [*meant.get(domain, []), *first, *gone, (present, -asked)]
                    self._add(terms, least=-have)

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
        for domain, present in self._standing(one.shape, one.groups).items():
            terms = [*meant.get(domain, []), *gone.get(domain, []), *least, (present, reach)]
            self._add(terms, most=one.max_skew - int(one.base[domain]) + reach)
