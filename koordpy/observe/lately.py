"""How much is said in a minute: of one object, and of all objects of a namespace, however often they change."""

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable

MOST_A_MINUTE = 10
"""Of one object: one that changes all the time would fill the log with others."""
MOST_OF_A_NAMESPACE = 300
"""Of the objects of one namespace, which may have any number of them."""
MOST_KEPT = 4096
MINUTE = 60.0


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
