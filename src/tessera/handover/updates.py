"""Finds the Deployments in an update in which a pod waits for room, by what the API server says of their ReplicaSets.

Owner references are written by tenants, so the server is asked about each. Its answers are asked for anew when pods of
the update come or go, and before a pod ends by them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import islice

from tessera.api.names import PodUid
from tessera.controller.objects.pod_info import Owner, PodInfo, Workload
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.controller.slicing.state.waiting_pod import competes_for_room
from tessera.handover.owner_pods import (
    ASKED_SIBLINGS,
    Family,
    OwnerPods,
    family_of,
    owner_of,
)

#: Most updates that are looked at, each at every decision; of more, a namespace has its share.
UPDATES = 256
#: Seconds for which the API server's answer is fresh enough to evict by it.
FRESH = 10.0
#: Seconds after which it is asked again about an update of which nothing changes.
ASKED_AGAIN = 300.0
#: Least seconds between two such questions while the pods of an update come and go.
LEAST_PAUSE = 5.0


@dataclass(frozen=True)
class Update:
    """One Deployment in an update.

    Attributes:
        family: its owners' family.
        newest: its newest ReplicaSet.
        new: the living pods of the newest revision.
        old: those of older ones, the newest of them first.
    """

    family: Family
    newest: Workload
    new: Sequence[PodInfo]
    old: Sequence[PodInfo]


class Updates:
    """The updates, and the questions about them.

    Args:
        state: the slicer's state.
        pods: the pods of owners.

    Attributes:
        asked: the updates in which a pod waits, and when the API server was asked about each; without any there are no
            :attr:`unknown_owners`.
        unanswered: pods of updates of which the last review knew too little.
        dues: when a question is due again, by the last review.
    """

    def __init__(self, state: SlicerState, pods: OwnerPods) -> None:
        self._state = state
        self._pods = pods
        self.asked: dict[Family, float] = {}
        self.unanswered: AbstractSet[PodUid] = frozenset()
        self.dues: list[float] = []
        #: What the server said of owners; None if one does not exist.
        self._answers: dict[Owner, Workload | None] = {}

    # Questions

    def concern(self, uid: PodUid) -> bool:
        """True if a change of a pod, or its end, concerns an update."""
        found = self._pods.get(uid)
        return bool(self._pods.changed) if found is None else family_of(owner_of(found.pod)) in self._pods.updating

    @property
    def unknown_owners(self) -> Iterator[Owner]:
        """The owners about which somebody should ask the API server."""
        for family in self.asked:
            yield from (each for each in self._owners(family) if each not in self._answers)

    def note_owner(self, owner: Owner, workload: Workload | None) -> bool:
        """Takes in what the API server says of an owner; True if that concerns an update."""
        is_one = family_of(owner) in self.asked
        if is_one:
            self._answers[owner] = workload
        return is_one

    def ask(self, family: Family) -> None:
        """Has the API server asked about an update."""
        self.asked[family] = self._state.now
        self._pods.changed.discard(family)
        for each in self._owners(family):
            self._answers.pop(each, None)

    def is_fresh(self, update: Update) -> bool:
        """True if the answers about an update are new enough to evict by them."""
        return self._state.now - self.asked[update.family] <= FRESH

    def _owners(self, family: Family) -> Sequence[Owner]:
        return tuple(islice(self._pods.owners(family), ASKED_SIBLINGS))

    # Reviewing

    def review(self) -> Iterator[Update]:
        """Yields the updates of which enough is known."""
        self.dues = []
        unanswered: set[PodUid] = set()
        families = self._families()
        self._forget(families)
        for family in families:
            if self._is_answered(family):
                yield from self._updates(family)
            else:
                unanswered.update(each.uid for each in self._members(family))
        self.unanswered = unanswered

    def _families(self) -> list[Family]:
        """Returns the updates in which a pod waits for room, as many as are looked at."""
        found = [each for each in self._pods.updating if any(map(self.waits, self._members(each)))]
        if len(found) <= UPDATES:
            return found
        share = UPDATES // len({namespace for namespace, _ in found}) or 1
        counts: Counter[str] = Counter()
        few = []
        for each in found:
            counts[each[0]] += 1
            if counts[each[0]] <= share:
                few.append(each)
        return few[:UPDATES]

    def _members(self, family: Family) -> Iterator[PodInfo]:
        return (pod for owner in self._owners(family) for pod in self._pods.of(owner))

    def waits(self, pod: PodInfo) -> bool:
        """True if a pod lacks nothing but room."""
        reason = self._state.pods.reason_of(pod.uid)
        reserved = self._state.reservations.get(pod.uid)
        lacks = (reason is not None and competes_for_room(reason)) or (reserved is not None and reserved.is_inherited)
        return pod.uid in self._state.waiting and pod.ready_to_place and lacks

    def _forget(self, families: Iterable[Family]) -> None:
        kept = set(families)
        self.asked = {each: when for each, when in self.asked.items() if each in kept}
        self._answers = {each: found for each, found in self._answers.items() if family_of(each) in kept}

    def _is_answered(self, family: Family) -> bool:
        """True if the API server has said what the owners of an update are; has it asked when that is due."""
        since = self._state.now - self.asked.get(family, -ASKED_AGAIN)
        pause = LEAST_PAUSE if family in self._pods.changed else ASKED_AGAIN
        if since >= pause:
            self.ask(family)
        else:
            self.dues.append(self.asked[family] + pause)
        return all(each in self._answers for each in self._owners(family))

    def _updates(self, family: Family) -> Iterator[Update]:
        by_top: dict[str, list[tuple[Workload, Owner]]] = {}
        for owner in self._owners(family):
            workload = self._answers[owner]
            if workload is not None and workload.wanted and workload.revision and workload.keeps_old:
                by_top.setdefault(workload.top, []).append((workload, owner))
        for found in by_top.values():
            found.sort(key=lambda each: -each[0].revision)
            (newest, owner), *others = found
            old = [pod for _, each in others for pod in self._pods.of(each)]
            yield Update(family, newest, list(self._pods.of(owner)), old)
