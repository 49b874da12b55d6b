"""The pods that use claims, and which of them asks for a claim: the oldest, or one that has slices already.

A tenant may name one claim in any number of pods. So no step looks at all users of a claim: their ages are in a heap,
from which pods that have ended go when they come up.
"""

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

from tessera.api.names import PodUid
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.state.allocation import will_never_run
from tessera.controller.slicing.state.slicer_state import SlicerState


class ClaimUsers:
    """The users of all claims.

    Args:
        state: knows which pods have slices.

    Attributes:
        pods: those that name claims, as observed.
    """

    def __init__(self, state: SlicerState) -> None:
        self._state = state
        self.pods: dict[PodUid, PodInfo] = {}
        #: By claim the pods that name it; no set is empty.
        self._by_claim: dict[str, set[PodUid]] = {}
        #: By claim a heap of their ages; it may have as many pods again that do not use the claim any more.
        self._ages: dict[str, list[tuple[str, PodUid]]] = {}
        #: By claim those that have slices; some may have none any more.
        self._holders: dict[str, set[PodUid]] = {}

    def of(self, key: str) -> Iterable[PodUid]:
        """Returns the pods that name a claim."""
        return self._by_claim.get(key, ())

    def note(self, pod: PodInfo) -> set[PodUid]:
        """Takes in a pod; returns the others that were the first user of a claim, or are now."""
        known = self.pods.get(pod.uid)
        keys = {*named_claims(pod), *(named_claims(known) if known is not None else ())}
        before = self._firsts(keys)
        self.pods[pod.uid] = pod
        for key in keys:
            if key not in pod.device_claims:
                self._drop(key, pod.uid)
            elif pod.uid not in self._by_claim.get(key, ()):
                self._by_claim.setdefault(key, set()).add(pod.uid)
                heappush(self._ages.setdefault(key, []), (pod.created, pod.uid))
        self.note_slices(pod.uid)
        return (before ^ self._firsts(keys)) - {pod.uid}

    def forget(self, uid: PodUid) -> set[PodUid]:
        """Takes in that a pod is gone; returns the first users of its claims that were not before."""
        pod = self.pods.get(uid)
        keys = named_claims(pod) if pod is not None else []
        before = self._firsts(keys)
        for key in keys:
            self._drop(key, uid)
        self.pods.pop(uid, None)
        return self._firsts(keys) - before

    def will_end(self, pod: PodInfo) -> bool:
        """True if a pod will never run, and was not known as such."""
        known = self.pods.get(pod.uid)
        return will_never_run(pod) and (known is None or not will_never_run(known))

    def note_slices(self, uid: PodUid) -> None:
        """Takes in that a pod may have slices now."""
        if uid in self.pods and self._state.allocations.current_of(uid) is not None:
            for key in named_claims(self.pods[uid]):
                self._holders.setdefault(key, set()).add(uid)

    def holders(self, key: str) -> Sequence[PodInfo]:
        """Returns the living users of a claim that have slices."""
        known = self._holders.get(key)
        if not known:
            return ()
        known &= {uid for uid in known if self._state.allocations.current_of(uid) is not None}
        return [self.pods[uid] for uid in known if not will_never_run(self.pods[uid])]

    def first(self, key: str) -> PodInfo | None:
        """Returns the user that asks for a claim's slices; None if no living pod uses it."""
        if holders := self.holders(key):
            return min(holders, key=_age)
        ages, users = self._ages.get(key, []), self._by_claim.get(key, ())
        while ages and (ages[0][1] not in users or will_never_run(self.pods[ages[0][1]])):
            heappop(ages)
        return self.pods[ages[0][1]] if ages else None

    def living(self, key: str) -> Sequence[PodInfo]:
        """Returns all living users of a claim, first the one that asks for its slices."""
        pods = [self.pods[uid] for uid in self.of(key) if not will_never_run(self.pods[uid])]
        return sorted(pods, key=lambda each: (self._state.allocations.current_of(each.uid) is None, *_age(each)))

    def _firsts(self, keys: Iterable[str]) -> set[PodUid]:
        return {first.uid for first in map(self.first, keys) if first is not None}

    def _drop(self, key: str, uid: PodUid) -> None:
        self._holders.get(key, set()).discard(uid)
        users = self._by_claim.get(key, set())
        users.discard(uid)
        ages = self._ages.get(key, [])
        if len(ages) > 2 * len(users):
            ages[:] = [each for each in ages if each[1] in users]
            heapify(ages)
        if not users:
            for table in (self._by_claim, self._ages, self._holders):
                table.pop(key, None)


def named_claims(pod: PodInfo) -> list[str]:
    """The claims that a pod names, without those of templates that are still to be made."""
    return [key for key in pod.device_claims if key]


def _age(pod: PodInfo) -> tuple[str, PodUid]:
    return pod.created, pod.uid
