"""Leases that ended, by kind, and how long a running lease still lasts.

A kind is (namespace, kind of owner, profiles). Each lease that ends counts in four classes: its kind, then without the
namespace, then with the profiles alone, then all leases. A running lease is judged by the narrowest class that knows
enough. So a new namespace begins with what the cluster knows.

Rules:

- Memory is bounded: the last ``LIFE_SAMPLES`` leases of a class, ``LIFE_CLASSES`` classes. Half of them are for
  classes of all namespaces, and of the others the namespace with the most loses one: no namespace drives out those of
  others. The class in which a lease ended longest ago goes first, never that of all leases.
- Time comes with the events; the same events give the same answers.
- A class is observed since its oldest lease ended once it is full, before that since it was made. Leases that were
  older then enter late (:mod:`tessera.forecast.past_times`).
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from tessera.forecast.past_times import HUNDRED_YEARS, SurvivalCurve

#: Leases of a class that are known: a quantile of 0.9 needs some dozens, and older leases say little of today.
LIFE_SAMPLES = 200
#: Classes that are known.
LIFE_CLASSES = 200
#: Characters of the profiles of a kind, a dozen profiles; the rest is cut.
LIFE_NAME = 200
#: Ends that a class needs to be believed, and ends at later ages than that of the lease in question.
LEAST_ENDS = 10
_LEAST_LATER_ENDS = 3
#: Seconds for which curves serve while no lease ends: what still runs is then older by no more than this.
_FRESH = 60.0
#: Kinds of owners that are told apart; a tenant may write any other into its pods.
OWNER_KINDS = frozenset({"", "Job", "ReplicaSet", "StatefulSet", "DaemonSet", "RayCluster", "PyTorchJob", "JobSet"})
_OTHER_KIND = "(other)"


class LifeKind(NamedTuple):
    """A kind of lease; an empty part stands for all."""

    namespace: str
    owner_kind: str
    profiles: str

    @property
    def classes(self) -> tuple["LifeKind", ...]:
        """The classes in which such a lease counts, the narrowest first."""
        return (self, LifeKind("", self.owner_kind, self.profiles), LifeKind("", "", self.profiles), EVERY_LEASE)


EVERY_LEASE = LifeKind("", "", "")


def life_kind(namespace: str, owner_kind: str, profiles: Iterable[str]) -> LifeKind:
    """Returns the kind of a pod's lease."""
    known = owner_kind if owner_kind in OWNER_KINDS else _OTHER_KIND
    return LifeKind(namespace, known or "Pod", "+".join(sorted(profiles))[:LIFE_NAME])


class LeaseEnded(NamedTuple):
    """A lease is over.

    Attributes:
        kind: its kind.
        seconds: how long it lasted.
        ended: when it ended, seconds since 1970.
    """

    kind: LifeKind
    seconds: float
    ended: float


class RunningLease(NamedTuple):
    """A lease that still runs, since ``started`` (seconds since 1970)."""

    kind: LifeKind
    started: float


class EndedLife(msgspec.Struct, frozen=True, array_like=True):
    """One lease of a class, in whole seconds."""

    seconds: int
    ended: int


class LifeClass(msgspec.Struct):
    """The leases of one class.

    Attributes:
        since: when the class was first observed, seconds since 1970.
        lives: the last that ended, the oldest first.
    """

    since: int
    lives: deque[EndedLife]

    @property
    def observed_since(self) -> float:
        """The time from which every lease that ended is among :attr:`lives`."""
        return float(self.lives[0].ended) if len(self.lives) == LIFE_SAMPLES else float(self.since)

    def observe(self, started: Iterable[float], now: float) -> Iterator[tuple[float, float, bool]]:
        """Yields what is known of each lease: of those that ended, and of those that run since ``started``.

        Each is as :class:`~tessera.forecast.past_times.SurvivalCurve` takes it; thousands are read in a second.
        """
        since = self.observed_since
        for each in self.lives:
            before = each.ended - each.seconds
            yield since - before if before < since else 0.0, each.seconds, True
        for one in started:
            yield max(0.0, since - one), max(0.0, now - one), False


class LifeHistory:
    """The leases that ended.

    Args:
        began: when the observation began, seconds since 1970.

    Attributes:
        began: the same.
        classes: by class, the one in which a lease ended last at the end.
        changes: grows with each event.
    """

    def __init__(self, began: float) -> None:
        self.began = began
        self.classes: OrderedDict[LifeKind, LifeClass] = OrderedDict()
        self.changes = 0
        #: When a class that is made now was first observed: at the beginning, or when a class was last dropped.
        self._complete_since = began

    def handle(self, event: LeaseEnded) -> None:
        """Takes in a lease that ended; an impossible one counts nothing."""
        if not 0 <= event.seconds <= HUNDRED_YEARS:
            return
        self.changes += 1
        life = EndedLife(round(event.seconds), round(event.ended))
        for kind in event.kind.classes:
            known = self.classes.get(kind)
            if known is None:
                known = self.classes[kind] = LifeClass(int(self._complete_since), deque(maxlen=LIFE_SAMPLES))
            known.lives.append(life)
            self.classes.move_to_end(kind)
        while len(self.classes) > LIFE_CLASSES:
            self._drop_class()
            self._complete_since = event.ended

    def _drop_class(self) -> None:
        counts = Counter(kind.namespace for kind in self.classes)
        shared = counts.pop("", 0)
        crowded = "" if shared > LIFE_CLASSES // 2 else max(counts, key=counts.__getitem__)
        del self.classes[next(kind for kind in self.classes if kind.namespace == crowded)]

    def restore(self, classes: Iterable[tuple[LifeKind, LifeClass]], complete_since: float) -> None:
        """Takes over classes that were kept; the one in which a lease ended last comes last."""
        self.classes = OrderedDict(classes)
        self._complete_since = complete_since

    @property
    def complete_since(self) -> float:
        """The time since when no class was dropped."""
        return self._complete_since


class LifeEstimator:
    """How long running leases still last, at one time and shortly after.

    Args:
        history: leases that ended.
        running: leases that run.
        now: seconds since 1970.
    """

    def __init__(self, history: LifeHistory, running: Iterable[RunningLease], now: float) -> None:
        self._history = history
        self._now = now
        self._changes = history.changes
        #: By class, the starts of the leases that run.
        self._started: dict[LifeKind, list[float]] = {}
        for lease in running:
            for kind in lease.kind.classes:
                self._started.setdefault(kind, []).append(lease.started)
        self._curves: dict[LifeKind, SurvivalCurve | None] = {}

    def serves(self, now: float) -> bool:
        """True while no further lease has ended and little time has passed."""
        return self._changes == self._history.changes and 0.0 <= now - self._now < _FRESH

    def curve(self, kind: LifeKind, age: float = 0.0) -> SurvivalCurve | None:
        """Returns the curve of the narrowest class that knows enough of leases of this age; None if none does."""
        first: SurvivalCurve | None = None
        for each in kind.classes:
            found = self._curve(each)
            if found is None:
                continue
            if found.ends_after(age) >= _LEAST_LATER_ENDS:
                return found
            first = first or found
        return first

    def _curve(self, kind: LifeKind) -> SurvivalCurve | None:
        if kind not in self._curves:
            known = self._history.classes.get(kind)
            enough = known is not None and len(known.lives) >= LEAST_ENDS
            self._curves[kind] = (
                SurvivalCurve(known.observe(self._started.get(kind, ()), self._now)) if known and enough else None
            )
        return self._curves[kind]
