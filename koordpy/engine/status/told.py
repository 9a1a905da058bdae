"""What was said of which object, so that a warning that every round finds is said once.

An object that is made anew has another uid and is told again. Of one text so many objects of a namespace are told at
most: a template with a slip makes thousands of pods that have it. Namespaces are kept apart: what is said in one uses
up nothing that another needs.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable

from koordpy.observe.lately import Lately

MOST_SUBJECTS = 100
"""Objects of a namespace that are told of one text."""
MOST_TEXTS = 2048
"""Texts of a namespace that are remembered, and namespaces; what falls out may be said again."""


class Told:
    """Texts, and whom they were said of."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: seconds."""
        self._clock, self._lately = clock, Lately()
        self._namespaces: OrderedDict[str, _Namespace] = OrderedDict()

    def is_said(self, subject: Hashable, text: str, namespace: str = "") -> bool:
        """Whether it was said already, of this object or of enough others."""
        known = self._namespaces.get(namespace)
        return known is not None and known.is_said(subject, text)

    def is_new(self, subject: Hashable, text: str, namespace: str = "") -> bool:
        """Whether this is to be said now; it counts as said then. What waits for a minute to pass is still new."""
        known = self._namespaces.setdefault(namespace, _Namespace())
        self._namespaces.move_to_end(namespace)
        if len(self._namespaces) > MOST_TEXTS:
            self._namespaces.popitem(last=False)
        new = not known.is_said(subject, text) and self._lately.lets(subject, self._clock(), namespace)
        known.touch(text, [subject] if new else [])
        return new

    def forget(self, there: Callable[[Hashable], bool]) -> None:
        """Lets go of what was said of objects that are not there any more."""
        self._lately.forget(there, self._clock())
        for namespace, known in list(self._namespaces.items()):
            if known.forget(there):
                del self._namespaces[namespace]


class _Namespace:
    """What was said of the objects of one namespace."""

    def __init__(self) -> None:
        self._subjects: OrderedDict[str, set[Hashable]] = OrderedDict()

    def is_said(self, subject: Hashable, text: str) -> bool:
        told = self._subjects.get(text, ())
        return subject in told or len(told) >= MOST_SUBJECTS

    def touch(self, text: str, new: Iterable[Hashable]) -> None:
        """A text was said of new objects, or was to be said again."""
        if new or text in self._subjects:
            self._subjects.setdefault(text, set()).update(new)
            self._subjects.move_to_end(text)
            if len(self._subjects) > MOST_TEXTS:
                self._subjects.popitem(last=False)

    def forget(self, there: Callable[[Hashable], bool]) -> bool:
        """Whether nothing is left."""
        for text, subjects in list(self._subjects.items()):
            left = {subject for subject in subjects if there(subject)}
            if left:
                self._subjects[text] = left
            else:
                del self._subjects[text]
        return not self._subjects
