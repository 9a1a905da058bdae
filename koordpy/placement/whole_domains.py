# SPDX-License-Identifier: Apache-2.0
"""Assigns ranks to equal pods with pipeline groups, so that each domain has consecutive ranks (gang-network.md 5).

The number of pods per node is given; the order of the domains along the ranks is searched. If each domain has one run
of consecutive ranks, the ring of ranks crosses as few domain borders as possible (goal 7). The order must also keep as
many pipeline groups whole as goal 3 counts: `count // PP` in a domain with `count` pods, where PP is the size of a
group. A run of `count` pods that begins at position `start` contains `(count - (-start mod PP)) // PP` whole groups, so
only `start` modulo PP matters.

A depth-first search orders the children of each domain, and remembers the sets of children that cannot be completed. Of
domains with equal content, only one is tried. The search gives up after `RANK_STEPS` steps.
"""

from collections.abc import Mapping, Sequence

from koordpy.placement.problem import Problem
from koordpy.plan.limits import RANK_STEPS


class WholeDomains:
    """Searches an order of the domains with pods, in which each domain has one run of ranks.

    counts: node -> pods; their sum must be a multiple of the group size PP.
    """

    def __init__(self, problem: Problem, counts: Mapping[int, int]) -> None:
        self.problem, self.size, self.depth = problem, problem.pipeline, problem.tree.depth
        self.steps = 0
        self.count: dict[tuple[int, int], int] = {}
        """(level, domain) -> pods in it; only domains with pods."""
        self.below: dict[tuple[int, int], list[int]] = {}
        """(level, domain) -> its children with pods."""
        self.kind: dict[tuple[int, int], int] = {}
        """(level, domain) -> number for its content; equal for domains with the same numbers of pods in the same
        subtree."""
        self.stuck: set[tuple[tuple[int, ...], int]] = set()
        """(sorted kinds of the children that are not ordered yet, start modulo PP) for which the search found no
        order."""
        self._read(counts)

    def _read(self, counts: Mapping[int, int]) -> None:
        """Fills `count`, `below` and `kind` from the pods per node."""
        tree, numbers = self.problem.tree, dict[tuple[object, ...], int]()
        for node, n in sorted(counts.items()):
            for level, domain in enumerate(tree.domain_of[:, node].tolist()):
                self.count[level, domain] = self.count.get((level, domain), 0) + n
                below = self.below.setdefault((level - 1, int(tree.domain_of[level - 1, node])), []) if level else []
                if domain not in below:
                    below.append(domain)
        for level, domain in sorted(self.count, reverse=True):
            kinds = sorted(self.kind[level + 1, d] for d in self.below.get((level, domain), ()))
            sign = (level, self.count[level, domain], *kinds)
            self.kind[level, domain] = numbers.setdefault(sign, len(numbers))

    def find(self) -> list[int] | None:
        """Returns the node of each rank; None if no such order was found.

        The first run may begin at any position within a pipeline group. The end of the last run then continues at the
        first ranks, because the ring is cyclic.
        """
        level, domain = 0, 0
        while level < self.depth and len(self.below[level, domain]) == 1:
            level, domain = level + 1, self.below[level, domain][0]
        if level == self.depth:
            return [domain] * self.count[level, domain]
        for start in range(self.size):
            if found := self._ordered(level + 1, self.below[level, domain], start):
                return found[len(found) - start :] + found[: len(found) - start]
        return None

    def _run(self, level: int, domain: int, start: int) -> list[int] | None:
        """Returns the nodes of a domain's run, in rank order; None if the domain would have too few whole groups.

        start: position in the ring, modulo PP, at which the run begins.
        """
        count, size = self.count[level, domain], self.size
        if count >= size and (count - -start % size) // size < count // size:
            return None
        return [domain] * count if level == self.depth else self._ordered(level + 1, self.below[level, domain], start)

    def _ordered(self, level: int, domains: Sequence[int], start: int) -> list[int] | None:
        """Returns the nodes of the runs of all domains, one after the other, in the naturally first order that is
        found.

        None if there is no order, or if the steps are used up. start: as for `_run`.
        """
        # depth-first search without recursion: `runs` is the order so far, `options` the untried domains of each depth
        left, runs = list(domains), list[tuple[int, list[int]]]()
        options = [self._options(level, left)]
        while True:
            while not options[-1]:  # all options are tried: remember the failure, and remove the last run
                options.pop()
                self.stuck.add((self._content(level, left), start))
                if not runs:
                    return None
                domain, nodes = runs.pop()
                left = sorted([*left, domain])
                start = (start - len(nodes)) % self.size
            self.steps += 1
            if self.steps > max(RANK_STEPS, 4 * len(self.count)):
                return None
            domain = options[-1].pop()
            found = self._run(level, domain, start)
            if found is None:
                continue
            rest, after = [d for d in left if d != domain], (start + len(found)) % self.size
            if rest and (self._content(level, rest), after) in self.stuck:
                continue
            runs.append((domain, found))
            if not rest:
                return [node for _, nodes in runs for node in nodes]
            left, start = rest, after
            options.append(self._options(level, left))

    def _options(self, level: int, domains: Sequence[int]) -> list[int]:
        """Returns the domains to try next, in reversed natural order, because the caller takes the last one first.

        Of domains with equal content, only the naturally first is listed.
        """
        first: dict[int, int] = {}
        for domain in domains:
            first.setdefault(self.kind[level, domain], domain)
        return sorted(first.values(), reverse=True)

    def _content(self, level: int, domains: Sequence[int]) -> tuple[int, ...]:
        """Returns the kinds of the domains, sorted: equal for sets of domains that allow the same orders."""
        return tuple(sorted(self.kind[level, domain] for domain in domains))
