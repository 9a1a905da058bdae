"""How much is said in a minute: of one object, and of all objects of a namespace, however often they change. And what
was said of which object, so that a warning that every round finds is said once.

An object that is made anew has another uid and is told again. Of one text so many objects of a namespace are told at
most: a template with a slip makes thousands of pods that have it. Namespaces are kept apart: what is said in one uses
up nothing that another needs.
"""

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable

MOST_A_MINUTE = 10
"""Of one object: one that changes all the time would fill the log with others."""
MOST_OF_A_NAMESPACE = 300
"""Of the objects of one namespace, which may have any number of them."""
MOST_KEPT = 4096
MINUTE = 60.0
MOST_SUBJECTS = 100
"""Objects of a namespace that are told of one text."""
MOST_TEXTS = 2048
"""Texts of a namespace that are remembered, and namespaces; what falls out may be said again."""


class Lately:
    """When something was said last of whom."""

    def __init__(self, most: int = MOST_A_MINUTE) -> None:
        """most: times in a minute that something is said of one object."""
        self._most = most
        self._times: OrderedDict[tuple[Hashable, str], deque[float]] = OrderedDict()

    def lets(self, subject: Hashable, now: float, namespace: str | None = None) -> bool:
        """Whether something may be said of this object now; it counts as said then. namespace: its limit counts as
        well."""
        found = []
        for whom, most in ((None, MOST_OF_A_NAMESPACE), (subject, self._most)):
            if whom is None and namespace is None:
                continue
            times = self._times.setdefault((whom, namespace or ""), deque(maxlen=most))
            self._times.move_to_end((whom, namespace or ""))
            if len(times) == most and now - times[0] < MINUTE:
                return False
            found.append(times)
        for times in found:
            times.append(now)
        while len(self._times) > MOST_KEPT or not (oldest := next(iter(self._times.values()))) or _past(oldest, now):
            self._times.popitem(last=False)
        return True

    def forget(self, there: Callable[[Hashable], bool], now: float) -> None:
        """Lets go of objects that are not there any more, and of minutes that have passed."""
        for key, times in list(self._times.items()):
            if not times or _past(times, now) or not there(key[0]):
                del self._times[key]


def _past(times: deque[float], now: float) -> bool:
    """Whether the last of these was a minute ago."""
    return now - times[-1] >= MINUTE


class Told:
    """Texts, and whom they were said of."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: seconds."""
        self._clock, self._lately = clock, Lately()
        self._namespaces: OrderedDict[str, OrderedDict[str, set[Hashable]]] = OrderedDict()

    def is_said(self, subject: Hashable, text: str, namespace: str = "") -> bool:
        """Whether it was said already, of this object or of enough others."""
        told = self._namespaces.get(namespace, OrderedDict()).get(text, set())
        return subject in told or len(told) >= MOST_SUBJECTS

    def is_new(self, subject: Hashable, text: str, namespace: str = "") -> bool:
        """Whether this is to be said now; it counts as said then. What waits for a minute to pass is still new."""
        known = self._namespaces.setdefault(namespace, OrderedDict())
        self._namespaces.move_to_end(namespace)
        if len(self._namespaces) > MOST_TEXTS:
            self._namespaces.popitem(last=False)
        new = not self.is_said(subject, text, namespace) and self._lately.lets(subject, self._clock(), namespace)
        if new:
            known.setdefault(text, set()).add(subject)
        if text in known:
            known.move_to_end(text)
        if len(known) > MOST_TEXTS:
            known.popitem(last=False)
        return new

    def forget(self, there: Callable[[Hashable], bool]) -> None:
        """Lets go of what was said of objects that are not there any more."""
        self._lately.forget(there, self._clock())
        for namespace, known in list(self._namespaces.items()):
            for text, subjects in list(known.items()):
                subjects -= {subject for subject in subjects if not there(subject)}
                if not subjects:
                    del known[text]
            if not known:
                del self._namespaces[namespace]
