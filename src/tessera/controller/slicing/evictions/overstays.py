"""Ends pods that stay beyond the deadline by which others were promised their slots.

A pod with ``activeDeadlineSeconds`` may use reserved slots, and forecasts count on its end. Kubelet ends it then, but
not a pod that is being deleted: who deletes or evicts it chooses a grace period, of days if they like. So a pod that
holds slots has ended by its deadline and the grace period of its spec, whatever its deletion says:

- Such a pod is asked to end, with the grace period of its spec, once its deadline is over. A later grace period can
  only shorten an earlier one, and no budget protects a pod that is being deleted
  (``pkg/registry/core/pod/storage/eviction.go``).
- A pod that is not being deleted is evicted if it is there :data:`PASSING_MARGIN` after kubelet should have ended it.

All facts are in the pod, so a new controller decides the same.
"""

from collections.abc import Iterator
from heapq import heappop, heappush

from tessera.api.names import PodUid
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.planning.proposals import Notice, Proposal, Proposer, evict
from tessera.controller.slicing.state.messages import overstay_text
from tessera.controller.slicing.state.reservation_rules import PASSING_MARGIN
from tessera.controller.slicing.state.slicer_state import SlicerState

#: Seconds until a pod that is still there is asked again.
ASKED_AGAIN = 60.0
#: Seconds by which a deletion may end later: the API server rounds its times to seconds.
_ROUNDING = 1.0


def overstays_from(pod: PodInfo) -> float | None:
    """Returns the time from which a pod stays too long, seconds since 1970; None if it never does."""
    if pod.deadline is None or not pod.started or not pod.node or pod.finished:
        return None
    end = pod.started + pod.deadline
    if not pod.terminating:
        return end + PASSING_MARGIN
    return end - pod.grace if pod.gone_by > end + _ROUNDING else None


class Overstays(Proposer):
    """Proposes to evict such pods.

    Args:
        state: the slicer's state.
    """

    def __init__(self, state: SlicerState) -> None:
        self._state = state
        #: When a pod stays too long, or is asked again, seconds since 1970.
        self._due: dict[PodUid, float] = {}
        #: The same, the first at the front; an entry with another time than in ``_due`` is over.
        self._order: list[tuple[float, PodUid]] = []
        #: When a pod was asked; a subset of ``_due``.
        self._asked: dict[PodUid, float] = {}

    @property
    def next_due(self) -> float | None:
        """When the first pod is due, seconds since 1970; None if none is."""
        while self._order and self._due.get(self._order[0][1]) != self._order[0][0]:
            heappop(self._order)
        return self._order[0][0] if self._order else None

    def observe(self, uid: PodUid) -> None:
        """Takes in a pod that changed."""
        pod = self._state.cluster.pods.get(uid)
        due = overstays_from(pod) if pod is not None and self._state.allocations.of(uid) else None
        if due is None:
            self._due.pop(uid, None)
            self._asked.pop(uid, None)
            return
        self._set(uid, max(due, self._asked.get(uid, 0.0)))

    def propose(self) -> Iterator[Proposal]:
        """Evicts the pods that are due."""
        while (due := self.next_due) is not None and due <= self._state.now:
            uid = self._order[0][1]
            self._asked[uid] = self._state.now + ASKED_AGAIN
            self._set(uid, self._asked[uid])
            if ("pod", uid) not in self._state.busy:
                pod = self._state.cluster.pods[uid]
                yield from evict(pod, grace=max(1, int(pod.grace)))
                yield Notice(pod, "SliceDeadline", overstay_text(pod), warning=True)

    def _set(self, uid: PodUid, due: float) -> None:
        if self._due.get(uid) != due:
            self._due[uid] = due
            heappush(self._order, (due, uid))
