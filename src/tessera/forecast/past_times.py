"""How long past starts and waits took, in tables that pods of all namespaces fill.

A pod starts later than it gets its slices: kubelet pulls its image, and does some more. How much later depends on the
image, and on whether the node has it. And how long pods of a size waited says how long one of them will wait; that is a
second forecast beside the simulation, which knows neither pods that will come nor reservations that will move. It is
conditional, as for leases (:mod:`tessera.forecast.survival`): of the pods that waited longer than this one has, and
with those that still wait counted up to now. Without the latter a jam would show once it is over.

No namespace drives out what is known of others. Each entry of a table belongs to the namespace that brought it. Of too
many, the namespace with the most entries loses the one that was used longest ago. An entry that others use too stays
while they use it more often than that namespace brings new ones; else the next of them brings it anew, as its own.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping
from typing import Any

from tessera.forecast.survival import HUNDRED_YEARS, SurvivalCurve, quantile

#: The entry of all pods together, which belongs to no namespace and never goes.
EVERY = ""
#: Images whose starts are known: a few kinds of work have most of them, and others take the times of all images.
START_IMAGES = 200
#: Starts of one image: a pull changes with each version.
START_SAMPLES = 20
#: Sizes whose waits are known; with 100 waits each, some 125 KiB of the record.
WAIT_SIZES = 128
#: Waits of one size: a quantile of 0.9 needs some dozens, also of those that waited longer.
WAIT_SAMPLES = 100
#: Least longer waits that say something.
LEAST_LONGER_WAITS = 5
#: A start that takes longer says nothing of the next one: its cause was no pull. Seconds.
_PULL_TAKES = 3600.0


def note_use(entries: OrderedDict[str, Any], brought_by: dict[str, str], key: str, namespace: str, most: int) -> None:
    """Takes in that a pod of a namespace used an entry, and drops what is too much.

    Args:
        entries: the table, with this entry in it; the entry that was used last comes last.
        brought_by: by key of the table, the namespace that brought it; missing or empty if unknown.
        key: the entry.
        namespace: the pod's namespace.
        most: the entries that are kept at most.
    """
    if key != EVERY and not brought_by.get(key):
        brought_by[key] = namespace
    entries.move_to_end(key)
    while len(entries) > most:
        counts = Counter(brought_by.get(each, "") for each in entries if each != EVERY)
        crowding = max(counts, key=counts.__getitem__)
        dropped = next(each for each in entries if each != EVERY and brought_by.get(each, "") == crowding)
        del entries[dropped]
        brought_by.pop(dropped, None)


class PastTimes:
    """The last times of each key of a table, in whole seconds.

    Args:
        times: what was kept, the key that was used last at the end.
        brought_by: by key, the namespace that brought it, as kept.
        keys: the number of keys at most.
        samples: the number of times of a key at most; the oldest goes.

    Attributes:
        times: by key, the oldest first.
        brought_by: by key of these, the namespace that brought it.
    """

    def __init__(
        self, times: Iterable[tuple[str, Iterable[int]]], brought_by: Mapping[str, str] | None, keys: int, samples: int
    ) -> None:
        self._keys, self._samples = keys, samples
        self.times: OrderedDict[str, deque[int]] = OrderedDict(
            (key, deque(seconds, maxlen=samples)) for key, seconds in times
        )
        self.brought_by = {key: by for key, by in (brought_by or {}).items() if key in self.times}

    def _add(self, key: str, seconds: float, namespace: str) -> None:
        self.times.setdefault(key, deque(maxlen=self._samples)).append(round(seconds))
        note_use(self.times, self.brought_by, key, namespace, self._keys)


class StartTimes(PastTimes):
    """Seconds from the promise of slices to the start of the containers, by image, and of all images."""

    def __init__(
        self, times: Iterable[tuple[str, Iterable[int]]] = (), brought_by: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(times, brought_by, START_IMAGES, START_SAMPLES)

    def add(self, image: str, seconds: float, namespace: str) -> None:
        """Takes in a start of a namespace's pod."""
        if 0 <= seconds <= _PULL_TAKES:
            for key in dict.fromkeys((image, EVERY)):
                self._add(key, seconds, namespace)

    def seconds(self, image: str, share: float) -> float:
        """Returns the seconds within which this share of the starts of an image came; 0 while nothing is known."""
        known = self.times.get(image) or self.times.get(EVERY)
        return float(quantile(known, share)) if known else 0.0


class WaitHistory(PastTimes):
    """Seconds from creation to start of pods that had to wait for room, by their profiles."""

    def __init__(
        self, times: Iterable[tuple[str, Iterable[int]]] = (), brought_by: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(times, brought_by, WAIT_SIZES, WAIT_SAMPLES)

    def add(self, size: str, seconds: float, namespace: str) -> None:
        """Takes in the start of a namespace's pod that had to wait; an impossible wait counts nothing."""
        if 0 <= seconds <= HUNDRED_YEARS:
            self._add(size, seconds, namespace)

    def curve(self, size: str, waiting: Iterable[float]) -> SurvivalCurve:
        """Returns the curve of the waits of a size.

        Args:
            size: the profiles.
            waiting: seconds that pods of this size have waited and still wait.
        """
        past = ((0.0, float(each), True) for each in self.times.get(size, ()))
        return SurvivalCurve((*past, *((0.0, each, False) for each in waiting)))
