# SPDX-License-Identifier: Apache-2.0
"""Required pod affinity of a plan read from kube-parity.md 2.7 a second time, and kube-scheduler's rule pod by pod.

Pods are wire objects with the name of a node each. Selectors are read by `koordpy.api.label_selectors`; nothing else of
koordpy is used.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from koordpy.api.label_selectors import selector_matches
from koordpy.api.objects import Node, Pod, PodAffinityTerm

Placed = tuple[Pod, str]


@dataclass(frozen=True)
class AffinityLaw:
    """nodes: name -> labels; namespaces: name -> labels."""

    nodes: Mapping[str, Mapping[str, str]]
    namespaces: Mapping[str, Mapping[str, str]]

    @classmethod
    def of(cls, nodes: Sequence[Node], namespaces: Mapping[str, Mapping[str, str]] | None = None) -> "AffinityLaw":
        return cls({one.metadata.name: one.metadata.labels for one in nodes}, namespaces or {})

    def matches(self, pod: Pod, other: Pod) -> bool:
        """Whether another pod matches all required terms of a pod, which has some."""
        found = terms(pod)
        return bool(found) and all(self._matches(term, pod, other) for term in found)

    def _matches(self, term: PodAffinityTerm, pod: Pod, other: Pod) -> bool:
        namespace = other.metadata.namespace
        if term.namespaces or term.namespace_selector is not None:
            labels = self.namespaces.get(namespace, {})
            if namespace not in term.namespaces and not selector_matches(term.namespace_selector, labels):
                return False
        elif namespace != pod.metadata.namespace:
            return False
        return selector_matches(term.label_selector, other.metadata.labels)

    def keeps(self, plan: Sequence[Placed], before: Sequence[Placed]) -> bool:
        """Whether a plan keeps the rule. before: pods that stand without it, victims left out."""
        firsts: list[Placed] = []
        for pod, node in plan:
            linked = self.linked_with(pod, [one for one, _ in plan])
            unlinked = [at for other, at in self._unlinked(plan, linked, before) if self.matches(pod, other)]
            somewhere = [at for at in unlinked if any(term.topology_key in self.nodes[at] for term in terms(pod))]
            inside = linked if not somewhere else []
            here = [at for other, at in plan if any(other is one for one in inside) and self.matches(pod, other)]
            for term in terms(pod):
                value = self.nodes[node].get(term.topology_key)
                if value is None:
                    return False
                if all(self.nodes[at].get(term.topology_key) != value for at in [*somewhere, *here]):
                    return False
            if terms(pod) and not somewhere:
                firsts.append((pod, node))
        return all(self._one_place(firsts, pod, plan) for pod, _ in firsts)

    def linked_with(self, pod: Pod, pods: Sequence[Pod]) -> list[Pod]:
        """Pods of a plan that are linked with one of them, itself included."""
        found = [pod] if terms(pod) else []
        for one in found:
            found += [
                other
                for other in pods
                if terms(other)
                and not any(other is known for known in found)
                and (self.matches(one, other) or self.matches(other, one))
            ]
        return found

    def _unlinked(self, plan: Sequence[Placed], linked: Sequence[Pod], before: Sequence[Placed]) -> Iterator[Placed]:
        yield from before
        yield from ((pod, at) for pod, at in plan if not any(pod is one for one in linked))

    def _one_place(self, firsts: Sequence[Placed], pod: Pod, plan: Sequence[Placed]) -> bool:
        """Whether the firsts that are linked with one of them stand in the domains of some node."""
        linked = self.linked_with(pod, [one for one, _ in plan])
        wanted = {
            (term.topology_key, self.nodes[at][term.topology_key])
            for other, at in firsts
            if any(other is one for one in linked)
            for term in terms(other)
        }
        return any(wanted <= set(labels.items()) for labels in self.nodes.values())

    def fits(self, pod: Pod, node: str, there: Sequence[Placed]) -> bool:
        """Whether kube-scheduler's filter lets a pod onto a node beside the pods that are there."""
        own = terms(pod)
        if any(term.topology_key not in self.nodes[node] for term in own):
            return False
        matches = [at for other, at in there if self.matches(pod, other)]
        if not any(term.topology_key in self.nodes[at] for at in matches for term in own):
            return not own or self.matches(pod, pod)
        return all(
            any(self.nodes[at].get(term.topology_key) == self.nodes[node][term.topology_key] for at in matches)
            for term in own
        )

    def order(self, plan: Sequence[Placed], before: Sequence[Placed]) -> list[int] | None:
        """Positions of a plan's pods in an order in which kube-scheduler could place them; None where there is none.

        A pod that fits beside some pods fits beside more matches as well, except the first of its kind; so all orders
        are tried.
        """
        seen: set[frozenset[int]] = set()

        def step(done: tuple[int, ...]) -> list[int] | None:
            if len(done) == len(plan):
                return list(done)
            if frozenset(done) in seen:
                return None
            seen.add(frozenset(done))
            there = [*before, *(plan[i] for i in done)]
            rest = (i for i in range(len(plan)) if i not in done and self.fits(*plan[i], there))
            return next((found for i in rest if (found := step((*done, i))) is not None), None)

        return step(())


def terms(pod: Pod) -> list[PodAffinityTerm]:
    """Terms of required affinity."""
    affinity = pod.spec.affinity
    return affinity.pod_affinity.required if affinity is not None and affinity.pod_affinity is not None else []
