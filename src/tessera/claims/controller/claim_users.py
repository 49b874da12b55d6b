"""Who uses a claim: the pods that name it, and which of them asks for its slices.

A claim that several pods use is asked for by the first of them: the oldest, or one that has slices already. The others
wait for it, and run where it is.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import ClassVar

from tessera.api.names import PodUid
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.state.allocation import will_never_run
from tessera.controller.slicing.state.slicer_state import SlicerState


class ClaimUsers:
    """The pods that name claims.

    Args:
        state: the slicer's state, which says who has slices.

    Attributes:
        pods: these pods, as observed.
    """

    #: A record of the state does not have it, and a state that was read makes it anew.
    TRANSIENT: ClassVar[tuple[str, ...]] = ("_first",)
    #: The first user of each claim while pods are read again, which changes neither users nor slices; else None. A
    #: tenant may name one claim in any number of pods, and each of them asks who is the first.
    _first: dict[str, PodInfo | None] | None = None

    def __init__(self, state: SlicerState) -> None:
        self._state = state
        self.pods: dict[PodUid, PodInfo] = {}
        #: By claim, the pods that name it; no set is empty.
        self._users: dict[str, set[PodUid]] = {}

    def note(self, pod: PodInfo) -> set[PodUid]:
        """Takes in a pod; returns those that may ask for other claims now."""
        known, ends = self.pods.get(pod.uid), self.will_end(pod)
        self.pods[pod.uid] = pod
        for key in set(known.device_claims) - set(pod.device_claims) if known is not None else ():
            self._drop(key, pod.uid)
        stale = set[PodUid]()
        for key in named_claims(pod):
            users = self._users.setdefault(key, set())
            if pod.uid not in users:  # it may be older than the one that asks
                first = self.first(key)
                stale |= {first.uid} if first is not None else set()
            users.add(pod.uid)
            stale |= users - {pod.uid} if ends else set()  # the next of them asks now
        return stale

    def forget(self, uid: PodUid) -> set[PodUid]:
        """Takes in that a pod does not exist any more; returns those that may ask for its claims now."""
        pod = self.pods.pop(uid, None)
        stale = set[PodUid]()
        for key in pod.device_claims if pod is not None else ():
            self._drop(key, uid)
            stale |= self._users.get(key, set())
        return stale

    def _drop(self, key: str, uid: PodUid) -> None:
        users = self._users.get(key, set())
        users.discard(uid)
        if not users:
            self._users.pop(key, None)

    def will_end(self, pod: PodInfo) -> bool:
        """True if a pod will never run, and was not known as such."""
        known = self.pods.get(pod.uid)
        return will_never_run(pod) and (known is None or not will_never_run(known))

    def of(self, key: str) -> Collection[PodUid]:
        """All pods that name a claim."""
        return self._users.get(key, ())

    def living(self, key: str) -> Sequence[PodInfo]:
        """The living pods that use a claim, first the one that asks for its slices.

        Args:
            key: ``namespace/name`` of the claim.
        """
        return sorted(self._living(key), key=self._rank)

    def first(self, key: str) -> PodInfo | None:
        """The pod that asks for a claim's slices; None if no living pod uses it."""
        if self._first is not None and key in self._first:
            return self._first[key]
        found = min(self._living(key), key=self._rank, default=None)
        if self._first is not None:
            self._first[key] = found
        return found

    def take(self, stale: Iterable[PodUid]) -> list[PodInfo]:
        """Returns pods that are read again now. Until this returns none, nothing else about users changes."""
        found = [self.pods[uid] for uid in sorted(self.pods.keys() & stale)]
        self._first = {} if found else None
        return found

    def _living(self, key: str) -> Iterator[PodInfo]:
        return (pod for pod in (self.pods[uid] for uid in self._users.get(key, ())) if not will_never_run(pod))

    def _rank(self, pod: PodInfo) -> tuple[bool, str, PodUid]:
        return self._state.allocations.current_of(pod.uid) is None, pod.created, pod.uid


def named_claims(pod: PodInfo) -> list[str]:
    """The claims that a pod names, without those of templates that are still to be made."""
    return [key for key in pod.device_claims if key]
