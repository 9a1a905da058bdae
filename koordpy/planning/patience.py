"""How much of a round may go into searches: for victims, for units to move, for proofs that a mixed gang fits nowhere.

A live round is cut: once its time is used up, what fits is placed and its Bindings go out; units that found no room are
searched for in later rounds, as many as their time allows, one at least, and while they wait no other round searches.
A round that searches lets another one for those who came meanwhile plan beside it: it pauses between two steps or
units. A search that follows decisions of its own round, which are not carried out yet, is given up instead and begun
again later; that of a unit of which searches were given up for long goes on for as long as all of those.
Once it has planned for so long, the namespaces that had their part of it let the others go first.
Offline nothing is cut, so that the same input gives the same plan.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from typing import Protocol, TypeVar

T = TypeVar("T")


class Interrupted(Exception):
    """A search was given up in the middle: somebody came who need not wait for it."""


class Interrupts:
    """Ends the search under way in another thread: between two steps, or in the middle of a solve."""

    def __init__(self, came: Callable[[], bool]) -> None:
        """came: whether it is to end; asked from both threads."""
        self.came = came
        self._stop: Callable[[], None] | None = None

    def step(self) -> None:
        """One step of a search; raises Interrupted where it is to end."""
        if self.came():
            raise Interrupted

    def solving(self, solve: Callable[[], T], stop: Callable[[], None]) -> T:
        """The answer of a solve, which `stop` ends from the other thread; raises Interrupted where it is to end."""
        self.step()
        self._stop = stop
        try:
            return solve()
        finally:
            self._stop = None
            self.step()

    def look(self) -> None:
        """Called by the other thread now and then: ends a solve that is to end."""
        stop = self._stop
        if stop is not None and self.came():
            stop()


NEVER = Interrupts(lambda: False)


class Pauses(Interrupts):
    """Lets another round plan in the middle of a search: between two steps, or during a solve. One plans at a time.

    The search plans within `planning`. The other thread asks with `hold`, plans once `take` says so, and ends with
    `go_on` what either began.
    """

    def __init__(self, began: float = 0.0) -> None:
        """began: of the round that pauses."""
        super().__init__(lambda: False)
        self.began = began
        """When the last round beside it began, or it itself did."""
        self.seconds = 0.0
        """How long others have planned meanwhile."""
        self.left = False
        """Whether a round beside it left somebody who came undecided, who waits for the round's end."""
        self.ended = False
        """Whether the round has decided something, and pauses no more."""
        self._turn = threading.Lock()
        self._goes_on = threading.Event()
        self._goes_on.set()

    @contextmanager
    def planning(self) -> Iterator[None]:
        """The search plans while this lasts, but for its pauses."""
        self._turn.acquire()
        try:
            yield
        finally:
            self._turn.release()

    def step(self) -> None:
        """One step of the search; returns when it may go on."""
        if not self._goes_on.is_set():
            self._turn.release()
            self._go_on()

    def solving(self, solve: Callable[[], T], stop: Callable[[], None]) -> T:
        """The answer of a solve, which reads nothing that others change."""
        self._turn.release()
        try:
            return solve()
        finally:
            self._go_on()

    def _go_on(self) -> None:
        while True:
            self._goes_on.wait()
            self._turn.acquire()
            if self._goes_on.is_set():
                return
            self._turn.release()

    def hold(self) -> None:
        """The search is to pause at its next step."""
        self._goes_on.clear()

    def take(self) -> bool:
        """Whether it pauses, or has ended: it is the caller's turn then."""
        return self._turn.acquire(blocking=False)

    def go_on(self, taken: bool, seconds: float) -> None:
        """The search goes on; taken: whether the caller had its turn, for so long."""
        self.seconds += seconds
        if taken:
            self._turn.release()
        self._goes_on.set()


@dataclass(frozen=True, slots=True)
class Patience:
    """The bound of one round."""

    searches: bool
    """Whether units that find no room are searched for until the time is used up; else they are deferred."""
    spent: Callable[[], bool]
    """Whether the round's time is used up; asked from the planner's thread. Never false again once it was true."""
    stops: bool = False
    """Whether the round ends then, after one unit at least; else it goes on placing what fits."""
    begins: Callable[[], None] = lambda: None
    """Called when the first unit is tried."""
    cut: Callable[[], bool] = lambda: False
    """Whether the round ends, after one unit at least, but for tenants that have not had their part of it: somebody
    came who need not wait for the rest."""
    gives_back: bool = True
    """Whether quotas are looked at that are to give back."""
    waiting: frozenset[str] = frozenset()
    """Units that wait for a search and are not tried in this round: their room is kept."""
    lapsed: frozenset[str] = frozenset()
    """Units whose room has been kept for long enough: it is anybody's."""
    over: frozenset[str] = frozenset()
    """Tenants that had more than their part of planning of late: they keep no room from others."""
    interrupts: Interrupts = NEVER
    """Ends a search under way for somebody who came meanwhile."""
    pauses: Pauses | None = None
    """In its place while the round has decided nothing that is to be carried out: lets others plan meanwhile."""
    clock: Callable[[], float] | None = None
    """Seconds, for what each unit takes."""
    shared: Callable[[], float] = lambda: inf
    """Seconds of planning after which namespaces that had more than their part of them let others go first; asked from
    the planner's thread."""
    came: Callable[[], Mapping[str, int]] = dict
    """Namespaces of pods that came since the round took its units, with the highest priority of each; asked from the
    planner's thread."""
    firm: Mapping[str, Interrupts] = field(default_factory=dict)
    """Units whose searches were given up for long enough: what ends theirs, later than those of others."""

    def look(self) -> None:
        """Called by the other thread now and then: ends a solve that is to end."""
        for one in (self.interrupts, *self.firm.values()):
            one.look()

    def defers(self) -> bool:
        """Whether a search, or a hard proof, is left to another round now."""
        return not self.searches or (not self.stops and self.spent())


class Turn(Protocol):
    """A unit, as far as it matters whose turn it is."""

    @property
    def namespace(self) -> str: ...

    @property
    def priority(self) -> int: ...


class RoundShares:
    """What the tenants of one round have had, and who of them waits. Times in seconds of the patience's clock.

    A tenant is a namespace, or all that one ElasticQuota lists.

    The order of the queue does not part planning time: a tenant may come first with thousands of units that each
    take long to be refused. So once a round has planned for so long, a tenant who had an equal part of it or more
    is passed over while units of others that had less, of the same priority or a higher one, have not had their turn,
    or have come meanwhile. Until then, and where only less important ones wait, the order of the queue alone says who
    is next.
    """

    def __init__(self, units: Iterable[Turn], patience: Patience, tenant_of: Callable[[str], str] = str) -> None:
        """units: those that the round is to try. tenant_of: whose a namespace is."""
        self._whole, self._of = patience.shared, tenant_of
        self._had: defaultdict[str, float] = defaultdict(float)
        self._lasted = 0.0
        self._passed: set[str] = set()
        """Tenants of whom a unit was passed over: no unit behind it goes first."""
        self._left: dict[int, Counter[str]] = {}
        """Priority -> tenant -> units that have not had their turn."""
        for unit in units:
            self._left.setdefault(unit.priority, Counter())[self._of(unit.namespace)] += 1
        self._tenants = {tenant for left in self._left.values() for tenant in left}

    def comes(self, unit: Turn) -> None:
        """A unit has its turn, whatever becomes of it."""
        left, own = self._left[unit.priority], self._of(unit.namespace)
        left[own] -= 1
        if not left[own]:
            del left[own]

    def took(self, unit: Turn, seconds: float) -> None:
        """An attempt took so long."""
        self._had[self._of(unit.namespace)] += seconds
        self._lasted += seconds

    def had_part(self, unit: Turn) -> bool:
        """Whether the unit's tenant has had an equal part of the time that is shared; so has everybody of no bound."""
        whole = self._whole()
        return whole == inf or self._had[self._of(unit.namespace)] * len(self._tenants) >= whole

    def tenant(self, unit: Turn) -> str:
        """Whose a unit is."""
        return self._of(unit.namespace)

    def passes_over(self, unit: Turn, came: Mapping[str, int]) -> bool:
        """Whether others go first, whom the unit's tenant would keep waiting. came: namespaces of pods that came
        meanwhile and wait for the round's end, with the highest priority of each."""
        whole = self._whole()
        if self._lasted < whole:
            return False
        own, priority = self._of(unit.namespace), unit.priority
        if own in self._passed:
            return True
        others = {self._of(namespace) for namespace, highest in list(came.items()) if highest >= priority}
        if self._had[own] * len(self._tenants | others) < whole:
            return False
        others |= {tenant for level, left in self._left.items() if level >= priority for tenant in left}
        # nobody is let go first who had more
        if not any(self._had[other] < self._had[own] for other in others - self._passed):
            return False
        self._passed.add(own)
        return True
