# SPDX-License-Identifier: Apache-2.0
"""Limits the messages about one object and about one namespace per minute, and sends repeated messages only once.

A message is repeated if it has the same text and object; a recreated object has another uid, so it gets the message
again. One text is sent for at most `MOST_SUBJECTS` objects of a namespace, because a template with a mistake creates
thousands of pods with the same mistake. Each namespace has a separate limit, so that no tenant uses up the messages of
another.
"""

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable

MOST_A_MINUTE = 10
"""Messages about one object per minute. Without a limit, an object that changes all the time would fill the log."""
MOST_OF_A_NAMESPACE = 300
"""Messages about all objects of one namespace per minute."""
MOST_KEPT = 4096
"""Maximum number of objects and namespaces with remembered times."""
MINUTE = 60.0
MOST_SUBJECTS = 100
"""Number of objects of a namespace for which one text is sent."""
MOST_TEXTS = 2048
"""Maximum number of remembered texts per namespace, and of namespaces. A forgotten text may be sent again."""


class Lately:
    """Times of the last messages about each object and namespace, for the limits per minute."""

    def __init__(self, most: int = MOST_A_MINUTE) -> None:
        """most: number of messages about one object per minute."""
        self._most = most
        self._times: OrderedDict[tuple[Hashable, str], deque[float]] = OrderedDict()

    def lets(self, subject: Hashable, now: float, namespace: str | None = None) -> bool:
        """Returns True, and counts a message, if the limits allow a message about the object now.

        namespace: namespace of the object, which has a limit, too; None for an object without this limit.
        """
        found = []
        for limited, most in ((None, MOST_OF_A_NAMESPACE), (subject, self._most)):
            if limited is None and namespace is None:
                continue
            times = self._times.setdefault((limited, namespace or ""), deque(maxlen=most))
            self._times.move_to_end((limited, namespace or ""))
            if len(times) == most and now - times[0] < MINUTE:
                return False
            found.append(times)
        for times in found:
            times.append(now)
        while len(self._times) > MOST_KEPT or not (oldest := next(iter(self._times.values()))) or _past(oldest, now):
            self._times.popitem(last=False)
        return True

    def forget(self, there: Callable[[Hashable], bool], now: float) -> None:
        """Drops objects that no longer exist, and times that are older than a minute."""
        for key, times in list(self._times.items()):
            if not times or _past(times, now) or not there(key[0]):
                del self._times[key]


def _past(times: deque[float], now: float) -> bool:
    """Returns True if the last of the times is at least a minute ago."""
    return now - times[-1] >= MINUTE


class SentMessages:
    """Texts that were sent, with the objects that they were sent for."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: returns the time in seconds."""
        self._clock, self._lately = clock, Lately()
        self._namespaces: OrderedDict[str, OrderedDict[str, set[Hashable]]] = OrderedDict()

    def is_said(self, subject: Hashable, text: str, namespace: str = "") -> bool:
        """Returns True if the text was sent for this object, or for `MOST_SUBJECTS` other objects."""
        told = self._namespaces.get(namespace, OrderedDict()).get(text, set())
        return subject in told or len(told) >= MOST_SUBJECTS

    def is_new(self, subject: Hashable, text: str, namespace: str = "") -> bool:
        """Returns True, and counts the text as sent, if it should be sent now.

        If the limit per minute delays a text, it still counts as new later.
        """
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
        """Drops texts about objects that no longer exist."""
        self._lately.forget(there, self._clock())
        for namespace, known in list(self._namespaces.items()):
            for text, subjects in list(known.items()):
                subjects -= {subject for subject in subjects if not there(subject)}
                if not subjects:
                    del known[text]
            if not known:
                del self._namespaces[namespace]
